//! The state of a session after every error and every reversal.

use std::ops::ControlFlow;

use refrain::internals::error::{ForwardError, GenerateProblem, SamplingError, SessionProblem};
use refrain::{
    CancelToken, Event, FinishReason, GenerateOptions, LogitsProcessor, ProcessorError, Role, Session,
    SessionOptions, SpecialTokens, TokenId,
};

use crate::common::{self, Tiny, drafted, known, options, plain, prompt, run_in};

/// Cancels when the target chooses the token at a position: in the middle of a step.
struct CancelAt(usize, CancelToken);

impl LogitsProcessor for CancelAt {
    fn process(&mut self, tokens: &[TokenId], _logits: &mut [f32]) -> Result<(), ProcessorError> {
        if tokens.len() == self.0 {
            self.1.cancel();
        }
        Ok(())
    }
}

/// Forbids every token at a position.
struct DeadEndAt(usize);

impl LogitsProcessor for DeadEndAt {
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        if tokens.len() == self.0 {
            logits.fill(f32::NEG_INFINITY);
        }
        Ok(())
    }
}

#[test]
fn a_cancelled_prefill_keeps_its_chunks_and_goes_on() {
    let engine = Tiny::default().engine(2);
    let prompt = prompt(1, 100);
    let expected = known(&engine, &prompt, 10);
    let mut session = engine.session(SessionOptions { prefill_chunk: 8, ..plain() }).unwrap();
    session.append_tokens(&prompt).unwrap();
    let cancel = CancelToken::new();
    let mut done = 0;
    let cancelled = session.prefill(&cancel, |n, _| {
        done = n;
        if n >= 40 {
            cancel.cancel();
        }
    });
    assert!(matches!(cancelled.unwrap_err().detail(), Some(ForwardError::Cancelled)));
    assert_eq!(done, 40);
    let run = run_in(&mut session, options(10), usize::MAX);
    assert_eq!(run.tokens, expected);
    assert_eq!((run.stats.cached_tokens, run.stats.prefilled_tokens), (40, 59));
}

#[test]
fn a_cancel_from_another_thread_stops_a_long_prefill() {
    let engine = Tiny { n_layers: 4, ..Tiny::default() }.engine(1);
    let mut session = engine.session(plain()).unwrap();
    session.append_tokens(&prompt(1, 500)).unwrap();
    let options = options(5);
    let cancel = options.cancel.clone();
    let canceller = std::thread::spawn(move || cancel.cancel());
    canceller.join().unwrap();
    let events = common::events(&mut session, options);
    let [Event::Done(summary)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((summary.finish, summary.stats.tokens), (FinishReason::Cancelled, 0));
    assert_eq!(
        common::run_in(&mut session, common::options(5), usize::MAX).tokens.len(),
        5,
        "and the session is usable"
    );
}

#[test]
fn a_cancel_during_a_step_comes_after_its_tokens() {
    let engine = Tiny::default().engine(2);
    let prompt = prompt(2, 30);
    let expected = known(&engine, &prompt, 200);
    let mut session = drafted(&engine, &prompt, &expected);
    let cancel = CancelToken::new();
    let processor = CancelAt(prompt.len() + 3, cancel.clone());
    let options = GenerateOptions { processors: vec![Box::new(processor)], cancel, ..options(200) };
    let run = run_in(&mut session, options, usize::MAX);
    assert_eq!(run.finish, FinishReason::Cancelled);
    assert!(run.tokens.len() > 3 && run.tokens.len() < 200);
    assert_eq!(run.tokens, expected[..run.tokens.len()]);
    assert_eq!(session.tokens()[prompt.len()..], run.tokens);
}

#[test]
fn a_cancel_that_comes_too_late_does_not_stop_the_next_generation() {
    let engine = Tiny::default().engine(1);
    let prompt = prompt(3, 30);
    let mut session = drafted(&engine, &prompt, &known(&engine, &prompt, 8));
    let cancel = CancelToken::new();
    let processor = CancelAt(prompt.len() + 7, cancel.clone());
    let late =
        GenerateOptions { processors: vec![Box::new(processor)], cancel: cancel.clone(), ..options(8) };
    let first = run_in(&mut session, late, usize::MAX);
    assert_eq!((first.finish, first.tokens.len()), (FinishReason::MaxTokens, 8));
    // Stop pressed just after the end of the answer.
    cancel.cancel();
    let second = run_in(&mut session, options(4), usize::MAX);
    assert_eq!((second.finish, second.tokens.len()), (FinishReason::MaxTokens, 4));
}

#[test]
fn a_generation_that_is_dropped_leaves_what_was_taken() {
    let engine = Tiny::default().engine(2);
    let prompt = prompt(4, 40);
    let expected = known(&engine, &prompt, 30);
    for taken in 0..20 {
        let mut session = drafted(&engine, &prompt, &expected);
        let mut generation = session.generate(options(30)).unwrap();
        for _ in 0..taken {
            assert!(matches!(generation.next(), Some(Ok(Event::Token(_)))));
        }
        drop(generation);
        assert_eq!(session.tokens()[prompt.len()..], expected[..taken]);
        let rest = run_in(&mut session, options(30 - taken), usize::MAX);
        assert_eq!(rest.tokens, expected[taken..]);
    }
}

#[test]
fn breaking_at_the_last_token_is_no_cancellation() {
    let engine = Tiny::default().engine(1);
    let prompt = prompt(4, 40);
    let mut session = drafted(&engine, &prompt, &known(&engine, &prompt, 9));
    let run = run_in(&mut session, options(9), 9);
    assert_eq!((run.finish, run.stats.tokens), (FinishReason::MaxTokens, 9));
}

#[test]
fn statistics_count_what_was_taken() {
    let engine = Tiny::default().engine(1);
    let prompt = prompt(5, 40);
    let mut session = drafted(&engine, &prompt, &known(&engine, &prompt, 30));
    let run = run_in(&mut session, options(30), 2);
    assert_eq!(run.stats.tokens, 2);
    let by_length = run.stats.acceptance_lengths.iter().enumerate();
    assert_eq!(by_length.map(|(len, n)| len * n).sum::<usize>(), 2);
}

#[test]
fn an_error_inside_a_draft_comes_after_the_tokens_before_it() {
    let engine = Tiny::default().engine(2);
    let prompt = prompt(6, 40);
    let expected = known(&engine, &prompt, 30);
    for place in 0..12 {
        let generate = |session: &mut Session, take: usize| {
            let processors: Vec<Box<dyn LogitsProcessor>> = vec![Box::new(DeadEndAt(prompt.len() + place))];
            let generation = session.generate(GenerateOptions { processors, ..options(30) }).unwrap();
            generation.take(take).collect::<Vec<_>>()
        };
        let mut session = drafted(&engine, &prompt, &expected);
        let mut items = generate(&mut session, usize::MAX);
        let error = items.pop().unwrap().unwrap_err();
        let position = prompt.len() + place;
        assert!(
            matches!(error.detail(), Some(SamplingError::NoCandidate { position: p }) if *p == position),
            "{error:?}"
        );
        let tokens: Vec<TokenId> = items
            .iter()
            .map(|item| match item {
                Ok(Event::Token(token)) => token.id,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(tokens, expected[..place]);
        assert_eq!(session.tokens()[prompt.len()..], tokens);
        let rest = run_in(&mut session, options(30 - place), usize::MAX);
        assert_eq!(rest.tokens, expected[place..], "and goes on from there");

        let mut session = drafted(&engine, &prompt, &expected);
        generate(&mut session, place / 2);
        assert_eq!(session.tokens()[prompt.len()..], expected[..place / 2], "dropped before the error");
    }
}

#[test]
fn turns_can_be_taken_back() {
    let engine = Tiny::default().engine(1);
    let answer = |session: &mut Session| run_in(session, options(6), usize::MAX).tokens;
    let ask = |turns: &[(Role, &str)]| {
        let mut session = engine.session(plain()).unwrap();
        turns.iter().for_each(|(role, text)| session.append_turn(*role, *text).unwrap());
        answer(&mut session)
    };
    let mut session = engine.session(SessionOptions::default()).unwrap();
    assert_eq!(session.pop_turn(), None);

    // The first question is cancelled during its prefill and taken back; then another question follows.
    session.append_turn(Role::User, "first question").unwrap();
    let cancelled = GenerateOptions { cancel: common::cancelled_token(), ..options(6) };
    assert_eq!(run_in(&mut session, cancelled, usize::MAX).tokens, []);
    assert_eq!(session.pop_turn().unwrap().content, "first question");
    assert!(session.tokens().is_empty());
    session.append_turn(Role::User, "second question").unwrap();
    assert_eq!(answer(&mut session), ask(&[(Role::User, "second question")]));
    let answered = session.tokens().len();

    // A later turn is taken back too: its tokens are removed, the conversation stays.
    session.append_turn(Role::User, "third question").unwrap();
    session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
    assert!(session.tokens().len() > answered);
    session.pop_turn().unwrap();
    assert_eq!(session.tokens().len(), answered);
    assert_eq!(session.turns().len(), 2);

    // The answer and its question are taken back, and the question is rephrased.
    session.pop_turn().unwrap();
    session.pop_turn().unwrap();
    session.append_turn(Role::User, "fourth question").unwrap();
    assert_eq!(answer(&mut session), ask(&[(Role::User, "fourth question")]));
}

#[test]
fn text_and_turns_do_not_mix() {
    let engine = Tiny::default().engine(1);
    let mut session = engine.session(SessionOptions::default()).unwrap();
    session.append_text("plain", SpecialTokens::AsText).unwrap();
    assert_eq!(session.pop_turn(), None);
    assert!(matches!(
        session.append_turn(Role::User, "turn").unwrap_err().detail(),
        Some(SessionProblem::Mixed)
    ));
    assert_eq!(run_in(&mut session, options(3), usize::MAX).tokens.len(), 3, "the text is still there");

    let mut session = engine.session(SessionOptions::default()).unwrap();
    session.append_turn(Role::User, "turn").unwrap();
    assert!(matches!(
        session.append_text("plain", SpecialTokens::AsText).unwrap_err().detail(),
        Some(SessionProblem::Mixed)
    ));
    assert!(matches!(session.truncate(0).unwrap_err().detail(), Some(SessionProblem::Mixed)));
}

#[test]
fn limits_are_refused_with_their_numbers() {
    let engine = Tiny::default().engine(1);
    let refused =
        |options: SessionOptions| engine.session(options).err().map(|e| e.to_string()).unwrap_or_default();
    let base = SessionOptions::default();
    assert_eq!(
        refused(SessionOptions { context_len: Some(513), ..base.clone() }),
        "context_len is 513, outside 2..=512"
    );
    assert_eq!(
        refused(SessionOptions { verify_rows_max: 65, ..base.clone() }),
        "verify_rows_max is 65, outside 1..=64"
    );
    assert!(refused(SessionOptions { verify_lens: vec![8, 4], ..base.clone() }).contains("verify_lens"));
    assert!(refused(SessionOptions { prefill_chunk: 0, ..base.clone() }).contains("prefill_chunk"));

    let mut session = engine.session(SessionOptions { context_len: Some(16), ..base }).unwrap();
    assert!(matches!(session.generate(options(1)).unwrap_err().detail(), Some(GenerateProblem::EmptyPrompt)));
    let too_long = session.append_tokens(&prompt(1, 17));
    assert!(matches!(
        too_long.as_ref().unwrap_err().detail(),
        Some(SessionProblem::ContextOverflow { n_tokens: 17, context_len: 16 })
    ));
    let unknown = session.append_tokens(&[TokenId(9999)]);
    assert!(matches!(
        unknown.as_ref().unwrap_err().detail(),
        Some(SessionProblem::TokenOutOfRange { token: 9999, .. })
    ));
    session.append_tokens(&prompt(1, 16)).unwrap();
    let full = run_in(&mut session, options(5), usize::MAX);
    assert_eq!((full.finish, full.tokens.len()), (FinishReason::ContextFull, 0));

    let mut session = engine.session(plain()).unwrap();
    session.append_tokens(&prompt(1, 4)).unwrap();
    let none = run_in(&mut session, options(0), usize::MAX);
    assert_eq!((none.finish, none.tokens.len()), (FinishReason::MaxTokens, 0));
    let stop = GenerateOptions { stop: vec![String::new()], ..options(1) };
    assert!(matches!(
        session.generate(stop).unwrap_err().detail(),
        Some(GenerateProblem::StopLength { given: 0, .. })
    ));
}

#[test]
fn a_callback_can_end_the_output() {
    let engine = Tiny::default().engine(1);
    let mut session = engine.session(SessionOptions::default()).unwrap();
    session.append_tokens(&prompt(1, 20)).unwrap();
    let mut seen = 0;
    let summary = session
        .generate(options(50))
        .unwrap()
        .run(|_| {
            seen += 1;
            if seen == 7 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!((summary.finish, session.tokens().len()), (FinishReason::Cancelled, 27));
}
