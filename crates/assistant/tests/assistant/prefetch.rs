//! Prompts that are computed before they are asked.

use std::path::Path;

use refrain::{Engine, EngineOptions};
use refrain_assistant::{
    AnswerRequest, Assistant, ChatRequest, Forget, JobEvent, JobOptions, KeptPrompts, Passage, Prefetch,
    StoredKind, SummarizeRequest, TaskError, store_status,
};

use crate::support::{self, Place, changed, options};

#[test]
fn a_prefetched_prompt_is_restored_and_gives_the_same_answer() {
    let place = Place::with_samples();
    let assistant = place.with_store();
    let passages =
        vec![Passage::new("Trip", "The trip to Aniarda begins on Saturday. Ada comes along. ".repeat(12))];
    let request =
        |question: &str| changed(AnswerRequest::new(question), |it| it.passages = Some(passages.clone()));
    let mut progress = Vec::new();
    let job = assistant.prefetch(Prefetch::Answer(request("")), JobOptions::default()).unwrap();
    let fetched = job.run_with(|event| {
        if let JobEvent::Prefill { done, total } = event {
            progress.push((*done, *total));
        }
    });
    let fetched = fetched.unwrap();
    assert!(
        fetched.n_kept > 100 && progress.last().is_some_and(|(done, total)| done == total),
        "{fetched:?}"
    );
    let question = "When does the trip begin?";
    let answer = assistant.answer(request(question), JobOptions::default()).unwrap().run().unwrap();
    let stats = &answer.report.stats[0];
    assert!(stats.cached_tokens > 100 && stats.prefilled_tokens < 30, "{stats:?}");
    let plain = Place::with_samples().assistant();
    assert_eq!(
        answer.text,
        plain.answer(request(question), JobOptions::default()).unwrap().run().unwrap().text
    );
}

#[test]
fn a_store_above_its_budget_evicts_prompts_and_says_how_much() {
    let place = Place::with_samples();
    let assistant = place.with_store();
    let passages = vec![Passage::new("Trip", "The trip to Aniarda begins on Saturday. ".repeat(12))];
    let request = || {
        let mut request = AnswerRequest::new("When does the trip begin?");
        request.passages = Some(passages.clone());
        request
    };
    let answer = assistant.answer(request(), JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(assistant.evicted_bytes(), 0);
    drop(assistant);
    let bytes = || {
        let status = store_status(&place.path("store"), None, []).unwrap();
        let of = |kind| status.kinds.iter().find(|status| status.kind == kind).unwrap().bytes;
        (of(StoredKind::Prefixes), of(StoredKind::Answers))
    };
    let (before, answers) = bytes();
    assert!(before > 100_000 && answers > 0, "{before}");
    // Less than one prompt takes.
    let mut options = support::options();
    options.prefix_bytes_max = before / 2;
    let smaller =
        Assistant::builder(support::engine()).options(options).store(place.path("store")).build().unwrap();
    assert!(smaller.evicted_bytes() >= before / 2, "{} of {before}", smaller.evicted_bytes());
    let again = smaller.answer(request(), JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(again.text, answer.text);
    drop(smaller);
    assert!(bytes().0 <= before / 2 && bytes().1 >= answers, "answers stay");
}

/// The state of recurrent layers is kept where the question begins.
#[test]
fn a_prompt_of_a_recurrent_model_is_prefetched_up_to_the_question() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/lfm2");
    let engine = Engine::open(model, EngineOptions { n_threads: Some(1), ..EngineOptions::default() })
        .expect("the golden model");
    let place = Place::new();
    let builder = || Assistant::builder(engine.clone()).options(support::options());
    let assistant = builder().store(place.path("store")).build().expect("builds");
    let plain = builder().build().expect("builds");
    let passages = vec![Passage::new("Trip", "The trip begins on Saturday. ".repeat(12))];
    let request =
        |question: &str| changed(AnswerRequest::new(question), |it| it.passages = Some(passages.clone()));
    assistant.prefetch(Prefetch::Answer(request("")), JobOptions::default()).unwrap().run().unwrap();
    for (question, again) in
        [("When does it begin?", false), ("Who comes along?", false), ("Who comes along?", true)]
    {
        let answer =
            |of: &Assistant| of.answer(request(question), JobOptions::default()).unwrap().run().unwrap();
        let answered = answer(&assistant);
        assert_eq!(answered.text, answer(&plain).text);
        let stats = &answered.report.stats[0];
        let (min, max) = if again { (0, 1) } else { (question.len() / 2, 120) };
        assert!(
            stats.cached_tokens > 200 && (min..max).contains(&stats.prefilled_tokens),
            "{question}: {stats:?}"
        );
    }
}

#[test]
fn a_cancelled_prefetch_keeps_nothing_and_a_summary_can_be_prefetched() {
    let place = Place::with_samples();
    let assistant = place.with_store();
    let request = || SummarizeRequest::notes([place.notes()]);
    let mut job = assistant.prefetch(Prefetch::Summarize(request()), JobOptions::default()).unwrap();
    assert!(matches!(job.next(), Some(Ok(JobEvent::Prefill { .. }))));
    job.cancel_token().cancel();
    assert!(matches!(job.last(), Some(Err(TaskError::Cancelled))));
    let first = |assistant: &refrain_assistant::Assistant| {
        assistant
            .summarize(request(), changed(JobOptions::default(), |it| it.keep = false))
            .unwrap()
            .run()
            .unwrap()
    };
    let before = first(&assistant);
    assert_eq!(before.report.stats[0].cached_tokens, 0);
    assistant.prefetch(Prefetch::Summarize(request()), JobOptions::default()).unwrap().run().unwrap();
    let after = first(&assistant);
    assert!(after.report.stats[0].prefilled_tokens < 2, "{:?}", after.report.stats[0]);
    assert_eq!(after.text, before.text);
    let without = place.assistant().prefetch(Prefetch::Summarize(request()), JobOptions::default());
    assert!(matches!(without, Err(TaskError::NoStore)));
}

/// By default, a prompt that comes once takes no room in the store: what a second one begins with too is kept, and turns of conversations.
#[test]
fn prompts_are_kept_when_they_come_again() {
    let place = Place::with_samples();
    let options = changed(options(), |it| it.keeps_prompts = KeptPrompts::default());
    let assistant = place.builder().store(place.path("store")).options(options).build().unwrap();
    let blocks = || {
        let folders =
            std::fs::read_dir(place.path("store/prefixes")).unwrap().flatten().map(|entry| entry.path());
        let below =
            folders.filter(|path| path.is_dir()).flat_map(|path| std::fs::read_dir(path).unwrap().flatten());
        let files = below.flat_map(|folder| std::fs::read_dir(folder.path()).unwrap().flatten());
        files.filter(|file| file.file_name() != "seen" && file.metadata().unwrap().len() > 0).count()
    };
    let ask = || {
        let request = AnswerRequest::new("Who repairs the roof?");
        assistant.answer(request, JobOptions::default()).unwrap().run().unwrap()
    };
    let first = ask();
    assert_eq!((blocks(), first.report.stats[0].cached_tokens), (0, 0));
    let (second, third) = (ask(), ask());
    assert!(blocks() > 0 && second.report.stats[0].cached_tokens == 0);
    assert!(third.report.stats[0].prefilled_tokens == 0 && third.report.stats[0].cached_tokens > 100);
    assert_eq!((&second.text, &third.text), (&first.text, &first.text));
    let note = first.passages[0].source.as_ref().unwrap().path.clone();
    assert!(assistant.forget(Forget::Note(note)).unwrap().n_prefix_blocks > 0);
    let before = blocks();
    let conversation = assistant.conversation();
    let said = conversation.say(ChatRequest::new("Tell me about Ada."), JobOptions::default()).unwrap();
    said.run().unwrap();
    assert!(blocks() > before);
}
