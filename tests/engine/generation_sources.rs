//! Draft sources of one generation: they draft in it, change nothing of its output, and leave with it.

use refrain::drafting::DraftSource;
use refrain::internals::draft::testing::{AlwaysRight, AlwaysWrong};
use refrain::internals::error::SessionProblem;
use refrain::{Drafting, GenerateOptions, SessionOptions, TokenId};

use crate::common::{Tiny, plain, prompt, run, run_in};

const MAX_TOKENS: usize = 20;

fn options(sources: Vec<Box<dyn DraftSource>>) -> GenerateOptions {
    GenerateOptions { max_tokens: MAX_TOKENS, ignore_eos: true, sources, ..GenerateOptions::default() }
}

fn right(prompt_len: usize, known: &[TokenId]) -> Vec<Box<dyn DraftSource>> {
    vec![Box::new(AlwaysRight::new(prompt_len, known.to_vec()))]
}

fn own_sources() -> SessionOptions {
    SessionOptions { drafting: Drafting::OwnSources, history: false, ..SessionOptions::default() }
}

#[test]
fn they_draft_in_their_generation_only() {
    let engine = Tiny::default().engine(2);
    let prompt = prompt(1, 40);
    let reference = run(&engine, plain(), Vec::new(), &prompt, options(Vec::new()));
    let mut session = engine.session(own_sources()).unwrap();
    session.add_source(Box::new(AlwaysWrong::new(prompt.len(), reference.tokens.clone()))).unwrap();
    session.append_tokens(&prompt).unwrap();

    let with = run_in(&mut session, options(right(prompt.len(), &reference.tokens)), usize::MAX);
    with.assert_equal(&reference, "with a source of the generation");
    let names: Vec<&str> = with.stats.sources.iter().map(|source| source.name.as_str()).collect();
    assert_eq!(names, ["always_wrong", "always_right"]);
    assert!(with.stats.steps < MAX_TOKENS / 2, "{:?}", with.stats);
    assert_eq!(session.source_names(), ["always_wrong"]);
    assert_eq!(session.fork().unwrap().source_names(), ["always_wrong"]);

    session.truncate(prompt.len()).unwrap();
    let without = run_in(&mut session, options(Vec::new()), usize::MAX);
    without.assert_equal(&reference, "without");
    assert_eq!(without.stats.sources.len(), 1);
}

#[test]
fn they_are_not_called_by_plain_decoding() {
    let engine = Tiny::default().engine(1);
    let prompt = prompt(2, 30);
    let reference = run(&engine, plain(), Vec::new(), &prompt, options(Vec::new()));
    let with = run(&engine, plain(), Vec::new(), &prompt, options(right(prompt.len(), &reference.tokens)));
    with.assert_equal(&reference, "plain");
    assert!(with.stats.sources.is_empty() && with.stats.steps == MAX_TOKENS);
}

#[test]
fn they_leave_with_a_generation_that_is_dropped_or_leaked() {
    let engine = Tiny::default().engine(1);
    let prompt = prompt(3, 30);
    let known = run(&engine, plain(), Vec::new(), &prompt, options(Vec::new())).tokens;
    let mut session = engine.session(own_sources()).unwrap();
    session.append_tokens(&prompt).unwrap();
    let mut generation = session.generate(options(right(prompt.len(), &known))).unwrap();
    generation.next().unwrap().unwrap();
    drop(generation);
    assert!(session.source_names().is_empty());
    session.truncate(prompt.len()).unwrap();

    let mut generation = session.generate(options(right(prompt.len(), &known))).unwrap();
    generation.next().unwrap().unwrap();
    std::mem::forget(generation);
    assert!(session.source_names().is_empty());
    assert!(session.fork().unwrap().source_names().is_empty());
    // The name is free again.
    session.truncate(prompt.len()).unwrap();
    let next = run_in(&mut session, options(right(prompt.len(), &known)), usize::MAX);
    assert_eq!(next.tokens, known);
    assert_eq!(next.stats.sources.len(), 1);
}

#[test]
fn a_name_that_is_taken_is_refused_before_anything_starts() {
    let engine = Tiny::default().engine(1);
    let prompt = prompt(4, 30);
    let known = run(&engine, plain(), Vec::new(), &prompt, options(Vec::new())).tokens;
    let mut session = engine.session(own_sources()).unwrap();
    session.add_source(Box::new(AlwaysRight::new(prompt.len(), known.clone()))).unwrap();
    session.append_tokens(&prompt).unwrap();
    let twice = [right(prompt.len(), &known), right(prompt.len(), &known)].into_iter().flatten().collect();
    for sources in [right(prompt.len(), &known), twice] {
        let refused = session.generate(options(sources)).unwrap_err();
        assert!(matches!(refused.detail(), Some(SessionProblem::DuplicateSource { .. })), "{refused:?}");
        assert_eq!(session.source_names(), ["always_right"]);
    }
    assert_eq!(run_in(&mut session, options(Vec::new()), usize::MAX).tokens, known);
}
