//! Drafting with a draft model: the output is that of plain decoding, bit for bit.

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::drafting::EvidenceClass;
use refrain::internals::draft::CostProfile;
use refrain::internals::draft_model::VocabularyMismatch;
use refrain::internals::error::{EngineProblem, SessionProblem};
use refrain::{
    Drafting, Engine, EngineOptions, GenerateOptions, PromptPassage, Role, Sampling, Session, SessionError,
    SessionOptions, Task,
};
use refrain_bench::Strategy;
use refrain_bench::model::project_eagerly;
use refrain_bench::rules::ModelRule;

use crate::common::{self, Run, Tiny, cancelled_token, fixtures, plain, prompt, run_in, samplings};

const MAX_TOKENS: usize = 32;

fn options(sampling: &Sampling) -> GenerateOptions {
    GenerateOptions { max_tokens: MAX_TOKENS, sampling: sampling.clone(), ..GenerateOptions::default() }
}

/// Passes of the draft model cost next to nothing, so that the builder calls it wherever it may help.
fn cheap() -> DraftModelOptions {
    DraftModelOptions { cost_profile: Some(CostProfile::free_rows(0.01)), ..DraftModelOptions::default() }
}

/// The fixture pair. Batches cost the same at every length.
fn pair(n_threads: usize) -> Engine {
    let options = EngineOptions {
        n_threads: Some(n_threads),
        cost_profile: Some(CostProfile::free_rows(100.0)),
        ..EngineOptions::default()
    };
    let engine = Engine::open(fixtures().join("target.gguf"), options).expect("the fixture model");
    let draft = Checkpoint::open(fixtures().join("draft.gguf")).expect("the fixture draft model");
    engine.set_draft_model(&draft, cheap(), |_, _| {}).expect("the same vocabulary");
    engine
}

/// Two turns about two notes.
fn conversation(engine: &Engine, session: SessionOptions, sampling: &Sampling) -> Vec<Run> {
    converse(engine.session(session).expect("valid options"), sampling)
}

fn converse(mut session: Session, sampling: &Sampling) -> Vec<Run> {
    let notes = common::notes();
    let mut answer = |note: &str, request: &str| {
        let message = Task::Summarize.user_message(&[PromptPassage::new("", note)], request);
        session.append_turn(Role::User, message).unwrap();
        run_in(&mut session, options(sampling), usize::MAX)
    };
    vec![answer(&notes[0], ""), answer(&notes[1], "Keep it short.")]
}

/// Every way of drafting with the model.
fn strategies() -> Vec<Strategy> {
    let rules = ModelRule::ALL.into_iter().chain([ModelRule::Chain(1), ModelRule::Chain(63)]);
    let all = [Strategy::Refrain, Strategy::DraftModel].into_iter();
    all.chain(rules.map(Strategy::ModelRule)).collect()
}

/// A session with the drafting of a strategy.
fn start(engine: &Engine, strategy: Strategy, options: SessionOptions) -> Result<Session, SessionError> {
    let options = SessionOptions { drafting: strategy.drafting(), ..options };
    let mut session = engine.session(options.clone())?;
    strategy.add_rule(engine, &mut session, &options)?;
    Ok(session)
}

#[test]
fn changes_no_bit_of_the_output() {
    let engines = [1, 2, 3].map(pair);
    for sampling in &samplings() {
        let reference = conversation(&engines[0], plain(), sampling);
        for strategy in strategies() {
            let mut accepted = 0;
            let shapes = [(2, vec![]), (5, vec![]), (16, vec![]), (32, vec![]), (12, vec![1, 4, 16])];
            for (i, (verify_rows_max, verify_lens)) in shapes.into_iter().enumerate() {
                let session = SessionOptions {
                    verify_rows_max,
                    verify_lens,
                    prefill_chunk: [7, 64, 512][i % 3],
                    projection_rows: [8, 3, 1, 64][i % 4],
                    history: i % 2 == 0,
                    ..SessionOptions::default()
                };
                let case = format!("{strategy} rows {verify_rows_max} {sampling:?}");
                let runs = converse(start(&engines[i % 3], strategy, session).unwrap(), sampling);
                for (run, reference) in runs.iter().zip(&reference) {
                    run.assert_equal(reference, &case);
                    let model = run.stats.sources.last().expect("the draft model is the last source");
                    assert_eq!(model.evidence, EvidenceClass::DraftModel, "{case}");
                    let computed = model.computed.as_ref().expect("it computes");
                    assert_eq!(computed.off, None, "{case}");
                    assert!(computed.rows >= computed.passes, "{case}");
                    assert!(strategy == Strategy::Refrain || computed.passes > 0, "{case}");
                    accepted += model.accepted;
                }
            }
            // Otherwise the comparison would prove little.
            assert!(accepted > 20, "{strategy}: {accepted} accepted");
        }
    }
}

/// If rows and passes are free, all sources together are at least as good as each alone.
#[test]
fn retrieval_and_draft_model_agree_in_one_tree() {
    let engine = pair(2);
    let steps = |session: SessionOptions| {
        let runs = conversation(&engine, SessionOptions { history: false, ..session }, &Sampling::default());
        runs.iter().map(|run| run.stats.steps).sum::<usize>()
    };
    let retrieval = steps(SessionOptions { draft_model: false, ..SessionOptions::default() });
    let model = steps(SessionOptions { drafting: Drafting::DraftModel, ..SessionOptions::default() });
    let both = steps(SessionOptions::default());
    let plain = steps(plain());
    assert!(retrieval < plain && model < plain, "{plain} plain, {retrieval} retrieval, {model} draft model");
    assert!(both <= retrieval.min(model) + 1, "{retrieval} retrieval, {model} draft model, {both} both");
}

#[test]
fn a_draft_model_that_costs_too_much_is_not_asked() {
    let engine = pair(1);
    let draft = Checkpoint::open(fixtures().join("draft.gguf")).unwrap();
    let dear = DraftModelOptions { cost_profile: Some(CostProfile::free_rows(1e6)), ..cheap() };
    engine.set_draft_model(&draft, dear, |_, _| {}).unwrap();
    let session = SessionOptions { drafting: Drafting::DraftModel, ..SessionOptions::default() };
    for run in conversation(&engine, session, &Sampling::default()) {
        assert_eq!(run.stats.steps, run.tokens.len());
        assert_eq!(run.stats.sources[0].drafted, 0);
    }
}

fn run_tokens(session: &mut Session, sampling: &Sampling) -> Run {
    let options = GenerateOptions { ignore_eos: true, ..options(sampling) };
    run_in(session, options, usize::MAX)
}

/// The choice of projected rows changes only their number.
#[test]
fn projection_on_demand_and_eager_projection_give_the_same_bits() {
    let (engine, eager_engine) = (pair(2), pair(2));
    for sampling in &samplings() {
        let run = |engine: &Engine, mut session: SessionOptions, is_eager: bool| {
            if is_eager {
                project_eagerly(engine, &mut session);
            }
            conversation(engine, session, sampling)
        };
        let session = |projection_rows: usize| SessionOptions {
            projection_rows,
            history: false,
            draft_model: false,
            ..SessionOptions::default()
        };
        let eager = run(&eager_engine, session(8), true);
        for projection_rows in [1, 2, 8, 64] {
            let on_demand = run(&engine, session(projection_rows), false);
            for (on_demand, eager) in on_demand.iter().zip(&eager) {
                on_demand.assert_equal(eager, &format!("waves of {projection_rows}"));
                let (some, all) = (on_demand.stats.rows, eager.stats.rows);
                assert_eq!(all.projected, all.valid + all.wasted, "every row but the padding");
                assert!(some.projected <= all.projected, "{some:?} {all:?}");
                if projection_rows == 1 {
                    assert_eq!(some.projected, some.valid, "nothing but what was visited");
                }
            }
        }
    }
}

/// A session after generation, truncation, fork, cancellation or continuation equals a fresh one over the same tokens.
#[test]
fn sessions_that_go_on() {
    let engine = pair(2);
    let prompt = prompt(7, 50);
    for sampling in &samplings() {
        for strategy in strategies() {
            let fresh = |tokens: &[_]| {
                let mut session = engine.session(plain()).unwrap();
                session.append_tokens(tokens).unwrap();
                run_tokens(&mut session, sampling)
            };
            let mut session = start(&engine, strategy, SessionOptions::default()).unwrap();
            session.append_tokens(&prompt).unwrap();
            run_tokens(&mut session, sampling).assert_equal(&fresh(&prompt), "first");

            let mut fork = session.fork().unwrap();
            let tokens = session.tokens().to_vec();
            let second = run_tokens(&mut session, sampling);
            second.assert_equal(&fresh(&tokens), "second");
            run_tokens(&mut fork, sampling).assert_equal(&second, "fork");

            session.truncate(30).unwrap();
            session.append_tokens(&prompt[10..20]).unwrap();
            let tokens = session.tokens().to_vec();
            run_tokens(&mut session, sampling).assert_equal(&fresh(&tokens), "truncated");

            // Ended by the app in the middle of a step's tokens: untaken tokens are rolled back.
            let tokens = session.tokens().to_vec();
            let options = GenerateOptions { ignore_eos: true, ..options(sampling) };
            let taken = run_in(&mut session, options, 5);
            assert_eq!(taken.tokens, fresh(&tokens).tokens[..5]);
            // Cancelled before anything is computed.
            let cancelled = GenerateOptions { cancel: cancelled_token(), ..GenerateOptions::default() };
            let nothing = run_in(&mut session, cancelled, usize::MAX);
            assert!(nothing.tokens.is_empty());
            let tokens = session.tokens().to_vec();
            run_tokens(&mut session, sampling).assert_equal(&fresh(&tokens), "after a cancellation");
        }
    }
}

#[test]
fn sessions_side_by_side() {
    let engine = pair(2);
    let reference = conversation(&engine, plain(), &samplings()[1]);
    std::thread::scope(|scope| {
        let opt_tree = Strategy::ModelRule(ModelRule::OptTree);
        for strategy in [Strategy::Refrain, Strategy::DraftModel, opt_tree] {
            let (engine, reference) = (engine.clone(), &reference);
            scope.spawn(move || {
                let session = start(&engine, strategy, SessionOptions::default()).unwrap();
                for (run, reference) in converse(session, &samplings()[1]).iter().zip(reference) {
                    run.assert_equal(reference, "side by side");
                }
            });
        }
    });
}

#[test]
fn another_vocabulary_is_refused_with_the_first_difference() {
    let tiny = Tiny::default();
    let refused = |target: &Engine, bytes: Vec<u8>| {
        let checkpoint = Checkpoint::from_gguf_bytes(bytes.into(), "other").unwrap();
        let error = target.set_draft_model(&checkpoint, cheap(), |_, _| {}).unwrap_err();
        let shown = format!("`{}` cannot draft", checkpoint.name());
        assert!(target.draft_model().is_none() && error.to_string().contains(&shown), "{error}");
        match error.detail() {
            Some(EngineProblem::DraftVocabulary { mismatch, .. }) => mismatch.clone(),
            _ => panic!("{error}"),
        }
    };
    let fixture = Engine::open(
        fixtures().join("target.gguf"),
        EngineOptions { cost_profile: Some(CostProfile::free_rows(1.0)), ..EngineOptions::default() },
    );
    let fixture = fixture.unwrap();
    let target = fixture.tokenizer().vocab_size();
    let size = VocabularyMismatch::Size { target, draft: common::VOCAB_SIZE };
    assert_eq!(refused(&fixture, tiny.gguf()), size);

    // The same number of tokens, one of them with another spelling.
    let mut other = tiny.gguf();
    let end = b"<|end|>";
    let at = other.windows(end.len()).position(|window| window == end).expect("the token");
    other[at..at + end.len()].copy_from_slice(b"<|fin|>");
    let mismatch = refused(&tiny.engine(1), other);
    let VocabularyMismatch::Entry { id, target, draft } = &mismatch else { panic!("{mismatch}") };
    assert_eq!(*id, common::EOS.0);
    assert!(target.contains("<|end|>") && draft.contains("<|fin|>"), "{mismatch}");
}

#[test]
fn a_session_that_needs_a_draft_model_says_so() {
    let engine = Tiny::default().engine(1);
    for strategy in strategies().into_iter().filter(|&strategy| strategy != Strategy::Refrain) {
        let session = start(&engine, strategy, SessionOptions::default());
        assert!(matches!(session.unwrap_err().detail(), Some(SessionProblem::NoDraftModel)), "{strategy}");
    }
}

/// The text exceeds the draft model's training context: it stops drafting with a reason, and the output continues.
#[test]
fn a_full_draft_model_stops_drafting() {
    let target = Tiny::default().engine(1);
    let short = Tiny { context_len: 64, seed: 2, ..Tiny::default() };
    let draft = Checkpoint::from_gguf_bytes(short.gguf().into(), "short").unwrap();
    target.set_draft_model(&draft, cheap(), |_, _| {}).unwrap();
    let prompt = prompt(3, 50);
    for strategy in strategies() {
        let options = || GenerateOptions { max_tokens: 40, ignore_eos: true, ..GenerateOptions::default() };
        let expected = common::run(&target, plain(), Vec::new(), &prompt, options());
        let session = SessionOptions { history: false, ..SessionOptions::default() };
        let mut session = start(&target, strategy, session).unwrap();
        session.append_tokens(&prompt).unwrap();
        let run = run_in(&mut session, options(), usize::MAX);
        run.assert_equal(&expected, &strategy.to_string());
        let computed = run.stats.sources.last().unwrap().computed.as_ref().unwrap();
        let off = computed.off.as_ref().expect("a reason");
        assert!(off.contains("context of 64") && computed.passes > 0, "{strategy}: {off}");
    }
}
