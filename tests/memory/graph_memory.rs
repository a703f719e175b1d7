//! Switching static graphs takes no memory beyond one graph per block, as counted by the allocator.

use refrain::checkpoint::Checkpoint;
use refrain::internals::kernels::BlockType;
use refrain::internals::model::graphs::{Switching, write_graphs};
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::schedule::GraphKind;
use refrain::{CancelToken, Engine, EngineOptions, Quantize};

use crate::common::{Tiny, plain, prompt};
use crate::{MEMORY, turn};

#[test]
fn a_change_of_graphs_allocates_no_second_graph() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("graphs");
    // Blocks of 0.6 MB: large beside a session, but still from the allocator, not mapped.
    let tiny = Tiny { ty: BlockType::F32, hidden_dim: 128, n_layers: 4, ..Tiny::default() };
    let source = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
    let options = LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() };
    write_graphs(&source, &path, 4, 16, 4, options).unwrap();
    drop(source);
    let before = MEMORY.current_usage();
    let engine = Engine::open(&path, EngineOptions { n_threads: Some(1), ..tiny.options() }).unwrap();
    let graphs = engine.graphs().unwrap();
    let (memory, block_bytes) = (graphs.memory(), graphs.graphs_bytes(GraphKind::Verify) as usize / 4);
    let held = MEMORY.current_usage() - before;
    // The reported memory is nearly all of the engine's memory, the tokenizer excepted.
    assert!(held as u64 >= memory.used_bytes, "{held} bytes, {memory:?}");

    let mut session = engine.session(plain()).unwrap();
    for switching in [Switching::Progressive, Switching::Asynchronous, Switching::Synchronous] {
        graphs.set_switching(switching);
        // Twice: the first run grows the session's buffers.
        for is_measured in [false, true] {
            graphs.load_all(GraphKind::Prefill).unwrap();
            session.truncate(0).unwrap();
            session.append_tokens(&prompt(1, 100)).unwrap();
            MEMORY.reset_peak_usage();
            let current = MEMORY.current_usage();
            session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
            graphs.wait().unwrap();
            let more = MEMORY.peak_usage() - current;
            assert!(!is_measured || more < block_bytes / 4, "{more} bytes more, blocks of {block_bytes}");
        }
        assert_eq!(graphs.memory(), memory);
    }
}
