//! Models whose layers have inputs of their own and share keys and values, with one residual stream and with several: trees, passes of several parts, dropped rows,
//! packed, streamed and static graphs give the bits of the model in memory.

use std::sync::atomic::AtomicBool;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftSource;
use refrain::internals::draft::testing::AlwaysRight;
use refrain::internals::kernels::{Kernels, Pool};
use refrain::internals::model::graphs::write_graphs;
use refrain::internals::model::packed::pack;
use refrain::internals::model::transformer::{Compute, Part, PassEnd};
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::model::{Batch, Hooks, Interlude, KvCache, Model, Workspace};
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{Engine, EngineOptions, GenerateOptions, KvType, Quantize, SessionOptions, TokenId};

use crate::common::{Run, plain, run};
use crate::model_files::golden;

const FAMILIES: [&str; 2] = ["gemma4", "gemma3n"];

const KEEP: LoadOptions<'static> = LoadOptions {
    quantize: Quantize::Keep,
    packed_access: refrain::checkpoint::PackedAccess::Map,
    graph_memory_max: None,
    streaming: None,
    progress: None,
    n_threads: None,
};

fn tokens(seed: usize, n: usize) -> Vec<TokenId> {
    (0..n).map(|i| TokenId(((31 * i + 97 * seed + i * i) % 384) as u32)).collect()
}

/// A committed prefix, then a tree.
struct Sequence {
    kv: KvCache,
    workspace: Workspace,
    batch: Batch,
}

impl Sequence {
    fn new(model: &Model, compute: Compute<'_>, prefix: usize) -> Self {
        let (mut kv, mut workspace) =
            (KvCache::new(model.config(), KvType::F32, 96).unwrap(), Workspace::new(model.config()));
        let mut batch = Batch::new();
        batch.set_chain(0, &tokens(prefix, prefix));
        let never = AtomicBool::new(false);
        model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::KeysAndValues, &never).unwrap();
        kv.commit_all(&batch);
        // The root with the children 1 and 2; 3 and 5 below 1, 4 below 2.
        batch.set_tree(prefix, &tokens(7, 6), &[0, 0, 0, 1, 2, 1], 6);
        Self { kv, workspace, batch }
    }

    fn bits(&mut self, model: &Model, compute: Compute<'_>, rows: &[u32]) -> Vec<u32> {
        let mut logits = Vec::new();
        model.logits(compute, &mut self.workspace, rows, &mut logits).unwrap();
        logits.iter().map(|x| x.to_bits()).collect()
    }
}

struct Keeps(usize, &'static [u32]);

impl Interlude for Keeps {
    fn layer_idx(&self) -> usize {
        self.0
    }

    fn look(&mut self, _: Compute<'_>, _: &[f32], kept: &mut Vec<u32>) {
        kept.retain(|row| self.1.contains(row));
    }
}

#[test]
fn rows_of_trees_of_several_parts_and_between_dropped_rows_have_the_bits_of_plain_decoding() {
    FAMILIES.into_iter().for_each(check_rows);
}

fn check_rows(family: &str) {
    let checkpoint = Checkpoint::open(golden(family)).unwrap();
    for quantize in [Quantize::Keep, Quantize::Q8_0] {
        let model = Model::load(&checkpoint, LoadOptions { quantize, ..KEEP }).unwrap();
        let pool = Pool::new(2);
        let compute = Compute { kernels: Kernels::detect(), pool: &pool };
        let never = AtomicBool::new(false);
        let all: Vec<u32> = (0..6).collect();
        let alone = |prefix: usize| {
            let mut one = Sequence::new(&model, compute, prefix);
            let Sequence { kv, workspace, batch } = &mut one;
            model.forward(compute, batch, kv, workspace, PassEnd::Hidden, &never).unwrap();
            one.bits(&model, compute, &all)
        };
        let expected = [alone(33), alone(5)];
        // Row 4, token by token along its path.
        let mut chain = Sequence::new(&model, compute, 33);
        for (depth, row) in [0, 2, 4].into_iter().enumerate() {
            let Sequence { kv, workspace, batch } = &mut chain;
            batch.set_chain(33 + depth, &[tokens(7, 6)[row]]);
            model.forward(compute, batch, kv, workspace, PassEnd::Hidden, &never).unwrap();
            kv.commit_all(batch);
        }
        let vocab_size = model.config().vocab_size;
        assert_eq!(chain.bits(&model, compute, &[0]), expected[0][4 * vocab_size..5 * vocab_size]);
        // Both together.
        let mut both = [Sequence::new(&model, compute, 33), Sequence::new(&model, compute, 5)];
        let mut parts: Vec<Part<'_>> = both
            .iter_mut()
            .map(|Sequence { kv, workspace, batch }| Part::new(batch, kv, workspace, &never))
            .collect();
        model.forward_together(compute, &mut parts, PassEnd::Hidden).unwrap();
        drop(parts);
        for (sequence, expected) in both.iter_mut().zip(&expected) {
            assert!(sequence.bits(&model, compute, &all) == *expected, "bits of parts differ");
        }
        // Rows are dropped before each layer.
        for layer_idx in 0..model.config().n_layers() {
            let kept: &[u32] = &[0, 2, 4];
            let mut cut = Sequence::new(&model, compute, 33);
            let Sequence { kv, workspace, batch } = &mut cut;
            let hook: &mut dyn Interlude = &mut Keeps(layer_idx, &[0, 2, 4]);
            let hooks = Hooks { interlude: Some(hook), ..Hooks::default() };
            let part = Part::new(batch, kv, workspace, &never);
            model.forward_through(compute, part, PassEnd::Hidden, hooks).unwrap();
            let of_kept = kept.iter().flat_map(|&row| {
                expected[0][row as usize * vocab_size..(row as usize + 1) * vocab_size].to_vec()
            });
            assert_eq!(
                cut.bits(&model, compute, kept),
                of_kept.collect::<Vec<_>>(),
                "{family}: layer {layer_idx}"
            );
        }
    }
}

fn options(streaming: Option<StreamOptions>) -> EngineOptions {
    EngineOptions {
        n_threads: Some(2),
        quantize: Quantize::Keep,
        cost_profile: Some(refrain::internals::draft::CostProfile::free_rows(100.0)),
        streaming,
        ..EngineOptions::default()
    }
}

#[test]
fn packed_streamed_and_static_graph_models_have_the_bits_of_the_model_in_memory() {
    FAMILIES.into_iter().for_each(check_forms);
}

fn check_forms(family: &str) {
    let checkpoint = Checkpoint::open(golden(family)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (packed, graphs) = (dir.path().join("model.refrain"), dir.path().join("graphs"));
    let identity = pack(&checkpoint, &packed, KEEP).unwrap().identity;
    assert_eq!(write_graphs(&checkpoint, &graphs, 2, 16, 4, KEEP).unwrap().identity, identity);
    assert_eq!(Model::load(&checkpoint, KEEP).unwrap().identity(), identity);
    let prompt = tokens(3, 45);
    let generate = || GenerateOptions { max_tokens: 24, ignore_eos: true, ..GenerateOptions::default() };
    let expected = {
        let engine = Engine::load(&checkpoint, options(None), |_, _| {}).unwrap();
        run(&engine, plain(), Vec::new(), &prompt, generate())
    };
    let assert_same = |engine: &Engine, case: &str| {
        for right in [false, true] {
            let session = if right {
                SessionOptions { history: false, prefill_chunk: 16, ..SessionOptions::default() }
            } else {
                plain()
            };
            let known = || AlwaysRight::new(prompt.len(), expected.tokens.clone());
            let sources: Vec<Box<dyn DraftSource>> = if right { vec![Box::new(known())] } else { Vec::new() };
            let Run { tokens, logits, .. } = run(engine, session, sources, &prompt, generate());
            assert_eq!(
                (tokens, logits),
                (expected.tokens.clone(), expected.logits.clone()),
                "{family}, {case}: {right}"
            );
        }
    };
    assert_same(&Engine::open(&packed, options(None)).unwrap(), "packed");
    for pinned in [Pinned::Layers(0), Pinned::Layers(2), Pinned::Layers(5), Pinned::Memory(1 << 40)] {
        let streaming = StreamOptions::new(pinned);
        let engine = Engine::open(&packed, options(Some(streaming))).unwrap();
        assert_same(&engine, &format!("{pinned:?}"));
    }
    assert_same(&Engine::open(&graphs, options(None)).unwrap(), "static graphs");
}
