use super::sizes::Sizes;
use super::*;
use crate::limits::{
    COPIED_BYTES_MAX, FORCED_BYTES_MAX, KEYWORDS_MAX, NAME_BYTES_MAX, ONE_OF_MAX, PATTERN_PROPERTIES_MAX,
    PATTERNS_MAX, PROPERTIES_MAX, REFS_MAX, STRING_BYTES_MAX, VALUES_MAX,
};

fn pointer(schema: &Value, reason: &str) -> Option<String> {
    match refused(&schema.to_string(), reason.to_owned()) {
        GrammarError::Schema { pointer, .. } => pointer,
        error => panic!("{error}"),
    }
}

#[test]
fn what_is_refused_has_a_place() {
    let schema = json!({
        "properties": {"contains": {"enum": [{"contains": 1}]}, "a/b": {"items": {"contains": true}}},
        "allOf": [{}, {"format": "iri"}],
    });
    let reason = r#"Unimplemented keys: ["contains"]"#;
    assert_eq!(pointer(&schema, reason).as_deref(), Some("/properties/a~1b/items"));
    assert_eq!(pointer(&schema, "Unknown format: iri").as_deref(), Some("/allOf/1"));
    let reason = "required must be an array\n  while processing #/$defs/x\n";
    assert_eq!(pointer(&schema, reason).as_deref(), Some("/$defs/x"));
    assert_eq!(pointer(&schema, "too many things"), None);
}

#[test]
fn options_come_from_the_app() {
    let read = |text| read(text, JsonOptions::default(), &mut Numbers::new());
    let lenient = r#"{"x-guidance": {"lenient": true}, "contains": 1}"#;
    assert!(matches!(read(lenient), Err(GrammarError::Schema { .. })));
    for text in ["1", "[]", "null", "false", "\"a\""] {
        assert!(matches!(read(text), Err(GrammarError::Schema { .. })), "{text}");
    }
    let error = read("{\n  \"a\": ,}").unwrap_err();
    assert!(matches!(error, GrammarError::NotJson { line: 2, .. }), "{error}");
    assert!(read("true").is_ok());
}

/// A schema after the pass, with `N` for the references to sets of numbers.
fn rewritten(schema: &str) -> String {
    let mut numbers = Numbers::new();
    let mut value = rewrite(&Json::read(schema).unwrap(), &mut numbers)
        .unwrap_or_else(|error| panic!("{schema}: {error}"));
    value["$defs"].as_object_mut().map(|map| map.shift_remove(&numbers.prefix));
    let text = value.to_string().replace(",\"$defs\":{}", "").replace(",\"$defs\":null", "");
    let mut parts = text.split("json-schema:///#/$defs/refrain-numbers-");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| format!("{text}N{}", &part[part.find('"').unwrap()..]))
}

#[test]
fn numbers_that_stand_alone_are_replaced() {
    for (schema, expected) in [
        (r#"{"type":"integer","minimum":1}"#, r#"{"$ref":"N"}"#),
        (
            r#"{"minimum":1}"#,
            r#"{"anyOf":[{"type":["null","boolean","string","array","object"]},{"$ref":"N"}]}"#,
        ),
        (r#"{"type":["string","null"],"minimum":1}"#, r#"{"type":["string","null"]}"#),
        (r#"{"type":"integer"}"#, r#"{"type":"integer"}"#),
        (
            r#"{"properties":{"minimum":{"type":"number","maximum":5}}}"#,
            r#"{"properties":{"minimum":{"$ref":"N"}}}"#,
        ),
        (r#"{"enum":["a",1,9007199254740993]}"#, r#"{"anyOf":[{"$ref":"N"},{"enum":["a",1]}]}"#),
        (
            r#"{"const":[9007199254740993]}"#,
            r#"{"type":"array","items":[{"$ref":"N"}],"additionalItems":false,"minItems":1,"maxItems":1}"#,
        ),
        (r#"{"type":"integer","enum":[1,2,"a",3.5],"maximum":1}"#, r#"{"enum":[1]}"#),
        (r#"{"type":"integer","minimum":2,"maximum":1}"#, r#"{"anyOf":[false]}"#),
        (r#"{"allOf":[{"type":"integer","minimum":1}]}"#, r#"{"allOf":[{"$ref":"N"}]}"#),
        (
            r#"{"allOf":[{"minimum":1},{"type":"integer"}]}"#,
            r#"{"allOf":[{"minimum":1},{"type":"integer"}]}"#,
        ),
        (
            r#"{"oneOf":[{"type":"integer","minimum":1},{"type":"string"}]}"#,
            r#"{"anyOf":[{"$ref":"N"},{"type":"string"}]}"#,
        ),
        (
            r#"{"oneOf":[{"type":"integer","minimum":1},{"type":"number"}]}"#,
            r#"{"oneOf":[{"type":"integer","minimum":1},{"type":"number"}]}"#,
        ),
        (
            r##"{"$ref":"#/$defs/a","$defs":{"a":{"type":"integer","minimum":1}}}"##,
            r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"N"}}}"##,
        ),
        // A reference with a neighbour is intersected with it.
        (
            r##"{"$ref":"#/$defs/a","maximum":3,"$defs":{"a":{"type":"integer","minimum":1}}}"##,
            r##"{"$ref":"#/$defs/a","maximum":3,"$defs":{"a":{"type":"integer","minimum":1}}}"##,
        ),
        (
            r##"{"items":{"$ref":"#/x%2dy"},"x-y":{"minimum":1,"type":"integer"}}"##,
            r##"{"items":{"$ref":"#/x%2dy"},"x-y":{"$ref":"N"}}"##,
        ),
        // The compiler intersects with an unknown keyword.
        (
            r#"{"anyOf":[{"type":"integer","minimum":1}],"unknown":1,"x-vendor":2}"#,
            r#"{"anyOf":[{"type":"integer","minimum":1}],"unknown":1}"#,
        ),
        // The places of what references name stay.
        (
            r##"{"minimum":1,"items":{"$ref":"#/properties/a"},"properties":{"a":{"type":"null"}}}"##,
            r##"{"minimum":1,"items":{"$ref":"#/properties/a"},"properties":{"a":{"type":"null"}}}"##,
        ),
    ] {
        assert_eq!(rewritten(schema), expected, "{schema}");
    }
}

#[test]
fn sizes_are_bounded() {
    let chain: String =
        (0..REFS_MAX + 1).map(|i| format!(r##""a{i}":{{"$ref":"#/$defs/a{}"}},"##, i + 1)).collect();
    let names = |n: usize| (0..n).map(|i| format!("\"p{i}\":{{}}")).collect::<Vec<_>>().join(",");
    for schema in [
        format!(r##"{{"$ref":"#/$defs/a0","$defs":{{{chain}"z":{{}}}}}}"##),
        format!(r#"{{"properties":{{{}}}}}"#, names(PROPERTIES_MAX + 1)),
        format!(r#"{{"patternProperties":{{{}}}}}"#, names(PATTERN_PROPERTIES_MAX + 1)),
        format!(r#"{{"enum":[{}0]}}"#, "0,".repeat(VALUES_MAX)),
        format!(r#"{{"oneOf":[{}true]}}"#, "{},".repeat(ONE_OF_MAX)),
        format!(r#"{{"const":"{}"}}"#, "x".repeat(FORCED_BYTES_MAX)),
        format!(r#"{{"enum":[1,"{}"]}}"#, "x".repeat(STRING_BYTES_MAX + 1)),
        format!(r#"{{"{}":1}}"#, "x".repeat(NAME_BYTES_MAX + 1)),
        format!(r#"{{"type":"array","anyOf":[{}{{}}]}}"#, "{\"minItems\":1},".repeat(9000)),
        format!(r#"{{"items":[{}{{}}]}}"#, "{\"pattern\":\"a\"},".repeat(PATTERNS_MAX + 1)),
        format!(
            r#"{{{}}}"#,
            (0..KEYWORDS_MAX + 1).map(|i| format!("\"k{i}\":0")).collect::<Vec<_>>().join(",")
        ),
        // Each becomes 309 digits.
        format!(r#"{{"enum":[{}0]}}"#, "1.0001e308,".repeat(STRING_BYTES_MAX / 309 + 1)),
        format!(r#"{{"required":[{}"a"]}}"#, "\"a\",".repeat(PROPERTIES_MAX)),
        format!(r#"{{"type":["string"],"const":"a","enum":[{}0]}}"#, "\"a\",".repeat(20_000)),
    ] {
        let below = |name: &str| format!(r#"{{"properties":{{"{name}":{schema}}}}}"#);
        let named = |place: &str| format!(r##"{{"$ref":"#/{place}","{place}":{schema}}}"##);
        let is_chain = schema.contains("a0");
        let all = [
            schema.clone(),
            below("title"),
            below("default"),
            below("x-a"),
            named("x-a"),
            named("const"),
            format!(r##"{{"$ref":"#/$defs/0","$defs":[{schema}]}}"##),
        ];
        // Below others, the references of the chain name nothing.
        for schema in all.into_iter().take(if is_chain { 1 } else { usize::MAX }) {
            let refused = rewrite(&Json::read(&schema).unwrap(), &mut Numbers::new());
            let short: String = schema.chars().take(80).collect();
            assert!(matches!(refused, Err(GrammarError::Schema { .. })), "{short}");
        }
    }
    // What is no schema is not rewritten, so no reference names it or a part of it.
    let names = "\"a\",".repeat(PROPERTIES_MAX + 1);
    for schema in [
        format!(r##"{{"$ref":"#/$defs","$defs":{{"required":[{names}"a"]}}}}"##),
        r##"{"$ref":"#/$defs","$defs":{"type":"number","exclusiveMinimum":0,"maximum":0.5}}"##.to_owned(),
        r##"{"$ref":"#/const","const":{"type":"number","exclusiveMinimum":0,"maximum":0.5}}"##.to_owned(),
        r##"{"$ref":"#/$defs/a/enum/0","$defs":{"a":{"enum":[{"minimum":1}]}}}"##.to_owned(),
        r##"{"$ref":"#/$defs/a/format","$defs":{"a":{"format":{"minimum":1}}}}"##.to_owned(),
        r##"{"$ref":"#/$defs/a/minimum/b","$defs":{"a":{"type":"number","minimum":{"b":{}}}}}"##.to_owned(),
    ] {
        assert!(rewrite(&Json::read(&schema).unwrap(), &mut Numbers::new()).is_err(), "{schema}");
    }
    // Many references of one schema end the search before all of them are followed.
    let references: String = (0..3 * REFS_MAX).map(|i| format!(r##"{{"$ref":"#/$defs/a{i}"}},"##)).collect();
    let root = Json::read(&format!(r#"{{"allOf":[{{}},{{"prefixItems":[{references}true]}}]}}"#)).unwrap();
    let mut numbers = Numbers::new();
    let mut pass = Pass::new(&root, &mut numbers);
    assert!(pass.check().is_err());
    assert_eq!(pass.n_joined_references, REFS_MAX + 1);
}

#[test]
fn each_value_is_counted_once() {
    let nested = |open: &str, close: &str| [&open.repeat(30), "0", &close.repeat(30)].concat();
    for schema in [nested(r#"{"const":"#, "}"), nested(r#"{"enum":["#, "]}"), nested(r#"{"oneOf":["#, "]}")] {
        let mut sizes = Sizes::default();
        sizes.count(&Json::read(&schema).unwrap());
        assert_eq!(sizes.n_values, 1 + schema.matches(['{', '[']).count(), "{schema}");
    }
}

#[test]
fn copies_are_bounded() {
    let names: Vec<String> = (0..10).map(|i| format!("\"{i}\"")).collect();
    let names = names.join(",");
    let nested = (0..10).fold("{}".to_owned(), |schema, _| {
        format!(r#"{{"type":"object","required":[{names}],"patternProperties":{{"^[0-9]$":{schema}}}}}"#)
    });
    let long = |schema: &str| {
        let names: Vec<String> = (0..1000).map(|i| format!("\"{i:03}\"")).collect();
        format!(
            r#"{{"type":"object","required":[{}],"patternProperties":{{"^[0-9]{{3}}$":{schema}}}}}"#,
            names.join(",")
        )
    };
    let (values, text) = ("0,".repeat(50_000), "x".repeat(50_000));
    for (schema, is_allowed) in [
        (nested, false),
        (long(&format!(r#"{{"enum":[{values}0]}}"#)), false),
        (long(&format!(r#"{{"const":"{text}"}}"#)), false),
        (long(&format!(r#"{{"description":"{text}"}}"#)), false),
        (long(r#"{"type":"integer"}"#), true),
    ] {
        let mut numbers = Numbers::new();
        let root = Json::read(&schema).unwrap();
        let mut pass = Pass::new(&root, &mut numbers);
        let done = pass.check().and_then(|()| pass.schema(&root, Place::Alone));
        let short: String = schema.chars().take(80).collect();
        assert_eq!(done.is_ok(), is_allowed, "{short}");
        assert!(pass.n_copied <= 2 * COPIED_BYTES_MAX && pass.sizes.n_values <= 2 * VALUES_MAX, "{short}");
    }
}

/// Schemas as libraries write them are allowed.
#[test]
fn usual_schemas_are_small_enough() {
    let list = |n: usize| (0..n).map(|i| format!("\"code{i:04}\"")).collect::<Vec<_>>().join(",");
    let properties = (0..3000).map(|i| format!("\"code{i:04}\":{{}}")).collect::<Vec<_>>().join(",");
    let dates = (0..300).map(|i| format!("\"p{i}\":{{\"type\":\"integer\",\"format\":\"int64\"}}"));
    for schema in [
        format!(r#"{{"type":"string","enum":[{}]}}"#, list(4000)),
        format!(r#"{{"type":"object","properties":{{{properties}}},"required":[{}]}}"#, list(3000)),
        format!(r#"{{"properties":{{{}}}}}"#, dates.collect::<Vec<_>>().join(",")),
        r#"{"allOf":[{"type":"integer"},{"minimum":-9007199254740991,"maximum":9007199254740991}]}"#
            .to_owned(),
        r##"{"oneOf":[{"$ref":"#/$defs/a"}],"discriminator":{},"$defs":{"a":{"minimum":0.5,"maximum":0.95,"type":"number"}}}"##
            .to_owned(),
    ] {
        let done = rewrite(&Json::read(&schema).unwrap(), &mut Numbers::new());
        let short: String = schema.chars().take(80).collect();
        assert!(done.is_ok(), "{short}: {done:?}");
    }
    for refused in [
        r#"{"allOf":[{"type":"number","minimum":0.5},{"exclusiveMaximum":3}]}"#,
        r#"{"allOf":[{"type":"number","exclusiveMinimum":0},{"maximum":0.5}]}"#,
        r#"{"allOf":[{"type":"number","minimum":0,"exclusiveMinimum":true},{"maximum":0.5}]}"#,
        r#"{"allOf":[{"type":"number"},{"exclusiveMinimum":0.5}]}"#,
        r#"{"allOf":[{"type":"number"},{"multipleOf":0.5}]}"#,
        r#"{"allOf":[{"type":"integer"},{"maximum":9007199254740992}]}"#,
        r#"{"allOf":[{"type":"number"},{"maximum":0.10000000000000000001}]}"#,
    ] {
        assert!(rewrite(&Json::read(refused).unwrap(), &mut Numbers::new()).is_err(), "{refused}");
    }
}

/// What references may name stays beside values.
#[test]
fn names_beside_values_stay() {
    let schema = r##"{"properties":{"a":{"$anchor":"b","enum":[1]},"c":{"$ref":"#b"}}}"##;
    assert_eq!(rewritten(schema), schema);
}
