//! Learnt values pass from generation to generation, also concurrent ones, and from run to run.

use std::fs;

use refrain::drafting::DraftPolicy;
use refrain::internals::draft::CostProfile;
use refrain::internals::error::LearnedError;
use refrain::{Engine, EngineOptions, GenerateOptions, Session, SessionOptions};

use crate::common::{Tiny, prompt};

/// The costs of steps are measured and learnt, so drafts depend on a clock.
fn timed_engine(tiny: Tiny) -> Engine {
    let cost_profile = Some(CostProfile::from_measurements(&[(1, 100.0), (32, 110.0)]));
    tiny.engine_with(EngineOptions { cost_profile, ..tiny.options() })
}

fn session(engine: &Engine, seed: u64) -> Session {
    // Whether a draft is paid for depends on the clock.
    let policy = DraftPolicy { stake: None, ..DraftPolicy::default() };
    let options = SessionOptions { history: false, policy, ..SessionOptions::default() };
    let mut session = engine.session(options).unwrap();
    session.append_tokens(&prompt(seed, 60)).unwrap();
    session
}

fn options() -> GenerateOptions {
    GenerateOptions { max_tokens: 40, ignore_eos: true, ..GenerateOptions::default() }
}

fn run(engine: &Engine, seed: u64) {
    session(engine, seed).generate(options()).unwrap().for_each(|event| drop(event.unwrap()));
}

fn evidence(engine: &Engine) -> String {
    format!("{:?}", engine.learned().get().reliability())
}

#[test]
fn of_two_generations_at_a_time_both_count() {
    let alone = [3, 5].map(|seed| {
        let engine = Tiny::default().engine(1);
        run(&engine, seed);
        evidence(&engine)
    });
    let fresh = evidence(&Tiny::default().engine(1));
    assert!(alone[0] != fresh && alone[1] != fresh && alone[0] != alone[1]);

    let engine = Tiny::default().engine(1);
    let mut long = session(&engine, 3);
    let mut generation = long.generate(options()).unwrap();
    generation.next().unwrap().unwrap();
    run(&engine, 5);
    assert_eq!(evidence(&engine), alone[1], "the one that has ended");
    generation.by_ref().for_each(|event| drop(event.unwrap()));
    let both = evidence(&engine);
    assert!(both != alone[0] && both != alone[1], "the later one does not replace it");
}

#[test]
fn another_run_goes_on_with_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.learned");
    let first = timed_engine(Tiny::default());
    let base = first.learned().get();
    run(&first, 3);
    first.learned().save(&path).unwrap();

    let second = timed_engine(Tiny::default());
    assert!(second.learned().load(&path).unwrap());
    assert_eq!(second.learned().get().reliability().source_names().count(), 2, "context and resume");
    for rows in [1, 8, 32] {
        let us = |engine: &Engine| engine.learned().get().costs().verify_us(rows, 1);
        assert_eq!(us(&second), us(&first));
    }
    // The evidence that a second process adds to the file of the first.
    let written = fs::read(&path).unwrap();
    let other = timed_engine(Tiny::default());
    run(&other, 5);
    other.learned().merge_into(&path, &base).unwrap();
    assert_ne!(fs::read(&path).unwrap(), written);

    let other_model = timed_engine(Tiny { seed: 9, ..Tiny::default() });
    let before = evidence(&other_model);
    let refused = other_model.learned().load(&path).unwrap_err();
    assert!(matches!(refused.detail(), Some(LearnedError::OtherModel { .. })));
    fs::write(&path, "{}").unwrap();
    let refused = second.learned().load(&path).unwrap_err();
    assert!(matches!(refused.detail(), Some(LearnedError::NotLearned { .. })));
    let refused = other.learned().merge_into(&path, &base).unwrap_err();
    assert!(matches!(refused.detail(), Some(LearnedError::NotLearned { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"{}", "a file that is not understood is left as it is");
    assert_eq!(evidence(&other_model), before);
}
