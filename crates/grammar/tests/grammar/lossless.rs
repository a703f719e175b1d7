//! Constrained drafting changes no bit: tokens, texts, and the logits before and after the mask equal those of plain decoding
//! with the same mask, for all grammars, drafts and batches.
//!
//! `tools/planted-faults` shows that these tests fail with planted faults: a mask of the parent for the child, and a rollback
//! that keeps one token too many.

use refrain::drafting::DraftSource;
use refrain::internals::draft::testing::{AlwaysRight, AlwaysWrong, Endless, Random};
use refrain::{
    Drafting, Engine, FinishReason, GenerateOptions, LogitsProcessor, Origin, ProcessorError, Role, Sampling,
    SessionOptions, TokenId,
};
use refrain_grammar::Grammar;

use crate::common::{self, LogitsRecorder, Run, Tiny, plain, prompt, run, samplings};
use crate::grammars::{after_marker, all, vocabulary};

const MAX_TOKENS: usize = 40;

fn options(sampling: &Sampling) -> GenerateOptions {
    GenerateOptions { max_tokens: MAX_TOKENS, sampling: sampling.clone(), ..GenerateOptions::default() }
}

/// A run, and the bits of the logits behind the mask.
struct Masked {
    run: Run,
    masked: LogitsRecorder,
}

impl Masked {
    fn assert_equal(&self, plain: &Masked, case: &str) {
        self.run.assert_equal(&plain.run, case);
        assert_eq!(*self.masked.0.lock().unwrap(), *plain.masked.0.lock().unwrap(), "masks: {case}");
    }
}

/// Runs a prompt with the options that `constrain` makes of `options`.
fn masked(
    engine: &Engine,
    session: SessionOptions,
    sources: Vec<Box<dyn DraftSource>>,
    prompt: &[TokenId],
    mut options: GenerateOptions,
) -> Masked {
    let masked = LogitsRecorder::default();
    options.processors.push(Box::new(masked.clone()));
    Masked { run: run(engine, session, sources, prompt, options), masked }
}

/// Plain decoding with the mask.
fn reference(engine: &Engine, grammar: &Grammar, prompt: &[TokenId], mut options: GenerateOptions) -> Masked {
    options.processors.push(Box::new(grammar.mask()));
    masked(engine, plain(), Vec::new(), prompt, options)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Drafts {
    None,
    Grammar,
    Context,
    History,
    AlwaysRight,
    AlwaysWrong,
    Random,
    Endless,
}

const ALL_DRAFTS: [Drafts; 8] = [
    Drafts::None,
    Drafts::Grammar,
    Drafts::Context,
    Drafts::History,
    Drafts::AlwaysRight,
    Drafts::AlwaysWrong,
    Drafts::Random,
    Drafts::Endless,
];

impl Drafts {
    fn sources(self, engine: &Engine, prompt: &[TokenId], known: &[TokenId]) -> Vec<Box<dyn DraftSource>> {
        let (known, vocab_size) = (known.to_vec(), engine.config().vocab_size as u32);
        match self {
            Self::None | Self::Grammar | Self::Context | Self::History => Vec::new(),
            Self::AlwaysRight => vec![Box::new(AlwaysRight::new(prompt.len(), known))],
            Self::AlwaysWrong => vec![Box::new(AlwaysWrong::new(prompt.len(), known))],
            Self::Random => vec![Box::new(Random::new(5, 2 * vocab_size))],
            Self::Endless => vec![Box::new(Endless::new(vocab_size))],
        }
    }

    fn session(self, verify_rows_max: usize, namespace: &str) -> SessionOptions {
        let base = SessionOptions { verify_rows_max, history: false, ..SessionOptions::default() };
        match self {
            Self::None => SessionOptions { verify_rows_max, ..plain() },
            Self::Grammar => SessionOptions { drafting: Drafting::OwnSources, ..base },
            Self::History => SessionOptions { history: true, namespace: namespace.into(), ..base },
            _ => base,
        }
    }
}

/// Every grammar × source × batch length × sampling; returns the tokens accepted from the grammar's drafts.
fn check_all(engine: &Engine, prompt: &[TokenId], rows: &[usize]) -> usize {
    let vocabulary = vocabulary(engine);
    let mut accepted = 0;
    for (name, grammar, check) in all(&vocabulary) {
        for (i, sampling) in samplings().iter().enumerate() {
            let expected = reference(engine, &grammar, prompt, options(sampling));
            if expected.run.finish == FinishReason::EndToken {
                let text = expected.run.text();
                assert!(check(&text), "{name}: {text:?}");
            }
            let namespace = format!("{name} {i}");
            engine.history().append(&namespace, &expected.run.tokens);
            for drafts in ALL_DRAFTS {
                for &verify_rows_max in rows {
                    let sources = drafts.sources(engine, prompt, &expected.run.tokens);
                    let session = drafts.session(verify_rows_max, &namespace);
                    let found =
                        masked(engine, session, sources, prompt, grammar.constrain(options(sampling)));
                    let case = format!("{name} {drafts:?} rows {verify_rows_max} {sampling:?}");
                    found.assert_equal(&expected, &case);
                    let of_grammar = found.run.stats.sources.iter().filter(|source| source.name == "grammar");
                    let of_grammar: usize = of_grammar.map(|source| source.accepted).sum();
                    accepted += of_grammar;
                    if drafts == Drafts::None {
                        assert_eq!(found.run.stats.steps, found.run.tokens.len(), "{case}");
                    }
                }
            }
        }
    }
    accepted
}

/// A random model over single bytes.
#[test]
fn byte_tokens() {
    let accepted = check_all(&Tiny::default().engine(2), &prompt(3, 40), &[1, 2, 5, 16]);
    assert!(accepted > 1000, "only {accepted} draft tokens were accepted: the test would prove little");
}

/// The fixture model, whose tokens are parts of words.
#[test]
fn word_tokens() {
    let engine = common::fixture_engine();
    let mut session = engine.session(plain()).unwrap();
    session
        .append_turn(Role::User, "Which button shows the next page?\n\nButtons: back, next, close.")
        .unwrap();
    // The prompt's tokens, by a generation of no tokens.
    let none = GenerateOptions { max_tokens: 0, ..GenerateOptions::default() };
    session.generate(none).unwrap().for_each(drop);
    let accepted = check_all(&engine, session.tokens(), &[1, 4, 32]);
    assert!(accepted > 500, "only {accepted} draft tokens were accepted: the test would prove little");
}

/// Static shapes pad the batch; threads share it.
#[test]
fn padding_and_threads() {
    let prompt = prompt(4, 40);
    for n_threads in [1, 3] {
        let engine = Tiny::default().engine(n_threads);
        let vocabulary = vocabulary(&engine);
        for (name, grammar, _) in all(&vocabulary) {
            for sampling in &samplings() {
                let expected = reference(&engine, &grammar, &prompt, options(sampling));
                for verify_lens in [vec![4], vec![1, 3, 8]] {
                    let rows = *verify_lens.last().unwrap();
                    let base =
                        SessionOptions { verify_rows_max: rows, verify_lens, ..SessionOptions::default() };
                    let session = SessionOptions { history: false, ..base };
                    let found =
                        masked(&engine, session, Vec::new(), &prompt, grammar.constrain(options(sampling)));
                    found.assert_equal(&expected, &format!("{name} threads {n_threads} rows {rows}"));
                }
            }
        }
    }
}

/// Writes the marker from a position on, whatever the model says.
struct Writes {
    at: usize,
    text: &'static str,
}

impl LogitsProcessor for Writes {
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        let byte = tokens.len().checked_sub(self.at).and_then(|i| self.text.as_bytes().get(i));
        byte.into_iter().for_each(|&byte| logits[usize::from(byte)] += 1e6);
        Ok(())
    }
}

/// A grammar that starts after reasoning is honoured inside a draft: the draft holds the end of the reasoning, the marker and the
/// constrained text.
#[test]
fn a_grammar_after_reasoning_starts_inside_a_draft() {
    let engine = Tiny::default().engine(2);
    let vocabulary = vocabulary(&engine);
    let prompt = prompt(5, 40);
    let (mut across, mut ended) = (0, 0);
    for (name, grammar, check) in after_marker(&vocabulary, "</think>") {
        for sampling in &samplings() {
            for n_before in [0, 1, 9] {
                let options = || GenerateOptions {
                    processors: vec![Box::new(Writes { at: prompt.len() + n_before, text: "</think>" })],
                    ..options(sampling)
                };
                let expected = reference(&engine, &grammar, &prompt, options());
                let text = expected.run.text();
                let behind = text.split_once("</think>").expect("the marker").1;
                let has_ended = expected.run.finish == FinishReason::EndToken;
                ended += usize::from(has_ended);
                assert!(!has_ended || check(behind), "{name}: {behind:?}");
                assert!(expected.run.tokens.len() > n_before + 8, "{name}: {text:?}");
                for drafts in ALL_DRAFTS {
                    let case = format!("{name} {drafts:?} {n_before} {sampling:?}");
                    let sources = drafts.sources(&engine, &prompt, &expected.run.tokens);
                    let found = masked(
                        &engine,
                        drafts.session(32, &case),
                        sources,
                        &prompt,
                        grammar.constrain(options()),
                    );
                    found.assert_equal(&expected, &case);
                    let origins = &found.run.origins[n_before..];
                    let is_drafted = |origin: &Origin| *origin != Origin::Target;
                    across += usize::from(origins.get(6..10).is_some_and(|o| o.iter().all(is_drafted)));
                }
            }
        }
    }
    assert!(across > 10, "only {across} drafts went across the marker");
    assert!(ended > 5, "only {ended} outputs came to the end of their grammar");
}

/// Eight conversations of one engine at once, each as alone.
#[test]
fn sessions_side_by_side() {
    let engine = Tiny::default().engine(3);
    let vocabulary = vocabulary(&engine);
    let grammars = all(&vocabulary);
    let prompts: Vec<_> = (0..8).map(|i| prompt(10 + i, 20 + 5 * i as usize)).collect();
    let samplings = samplings();
    let case = |i: usize| (&grammars[i % grammars.len()].1, &prompts[i], &samplings[i % 2]);
    let alone: Vec<Masked> = (0..8)
        .map(|i| {
            let (grammar, prompt, sampling) = case(i);
            reference(&engine, grammar, prompt, options(sampling))
        })
        .collect();
    std::thread::scope(|scope| {
        for (i, alone) in alone.iter().enumerate() {
            let (engine, (grammar, prompt, sampling)) = (engine.clone(), case(i));
            scope.spawn(move || {
                for _ in 0..5 {
                    let session = SessionOptions { history: false, ..SessionOptions::default() };
                    let options = grammar.constrain(options(sampling));
                    masked(&engine, session, Vec::new(), prompt, options).assert_equal(alone, "side by side");
                }
            });
        }
    });
}

/// Turns of one conversation, each with a grammar of its own, and one without.
#[test]
fn a_conversation_with_several_grammars() {
    let engine = common::fixture_engine();
    let vocabulary = vocabulary(&engine);
    let grammars = all(&vocabulary);
    for sampling in &samplings() {
        let turns = |session: SessionOptions| -> Vec<Run> {
            let drafts = session.drafting != Drafting::Off;
            let mut session = engine.session(session).unwrap();
            (0..6)
                .map(|turn| {
                    session.append_turn(Role::User, format!("Question {turn}: which page is next?")).unwrap();
                    let mut options = options(sampling);
                    match grammars.get(turn) {
                        Some((_, grammar, _)) if drafts && turn != 3 => options = grammar.constrain(options),
                        Some((_, grammar, _)) if turn != 3 => {
                            options.processors.push(Box::new(grammar.mask()))
                        }
                        _ => {}
                    }
                    common::run_in(&mut session, options, usize::MAX)
                })
                .collect()
        };
        let expected = turns(plain());
        let found = turns(SessionOptions { history: false, ..SessionOptions::default() });
        for (turn, (found, expected)) in found.iter().zip(&expected).enumerate() {
            found.assert_equal(expected, &format!("turn {turn}"));
        }
    }
}

/// A draft of a token that the grammar does not allow costs a row and is always rejected.
#[test]
fn what_the_grammar_does_not_allow_is_not_drafted() {
    let engine = Tiny::DEFAULT.engine(1);
    let prompt = prompt(3, 40);
    let grammar = Grammar::regex(&vocabulary(&engine), "[ab]{30}").unwrap();
    let drafted = |letter: &str, grammar: Option<&Grammar>| {
        let token = engine.tokenizer().encode(letter, refrain::SpecialTokens::AsText).unwrap()[0];
        let source = AlwaysRight::new(prompt.len(), vec![token; MAX_TOKENS]);
        let session = SessionOptions { drafting: Drafting::OwnSources, ..SessionOptions::default() };
        let mut options = options(&Sampling::default());
        if let Some(grammar) = grammar {
            options = grammar.constrain(options);
        }
        let run = run(&engine, session, vec![Box::new(source)], &prompt, options);
        let mut sources = run.stats.sources.iter();
        sources.find(|source| source.name == "always_right").expect("the source").drafted
    };
    assert!(drafted("c", None) > 0);
    assert!(drafted("a", Some(&grammar)) > 0);
    assert_eq!(drafted("c", Some(&grammar)), 0);
}
