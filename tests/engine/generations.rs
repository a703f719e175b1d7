//! Owned generations, and generations in which a processor or source panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures_core::Stream;

use refrain::drafting::{Anchor, Calibration, Candidates, Cursor, DraftSource, EvidenceClass, StepOutcome};
use refrain::internals::draft::testing::AlwaysRight;
use refrain::internals::error::{GenerateProblem, SessionProblem};
use refrain::{
    CancelToken, Drafting, Event, EventStream, FinishReason, GenerateError, GenerateOptions, LogitsProcessor,
    OwnedGeneration, ProcessorError, Role, SessionOptions, TokenId,
};

use crate::common::{Tiny, drafted, known, options, plain, prompt, run_in};

fn token(item: Option<Result<Event, GenerateError>>) -> TokenId {
    match item {
        Some(Ok(Event::Token(token))) => token.id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_owned_generation_is_sent_stored_and_gives_its_session_back() {
    fn assert_owned<T: Send + 'static>(_: &T) {}
    struct Screen {
        answer: Option<OwnedGeneration>,
    }
    let engine = Tiny::default().engine(2);
    let prompt = prompt(1, 40);
    let expected = known(&engine, &prompt, 30);
    let generation = OwnedGeneration::new(drafted(&engine, &prompt, &expected), options(20)).unwrap();
    assert_owned(&generation);
    let mut screen = Screen { answer: Some(generation) };
    let first = token(screen.answer.as_mut().unwrap().next());
    let worker = thread::spawn(move || {
        let mut tokens = vec![first];
        let mut generation = screen.answer.take().unwrap();
        for item in &mut generation {
            match item.unwrap() {
                Event::Token(token) => tokens.push(token.id),
                Event::Done(summary) => assert_eq!(summary.finish, FinishReason::MaxTokens),
                other => panic!("{other:?}"),
            }
        }
        (tokens, generation.into_session())
    });
    let (tokens, mut session) = worker.join().unwrap();
    assert_eq!(tokens, expected[..20]);
    assert_eq!(session.tokens()[prompt.len()..], expected[..20]);
    assert_eq!(run_in(&mut session, options(10), usize::MAX).tokens, expected[20..], "and goes on");
}

#[test]
fn an_owned_generation_that_is_left_early_holds_the_tokens_that_were_taken() {
    let engine = Tiny::default().engine(1);
    let prompt = prompt(2, 40);
    let expected = known(&engine, &prompt, 30);
    for taken in 0..14 {
        let mut generation = OwnedGeneration::new(drafted(&engine, &prompt, &expected), options(30)).unwrap();
        for &id in &expected[..taken] {
            assert_eq!(token(generation.next()), id);
        }
        assert_eq!(generation.stats().tokens, taken);
        let accepted: usize = generation.stats().sources.iter().map(|source| source.accepted).sum();
        assert!(accepted <= taken);
        let mut session = generation.into_session();
        assert_eq!(session.tokens()[prompt.len()..], expected[..taken]);
        assert_eq!(run_in(&mut session, options(30 - taken), usize::MAX).tokens, expected[taken..]);
    }
}

#[test]
fn text_and_statistics_are_those_of_the_tokens_that_were_taken() {
    let engine = Tiny::default().engine(1);
    let prompt = prompt(3, 40);
    let expected = known(&engine, &prompt, 30);
    let mut session = drafted(&engine, &prompt, &expected);
    let mut generation = session.generate(options(30)).unwrap();
    let mut text = String::new();
    assert_eq!((generation.text(), generation.stats().tokens), ("", 0));
    for n in 1..=20 {
        let Some(Ok(Event::Token(token))) = generation.next() else { panic!("a token") };
        text.push_str(&token.text);
        assert_eq!(generation.text(), text);
        let stats = generation.stats();
        assert_eq!(stats.tokens, n);
        assert!(stats.sources[0].accepted <= n && stats.sources[0].accepted <= stats.sources[0].drafted);
    }
}

#[test]
fn a_refused_generation_gives_its_session_back() {
    let engine = Tiny::default().engine(1);
    let session = engine.session(plain()).unwrap();
    let refused = OwnedGeneration::new(session, options(1)).unwrap_err();
    assert!(matches!(refused.error.detail(), Some(GenerateProblem::EmptyPrompt)));
    let mut session = *refused.session;
    session.append_tokens(&prompt(1, 9)).unwrap();
    assert_eq!(run_in(&mut session, options(3), usize::MAX).tokens.len(), 3);
}

#[test]
fn a_cancel_token_stops_its_own_generation_alone() {
    let engine = Tiny::default().engine(1);
    let mut session = engine.session(plain()).unwrap();
    session.append_tokens(&prompt(4, 20)).unwrap();
    let mut first = session.generate(options(50)).unwrap();
    let cancel = first.cancel_token();
    token(first.next());
    cancel.cancel();
    let done = first.find_map(|item| match item.unwrap() {
        Event::Done(summary) => Some(summary.finish),
        _ => None,
    });
    assert_eq!(done, Some(FinishReason::Cancelled));
    drop(first);
    cancel.cancel();
    assert_eq!(run_in(&mut session, options(7), usize::MAX).finish, FinishReason::MaxTokens);
}

/// Panics when the target chooses the token at a position.
struct PanicsAt(usize);

impl LogitsProcessor for PanicsAt {
    fn process(&mut self, tokens: &[TokenId], _: &mut [f32]) -> Result<(), ProcessorError> {
        assert_ne!(tokens.len(), self.0, "as the test wants it");
        Ok(())
    }
}

/// A processor panics at any visited node of the first or a later step: the panic unwinds, the tokens before the step
/// stay, and the session continues with the text of plain decoding.
#[test]
fn a_processor_that_panics_unwinds_and_leaves_a_usable_session() {
    let engine = Tiny::default().engine(2);
    let prompt = prompt(5, 40);
    let expected = known(&engine, &prompt, 30);
    for place in 0..12 {
        let mut session = drafted(&engine, &prompt, &expected);
        let processors: Vec<Box<dyn LogitsProcessor>> = vec![Box::new(PanicsAt(prompt.len() + place))];
        let mut generation = session.generate(GenerateOptions { processors, ..options(30) }).unwrap();
        let mut tokens = Vec::new();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            loop {
                tokens.push(token(generation.next()));
            }
        }));
        assert!(panicked.is_err());
        assert!(generation.next().is_none(), "a generation that panicked has ended");
        drop(generation);
        assert_eq!(tokens, expected[..tokens.len()]);
        assert!(tokens.len() <= place);
        assert_eq!(session.tokens()[prompt.len()..], tokens);
        let rest = run_in(&mut session, options(30 - tokens.len()), usize::MAX);
        assert_eq!(rest.tokens, expected[tokens.len()..]);

        // The same if the panic itself drops the generation.
        let mut session = drafted(&engine, &prompt, &expected);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let processors: Vec<Box<dyn LogitsProcessor>> = vec![Box::new(PanicsAt(prompt.len() + place))];
            run_in(&mut session, GenerateOptions { processors, ..options(30) }, usize::MAX)
        }));
        assert!(panicked.is_err());
        let taken = session.tokens().len() - prompt.len();
        assert_eq!(run_in(&mut session, options(30 - taken), usize::MAX).tokens, expected[taken..]);
    }
}

/// The call in which a [`Fragile`] source panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Prime,
    Anchors,
    Expand,
    Observe,
}

/// A source with right drafts that panics once.
struct Fragile {
    inner: AlwaysRight,
    place: Place,
    calls_left: u32,
    /// Set by a panic and cleared by `reset`: no other call may come between.
    is_broken: bool,
}

impl Fragile {
    fn call(&mut self, place: Place) {
        assert!(!self.is_broken, "{place:?} on a source that has panicked");
        if place == self.place {
            self.calls_left = self.calls_left.wrapping_sub(1);
            if self.calls_left == 0 {
                self.is_broken = true;
                panic!("as the test wants it");
            }
        }
    }
}

impl DraftSource for Fragile {
    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::Plain
    }

    fn name(&self) -> &str {
        "fragile"
    }

    fn prime(&mut self, committed: &[TokenId]) {
        self.call(Place::Prime);
        self.inner.prime(committed);
    }

    fn truncate(&mut self, _len: usize) {
        self.is_broken = false;
        self.inner.truncate(0);
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.call(Place::Anchors);
        self.inner.anchors(committed, out);
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        self.call(Place::Expand);
        self.inner.expand(frontier, out);
    }

    fn observe(&mut self, committed: &[TokenId], step: &StepOutcome<'_>) {
        self.call(Place::Observe);
        self.inner.observe(committed, step);
    }

    fn memory_usage(&self) -> u64 {
        self.inner.memory_usage()
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        self.inner.fork()
    }
}

#[test]
fn a_source_that_panics_unwinds_and_starts_again() {
    let engine = Tiny::default().engine(1);
    let prompt = prompt(6, 40);
    let expected = known(&engine, &prompt, 30);
    for (drafting, calibration) in
        [(Drafting::OwnSources, Calibration::Off), (Drafting::Auto, Calibration::InContext)]
    {
        // Batches of a few rows: the generation takes several steps. With calibration a prefill calls the sources too.
        let base = SessionOptions {
            drafting,
            calibration,
            history: false,
            verify_rows_max: 5,
            ..SessionOptions::default()
        };
        for place in [Place::Prime, Place::Anchors, Place::Expand, Place::Observe] {
            for calls_left in 1..=if place == Place::Prime { 1 } else { 3 } {
                let mut session = engine.session(base.clone()).unwrap();
                session.append_tokens(&prompt).unwrap();
                let inner = AlwaysRight::new(prompt.len(), expected.clone());
                // Adding a source primes it.
                let calls_left = calls_left + u32::from(place == Place::Prime);
                session.add_source(Box::new(Fragile { inner, place, calls_left, is_broken: false })).unwrap();
                let panicked =
                    catch_unwind(AssertUnwindSafe(|| run_in(&mut session, options(30), usize::MAX)));
                assert!(panicked.is_err(), "{place:?}");
                let taken = session.tokens().len() - prompt.len();
                assert_eq!(session.tokens()[prompt.len()..], expected[..taken]);
                let rest = run_in(&mut session, options(30 - taken), usize::MAX);
                assert_eq!(rest.tokens, expected[taken..], "{place:?}");
                let accepted: usize = rest.stats.sources.iter().map(|source| source.accepted).sum();
                assert!(accepted > 0, "{place:?}: the session drafts again");
            }
        }
    }
}

#[test]
fn a_turn_that_does_not_fit_is_not_left_behind() {
    let engine = Tiny::default().engine(1);
    let base = SessionOptions { context_len: Some(60), ..plain() };
    let mut session = engine.session(base.clone()).unwrap();
    session.append_turn(Role::User, "a short one").unwrap();
    run_in(&mut session, options(4), usize::MAX);
    let turns = session.turns().len();
    session.append_turn(Role::User, "far too long ".repeat(20)).unwrap();
    let error = session.generate(options(4)).unwrap_err();
    assert!(matches!(error.detail(), Some(SessionProblem::ContextOverflow { .. })), "{error:?}");
    assert_eq!(session.turns().len(), turns);
    session.append_turn(Role::User, "short").unwrap();
    let found = run_in(&mut session, options(4), usize::MAX).tokens;
    let mut fresh = engine.session(base).unwrap();
    for turn in &session.turns()[..session.turns().len() - 1] {
        fresh.append_turn(turn.role, turn.content.clone()).unwrap();
    }
    assert_eq!(found, run_in(&mut fresh, options(4), usize::MAX).tokens);
}

#[test]
fn an_answer_is_not_taken_for_a_failed_turn() {
    let engine = Tiny::default().engine(1);
    // The answer fills the context, so that the turns with a prompt for another answer do not fit.
    let base = SessionOptions { context_len: Some(40), ..plain() };
    let mut session = engine.session(base).unwrap();
    session.append_turn(Role::User, "one").unwrap();
    assert_eq!(run_in(&mut session, options(100), usize::MAX).finish, FinishReason::ContextFull);
    let turns = session.turns().to_vec();
    assert_eq!(turns.len(), 2);
    assert!(session.prefill(&CancelToken::new(), |_, _| {}).is_err());
    assert_eq!(session.turns(), turns, "the answer is still there");
}

#[test]
fn a_first_turn_that_fails_leaves_a_session_without_turns() {
    let engine = Tiny::default().engine(1);
    let mut session = engine.session(SessionOptions { context_len: Some(60), ..plain() }).unwrap();
    session.append_turn(Role::User, "far too long ".repeat(20)).unwrap();
    assert!(session.generate(options(4)).is_err());
    assert!(session.turns().is_empty() && session.tokens().is_empty());
    session.append_turn(Role::User, "short").unwrap();
    assert_eq!(run_in(&mut session, options(4), usize::MAX).tokens.len(), 4);
}

/// Wakes a thread that waits for a stream.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The stream's next event, awaited as by an executor.
fn wait(stream: &mut EventStream) -> Option<Result<Event, GenerateError>> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match Pin::new(&mut *stream).poll_next(&mut Context::from_waker(&waker)) {
            Poll::Ready(item) => return item,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_stream_yields_the_events_and_gives_the_session_back() {
    let engine = Tiny::default().engine(1);
    let prompt = prompt(7, 40);
    let expected = known(&engine, &prompt, 30);
    let generation = OwnedGeneration::new(drafted(&engine, &prompt, &expected), options(20)).unwrap();
    let mut stream = generation.into_stream().unwrap();
    for &id in &expected[..20] {
        assert_eq!(token(wait(&mut stream)), id);
    }
    assert!(matches!(wait(&mut stream), Some(Ok(Event::Done(_)))));
    assert!(wait(&mut stream).is_none());
    assert!(wait(&mut stream).is_none(), "an ended stream stays so");
    let mut session = stream.into_session();
    assert_eq!(run_in(&mut session, options(10), usize::MAX).tokens, expected[20..]);

    // Dropped early: no event is computed that was not polled for.
    let generation = OwnedGeneration::new(drafted(&engine, &prompt, &expected), options(20)).unwrap();
    let mut stream = generation.into_stream().unwrap();
    for &id in &expected[..3] {
        assert_eq!(token(wait(&mut stream)), id);
    }
    assert_eq!(stream.into_session().tokens()[prompt.len()..], expected[..3]);
}

/// A task that is polled without having been woken, as by another branch of a `select`, loses no event.
#[test]
fn a_stream_that_is_polled_too_often_loses_nothing() {
    let engine = Tiny::default().engine(1);
    let prompt = prompt(9, 40);
    let expected = known(&engine, &prompt, 60);
    let generation = OwnedGeneration::new(drafted(&engine, &prompt, &expected), options(60)).unwrap();
    let mut stream = generation.into_stream().unwrap();
    let mut tokens = Vec::new();
    let finish = loop {
        match Pin::new(&mut stream).poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Ok(Event::Token(token)))) => tokens.push(token.id),
            Poll::Ready(Some(Ok(Event::Done(summary)))) => break summary.finish,
            Poll::Ready(other) => panic!("{other:?}"),
            Poll::Pending => thread::yield_now(),
        }
    };
    assert_eq!((finish, tokens), (FinishReason::MaxTokens, expected));
}

#[test]
fn a_stream_whose_worker_panics_unwinds_in_its_poll_and_gives_the_session_back() {
    let engine = Tiny::default().engine(1);
    let mut session = engine.session(plain()).unwrap();
    session.append_tokens(&prompt(8, 20)).unwrap();
    let processors: Vec<Box<dyn LogitsProcessor>> = vec![Box::new(PanicsAt(22))];
    let generation = OwnedGeneration::new(session, GenerateOptions { processors, ..options(9) }).unwrap();
    let mut stream = generation.into_stream().unwrap();
    let first: Vec<TokenId> = (0..2).map(|_| token(wait(&mut stream))).collect();
    assert!(catch_unwind(AssertUnwindSafe(|| wait(&mut stream))).is_err());
    assert!(wait(&mut stream).is_none(), "the panic ends the stream");
    let mut session = stream.into_session();
    assert_eq!(session.tokens()[20..], first);
    let rest = run_in(&mut session, options(9), usize::MAX).tokens;
    assert_eq!([first, rest].concat(), known(&engine, &prompt(8, 20), 11));
}
