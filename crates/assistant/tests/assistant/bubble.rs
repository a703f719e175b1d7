//! What a chat bubble shows, sentences as they are complete, and jobs in asynchronous code.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use refrain::TextKind;
use refrain_assistant::provenance::SentenceReady;
use refrain_assistant::{
    AnswerRequest, Assistant, Bubble, JobEvent, JobOptions, Passage, Prefetch, Prompts, SummarizeRequest,
    TaskError, Template, WriteRequest,
};
use refrain_index::Locator;

use crate::support::{Place, changed, engine, options};

const QUESTION: &str = "Who comes along on the trip to Aniarda?";

fn ask(assistant: &Assistant) -> Bubble {
    assistant.ask(AnswerRequest::new(QUESTION), JobOptions::default()).unwrap().run().unwrap()
}

#[test]
fn one_call_gives_text_sources_support_and_what_was_left_out() {
    let place = Place::with_samples();
    // The fixture model has not learnt to cite; its own prompt shows the rest.
    let mut prompts = Prompts::default();
    prompts.cited_answer = prompts.answer.clone();
    let assistant = place.builder().prompts(prompts).build().unwrap();
    let bubble = ask(&assistant);
    let answer =
        place.assistant().answer(AnswerRequest::new(QUESTION), JobOptions::default()).unwrap().run().unwrap();
    assert_eq!((&bubble.text, &bubble.copied), (&answer.text, &answer.provenance.copied));
    assert_eq!(bubble.sentences, answer.provenance.sentences);
    assert_eq!(bubble.sources.len(), answer.passages.len());
    for (number, (source, passage)) in (1..).zip(bubble.sources.iter().zip(&answer.passages)) {
        let from = passage.source.as_ref().unwrap();
        assert_eq!((source.number, &source.title, &source.text), (number, &passage.title, &passage.text));
        assert_eq!((source.path.as_deref(), source.locator), (Some(&*from.path), from.locator));
        assert!(matches!(source.locator, Some(Locator::Line(_))), "{source:?}");
        let supports = |index: usize| bubble.sentences[index].support.passage() == Some(number - 1);
        assert!(source.supports.iter().all(|&index| supports(index)));
    }
    let n_supported: usize = bubble.sources.iter().map(|source| source.supports.len()).sum();
    let supports = answer.provenance.sentences.iter().filter_map(|sentence| sentence.support.passage());
    assert!(n_supported > 0 && n_supported == supports.count(), "{:?}", bubble.sentences);
    let missing = answer.provenance.sentences.iter().filter(|sentence| sentence.support.is_missing());
    assert_eq!(bubble.unsupported().count(), missing.count());
    assert_eq!((bubble.is_cut, &bubble.left_out), (false, &answer.report.left_out));
}

#[test]
fn citations_are_on_by_default_and_marked_where_they_hold() {
    let place = Place::with_samples();
    let bubble = ask(&place.assistant());
    let cited = changed(Prompts::default(), |it| it.answer = Template::cited_answer());
    let answer = place.builder().prompts(cited).build().unwrap();
    let answer = answer.answer(AnswerRequest::new(QUESTION), JobOptions::default()).unwrap().run().unwrap();
    assert_eq!(bubble.text, answer.text, "the prompt numbers the passages");
    // A model that repeats what it is shown cites the passage of that number.
    let assistant = Assistant::builder(engine()).options(options()).build().unwrap();
    let texts = ["The pump had stopped during the night.", "The plumber comes on 14 October."];
    let mut request = WriteRequest::new("Go on.");
    request.passages = texts.map(|text| Passage::new("Pump", text)).into();
    let mut answer = assistant.write(request, JobOptions::default()).unwrap().run().unwrap();
    answer.text = "The plumber comes on 14 October [2]. The pump costs a fortune [1].".to_owned();
    let shown = answer.passages.iter().map(|passage| refrain_assistant::provenance::Shown {
        document: "pump",
        at: None,
        text: &passage.text,
    });
    let shown: Vec<_> = shown.collect();
    let sentences = refrain_assistant::provenance::check_citations(&answer.text, &shown, &[]);
    answer.provenance.sentences = sentences;
    let bubble = Bubble::from(answer);
    let cited: Vec<bool> = bubble.sources.iter().map(|source| source.is_cited).collect();
    assert_eq!((cited, bubble.unsupported().collect::<Vec<_>>()), (vec![false, true], vec![1]));
    assert_eq!((&bubble.sources[1].supports, bubble.sources[1].path.as_deref()), (&vec![0], None));
}

#[test]
fn the_prompt_of_a_bubble_is_prefetched() {
    let place = Place::with_samples();
    let assistant = place.with_store();
    let passages = Some(vec![Passage::new("Trip", "The trip to Aniarda begins on Saturday. ".repeat(12))]);
    let request = |question: &str| changed(AnswerRequest::new(question), |it| it.passages = passages.clone());
    assistant.prefetch(Prefetch::Ask(request("")), JobOptions::default()).unwrap().run().unwrap();
    let bubble = assistant.ask(request("When does it begin?"), JobOptions::default()).unwrap().run().unwrap();
    assert!(bubble.report.stats[0].cached_tokens > 100, "{:?}", bubble.report.stats[0]);
}

#[test]
fn each_sentence_is_announced_once_it_is_complete() {
    let place = Place::with_samples();
    let assistant = place.assistant();
    let request = || SummarizeRequest::notes([place.notes()]);
    let mut job = assistant.summarize(request(), JobOptions::default()).unwrap();
    job.announce_sentences();
    let (mut text, mut ready, mut summary) = (String::new(), Vec::<SentenceReady>::new(), None);
    for event in job {
        match event.unwrap() {
            JobEvent::Text(event) if event.kind == TextKind::Answer => text.push_str(&event.text),
            JobEvent::Sentence(sentence) => {
                assert!(sentence.place.end <= text.len(), "of a text that is not there yet");
                ready.push(sentence);
            }
            JobEvent::Done(done) => summary = Some(done.text),
            _ => {}
        }
    }
    assert_eq!(summary.as_deref(), Some(&*text));
    let expected = refrain_assistant::provenance::sentences(&text);
    assert_eq!(ready.iter().map(|ready| ready.place.clone()).collect::<Vec<_>>(), expected);
    assert_eq!(
        ready.iter().map(|ready| ready.index).collect::<Vec<_>>(),
        (0..expected.len()).collect::<Vec<_>>()
    );
    // Without the call there are none.
    let mut job = assistant.summarize(request(), JobOptions::default()).unwrap();
    assert!(job.all(|event| !matches!(event.unwrap(), JobEvent::Sentence(_))));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Awaits a future on this thread, as an executor does.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_job_is_awaited_without_a_runtime() {
    let place = Place::with_samples();
    let assistant = place.assistant();
    let answer = || assistant.answer(AnswerRequest::new(QUESTION), JobOptions::default()).unwrap();
    let expected = answer().run().unwrap().text;
    let mut stream = answer().into_stream().unwrap();
    let text = block_on(async {
        let (mut streamed, mut text) = (String::new(), None);
        while let Some(event) = stream.next_event().await {
            match event.unwrap() {
                JobEvent::Text(event) => streamed.push_str(&event.text),
                JobEvent::Done(answer) => text = Some(answer.text),
                _ => {}
            }
        }
        assert_eq!(text.as_ref(), Some(&streamed));
        text
    });
    assert_eq!(text, Some(expected));
    assert!(block_on(stream.next_event()).is_none(), "an ended stream stays so");

    // Cancelled and dropped: other jobs go on.
    let mut stream = answer().into_stream().unwrap();
    assert!(block_on(stream.next_event()).unwrap().is_ok());
    stream.cancel_token().cancel();
    let last = std::iter::from_fn(|| block_on(stream.next_event())).last();
    assert!(matches!(last, None | Some(Err(TaskError::Cancelled))), "{last:?}");
    drop(answer().into_stream().unwrap());
    answer().run().unwrap();
}
