//! The grammars of the tests, each with a check of its texts that does not use the parser.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

use refrain::Engine;
use refrain_grammar::{Grammar, JsonOptions, Vocabulary};
use serde_json::Value;

/// A name, a grammar, and whether a whole text belongs to it.
pub type Case = (&'static str, Grammar, fn(&str) -> bool);

pub const COMMAND: &str = r#"{
    "type": "object",
    "properties": {
        "action": {"enum": ["click", "scroll_up", "scroll_down", "type"]},
        "target": {"enum": ["e1", "e2", "e12", "next page", "close"]},
        "text": {"type": "string", "maxLength": 8}
    },
    "required": ["action", "target"],
    "additionalProperties": false
}"#;

pub const NESTED: &str = r##"{
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": -3, "maximum": 120},
        "is_new": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["a", "ab", "é"]}, "minItems": 1, "maxItems": 3},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]}
    },
    "required": ["n", "is_new", "tags", "next"],
    "additionalProperties": false,
    "$defs": {"point": {"type": "object", "properties": {"x": {"const": 1}}, "required": ["x"], "additionalProperties": false}}
}"##;

pub const TITLES: [&str; 6] = ["Trip to Aniarda", "Trip to Oslo", "Dentist", "Die Prüfung", "日本語", "Trip"];

const LARK: &str = r#"
start: sum
sum: term ("+" term)*
term: NUMBER | "(" sum ")"
NUMBER: /[0-9]{1,3}/
"#;

pub fn vocabulary(engine: &Engine) -> Vocabulary {
    Vocabulary::of_engine(engine).expect("a vocabulary")
}

pub fn all(vocabulary: &Vocabulary) -> Vec<Case> {
    let json = |schema, options| Grammar::json_schema(vocabulary, schema, options).expect("a schema");
    let compact = JsonOptions::default();
    let mut spaced = compact;
    spaced.whitespace = true;
    vec![
        ("command", json(COMMAND, compact), is_command),
        ("command with white space", json(COMMAND, spaced), is_command),
        ("nested", json(NESTED, compact), is_nested),
        (
            "regex",
            Grammar::regex(vocabulary, "(yes|no), [a-f]{2,5}(é|ü)? (because|since)\\.").unwrap(),
            is_reply,
        ),
        ("choices", Grammar::choices(vocabulary, TITLES).unwrap(), |text| TITLES.contains(&text)),
        ("lark", Grammar::lark(vocabulary, LARK).unwrap(), is_sum),
    ]
}

/// The same grammars after a marker.
pub fn after_marker(vocabulary: &Vocabulary, marker: &str) -> Vec<Case> {
    let after = |(name, grammar, check): Case| (name, grammar.after(marker).expect("a marker"), check);
    all(vocabulary).into_iter().map(after).collect()
}

fn is_command(text: &str) -> bool {
    let Ok(Value::Object(map)) = serde_json::from_str::<Value>(text) else { return false };
    let is_one_of = |key: &str, values: &[&str]| {
        map.get(key).and_then(Value::as_str).is_some_and(|v| values.contains(&v))
    };
    is_one_of("action", &["click", "scroll_up", "scroll_down", "type"])
        && is_one_of("target", &["e1", "e2", "e12", "next page", "close"])
        && map.get("text").is_none_or(|text| text.as_str().is_some_and(|text| text.chars().count() <= 8))
        && map.keys().all(|key| ["action", "target", "text"].contains(&key.as_str()))
}

fn is_nested(text: &str) -> bool {
    let Ok(Value::Object(map)) = serde_json::from_str::<Value>(text) else { return false };
    let tags = map["tags"].as_array().map(Vec::as_slice).unwrap_or_default();
    map["n"].as_i64().is_some_and(|n| (-3..=120).contains(&n))
        && map["is_new"].is_boolean()
        && (1..=3).contains(&tags.len())
        && tags.iter().all(|tag| tag.as_str().is_some_and(|tag| ["a", "ab", "é"].contains(&tag)))
        && (map["next"].is_null() || map["next"] == serde_json::json!({"x": 1}))
        && map.len() == 4
}

fn is_reply(text: &str) -> bool {
    let Some((answer, rest)) = text.split_once(", ") else { return false };
    let Some((word, reason)) = rest.split_once(' ') else { return false };
    let letters = word.trim_end_matches(['é', 'ü']);
    ["yes", "no"].contains(&answer)
        && (2..=5).contains(&letters.len())
        && letters.chars().all(|c| ('a'..='f').contains(&c))
        && word.chars().count() <= letters.len() + 1
        && ["because.", "since."].contains(&reason)
}

/// A sum of numbers of up to three digits and of sums in parentheses.
fn is_sum(text: &str) -> bool {
    let (mut depth, mut n_digits, mut is_term) = (0, 0, false);
    for c in text.chars() {
        let is_allowed = match c {
            '0'..='9' => !is_term || (1..3).contains(&n_digits),
            '(' => !is_term,
            ')' => is_term && depth > 0,
            '+' => is_term,
            _ => false,
        };
        if !is_allowed {
            return false;
        }
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        n_digits = if c.is_ascii_digit() { n_digits + 1 } else { 0 };
        is_term = matches!(c, '0'..='9' | ')');
    }
    is_term && depth == 0
}
