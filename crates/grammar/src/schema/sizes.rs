//! Sizes that the work of the compiler depends on, counted before it begins.

use std::collections::HashSet;

use super::keywords::{constraints, is_annotation, is_beside_values};
use super::references::id;
use super::values::{as_str, value_of};
use crate::decimal::Decimal;
use crate::json::Json;
use crate::limits::{
    FORCED_BYTES_MAX, KEYWORDS_MAX, NAME_BYTES_MAX, ONE_OF_MAX, PATTERN_PROPERTIES_MAX, PROPERTIES_MAX,
    STRING_BYTES_MAX, VALUES_MAX,
};

/// The sizes of a schema that the work of the compiler depends on.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    pub(super) n_values: usize,
    pub(super) n_bytes: usize,
    /// Entries of alternatives that have other keywords beside them, or are parts of them.
    pub(super) n_joined: usize,
    /// Values in `oneOf`: the compiler compares all pairs.
    pub(super) n_one_of: usize,
    pub(super) n_properties: usize,
    pub(super) n_pattern_properties: usize,
    pub(super) longest_name: usize,
    pub(super) n_string_bytes: usize,
    pub(super) n_forced_bytes: usize,
    pub(super) most_keywords: usize,
    /// The objects that were counted as schemas.
    pub(super) schemas: HashSet<usize>,
}

/// Bytes of a number that are no more than it has in the text.
pub(super) const NUMBER_BYTES: usize = 20;

/// What a value of the schema's text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Schema,
    /// Schemas under names.
    Names,
    /// A value that the schema allows.
    Data,
}

impl Sizes {
    pub(super) fn count(&mut self, json: &Json) {
        self.walk(json, Kind::Schema);
    }

    /// Visits each value once.
    pub(super) fn walk(&mut self, json: &Json, kind: Kind) {
        self.n_values += 1;
        self.n_bytes += 2;
        match json {
            Json::String(text) => {
                self.n_bytes += text.len();
                self.n_string_bytes += text.len();
            }
            Json::Number(literal) => {
                // `1e308` becomes 309 digits.
                let len = Decimal::read(literal).text().map_or(literal.len(), |text| text.len());
                self.n_bytes += len;
                self.n_string_bytes += if len > NUMBER_BYTES { len } else { 0 };
            }
            Json::Array(items) => items.iter().for_each(|item| self.walk(item, kind)),
            Json::Object(entries) => {
                if kind == Kind::Schema {
                    self.schemas.insert(id(json));
                    self.most_keywords = self.most_keywords.max(entries.len());
                }
                for (key, value) in entries {
                    if kind == Kind::Schema && is_annotation(key) {
                        continue;
                    }
                    self.longest_name = self.longest_name.max(key.len());
                    self.n_bytes += key.len() + 3;
                    self.n_string_bytes += if kind == Kind::Data { key.len() } else { 0 };
                    let inner = match (kind, key.as_str(), value) {
                        (Kind::Data, ..) | (Kind::Schema, "const" | "enum", _) => Kind::Data,
                        (
                            Kind::Schema,
                            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                            Json::Object(_),
                        ) => Kind::Names,
                        _ => Kind::Schema,
                    };
                    let (n_values, n_bytes) = (self.n_values, self.n_bytes);
                    self.walk(value, inner);
                    if kind == Kind::Schema {
                        self.keyword(key, value, entries, self.n_values - n_values, self.n_bytes - n_bytes);
                    }
                }
            }
            _ => {}
        }
    }

    /// Counts what a keyword with `n_values` and `n_bytes` in its value costs.
    pub(super) fn keyword(
        &mut self,
        key: &str,
        value: &Json,
        entries: &[(String, Json)],
        n_values: usize,
        n_bytes: usize,
    ) {
        let is_forced =
            key == "const" || (key == "enum" && matches!(value, Json::Array(values) if values.len() == 1));
        if is_forced {
            self.n_forced_bytes += n_bytes;
        }
        let len = match value {
            Json::Array(items) => items.len(),
            Json::Object(entries) => entries.len(),
            _ => return,
        };
        let is_joined = || constraints(entries).count() > 1;
        match (key, value) {
            ("properties", Json::Object(names)) => names.iter().for_each(|(name, _)| self.property(name)),
            ("required", Json::Array(names)) => {
                // Most names are in both lists.
                let own: HashSet<&str> = match value_of(entries, "properties") {
                    Some(Json::Object(own)) => own.iter().map(|(name, _)| name.as_str()).collect(),
                    _ => HashSet::new(),
                };
                let others = names.iter().filter_map(as_str).filter(|name| !own.contains(name));
                others.for_each(|name| self.property(name));
            }
            ("patternProperties", _) => self.n_pattern_properties += len,
            ("allOf", _) => self.n_joined += len,
            ("anyOf", _) if is_joined() => self.n_joined += len,
            // Otherwise the values are compared with the other keywords here.
            ("enum", _)
                if value_of(entries, "const").is_some() || !constraints(entries).all(is_beside_values) =>
            {
                self.n_joined += len;
            }
            ("oneOf", _) => {
                self.n_one_of += n_values;
                self.n_joined += if is_joined() { len } else { 0 };
            }
            _ => {}
        }
    }

    pub(super) fn property(&mut self, name: &str) {
        self.n_properties += 1;
        self.n_string_bytes += name.len();
        self.n_forced_bytes += name.len();
    }

    /// What is too large.
    pub(super) fn excess(&self) -> Option<String> {
        let limits = [
            (self.n_values, VALUES_MAX, "values"),
            (self.n_properties, PROPERTIES_MAX, "properties (`properties` and `required`)"),
            (self.n_pattern_properties, PATTERN_PROPERTIES_MAX, "`patternProperties`"),
            (self.n_one_of, ONE_OF_MAX, "values in `oneOf`"),
            (self.longest_name, NAME_BYTES_MAX, "bytes of one name"),
            (self.most_keywords, KEYWORDS_MAX, "keywords of one schema"),
            (
                self.n_string_bytes,
                STRING_BYTES_MAX,
                "bytes of strings (`const`, `enum` and names of properties)",
            ),
            (
                self.n_forced_bytes,
                FORCED_BYTES_MAX,
                "bytes of text that may be forced (`const` and names of properties)",
            ),
        ];
        let too_large = limits.into_iter().find(|(given, max, _)| given > max);
        too_large.map(|(given, max, what)| format!("{given} {what} are more than {max}"))
    }
}
