//! Published drafting rules in the engine: they draft, and the output is that of plain decoding.

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::drafting::EvidenceClass;
use refrain::internals::draft::CostProfile;
use refrain::internals::error::SessionProblem;
use refrain::{Engine, GenerateOptions, SessionOptions, TokenId};
use refrain_bench::Strategy;
use refrain_bench::rules::{Baseline, ModelRule};

use crate::common::{Run, Tiny, plain, prompt, run, run_in};

/// A run over `prompt` in a session with the drafting of a rule.
fn run_rule(
    engine: &Engine,
    rule: Strategy,
    options: SessionOptions,
    prompt: &[TokenId],
    generate: GenerateOptions,
) -> Run {
    let options = SessionOptions { drafting: rule.drafting(), ..options };
    let mut session = engine.session(options.clone()).unwrap();
    rule.add_rule(engine, &mut session, &options).unwrap();
    session.append_tokens(prompt).unwrap();
    run_in(&mut session, generate, usize::MAX)
}

/// A tiny target, and a tiny draft model with the same vocabulary.
fn tiny_pair() -> Engine {
    let engine = Tiny::default().engine(1);
    let draft = Tiny { seed: 2, ..Tiny::default() };
    let draft = Checkpoint::from_gguf_bytes(draft.gguf().into(), "draft").unwrap();
    let cost_profile = Some(CostProfile::free_rows(0.01));
    let options = DraftModelOptions { cost_profile, ..DraftModelOptions::default() };
    engine.set_draft_model(&draft, options, |_, _| {}).unwrap();
    engine
}

#[test]
fn every_rule_drafts_and_changes_nothing() {
    let engine = Tiny::default().engine(2);
    let prompt = prompt(3, 120);
    let options = || GenerateOptions { max_tokens: 60, ignore_eos: true, ..GenerateOptions::default() };
    let expected = run(&engine, plain(), Vec::new(), &prompt, options());
    for baseline in Baseline::ALL {
        let rule = Strategy::Baseline(baseline);
        let run = run_rule(&engine, rule, SessionOptions::default(), &prompt, options());
        assert_eq!(run.tokens, expected.tokens, "{baseline}");
        let [source] = run.stats.sources.as_slice() else { panic!("{baseline}: {:?}", run.stats.sources) };
        assert_eq!((source.name.as_str(), source.evidence), (baseline.name(), EvidenceClass::Plain));
        assert!(baseline == Baseline::Sam || source.drafted > 0, "{baseline} drafted nothing");
    }
}

/// A batch of one row has no room for a draft, and the rule keeps no successors for one.
#[test]
fn a_rule_with_one_row_drafts_nothing_and_keeps_nothing() {
    let engine = tiny_pair();
    let prompt = prompt(5, 40);
    let options = || GenerateOptions { max_tokens: 12, ignore_eos: true, ..GenerateOptions::default() };
    let expected = run(&engine, plain(), Vec::new(), &prompt, options());
    for rule in ModelRule::ALL {
        let session = SessionOptions { verify_rows_max: 1, ..SessionOptions::default() };
        let run = run_rule(&engine, Strategy::ModelRule(rule), session, &prompt, options());
        run.assert_equal(&expected, &rule.to_string());
        assert_eq!(run.stats.sources[0].drafted, 0, "{rule}");
    }
}

#[test]
fn a_session_takes_a_rule_once() {
    let engine = Tiny::default().engine(1);
    let rule = Strategy::Baseline(Baseline::Pld);
    let options = SessionOptions { drafting: rule.drafting(), ..SessionOptions::default() };
    let mut session = engine.session(options.clone()).unwrap();
    rule.add_rule(&engine, &mut session, &options).unwrap();
    let again = rule.add_rule(&engine, &mut session, &options);
    let error = again.unwrap_err();
    assert!(matches!(error.detail(), Some(SessionProblem::DuplicateSource { name }) if *name == "pld"));
    assert_eq!(session.source_names(), ["pld"]);
}
