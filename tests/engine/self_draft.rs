//! Drafting with the target's own first layers: the output equals plain decoding, bit for bit, whatever the exit proposes and other
//! sources add, for every number of pinned layers, with pruning, through forks, truncations, restored states, memory pressure, failing
//! disks and cancelled passes. Rows that were drafted so are verified from the exit on. What cannot draft is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use refrain::checkpoint::Checkpoint;
use refrain::device::MemoryPressure;
use refrain::drafting::{DraftPolicy, DraftRows, DraftSource, Predictor, PruningConfig};
use refrain::internals::draft::testing::{AlwaysRight, AlwaysWrong, Random};
use refrain::internals::draft::{CostProfile, EvidenceClass};
use refrain::internals::error::{ForwardError, SelfDraftError};
use refrain::state::WindowCache;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{
    CancelToken, Drafting, Engine, EngineOptions, GenerateOptions, KvType, Sampling, SessionOptions,
    SpecialTokens,
};
use tempfile::TempDir;

use crate::common::{
    self, Run, Tiny, assert_cuts_agree, assert_shared_passes_draft, assert_turns_agree, fixtures, isa, notes,
    options, plain, prompt, question, random_prompt, run, run_in, samplings, uninformed,
};
use crate::model_files::{golden, packed};

fn packed_fixture() -> (TempDir, PathBuf) {
    packed(&Checkpoint::open(fixtures().join("target.gguf")).unwrap())
}

/// A streamed engine with its first layers pinned before others. Steps are so dear that every pass of the first layers pays.
fn streamed(path: &Path, streaming: StreamOptions) -> Engine {
    let options = EngineOptions {
        n_threads: Some(2),
        isa: isa(),
        cost_profile: Some(CostProfile::free_rows(1e6)),
        streaming: Some(streaming),
        ..EngineOptions::default()
    };
    Engine::open(path, options).unwrap()
}

fn pinned(n_pinned: usize, pinned_first: usize) -> StreamOptions {
    let mut options = StreamOptions::new(Pinned::Layers(n_pinned));
    options.pinned_first = pinned_first;
    options
}

/// The fixture's predictor: an exit that is mostly right.
fn informed() -> Predictor {
    Predictor::read(fixtures().join("target.predictor")).unwrap()
}

/// An exit that is right by chance only.
fn unknowing(engine: &Engine, layer_idx: usize, scale: f32) -> Predictor {
    Predictor::new(uninformed(engine, layer_idx, scale)).unwrap()
}

/// A session that drafts a fixed number of rows, so that drafts do not depend on times.
fn drafted(verify_rows_max: usize, drafting: Drafting) -> SessionOptions {
    SessionOptions {
        policy: DraftPolicy { rows: DraftRows::Fixed(verify_rows_max - 1), ..DraftPolicy::default() },
        ..common::drafts_with(verify_rows_max, drafting)
    }
}

/// Demands that rows were drafted with the first layers and verified from the exit on.
fn assert_kept(run: &Run, case: &str) {
    let found = run.stats.sources.iter().find(|source| source.name.as_str() == "self_draft");
    let source = found.unwrap_or_else(|| panic!("{case}: {:?}", run.stats.sources));
    assert_eq!(source.evidence, EvidenceClass::DraftModel, "{case}");
    let computed = source.computed.as_ref().expect("it computes");
    assert!(computed.off.is_none() && computed.passes > 0, "{case}: {computed:?}");
    // Where one token is left, nothing is drafted.
    assert!(2 * run.stats.rows.kept >= run.stats.steps, "{case}: {:?}", run.stats.rows);
}

#[test]
fn drafts_of_own_layers_change_no_bit() {
    let (_dir, path) = packed_fixture();
    let mut accepted = 0;
    for n_pinned in [3, 4, 5] {
        let engine = streamed(&path, pinned(n_pinned, 3));
        engine.set_self_draft(informed()).unwrap();
        let pruned = streamed(&path, pinned(n_pinned, 3));
        pruned.set_self_draft(informed()).unwrap();
        pruned.set_predictor(informed()).unwrap();
        for (i, kv_type) in KvType::ALL.iter().copied().enumerate() {
            for sampling in samplings() {
                let options = || GenerateOptions { sampling: sampling.clone(), ..options(40) };
                let prompt = question(&engine);
                let reference =
                    run(&engine, SessionOptions { kv_type, ..plain() }, Vec::new(), &prompt, options());
                for (j, rows) in [4, 16, 64].into_iter().enumerate() {
                    let drafting = [Drafting::DraftModel, Drafting::Auto][(i + j) % 2];
                    for engine in [&engine, &pruned] {
                        let case = format!("{n_pinned} pinned, {kv_type}, {rows} rows, {sampling:?}");
                        let session = SessionOptions {
                            kv_type,
                            pruning: engine.predictor().map(|_| PruningConfig::default()),
                            ..drafted(rows, drafting)
                        };
                        let found = run(engine, session, Vec::new(), &prompt, options());
                        found.assert_equal(&reference, &case);
                        assert_kept(&found, &case);
                        accepted += found.stats.sources.last().unwrap().accepted;
                    }
                }
            }
        }
    }
    assert!(accepted > 500, "{accepted}");
}

/// Attention reads the positions of a text in blocks of 256: rows that were drafted before, in and behind the border of two blocks.
#[test]
fn texts_longer_than_a_block_of_attention_change_no_bit() {
    let (_dir, path) = packed_fixture();
    let engine = streamed(&path, pinned(3, 3));
    engine.set_self_draft(informed()).unwrap();
    let text = engine.tokenizer().encode(&notes().join("\n"), SpecialTokens::Parse).unwrap();
    for &kv_type in KvType::ALL {
        for n in [240, 250, 254, 255, 256, 257, 505, 700] {
            let prompt = text.get(..n).expect("the notes are longer");
            let reference =
                run(&engine, SessionOptions { kv_type, ..plain() }, Vec::new(), prompt, options(24));
            let session = SessionOptions { kv_type, ..drafted(16, Drafting::DraftModel) };
            let found = run(&engine, session, Vec::new(), prompt, options(24));
            let case = format!("{n} tokens, {kv_type}");
            found.assert_equal(&reference, &case);
            assert_kept(&found, &case);
        }
    }
}

/// Exits that know nothing, beside drafts of every quality below and above their nodes, at every layer.
#[test]
fn an_exit_that_knows_nothing_changes_no_bit() {
    let tiny = Tiny { n_layers: 5, ..Tiny::default() };
    let (_dir, path) = packed(&Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap());
    let prompt = prompt(3, 70);
    for sampling in samplings() {
        let options = || GenerateOptions { sampling: sampling.clone(), ..options(24) };
        let reference = run(&tiny.engine(1), plain(), Vec::new(), &prompt, options());
        let known = &reference.tokens;
        for layer_idx in 1..5 {
            for (i, n_pinned) in (layer_idx..5).enumerate() {
                let engine = streamed(&path, pinned(n_pinned, layer_idx));
                let scale = [0.1, 1.0, 1e37][(layer_idx + i) % 3];
                engine.set_self_draft(unknowing(&engine, layer_idx, scale)).unwrap();
                if i == 1 {
                    // Rows are dropped at, before and behind the layer where kept rows join.
                    engine.set_predictor(unknowing(&engine, [1, 1, 4][layer_idx - 1], 1.0)).unwrap();
                }
                let right = || Box::new(AlwaysRight::new(prompt.len(), known.clone()));
                let sources: [Vec<Box<dyn DraftSource>>; 4] = [
                    Vec::new(),
                    vec![right()],
                    vec![Box::new(AlwaysWrong::new(prompt.len(), known.clone()))],
                    vec![Box::new(Random::new(5, 2 * common::VOCAB_SIZE as u32)), right()],
                ];
                for (j, sources) in sources.into_iter().enumerate() {
                    let case = format!("layer {layer_idx}, {n_pinned} pinned, sources {j}, {sampling:?}");
                    let session = SessionOptions {
                        pruning: engine.predictor().map(|_| PruningConfig::default()),
                        ..drafted([8, 33, 16, 64][j], Drafting::Auto)
                    };
                    let found = run(&engine, session, sources, &prompt, options());
                    found.assert_equal(&reference, &case);
                    if scale < 1e30 && i != 1 {
                        assert_kept(&found, &case);
                    }
                }
            }
        }
    }
}

#[test]
fn forks_turns_truncations_and_restored_states_change_no_bit() {
    let (_dir, path) = packed_fixture();
    let engine = streamed(&path, pinned(3, 3));
    engine.set_self_draft(informed()).unwrap();
    let mut session = engine.session(drafted(16, Drafting::DraftModel)).unwrap();
    let mut reference = engine.session(plain()).unwrap();
    assert_turns_agree(&mut session, &mut reference, || options(12));
    assert_cuts_agree(&mut session, &mut reference, || options(12), |run| assert_kept(run, "cut"));
    let mut fork = session.fork().unwrap();
    for session in [&mut fork, &mut session] {
        let mut reference = reference.fork().unwrap();
        let expected = run_in(&mut reference, options(20), usize::MAX);
        let found = run_in(session, options(20), usize::MAX);
        found.assert_equal(&expected, "a fork");
        assert_kept(&found, "a fork");
    }
    let tokens = reference.tokens().to_vec();
    reference.prefill(&CancelToken::new(), |_, _| {}).unwrap();
    let (n, mut state) = (reference.state().n_cached_tokens(), Vec::new());
    reference.state().write(0..n, &mut state).unwrap();
    let mut restored = engine.session(drafted(16, Drafting::DraftModel)).unwrap();
    restored.append_tokens(&tokens).unwrap();
    assert_eq!(restored.state_mut().restore(0, &tokens[..n], &state).unwrap(), n);
    let expected = run_in(&mut reference, options(20), usize::MAX);
    let found = run_in(&mut restored, options(20), usize::MAX);
    found.assert_equal(&expected, "restored");
    assert_kept(&found, "restored");
}

/// Bounded windows keep the newest tokens only, so the first layers compute the text themselves.
#[test]
fn layers_with_windows_draft_too() {
    for (name, layer_idx) in [("gemma3", 2), ("olmo3", 1)] {
        let (_dir, path) = packed(&Checkpoint::open(golden(name)).unwrap());
        let engine = streamed(&path, pinned(layer_idx, layer_idx));
        engine.set_self_draft(unknowing(&engine, layer_idx, 1.0)).unwrap();
        let prompt = random_prompt(4, 90);
        let reference = run(&engine, plain(), Vec::new(), &prompt, options(30));
        for window_cache in [WindowCache::Full, WindowCache::Bounded] {
            let session = SessionOptions { window_cache, ..drafted(16, Drafting::DraftModel) };
            let found = run(&engine, session, Vec::new(), &prompt, options(30));
            let case = format!("{name}, {window_cache:?}");
            found.assert_equal(&reference, &case);
            assert_kept(&found, &case);
        }
    }
}

#[test]
fn memory_pressure_releases_the_layers_and_gives_them_back() {
    let (_dir, path) = packed_fixture();
    let engine = streamed(&path, pinned(4, 3));
    engine.set_self_draft(informed()).unwrap();
    let prompt = question(&engine);
    let mut session = engine.session(drafted(16, Drafting::DraftModel)).unwrap();
    let mut reference = engine.session(plain()).unwrap();
    for session in [&mut session, &mut reference] {
        session.append_tokens(&prompt).unwrap();
    }
    for (level, drafts) in [
        (MemoryPressure::Normal, true),
        (MemoryPressure::Critical, false),
        (MemoryPressure::Warning, true),
        (MemoryPressure::Critical, false),
        (MemoryPressure::Normal, true),
    ] {
        engine.device().set_memory_pressure(level);
        let expected = run_in(&mut reference, options(20), usize::MAX);
        let found = run_in(&mut session, options(20), usize::MAX);
        found.assert_equal(&expected, &format!("{level:?}"));
        assert_eq!(found.stats.rows.kept > 0, drafts, "{level:?}: {:?}", found.stats.rows);
    }
}

/// What an engine drafts with is that of sessions from then on. A fork drafts as its session does.
#[test]
fn a_fork_drafts_as_its_session_does() {
    let (_dir, path) = packed_fixture();
    let prompt = random_prompt(5, 60);
    for (of_session, of_engine) in [(false, true), (true, false), (true, true)] {
        let engine = streamed(&path, pinned(3, 3));
        if of_session {
            engine.set_self_draft(informed()).unwrap();
        }
        let mut session = engine.session(drafted(8, Drafting::Auto)).unwrap();
        session.append_tokens(&prompt).unwrap();
        session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
        if of_engine {
            engine.set_self_draft(informed()).unwrap();
            engine.set_predictor(informed()).unwrap();
        }
        let mut fork = session.fork().unwrap();
        assert_eq!(fork.source_names(), session.source_names());
        assert!(fork.memory_usage() <= session.memory_usage());
        let reference = run(&engine, plain(), Vec::new(), &prompt, options(20));
        for (session, case) in [(&mut session, "session"), (&mut fork, "fork")] {
            let found = run_in(session, options(20), usize::MAX);
            found.assert_equal(&reference, case);
            assert_eq!(found.stats.rows.kept > 0, of_session, "{case}");
            assert!(found.stats.pruning.is_none(), "{case}: the predictor came later");
        }
    }
}

/// Layers that memory pressure has released cannot be measured, and the error says so.
#[test]
fn self_draft_under_memory_pressure_is_refused_with_the_reason() {
    let (_dir, path) = packed_fixture();
    let engine = streamed(&path, pinned(4, 3));
    engine.device().set_memory_pressure(MemoryPressure::Critical);
    let error = engine.set_self_draft(informed()).unwrap_err();
    let Some(SelfDraftError::Forward(ForwardError::Released { n_layers: 3 })) = error.detail() else {
        panic!("{error:?}")
    };
    assert!(error.to_string().contains("memory pressure"), "{error}");
    assert!(engine.draft_model().is_none());
    engine.device().set_memory_pressure(MemoryPressure::Normal);
    run(&engine, plain(), Vec::new(), &random_prompt(1, 9), options(2));
    engine.set_self_draft(informed()).unwrap();
}

#[test]
fn generations_that_share_passes_draft_each() {
    let (_dir, path) = packed_fixture();
    let engine = streamed(&path, pinned(3, 3));
    engine.set_self_draft(informed()).unwrap();
    let prompts = [question(&engine), random_prompt(2, 40)];
    assert_shared_passes_draft(&engine, &drafted(8, Drafting::DraftModel), &prompts);
}

fn on_disk(left: &Arc<AtomicUsize>, delay: Duration) -> StreamOptions {
    let mut options = pinned(3, 3);
    options.wrap = common::failing_after(left, delay);
    options
}

/// Generates until the session has `n` tokens, or until an error or a cancellation; returns whether it got there.
fn go_on(session: &mut refrain::Session, n: usize, cancel: &CancelToken) -> bool {
    let left = n - session.tokens().len();
    if left == 0 {
        return true;
    }
    let options = GenerateOptions { cancel: cancel.clone(), ..options(left) };
    let Ok(mut generation) = session.generate(options) else { return false };
    generation.all(|event| event.is_ok());
    drop(generation);
    session.tokens().len() == n
}

#[test]
fn a_disk_that_fails_leaves_the_state_right() {
    let (_dir, path) = packed_fixture();
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let engine = streamed(&path, on_disk(&left, Duration::ZERO));
    engine.set_self_draft(informed()).unwrap();
    let prompt = question(&engine);
    let expected = run(&engine, plain(), Vec::new(), &prompt, options(30)).tokens;
    let mut n_failed = 0;
    for at in 0..60 {
        let mut session = engine.session(drafted(16, Drafting::DraftModel)).unwrap();
        session.append_tokens(&prompt).unwrap();
        session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
        left.store(at, Ordering::SeqCst);
        n_failed += usize::from(!go_on(&mut session, prompt.len() + 30, &CancelToken::new()));
        left.store(usize::MAX, Ordering::SeqCst);
        while !go_on(&mut session, prompt.len() + 30, &CancelToken::new()) {}
        assert_eq!(session.tokens()[prompt.len()..], expected, "fault at read {at}");
    }
    assert!(n_failed > 3, "{n_failed}");
}

#[test]
fn a_cancelled_pass_leaves_the_state_right() {
    let (_dir, path) = packed_fixture();
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let engine = streamed(&path, on_disk(&left, Duration::from_micros(400)));
    engine.set_self_draft(informed()).unwrap();
    let prompt = question(&engine);
    let expected = run(&engine, plain(), Vec::new(), &prompt, options(30)).tokens;
    for i in 0..12u64 {
        let mut session = engine.session(drafted(16, Drafting::DraftModel)).unwrap();
        session.append_tokens(&prompt).unwrap();
        let mut n_calls = 0;
        while session.tokens().len() < prompt.len() + 30 {
            let cancel = CancelToken::new();
            std::thread::scope(|scope| {
                let stops = cancel.clone();
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_micros(700 * (i + 1 + n_calls)));
                    stops.cancel();
                });
                go_on(&mut session, prompt.len() + 30, &cancel);
            });
            n_calls += 1;
        }
        assert_eq!(session.tokens()[prompt.len()..], expected, "case {i}");
    }
}

#[test]
fn what_cannot_draft_is_refused() {
    let resident = Engine::open(fixtures().join("target.gguf"), EngineOptions::default()).unwrap();
    let error = resident.set_self_draft(informed()).unwrap_err();
    assert!(matches!(error.detail(), Some(SelfDraftError::NotStreamed)), "{error:?}");
    let (_dir, path) = packed_fixture();
    for (streaming, missing) in
        [(pinned(0, 3), 0), (pinned(2, 3), 2), (StreamOptions::new(Pinned::Layers(3)), 0)]
    {
        let error = streamed(&path, streaming).set_self_draft(informed()).unwrap_err();
        match error.detail() {
            Some(SelfDraftError::NotPinned { layer_idx, n_layers: 3 }) => assert_eq!(*layer_idx, missing),
            _ => panic!("{error:?}"),
        }
    }
    let tiny = Checkpoint::from_gguf_bytes(Tiny::default().gguf().into(), "tiny").unwrap();
    let (_dir, path) = packed(&tiny);
    let error = streamed(&path, pinned(1, 1)).set_self_draft(informed()).unwrap_err();
    assert!(matches!(error.detail(), Some(SelfDraftError::Predictor(_))), "{error:?}");
    for (name, expected) in [
        ("qwen3_5", "recurrent layers"),
        ("gemma3n", "residual streams"),
        ("gemma4", "layers' own inputs"),
        ("qwen3_moe", "experts that are read on request"),
    ] {
        let (_dir, path) = packed(&Checkpoint::open(golden(name)).unwrap());
        let engine = streamed(&path, pinned(1, 1));
        let error = engine.set_self_draft(unknowing(&engine, 1, 1.0)).unwrap_err();
        match error.detail() {
            Some(SelfDraftError::Unsupported { parts }) => assert_eq!(*parts, expected, "{name}"),
            _ => panic!("{name}: {error:?}"),
        }
        assert!(engine.draft_model().is_none());
    }
}

#[test]
fn a_slow_disk_is_drafted_ahead_of() {
    let (_dir, path) = packed_fixture();
    let mut streaming = pinned(3, 3);
    streaming.bandwidth_max = Some(30_000_000);
    let engine = streamed(&path, streaming);
    engine.set_self_draft(informed()).unwrap();
    let prompt = question(&engine);
    let reference = run(&engine, plain(), Vec::new(), &prompt, options(30));
    let found = run(&engine, drafted(16, Drafting::DraftModel), Vec::new(), &prompt, options(30));
    found.assert_equal(&reference, "a slow disk");
    assert_kept(&found, "a slow disk");
    let computed = found.stats.sources[0].computed.as_ref().unwrap();
    assert!(computed.ahead > 0, "{computed:?}");
    let sampled = Sampling { temperature: 1.0, seed: Some(3), ..Sampling::default() };
    let options = || GenerateOptions { sampling: sampled.clone(), ..options(30) };
    let reference = run(&engine, plain(), Vec::new(), &prompt, options());
    let found = run(&engine, drafted(16, Drafting::Auto), Vec::new(), &prompt, options());
    found.assert_equal(&reference, "a slow disk, sampled");
}
