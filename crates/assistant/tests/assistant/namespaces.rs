//! Nothing of one namespace reaches another.

use refrain_assistant::{
    AnswerRequest, Assistant, BuildError, JobOptions, NAMESPACE_BYTES_MAX, SummarizeRequest,
};

use crate::support::Place;

const QUESTION: &str = "Who comes along on the trip to Aniarda?";

/// Tokens restored, and tokens drafted from answers and summaries.
fn ask(assistant: &Assistant) -> (usize, usize) {
    let answer =
        assistant.answer(AnswerRequest::new(QUESTION), JobOptions::default()).unwrap().run().unwrap();
    let stats = &answer.report.stats[0];
    let from_answers = stats.sources.iter().filter(|source| source.name.as_str().contains("history"));
    (stats.cached_tokens, from_answers.map(|source| source.drafted).sum())
}

fn check(assistant: &Assistant, restores: bool) {
    assert_eq!(ask(assistant), (0, 0));
    let (restored, drafted) = ask(assistant);
    assert!((restored > 0) == restores && drafted > 0, "{restored} {drafted}");
    let text = "The trip begins at 7 pm and ends on Saturday.";
    let request = || SummarizeRequest::text("Trip", text).with_id("1");
    let summarize = |assistant: &Assistant| {
        assistant.summarize(request(), JobOptions::default()).unwrap().run().unwrap().previous
    };
    summarize(assistant);
    assert_eq!(summarize(assistant).is_some(), restores);
    // Names that contain a task's, or are parts of another.
    for name in ["other", "default.answer", "defaul", "default."] {
        let other = assistant.in_namespace(name).unwrap();
        assert_eq!(ask(&other), (0, 0), "{name}");
        assert_eq!(summarize(&other), None);
    }
}

#[test]
fn in_a_store() {
    check(&Place::with_samples().with_store(), true);
}

#[test]
fn in_memory() {
    check(&Place::with_samples().assistant(), false);
}

#[test]
fn what_is_not_kept_is_not_there_later() {
    let place = Place::with_samples();
    let assistant = place.with_store();
    for _ in 0..2 {
        let mut private = JobOptions::default();
        private.keep = false;
        let answer = assistant.answer(AnswerRequest::new(QUESTION), private).unwrap().run().unwrap();
        assert_eq!(answer.report.stats[0].cached_tokens, 0);
    }
    assert_eq!(ask(&assistant), (0, 0));
}

#[test]
fn names_are_checked() {
    let assistant = Place::with_samples().assistant();
    for name in ["", &"a".repeat(NAMESPACE_BYTES_MAX + 1)] {
        assert!(matches!(assistant.in_namespace(name), Err(BuildError::Namespace { .. })));
    }
    assert!(assistant.in_namespace(&"ä".repeat(NAMESPACE_BYTES_MAX / 2)).is_ok());
}
