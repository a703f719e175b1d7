//! Pruning: for any predictor, the output is that of plain decoding, bit for bit. A predictor that does not fit the
//! model is refused.

use std::path::Path;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::drafting::{Calibration, DraftSource, Predictor, PruningConfig};
use refrain::internals::draft::CostProfile;
use refrain::internals::draft::testing::{AlwaysRight, AlwaysWrong, Random};
use refrain::internals::error::{ForwardError, PredictorError, SessionProblem};
use refrain::internals::model::graphs::write_graphs;
use refrain::internals::model::packed::ModelIdentity;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::pruning::{PredictorField, PredictorParts, Safeguards, f16};
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{
    CancelToken, Drafting, Engine, EngineOptions, GenerateOptions, KvType, PromptPassage, Quantize, Role,
    Sampling, SessionOptions, Task, TokenId,
};

use crate::common::{
    self, Run, Tiny, cancelled_token, fixtures, plain, prompt, run, run_in, samplings, uninformed,
};
use crate::model_files::golden;

fn set_random(engine: &Engine, layer_idx: usize, scale: f32) {
    engine.set_predictor(Predictor::new(uninformed(engine, layer_idx, scale)).unwrap()).unwrap();
}

/// From keeping all rows to keeping the root only.
fn configs() -> Vec<PruningConfig> {
    let mut configs = vec![PruningConfig::default()];
    for threshold in [0.0, 0.02, 0.3, 1.0] {
        for shadow_tokens in [0, 8] {
            for safeguards in [None, Some(Safeguards { saved_min: 0.0, ..Safeguards::default() })] {
                configs.push(PruningConfig { threshold, shadow_tokens, safeguards });
            }
        }
    }
    configs
}

fn options(sampling: &Sampling) -> GenerateOptions {
    GenerateOptions { max_tokens: 24, sampling: sampling.clone(), ..GenerateOptions::default() }
}

/// Drafts of every quality; random ones from twice the tiny models' vocabulary.
fn sources(known: &[TokenId], n_prompt: usize) -> [Vec<Box<dyn DraftSource>>; 4] {
    [
        Vec::new(),
        vec![Box::new(AlwaysRight::new(n_prompt, known.to_vec()))],
        vec![Box::new(AlwaysWrong::new(n_prompt, known.to_vec()))],
        vec![
            Box::new(Random::new(5, 2 * common::VOCAB_SIZE as u32)),
            Box::new(AlwaysRight::new(n_prompt, known.to_vec())),
        ],
    ]
}

/// Sums the pruned rows of a run.
#[derive(Default)]
struct Seen {
    pruned_steps: usize,
    whole_steps: usize,
    cut_short: usize,
    accepted: usize,
}

impl Seen {
    fn add(&mut self, run: &Run, case: &str) {
        let pruning = run.stats.pruning.unwrap_or_else(|| panic!("no statistics: {case}"));
        assert!(pruning.rows_kept <= pruning.rows_before, "{case}");
        assert_eq!(pruning.rows_kept < pruning.rows_before, pruning.pruned_steps > 0, "{case}");
        assert!(pruning.cut_short <= pruning.pruned_steps, "{case}");
        self.pruned_steps += pruning.pruned_steps;
        self.whole_steps += pruning.whole_steps;
        self.cut_short += pruning.cut_short;
        self.accepted += run.stats.sources.iter().map(|source| source.accepted).sum::<usize>();
    }

    /// Otherwise the comparison would prove little.
    fn assert_much(&self) {
        assert!(
            self.pruned_steps > 100 && self.whole_steps > 100,
            "{} {}",
            self.pruned_steps,
            self.whole_steps
        );
        assert!(self.cut_short > 20 && self.accepted > 100, "{} {}", self.cut_short, self.accepted);
    }
}

/// Every source × keep rule × batch length for uninformed predictors, at every layer of `engine`, beside plain decoding of
/// `other`.
fn check(engine: &Engine, other: &Engine) {
    let prompt = prompt(3, 70);
    let mut seen = Seen::default();
    for sampling in &samplings() {
        let reference = run(other, plain(), Vec::new(), &prompt, options(sampling));
        for layer_idx in 1..engine.config().n_layers() {
            for (config, scale) in configs().into_iter().zip([0.1f32, 1.0, 1e37].into_iter().cycle()) {
                set_random(engine, layer_idx, scale);
                for (i, sources) in sources(&reference.tokens, prompt.len()).into_iter().enumerate() {
                    let shapes = [(2, vec![]), (5, vec![]), (16, vec![]), (32, vec![]), (12, vec![1, 4, 16])];
                    let (verify_rows_max, verify_lens) = shapes[(i + layer_idx) % shapes.len()].clone();
                    let session = SessionOptions {
                        pruning: Some(config),
                        verify_rows_max,
                        verify_lens,
                        projection_rows: [8, 64][i % 2],
                        calibration: [Calibration::InContext, Calibration::Off][i / 2],
                        history: false,
                        ..SessionOptions::default()
                    };
                    let run = run(engine, session, sources, &prompt, options(sampling));
                    let case = format!("layer {layer_idx} {config:?} scale {scale} sources {i} {sampling:?}");
                    run.assert_equal(&reference, &case);
                    seen.add(&run, &case);
                }
            }
        }
    }
    seen.assert_much();
}

#[test]
fn a_predictor_that_knows_nothing_changes_no_bit() {
    let tiny = Tiny { n_layers: 4, ..Tiny::default() };
    for n_threads in [1, 3] {
        check(&tiny.engine(n_threads), &tiny.engine(1));
    }
}

/// Dropped rows leave no trace in short convolutions, a delta rule and Mamba-2.
#[test]
fn recurrent_models_are_pruned_too() {
    for model in ["lfm2", "qwen3_5", "granitemoehybrid-dense"] {
        let engine = |n_threads| {
            let cost_profile = Some(CostProfile::free_rows(100.0));
            let options =
                EngineOptions { n_threads: Some(n_threads), cost_profile, ..EngineOptions::default() };
            Engine::open(golden(model), options).unwrap()
        };
        check(&engine(2), &engine(1));
    }
}

#[test]
fn a_streamed_target_is_pruned_too() {
    let tiny = Tiny { n_layers: 4, ..Tiny::default() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.refrain");
    let checkpoint = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
    pack(&checkpoint, &path, LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() }).unwrap();
    for n_pinned in [0, 2] {
        let streaming = Some(StreamOptions::new(Pinned::Layers(n_pinned)));
        let engine = Engine::open(&path, EngineOptions { streaming, ..tiny.options() }).unwrap();
        check(&engine, &tiny.engine(1));
    }
}

#[test]
fn every_type_of_kv_cache() {
    let tiny = Tiny { head_dim: 32, n_layers: 3, ..Tiny::default() };
    let (engine, prompt) = (tiny.engine(2), prompt(6, 90));
    set_random(&engine, 1, 1.0);
    for &kv_type in KvType::ALL {
        let sampling = &samplings()[1];
        let reference =
            run(&engine, SessionOptions { kv_type, ..plain() }, Vec::new(), &prompt, options(sampling));
        let [.., mixed] = sources(&reference.tokens, prompt.len());
        let session = SessionOptions { kv_type, history: false, ..SessionOptions::default() };
        let run = run(&engine, session, mixed, &prompt, options(sampling));
        run.assert_equal(&reference, &format!("{kv_type}"));
        assert!(run.stats.pruning.unwrap().pruned_steps > 0, "{kv_type}");
    }
}

/// The fixture pair.
fn pair() -> Engine {
    let engine = common::fixture_engine();
    let draft = Checkpoint::open(fixtures().join("draft.gguf")).unwrap();
    let cheap = DraftModelOptions {
        cost_profile: Some(CostProfile::free_rows(0.01)),
        ..DraftModelOptions::default()
    };
    engine.set_draft_model(&draft, cheap, |_, _| {}).unwrap();
    engine
}

fn conversation(engine: &Engine, session: SessionOptions, sampling: &Sampling) -> Vec<Run> {
    let mut session = engine.session(session).unwrap();
    let answer = |note: String| {
        let passage = PromptPassage::new("", &note);
        session.append_turn(Role::User, Task::Summarize.user_message(&[passage], "")).unwrap();
        run_in(&mut session, options(sampling), usize::MAX)
    };
    common::notes().into_iter().take(2).map(answer).collect()
}

#[test]
fn drafts_of_texts_and_of_a_model_are_pruned_without_a_change() {
    let (engine, mut seen) = (pair(), Seen::default());
    for sampling in &samplings() {
        let reference = conversation(&engine, plain(), sampling);
        for drafting in [Drafting::Auto, Drafting::DraftModel] {
            for (i, config) in configs().into_iter().enumerate() {
                set_random(&engine, 1 + i % 5, 0.3);
                let session = SessionOptions {
                    drafting,
                    pruning: Some(config),
                    verify_rows_max: [16, 32][i % 2],
                    reuse: SessionOptions::default().reuse.filter(|_| i % 3 > 0),
                    calibration: [Calibration::InContext, Calibration::Full, Calibration::Off][i % 3],
                    history: false,
                    ..SessionOptions::default()
                };
                for (run, reference) in conversation(&engine, session, sampling).iter().zip(&reference) {
                    let case = format!("{drafting:?} {config:?} {sampling:?}");
                    run.assert_equal(reference, &case);
                    seen.add(run, &case);
                }
            }
        }
    }
    seen.assert_much();
}

/// A session after generation, truncation, fork, cancellation or continuation equals a fresh one over the same tokens.
#[test]
fn sessions_that_go_on() {
    let engine = Tiny { n_layers: 3, ..Tiny::default() }.engine(2);
    set_random(&engine, 2, 1.0);
    let prompt = prompt(7, 50);
    for sampling in &samplings() {
        let fresh = |tokens: &[TokenId]| run(&engine, plain(), Vec::new(), tokens, options(sampling));
        let mut session = engine.session(SessionOptions::default()).unwrap();
        session.append_tokens(&prompt).unwrap();
        session.add_source(Box::new(Random::new(9, common::VOCAB_SIZE as u32))).unwrap();
        run_in(&mut session, options(sampling), usize::MAX).assert_equal(&fresh(&prompt), "first");
        let mut fork = session.fork().unwrap();
        let tokens = session.tokens().to_vec();
        run_in(&mut session, options(sampling), usize::MAX).assert_equal(&fresh(&tokens), "second");
        run_in(&mut fork, options(sampling), usize::MAX).assert_equal(&fresh(&tokens), "fork");
        session.truncate(30).unwrap();
        run_in(&mut session, options(sampling), 5);
        let cancelled = GenerateOptions { cancel: cancelled_token(), ..options(sampling) };
        assert!(run_in(&mut session, cancelled, usize::MAX).tokens.is_empty());
        let tokens = session.tokens().to_vec();
        run_in(&mut session, options(sampling), usize::MAX).assert_equal(&fresh(&tokens), "cancelled");
    }
}

#[test]
fn without_a_predictor_nothing_is_pruned_and_nothing_said() {
    let engine = Tiny::default().engine(1);
    let prompt = prompt(3, 40);
    let run = run(&engine, SessionOptions::default(), Vec::new(), &prompt, options(&Sampling::default()));
    assert_eq!(run.stats.pruning, None);
    set_random(&engine, 1, 1.0);
    let off = SessionOptions { pruning: None, ..SessionOptions::default() };
    let run = common::run(&engine, off, Vec::new(), &prompt, options(&Sampling::default()));
    assert_eq!(run.stats.pruning, None);
}

#[test]
fn options_outside_their_range_are_refused() {
    let engine = Tiny::default().engine(1);
    let session = |config: PruningConfig| {
        engine.session(SessionOptions { pruning: Some(config), ..SessionOptions::default() }).err().unwrap()
    };
    for threshold in [-0.1, 1.5, f32::NAN] {
        let error = session(PruningConfig { threshold, ..PruningConfig::default() });
        assert!(
            matches!(error.detail(), Some(SessionProblem::PruningShare { option: "pruning.threshold", .. })),
            "{error}"
        );
    }
    let safeguards = Some(Safeguards { saved_min: 2.0, ..Safeguards::default() });
    let error = session(PruningConfig { safeguards, ..PruningConfig::default() });
    assert!(
        matches!(error.detail(), Some(SessionProblem::PruningShare { option: "pruning.saved_min", .. })),
        "{error}"
    );
    let error = session(PruningConfig { shadow_tokens: usize::MAX, ..PruningConfig::default() });
    assert!(
        matches!(error.detail(), Some(SessionProblem::OutOfRange { option: "pruning.shadow_tokens", .. })),
        "{error}"
    );
}

#[test]
fn what_does_not_fit_the_model_is_refused() {
    let tiny = Tiny { n_layers: 3, ..Tiny::default() };
    let engine = tiny.engine(1);
    let refused = |parts: PredictorParts| engine.set_predictor(Predictor::new(parts).unwrap()).unwrap_err();
    let parts = || uninformed(&engine, 2, 1.0);
    let other = ModelIdentity::from_bits(7);
    let error = refused(PredictorParts { model: other, ..parts() });
    assert!(
        matches!(error.detail(), Some(PredictorError::OtherModel { trained_for, .. }) if *trained_for == other),
        "{error}"
    );
    let error = refused(PredictorParts { layer_idx: 3, ..parts() });
    assert!(
        matches!(
            error.detail(),
            Some(PredictorError::Shape { field: PredictorField::Layer, predictor: 3, model: 2 })
        ),
        "{error}"
    );
    let narrow = PredictorParts { hidden_dim: 32, down: vec![0.0; 12 * 32], ..parts() };
    let error = refused(narrow);
    assert!(
        matches!(error.detail(), Some(PredictorError::Shape { field: PredictorField::HiddenDim, .. })),
        "{error}"
    );
    let few =
        PredictorParts { vocab_size: 100, up: vec![f16::ZERO; 12 * 100], shadow_pool: Vec::new(), ..parts() };
    let error = refused(few);
    assert!(
        matches!(error.detail(), Some(PredictorError::Shape { field: PredictorField::VocabSize, .. })),
        "{error}"
    );
    assert!(engine.predictor().is_none());

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graphs");
    let checkpoint = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
    let keep = LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() };
    write_graphs(&checkpoint, &path, 2, 8, 4, keep).unwrap();
    let graphs = Engine::open(&path, tiny.options()).unwrap();
    let predictor = Predictor::new(PredictorParts { model: graphs.model_identity(), ..parts() }).unwrap();
    let error = graphs.set_predictor(predictor).unwrap_err();
    assert!(matches!(error.detail(), Some(PredictorError::StaticGraphs)), "{error}");
    let mut session = graphs.session(SessionOptions::default()).unwrap();
    session.append_tokens(&prompt(1, 9)).unwrap();
    let error = session.trace(&CancelToken::new(), [1; 3], &mut |_| {}).unwrap_err();
    assert!(matches!(error.detail(), Some(ForwardError::Undivided)), "{error}");
}

#[test]
fn a_trace_has_the_logits_of_a_score_and_the_hidden_states_of_a_layer() {
    let engine = Tiny { n_layers: 3, ..Tiny::default() }.engine(2);
    let (prompt, hidden_dim) = (prompt(4, 45), engine.config().hidden_dim);
    let trace = |layer_idx: usize, prefill_chunk: usize, n_tokens: usize| {
        let mut session = engine.session(SessionOptions { prefill_chunk, ..plain() }).unwrap();
        session.append_tokens(&prompt[..n_tokens]).unwrap();
        let (mut hidden, mut logits, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        session
            .trace(&CancelToken::new(), [0, layer_idx, 3], &mut |traced| {
                positions.push(traced.position);
                assert_eq!(traced.hidden.len(), 3 * hidden_dim);
                hidden.extend_from_slice(&traced.hidden[hidden_dim..2 * hidden_dim]);
                logits.extend_from_slice(traced.logits);
            })
            .unwrap();
        assert_eq!(positions, (0..n_tokens).collect::<Vec<_>>());
        assert_eq!(hidden.len(), n_tokens * hidden_dim);
        (hidden, logits)
    };
    let mut session = engine.session(plain()).unwrap();
    session.append_tokens(&prompt).unwrap();
    let mut scored = Vec::new();
    session.score(&CancelToken::new(), Some(&mut |row: &[f32]| scored.extend_from_slice(row))).unwrap();
    for layer_idx in 0..3 {
        let (hidden, logits) = trace(layer_idx, 256, prompt.len());
        assert_eq!(logits, scored);
        assert_eq!(trace(layer_idx, 7, prompt.len()), (hidden.clone(), logits), "chunks");
        // A row depends on its ancestors only.
        assert_eq!(trace(layer_idx, 256, 20).0, hidden[..20 * hidden_dim]);
    }
    assert_ne!(trace(1, 256, 20).0, trace(2, 256, 20).0);
    // The embedding depends on its token only.
    let (embedded, _) = trace(0, 256, prompt.len());
    let row = |position: usize| &embedded[position * hidden_dim..(position + 1) * hidden_dim];
    for a in 0..prompt.len() {
        for b in 0..prompt.len() {
            assert_eq!(row(a) == row(b), prompt[a] == prompt[b]);
        }
    }
    let error = session.trace(&CancelToken::new(), [0, 4, 1], &mut |_| {}).unwrap_err();
    let Some(SessionProblem::OutOfRange { given: 4, max: 3, .. }) = error.detail() else { panic!("{error}") };
}

#[test]
fn a_file_comes_back_as_it_was() {
    let engine = Tiny::default().engine(1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.predictor");
    for n_pool in [0, 1, 40] {
        let mut parts = uninformed(&engine, 1, 1.0);
        parts.shadow_pool.truncate(n_pool);
        Predictor::new(parts.clone()).unwrap().write(&path).unwrap();
        let read = Predictor::read(&path).unwrap();
        assert_eq!(read.parts(), &parts);
        assert_eq!(read.to_bytes(), std::fs::read(&path).unwrap());
        engine.set_predictor(read).unwrap();
        let run = run(
            &engine,
            SessionOptions::default(),
            Vec::new(),
            &prompt(3, 40),
            options(&Sampling::default()),
        );
        assert!(run.stats.pruning.is_some());
    }
    for path in [folder.path(), Path::new("no-such.predictor")] {
        assert!(matches!(Predictor::read(path).unwrap_err().detail(), Some(PredictorError::Io { .. })));
    }
    let nowhere = folder.path().join("none/tiny.predictor");
    let predictor = Predictor::read(&path).unwrap();
    assert!(matches!(predictor.write(&nowhere).unwrap_err().detail(), Some(PredictorError::Replace(_))));
}

/// Corrects the checksum of changed bytes, so that their contents are parsed.
fn signed(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    hash.update(&bytes[..48]);
    hash.update(&bytes[56..]);
    bytes[48..56].copy_from_slice(&hash.digest().to_le_bytes());
    bytes
}

#[test]
fn every_damage_is_found() {
    let engine = Tiny { hidden_dim: 64, ..Tiny::default() }.engine(1);
    let mut parts = uninformed(&engine, 1, 1.0);
    parts.shadow_pool = [3, 9].map(TokenId).to_vec();
    let bytes = Predictor::new(parts).unwrap().to_bytes();
    let read = |bytes: &[u8]| Predictor::from_bytes(bytes, "a.predictor").map(drop);
    read(&bytes).unwrap();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(read(&flipped).is_err(), "byte {at}");
    }
    for len in 0..bytes.len() {
        assert!(read(&bytes[..len]).is_err(), "the first {len} bytes");
    }
    assert!(read(&[&bytes[..], &[0]].concat()).is_err());

    let with = |at: usize, new: &[u8]| {
        let mut changed = bytes.clone();
        changed[at..at + new.len()].copy_from_slice(new);
        let error = read(&signed(changed)).unwrap_err();
        assert!(error.to_string().starts_with("a.predictor: "), "{error}");
        error
    };
    assert!(matches!(with(0, b"GGUF").detail(), Some(PredictorError::Magic { .. })));
    assert!(matches!(with(8, &[2]).detail(), Some(PredictorError::Version { version: 2, .. })));
    for (offset, value) in [(12, 0u32), (12, 1 << 20), (32, 0), (36, 65), (40, u32::MAX), (44, 300)] {
        let error = with(offset, &value.to_le_bytes());
        let Some(PredictorError::OutOfRange { offset: found, value: given, .. }) = error.detail() else {
            panic!("{error}")
        };
        assert_eq!((*found, *given), (offset as u64, u64::from(value)));
    }
    assert!(matches!(with(40, &200u32.to_le_bytes()).detail(), Some(PredictorError::Length { .. })));
    let down = 56 + 4 * 5;
    assert!(matches!(
        with(down, &f32::NAN.to_le_bytes()).detail(),
        Some(PredictorError::NotFinite { field: "down", offset: 76, .. })
    ));
    let up = 56 + 4 * 12 * 64;
    assert!(matches!(
        with(up, &f16::INFINITY.to_le_bytes()).detail(),
        Some(PredictorError::NotFinite { field: "up", .. })
    ));
    let pool = bytes.len() - 4;
    assert!(matches!(
        with(pool, &3u32.to_le_bytes()).detail(),
        Some(PredictorError::PoolOrder { token: 3, before: 3, .. })
    ));
    assert!(matches!(
        with(pool, &257u32.to_le_bytes()).detail(),
        Some(PredictorError::OutOfRange { value: 257, .. })
    ));
    let mut damaged = bytes.clone();
    damaged[200] ^= 1;
    assert!(matches!(read(&damaged).unwrap_err().detail(), Some(PredictorError::Checksum { .. })));
}

#[test]
fn parts_that_do_not_fit_together_are_refused() {
    let engine = Tiny::default().engine(1);
    let parts = uninformed(&engine, 1, 1.0);
    let short = PredictorParts { down: parts.down[1..].to_vec(), ..parts.clone() };
    let error = Predictor::new(short).unwrap_err();
    assert!(matches!(error.detail(), Some(PredictorError::Parts { field: "down", .. })));
    let short = PredictorParts { up: Vec::new(), ..parts };
    let error = Predictor::new(short).unwrap_err();
    assert!(matches!(error.detail(), Some(PredictorError::Parts { field: "up", given: 0, .. })));
}
