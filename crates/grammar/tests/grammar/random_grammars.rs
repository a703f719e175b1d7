//! Random choices, regular expressions and schemas: the output is one that the grammar describes, and drafting changes no bit.

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::test_runner::Config;
use refrain::{Engine, FinishReason, GenerateOptions, Sampling, SessionOptions};
use refrain_grammar::{Grammar, JsonOptions, Vocabulary};
use serde_json::{Value, json};

use crate::common::{self, Run, Tiny, plain, prompt, run};
use crate::grammars::vocabulary;

static ENGINES: LazyLock<[(Engine, Vocabulary); 2]> = LazyLock::new(|| {
    [Tiny::default().engine(1), common::fixture_engine()].map(|engine| {
        let vocabulary = vocabulary(&engine);
        (engine, vocabulary)
    })
});

/// The output of plain decoding with the mask, which drafting must give too.
fn checked(engine: &Engine, grammar: &Grammar, seed: u64) -> Run {
    let prompt = prompt(seed, 20);
    let temperature = if seed.is_multiple_of(2) { 0.0 } else { 1.2 };
    let options = || GenerateOptions {
        max_tokens: 60,
        sampling: Sampling { temperature, seed: Some(seed), ..Sampling::default() },
        ..GenerateOptions::default()
    };
    let mut masked = options();
    masked.processors.push(Box::new(grammar.mask()));
    let expected = run(engine, plain(), Vec::new(), &prompt, masked);
    let session = SessionOptions { history: false, ..SessionOptions::default() };
    let found = run(engine, session, Vec::new(), &prompt, grammar.constrain(options()));
    found.assert_equal(&expected, "drafted");
    expected
}

/// A small schema, and whether a value is valid under it.
#[derive(Debug, Clone)]
enum Shape {
    Null,
    Boolean,
    Integer(i64, i64),
    Text(usize),
    OneOf(Vec<String>),
    List(Box<Shape>, usize),
    Record(Vec<Shape>),
}

impl Shape {
    fn schema(&self) -> Value {
        match self {
            Self::Null => json!({"type": "null"}),
            Self::Boolean => json!({"type": "boolean"}),
            Self::Integer(min, span) => json!({"type": "integer", "minimum": min, "maximum": min + span}),
            Self::Text(len) => json!({"type": "string", "maxLength": len}),
            Self::OneOf(texts) => json!({"enum": texts}),
            Self::List(item, len) => json!({"type": "array", "items": item.schema(), "maxItems": len}),
            Self::Record(fields) => {
                let names: Vec<String> = (0..fields.len()).map(|i| format!("f{i}")).collect();
                let schemas = fields.iter().map(Self::schema);
                let properties: serde_json::Map<_, _> = names.iter().cloned().zip(schemas).collect();
                json!({"type": "object", "properties": properties, "required": names, "additionalProperties": false})
            }
        }
    }

    fn allows(&self, value: &Value) -> bool {
        match self {
            Self::Null => value.is_null(),
            Self::Boolean => value.is_boolean(),
            Self::Integer(min, span) => {
                // `-0` is the integer zero, which serde_json reads as a number with a fraction.
                let zero = (value.as_f64() == Some(0.0)).then_some(0);
                value.as_i64().or(zero).is_some_and(|n| (*min..=min + span).contains(&n))
            }
            Self::Text(len) => value.as_str().is_some_and(|text| text.chars().count() <= *len),
            Self::OneOf(texts) => value.as_str().is_some_and(|text| texts.iter().any(|own| own == text)),
            Self::List(item, len) => value
                .as_array()
                .is_some_and(|items| items.len() <= *len && items.iter().all(|value| item.allows(value))),
            Self::Record(fields) => value.as_object().is_some_and(|map| {
                let allows = |(i, field): (usize, &Shape)| {
                    map.get(&format!("f{i}")).is_some_and(|value| field.allows(value))
                };
                map.len() == fields.len() && fields.iter().enumerate().all(allows)
            }),
        }
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let leaf = prop_oneof![
        Just(Shape::Null),
        Just(Shape::Boolean),
        (-200i64..200, 0i64..500).prop_map(|(min, span)| Shape::Integer(min, span)),
        (0usize..6).prop_map(Shape::Text),
        prop::collection::vec("[a-cé\" ]{1,4}", 1..5).prop_map(Shape::OneOf),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            (inner.clone(), 0usize..4).prop_map(|(item, len)| Shape::List(Box::new(item), len)),
            prop::collection::vec(inner, 1..4).prop_map(Shape::Record),
        ]
    })
}

proptest! {
    #![proptest_config(Config { cases: 60, ..Config::default() })]

    #[test]
    fn choices(texts in prop::collection::vec("[ab.*(é\\\\日/\"\n]{1,6}", 1..8), seed in 0u64..1000) {
        for (engine, vocabulary) in &*ENGINES {
            let grammar = Grammar::choices(vocabulary, &texts).expect("choices");
            let found = checked(engine, &grammar, seed);
            prop_assert_eq!(found.finish, FinishReason::EndToken);
            prop_assert!(texts.contains(&found.text()), "{:?} of {:?}", found.text(), texts);
        }
    }

    #[test]
    fn schemas(shape in shape(), seed in 0u64..1000, whitespace: bool) {
        let schema = shape.schema().to_string();
        for (engine, vocabulary) in &*ENGINES {
            let mut options = JsonOptions::default();
options.whitespace = whitespace;
            let grammar = Grammar::json_schema(vocabulary, &schema, options).expect("a schema");
            let found = checked(engine, &grammar, seed);
            if found.finish == FinishReason::EndToken {
                let value = serde_json::from_str(&found.text());
                prop_assert!(value.is_ok_and(|value| shape.allows(&value)), "{:?} under {}", found.text(), schema);
            }
        }
    }

    #[test]
    fn regular_expressions(regex in "([a-c]|\\[b-d\\]|\\(a\\|bc\\)|x\\?|y\\{1,3\\}|[é ]){1,6}", seed in 0u64..1000) {
        for (engine, vocabulary) in &*ENGINES {
            let grammar = Grammar::regex(vocabulary, &regex).expect("a regular expression");
            checked(engine, &grammar, seed);
        }
    }
}
