//! Drawn, reported and repeated seeds, and logits that cannot be sampled.

use std::ops::ControlFlow;

use refrain::internals::draft::testing::AlwaysRight;
use refrain::internals::error::SamplingError;
use refrain::{
    Drafting, Engine, Event, GenerateOptions, LogitsProcessor, ProcessorError, Sampling, SessionOptions,
    Summary, TokenId,
};

use crate::common::{Tiny, plain, prompt};

fn options(sampling: &Sampling) -> GenerateOptions {
    GenerateOptions {
        max_tokens: 24,
        ignore_eos: true,
        sampling: sampling.clone(),
        ..GenerateOptions::default()
    }
}

fn generate(engine: &Engine, session: SessionOptions, sampling: &Sampling) -> (Vec<TokenId>, Summary) {
    let mut session = engine.session(session).unwrap();
    session.append_tokens(&prompt(2, 40)).unwrap();
    let mut tokens = Vec::new();
    let generation = session.generate(options(sampling)).unwrap();
    let summary = generation.run(|token| {
        tokens.push(token.id);
        ControlFlow::Continue(())
    });
    (tokens, summary.unwrap())
}

#[test]
fn a_drawn_seed_is_reported_and_repeats_the_text() {
    let engine = Tiny::default().engine(1);
    let hot = Sampling { temperature: 2.0, ..Sampling::default() };
    let (first, summary) = generate(&engine, plain(), &hot);
    let seed = summary.seed.expect("sampling has a seed");
    let again = Sampling { seed: Some(seed), ..hot.clone() };
    for session in [plain(), SessionOptions { history: false, ..SessionOptions::default() }] {
        let (repeated, summary) = generate(&engine, session, &again);
        assert_eq!((repeated, summary.seed), (first.clone(), Some(seed)));
    }
    // 24 tokens of a nearly flat distribution over 256: the probability that three draws give one text is negligible.
    let others = [0, 1].map(|_| generate(&engine, plain(), &hot).0);
    assert!(others.iter().any(|other| *other != first), "regenerating gives another answer");
}

#[test]
fn greedy_decoding_has_no_seed() {
    let engine = Tiny::default().engine(1);
    let (first, summary) = generate(&engine, plain(), &Sampling::default());
    assert_eq!(summary.seed, None);
    let seeded = Sampling { seed: Some(7), ..Sampling::default() };
    assert_eq!(generate(&engine, plain(), &seeded).0, first);
}

/// Writes +∞ at a position.
struct InfinityAt(usize);

impl LogitsProcessor for InfinityAt {
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        if tokens.len() == self.0 {
            logits[77] = f32::INFINITY;
        }
        Ok(())
    }
}

#[test]
fn an_infinite_logit_is_an_error_that_names_token_and_position() {
    let engine = Tiny::default().engine(2);
    let prompt = prompt(2, 40);
    for sampling in [Sampling::default(), Sampling { temperature: 0.9, seed: Some(3), ..Sampling::default() }]
    {
        let known = generate(&engine, plain(), &sampling).0;
        for place in [0, 1, 5] {
            let drafting = SessionOptions {
                drafting: Drafting::OwnSources,
                history: false,
                ..SessionOptions::default()
            };
            let mut session = engine.session(drafting).unwrap();
            session.add_source(Box::new(AlwaysRight::new(prompt.len(), known.clone()))).unwrap();
            session.append_tokens(&prompt).unwrap();
            let processors: Vec<Box<dyn LogitsProcessor>> = vec![Box::new(InfinityAt(prompt.len() + place))];
            let generation = session.generate(GenerateOptions { processors, ..options(&sampling) }).unwrap();
            let mut items: Vec<_> = generation.collect();
            match items.pop().map(|item| item.map_err(|error| error.detail().cloned())) {
                Some(Err(Some(SamplingError::InfiniteLogit { token: 77, position }))) => {
                    assert_eq!(position, prompt.len() + place);
                }
                other => panic!("{other:?}"),
            }
            let tokens = items.iter().map(|item| match item {
                Ok(Event::Token(token)) => token.id,
                other => panic!("{other:?}"),
            });
            assert_eq!(tokens.collect::<Vec<_>>(), known[..place], "the tokens before it stay");
        }
    }
}
