//! The place of a schema that the compiler refuses.

use serde_json::Value;

use super::keywords::OPTIONS_KEY;
use crate::error::GrammarError;

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
