//! Schemas are never weakened and have no dead ends: numbers at the edges of integers and floats, ranges, and grammars that a text can begin
//! and never end. Random texts of a grammar are compared with a validator that knows only decimal digits.

use std::cmp::Ordering;

use refrain::{LogitsProcessor, TokenId};
use refrain_grammar::{Grammar, GrammarError, JsonOptions, Vocabulary};

use crate::common::{EOS, Rng, Tiny, VOCAB_SIZE};

/// Tokens are bytes.
fn vocabulary() -> Vocabulary {
    Vocabulary::of_engine(&Tiny::default().engine(1)).expect("a vocabulary")
}

fn json(vocabulary: &Vocabulary, schema: &str) -> Result<Grammar, GrammarError> {
    Grammar::json_schema(vocabulary, schema, JsonOptions::default())
}

/// The tokens that may follow a text.
fn allowed(mask: &mut refrain_grammar::GrammarMask, text: &[u8]) -> Vec<u32> {
    let tokens: Vec<TokenId> = text.iter().map(|&byte| TokenId(u32::from(byte))).collect();
    let mut logits = vec![0.0; VOCAB_SIZE];
    let processed = mask.process(&tokens, &mut logits);
    processed.unwrap_or_else(|error| panic!("after {:?}: {error}", String::from_utf8_lossy(text)));
    (0..VOCAB_SIZE as u32).filter(|&token| logits[token as usize] == 0.0).collect()
}

/// Whether a grammar has a text.
fn accepts(grammar: &Grammar, text: &str) -> bool {
    let (mut mask, bytes) = (grammar.mask(), text.as_bytes());
    // The output begins with the first token that the mask is asked for.
    (0..=bytes.len()).all(|len| {
        let next = bytes.get(len).map_or(EOS.0, |&byte| u32::from(byte));
        allowed(&mut mask, &bytes[..len]).contains(&next)
    })
}

/// A random text of a grammar. Past `long` bytes, it ends where it may.
fn walk(grammar: &Grammar, random: &mut Rng, long: usize) -> Option<String> {
    let (mut mask, mut text) = (grammar.mask(), Vec::new());
    while text.len() < 20 * long {
        let next = allowed(&mut mask, &text);
        let ends = next.contains(&EOS.0);
        if ends && (text.len() >= long || random.below(4) == 0 || next.len() == 1) {
            return Some(String::from_utf8(text).expect("JSON is UTF-8"));
        }
        let mut next: Vec<u8> = next.into_iter().filter_map(|token| u8::try_from(token).ok()).collect();
        // Closing brackets, quotes and commas end the parts of a text.
        if text.len() >= long && next.iter().any(|byte| b"}]\"".contains(byte)) {
            next.retain(|byte| b"}]\"".contains(byte));
        }
        text.push(next[random.below(next.len())]);
    }
    None
}

/// Sign, digits before and behind the point.
fn parts(number: &str) -> (bool, String, String) {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let exponent: i32 = exponent.parse().expect("a small exponent");
    let (is_negative, mantissa) = (mantissa.starts_with('-'), mantissa.trim_start_matches('-'));
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let (mut integer, mut fraction) = (integer.to_owned(), fraction.to_owned());
    for _ in 0..exponent.max(0) {
        integer.push(if fraction.is_empty() { '0' } else { fraction.remove(0) });
    }
    for _ in 0..(-exponent).max(0) {
        fraction.insert(0, integer.pop().unwrap_or('0'));
    }
    let (integer, fraction) =
        (integer.trim_start_matches('0').to_owned(), fraction.trim_end_matches('0').to_owned());
    (is_negative && !(integer.is_empty() && fraction.is_empty()), integer, fraction)
}

/// The order of two numbers as JSON writes them.
fn order(a: &str, b: &str) -> Ordering {
    let ((a_sign, a_integer, a_fraction), (b_sign, b_integer, b_fraction)) = (parts(a), parts(b));
    let magnitudes = a_integer
        .len()
        .cmp(&b_integer.len())
        .then(a_integer.cmp(&b_integer))
        .then(a_fraction.cmp(&b_fraction));
    match (a_sign, b_sign) {
        (false, false) => magnitudes,
        (true, true) => magnitudes.reverse(),
        (false, true) => Ordering::Greater,
        (true, false) => Ordering::Less,
    }
}

const EDGES: [&str; 34] = [
    "0",
    "-0",
    "-0.0",
    "1",
    "-1",
    "0.1",
    "-0.5",
    "9007199254740991",
    "9007199254740992",
    "9007199254740993",
    "-9007199254740991",
    "-9007199254740993",
    "9223372036854775806",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775807",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551614",
    "18446744073709551615",
    "18446744073709551616",
    "4294967295",
    "4294967296",
    "1e15",
    "1e19",
    "1e22",
    "1e23",
    "1e308",
    "1.7976931348623157e308",
    "-1e308",
    "5e-324",
    "2.2250738585072014e-308",
    "0.30000000000000004",
    "1e400",
];

#[test]
fn constants_at_the_edges_are_exact_or_refused() {
    let vocabulary = vocabulary();
    let mut random = Rng(1);
    for edge in EDGES {
        for schema in [
            format!(r#"{{"const":{edge}}}"#),
            format!(r#"{{"enum":[{edge}]}}"#),
            format!(r#"{{"type":"number","enum":["a",{edge}]}}"#),
            format!(r#"{{"type":"array","items":{{"const":{edge}}},"minItems":1,"maxItems":1}}"#),
            format!(r#"{{"const":[{edge}]}}"#),
            format!(r#"{{"const":{{"a":{edge}}}}}"#),
            format!(r#"{{"type":"number","minimum":{edge},"maximum":{edge}}}"#),
            format!(r#"{{"allOf":[{{"const":{edge}}},{{"description":"a"}}]}}"#),
            format!(r#"{{"anyOf":[{{"const":{edge}}}],"title":"a"}}"#),
        ] {
            match json(&vocabulary, &schema) {
                Ok(grammar) => {
                    let text =
                        walk(&grammar, &mut random, 700).unwrap_or_else(|| panic!("{schema} has a text"));
                    let number = text.trim_matches(|c: char| "[]{}:\"a".contains(c));
                    assert_eq!(order(number, edge), Ordering::Equal, "{schema} gives {text}");
                }
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains(edge) || edge == "1e400", "{schema}: {error}");
                    assert!(edge == "1e400" || schema.contains("allOf"), "{schema}: {error}");
                }
            }
        }
    }
}

#[test]
fn bounds_at_the_edges_are_exact_or_refused() {
    let vocabulary = vocabulary();
    let mut random = Rng(2);
    for edge in EDGES {
        for kind in ["integer", "number"] {
            for keyword in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
                let schema = format!(r#"{{"type":"{kind}","{keyword}":{edge}}}"#);
                let grammar = match json(&vocabulary, &schema) {
                    Ok(grammar) => grammar,
                    Err(error) => {
                        let error = error.to_string();
                        assert!(
                            edge == "1e400" && error.contains(keyword) && error.contains(edge),
                            "{schema}: {error}"
                        );
                        continue;
                    }
                };
                let allows = |text: &str| match (keyword, order(text, edge)) {
                    ("minimum", order) => order.is_ge(),
                    ("maximum", order) => order.is_le(),
                    ("exclusiveMinimum", order) => order.is_gt(),
                    (_, order) => order.is_lt(),
                };
                for _ in 0..2 {
                    let text = walk(&grammar, &mut random, 30).unwrap_or_else(|| "0".repeat(0));
                    assert!(text.is_empty() || allows(&text), "{schema} gives {text}");
                }
                let is_short = !edge.contains(['e', '.']) && !edge.starts_with("-0");
                if is_short {
                    assert_eq!(accepts(&grammar, edge), allows(edge), "{schema} and its bound");
                }
            }
        }
    }
}

#[test]
fn other_keywords_at_the_edges_are_kept_or_refused() {
    let vocabulary = vocabulary();
    for edge in EDGES {
        for (kind, keyword) in [
            ("number", "multipleOf"),
            ("integer", "multipleOf"),
            ("string", "minLength"),
            ("string", "maxLength"),
            ("array", "minItems"),
            ("array", "maxItems"),
            ("object", "minProperties"),
            ("object", "maxProperties"),
        ] {
            let schema = format!(r#"{{"type":"{kind}","{keyword}":{edge}}}"#);
            let result = json(&vocabulary, &schema);
            let is_small = ["0", "-0", "-0.0", "1"].contains(&edge);
            if is_small && keyword != "multipleOf" {
                assert!(result.is_ok(), "{schema}: {result:?}");
            }
            if let Err(error) = result {
                assert!(!matches!(error, GrammarError::Parser { .. }), "{schema}: {error}");
                assert!(error.to_string().len() < 1200, "{schema}: {error}");
            }
        }
    }
}

#[test]
fn the_cases_that_were_weakened() {
    let vocabulary = vocabulary();
    for (schema, inside, outside) in [
        (
            r#"{"type":"number","exclusiveMinimum":0,"maximum":0.5}"#,
            &["0.1", "0.5", "0.50", "0.0001"][..],
            &["0", "0.0", "-0.1", "0.51", "1"][..],
        ),
        (
            r#"{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807}"#,
            &["-9223372036854775808", "9223372036854775807", "0", "17"],
            &["-9223372036854775809", "9223372036854775808"],
        ),
        (
            r#"{"type":"integer","minimum":0,"maximum":18446744073709551615}"#,
            &["18446744073709551615"],
            &["18446744073709551616", "-1"],
        ),
        (r#"{"enum":[9007199254740993]}"#, &["9007199254740993"], &["9007199254740992"]),
        (r#"{"type":"integer","multipleOf":3,"minimum":-4}"#, &["-3", "0", "3", "12"], &["-6", "4"]),
        (r#"{"type":"number","multipleOf":0.01,"minimum":0}"#, &["1.25", "3", "0.5"], &["1.255", "-1"]),
        (r#"{"type":["integer","null"],"minimum":5}"#, &["5", "null"], &["4", "\"a\""]),
        (
            r#"{"anyOf":[{"type":"integer","minimum":5},{"type":"number","maximum":3}]}"#,
            &["5", "2.5"],
            &["4", "3.5"],
        ),
        (
            r#"{"anyOf":[{"type":"integer","minimum":5},{"type":"null"}],"x-unknown":1,"title":"a"}"#,
            &["5", "null"],
            &["4"],
        ),
        (r#"{"anyOf":[{"type":"integer","minimum":5},{"type":"null"}],"unknown":1}"#, &["5", "null"], &["4"]),
        (
            r##"{"$id":"http://example.com/a","items":{"$ref":"#/$defs/b"},"type":"array","$defs":{"b":{"type":"number","exclusiveMaximum":0.5}}}"##,
            &["[0.4]"],
            &["[0.5]"],
        ),
        (
            r##"{"type":"object","properties":{"a":{"$ref":"#/$defs/b"},"c":{"$ref":"#/$defs/b","maximum":3}},"$defs":{"b":{"type":"integer","minimum":2}},"required":["c"]}"##,
            &[r#"{"a":9,"c":3}"#],
            &[r#"{"c":4}"#, r#"{"c":1}"#],
        ),
        (r#"{"type":["integer","string"],"maximum":5,"maxLength":1}"#, &["5", "\"a\""], &["6", "\"ab\""]),
        (r#"{"type":"integer","minimum":5,"exclusiveMinimum":true}"#, &["6"], &["5"]),
    ] {
        let grammar = json(&vocabulary, schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        inside.iter().for_each(|text| assert!(accepts(&grammar, text), "{schema} and {text}"));
        outside.iter().for_each(|text| assert!(!accepts(&grammar, text), "{schema} and {text}"));
    }
}

/// Schemas inside a Lark grammar are rewritten too.
#[test]
fn lark_has_the_same_numbers() {
    let vocabulary = vocabulary();
    let grammar = |schema: &str| Grammar::lark(&vocabulary, &format!("start: \"<\" %json {schema} \">\"\n"));
    let exact = grammar(
        r#"{"properties":{"n":{"enum":[-9223372036854775808,9007199254740993]}},"required":["n"],"additionalProperties":false,"x-guidance":{"whitespace_flexible":false}}"#,
    );
    let exact = exact.expect("exact numbers");
    for (text, is_inside) in [
        (r#"<{"n":-9223372036854775808}>"#, true),
        (r#"<{"n":9007199254740993}>"#, true),
        (r#"<{"n":9007199254740992}>"#, false),
    ] {
        assert_eq!(accepts(&exact, text), is_inside, "{text}");
    }
    let refused = grammar(r#"{"type":"integer","multipleOf":1000003}"#).map(drop).unwrap_err().to_string();
    assert!(refused.contains("multipleOf") && refused.contains("1000003"), "{refused}");
}

/// A mask may first be asked for in the middle of a text.
#[test]
fn a_mask_begins_where_it_is_told() {
    let grammar = Grammar::choices(&vocabulary(), ["abc", "abd"]).unwrap();
    let mut mask = grammar.mask();
    mask.begin_at(2);
    assert_eq!(allowed(&mut mask, b"xyab"), [u32::from(b'c'), u32::from(b'd')]);
}

/// Masks that are computed ahead are those that are not.
#[test]
fn masks_ahead_are_the_same() {
    let vocabulary = vocabulary();
    let schema = r#"{"type":"object","properties":{"a":{"enum":["x","xy",1]},"b":{"type":"number","maximum":7}},"required":["b"]}"#;
    let grammar = json(&vocabulary, schema).unwrap();
    let mut random = Rng(5);
    for _ in 0..40 {
        let (mut options, ahead) = grammar.constrain_ahead(refrain::GenerateOptions::default());
        let mut mask = grammar.mask();
        let mut text = Vec::new();
        for _ in 0..30 {
            let tokens: Vec<TokenId> = text.iter().map(|&byte| TokenId(u32::from(byte))).collect();
            if random.below(3) > 0 {
                // Also behind an older text, as if tokens were drafted and dropped.
                ahead.compute(&tokens[..tokens.len() - random.below(2).min(tokens.len())]);
            }
            let mut logits = vec![0.0; VOCAB_SIZE];
            options.processors[0].process(&tokens, &mut logits).unwrap();
            let next = allowed(&mut mask, &text);
            let ahead: Vec<u32> =
                (0..VOCAB_SIZE as u32).filter(|&token| logits[token as usize] == 0.0).collect();
            assert_eq!(ahead, next);
            let Some(byte) =
                next.iter().filter_map(|&token| u8::try_from(token).ok()).nth(random.below(next.len()))
            else {
                break;
            };
            text.push(byte);
        }
    }
}

/// Fractions as bounds that are intersected with others. A number may need zeros at its end.
#[test]
fn fractions_beside_other_bounds_are_exact() {
    let vocabulary = vocabulary();
    let bounds = [
        "-10.01", "-1.5", "-1", "-0.55", "-0.5", "-0.05", "0", "0.05", "0.5", "0.54", "0.55", "1", "1.05",
        "9.9", "10",
    ];
    let mut candidates = Vec::new();
    for integer in ["0", "1", "2", "9", "10", "11", "100"] {
        for fraction in
            ["", ".01", ".05", ".049", ".051", ".4", ".5", ".501", ".54", ".545", ".55", ".6", ".9", ".99"]
        {
            candidates.push(format!("{integer}{fraction}"));
            candidates.push(format!("-{integer}{fraction}"));
        }
    }
    for (i, lower) in bounds.iter().enumerate() {
        for upper in &bounds[i..] {
            for schema in [
                format!(r#"{{"allOf":[{{"type":"number","minimum":{lower}}},{{"maximum":{upper}}}]}}"#),
                format!(
                    r##"{{"oneOf":[{{"$ref":"#/$defs/a"}}],"title":"a","x":0,"$defs":{{"a":{{"type":"number","minimum":{lower}}}}}}}"##
                ),
                format!(r#"{{"allOf":[{{"type":"number"}},{{"maximum":{upper}}}]}}"#),
            ] {
                let grammar = json(&vocabulary, &schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
                for number in &candidates {
                    let is_inside = (!schema.contains("minimum") || order(number, lower).is_ge())
                        && (!schema.contains("maximum") || order(number, upper).is_le());
                    let point = if number.contains('.') { "" } else { "." };
                    let forms = [number.clone(), format!("{number}{point}0"), format!("{number}{point}00")];
                    let is_written = forms.iter().any(|form| accepts(&grammar, form));
                    assert!(is_inside || !is_written, "{number} in {schema}");
                    // Zero is written without a sign.
                    assert!(
                        is_written || !is_inside || number.starts_with("-0") && order(number, "0").is_eq(),
                        "{number} in {schema}"
                    );
                }
            }
        }
    }
}

/// The texts of sets of numbers are found whatever the name of the schema.
#[test]
fn schemas_with_names_of_their_own() {
    let vocabulary = vocabulary();
    for schema in [
        r#"{"id":"https://x/a","type":"integer","minimum":10}"#,
        r#"{"$id":"https://x/a","type":"integer","minimum":10}"#,
        r#"{"$schema":"http://json-schema.org/draft-04/schema#","id":"http://x/a","type":"integer","minimum":10}"#,
        r#"{"$schema":"http://json-schema.org/draft-04/schema#","type":"integer","minimum":10}"#,
        r#"{"$schema":"http://json-schema.org/draft-06/schema#","$id":"http://x/a","type":"integer","minimum":10}"#,
        r#"{"$schema":"http://json-schema.org/draft-07/schema#","$id":"http://x/a","type":"integer","minimum":10}"#,
        r#"{"$schema":"http://json-schema.org/draft-07/schema#","$id":"http://x/a","minimum":10}"#,
        r##"{"$schema":"http://json-schema.org/draft-07/schema#","$id":"http://x/a","$ref":"#/definitions/b","definitions":{"b":{"type":"integer","minimum":10}}}"##,
        r#"{"$schema":"http://json-schema.org/draft-07/schema#","$id":"http://x/a","allOf":[{"type":"integer","minimum":10}]}"#,
        r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"http://x/a","type":"integer","minimum":10}"#,
    ] {
        let grammar = json(&vocabulary, schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert!(accepts(&grammar, "10") && !accepts(&grammar, "9"), "{schema}");
    }
    // Draft 4 has no `const`.
    let list = r#"{"$schema":"http://json-schema.org/draft-04/schema#","enum":[["a",9007199254740993]]}"#;
    let grammar = json(&vocabulary, list).unwrap_or_else(|error| panic!("{error}"));
    assert!(
        accepts(&grammar, r#"["a",9007199254740993]"#) && !accepts(&grammar, r#"["b",9007199254740993]"#)
    );
    let anchored = r##"{"type":"object","properties":{"a":{"$anchor":"b","enum":["x"]},"c":{"$ref":"#b"}},"required":["a","c"],"additionalProperties":false}"##;
    let grammar = json(&vocabulary, anchored).unwrap_or_else(|error| panic!("{error}"));
    assert!(accepts(&grammar, r#"{"a":"x","c":"x"}"#));
}

/// Grammars with a state from which no text ends.
#[test]
fn dead_ends_are_refused_or_never_entered() {
    let vocabulary = vocabulary();
    let mut random = Rng(3);
    let schemas = [
        (
            r#"{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"patternProperties":{"^a$":{"type":"integer"}},"additionalProperties":false}"#,
            true,
        ),
        (
            r#"{"type":"object","properties":{"a":{"type":"integer"}},"patternProperties":{"^a$":{"maximum":3}},"additionalProperties":false}"#,
            true,
        ),
        (
            r#"{"type":"object","required":["a","b"],"patternProperties":{"^[ab]$":{"type":"null"}},"additionalProperties":false}"#,
            true,
        ),
        (r#"{"type":"object","patternProperties":{"":{"type":"null"}}}"#, true),
        (r##"{"$ref":"#"}"##, false),
        (r##"{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}"##, false),
        (r##"{"type":"array","items":{"$ref":"#"},"minItems":1}"##, false),
        (r##"{"type":"array","items":{"$ref":"#"}}"##, true),
        (r##"{"anyOf":[{"$ref":"#"},{"type":"null"}]}"##, true),
        (r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}"##, false),
        (
            r##"{"allOf":[{"$ref":"#/$defs/a"},{"type":"object"}],"$defs":{"a":{"properties":{"a":{"$ref":"#/$defs/a"}},"required":["a"],"type":"object"}}}"##,
            false,
        ),
        (r#"{"enum":[]}"#, false),
        (r#"{"type":"integer","enum":["a"]}"#, false),
        (r#"{"type":"array","minItems":3,"maxItems":2}"#, false),
        (r#"{"type":"string","minLength":3,"maxLength":2}"#, false),
        (r#"{"type":"string","pattern":"^a$","minLength":2}"#, false),
        (r#"{"type":"string","pattern":"[^\\s\\S]"}"#, false),
        (r#"{"allOf":[{"type":"string"},{"type":"integer"}]}"#, false),
        (r#"{"type":"integer","exclusiveMinimum":1,"exclusiveMaximum":2}"#, false),
        (r#"{"type":"object","required":["a"],"additionalProperties":false}"#, false),
        (r#"{"type":"object","required":["a","b"],"maxProperties":1}"#, false),
        (
            r#"{"type":"object","minProperties":2,"properties":{"a":{}},"required":["a"],"additionalProperties":false}"#,
            false,
        ),
        (
            r#"{"type":"object","properties":{"a":{"type":"integer","minimum":2,"maximum":1}},"required":["a"]}"#,
            false,
        ),
        (r#"{"type":"object","properties":{"a":{"type":"integer","minimum":2,"maximum":1}}}"#, true),
        (r#"{"anyOf":[{"type":"integer","multipleOf":7,"minimum":1,"maximum":6},{"type":"null"}]}"#, true),
        ("true", true),
    ];
    for (schema, has_texts) in schemas {
        match json(&vocabulary, schema) {
            Ok(grammar) => {
                assert!(has_texts, "{schema} has no text");
                for _ in 0..20 {
                    walk(&grammar, &mut random, 20);
                }
            }
            Err(error) => {
                assert!(matches!(error, GrammarError::Schema { .. }), "{schema}: {error}");
                assert!(!has_texts, "{schema}: {error}");
            }
        }
    }
    for (lark, has_texts) in [
        ("start: a\na: \"x\" a\n", false),
        ("start: \"x\" | \"y\" a\na: \"z\" a\n", false),
        ("start: \"x\" | a\na: \"z\" a | \"b\"\n", true),
        ("start: A\nA: /[^\\s\\S]/\n", false),
        ("start: \"x\" | \"y\" A\nA: /a/ & /b/\n", false),
        ("start: \"x\" | A\nA: /a/ & /b/\n", true),
        ("start: \"a\" b*\nb: b \"c\"\n", true),
        ("start: \"a\" b*\nb: \"c\" b\n", false),
    ] {
        match Grammar::lark(&vocabulary, lark) {
            Ok(grammar) => {
                assert!(has_texts, "{lark}");
                (0..20).for_each(|_| drop(walk(&grammar, &mut random, 20)));
            }
            Err(error) => assert!(!has_texts, "{lark}: {error}"),
        }
    }
    for regex in ["[^\\s\\S]", "a[^\\s\\S]", "(x[^\\s\\S])+"] {
        assert!(Grammar::regex(&vocabulary, regex).is_err(), "{regex}");
    }
    let pattern = json(&vocabulary, schemas[0].0).unwrap();
    assert!(accepts(&pattern, r#"{"a":45}"#));
}
