//! Jobs: taking turns, cancelling, dropping, panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread;

use refrain::{LogitsProcessor, ProcessorError, TokenId};
use refrain_assistant::{
    Answer, AnswerRequest, Assistant, Job, JobEvent, JobOptions, Priority, SummarizeRequest, TaskError,
};

use crate::support::Place;

const QUESTIONS: [&str; 8] = [
    "Who comes along on the trip to Aniarda?",
    "How much of the Preambon project is done?",
    "Who is the assistant of Geastra Krepiaberg?",
    "When is the appointment with Gynel Dirdale?",
    "What was decided in the call with Sumbon Group?",
    "What is the Joaldiago recipe?",
    "Where is the party of Stiafin Nornini?",
    "Which project is Kraigoundon?",
];

fn ask(assistant: &Assistant, question: &str, priority: Priority) -> Job<Answer> {
    let mut options = JobOptions::default();
    options.priority = priority;
    assistant.answer(AnswerRequest::new(question), options).expect("starts")
}

/// A processor of an app that panics at its first call.
struct Panics;

impl LogitsProcessor for Panics {
    fn process(&mut self, _tokens: &[TokenId], _logits: &mut [f32]) -> Result<(), ProcessorError> {
        panic!("the app's processor");
    }
}

fn is_send_and_static<T: Send + 'static>(_: &T) {}

#[test]
fn eight_jobs_at_once_equal_each_alone() {
    let place = Place::with_samples();
    let assistant = place.with_store();
    let alone: Vec<String> = QUESTIONS
        .iter()
        .map(|question| {
            let fresh = Place::with_samples();
            ask(&fresh.assistant(), question, Priority::Interactive).run().unwrap().text
        })
        .collect();
    let barrier = Barrier::new(QUESTIONS.len());
    let together: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = QUESTIONS
            .iter()
            .enumerate()
            .map(|(at, question)| {
                let priority = if at % 3 == 0 { Priority::Background } else { Priority::Interactive };
                let job = ask(&assistant, question, priority);
                is_send_and_static(&job);
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    job.run().unwrap().text
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
}

#[test]
fn jobs_of_one_thread_can_be_driven_in_turns() {
    let place = Place::with_samples();
    let assistant = place.assistant();
    let alone = ask(&assistant, QUESTIONS[0], Priority::Interactive).run().unwrap().text;
    let mut jobs: Vec<_> = (0..3).map(|_| ask(&assistant, QUESTIONS[0], Priority::Background)).collect();
    let mut texts = Vec::new();
    while texts.len() < jobs.len() {
        for job in &mut jobs {
            if let Some(JobEvent::Done(answer)) = job.next().map(Result::unwrap) {
                texts.push(answer.text);
            }
        }
    }
    assert!(texts.iter().all(|text| *text == alone), "{texts:?}");
}

#[test]
fn a_cancelled_or_dropped_job_leaves_everything_usable() {
    let place = Place::with_samples();
    let assistant = place.with_store();
    let whole = ask(&assistant, QUESTIONS[0], Priority::Interactive).run().unwrap().text;
    for n_events in 0..6 {
        let mut job = ask(&assistant, QUESTIONS[0], Priority::Interactive);
        let taken: Vec<_> = job.by_ref().take(n_events).map(Result::unwrap).collect();
        let cancel = job.cancel_token();
        if n_events % 2 == 0 {
            cancel.cancel();
            // What was searched for is known before anything is computed.
            let last = job.find(|event| !matches!(event, Ok(JobEvent::Searched(_))));
            assert!(matches!(last, Some(Err(TaskError::Cancelled))), "after {taken:?}");
            assert!(job.next().is_none());
        }
        drop(job);
        cancel.cancel();
    }
    assert_eq!(ask(&assistant, QUESTIONS[0], Priority::Interactive).run().unwrap().text, whole);
}

#[test]
fn a_job_that_waits_for_its_turn_can_be_cancelled() {
    let place = Place::with_samples();
    let assistant = place.assistant();
    let job = ask(&assistant, QUESTIONS[0], Priority::Background);
    let cancel = job.cancel_token();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| job.run());
        cancel.cancel();
        // The job may have run to its end before.
        let ended = waiting.join().unwrap();
        assert!(matches!(ended, Ok(_) | Err(TaskError::Cancelled)), "{ended:?}");
    });
}

#[test]
fn a_panic_of_the_app_unwinds_and_ends_its_job_alone() {
    let place = Place::with_samples();
    let assistant = place.with_store();
    let mut options = JobOptions::default();
    options.processors = vec![Box::new(Panics) as Box<dyn LogitsProcessor>];
    let mut job = assistant.answer(AnswerRequest::new(QUESTIONS[0]), options).unwrap();
    let mut other = ask(&assistant, QUESTIONS[1], Priority::Background);
    other.next();
    let panicked = catch_unwind(AssertUnwindSafe(|| job.by_ref().count()));
    assert!(panicked.is_err());
    assert!(job.next().is_none());
    drop(job);
    assert!(other.run().is_ok());
    assert!(ask(&assistant, QUESTIONS[0], Priority::Interactive).run().is_ok());
}

#[test]
fn background_work_of_many_prompts_gives_way() {
    let place = Place::with_samples();
    let assistant = place.assistant();
    let text = "The trip starts at nine o'clock and costs ten euros.\n\n".repeat(300);
    let mut background = JobOptions::default();
    background.priority = Priority::Background;
    let mut long = assistant.summarize(SummarizeRequest::text("Trips", text.as_str()), background).unwrap();
    long.next();
    let answer = thread::scope(|scope| {
        let working = scope.spawn(move || long.run().unwrap());
        let answer = ask(&assistant, QUESTIONS[0], Priority::Interactive).run().unwrap();
        working.join().unwrap();
        answer
    });
    assert!(!answer.text.is_empty());
}
