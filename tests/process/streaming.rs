//! A streamed model gives the bits of the model in memory, for any pinned part. Its reads and memory agree with its
//! statistics.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use refrain::checkpoint::Checkpoint;
use refrain::device::MemoryPressure;
use refrain::drafting::DraftModelOptions;
use refrain::drafting::{
    AcceptanceFloor, Calibration, DraftPolicy, DraftRows, EchoConfig, Predictor, ReuseConfig,
};
use refrain::internals::draft::CostProfile;
use refrain::internals::kernels::BlockType;
use refrain::internals::model::packed::pack;
use refrain::internals::model::streamed::StreamedError;
use refrain::internals::model::weights::{LoadOptions, WeightsError};
use refrain::internals::stream::DIRECT_ALIGN;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{
    CancelToken, Engine, EngineOptions, FinishReason, GenerateOptions, LoadError, Quantize, Sampling,
    SessionOptions,
};
use tempfile::TempDir;

use crate::common::{
    self, Rng, Run, Tiny, assert_turns_agree, plain, prompt, reference, run, run_in, sampled as options,
    samplings,
};

/// `tiny`, packed into a folder of its own.
fn packed(tiny: Tiny) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.refrain");
    let checkpoint = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
    pack(&checkpoint, &path, LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() }).unwrap();
    (dir, path)
}

fn try_engine(
    path: &Path,
    tiny: Tiny,
    n_threads: usize,
    streaming: StreamOptions,
) -> Result<Engine, LoadError> {
    let options = EngineOptions { n_threads: Some(n_threads), streaming: Some(streaming), ..tiny.options() };
    Engine::open(path, options)
}

fn engine(path: &Path, tiny: Tiny, n_threads: usize, pinned: Pinned) -> Engine {
    try_engine(path, tiny, n_threads, StreamOptions::new(pinned)).unwrap()
}

/// Every way to draft, and prompts in several chunks.
fn sessions() -> [SessionOptions; 4] {
    let drafting =
        SessionOptions { history: false, prefill_chunk: 16, projection_rows: 3, ..SessionOptions::default() };
    let in_context = SessionOptions {
        calibration: Calibration::InContext,
        reuse: Some(ReuseConfig::default()),
        ..drafting.clone()
    };
    let full = SessionOptions { calibration: Calibration::Full, ..drafting.clone() };
    [plain(), drafting, in_context, full]
}

/// A read that takes hours would hold up the engine for ever, because nothing can stop it.
#[test]
fn options_that_no_disk_has_are_refused() {
    let tiny = Tiny::default();
    let (_folder, path) = packed(tiny);
    let all = || StreamOptions::new(Pinned::Layers(0));
    let [mut no_disk, mut slow_disk, mut no_time] = [all(), all(), all()];
    no_disk.bandwidth_max = Some(0);
    slow_disk.bandwidth_max = Some(StreamOptions::BANDWIDTH_MIN - 1);
    no_time.stall_max = Duration::ZERO;
    for (options, part) in
        [(no_disk, "bandwidth_max is 0"), (slow_disk, "the minimum is 1000000"), (no_time, "stall_max is 0")]
    {
        let error = try_engine(&path, tiny, 1, options).unwrap_err();
        assert!(
            matches!(error.detail(), Some(WeightsError::Streamed(StreamedError::Options(_)))),
            "{error:?}"
        );
        assert!(error.to_string().contains(part), "{error}");
    }
    for bandwidth in [StreamOptions::BANDWIDTH_MIN, u64::MAX] {
        let mut options = all();
        options.bandwidth_max = Some(bandwidth);
        options.stall_max = Duration::MAX;
        assert!(try_engine(&path, tiny, 1, options).is_ok(), "{bandwidth}");
    }
    let longest = EngineOptions { measure_time: Some(Duration::MAX), ..EngineOptions::default() };
    assert!(
        Engine::load(&Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap(), longest, |_, _| {})
            .is_ok()
    );
}

#[test]
fn the_bits_are_those_of_the_model_in_memory() {
    let prompt = prompt(3, 70);
    for ty in [BlockType::Q4_0, BlockType::F16] {
        let tiny = Tiny { ty, n_layers: 5, ..Tiny::default() };
        let references: Vec<Run> = samplings().iter().map(|s| reference(tiny, &prompt, s)).collect();
        let (_dir, path) = packed(tiny);
        for n_pinned in 0..=5 {
            for n_threads in [1, 2, 5] {
                let engine = engine(&path, tiny, n_threads, Pinned::Layers(n_pinned));
                assert_eq!(engine.streamed().unwrap().memory().n_pinned_layers, n_pinned);
                for (sampling, reference) in samplings().iter().zip(&references) {
                    for (i, session) in sessions().into_iter().enumerate() {
                        let run = run(&engine, session, Vec::new(), &prompt, options(sampling));
                        let case = format!("{ty:?}, {n_pinned} pinned, {n_threads} threads, session {i}");
                        run.assert_equal(reference, &case);
                        let streaming = run.stats.streaming.unwrap();
                        assert_eq!(streaming.decode.read_bytes > 0, n_pinned < 5, "{case}");
                    }
                }
            }
        }
    }
}

/// Layers of several blocks, with a shorter last one.
#[test]
fn layers_of_several_blocks_have_their_bits() {
    let tiny = Tiny { ty: BlockType::F16, hidden_dim: 512, n_layers: 4, ..Tiny::default() };
    let prompt = prompt(4, 20);
    let reference = reference(tiny, &prompt, &Sampling::default());
    let (_dir, path) = packed(tiny);
    let mut passes = Vec::new();
    for pinned in [Pinned::Layers(0), Pinned::Layers(1)] {
        let engine = engine(&path, tiny, 2, pinned);
        let streamed = engine.streamed().unwrap();
        assert!(streamed.memory().ring_bytes > 2 * (3 << 20));
        // A buffer of whole huge pages is longer than a layer.
        assert!(streamed.ring_room() < streamed.memory().ring_bytes);
        passes.push((streamed.pass_bytes(), streamed.ring_room()));
        let session = SessionOptions { history: false, ..SessionOptions::default() };
        let run = run(&engine, session, Vec::new(), &prompt, options(&Sampling::default()));
        run.assert_equal(&reference, &format!("{pinned:?}"));
    }
    let layer_bytes = passes[0].0 - passes[1].0;
    assert_eq!([passes[0].1, passes[1].1], [3 * layer_bytes; 2], "each of three buffers holds a layer");
}

#[test]
fn the_logits_of_a_text_are_the_same() {
    let tiny = Tiny { ty: BlockType::BF16, n_layers: 3, ..Tiny::default() };
    let (_dir, path) = packed(tiny);
    let score = |engine: &Engine| {
        let mut session = engine.session(plain()).unwrap();
        session.append_tokens(&prompt(8, 45)).unwrap();
        let mut bits = Vec::new();
        session
            .score(&CancelToken::new(), Some(&mut |row: &[f32]| bits.extend(row.iter().map(|x| x.to_bits()))))
            .unwrap();
        bits
    };
    let expected = score(&tiny.engine(1));
    for pinned in [Pinned::Layers(0), Pinned::Layers(2), Pinned::Memory(0), Pinned::Memory(u64::MAX)] {
        assert_eq!(score(&engine(&path, tiny, 2, pinned)), expected, "{pinned:?}");
    }
}

/// A tied output matrix is the embedding. The fixture model has one, and its text is the same.
#[test]
fn the_fixture_model_answers_as_ever() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target.refrain");
    let source = Checkpoint::open(common::fixtures().join("target.gguf")).unwrap();
    let summary = pack(&source, &path, LoadOptions::default()).unwrap();
    let answer = |engine: &Engine| {
        let mut session =
            engine.session(SessionOptions { history: false, ..SessionOptions::default() }).unwrap();
        let request = format!("Summarize the notes.\n\n{}", common::notes()[0]);
        session.append_turn(refrain::Role::User, request).unwrap();
        run_in(&mut session, GenerateOptions { max_tokens: 48, ..GenerateOptions::default() }, usize::MAX)
    };
    let expected = answer(&Engine::load(&source, EngineOptions::default(), |_, _| {}).unwrap());
    let n_layers = source.config().n_layers();
    for pinned in [Pinned::Memory(0), Pinned::Layers(2), Pinned::Layers(n_layers), Pinned::Memory(1 << 40)] {
        let streaming = Some(StreamOptions::new(pinned));
        let engine = Engine::open(&path, EngineOptions { streaming, ..EngineOptions::default() }).unwrap();
        let memory = engine.streamed().unwrap().memory();
        assert_eq!(memory.head_pinned, memory.n_pinned_layers == n_layers, "{pinned:?}");
        assert_eq!(engine.model_identity(), summary.identity);
        assert_eq!(engine.memory_usage(), memory.total_bytes());
        answer(&engine).assert_equal(&expected, &format!("{pinned:?}"));
    }
}

/// The rows of a tied output matrix are those of the embedding, which are in memory: a shortlist reads none, and sources learn what they
/// learn from a model in memory.
#[test]
fn rows_of_a_tied_output_matrix_are_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target.refrain");
    let source = Checkpoint::open(common::fixtures().join("target.gguf")).unwrap();
    pack(&source, &path, LoadOptions::default()).unwrap();
    let n_reads = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&n_reads);
    let mut streaming = StreamOptions::new(Pinned::Layers(2));
    streaming.wrap = common::reading(move |file, offset, out| {
        // Less than a block of the fixture model's layers: rows.
        counter.fetch_add(u64::from(out.len() <= 1 << 14), Ordering::Relaxed);
        file.read_at(offset, out)
    });
    let streaming = Some(streaming);
    let streamed = Engine::open(&path, EngineOptions { streaming, ..EngineOptions::default() }).unwrap();
    assert!(n_reads.swap(0, Ordering::Relaxed) > 100, "the embedding is read by panels");
    let resident = Engine::load(&source, EngineOptions::default(), |_, _| {}).unwrap();
    let drafted = [&streamed, &resident].map(|engine| {
        let policy = DraftPolicy { rows: DraftRows::Fixed(8), ..DraftPolicy::default() };
        let (calibration, echo) = (Calibration::InContext, Some(EchoConfig::default()));
        let options = SessionOptions { calibration, echo, policy, ..SessionOptions::default() };
        let mut session = engine.session(options).unwrap();
        session.append_turn(refrain::Role::User, common::notes()[0].clone()).unwrap();
        let options = GenerateOptions { max_tokens: 40, ..GenerateOptions::default() };
        run_in(&mut session, options, usize::MAX).stats.sources
    });
    assert_eq!(n_reads.load(Ordering::Relaxed), 0);
    let counts = |i: usize| -> Vec<_> {
        drafted[i].iter().map(|source| (&source.name, source.drafted, source.accepted)).collect()
    };
    assert!(counts(0).iter().any(|(_, n_drafted, _)| *n_drafted > 0), "{:?}", counts(0));
    assert_eq!(counts(0), counts(1));
}

/// The fixture pair with a predictor, by each policy, with every number of layers in memory.
#[test]
fn a_draft_model_a_predictor_and_policies_change_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target.refrain");
    let source = Checkpoint::open(common::fixtures().join("target.gguf")).unwrap();
    pack(&source, &path, LoadOptions::default()).unwrap();
    let draft = Checkpoint::open(common::fixtures().join("draft.gguf")).unwrap();
    let costs = |step_us| Some(CostProfile::free_rows(step_us));
    let answer = |engine: &Engine, session: SessionOptions, sampling: &Sampling| {
        let mut session = engine.session(SessionOptions { history: false, ..session }).unwrap();
        let request = format!("Summarize the notes.\n\n{}", common::notes()[1]);
        session.append_turn(refrain::Role::User, request).unwrap();
        let options =
            GenerateOptions { max_tokens: 24, sampling: sampling.clone(), ..GenerateOptions::default() };
        run_in(&mut session, options, usize::MAX)
    };
    let in_memory = Engine::load(&source, EngineOptions::default(), |_, _| {}).unwrap();
    let references = samplings().map(|sampling| answer(&in_memory, plain(), &sampling));
    let policies = [
        DraftPolicy::default(),
        DraftPolicy { rows: DraftRows::Fixed(9), ..DraftPolicy::default() },
        DraftPolicy {
            floor: Some(AcceptanceFloor { window: 2, rate_min: 0.9, pause: 1 }),
            ..DraftPolicy::default()
        },
    ];
    let (mut n_drafted, mut n_pruned) = (0, 0);
    for n_pinned in 0..=source.config().n_layers() {
        let streaming = Some(StreamOptions::new(Pinned::Layers(n_pinned)));
        let options = EngineOptions { streaming, cost_profile: costs(100.0), ..EngineOptions::default() };
        let engine = Engine::open(&path, options).unwrap();
        let cheap = DraftModelOptions { cost_profile: costs(0.01), ..DraftModelOptions::default() };
        engine.set_draft_model(&draft, cheap, |_, _| {}).unwrap();
        engine.set_predictor(Predictor::read(common::fixtures().join("target.predictor")).unwrap()).unwrap();
        for policy in policies {
            for (sampling, reference) in samplings().iter().zip(&references) {
                let session = SessionOptions { policy, verify_rows_max: 24, ..SessionOptions::default() };
                let run = answer(&engine, session, sampling);
                run.assert_equal(reference, &format!("{n_pinned} pinned, {policy:?}, {sampling:?}"));
                let of_model = run.stats.sources.iter().filter(|source| source.computed.is_some());
                n_drafted += of_model.map(|source| source.accepted).sum::<usize>();
                n_pruned += run.stats.pruning.map_or(0, |pruning| pruning.rows_before - pruning.rows_kept);
            }
        }
    }
    assert!(n_drafted > 100 && n_pruned > 100, "{n_drafted} drafted, {n_pruned} pruned");
}

/// While a slow disk is read, the draft model drafts ahead; nothing that is read is dropped.
#[test]
fn drafts_are_made_while_weights_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target.refrain");
    let source = Checkpoint::open(common::fixtures().join("target.gguf")).unwrap();
    pack(&source, &path, LoadOptions::default()).unwrap();
    let draft = Checkpoint::open(common::fixtures().join("draft.gguf")).unwrap();
    let answer = |engine: &Engine, session: SessionOptions| {
        let mut session = engine.session(SessionOptions { history: false, ..session }).unwrap();
        let request = format!("Summarize the notes.\n\n{}", common::notes()[1]);
        session.append_turn(refrain::Role::User, request).unwrap();
        run_in(&mut session, GenerateOptions { max_tokens: 24, ..GenerateOptions::default() }, usize::MAX)
    };
    let expected = answer(&Engine::load(&source, EngineOptions::default(), |_, _| {}).unwrap(), plain());
    // Reading a layer takes 40 ms, a pass of the draft model a hundredth of that.
    let mut slow = StreamOptions::new(Pinned::Layers(0));
    slow.bandwidth_max = Some(15_000_000);
    let options = EngineOptions {
        streaming: Some(slow),
        cost_profile: Some(CostProfile::free_rows(1e5)),
        ..EngineOptions::default()
    };
    let engine = Engine::open(&path, options).unwrap();
    let cheap = DraftModelOptions {
        cost_profile: Some(CostProfile::free_rows(100.0)),
        ..DraftModelOptions::default()
    };
    engine.set_draft_model(&draft, cheap, |_, _| {}).unwrap();
    let policy = DraftPolicy { rows: DraftRows::Fixed(9), ..DraftPolicy::default() };
    let drafted = SessionOptions { policy, calibration: Calibration::Off, ..SessionOptions::default() };
    for (session, drafts) in [(plain(), false), (drafted, true)] {
        let run = answer(&engine, session);
        run.assert_equal(&expected, &format!("drafts: {drafts}"));
        let computed = run.stats.sources.iter().filter_map(|source| source.computed.as_ref());
        assert_eq!(computed.map(|computed| computed.ahead).sum::<usize>() > 0, drafts);
        let streaming = run.stats.streaming.unwrap();
        assert_eq!(streaming.prefill.dropped_bytes + streaming.decode.dropped_bytes, 0, "drafts: {drafts}");
    }
}

/// A prompt of several chunks reads each layer once, and reports its progress meanwhile.
#[test]
fn a_long_prompt_reads_the_weights_once() {
    let tiny = Tiny { ty: BlockType::Q8_0, n_layers: 6, ..Tiny::default() };
    let prompt = prompt(9, 300);
    let reference = reference(tiny, &prompt, &Sampling::default());
    let (_dir, path) = packed(tiny);
    for pinned in [Pinned::Layers(0), Pinned::Layers(2)] {
        let engine = engine(&path, tiny, 2, pinned);
        let streamed = engine.streamed().unwrap();
        for (i, options_of) in sessions().into_iter().enumerate() {
            let mut session = engine.session(SessionOptions { prefill_chunk: 16, ..options_of }).unwrap();
            session.append_tokens(&prompt).unwrap();
            let (mut reports, before) = (Vec::new(), streamed.flow().read_bytes);
            session.prefill(&CancelToken::new(), |done, total| reports.push((done, total))).unwrap();
            let read = streamed.flow().read_bytes - before;
            assert!(reports.is_sorted() && reports.last() == Some(&(299, 299)), "{reports:?}");
            assert!(reports.len() >= 6 && reports.iter().all(|(_, total)| *total == 299), "{reports:?}");
            // Full calibration reads the output matrix for each chunk.
            let once = streamed.pass_bytes() + streamed.ring_room();
            assert!(i == 3 || read <= once + streamed.pass_bytes(), "{read} bytes, {once} for a pass: {i}");
            let run = run_in(&mut session, options(&Sampling::default()), usize::MAX);
            run.assert_equal(&reference, &format!("{pinned:?}, session {i}"));
        }
    }
}

#[test]
fn several_turns_a_cancellation_and_a_fork() {
    let tiny = Tiny { ty: BlockType::Q8_0, n_layers: 4, ..Tiny::default() };
    let (_dir, path) = packed(tiny);
    let engine = engine(&path, tiny, 2, Pinned::Layers(1));
    let mut session = engine.session(plain()).unwrap();
    let mut reference = tiny.engine(1).session(plain()).unwrap();
    let options = || options(&Sampling::default());
    assert_turns_agree(&mut session, &mut reference, options);
}

/// Under memory pressure nothing is pinned and two buffers remain; afterwards the earlier state returns. The bits
/// never change.
#[test]
fn memory_pressure_unpins_layers_and_they_come_back() {
    let tiny = Tiny { ty: BlockType::Q4_0, n_layers: 6, ..Tiny::default() };
    let (_dir, path) = packed(tiny);
    let long = || GenerateOptions { max_tokens: 60, ignore_eos: true, ..options(&Sampling::default()) };
    let prompt = prompt(3, 70);
    let expected = run(&tiny.engine(1), plain(), Vec::new(), &prompt, long());
    let engine = engine(&path, tiny, 2, Pinned::Layers(4));
    let memory = || engine.streamed().unwrap().memory();
    let planned = memory();
    let settled = |lean: bool| {
        // Buffers with reads under way are released after these reads.
        (0..12_000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            let now = memory();
            let is_lean = now.n_pinned_layers == 0 && 3 * now.ring_bytes == 2 * planned.ring_bytes;
            if lean { is_lean && now.pinned_bytes < planned.pinned_bytes } else { now == planned }
        })
    };
    for round in 0..3 {
        // When idle: at once.
        engine.device().set_memory_pressure(MemoryPressure::Critical);
        assert!(settled(true), "round {round}: {:?} of {planned:?}", memory());
        let found = run(&engine, plain(), Vec::new(), &prompt, long());
        found.assert_equal(&expected, &format!("lean, round {round}"));
        engine.device().set_memory_pressure(MemoryPressure::Normal);
        run(&engine, plain(), Vec::new(), &prompt, long()).assert_equal(&expected, "restored");
        assert!(settled(false), "round {round}: {:?} of {planned:?}", memory());
        // Between tokens: in the next pass.
        let mut session = engine.session(sessions()[2].clone()).unwrap();
        session.append_tokens(&prompt).unwrap();
        let (mut rng, mut tokens) = (Rng(round), Vec::new());
        let summary = session.generate(long()).unwrap().run(|event| {
            tokens.push(event.id);
            let level = [MemoryPressure::Normal, MemoryPressure::Critical][rng.below(2)];
            engine.device().set_memory_pressure(level);
            std::ops::ControlFlow::Continue(())
        });
        assert_eq!(tokens, expected.tokens, "round {round}");
        assert!(summary.unwrap().stats.policy.memory_reports > 10);
    }
}

#[test]
fn sessions_take_turns() {
    let tiny = Tiny { ty: BlockType::Q4_0, n_layers: 4, ..Tiny::default() };
    let (_dir, path) = packed(tiny);
    let engine = engine(&path, tiny, 2, Pinned::Layers(1));
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let engine = engine.clone();
            scope.spawn(move || {
                let prompt = prompt(seed, 60 + 7 * seed as usize);
                let expected = reference(tiny, &prompt, &Sampling::default());
                let session = sessions()[seed as usize % 4].clone();
                let found = run(&engine, session, Vec::new(), &prompt, options(&Sampling::default()));
                found.assert_equal(&expected, &format!("seed {seed}"));
            });
        }
    });
}

#[test]
fn statistics_say_what_was_read() {
    let tiny = Tiny { ty: BlockType::Q8_0, n_layers: 4, ..Tiny::default() };
    let (_dir, path) = packed(tiny);
    let n_bytes = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&n_bytes);
    let mut streaming = StreamOptions::new(Pinned::Layers(1));
    streaming.wrap = common::reading(move |file, offset, out| {
        assert!(offset.is_multiple_of(DIRECT_ALIGN as u64) && out.len().is_multiple_of(DIRECT_ALIGN));
        assert!((out.as_ptr() as usize).is_multiple_of(DIRECT_ALIGN));
        let n_bytes = file.read_at(offset, out)?;
        counter.fetch_add(n_bytes as u64, Ordering::Relaxed);
        Ok(n_bytes)
    });
    let engine = try_engine(&path, tiny, 1, streaming).unwrap();
    let streamed = engine.streamed().unwrap();
    let memory = streamed.memory();
    let (loaded, pinned) = (n_bytes.swap(0, Ordering::Relaxed), memory.pinned_bytes / 4096 * 4096);
    // And the whole embedding, whose vocabulary is small, by panels within pages.
    let n_panels = engine.config().vocab_size.div_ceil(16) as u64;
    assert!(
        (pinned + 1..=pinned + memory.rows_bytes + 2 * 4096 * n_panels).contains(&loaded),
        "{loaded}, {memory:?}"
    );
    assert_eq!(streamed.flow().read_bytes, 0, "nothing is read ahead of the first pass");
    let run = run(&engine, plain(), Vec::new(), &prompt(1, 40), options(&Sampling::default()));
    let streaming = run.stats.streaming.unwrap();
    let (pass_bytes, n_tokens) = (streamed.pass_bytes(), run.tokens.len() as u64);
    // Every token reads each streamed layer and the output matrix; rows of the embedding are there. The ring bounds the
    // reads ahead for the next token.
    let decode = streaming.decode.read_bytes;
    assert!((n_tokens * pass_bytes - memory.ring_bytes..).contains(&decode), "{decode} of {pass_bytes} each");
    let most = n_tokens * pass_bytes + 2 * memory.ring_bytes + streaming.decode.dropped_bytes;
    assert!(decode <= most, "{decode}, at most {most}");
    assert_eq!(streaming.bytes_per_token, decode as f64 / n_tokens as f64);
    assert!(streaming.prefill.read_bytes > 0 && (0.0..=1.0).contains(&streaming.decode.overlap()));
    // When the ring is full, reads stop and all of them are counted.
    let mut flow = streamed.flow();
    loop {
        std::thread::sleep(Duration::from_millis(30));
        if streamed.flow() == flow {
            break;
        }
        flow = streamed.flow();
    }
    assert_eq!(flow.read_bytes, n_bytes.load(Ordering::Relaxed));
}

/// A modelled disk of 2 MB/s: passes take as long as its reads, and cancelling or dropping takes effect meanwhile.
#[test]
fn a_slow_disk_sets_the_pace_and_nobody_waits_for_it_to_stop() {
    let tiny = Tiny { ty: BlockType::F32, n_layers: 8, ..Tiny::default() };
    let (_dir, path) = packed(tiny);
    let bandwidth = 2_000_000;
    let mut streaming = StreamOptions::new(Pinned::Layers(0));
    streaming.bandwidth_max = Some(bandwidth);
    let engine = try_engine(&path, tiny, 1, streaming).unwrap();
    let pass_s = engine.streamed().unwrap().pass_bytes() as f64 / bandwidth as f64;
    assert!(pass_s > 0.3, "a pass of {pass_s} s");
    let mut session = engine.session(plain()).unwrap();
    session.append_tokens(&prompt(2, 3)).unwrap();
    let start = Instant::now();
    let three = GenerateOptions { max_tokens: 3, ..GenerateOptions::default() };
    let run = run_in(&mut session, three, usize::MAX);
    let took = start.elapsed().as_secs_f64();
    assert!(took > 3.0 * pass_s, "{took} s for four passes of {pass_s}");
    let streaming = run.stats.streaming.unwrap();
    assert!(streaming.decode.bandwidth() < 1.1 * bandwidth as f64, "{streaming:?}");

    // Passes of seconds.
    let tiny = Tiny { n_layers: 64, ..tiny };
    let (_dir, path) = packed(tiny);
    let mut streaming = StreamOptions::new(Pinned::Layers(0));
    streaming.bandwidth_max = Some(bandwidth / 2);
    let engine = try_engine(&path, tiny, 1, streaming).unwrap();
    let pass_s = 2.0 * engine.streamed().unwrap().pass_bytes() as f64 / bandwidth as f64;
    assert!(pass_s > 4.0, "a pass of {pass_s} s");
    let mut session = engine.session(plain()).unwrap();
    session.append_tokens(&prompt(2, 3)).unwrap();
    let (cancel, (sender, receiver)) = (CancelToken::new(), mpsc::channel());
    let options = GenerateOptions { cancel: cancel.clone(), ..GenerateOptions::default() };
    let waiting = std::thread::spawn(move || {
        let run = run_in(&mut session, options, usize::MAX);
        sender.send(Instant::now()).unwrap();
        (run, session)
    });
    std::thread::sleep(Duration::from_millis(100));
    let asked = Instant::now();
    cancel.cancel();
    let waited = receiver.recv().unwrap() - asked;
    assert!(waited.as_secs_f64() < pass_s, "stopped after {waited:?}");
    let (_, session) = waiting.join().unwrap();
    drop(session);
    let asked = Instant::now();
    drop(engine);
    assert!(asked.elapsed().as_secs_f64() < pass_s, "gone after {:?}", asked.elapsed());
}

#[test]
fn a_streamed_output_matrix_is_cancelled_within_a_piece() {
    let tiny = Tiny { n_layers: 3, ..Tiny::default() };
    let prompt = prompt(6, 40);
    let reference = reference(tiny, &prompt, &Sampling::default());
    let (_dir, path) = packed(tiny);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let output = checkpoint.packed().unwrap().sections().last().unwrap();
    let head = output.offset..output.offset + output.len;
    for (i, session) in sessions().into_iter().enumerate() {
        let (is_open, n_waiting) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let (head, gate, waiting) = (head.clone(), Arc::clone(&is_open), Arc::clone(&n_waiting));
        let mut streaming = StreamOptions::new(Pinned::Layers(1));
        // Reads of the output matrix wait for the gate to open, and count as waiting.
        streaming.wrap = common::reading(move |file, offset, out| {
            if head.contains(&offset) {
                waiting.fetch_add(1, Ordering::SeqCst);
                while !gate.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            file.read_at(offset, out)
        });
        let engine = try_engine(&path, tiny, 2, streaming).unwrap();
        let mut session = engine.session(session).unwrap();
        session.append_tokens(&prompt).unwrap();
        is_open.store(false, Ordering::SeqCst);
        n_waiting.store(0, Ordering::SeqCst);
        let options = || options(&Sampling::default());
        let stopped = options();
        let cancel = stopped.cancel.clone();
        let run = std::thread::scope(|scope| {
            let decodes = scope.spawn(|| {
                let run = run_in(&mut session, stopped, usize::MAX);
                (session, run)
            });
            while n_waiting.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            // The pass waits for the output matrix, or is about to.
            std::thread::sleep(Duration::from_millis(50));
            cancel.cancel();
            let start = Instant::now();
            while !decodes.is_finished() && start.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let stopped = decodes.is_finished();
            is_open.store(true, Ordering::SeqCst);
            assert!(stopped, "session {i} waits for a disk that gives nothing");
            decodes.join().unwrap()
        });
        let (mut session, cancelled) = run;
        assert_eq!((cancelled.finish, cancelled.tokens.len()), (FinishReason::Cancelled, 0), "session {i}");
        assert_eq!(session.tokens(), prompt, "session {i}");
        // Nothing is left in the session.
        let run = run_in(&mut session, options(), usize::MAX);
        assert_eq!((&run.tokens, run.text()), (&reference.tokens, reference.text()), "session {i}");
        assert!(run.logits == reference.logits, "session {i}");
    }
}

/// Checks that opening was refused, and looks at the reason.
#[track_caller]
fn refused<T>(opened: Result<Engine, LoadError>, look: impl FnOnce(&StreamedError) -> T) -> T {
    let error = opened.unwrap_err();
    let Some(WeightsError::Streamed(streamed)) = error.detail() else { panic!("{error:?}") };
    look(streamed)
}

#[test]
fn what_cannot_be_streamed_is_refused() {
    let tiny = Tiny { n_layers: 2, ..Tiny::default() };
    let (_dir, path) = packed(tiny);
    let streaming = Some(StreamOptions::new(Pinned::Layers(0)));
    let options = EngineOptions { streaming, ..tiny.options() };

    let gguf = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
    refused(Engine::load(&gguf, options.clone(), |_, _| {}), |error| {
        assert!(matches!(error, StreamedError::NotPacked { .. }), "{error}");
    });

    let bytes = std::fs::read(&path).unwrap();
    let in_memory = Checkpoint::from_packed_bytes(bytes.into(), "bytes").unwrap();
    refused(Engine::load(&in_memory, options.clone(), |_, _| {}), |error| {
        assert!(matches!(error, StreamedError::InMemory { .. }), "{error}");
    });

    refused(Engine::open(&path, EngineOptions { quantize: Quantize::F32, ..options }), |error| {
        assert!(matches!(error, StreamedError::Widened { .. }), "{error}");
    });
}

/// Layers of 17 MB do not fit the ring that is allowed regardless of the budget.
#[test]
fn a_budget_that_is_too_small_names_what_is_needed() {
    let tiny = Tiny { hidden_dim: 1024, head_dim: 64, n_layers: 2, ty: BlockType::F16, ..Tiny::default() };
    let (_dir, path) = packed(tiny);
    let open = |limit, reserved_bytes| {
        let mut streaming = StreamOptions::new(Pinned::Memory(limit));
        streaming.reserved_bytes = reserved_bytes;
        try_engine(&path, tiny, 1, streaming)
    };
    let limits = |error: &StreamedError| match *error {
        StreamedError::MemoryLimit { needed, limit, taken } => (needed, limit, taken),
        ref other => panic!("{other}"),
    };
    let (needed, limit, taken) = refused(open(5, 0), limits);
    assert!((24 << 20..40 << 20).contains(&needed) && limit == 5, "{needed} of {limit}");
    let reserved = 1 << 40;
    let (_, _, more) = refused(open(reserved, reserved), limits);
    assert!(more >= reserved && more > taken);
    assert!(open(1 << 40, 0).unwrap().streamed().unwrap().memory().head_pinned);
}
