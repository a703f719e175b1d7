//! Grammars that are refused: a typed error before any decoding, in bounded time and memory, never a weaker grammar.

use refrain_grammar::{
    CHOICES_MAX, GRAMMAR_BYTES_MAX, Grammar, GrammarError, GrammarKind, JsonOptions, MARKER_BYTES_MAX,
    Vocabulary,
};

use crate::common::Tiny;
use crate::grammars::vocabulary;

fn tiny() -> Vocabulary {
    vocabulary(&Tiny::default().engine(1))
}

fn json(vocabulary: &Vocabulary, schema: &str) -> Result<Grammar, GrammarError> {
    Grammar::json_schema(vocabulary, schema, JsonOptions::default())
}

#[test]
fn schemas() {
    let vocabulary = tiny();
    // A schema, the place of what is refused if it is known, and a word of the reason.
    let table = [
        (r#"{"contains": {"type": "null"}, "type": "array"}"#, Some(""), "contains"),
        (
            r#"{"properties": {"a": {"type": "array", "uniqueItems": true}}}"#,
            Some("/properties/a"),
            "uniqueItems",
        ),
        (r#"{"items": {"type": "string", "format": "iri"}}"#, Some("/items"), "iri"),
        (r#"{"not": {"type": "null"}}"#, Some(""), "not"),
        (r#"{"type": "strange"}"#, None, "strange"),
        (r#"{"type": 1}"#, None, "type"),
        (r#"{"enum": 1}"#, None, "enum"),
        (r##"{"$ref": "#/$defs/none"}"##, None, "none"),
        (r#"{"$ref": "https://example.com/other.json"}"#, None, "example.com"),
        (r#"{"type": "string", "pattern": "("}"#, None, ""),
        (r#"{"type": "string", "pattern": "a(?=b)"}"#, None, ""),
        (r#"{"type": "integer", "minimum": 3, "maximum": 2}"#, None, ""),
        (r#"{"x-guidance": {"lenient": true}, "contains": 1}"#, Some(""), "x-guidance"),
        ("[]", Some(""), "object or a boolean"),
        ("false", Some(""), "no value"),
    ];
    for (schema, place, word) in table {
        match json(&vocabulary, schema) {
            Err(GrammarError::Schema { pointer, reason }) => {
                assert_eq!(pointer.as_deref(), place, "{schema}: {reason}");
                assert!(reason.contains(word), "{schema}: {reason}");
                assert!(!reason.contains("backtrace"), "{reason}");
            }
            other => panic!("{schema}: {other:?}"),
        }
    }
    assert!(matches!(json(&vocabulary, "{\"a\": }"), Err(GrammarError::NotJson { line: 1, column: 7, .. })));
    assert!(matches!(json(&vocabulary, ""), Err(GrammarError::NotJson { .. })));
    let deep = format!("{}1{}", "{\"a\":".repeat(5000), "}".repeat(5000));
    assert!(matches!(json(&vocabulary, &deep), Err(GrammarError::NotJson { .. })));
}

#[test]
fn regular_expressions_and_lark() {
    let vocabulary = tiny();
    for regex in ["(", "a{2,1}", "[z-a]", "(?=a)b", "\\1", "\\p{Unknown}"] {
        let refused = Grammar::regex(&vocabulary, regex);
        assert!(
            matches!(refused, Err(GrammarError::Refused { kind: GrammarKind::Regex, .. })),
            "{regex}: {refused:?}"
        );
    }
    for (lark, word) in [
        ("", ""),
        ("start: missing", "missing"),
        ("begin: \"a\"", "start"),
        ("start: (\"a\"", ""),
        ("start: <|no_such_token|>", "no_such_token"),
        ("start: %json { \"contains\": 1, \"type\": \"array\" }", "contains"),
    ] {
        match Grammar::lark(&vocabulary, lark) {
            Err(GrammarError::Refused { kind: GrammarKind::Lark, reason }) => {
                assert!(reason.contains(word), "{lark}: {reason}");
            }
            other => panic!("{lark}: {other:?}"),
        }
    }
}

#[test]
fn choices_and_markers() {
    let vocabulary = tiny();
    let none: [&str; 0] = [];
    let refused = |error: Result<Grammar, GrammarError>| error.map(|_| ()).unwrap_err();
    assert_eq!(
        refused(Grammar::choices(&vocabulary, none)),
        GrammarError::NumberOfChoices { given: 0, max: CHOICES_MAX }
    );
    assert_eq!(refused(Grammar::choices(&vocabulary, ["a", ""])), GrammarError::EmptyChoice { index: 1 });
    let many = refused(Grammar::choices(&vocabulary, std::iter::repeat_n("a", 1 << 40)));
    assert!(matches!(many, GrammarError::NumberOfChoices { .. }));
    let long = "a".repeat(GRAMMAR_BYTES_MAX / 2 + 1);
    assert!(matches!(refused(Grammar::choices(&vocabulary, [&long, &long])), GrammarError::TooLong { .. }));
    let grammar = Grammar::choices(&vocabulary, ["a"]).unwrap();
    for marker in [String::new(), "x".repeat(MARKER_BYTES_MAX + 1)] {
        let given = marker.len();
        assert_eq!(
            refused(grammar.after(&marker)),
            GrammarError::MarkerLength { given, max: MARKER_BYTES_MAX }
        );
    }
}

/// Texts of 10 MB, and texts that are short but nested or repeated without end: an error, on a small stack.
#[test]
fn huge_and_nested_grammars() {
    let vocabulary = tiny();
    let huge = format!(r#"{{"enum": ["{}"]}}"#, "a".repeat(10 << 20));
    assert!(matches!(
        json(&vocabulary, &huge),
        Err(GrammarError::TooLong { kind: GrammarKind::JsonSchema, max: GRAMMAR_BYTES_MAX, .. })
    ));
    assert!(matches!(Grammar::regex(&vocabulary, &huge), Err(GrammarError::TooLong { .. })));
    assert!(matches!(Grammar::lark(&vocabulary, &huge), Err(GrammarError::TooLong { .. })));

    let nested = |open: &str, inner: &str, close: &str, n: usize| {
        [open.repeat(n), inner.into(), close.repeat(n)].concat()
    };
    let results = [
        Grammar::regex(&vocabulary, &nested("(", "a", ")", 100_000)),
        Grammar::regex(&vocabulary, &nested("(a|", "b", ")*", 100)),
        Grammar::regex(&vocabulary, &nested("(?:", "a", "){2}", 60)),
        Grammar::regex(&vocabulary, &format!("({})", "a|".repeat(50_000))),
        Grammar::lark(&vocabulary, &nested("start: (", "\"a\"", ")", 1)),
        Grammar::lark(&vocabulary, &format!("start: {}", nested("(", "\"a\"", ")", 100_000))),
        Grammar::lark(&vocabulary, &format!("start: {}", nested("%lark {start: ", "\"a\"", "}", 10_000))),
        json(&vocabulary, &nested(r#"{"items":"#, "true", "}", 120)),
        json(&vocabulary, &nested(r#"{"allOf":[{"items":"#, "true", "}]}", 40)),
        json(&vocabulary, r#"{"type": "string", "pattern": "((a{1,500}){1,500}){1,500}"}"#),
        json(&vocabulary, r#"{"type": "array", "minItems": 100000000}"#),
        json(&vocabulary, r#"{"type": "string", "minLength": 100000000}"#),
    ];
    for (i, result) in results.into_iter().enumerate() {
        if let Err(error) = result {
            assert!(error.to_string().len() < 2000, "{i}: {error}");
        }
    }
}
