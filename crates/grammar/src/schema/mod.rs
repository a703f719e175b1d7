//! JSON Schemas before they are compiled: what llguidance would compute inexactly or without bound is rewritten or refused.
//!
//! llguidance reads numbers as floats. A set of numbers becomes a reference to a text that nothing else has; the lexeme of that text is
//! replaced by an exact one ([`Numbers`]). That works where no other schema is intersected with the set. Elsewhere ([`Place::Joined`]),
//! numbers that floats hold exactly stay as they are, and others are refused.

mod keywords;
mod pass;
mod ranges;
mod references;
mod refusal;
mod sets;
mod sizes;
#[cfg(test)]
mod tests;
mod values;

use serde_json::{Map, Value, json};

use crate::error::GrammarError;
use crate::json::Json;
use keywords::{OPTIONS_KEY, Place};
use pass::Pass;

pub(crate) use refusal::refused;
pub(crate) use sets::Numbers;

/// How outputs of a JSON Schema are written. None of them weakens the schema.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JsonOptions {
    /// Whether white space may stand between the parts of the JSON text, at most 64 characters at each place, so that a model
    /// cannot write it without end. Without it (the default) outputs are compact, and the
    /// grammar forces more tokens.
    pub whitespace: bool,
}

/// Maximum characters of white space at one place: a line break and 31 levels of indentation by two.
const WHITESPACE_MAX: u32 = 64;

/// Reads a schema, rewrites its numbers, and adds the options for the compiler.
///
/// # Errors
/// [`GrammarError::NotJson`]; [`GrammarError::Schema`]: the schema is neither an object nor a boolean, has a number or a structure that
/// cannot be compiled exactly and in bounded time, or brings options of its own, which could switch off the refusal of unsupported keywords.
pub(crate) fn read(text: &str, options: JsonOptions, numbers: &mut Numbers) -> Result<Value, GrammarError> {
    let refused =
        |reason: &str| GrammarError::Schema { pointer: Some(String::new()), reason: reason.to_owned() };
    let schema = match Json::read(text)? {
        schema @ Json::Object(_) => schema,
        // `true` allows any value, as does the empty schema.
        Json::Bool(true) => Json::Object(Vec::new()),
        Json::Bool(false) => return Err(refused("the schema `false` allows no value")),
        _ => return Err(refused("a schema is an object or a boolean")),
    };
    if schema.get(OPTIONS_KEY).is_some() {
        return Err(refused("the key `x-guidance` is not allowed: options come from the app"));
    }
    let mut schema = rewrite(&schema, numbers)?;
    let mut compiled =
        json!({ "whitespace_flexible": options.whitespace, "coerce_one_of": false, "lenient": false });
    if options.whitespace {
        compiled["whitespace_pattern"] = format!(r"[\x20\x0A\x0D\x09]{{1,{WHITESPACE_MAX}}}").into();
    }
    schema[OPTIONS_KEY] = compiled;
    Ok(schema)
}

/// Rewrites a schema that may have options of its own: one inside a Lark grammar.
///
/// # Errors
/// [`GrammarError::Schema`].
pub(crate) fn rewrite(schema: &Json, numbers: &mut Numbers) -> Result<Value, GrammarError> {
    let mut pass = Pass::new(schema, numbers);
    pass.check()?;
    let mut value = pass.schema(schema, Place::Alone)?;
    if !value.is_object() {
        value = json!({ "allOf": [value] });
    }
    // What counts for the whole text stays at its root.
    for key in ["$schema", "$id", "id", OPTIONS_KEY] {
        if let (None, Some(root)) = (value.get(key), schema.get(key)) {
            value[key] = root.to_value();
        }
    }
    if pass.used.is_empty() {
        return Ok(value);
    }
    // Draft 4 has no `const`.
    let sets: Map<String, Value> =
        pass.used.iter().map(|&set| (set.to_string(), json!({ "enum": [pass.numbers.text(set)] }))).collect();
    let definitions = value.as_object_mut().map(|value| value.entry("$defs").or_insert_with(|| json!({})));
    match definitions.and_then(Value::as_object_mut) {
        Some(definitions) => definitions.insert(pass.numbers.prefix.clone(), Value::Object(sets)),
        None => return pass.refused("`$defs` is not an object"),
    };
    Ok(value)
}
