//! The rewriting of a schema, value by value.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};

use llguidance::derivre::{JsonQuoteOptions, RegexAst};
use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

use super::keywords::{
    NAMING, NUMERIC, Place, child_place, constraints, inner_place, is_annotation, is_beside_values,
};
use super::references::{height, id, references_of, resolve};
use super::sets::Numbers;
use super::sizes::{Kind, Sizes};
use super::values::{as_str, numeric_type, short, types, value_of};
use crate::decimal::Decimal;
use crate::error::GrammarError;
use crate::json::Json;
use crate::limits::{
    COPIED_BYTES_MAX, COPIES_BYTES_MAX, COUNT_MAX, HEIGHTS_MAX, PATTERN_PROPERTIES_MAX, PATTERNS_MAX,
    REFS_MAX,
};
use crate::numbers::{is_empty, matcher};

pub(super) struct Pass<'j, 'n> {
    pub(super) root: &'j Json,
    pub(super) numbers: &'n mut Numbers,
    /// Sets that this schema uses.
    pub(super) used: BTreeSet<usize>,
    /// Values that references name.
    pub(super) targets: HashSet<usize>,
    /// Values with such a value inside: their structure stays.
    pub(super) around_targets: HashSet<usize>,
    /// Values that a reference names from a place that is joined.
    pub(super) joined: HashSet<usize>,
    /// A reference that is joined names a place that is not found here.
    pub(super) is_all_joined: bool,
    /// The product of the multiples at joined places.
    pub(super) multiples: u32,
    pub(super) n_patterns: usize,
    pub(super) path: Vec<String>,
    /// With the parts that this pass copies.
    pub(super) sizes: Sizes,
    /// References from joined places.
    pub(super) n_joined_references: usize,
    /// Bytes of the parts that this pass copies, with their annotations.
    pub(super) n_copied: usize,
    /// Whether joined places have a bound with a fraction, and one that is exclusive.
    pub(super) has_fraction: bool,
    pub(super) has_exclusive: bool,
}

pub(super) type Checked<T> = Result<T, GrammarError>;

impl<'j, 'n> Pass<'j, 'n> {
    pub(super) fn new(root: &'j Json, numbers: &'n mut Numbers) -> Self {
        Self {
            root,
            numbers,
            used: BTreeSet::new(),
            targets: HashSet::new(),
            around_targets: HashSet::new(),
            joined: HashSet::new(),
            is_all_joined: false,
            multiples: 1,
            n_patterns: 0,
            path: Vec::new(),
            sizes: Sizes::default(),
            n_joined_references: 0,
            n_copied: 0,
            has_fraction: false,
            has_exclusive: false,
        }
    }

    pub(super) fn refused<T>(&self, reason: impl Into<String>) -> Checked<T> {
        let pointer =
            self.path.iter().map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1"))).collect();
        Err(GrammarError::Schema { pointer: Some(pointer), reason: reason.into() })
    }

    /// Runs `work` at a place below.
    pub(super) fn at<T>(&mut self, name: &str, work: impl FnOnce(&mut Self) -> Checked<T>) -> Checked<T> {
        self.path.push(name.to_owned());
        let result = work(self)?;
        self.path.pop();
        Ok(result)
    }

    /// Checks the sizes that bound the work of the compiler, and finds what references name.
    pub(super) fn check(&mut self) -> Checked<()> {
        self.sizes.count(self.root);
        self.check_sizes()?;
        // References with the place from which they are named; a target at a joined place names further ones from there.
        let mut found: HashMap<&str, Option<&Json>> = HashMap::new();
        let mut heights = height(self.root);
        let mut seen = HashSet::new();
        let mut waiting = vec![(self.root, Place::Alone)];
        while let Some((schema, place)) = waiting.pop() {
            if !seen.insert((id(schema), place == Place::Joined)) {
                continue;
            }
            let mut references = Vec::new();
            references_of(schema, place, &mut references);
            for (reference, place) in references {
                self.n_joined_references += usize::from(place == Place::Joined);
                let target = match found.entry(reference) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => {
                        let mut around = Vec::new();
                        let target = *new.insert(resolve(self.root, reference, &mut around));
                        if let Some(target) = target {
                            self.targets.insert(id(target));
                            self.around_targets.extend(around);
                            // One below an annotation, a list of names or a value was not counted as a schema.
                            if !self.sizes.schemas.contains(&id(target)) {
                                self.sizes.count(target);
                                self.check_sizes()?;
                            }
                            heights += height(target);
                        }
                        target
                    }
                };
                match target {
                    Some(target) => {
                        if place == Place::Joined {
                            self.joined.insert(id(target));
                        }
                        waiting.push((target, place));
                    }
                    None => self.is_all_joined |= place == Place::Joined,
                }
                if found.len() > REFS_MAX || heights > HEIGHTS_MAX {
                    let reason = format!(
                        "{} references to schemas of {heights} levels together are more than {REFS_MAX} and {HEIGHTS_MAX}",
                        found.len()
                    );
                    return Err(GrammarError::Schema { pointer: None, reason });
                }
            }
        }
        self.check_sizes()
    }

    pub(super) fn check_sizes(&self) -> Checked<()> {
        let Sizes { n_joined, n_bytes, .. } = self.sizes;
        let n_copies = n_joined + self.n_joined_references;
        let are_many = || {
            (n_copies.saturating_mul(n_bytes) > COPIES_BYTES_MAX).then(|| {
                format!(
                    "{n_copies} alternatives with other keywords beside them, in a schema of {n_bytes} bytes, are too many"
                )
            })
        };
        match self.sizes.excess().or_else(are_many) {
            Some(reason) => Err(GrammarError::Schema { pointer: None, reason }),
            None => Ok(()),
        }
    }

    pub(super) fn schema(&mut self, json: &Json, place: Place) -> Checked<Value> {
        let place = place.joined_if(self.is_all_joined || self.joined.contains(&id(json)));
        self.object(json, place)
    }

    pub(super) fn object(&mut self, json: &Json, place: Place) -> Checked<Value> {
        let Json::Object(entries) = json else { return Ok(json.to_value()) };
        let types = types(json);
        let is_values = json.get("const").is_some() != json.get("enum").is_some();
        // A reference may name it, or schemas inside, in another way than by their place.
        let is_named = NAMING.iter().any(|key| json.get(key).is_some()) && id(json) != id(self.root);
        let is_alone = !is_named && !self.around_targets.contains(&id(json));
        if is_values && is_alone && constraints(entries).all(is_beside_values) {
            return self.values(json, types.as_deref(), place);
        }
        if let Some(merged) = self.without_empty_patterns(json)? {
            // The new values have no identity that a reference could name.
            return self.object(&merged, place);
        }
        let inner = inner_place(entries, place);
        let range = match types.as_deref().map_or(Some(false), numeric_type) {
            Some(is_integer) if entries.iter().any(|(key, _)| NUMERIC.contains(&key.as_str())) => {
                Some(self.range(json, is_integer)?)
            }
            _ => None,
        };
        let is_inside =
            json.get("type").and_then(as_str).is_some() || !self.around_targets.contains(&id(json));
        let is_exact = range.is_some() && inner == Place::Alone && is_inside;
        if let Some(range) = range.as_ref().filter(|_| !is_exact) {
            self.check_joined(range, json)?;
        }
        let mut out = Map::new();
        for (key, value) in entries {
            let key = key.as_str();
            // References may name schemas under the keywords of vendors.
            let is_named = self.around_targets.contains(&id(value)) || self.targets.contains(&id(value));
            let is_dropped = NUMERIC.contains(&key) && (is_exact || range.is_none());
            if is_dropped || (is_annotation(key) && !is_named) {
                continue;
            }
            let is_any_of = key == "oneOf" && self.is_any_of(entries, value, place);
            let value = self.at(key, |pass| pass.keyword(key, value, entries, place))?;
            out.insert(if is_any_of { "anyOf" } else { key }.to_owned(), value);
        }
        let Some(range) = range.filter(|_| is_exact) else { return Ok(Value::Object(out)) };
        let set = self.set(&range)?;
        let others: Vec<&str> = match types.as_deref() {
            None => vec!["null", "boolean", "string", "array", "object"],
            Some(types) => {
                types.iter().copied().filter(|name| !["number", "integer"].contains(name)).collect()
            }
        };
        let mut outer: Map<String, Value> = Map::new();
        for key in ["$schema", "$id", "id", "$anchor", "$defs", "definitions"] {
            outer.extend(out.shift_remove(key).map(|value| (key.to_owned(), value)));
        }
        if others.is_empty() {
            match set {
                // In the old drafts `$ref` would hide the name.
                Some(set) if NAMING.iter().any(|key| outer.contains_key(*key)) => {
                    outer.insert("allOf".to_owned(), json!([{ "$ref": self.reference(set) }]))
                }
                Some(set) => outer.insert("$ref".to_owned(), self.reference(set)),
                None => outer.insert("anyOf".to_owned(), json!([false])),
            };
        } else {
            out.insert("type".to_owned(), others.into());
            let mut options = vec![Value::Object(out)];
            options.extend(set.map(|set| json!({ "$ref": self.reference(set) })));
            outer.insert("anyOf".to_owned(), options.into());
        }
        Ok(Value::Object(outer))
    }

    /// The value of a keyword.
    pub(super) fn keyword(
        &mut self,
        key: &str,
        value: &Json,
        entries: &[(String, Json)],
        place: Place,
    ) -> Checked<Value> {
        let inner = child_place(entries, key, place);
        let is_target = self.targets.contains(&id(value));
        match (key, value) {
            (
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" | "const"
                | "enum" | "pattern" | "format" | "multipleOf" | "minimum" | "maximum" | "exclusiveMinimum"
                | "exclusiveMaximum",
                _,
            ) if is_target => self.refused("a reference names it, and it is no schema"),
            (
                "const" | "enum" | "pattern" | "format" | "multipleOf" | "minimum" | "maximum"
                | "exclusiveMinimum" | "exclusiveMaximum",
                _,
            ) if self.around_targets.contains(&id(value)) => {
                self.refused("a reference names a part of it, and it is no schema")
            }
            (
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                Json::Object(schemas),
            ) => {
                let inner = if key.starts_with('$') || key == "definitions" { Place::Alone } else { inner };
                let schemas = schemas.iter().map(|(name, schema)| {
                    Ok((name.clone(), self.at(name, |pass| pass.schema(schema, inner))?))
                });
                Ok(Value::Object(schemas.collect::<Checked<Map<_, _>>>()?))
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Json::Array(schemas)) => {
                let inner = if key == "oneOf" && !self.is_any_of(entries, value, place) {
                    Place::Joined
                } else {
                    inner
                };
                let schemas = schemas
                    .iter()
                    .enumerate()
                    .map(|(index, schema)| self.at(&index.to_string(), |pass| pass.schema(schema, inner)));
                Ok(Value::Array(schemas.collect::<Checked<Vec<_>>>()?))
            }
            ("items" | "additionalItems" | "additionalProperties", schema) => self.schema(schema, inner),
            ("const", value) => self.exact(value),
            ("enum", Json::Array(values)) => {
                Ok(Value::Array(values.iter().map(|value| self.exact(value)).collect::<Checked<Vec<_>>>()?))
            }
            (
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties",
                Json::Number(literal),
            ) => match Decimal::read(literal).to_integer(COUNT_MAX) {
                Some(count) if count >= 0 => Ok(count.into()),
                _ => {
                    self.path.pop();
                    self.refused(format!("`{key}` {} is not an integer in 0..={COUNT_MAX}", short(literal)))
                }
            },
            ("pattern" | "format", value) => {
                let is_text = match value_of(entries, "type") {
                    Some(Json::String(name)) => name == "string",
                    Some(Json::Array(names)) => names.iter().any(|name| as_str(name) == Some("string")),
                    _ => true,
                };
                self.n_patterns += usize::from(is_text);
                if self.n_patterns > PATTERNS_MAX {
                    return self
                        .refused(format!("more than {PATTERNS_MAX} patterns and formats are too many"));
                }
                Ok(value.to_value())
            }
            ("multipleOf" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", value) => {
                Ok(value.to_value())
            }
            (_, value) => self.raw(value),
        }
    }

    /// A value that is no schema, unless references name schemas inside it.
    pub(super) fn raw(&mut self, value: &Json) -> Checked<Value> {
        if self.targets.contains(&id(value)) {
            return self.schema(value, Place::Alone);
        }
        match value {
            _ if !self.around_targets.contains(&id(value)) => Ok(value.to_value()),
            Json::Array(items) => {
                let items = items.iter().enumerate();
                let items = items.map(|(index, item)| self.at(&index.to_string(), |pass| pass.raw(item)));
                Ok(Value::Array(items.collect::<Checked<Vec<_>>>()?))
            }
            Json::Object(entries) => {
                let entries = entries
                    .iter()
                    .map(|(key, value)| Ok((key.clone(), self.at(key, |pass| pass.raw(value))?)));
                Ok(Value::Object(entries.collect::<Checked<Map<_, _>>>()?))
            }
            other => Ok(other.to_value()),
        }
    }

    /// Whether `oneOf` is `anyOf`, because no two of its schemas have a type in common. llguidance sees that too, but not behind references.
    pub(super) fn is_any_of(&self, entries: &[(String, Json)], list: &Json, place: Place) -> bool {
        let Json::Array(schemas) = list else { return false };
        let mut seen = HashSet::new();
        let has_own_types = |schema: &Json| {
            let types = types(schema)?;
            let types = types.into_iter().map(|name| if name == "integer" { "number" } else { name });
            let types: HashSet<String> = types.map(str::to_owned).collect();
            Some(types.into_iter().all(|name| seen.insert(name)))
        };
        place == Place::Alone
            && constraints(entries).count() == 1
            && !self.around_targets.contains(&id(list))
            && schemas.iter().map(has_own_types).all(|own| own == Some(true))
    }

    /// The same object without the patterns that match no names but those of `properties` and `required`; `None` if there are none. llguidance
    /// would expect a further property of such a pattern, and find no name for it.
    ///
    /// # Errors
    /// The copies are too large.
    pub(super) fn without_empty_patterns(&mut self, json: &Json) -> Checked<Option<Json>> {
        let Json::Object(entries) = json else { return Ok(None) };
        if self.around_targets.contains(&id(json)) {
            return Ok(None);
        }
        let Some(Json::Object(patterns)) = json.get("patternProperties") else { return Ok(None) };
        let list = json.get("required");
        let own = match json.get("properties") {
            Some(Json::Object(own)) => own.as_slice(),
            None => &[],
            Some(_) => return Ok(None),
        };
        let required = match list {
            Some(Json::Array(names)) => names.iter().filter_map(as_str).collect(),
            _ => Vec::new(),
        };
        let mut names: Vec<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
        names.extend(required.iter().copied().filter(|name| !own.iter().any(|(other, _)| other == name)));
        if patterns.len() > PATTERN_PROPERTIES_MAX || names.is_empty() {
            return Ok(None);
        }
        let quoted = |name: &&str| RegexAst::Literal(Value::from(*name).to_string());
        let mut properties = own.to_vec();
        let mut left = Vec::new();
        for (pattern, schema) in patterns {
            let search = Box::new(RegexAst::SearchRegex(regex_to_lark(pattern, "dw")));
            let all = RegexAst::JsonQuote(search, JsonQuoteOptions::regular());
            let taken = RegexAst::Or(names.iter().map(quoted).collect());
            let rest = RegexAst::And(vec![all.clone(), RegexAst::Not(Box::new(taken))]);
            let matcher = if is_empty(&rest) == Some(true) { matcher(&all) } else { None };
            let Some(mut matcher) = matcher else {
                left.push((pattern.clone(), schema.clone()));
                continue;
            };
            for name in names.iter().filter(|name| matcher.is_match(&Value::from(**name).to_string())) {
                self.sizes.count(schema);
                self.check_sizes()?;
                self.count_copy(schema)?;
                match properties.iter_mut().find(|(other, _)| other == name) {
                    Some((_, own)) if own == schema => {}
                    Some((_, own)) => {
                        let both = Json::Array(vec![own.clone(), schema.clone()]);
                        *own = Json::Object(vec![("allOf".to_owned(), both)]);
                    }
                    None => properties.push(((*name).to_owned(), schema.clone())),
                }
            }
        }
        if left.len() == patterns.len() {
            return Ok(None);
        }
        self.count_copy(json)?;
        let mut merged: Vec<(String, Json)> = entries
            .iter()
            .filter(|(key, _)| key != "properties" && key != "patternProperties")
            .cloned()
            .collect();
        merged.push(("properties".to_owned(), Json::Object(properties)));
        if !left.is_empty() {
            merged.push(("patternProperties".to_owned(), Json::Object(left)));
        }
        Ok(Some(Json::Object(merged)))
    }

    pub(super) fn count_copy(&mut self, json: &Json) -> Checked<()> {
        let mut sizes = Sizes::default();
        sizes.walk(json, Kind::Data);
        self.n_copied += sizes.n_bytes;
        if self.n_copied > COPIED_BYTES_MAX {
            return self.refused(
                "the `patternProperties` that only match names of `properties` and `required` are too large together",
            );
        }
        Ok(())
    }
}
