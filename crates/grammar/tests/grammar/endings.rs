//! Where a constrained output ends: at the end of the grammar, by a limit in the middle, or by an error, always at the same token
//! with and without drafts.

use std::error::Error;

use refrain::internals::draft::testing::AlwaysRight;
use refrain::{
    Engine, ErrorKind, Event, FinishReason, GenerateOptions, LogitsProcessor, ProcessorError, SessionOptions,
    TokenId,
};
use refrain_grammar::{Grammar, GrammarError, JsonOptions};

use crate::common::{EOS, Tiny, plain, prompt};
use crate::grammars::{COMMAND, vocabulary};

/// The tokens, the text and the end of a generation.
#[derive(Debug, PartialEq)]
struct Output {
    tokens: Vec<TokenId>,
    text: String,
    end: Result<FinishReason, GrammarError>,
}

fn output(engine: &Engine, session: SessionOptions, known: &[TokenId], options: GenerateOptions) -> Output {
    let prompt = prompt(3, 40);
    let mut session = engine.session(session).unwrap();
    session.add_source(Box::new(AlwaysRight::new(prompt.len(), known.to_vec()))).unwrap();
    session.append_tokens(&prompt).unwrap();
    let (mut tokens, mut text, mut end) = (Vec::new(), String::new(), None);
    for event in session.generate(options).unwrap() {
        match event {
            Ok(Event::Token(token)) => {
                tokens.push(token.id);
                text.push_str(&token.text);
            }
            Ok(Event::Done(summary)) => end = Some(Ok(summary.finish)),
            Ok(event) => panic!("{event:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Processor, "{error:?}");
                let source = error.source().and_then(|source| source.downcast_ref::<GrammarError>());
                end = Some(Err(source.expect("an error of the grammar").clone()));
            }
        }
    }
    Output { tokens, text, end: end.expect("an end") }
}

/// The output of plain decoding with the mask. Drafting gives the same, from the grammar alone and from the right tokens.
fn checked(engine: &Engine, grammar: &Grammar, options: impl Fn() -> GenerateOptions) -> Output {
    let mut masked = options();
    masked.processors.push(Box::new(grammar.mask()));
    let expected = output(engine, plain(), &[], masked);
    for known in [&[][..], &expected.tokens] {
        for verify_rows_max in [2, 5, 32] {
            let session = SessionOptions { verify_rows_max, history: false, ..SessionOptions::default() };
            let found = output(engine, session, known, grammar.constrain(options()));
            assert_eq!(found, expected, "{verify_rows_max} rows");
        }
    }
    expected
}

fn short() -> GenerateOptions {
    GenerateOptions { max_tokens: 60, ..GenerateOptions::default() }
}

#[test]
fn the_end_token_comes_where_the_grammar_ends() {
    let engine = Tiny::default().engine(2);
    let vocabulary = vocabulary(&engine);
    for choices in [&["stay"][..], &["a", "ab", "abc"], &["x", "yes", "no"]] {
        let grammar = Grammar::choices(&vocabulary, choices).unwrap();
        let found = checked(&engine, &grammar, short);
        assert!(choices.contains(&found.text.as_str()), "{found:?}");
        assert_eq!(found.tokens.last(), Some(&EOS));
        assert_eq!(found.end, Ok(FinishReason::EndToken));
    }
}

/// After the end of the grammar nothing but end tokens follows, whatever the options say.
#[test]
fn an_end_token_that_is_ignored_opens_nothing() {
    let engine = Tiny::default().engine(2);
    let grammar = Grammar::choices(&vocabulary(&engine), ["yes", "no"]).unwrap();
    let found =
        checked(&engine, &grammar, || GenerateOptions { ignore_eos: true, max_tokens: 12, ..short() });
    assert_eq!(found.end, Ok(FinishReason::MaxTokens));
    assert_eq!(found.tokens.len(), 12);
    let n_text = found.tokens.iter().take_while(|&&token| token != EOS).count();
    assert!(["yes", "no"].contains(&found.text.as_str()), "{found:?}");
    assert!(found.tokens[n_text..].iter().all(|&token| token == EOS), "{found:?}");
}

#[test]
fn max_tokens_cut_in_every_place() {
    let engine = Tiny::default().engine(2);
    let grammar = Grammar::json_schema(&vocabulary(&engine), COMMAND, JsonOptions::default()).unwrap();
    let whole = checked(&engine, &grammar, short);
    assert_eq!(whole.end, Ok(FinishReason::EndToken));
    for max_tokens in 0..whole.tokens.len() {
        let cut = checked(&engine, &grammar, || GenerateOptions { max_tokens, ..short() });
        assert_eq!(cut.tokens, whole.tokens[..max_tokens]);
        assert_eq!(cut.end, Ok(FinishReason::MaxTokens));
    }
}

#[test]
fn stop_strings_and_stop_tokens_cut_inside_forced_text() {
    let engine = Tiny::default().engine(2);
    let grammar = Grammar::json_schema(&vocabulary(&engine), COMMAND, JsonOptions::default()).unwrap();
    let stopped = checked(&engine, &grammar, || GenerateOptions { stop: vec!["target".into()], ..short() });
    assert_eq!(stopped.end, Ok(FinishReason::Stop));
    assert!(stopped.text.ends_with(",\""), "{stopped:?}");
    let colon = TokenId(u32::from(b':'));
    let stopped = checked(&engine, &grammar, || GenerateOptions { stop_tokens: vec![colon], ..short() });
    assert_eq!((stopped.text.as_str(), stopped.end), ("{\"action\"", Ok(FinishReason::Stop)));
}

/// A grammar whose masks need more work than allowed ends the output with an error, at the same token with drafts.
#[test]
fn a_grammar_that_is_too_complex_ends_the_output() {
    let engine = Tiny::default().engine(2);
    // After the first letters the parser has an item for each of the 3,000 rules.
    let rules: Vec<String> = (0..3000).map(|i| format!("r{i}: \"b\" \"{i}\"\n")).collect();
    let names: Vec<String> = (0..3000).map(|i| format!("r{i}")).collect();
    let lark = format!("start: /[a-z]{{30}}/ any\nany: {}\n{}", names.join(" | "), rules.concat());
    let grammar = Grammar::lark(&vocabulary(&engine), &lark).unwrap();
    let found = checked(&engine, &grammar, short);
    match found.end {
        Err(GrammarError::TooComplex { position, .. }) => assert_eq!(position, found.tokens.len()),
        end => panic!("{end:?}"),
    }
}

/// Forbids a token.
struct Forbids(TokenId);

impl LogitsProcessor for Forbids {
    fn process(&mut self, _tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        logits[self.0.index()] = f32::NEG_INFINITY;
        Ok(())
    }
}

/// If the app forbids the only allowed token, no token is chosen; nothing else is allowed instead.
#[test]
fn a_forced_token_that_is_forbidden_ends_the_output() {
    let engine = Tiny::default().engine(2);
    let grammar = Grammar::choices(&vocabulary(&engine), ["stay"]).unwrap();
    for session in [plain(), SessionOptions { history: false, ..SessionOptions::default() }] {
        let mut session = engine.session(session).unwrap();
        session.append_tokens(&prompt(3, 40)).unwrap();
        let forbids = Forbids(TokenId(u32::from(b'a')));
        let options = grammar.constrain(GenerateOptions { processors: vec![Box::new(forbids)], ..short() });
        let events: Vec<_> = session.generate(options).unwrap().collect();
        assert_eq!(events.len(), 3, "{events:?}");
        let error = events.last().unwrap().as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoToken, "{error:?}");
    }
}

/// A grammar that counts tokens cannot be rolled back; its drafts start again and change nothing.
#[test]
fn a_grammar_that_counts_tokens() {
    let engine = Tiny::default().engine(2);
    let lark = "start: a \"!\" b\na[max_tokens=5]: /[a-z]+/\nb[max_tokens=3]: /[0-9]+/\n";
    let grammar = Grammar::lark(&vocabulary(&engine), lark).unwrap();
    let found = checked(&engine, &grammar, short);
    let (letters, digits) = found.text.split_once('!').expect("an exclamation mark");
    assert!(letters.len() <= 5 && digits.len() <= 3, "{found:?}");
    assert_eq!(found.end, Ok(FinishReason::EndToken));
}

/// A grammar that names an end token before its end has no token there: the output would be incomplete.
#[test]
fn an_end_token_inside_a_grammar_is_not_allowed() {
    let engine = Tiny::default().engine(2);
    let vocabulary = vocabulary(&engine);
    let grammar = Grammar::lark(&vocabulary, "start: \"ab\" <|end|> \"c\"\n").unwrap();
    let found = checked(&engine, &grammar, short);
    assert_eq!((found.text.as_str(), found.end), ("ab", Err(GrammarError::NoToken { position: 2 })));
    let either = Grammar::lark(&vocabulary, "start: \"ab\" <|end|> \"c\" | \"abd\"\n").unwrap();
    let found = checked(&engine, &either, short);
    assert_eq!((found.text.as_str(), found.end), ("abd", Ok(FinishReason::EndToken)));
}

/// A text that the grammar does not allow is an error, not an open output.
#[test]
fn a_token_that_another_processor_writes_is_noticed() {
    struct Writes;
    impl LogitsProcessor for Writes {
        fn process(&mut self, _tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
            logits.fill(f32::NEG_INFINITY);
            logits[usize::from(b'z')] = 0.0;
            Ok(())
        }
    }
    let engine = Tiny::default().engine(2);
    let grammar = Grammar::choices(&vocabulary(&engine), ["stay"]).unwrap();
    let mut session = engine.session(plain()).unwrap();
    session.append_tokens(&prompt(3, 40)).unwrap();
    let mut options = grammar.constrain(short());
    options.processors.push(Box::new(Writes));
    let last = session.generate(options).unwrap().last().expect("an event");
    let error = last.expect_err("an error");
    let source = error.source().and_then(|source| source.downcast_ref::<GrammarError>());
    assert_eq!(source, Some(&GrammarError::NotAllowed { position: 0, token: u32::from(b'z') }));
}
