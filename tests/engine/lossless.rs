//! Speculation changes no bit: tokens, texts and the logits behind them equal those of plain decoding, for all drafts,
//! batches, threads and chunks.
//!
//! `tools/planted-faults` shows that these tests fail with planted faults: a product with a sum order that depends on
//! the number of rows (rule 1), a row that attends to its sibling (rule 2, the mask), a rollback that keeps one slot
//! too many, and randomness by count instead of by key (rule 3).

use refrain::device::IsaKind;
use refrain::drafting::{Calibration, DraftPolicy, DraftRows, DraftSource, EchoConfig, ReuseConfig};
use refrain::internals::draft::testing::{AlwaysRight, AlwaysWrong, Endless, Random};
use refrain::internals::kernels::{BlockType, Kernels};
use refrain::{
    CancelToken, DryOptions, Engine, GenerateOptions, KvType, PromptPassage, Role, Sampling, SessionOptions,
    Task, TokenId,
};

use crate::common::{self, EOS, Run, Tiny, plain, prompt, run, samplings};

const MAX_TOKENS: usize = 24;

fn options(sampling: &Sampling) -> GenerateOptions {
    GenerateOptions { max_tokens: MAX_TOKENS, sampling: sampling.clone(), ..GenerateOptions::default() }
}

/// The sources of a session. `Context` and `History` are its own.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Drafts {
    None,
    Context,
    History,
    AlwaysRight,
    AlwaysWrong,
    Random,
    Endless,
}

const ALL_DRAFTS: [Drafts; 7] = [
    Drafts::None,
    Drafts::Context,
    Drafts::History,
    Drafts::AlwaysRight,
    Drafts::AlwaysWrong,
    Drafts::Random,
    Drafts::Endless,
];

impl Drafts {
    fn sources(self, prompt: &[TokenId], known: &[TokenId]) -> Vec<Box<dyn DraftSource>> {
        let known = known.to_vec();
        match self {
            Self::None | Self::Context | Self::History => Vec::new(),
            Self::AlwaysRight => vec![Box::new(AlwaysRight::new(prompt.len(), known))],
            Self::AlwaysWrong => vec![Box::new(AlwaysWrong::new(prompt.len(), known))],
            // Twice the vocabulary: half of the drafts are not tokens of the model.
            Self::Random => vec![Box::new(Random::new(5, 2 * common::VOCAB_SIZE as u32))],
            Self::Endless => vec![Box::new(Endless::new(common::VOCAB_SIZE as u32))],
        }
    }

    fn session(self, base: SessionOptions) -> SessionOptions {
        match self {
            Self::None => SessionOptions { drafting: plain().drafting, history: false, ..base },
            Self::History => SessionOptions { history: true, namespace: "known".into(), ..base },
            _ => SessionOptions { history: false, ..base },
        }
    }
}

/// Every source × batch length × thread count × prefill chunk × sampling for one type of weights.
fn check_all(tiny: Tiny) {
    let prompt = prompt(3, 70);
    for sampling in &samplings() {
        let engine = tiny.engine(1);
        let all_at_once = SessionOptions { prefill_chunk: 512, ..plain() };
        let reference = run(&engine, all_at_once, Vec::new(), &prompt, options(sampling));
        assert_eq!(reference.stats.steps, reference.tokens.len(), "plain decoding: a token a step");
        let mut accepted = 0;
        for n_threads in [1, 2, 4] {
            let engine = tiny.engine(n_threads);
            engine.history().append("known", &reference.tokens);
            for prefill_chunk in [1, 7, 64, 512] {
                for drafts in ALL_DRAFTS {
                    for verify_rows_max in [1, 2, 3, 4, 5, 8, 16, 32] {
                        let base =
                            SessionOptions { verify_rows_max, prefill_chunk, ..SessionOptions::default() };
                        let sources = drafts.sources(&prompt, &reference.tokens);
                        let session = drafts.session(base);
                        let run = run(&engine, session, sources, &prompt, options(sampling));
                        let case = format!(
                            "{:?} {drafts:?} rows {verify_rows_max} threads {n_threads} chunk {prefill_chunk} {sampling:?}",
                            tiny.ty
                        );
                        run.assert_equal(&reference, &case);
                        check_drafting(drafts, verify_rows_max, &run, &case);
                        accepted += run.stats.sources.iter().map(|s| s.accepted).sum::<usize>();
                    }
                }
            }
        }
        assert!(accepted > 1000, "only {accepted} draft tokens were accepted: the test would prove little");
    }
}

/// The sources draft as their names state, so that the comparison covers each case.
fn check_drafting(drafts: Drafts, verify_rows_max: usize, run: &Run, case: &str) {
    let added = run.stats.sources.last();
    match drafts {
        Drafts::None => assert!(run.stats.sources.is_empty(), "{case}"),
        Drafts::AlwaysRight if verify_rows_max > 1 => {
            assert!(run.stats.steps < run.tokens.len(), "{case}: {:?}", run.stats);
        }
        Drafts::AlwaysWrong => assert_eq!(added.unwrap().accepted, 0, "{case}"),
        Drafts::Endless if verify_rows_max >= 16 => assert!(added.unwrap().drafted > 0, "{case}"),
        _ => {}
    }
}

#[test]
fn f32_weights() {
    check_all(Tiny::default());
}

#[test]
fn q8_0_weights() {
    check_all(Tiny { ty: BlockType::Q8_0, ..Tiny::default() });
}

#[test]
fn q4_0_weights() {
    check_all(Tiny { ty: BlockType::Q4_0, ..Tiny::default() });
}

#[test]
fn q4_k_weights() {
    check_all(Tiny { ty: BlockType::Q4K, hidden_dim: 256, n_layers: 1, ..Tiny::default() });
}

/// DRY depends on the text of the whole path. A wrong text therefore shows in drafts that repeat it.
#[test]
fn dry_penalises_inside_drafts_as_in_plain_decoding() {
    let prompt = prompt(5, 70);
    let engine = Tiny::default().engine(2);
    for sampling in samplings() {
        // Only six tokens, so that every text repeats sequences.
        let others = (0..common::VOCAB_SIZE as u32).filter(|id| !(97..103).contains(id));
        let logit_bias = others.map(|id| (TokenId(id), f32::NEG_INFINITY)).collect();
        let sampling = Sampling { logit_bias, ..sampling };
        let dry = DryOptions { multiplier: 0.8, window: 60, ..DryOptions::default() };
        let penalised = Sampling { dry, ..sampling.clone() };
        let reference = run(&engine, plain(), Vec::new(), &prompt, options(&penalised));
        let without = run(&engine, plain(), Vec::new(), &prompt, options(&sampling));
        assert_ne!(reference.tokens, without.tokens, "the penalty changes this text");
        engine.history().append("known", &reference.tokens);
        let mut accepted = 0;
        for drafts in ALL_DRAFTS {
            for verify_rows_max in [2, 4, 16, 32] {
                let base = SessionOptions { verify_rows_max, ..SessionOptions::default() };
                let sources = drafts.sources(&prompt, &reference.tokens);
                let run = run(&engine, drafts.session(base), sources, &prompt, options(&penalised));
                run.assert_equal(&reference, &format!("{drafts:?} rows {verify_rows_max} {penalised:?}"));
                accepted += run.stats.sources.iter().map(|s| s.accepted).sum::<usize>();
            }
        }
        assert!(accepted > 50, "only {accepted} draft tokens were accepted: the test would prove little");
    }
}

/// A static-shape backend pads its batches. Padding rows are computed and change nothing.
#[test]
fn padded_batches() {
    let prompt = prompt(4, 40);
    let engine = Tiny::default().engine(2);
    for sampling in &samplings() {
        let reference = run(&engine, plain(), Vec::new(), &prompt, options(sampling));
        for verify_lens in [vec![4], vec![1, 3, 8], vec![16, 64]] {
            for drafts in ALL_DRAFTS {
                let last = *verify_lens.last().unwrap();
                let base = SessionOptions {
                    verify_rows_max: last.min(16),
                    verify_lens: verify_lens.clone(),
                    ..SessionOptions::default()
                };
                let sources = drafts.sources(&prompt, &reference.tokens);
                let run = run(&engine, drafts.session(base), sources, &prompt, options(sampling));
                run.assert_equal(&reference, &format!("{drafts:?} {verify_lens:?}"));
                let rows = run.stats.rows;
                let lens_total = rows.valid + rows.wasted + rows.padded;
                assert!(lens_total >= run.stats.steps * verify_lens[0], "{rows:?}");
            }
        }
    }
}

/// Calibration and reuse in every combination over real text: the fixture model with the sample notes, with and
/// without padding, in turns of a conversation.
#[test]
fn calibration_and_reuse() {
    let engine = common::fixture_engine();
    let notes = common::notes();
    let reuses = [(0.0, 1, 4), (0.3, 2, 32), (1.0, 9, 255)]
        .map(|(threshold, lifetime, tokens_max)| Some(ReuseConfig { threshold, lifetime, tokens_max }));
    let (mut drafted, mut accepted) = (0, 0);
    for (i, sampling) in samplings().iter().enumerate() {
        let reference = conversation(&engine, plain(), &notes[2 * i..], sampling);
        for calibration in [Calibration::Off, Calibration::InContext, Calibration::Full] {
            for reuse in std::iter::once(None).chain(reuses) {
                for (verify_rows_max, verify_lens) in [(4, vec![]), (16, vec![]), (16, vec![1, 5, 16])] {
                    let session = SessionOptions {
                        calibration,
                        reuse,
                        verify_rows_max,
                        verify_lens,
                        history: false,
                        ..SessionOptions::default()
                    };
                    let case = format!("{calibration:?} {reuse:?} rows {verify_rows_max} {sampling:?}");
                    for (run, reference) in
                        conversation(&engine, session, &notes[2 * i..], sampling).iter().zip(&reference)
                    {
                        run.assert_equal(reference, &case);
                        for source in run.stats.sources.iter().filter(|source| source.name == "predictions") {
                            drafted += source.drafted;
                            accepted += source.accepted;
                        }
                        check_rejections(run, &case);
                    }
                }
            }
        }
    }
    // Otherwise the comparison would prove little.
    assert!(drafted > 1000 && accepted > 100, "{accepted} of {drafted} accepted");
    let drafts = |reuse| {
        // A fixed number of rows depends on no measured time.
        let policy = DraftPolicy { rows: DraftRows::Fixed(15), ..DraftPolicy::default() };
        let (calibration, history) = (Calibration::InContext, false);
        let session = SessionOptions { calibration, history, reuse, policy, ..SessionOptions::default() };
        let runs = conversation(&common::fixture_engine(), session, &notes, &samplings()[0]);
        let sources = runs.iter().flat_map(|run| &run.stats.sources);
        sources.map(|source| (source.name.to_string(), source.drafted)).collect::<Vec<_>>()
    };
    assert_eq!(drafts(None), drafts(None));
    assert_ne!(drafts(reuses[1]), drafts(None), "reuse drafts");
}

/// Echo alone and with calibration, with lists for every rejected row and for none, and stores that are soon
/// full: over real text, and on a tiny model whose likely tokens change with every row.
#[test]
fn echo() {
    let engine = common::fixture_engine();
    let notes = common::notes();
    let (mut drafted, mut accepted) = (0, 0);
    let mut count = |run: &Run| {
        for source in run.stats.sources.iter().filter(|source| source.name == "predictions") {
            (drafted, accepted) = (drafted + source.drafted, accepted + source.accepted);
        }
    };
    let stores = [(0, 1 << 16), (3, 50), (64, 1), (64, 1 << 16)];
    let stores = stores.map(|(rejected_rows, lists_max)| EchoConfig { rejected_rows, lists_max });
    for (i, sampling) in samplings().iter().enumerate() {
        let reference = conversation(&engine, plain(), &notes[2 * i..], sampling);
        let tiny = Tiny::default().engine(2);
        let of_tiny = tiny_conversation(&tiny, plain(), sampling);
        for calibration in [Calibration::Off, Calibration::InContext, Calibration::Full] {
            for (j, &echo) in stores.iter().enumerate() {
                let session = SessionOptions {
                    calibration,
                    echo: Some(echo),
                    reuse: (j % 2 == 0).then(ReuseConfig::default),
                    verify_rows_max: [4, 16, 32][(i + j) % 3],
                    policy: DraftPolicy {
                        // The builder drafts little from a model of noise; a fixed number of rows is always wrong there.
                        rows: if j == 3 { DraftRows::Fixed(3) } else { DraftRows::Auto },
                        ..DraftPolicy::default()
                    },
                    history: false,
                    ..SessionOptions::default()
                };
                let case = format!("{calibration:?} {echo:?} {sampling:?}");
                let runs = conversation(&engine, session.clone(), &notes[2 * i..], sampling);
                let runs = runs.iter().zip(&reference);
                for (run, reference) in
                    runs.chain(tiny_conversation(&tiny, session, sampling).iter().zip(&of_tiny))
                {
                    run.assert_equal(reference, &case);
                    count(run);
                }
            }
        }
    }
    // Otherwise the comparison would prove little.
    assert!(drafted > 1000 && accepted > 100, "{accepted} of {drafted} accepted");
}

/// Two prompts of a model of noise, the second after a truncation.
fn tiny_conversation(engine: &Engine, session: SessionOptions, sampling: &Sampling) -> Vec<Run> {
    let mut session = engine.session(session).unwrap();
    let mut answer = |text: &[TokenId], keep: usize| {
        session.truncate(keep).unwrap();
        session.append_tokens(text).unwrap();
        common::run_in(&mut session, options(sampling), usize::MAX)
    };
    vec![answer(&prompt(5, 40), 0), answer(&prompt(6, 20), 33)]
}

/// Two turns about two notes.
fn conversation(engine: &Engine, session: SessionOptions, notes: &[String], sampling: &Sampling) -> Vec<Run> {
    let mut session = engine.session(session).unwrap();
    let messages = [
        Task::Summarize.user_message(&[PromptPassage::new("", &notes[0])], ""),
        Task::Summarize.user_message(&[PromptPassage::new("", &notes[1])], "Keep it short."),
    ];
    let answer = |message: String| {
        session.append_turn(Role::User, message).unwrap();
        common::run_in(&mut session, options(sampling), usize::MAX)
    };
    messages.into_iter().map(answer).collect()
}

/// Each step leaves at most one rejected draft with its wasted rows.
fn check_rejections(run: &Run, case: &str) {
    let left = run.stats.rejections.total();
    assert!(left <= run.stats.steps && left <= run.stats.rows.wasted, "{case}: {:?}", run.stats);
}

/// The same model, prompt and seed give the same text on every instruction set.
#[test]
fn instruction_sets() {
    let prompt = prompt(5, 33);
    for ty in [BlockType::F32, BlockType::F16, BlockType::BF16, BlockType::Q8_0, BlockType::Q4_0] {
        let tiny = Tiny { ty, ..Tiny::default() };
        for sampling in &samplings() {
            let on = |isa: IsaKind| {
                let engine = tiny.engine_with(refrain::EngineOptions { isa: Some(isa), ..tiny.options() });
                run(&engine, SessionOptions::default(), Vec::new(), &prompt, options(sampling))
            };
            let scalar = on(IsaKind::Scalar);
            for kernels in Kernels::available() {
                on(kernels.isa()).assert_equal(&scalar, &format!("{ty:?} on {:?}", kernels.isa()));
            }
        }
    }
}

/// Every KV type, each compared with its own plain decoding. No two of them give the same bits.
#[test]
fn kv_types() {
    let prompt = prompt(6, 90);
    let engine = Tiny { head_dim: 32, ..Tiny::default() }.engine(2);
    let by_type = KvType::ALL.iter().map(|&kv_type| {
        let sampling = &samplings()[1];
        let reference =
            run(&engine, SessionOptions { kv_type, ..plain() }, Vec::new(), &prompt, options(sampling));
        let known = Drafts::AlwaysRight.sources(&prompt, &reference.tokens);
        let session = SessionOptions { kv_type, ..SessionOptions::default() };
        run(&engine, session, known, &prompt, options(sampling)).assert_equal(&reference, "kv type");
        reference.logits
    });
    let by_type: Vec<_> = by_type.collect();
    for (i, logits) in by_type.iter().enumerate() {
        assert!(!by_type[..i].contains(logits), "{}", KvType::ALL[i]);
    }
}

/// A session after generation, truncation, fork or continuation equals a fresh one over the same tokens.
#[test]
fn sessions_that_go_on() {
    let prompt = prompt(7, 50);
    let engine = Tiny::default().engine(2);
    for sampling in &samplings() {
        let fresh = |tokens: &[TokenId]| run(&engine, plain(), Vec::new(), tokens, options(sampling));
        let mut session = engine.session(SessionOptions::default()).unwrap();
        session.append_tokens(&prompt).unwrap();
        let first = common::run_in(&mut session, options(sampling), usize::MAX);
        first.assert_equal(&fresh(&prompt), "first");

        let mut fork = session.fork().unwrap();
        let tokens = session.tokens().to_vec();
        let second = common::run_in(&mut session, options(sampling), usize::MAX);
        second.assert_equal(&fresh(&tokens), "second");
        common::run_in(&mut fork, options(sampling), usize::MAX).assert_equal(&second, "fork");

        session.truncate(30).unwrap();
        assert_eq!(session.tokens(), &prompt[..30]);
        session.append_tokens(&prompt[10..20]).unwrap();
        let tokens = session.tokens().to_vec();
        common::run_in(&mut session, options(sampling), usize::MAX)
            .assert_equal(&fresh(&tokens), "truncated");
    }
}

/// Two concurrent conversations of one engine, on the same workers.
#[test]
fn sessions_side_by_side() {
    let engine: Engine = Tiny::default().engine(3);
    let sampling = &samplings()[1];
    let prompts = [prompt(8, 30), prompt(9, 60), prompt(10, 45)];
    let references: Vec<Run> =
        prompts.iter().map(|p| run(&engine, plain(), Vec::new(), p, options(sampling))).collect();
    std::thread::scope(|scope| {
        for (prompt, reference) in prompts.iter().zip(&references) {
            let engine = engine.clone();
            scope.spawn(move || {
                for _ in 0..20 {
                    let run = run(&engine, SessionOptions::default(), Vec::new(), prompt, options(sampling));
                    run.assert_equal(reference, "side by side");
                }
            });
        }
    });
}

/// The score of a text is computed from the logits that generate it.
#[test]
fn scores_do_not_depend_on_chunks() {
    let prompt = prompt(11, 80);
    let engine = Tiny::default().engine(2);
    let scores = [1, 7, 64, 512].map(|prefill_chunk| {
        let mut session = engine.session(SessionOptions { prefill_chunk, ..plain() }).unwrap();
        session.append_tokens(&prompt).unwrap();
        let mut bits = Vec::new();
        let score = session
            .score(&CancelToken::new(), Some(&mut |row: &[f32]| bits.extend(row.iter().map(|x| x.to_bits()))))
            .unwrap();
        assert_eq!(score.log_probabilities.len(), prompt.len() - 1);
        assert!(score.perplexity.is_finite() && !prompt.contains(&EOS));
        (score, bits)
    });
    assert!(scores.windows(2).all(|pair| pair[0] == pair[1]));
}
