//! A logits processor that fails ends the generation with its own error, at the same token with and without drafts.

use std::error::Error;
use std::fmt;

use refrain::internals::draft::testing::AlwaysRight;
use refrain::{ErrorKind, Event, GenerateOptions, LogitsProcessor, ProcessorError, SessionOptions, TokenId};

use crate::common::{self, Tiny, known, options, plain, prompt};

#[derive(Debug, PartialEq)]
struct NoMask {
    position: usize,
}

impl fmt::Display for NoMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no mask at position {}", self.position)
    }
}

impl Error for NoMask {}

/// Fails at a position.
struct FailsAt(usize);

impl LogitsProcessor for FailsAt {
    fn process(&mut self, tokens: &[TokenId], _logits: &mut [f32]) -> Result<(), ProcessorError> {
        if tokens.len() == self.0 { Err(Box::new(NoMask { position: self.0 })) } else { Ok(()) }
    }
}

#[test]
fn a_processor_that_fails_ends_the_output_with_its_error() {
    let engine = Tiny::default().engine(2);
    let prompt = prompt(1, 40);
    let known = known(&engine, &prompt, 20);
    for n_before in [0, 1, 7, 19] {
        for session in [plain(), SessionOptions { history: false, ..SessionOptions::default() }] {
            let mut session = engine.session(session).unwrap();
            session.add_source(Box::new(AlwaysRight::new(prompt.len(), known.clone()))).unwrap();
            session.append_tokens(&prompt).unwrap();
            let position = prompt.len() + n_before;
            let failing = GenerateOptions { processors: vec![Box::new(FailsAt(position))], ..options(20) };
            let mut tokens = Vec::new();
            let mut failure = None;
            for event in session.generate(failing).unwrap() {
                match event {
                    Ok(Event::Token(token)) => tokens.push(token.id),
                    Ok(event) => panic!("{event:?}"),
                    Err(error) => failure = Some(error),
                }
            }
            assert_eq!(tokens, known[..n_before]);
            let failure = failure.expect("an error");
            assert_eq!(failure.kind(), ErrorKind::Processor, "{failure:?}");
            let source = failure.source().and_then(|source| source.downcast_ref::<NoMask>());
            assert_eq!(source, Some(&NoMask { position }));
            assert_eq!(session.tokens().len(), position, "the session keeps the tokens before the failure");
            let rest = common::run_in(&mut session, options(20 - n_before), usize::MAX);
            assert_eq!(rest.tokens, known[n_before..], "the session goes on");
        }
    }
}
