//! Static graphs: blocks of layers of fixed batch lengths, read from flash, give the bits of the model in memory. They
//! keep their memory limit, and every problem of their files is an error.

use std::fs;
use std::path::{Path, PathBuf};

use refrain::checkpoint::Checkpoint;
use refrain::internals::error::{CheckpointError, ForwardError};
use refrain::internals::kernels::BlockType;
use refrain::internals::model::graphs::{GraphsError, LayersProblem, Switching, WorkKind, write_graphs};
use refrain::internals::model::packed::{PackedFileError, WritePackedError, pack};
use refrain::internals::model::weights::{LoadOptions, WeightsError};
use refrain::internals::schedule::{GraphKind, Load, Plan, Prefill, SwitchTimes, simulate};
use refrain::{
    CancelToken, Engine, EngineOptions, ErrorKind, GenerateOptions, Quantize, Sampling, SessionOptions,
    TokenId,
};
use tempfile::TempDir;

use crate::common::{
    Rng, Run, Tiny, assert_turns_agree, plain, prompt, reference, run, run_in, sampled as options, samplings,
};

const KEEP: LoadOptions<'static> = LoadOptions {
    quantize: Quantize::Keep,
    packed_access: refrain::checkpoint::PackedAccess::Map,
    graph_memory_max: None,
    streaming: None,
    progress: None,
    n_threads: None,
};

fn checkpoint(tiny: Tiny) -> Checkpoint {
    Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap()
}

/// Graphs of `tiny` in a folder of their own.
fn graphs(tiny: Tiny, n_blocks: usize, prefill_len: usize, verify_len: usize) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("graphs");
    let summary = write_graphs(&checkpoint(tiny), &path, n_blocks, prefill_len, verify_len, KEEP).unwrap();
    assert_eq!(summary.n_files, fs::read_dir(&path).unwrap().count());
    let lens = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert_eq!(summary.file_bytes, lens.sum::<u64>());
    (dir, path)
}

fn engine(path: &Path, tiny: Tiny, switching: Switching) -> Engine {
    let options = EngineOptions { n_threads: Some(2), graph_switching: switching, ..tiny.options() };
    Engine::open(path, options).unwrap()
}

fn assert_all(engine: &Engine, graph: GraphKind, case: &str) {
    assert!(engine.graphs().unwrap().graphs().iter().all(|held| *held == Some(graph)), "{case}");
}

#[test]
fn the_bits_are_those_of_the_model_in_memory() {
    let prompt = prompt(3, 70);
    let lens = [(32, 8), (16, 16), (7, 3), (100, 1), (8, 24)];
    for (ty, block_counts) in [(BlockType::Q4_0, &[1, 2, 5][..]), (BlockType::F16, &[3])] {
        let tiny = Tiny { ty, n_layers: 5, ..Tiny::default() };
        let references: Vec<Run> = samplings().iter().map(|s| reference(tiny, &prompt, s)).collect();
        for &n_blocks in block_counts {
            for (prefill_len, verify_len) in lens {
                let (_dir, path) = graphs(tiny, n_blocks, prefill_len, verify_len);
                let engine = engine(&path, tiny, Switching::Progressive);
                let baseline = if verify_len > 3 { Switching::Asynchronous } else { Switching::Synchronous };
                for switching in [Switching::Progressive, baseline] {
                    let case =
                        format!("{ty:?}, {n_blocks} blocks of {prefill_len} and {verify_len}, {switching:?}");
                    engine.graphs().unwrap().set_switching(switching);
                    check_both_ways(&engine, &prompt, &references, &case);
                }
            }
        }
    }
}

/// With and without drafts, greedy and sampled.
fn check_both_ways(engine: &Engine, prompt: &[TokenId], references: &[Run], case: &str) {
    for (sampling, reference) in samplings().iter().zip(references) {
        for drafts in [plain(), SessionOptions { history: false, ..SessionOptions::default() }] {
            engine.graphs().unwrap().load_all(GraphKind::Prefill).unwrap();
            let run = run(engine, drafts, Vec::new(), prompt, options(sampling));
            run.assert_equal(reference, case);
            assert_all(engine, GraphKind::Verify, case);
        }
    }
}

/// All combinations of the blocks' switching times: after each chunk, and after none.
#[test]
fn the_bits_do_not_depend_on_when_blocks_change() {
    let tiny = Tiny { ty: BlockType::Q8_0, n_layers: 3, ..Tiny::default() };
    let prompt = prompt(5, 40);
    let reference = reference(tiny, &prompt, &Sampling::default());
    let (_dir, path) = graphs(tiny, 3, 16, 4);
    let engine = engine(&path, tiny, Switching::Progressive);
    let graphs = engine.graphs().unwrap();
    let prefill = Prefill::new(0, prompt.len() - 1, 16);
    let n_chunks = prefill.chunks.len();
    let mut n_followed = 0;
    for pick in 0..(n_chunks + 2).pow(3) {
        // 0: before the first chunk; 1 and up: after that chunk; last: for the first verification batch.
        let picks = [0, 1, 2].map(|block| pick / (n_chunks + 2).pow(block) % (n_chunks + 2));
        let mut loads: Vec<Load> = (0..3)
            .filter(|&block| picks[block] <= n_chunks)
            .map(|block| Load { block, graph: GraphKind::Verify, after: picks[block].checked_sub(1) })
            .collect();
        loads.sort_by_key(|load| load.after.map_or(0, |chunk| 3 * chunk + load.block + 1));
        let plan = Plan { loads };
        let times = graphs.times().unwrap();
        simulate(&times, &prefill, &[GraphKind::Prefill; 3], &plan).unwrap();
        graphs.load_all(GraphKind::Prefill).unwrap();
        graphs.set_plan(plan);
        graphs.start_trace();
        let run = run(&engine, plain(), Vec::new(), &prompt, options(&Sampling::default()));
        run.assert_equal(&reference, &format!("{picks:?}"));
        // The blocks switched at the planned times.
        for block in 0..3 {
            let trace = graphs.trace();
            let calls = trace.iter().filter(|work| work.kind == WorkKind::Compute && work.block == block);
            let n_prefill = calls.filter(|work| work.graph == GraphKind::Prefill).count();
            assert_eq!(n_prefill, picks[block].min(n_chunks), "block {block}: {picks:?}");
            n_followed += 1;
        }
    }
    assert_eq!(n_followed, 375);
}

#[test]
fn several_turns_a_cancellation_and_a_fork() {
    let tiny = Tiny { ty: BlockType::Q8_0, n_layers: 4, ..Tiny::default() };
    let (_dir, path) = graphs(tiny, 2, 16, 4);
    let engine = engine(&path, tiny, Switching::Progressive);
    let mut session = engine.session(plain()).unwrap();
    let mut reference = tiny.engine(1).session(plain()).unwrap();
    let options = || options(&Sampling::default());
    assert_turns_agree(&mut session, &mut reference, options);
}

#[test]
fn sessions_take_turns() {
    let tiny = Tiny { ty: BlockType::Q4_0, n_layers: 4, ..Tiny::default() };
    let (_dir, path) = graphs(tiny, 4, 16, 4);
    let engine = engine(&path, tiny, Switching::Progressive);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let engine = engine.clone();
            scope.spawn(move || {
                let prompt = prompt(seed, 60 + 7 * seed as usize);
                let expected = reference(tiny, &prompt, &Sampling::default());
                let found = run(&engine, plain(), Vec::new(), &prompt, options(&Sampling::default()));
                found.assert_equal(&expected, &format!("seed {seed}"));
            });
        }
    });
}

#[test]
fn the_logits_of_a_text_are_the_same() {
    let tiny = Tiny { ty: BlockType::BF16, n_layers: 3, ..Tiny::default() };
    let (_dir, path) = graphs(tiny, 2, 16, 4);
    let score = |engine: &Engine| {
        let mut session = engine.session(plain()).unwrap();
        session.append_tokens(&prompt(8, 45)).unwrap();
        let mut bits = Vec::new();
        session
            .score(&CancelToken::new(), Some(&mut |row: &[f32]| bits.extend(row.iter().map(|x| x.to_bits()))))
            .unwrap();
        bits
    };
    assert_eq!(score(&engine(&path, tiny, Switching::Progressive)), score(&tiny.engine(1)));
}

#[test]
fn the_model_is_the_one_that_was_cut() {
    let tiny = Tiny { ty: BlockType::F16, n_layers: 3, ..Tiny::default() };
    let dir = tempfile::tempdir().unwrap();
    let source = checkpoint(tiny);
    let q8 = LoadOptions { quantize: Quantize::Q8_0, ..KEEP };
    let packed = dir.path().join("model.refrain");
    let identity = pack(&source, &packed, q8).unwrap().identity;
    // From the source and from the packed file, which keeps its types, the files are the same.
    let [direct, repacked] = ["direct", "repacked"].map(|name| dir.path().join(name));
    assert_eq!(write_graphs(&source, &direct, 2, 16, 4, q8).unwrap().identity, identity);
    let packed = Checkpoint::open(&packed).unwrap();
    write_graphs(&packed, &repacked, 2, 16, 4, LoadOptions { quantize: Quantize::Q4_0, ..KEEP }).unwrap();
    for entry in fs::read_dir(&direct).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        assert!(fs::read(&path).unwrap() == fs::read(repacked.join(name)).unwrap(), "{name:?}");
    }
    let opened = Checkpoint::open(&direct).unwrap();
    assert_eq!((opened.config(), opened.name()), (source.config(), source.name()));
    let folder = opened.graphs().unwrap();
    assert_eq!((folder.identity(), folder.piece().blocks.as_slice()), (identity, &[0..2, 2..3][..]));
    folder.files().for_each(|file| file.verify(None).unwrap());
    let engine = Engine::load(&opened, tiny.options(), |_, _| {}).unwrap();
    assert_eq!(engine.model_identity(), identity);
    assert_eq!(engine.tokenizer().fingerprint(), tiny.engine(1).tokenizer().fingerprint());
    let widened =
        Engine::load(&opened, EngineOptions { quantize: Quantize::F32, ..tiny.options() }, |_, _| {});
    assert!(matches!(widened.unwrap_err().detail(), Some(WeightsError::Graphs(GraphsError::Widened { .. }))));
}

#[test]
fn memory_stays_within_its_limit() {
    let tiny = Tiny { ty: BlockType::F32, n_layers: 4, ..Tiny::default() };
    let (_dir, path) = graphs(tiny, 4, 16, 4);
    let open = |limit| {
        let options = EngineOptions { graph_memory_max: limit, ..tiny.options() };
        Engine::open(&path, options)
    };
    let needed = open(None).unwrap().graphs().unwrap().memory().limit_bytes;
    // The memory of the model in memory, plus a page per block. Both graphs of each block would take twice the layers.
    let resident = tiny.engine(1).memory_usage();
    assert!((resident..resident + resident / 8).contains(&needed), "{needed} of {resident}");
    let error = open(Some(needed - 1)).unwrap_err();
    assert_eq!((error.kind(), error.limit()), (ErrorKind::OverLimit, Some(needed - 1)), "{error:?}");
    assert!(
        matches!(error.detail(), Some(WeightsError::Graphs(GraphsError::MemoryLimit { needed: n, .. })) if *n == needed)
    );
    let engine = open(Some(needed)).unwrap();
    let graphs = engine.graphs().unwrap();
    for n_tokens in [40, 100, 5] {
        let run = run(&engine, plain(), Vec::new(), &prompt(1, n_tokens), options(&Sampling::default()));
        assert_eq!(run.tokens.len(), 16);
        let memory = graphs.memory();
        assert!(memory.peak_bytes <= memory.limit_bytes && memory.used_bytes == needed, "{memory:?}");
    }
    assert_eq!(engine.memory_usage(), needed);
    assert!(graphs.n_loads() >= 4);
}

#[test]
fn stored_times_are_used_where_they_belong() {
    let tiny = Tiny { n_layers: 2, ..Tiny::default() };
    let (_dir, path) = graphs(tiny, 2, 16, 4);
    let engine = engine(&path, tiny, Switching::Progressive);
    let measured = engine.measure_graphs(2).unwrap().unwrap();
    measured.check().unwrap();
    assert_eq!(*engine.graphs().unwrap().times().unwrap(), measured);
    let mut marked = measured.clone();
    marked.blocks[0].verify.load_us = 123_456.0;
    let opened_with = |times: &SwitchTimes| {
        Checkpoint::open(&path).unwrap().graphs().unwrap().store_times(times).unwrap();
        let engine = Engine::open(&path, EngineOptions { n_threads: Some(2), ..tiny.options() }).unwrap();
        engine.graphs().unwrap().times().unwrap().blocks[0].verify.load_us
    };
    assert_eq!(opened_with(&marked), 123_456.0);
    // Times of another machine, of other blocks, or none: measured again.
    marked.label = "another machine".to_owned();
    assert_ne!(opened_with(&marked), 123_456.0);
    marked.label.clone_from(&measured.label);
    marked.blocks.pop();
    assert_ne!(opened_with(&marked), 123_456.0);
    fs::write(path.join("times.json"), "{").unwrap();
    assert!(Checkpoint::open(&path).unwrap().graphs().unwrap().times().is_err());
    Engine::open(&path, tiny.options()).unwrap();
}

#[test]
fn a_place_that_is_taken_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("graphs");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("mine"), "mine").unwrap();
    let source = checkpoint(Tiny::default());
    let written = write_graphs(&source, &path, 2, 16, 4, KEEP);
    assert!(matches!(written, Err(WritePackedError::Replace { action: "rename to", .. })), "{written:?}");
    assert_eq!(fs::read_to_string(path.join("mine")).unwrap(), "mine");
    assert_eq!((fs::read_dir(&path).unwrap().count(), fs::read_dir(dir.path()).unwrap().count()), (1, 1));
    for (n_blocks, prefill_len, verify_len) in [(0, 16, 4), (3, 16, 4), (2, 0, 4), (2, 16, 8193)] {
        let written =
            write_graphs(&source, &dir.path().join("other"), n_blocks, prefill_len, verify_len, KEEP);
        assert!(matches!(written, Err(WritePackedError::OutOfRange { .. })), "{written:?}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Checks that a folder is refused, and looks at the reason.
#[track_caller]
fn refused(path: &Path, look: impl FnOnce(&GraphsError)) {
    let error = Checkpoint::open(path).unwrap_err();
    let Some(CheckpointError::Graphs(error)) = error.detail() else { panic!("{error:?}") };
    look(error);
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let tiny = Tiny { n_layers: 2, ..Tiny::default() };
    let other_model = Tiny { seed: 2, ..tiny };
    let [prefill, verify] = ["block-000-prefill.refrain", "block-000-verify.refrain"];
    let foreign = |from: &Path, name: &str, to: &str, field: &str| {
        let (_dir, path) = graphs(tiny, 2, 16, 4);
        fs::copy(from.join(name), path.join(to)).unwrap();
        refused(&path, |error| match error {
            GraphsError::Foreign { field: found, .. } => assert_eq!(*found, field, "{name} as {to}"),
            other => panic!("{name} as {to}: {other:?}"),
        });
    };
    let (_dir, same) = graphs(tiny, 2, 16, 4);
    foreign(&same, prefill, verify, "the content");
    foreign(&same, "block-001-prefill.refrain", prefill, "the content");
    foreign(&same, prefill, "graphs.refrain", "the content");
    let (_dir, other) = graphs(other_model, 2, 16, 4);
    foreign(&other, prefill, prefill, "the model");
    let (_dir, other) = graphs(tiny, 2, 32, 4);
    foreign(&other, prefill, prefill, "the cut");
    let packed = tempfile::tempdir().unwrap();
    pack(&checkpoint(tiny), &packed.path().join("whole"), KEEP).unwrap();
    foreign(packed.path(), "whole", "graphs.refrain", "the content");
    foreign(packed.path(), "whole", verify, "the content");

    fs::remove_file(same.join(verify)).unwrap();
    refused(&same, |error| assert!(matches!(error, GraphsError::Packed(PackedFileError::Io { .. }))));
    // A graph is not a model.
    let graph = Checkpoint::open(same.join(prefill));
    assert!(matches!(graph.unwrap_err().detail(), Some(CheckpointError::NotAModel { .. })));
}

/// Every byte of a header is covered by its checksum.
#[test]
fn damaged_headers_are_refused() {
    let (_dir, path) = graphs(Tiny::default(), 1, 16, 4);
    let file = path.join("block-000-verify.refrain");
    let good = fs::read(&file).unwrap();
    let data_start = good.len()
        - Checkpoint::open(&path)
            .unwrap()
            .graphs()
            .unwrap()
            .graph(0, GraphKind::Verify)
            .sections()
            .iter()
            .map(|s| s.len as usize)
            .sum::<usize>();
    let mut rng = Rng(1);
    for at in (0..data_start).step_by(13) {
        let mut bad = good.clone();
        bad[at] ^= 1 << rng.below(8);
        fs::write(&file, bad).unwrap();
        refused(&path, |error| assert!(matches!(error, GraphsError::Packed(_)), "byte {at}"));
    }
    fs::write(&file, &good[..good.len() - 1]).unwrap();
    refused(&path, |error| assert!(matches!(error, GraphsError::Packed(PackedFileError::Truncated { .. }))));
}

#[test]
fn weights_that_cannot_be_read_are_errors_and_the_session_goes_on() {
    let tiny = Tiny { ty: BlockType::Q8_0, n_layers: 3, ..Tiny::default() };
    let prompt = prompt(5, 40);
    let expected = reference(tiny, &prompt, &Sampling::default());
    let (_dir, path) = graphs(tiny, 3, 16, 4);
    let engine = engine(&path, tiny, Switching::Progressive);
    let file = path.join("block-001-verify.refrain");
    let good = fs::read(&file).unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    // The file keeps its identity, as with a failing disk. After all tests it is whole again.
    for (bad, is_checksum) in
        [(flipped.as_slice(), true), (&good[..good.len() / 2], false), (&good[..5000], false)]
    {
        engine.graphs().unwrap().load_all(GraphKind::Prefill).unwrap();
        fs::write(&file, bad).unwrap();
        let mut session = engine.session(plain()).unwrap();
        session.append_tokens(&prompt).unwrap();
        let failed = session.generate(options(&Sampling::default())).unwrap().find_map(Result::err);
        let failed = failed.expect("an error");
        let Some(ForwardError::Layers(error)) = failed.detail() else { panic!("{failed:?}") };
        assert!(error.file.ends_with("block-001-verify.refrain"), "{error}");
        assert_eq!(matches!(error.problem, LayersProblem::Checksum { .. }), is_checksum, "{error}");
        assert_eq!(session.tokens(), prompt);
        fs::write(&file, &good).unwrap();
        let found = run_in(&mut session, options(&Sampling::default()), usize::MAX);
        found.assert_equal(&expected, "after the failure");
    }
    // The first load finds damage that was present when the model was opened.
    fs::write(&file, &flipped).unwrap();
    let refused = Engine::open(&path, tiny.options()).unwrap_err();
    assert!(matches!(refused.detail(), Some(GraphsError::Layers(_))), "{refused:?}");
}

/// The fixture model gives the same text.
#[test]
fn the_fixture_model_answers_as_ever() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/target.gguf");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("graphs");
    let source = Checkpoint::open(&fixture).unwrap();
    write_graphs(&source, &path, source.config().n_layers().min(3), 32, 16, LoadOptions::default()).unwrap();
    let answer = |engine: &Engine| {
        let mut session =
            engine.session(SessionOptions { history: false, ..SessionOptions::default() }).unwrap();
        let note =
            "# Trip\nThe train leaves at 08:15 from platform 4.\n# Dentist\nTuesday at nine, bring the card.";
        session.append_turn(refrain::Role::User, format!("Summarize the notes.\n\n{note}")).unwrap();
        run_in(&mut session, GenerateOptions { max_tokens: 48, ..GenerateOptions::default() }, usize::MAX)
    };
    let expected = answer(&Engine::load(&source, EngineOptions::default(), |_, _| {}).unwrap());
    for switching in [Switching::Progressive, Switching::Synchronous] {
        let options = EngineOptions { graph_switching: switching, ..EngineOptions::default() };
        answer(&Engine::open(&path, options).unwrap()).assert_equal(&expected, "the fixture model");
    }
}
