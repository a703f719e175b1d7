//! Values of a schema.

use serde_json::Value;

use crate::decimal::Decimal;
use crate::json::Json;

/// Integers that floats hold exactly together with both neighbours.
pub(super) const FLOAT_INTEGER_MAX: u64 = (1 << 53) - 1;

pub(super) fn as_str(json: &Json) -> Option<&str> {
    match json {
        Json::String(text) => Some(text),
        _ => None,
    }
}

pub(super) fn value_of<'j>(entries: &'j [(String, Json)], key: &str) -> Option<&'j Json> {
    entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

/// The beginning of a literal, for messages.
pub(super) fn short(literal: &str) -> String {
    match literal.char_indices().nth(40) {
        None => literal.to_owned(),
        Some((end, _)) => format!("{}…", &literal[..end]),
    }
}

/// The types that an object names; `None` if it names none.
pub(super) fn types(json: &Json) -> Option<Vec<&str>> {
    match json.get("type")? {
        Json::String(name) => Some(vec![name]),
        Json::Array(names) => names.iter().map(as_str).collect(),
        _ => None,
    }
}

/// Whether numbers of these types are integers; `None` if they have no numbers.
pub(super) fn numeric_type(types: &[&str]) -> Option<bool> {
    if types.contains(&"number") { Some(false) } else { types.contains(&"integer").then_some(true) }
}

pub(super) fn is_of_type(value: &Json, name: &str) -> bool {
    match value {
        Json::Null => name == "null",
        Json::Bool(_) => name == "boolean",
        Json::Number(literal) => {
            name == "number" || (name == "integer" && Decimal::read(literal).is_integer())
        }
        Json::String(_) => name == "string",
        Json::Array(_) => name == "array",
        Json::Object(_) => name == "object",
    }
}

/// The value, if floats hold all of its numbers as they are written.
pub(super) fn exact_value(value: &Json) -> Option<Value> {
    inexact(value).is_none().then(|| value.to_value())
}

/// A number inside that is not kept exactly.
pub(super) fn inexact(value: &Json) -> Option<&str> {
    match value {
        Json::Number(literal) => {
            let number = Decimal::read(literal);
            let is_kept = match number.is_integer() {
                true => number.to_integer(FLOAT_INTEGER_MAX).is_some(),
                false => {
                    let float: Option<f64> = literal.parse().ok();
                    float.is_some_and(|float| Decimal::read(&float.to_string()) == number)
                }
            };
            (!is_kept).then_some(literal)
        }
        Json::Array(items) => items.iter().find_map(inexact),
        Json::Object(entries) => entries.iter().find_map(|(_, value)| inexact(value)),
        _ => None,
    }
}
