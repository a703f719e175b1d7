//! Which keywords constrain a value, and where the schemas inside them stand.

use super::values::value_of;
use crate::json::Json;

/// The key under which llguidance takes options.
pub(super) const OPTIONS_KEY: &str = "x-guidance";

/// Keywords that the compiler reads past. It intersects a schema with those of all others, also of unknown ones.
pub(super) const NEUTRAL: [&str; 7] =
    ["$anchor", "$defs", "definitions", "$schema", "$id", "id", OPTIONS_KEY];

/// Keywords whose schemas are intersected with their neighbours.
pub(super) const APPLICATORS: [&str; 6] = ["const", "enum", "allOf", "anyOf", "oneOf", "$ref"];

/// Keywords by which references find a schema, or schemas inside it.
pub(super) const NAMING: [&str; 5] = ["$anchor", "$id", "id", "$defs", "definitions"];

/// Keywords of numbers.
pub(super) const NUMERIC: [&str; 5] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// Keywords of bounds that are not allowed themselves; in draft 4 they say whether `minimum` and `maximum` are.
pub(super) const EXCLUSIVE: [&str; 2] = ["exclusiveMinimum", "exclusiveMaximum"];

/// Keywords that constrain nothing and may be long.
pub(super) const ANNOTATIONS: [&str; 9] = [
    "$comment",
    "title",
    "description",
    "default",
    "readOnly",
    "writeOnly",
    "examples",
    "contentMediaType",
    "contentEncoding",
];

/// Whether a keyword constrains nothing. Those of vendors begin with `x-`.
pub(super) fn is_annotation(key: &str) -> bool {
    ANNOTATIONS.contains(&key) || (key.starts_with("x-") && key != OPTIONS_KEY)
}

/// Where a schema stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing else constrains the value.
    Alone,
    /// Another schema is intersected with it, or compared.
    Joined,
}

impl Place {
    pub(super) fn joined_if(self, is_joined: bool) -> Self {
        if is_joined { Self::Joined } else { self }
    }
}

/// Keywords that `enum` and `const` are computed together with.
pub(super) fn is_beside_values(key: &str) -> bool {
    key == "const" || key == "enum" || key == "type" || NUMERIC.contains(&key)
}

/// The keywords of an object that constrain a value, or are not known.
pub(super) fn constraints(entries: &[(String, Json)]) -> impl Iterator<Item = &str> {
    entries.iter().map(|(key, _)| key.as_str()).filter(|key| !NEUTRAL.contains(key) && !is_annotation(key))
}

/// Where the schema of an object's own keywords stands.
pub(super) fn inner_place(entries: &[(String, Json)], place: Place) -> Place {
    place.joined_if(constraints(entries).any(|key| APPLICATORS.contains(&key)))
}

/// Where the schemas of one of an object's keywords stand.
pub(super) fn child_place(entries: &[(String, Json)], key: &str, place: Place) -> Place {
    match key {
        "anyOf" | "oneOf" | "$ref" => place.joined_if(constraints(entries).count() > 1),
        "allOf" => {
            let n_schemas = match value_of(entries, key) {
                Some(Json::Array(schemas)) => schemas.len(),
                _ => 0,
            };
            place.joined_if(constraints(entries).count() > 1 || n_schemas > 1)
        }
        "properties" => {
            let has_patterns = value_of(entries, "patternProperties").is_some();
            inner_place(entries, place).joined_if(has_patterns)
        }
        "patternProperties" => {
            inner_place(entries, place).joined_if(value_of(entries, "properties").is_some())
        }
        _ => inner_place(entries, place),
    }
}
