//! References inside a schema.

use super::keywords::{Place, child_place, is_annotation};
use crate::json::Json;

/// The identity of a value of the schema.
pub(super) fn id(json: &Json) -> usize {
    std::ptr::from_ref(json).addr()
}

/// The references of a schema, each with the place of the schema that has it.
pub(super) fn references_of<'j>(json: &'j Json, place: Place, out: &mut Vec<(&'j str, Place)>) {
    match json {
        Json::Array(items) => items.iter().for_each(|item| references_of(item, place, out)),
        Json::Object(entries) => {
            for (key, value) in entries {
                let inner = child_place(entries, key, place);
                match (key.as_str(), value) {
                    ("$ref", Json::String(reference)) => out.push((reference, inner)),
                    ("const" | "enum", _) => {}
                    (key, _) if is_annotation(key) => {}
                    // A definition stands where it is named.
                    ("$defs" | "definitions", _) => {}
                    ("oneOf", _) => references_of(value, Place::Joined, out),
                    // Names that are keywords elsewhere.
                    ("properties" | "patternProperties" | "dependentSchemas", Json::Object(schemas)) => {
                        schemas.iter().for_each(|(_, schema)| references_of(schema, inner, out));
                    }
                    _ => references_of(value, inner, out),
                }
            }
        }
        _ => {}
    }
}

/// The value that a reference names, with the values around it, if it names a place in the same text.
pub(super) fn resolve<'j>(root: &'j Json, reference: &str, around: &mut Vec<usize>) -> Option<&'j Json> {
    let pointer = percent_decoded(reference.strip_prefix('#')?);
    let mut value = root;
    for name in pointer.split('/').skip(1) {
        around.push(id(value));
        let name = name.replace("~1", "/").replace("~0", "~");
        value = match value {
            Json::Array(items) => items.get(name.parse::<usize>().ok()?)?,
            other => other.get(&name)?,
        };
    }
    (pointer.is_empty() || pointer.starts_with('/')).then_some(value)
}

pub(super) fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| bytes[at] == b'%') {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The levels of a value.
pub(super) fn height(json: &Json) -> usize {
    1 + match json {
        Json::Array(items) => items.iter().map(height).max().unwrap_or(0),
        Json::Object(entries) => entries.iter().map(|(_, value)| height(value)).max().unwrap_or(0),
        _ => 0,
    }
}
