//! GBNF grammars: the language is that of an obvious matcher, letter by letter.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::Config;
use refrain::{LogitsProcessor, TokenId};
use refrain_grammar::{GRAMMAR_BYTES_MAX, GbnfProblem, Grammar, GrammarError, GrammarKind, Vocabulary};

use crate::common::{EOS, Tiny, VOCAB_SIZE};

/// Tokens are bytes.
fn vocabulary() -> Vocabulary {
    Vocabulary::of_engine(&Tiny::default().engine(1)).expect("a vocabulary")
}

/// Whether a grammar has a text.
fn accepts(grammar: &Grammar, text: &str) -> bool {
    let (mut mask, bytes) = (grammar.mask(), text.as_bytes());
    (0..=bytes.len()).all(|len| {
        let tokens: Vec<TokenId> = bytes[..len].iter().map(|&byte| TokenId(u32::from(byte))).collect();
        let mut logits = vec![0.0; VOCAB_SIZE];
        mask.process(&tokens, &mut logits).expect("a mask");
        let next = bytes.get(len).map_or(EOS.0, |&byte| u32::from(byte));
        logits[next as usize] == 0.0
    })
}

/// A right side.
#[derive(Debug, Clone)]
enum Side {
    Text(&'static str),
    Class(&'static str, fn(char) -> bool),
    Rule(usize),
    Seq(Vec<Side>),
    Alt(Vec<Side>),
    Repeat(Box<Side>, usize, Option<usize>),
}

const RULES: usize = 3;
const NAMES: [&str; RULES] = ["root", "b-1", "c"];

impl Side {
    fn text(&self) -> String {
        let all =
            |parts: &[Self], between: &str| parts.iter().map(Self::text).collect::<Vec<_>>().join(between);
        match self {
            Self::Text(text) => format!("\"{text}\""),
            Self::Class(class, _) => (*class).to_owned(),
            Self::Rule(rule) => NAMES[*rule].to_owned(),
            Self::Seq(parts) => format!("({})", all(parts, " ")),
            Self::Alt(parts) => format!("({})", all(parts, " | ")),
            Self::Repeat(part, min, max) => match (min, max) {
                (0, None) => format!("{}*", part.text()),
                (1, None) => format!("{}+", part.text()),
                (0, Some(1)) => format!("{}?", part.text()),
                (min, None) => format!("{}{{{min},}}", part.text()),
                (min, Some(max)) => format!("{}{{{min},{max}}}", part.text()),
            },
        }
    }

    /// The places where a match that begins at `start` may end, by what is known of the rules.
    fn ends(&self, text: &[char], start: usize, rules: &[BTreeSet<(usize, usize)>]) -> BTreeSet<usize> {
        match self {
            Self::Text(own) => {
                let own: Vec<char> = own.chars().collect();
                text[start..].starts_with(&own).then_some(start + own.len()).into_iter().collect()
            }
            Self::Class(_, has) => {
                text.get(start).filter(|&&letter| has(letter)).map(|_| start + 1).into_iter().collect()
            }
            Self::Rule(rule) => {
                rules[*rule].iter().filter(|(from, _)| *from == start).map(|(_, to)| *to).collect()
            }
            Self::Seq(parts) => parts.iter().fold(BTreeSet::from([start]), |starts, part| {
                starts.iter().flat_map(|&start| part.ends(text, start, rules)).collect()
            }),
            Self::Alt(parts) => parts.iter().flat_map(|part| part.ends(text, start, rules)).collect(),
            Self::Repeat(part, min, max) => {
                let (mut found, mut now) = (BTreeSet::new(), BTreeSet::from([start]));
                // Further repetitions of a part match the empty text.
                for n in 0..=max.unwrap_or(min + text.len() + 1) {
                    if n >= *min {
                        found.extend(&now);
                    }
                    now = now.iter().flat_map(|&start| part.ends(text, start, rules)).collect();
                }
                found
            }
        }
    }
}

/// Whether the rules have a text: all matches of all rules, until there are no further ones.
fn matches(sides: &[Side], text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let mut rules = vec![BTreeSet::new(); sides.len()];
    loop {
        let before = rules.clone();
        for (rule, side) in sides.iter().enumerate() {
            for start in 0..=text.len() {
                let ends = side.ends(&text, start, &rules);
                rules[rule].extend(ends.into_iter().map(|end| (start, end)));
            }
        }
        if before == rules {
            return rules[0].contains(&(0, text.len()));
        }
    }
}

fn side() -> impl Strategy<Value = Side> {
    let leaf = prop_oneof![
        prop::sample::select(vec!["", "a", "b", "ab", "ba", "aab", "é", "è"]).prop_map(Side::Text),
        Just(Side::Class("[ab]", |c| "ab".contains(c))),
        Just(Side::Class("[^a]", |c| c != 'a')),
        Just(Side::Class("[b-\\u00E9]", |c| ('b'..='é').contains(&c))),
        Just(Side::Class(".", |_| true)),
        (0..RULES).prop_map(Side::Rule),
    ];
    leaf.prop_recursive(3, 10, 3, |inner| {
        let bounds = prop::sample::select(vec![
            (0, None),
            (1, None),
            (0, Some(1)),
            (2, None),
            (1, Some(2)),
            (0, Some(0)),
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(Side::Seq),
            prop::collection::vec(inner.clone(), 1..4).prop_map(Side::Alt),
            (inner, bounds).prop_map(|(part, (min, max))| Side::Repeat(Box::new(part), min, max)),
        ]
    })
}

/// Every text of up to three letters, and some longer ones.
fn texts() -> Vec<String> {
    let mut all = vec![String::new()];
    let mut last = all.clone();
    for _ in 0..3 {
        last = last.iter().flat_map(|text| ["a", "b", "é"].map(|letter| format!("{text}{letter}"))).collect();
        all.extend(last.clone());
    }
    all.extend(["è", "aaab", "abab", "baab", "aabb", "ababab", "aèb"].map(str::to_owned));
    all
}

proptest! {
    #![proptest_config(Config { cases: 150, ..Config::default() })]

    #[test]
    fn languages_are_those_of_the_matcher(sides in prop::collection::vec(side(), RULES)) {
        let vocabulary = vocabulary();
        let rules = sides.iter().zip(NAMES).map(|(side, name)| format!("{name} ::= {}\n", side.text()));
        let grammar: String = rules.collect();
        match Grammar::gbnf(&vocabulary, &grammar) {
            Ok(compiled) => {
                for text in texts() {
                    prop_assert_eq!(accepts(&compiled, &text), matches(&sides, &text), "{:?} in\n{}", text, grammar);
                }
            }
            // No text, or one that never ends.
            Err(GrammarError::Refused { kind: GrammarKind::Gbnf, .. }) => {}
            Err(error) => prop_assert!(false, "{}\n{}", error, grammar),
        }
    }

    #[test]
    fn nothing_panics(text in "(root ::= )?[ab\"\\[\\](){},|*+?.^\\\\x0-9:= \n#é<>!-]{0,60}") {
        if let Err(error) = Grammar::gbnf(&vocabulary(), &text) {
            prop_assert!(
                matches!(error, GrammarError::Gbnf { .. } | GrammarError::Refused { kind: GrammarKind::Gbnf, .. }),
                "{}", error
            );
        }
    }
}

#[test]
fn longer_texts_are_kept_apart() {
    let vocabulary = vocabulary();
    for (grammar, have, have_not) in [
        ("root ::= (\"ab\" | \"abc\") \"cd\"", vec!["abcd", "abccd"], vec!["ab", "abc", "abcc"]),
        // With recursion, so that no single expression has it.
        (
            "root ::= \"(\" root \")\" | (\"ab\" | \"abc\") \"cd\"",
            vec!["abcd", "(abccd)"],
            vec!["(abcd", "abc)"],
        ),
        (
            "root ::= x \"c\"? | \"(\" root \")\"\nx ::= \"a\" \"c\"?",
            vec!["acc", "(ac)", "a"],
            vec!["accc", "(a"],
        ),
        ("root ::= [a-z]+ (\",\" root)?", vec!["ab,c", "z"], vec!["a,", ",a"]),
        ("root ::= \"a\" root \"b\" | \"\"", vec!["", "aabb"], vec!["aab", "ba"]),
    ] {
        let compiled =
            Grammar::gbnf(&vocabulary, grammar).unwrap_or_else(|error| panic!("{grammar}: {error}"));
        for text in have {
            assert!(accepts(&compiled, text), "{grammar}: {text}");
        }
        for text in have_not {
            assert!(!accepts(&compiled, text), "{grammar}: {text}");
        }
    }
}

#[test]
fn what_cannot_be_read_is_refused_with_its_place() {
    let vocabulary = vocabulary();
    let error = Grammar::gbnf(&vocabulary, "root ::= \"a\" |\n  <think>").unwrap_err();
    let expected =
        GrammarError::Gbnf { offset: 17, line: 2, column: 3, problem: GbnfProblem::Unsupported("a token") };
    assert_eq!(error, expected);
    let long = "#".repeat(GRAMMAR_BYTES_MAX + 1);
    assert!(matches!(
        Grammar::gbnf(&vocabulary, &long),
        Err(GrammarError::TooLong { kind: GrammarKind::Gbnf, .. })
    ));
    // No text ends.
    assert!(matches!(
        Grammar::gbnf(&vocabulary, "root ::= \"a\" root"),
        Err(GrammarError::Refused { kind: GrammarKind::Gbnf, .. })
    ));
}
