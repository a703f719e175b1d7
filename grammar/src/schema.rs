//! JSON Schemas before they are compiled: reading, options, and the place of what is refused.

use serde_json::{Map, Value, json};

use crate::error::GrammarError;

/// How outputs of a JSON Schema are written. None of them weakens the schema.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JsonOptions {
    /// Whether white space may stand between the parts of the JSON text, at most 64 characters at each place, so that a model
    /// cannot write it without end. Without it (the default) outputs are compact, and the
    /// grammar forces more tokens.
    pub whitespace: bool,
}

impl JsonOptions {
    /// Sets [`whitespace`](field@Self::whitespace).
    #[must_use]
    pub fn with_whitespace(mut self, whitespace: bool) -> Self {
        self.whitespace = whitespace;
        self
    }
}

/// Maximum characters of white space at one place: a line break and 31 levels of indentation by two.
const WHITESPACE_MAX: u32 = 64;

/// The key under which llguidance takes options.
const OPTIONS_KEY: &str = "x-guidance";

/// Reads a schema and adds the options for the compiler.
///
/// # Errors
/// [`GrammarError::NotJson`]; [`GrammarError::Schema`]: the schema is neither an object nor a boolean, or brings options of its
/// own, which could switch off the refusal of unsupported keywords.
pub(crate) fn read(text: &str, options: JsonOptions) -> Result<Value, GrammarError> {
    let value: Value = serde_json::from_str(text).map_err(|error| GrammarError::NotJson {
        line: error.line(),
        column: error.column(),
        reason: error.to_string(),
    })?;
    let refused =
        |reason: &str| GrammarError::Schema { pointer: Some(String::new()), reason: reason.to_owned() };
    let mut schema = match value {
        Value::Object(schema) => schema,
        // `true` allows any value, as does the empty schema.
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(refused("the schema `false` allows no value")),
        _ => return Err(refused("a schema is an object or a boolean")),
    };
    // The compiler copies the schema for each alternative.
    let n_alternatives = alternatives(&schema);
    if n_alternatives.saturating_mul(text.len()) > COPIES_BYTES_MAX {
        let reason =
            format!("{n_alternatives} alternatives in a schema of {} bytes are too many", text.len());
        return Err(GrammarError::Schema { pointer: None, reason });
    }
    if schema.contains_key(OPTIONS_KEY) {
        return Err(refused("the key `x-guidance` is not allowed: options come from the app"));
    }
    let mut compiled =
        json!({ "whitespace_flexible": options.whitespace, "coerce_one_of": false, "lenient": false });
    if options.whitespace {
        compiled["whitespace_pattern"] = format!(r"[\x20\x0A\x0D\x09]{{1,{WHITESPACE_MAX}}}").into();
    }
    schema.insert(OPTIONS_KEY.to_owned(), compiled);
    Ok(Value::Object(schema))
}

/// Maximum bytes of a schema times its alternatives.
const COPIES_BYTES_MAX: usize = 512 << 20;

/// The number of entries in all lists of alternatives.
fn alternatives(schema: &Map<String, Value>) -> usize {
    let within = |value: &Value| match value {
        Value::Object(schema) => alternatives(schema),
        Value::Array(values) => {
            values.iter().filter_map(Value::as_object).map(alternatives).fold(0, usize::saturating_add)
        }
        _ => 0,
    };
    let lists = ["anyOf", "oneOf"].iter().filter_map(|&key| schema.get(key)?.as_array());
    let own = lists.map(Vec::len).fold(0, usize::saturating_add);
    schema.values().map(within).fold(own, usize::saturating_add)
}

/// The error of a schema that the compiler refuses for `reason`.
pub(crate) fn refused(text: &str, reason: String) -> GrammarError {
    let schema: Value = serde_json::from_str(text).unwrap_or_default();
    let pointer = named_pointer(&reason).or_else(|| {
        let quoted = quoted(&reason);
        let mut pointer = String::new();
        let found = !quoted.is_empty() && find(&schema, &quoted, &mut pointer);
        found.then_some(pointer)
    });
    GrammarError::Schema { pointer, reason }
}

/// The place in a message that names one, such as `while processing #/$defs/a`.
fn named_pointer(reason: &str) -> Option<String> {
    let (_, named) = reason.split_once("while processing ")?;
    let (_, pointer) = named.split_once('#')?;
    Some(pointer.lines().next().unwrap_or_default().trim_end().to_owned())
}

/// The words of a message in double quotes: the keywords that are not supported. Other messages name a value behind a colon.
fn quoted(reason: &str) -> Vec<&str> {
    if reason.contains("Unimplemented keys") {
        return reason.split('"').skip(1).step_by(2).collect();
    }
    match reason.split_once("Unknown format: ") {
        Some((_, format)) => vec![format.lines().next().unwrap_or_default().trim()],
        None => Vec::new(),
    }
}

/// Finds the first subschema with all of these keys, or with a `format` of this name. `pointer` is the place of `schema`, and of
/// the found subschema afterwards.
fn find(schema: &Value, names: &[&str], pointer: &mut String) -> bool {
    let len = pointer.len();
    let mut enter = |key: &str, value: &Value, below: bool| {
        pointer.push('/');
        pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
        let found = if below { find_in_map(value, names, pointer) } else { find(value, names, pointer) };
        if !found {
            pointer.truncate(len);
        }
        found
    };
    match schema {
        Value::Object(map) => {
            let has_format =
                map.get("format").and_then(Value::as_str).is_some_and(|format| names == [format]);
            if has_format || names.iter().all(|&name| map.contains_key(name)) {
                return true;
            }
            map.iter().any(|(key, value)| match key.as_str() {
                "const" | "enum" | "default" | "examples" | OPTIONS_KEY => false,
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
                    enter(key, value, true)
                }
                _ => enter(key, value, false),
            })
        }
        Value::Array(items) => {
            (0..).zip(items).any(|(i, item): (usize, _)| enter(&i.to_string(), item, false))
        }
        _ => false,
    }
}

/// As [`find`], in the values of a map from names to schemas.
fn find_in_map(map: &Value, names: &[&str], pointer: &mut String) -> bool {
    let len = pointer.len();
    map.as_object().is_some_and(|map| {
        map.iter().any(|(key, value)| {
            pointer.push('/');
            pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
            let found = find(value, names, pointer);
            if !found {
                pointer.truncate(len);
            }
            found
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let lenient = r#"{"x-guidance": {"lenient": true}, "contains": 1}"#;
        assert!(matches!(read(lenient, JsonOptions::default()), Err(GrammarError::Schema { .. })));
        for text in ["1", "[]", "null", "false", "\"a\""] {
            assert!(matches!(read(text, JsonOptions::default()), Err(GrammarError::Schema { .. })), "{text}");
        }
        let error = read("{\n  \"a\": ,}", JsonOptions::default()).unwrap_err();
        assert!(matches!(error, GrammarError::NotJson { line: 2, .. }), "{error}");
        assert!(read("true", JsonOptions::default()).is_ok());
    }
}
