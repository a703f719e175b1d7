//! JSON Schemas before they are compiled: what llguidance would compute inexactly or without bound is rewritten or refused.
//!
//! llguidance reads numbers as floats. A set of numbers becomes a reference to a text that nothing else has; the lexeme of that text is
//! replaced by an exact one ([`Numbers`]). That works where no other schema is intersected with the set. Elsewhere ([`Place::Joined`]),
//! numbers that floats hold exactly stay as they are, and others are refused.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

use llguidance::derivre::{JsonQuoteOptions, RegexAst};
use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

use crate::decimal::{DIGITS_MAX, Decimal};
use crate::error::GrammarError;
use crate::json::Json;
use crate::limits::{
    COPIED_BYTES_MAX, COPIES_BYTES_MAX, COUNT_MAX, FORCED_BYTES_MAX, HEIGHTS_MAX, KEYWORDS_MAX,
    NAME_BYTES_MAX, ONE_OF_MAX, PATTERN_PROPERTIES_MAX, PATTERNS_MAX, PROPERTIES_MAX, REFS_MAX,
    STRING_BYTES_MAX, VALUES_MAX,
};
use crate::numbers::{Bound, MULTIPLE_DIGITS_MAX, MULTIPLE_MAX, Range, is_empty, matcher, multiple};

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

/// Integers that floats hold exactly together with both neighbours.
const FLOAT_INTEGER_MAX: u64 = (1 << 53) - 1;

/// Keywords that the compiler reads past. It intersects a schema with those of all others, also of unknown ones.
const NEUTRAL: [&str; 7] = ["$anchor", "$defs", "definitions", "$schema", "$id", "id", OPTIONS_KEY];

/// Keywords whose schemas are intersected with their neighbours.
const APPLICATORS: [&str; 6] = ["const", "enum", "allOf", "anyOf", "oneOf", "$ref"];

/// Keywords by which references find a schema, or schemas inside it.
const NAMING: [&str; 5] = ["$anchor", "$id", "id", "$defs", "definitions"];

/// Keywords of numbers.
const NUMERIC: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// Keywords of bounds that are not allowed themselves; in draft 4 they say whether `minimum` and `maximum` are.
const EXCLUSIVE: [&str; 2] = ["exclusiveMinimum", "exclusiveMaximum"];

/// Keywords that constrain nothing and may be long.
const ANNOTATIONS: [&str; 9] = [
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
fn is_annotation(key: &str) -> bool {
    ANNOTATIONS.contains(&key) || (key.starts_with("x-") && key != OPTIONS_KEY)
}

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

/// The sets of numbers of a grammar. In its schemas stand texts instead, one for each set.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Random, so that no schema has it.
    prefix: String,
    /// Of the same form, and nowhere.
    other_prefix: String,
    sets: Vec<RegexAst>,
    places: HashMap<String, usize>,
}

impl Numbers {
    pub(crate) fn new() -> Self {
        let random = || RandomState::new().build_hasher().finish();
        let prefix = || format!("refrain-numbers-{:016x}{:016x}", random(), random());
        Self { prefix: prefix(), other_prefix: prefix(), sets: Vec::new(), places: HashMap::new() }
    }

    /// The beginning of the JSON texts of all sets. The number of the set follows, and the quotation mark.
    pub(crate) fn beginning(&self) -> String {
        format!("\"{}-", self.prefix)
    }

    /// The JSON text of each set, with one of the same form that stands for nothing.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (String, String)> {
        (0..self.sets.len())
            .map(|set| (format!("\"{}-{set}\"", self.prefix), format!("\"{}-{set}\"", self.other_prefix)))
    }

    /// A set by its number.
    pub(crate) fn set(&self, number: &str) -> Option<&RegexAst> {
        self.sets.get(number.parse::<usize>().ok()?)
    }

    fn text(&self, set: usize) -> String {
        format!("{}-{set}", self.prefix)
    }

    fn add(&mut self, set: RegexAst) -> usize {
        let mut key = String::new();
        set.write_to_str(&mut key, usize::MAX, None);
        *self.places.entry(key).or_insert_with(|| {
            self.sets.push(set);
            self.sets.len() - 1
        })
    }
}

/// Where a schema stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing else constrains the value.
    Alone,
    /// Another schema is intersected with it, or compared.
    Joined,
}

impl Place {
    fn joined_if(self, is_joined: bool) -> Self {
        if is_joined { Self::Joined } else { self }
    }
}

/// The identity of a value of the schema.
fn id(json: &Json) -> usize {
    std::ptr::from_ref(json).addr()
}

struct Pass<'j, 'n> {
    root: &'j Json,
    numbers: &'n mut Numbers,
    /// Sets that this schema uses.
    used: BTreeSet<usize>,
    /// Values that references name.
    targets: HashSet<usize>,
    /// Values with such a value inside: their structure stays.
    around_targets: HashSet<usize>,
    /// Values that a reference names from a place that is joined.
    joined: HashSet<usize>,
    /// A reference that is joined names a place that is not found here.
    is_all_joined: bool,
    /// The product of the multiples at joined places.
    multiples: u32,
    n_patterns: usize,
    path: Vec<String>,
    /// With the parts that this pass copies.
    sizes: Sizes,
    /// References from joined places.
    n_joined_references: usize,
    /// Bytes of the parts that this pass copies, with their annotations.
    n_copied: usize,
    /// Whether joined places have a bound with a fraction, and one that is exclusive.
    has_fraction: bool,
    has_exclusive: bool,
}

type Checked<T> = Result<T, GrammarError>;

impl<'j, 'n> Pass<'j, 'n> {
    fn new(root: &'j Json, numbers: &'n mut Numbers) -> Self {
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

    fn refused<T>(&self, reason: impl Into<String>) -> Checked<T> {
        let pointer =
            self.path.iter().map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1"))).collect();
        Err(GrammarError::Schema { pointer: Some(pointer), reason: reason.into() })
    }

    /// Runs `work` at a place below.
    fn at<T>(&mut self, name: &str, work: impl FnOnce(&mut Self) -> Checked<T>) -> Checked<T> {
        self.path.push(name.to_owned());
        let result = work(self)?;
        self.path.pop();
        Ok(result)
    }

    /// Checks the sizes that bound the work of the compiler, and finds what references name.
    fn check(&mut self) -> Checked<()> {
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

    fn check_sizes(&self) -> Checked<()> {
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

    fn schema(&mut self, json: &Json, place: Place) -> Checked<Value> {
        let place = place.joined_if(self.is_all_joined || self.joined.contains(&id(json)));
        match json {
            Json::Object(entries) => self.object(json, entries, place),
            other => Ok(other.to_value()),
        }
    }

    fn object(&mut self, json: &Json, entries: &[(String, Json)], place: Place) -> Checked<Value> {
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
            return self.object(
                &merged,
                match &merged {
                    Json::Object(entries) => entries,
                    _ => &[],
                },
                place,
            );
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
            let value = self.at(key, |pass| pass.keyword(key, value, entries, place))?;
            let key = if key == "oneOf" && self.is_any_of(json, value_of(entries, key), place) {
                "anyOf"
            } else {
                key
            };
            out.insert(key.to_owned(), value);
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
    fn keyword(
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
                let inner = if key == "oneOf" && !self.is_any_of_list(entries, value, place) {
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
    fn raw(&mut self, value: &Json) -> Checked<Value> {
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

    /// `const` or `enum`, with no other keywords than those of types and numbers: the values that those allow.
    fn values(&mut self, json: &Json, types: Option<&[&str]>, place: Place) -> Checked<Value> {
        let constant = json.get("const");
        let values: Vec<&Json> = match (constant, json.get("enum")) {
            (Some(value), _) => vec![value],
            (None, Some(Json::Array(values))) => values.iter().collect(),
            // The compiler says what is wrong.
            _ => return Ok(json.to_value()),
        };
        let range = self.range(json, false)?;
        let (mut plain, mut exact, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for value in values {
            let fits = |name: &&str| is_of_type(value, name);
            if types.is_some_and(|types| !types.iter().any(fits)) {
                continue;
            }
            if let Json::Number(literal) = value {
                let number = Decimal::read(literal);
                if !range.contains(&number) {
                    continue;
                }
                if place == Place::Alone && exact_value(value).is_none() {
                    match number.text() {
                        Some(text) => exact.push(RegexAst::Literal(text)),
                        None => {
                            return self
                                .too_many_digits(if constant.is_some() { "const" } else { "enum" }, literal);
                        }
                    }
                    continue;
                }
            }
            match exact_value(value) {
                Some(value) => plain.push(value),
                None if place == Place::Alone => parts.push(self.composite(value)?),
                None => return self.exact(value),
            }
        }
        if !exact.is_empty() {
            let set = self.numbers.add(RegexAst::Or(exact));
            parts.push(json!({ "$ref": self.reference(set) }));
        }
        let mut out = match (plain.len(), constant) {
            (0, _) => None,
            (1, Some(_)) => plain.pop().map(|value| json!({ "const": value })),
            _ => Some(json!({ "enum": plain })),
        };
        if !parts.is_empty() {
            parts.extend(out);
            out = if parts.len() == 1 { parts.pop() } else { Some(json!({ "anyOf": parts })) };
        }
        // No value is left: the compiler drops the property or alternative.
        Ok(out.unwrap_or(Value::Bool(false)))
    }

    /// The schema of one list or object that has numbers which floats cannot hold.
    fn composite(&mut self, value: &Json) -> Checked<Value> {
        if let Some(value) = exact_value(value) {
            return Ok(json!({ "enum": [value] }));
        }
        match value {
            Json::Array(items) => {
                let items = items.iter().map(|item| self.composite(item)).collect::<Checked<Vec<_>>>()?;
                let len = items.len();
                Ok(json!({
                    "type": "array", "items": items, "additionalItems": false, "minItems": len, "maxItems": len
                }))
            }
            Json::Object(entries) => {
                let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
                let schemas = entries.iter().map(|(name, value)| Ok((name.clone(), self.composite(value)?)));
                let schemas = schemas.collect::<Checked<Map<_, _>>>()?;
                Ok(json!({
                    "type": "object", "properties": schemas, "required": names, "additionalProperties": false
                }))
            }
            Json::Number(literal) => match Decimal::read(literal).text() {
                Some(text) => {
                    let set = self.numbers.add(RegexAst::Literal(text));
                    Ok(json!({ "$ref": self.reference(set) }))
                }
                None => self.too_many_digits("const", literal),
            },
            other => Ok(json!({ "enum": [other.to_value()] })),
        }
    }

    /// A value whose numbers floats hold.
    fn exact(&mut self, value: &Json) -> Checked<Value> {
        match exact_value(value) {
            Some(value) => Ok(value),
            None => self.refused(format!(
                "the number {} cannot be kept exactly beside other keywords",
                inexact(value).map(short).unwrap_or_default()
            )),
        }
    }

    fn too_many_digits<T>(&self, key: &str, literal: &str) -> Checked<T> {
        self.refused(format!("`{key}` {} has more than {DIGITS_MAX} digits", short(literal)))
    }

    /// The set of numbers of the keywords of an object.
    fn range(&mut self, json: &Json, is_integer: bool) -> Checked<Range> {
        let mut range = Range { is_integer, ..Range::default() };
        for key in NUMERIC {
            let Some(value) = json.get(key) else { continue };
            let literal = match value {
                Json::Number(literal) => literal,
                // As in draft 4.
                Json::Bool(_) if key.starts_with("exclusive") => continue,
                _ => return self.refused(format!("`{key}` is not a number")),
            };
            let value = Decimal::read(literal);
            if value.parts().is_none() {
                return self.too_many_digits(key, literal);
            }
            let is_true = |key: &str| json.get(key) == Some(&Json::Bool(true));
            match key {
                "multipleOf" => {
                    range.multiple_of = multiple(&value);
                    if range.multiple_of.is_none() {
                        return self.refused(format!(
                            "`multipleOf` {} is not supported: without its point it may be 1 to {MULTIPLE_MAX}, with at most \
                             {MULTIPLE_DIGITS_MAX} digits behind the point",
                            short(literal)
                        ));
                    }
                }
                "minimum" | "exclusiveMinimum" => {
                    let is_inclusive = key == "minimum" && !is_true("exclusiveMinimum");
                    let is_tighter = range
                        .lower
                        .as_ref()
                        .is_none_or(|old| value > old.value || (value == old.value && !is_inclusive));
                    if is_tighter {
                        range.lower = Some(Bound { value, is_inclusive });
                    }
                }
                _ => {
                    let is_inclusive = key == "maximum" && !is_true("exclusiveMaximum");
                    let is_tighter = range
                        .upper
                        .as_ref()
                        .is_none_or(|old| value < old.value || (value == old.value && !is_inclusive));
                    if is_tighter {
                        range.upper = Some(Bound { value, is_inclusive });
                    }
                }
            }
        }
        Ok(range)
    }

    /// Checks that llguidance computes exactly with the numbers.
    fn check_joined(&mut self, range: &Range, json: &Json) -> Checked<()> {
        for key in NUMERIC {
            let Some(Json::Number(literal)) = json.get(key) else { continue };
            let is_draft_4 = EXCLUSIVE.iter().any(|exclusive| json.get(exclusive) == Some(&Json::Bool(true)));
            let is_fraction = ["minimum", "maximum"].contains(&key)
                && !Decimal::read(literal).is_integer()
                && inexact(&Json::Number(literal.clone())).is_none();
            self.has_exclusive |= is_draft_4 || EXCLUSIVE.contains(&key);
            self.has_fraction |= is_fraction;
            if self.has_fraction && self.has_exclusive {
                // llguidance allows zero between an exclusive zero and a fraction.
                return self.refused(
                    "bounds with fractions are not supported together with exclusive ones beside `allOf`, `anyOf`, `oneOf`, `$ref` or \
                     `patternProperties`",
                );
            }
            if !is_fraction && Decimal::read(literal).to_integer(FLOAT_INTEGER_MAX).is_none() {
                return self.refused(format!(
                    "`{key}` {} is not supported beside `allOf`, `anyOf`, `oneOf`, `$ref` or `patternProperties`: only integers of at most \
                     2^53 − 1 are, and fractions as `minimum` and `maximum`",
                    short(literal)
                ));
            }
        }
        if let Some((numerator, _)) = range.multiple_of {
            self.multiples = self.multiples.saturating_mul(numerator);
            if self.multiples > MULTIPLE_MAX {
                return self.refused(format!(
                    "the product of `multipleOf` beside `allOf`, `anyOf`, `oneOf`, `$ref` or `patternProperties` is more than \
                     {MULTIPLE_MAX}"
                ));
            }
        }
        Ok(())
    }

    /// The set of a range; `None` if it is empty.
    fn set(&mut self, range: &Range) -> Checked<Option<usize>> {
        match (range.is_empty(), range.regex()) {
            (Some(true), _) => Ok(None),
            (Some(false), Some(regex)) => Ok(Some(self.numbers.add(regex))),
            _ => self.refused("the multiples between `minimum` and `maximum` take too much work"),
        }
    }

    /// The reference to a set.
    fn reference(&mut self, set: usize) -> Value {
        self.used.insert(set);
        let draft = self.root.get("$schema").and_then(as_str).unwrap_or_default();
        let is =
            |version: &str| draft.trim_end_matches('#') == format!("http://json-schema.org/{version}/schema");
        let is_old = ["draft-04", "draft-06", "draft-07"].into_iter().any(is);
        let key = if is("draft-04") { "id" } else { "$id" };
        // In the old drafts `$ref` hides its neighbours.
        let is_hidden = is_old && self.root.get("$ref").is_some();
        let named = self.root.get(key).and_then(as_str).filter(|_| !is_hidden);
        let base = named.unwrap_or("json-schema:///");
        let base = base.split('#').next().unwrap_or_default();
        format!("{base}#/$defs/{}/{set}", self.numbers.prefix).into()
    }

    /// Whether `oneOf` is `anyOf`, because no two of its schemas have a type in common. llguidance sees that too, but not behind references.
    fn is_any_of(&self, json: &Json, list: Option<&Json>, place: Place) -> bool {
        let Json::Object(entries) = json else { return false };
        list.is_some_and(|list| self.is_any_of_list(entries, list, place))
    }

    fn is_any_of_list(&self, entries: &[(String, Json)], list: &Json, place: Place) -> bool {
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
    fn without_empty_patterns(&mut self, json: &Json) -> Checked<Option<Json>> {
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

    fn count_copy(&mut self, json: &Json) -> Checked<()> {
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

fn as_str(json: &Json) -> Option<&str> {
    match json {
        Json::String(text) => Some(text),
        _ => None,
    }
}

fn value_of<'j>(entries: &'j [(String, Json)], key: &str) -> Option<&'j Json> {
    entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

/// The beginning of a literal, for messages.
fn short(literal: &str) -> String {
    match literal.char_indices().nth(40) {
        None => literal.to_owned(),
        Some((end, _)) => format!("{}…", &literal[..end]),
    }
}

/// The types that an object names; `None` if it names none.
fn types(json: &Json) -> Option<Vec<&str>> {
    match json.get("type")? {
        Json::String(name) => Some(vec![name]),
        Json::Array(names) => names.iter().map(as_str).collect(),
        _ => None,
    }
}

/// Whether numbers of these types are integers; `None` if they have no numbers.
fn numeric_type(types: &[&str]) -> Option<bool> {
    if types.contains(&"number") { Some(false) } else { types.contains(&"integer").then_some(true) }
}

fn is_of_type(value: &Json, name: &str) -> bool {
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
fn exact_value(value: &Json) -> Option<Value> {
    inexact(value).is_none().then(|| value.to_value())
}

/// A number inside that is not kept exactly.
fn inexact(value: &Json) -> Option<&str> {
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

/// Keywords that `enum` and `const` are computed together with.
fn is_beside_values(key: &str) -> bool {
    key == "const" || key == "enum" || key == "type" || NUMERIC.contains(&key)
}

/// The keywords of an object that constrain a value, or are not known.
fn constraints(entries: &[(String, Json)]) -> impl Iterator<Item = &str> {
    entries.iter().map(|(key, _)| key.as_str()).filter(|key| !NEUTRAL.contains(key) && !is_annotation(key))
}

/// Where the schema of an object's own keywords stands.
fn inner_place(entries: &[(String, Json)], place: Place) -> Place {
    place.joined_if(constraints(entries).any(|key| APPLICATORS.contains(&key)))
}

/// Where the schemas of one of an object's keywords stand.
fn child_place(entries: &[(String, Json)], key: &str, place: Place) -> Place {
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

/// The references of a schema, each with the place of the schema that has it.
fn references_of<'j>(json: &'j Json, place: Place, out: &mut Vec<(&'j str, Place)>) {
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
fn resolve<'j>(root: &'j Json, reference: &str, around: &mut Vec<usize>) -> Option<&'j Json> {
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

fn percent_decoded(text: &str) -> String {
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
fn height(json: &Json) -> usize {
    1 + match json {
        Json::Array(items) => items.iter().map(height).max().unwrap_or(0),
        Json::Object(entries) => entries.iter().map(|(_, value)| height(value)).max().unwrap_or(0),
        _ => 0,
    }
}

/// The sizes of a schema that the work of the compiler depends on.
#[derive(Debug, Default)]
struct Sizes {
    n_values: usize,
    n_bytes: usize,
    /// Entries of alternatives that have other keywords beside them, or are parts of them.
    n_joined: usize,
    /// Values in `oneOf`: the compiler compares all pairs.
    n_one_of: usize,
    n_properties: usize,
    n_pattern_properties: usize,
    longest_name: usize,
    n_string_bytes: usize,
    n_forced_bytes: usize,
    most_keywords: usize,
    /// The objects that were counted as schemas.
    schemas: HashSet<usize>,
}

/// Bytes of a number that are no more than it has in the text.
const NUMBER_BYTES: usize = 20;

/// What a value of the schema's text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Schema,
    /// Schemas under names.
    Names,
    /// A value that the schema allows.
    Data,
}

impl Sizes {
    fn count(&mut self, json: &Json) {
        self.walk(json, Kind::Schema);
    }

    /// Visits each value once.
    fn walk(&mut self, json: &Json, kind: Kind) {
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
    fn keyword(
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

    fn property(&mut self, name: &str) {
        self.n_properties += 1;
        self.n_string_bytes += name.len();
        self.n_forced_bytes += name.len();
    }

    /// What is too large.
    fn excess(&self) -> Option<String> {
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
            r##"{"$ref":"#/$defs/a/minimum/b","$defs":{"a":{"type":"number","minimum":{"b":{}}}}}"##
                .to_owned(),
        ] {
            assert!(rewrite(&Json::read(&schema).unwrap(), &mut Numbers::new()).is_err(), "{schema}");
        }
        // Many references of one schema end the search before all of them are followed.
        let references: String =
            (0..3 * REFS_MAX).map(|i| format!(r##"{{"$ref":"#/$defs/a{i}"}},"##)).collect();
        let root =
            Json::read(&format!(r#"{{"allOf":[{{}},{{"prefixItems":[{references}true]}}]}}"#)).unwrap();
        let mut numbers = Numbers::new();
        let mut pass = Pass::new(&root, &mut numbers);
        assert!(pass.check().is_err());
        assert_eq!(pass.n_joined_references, REFS_MAX + 1);
    }

    #[test]
    fn each_value_is_counted_once() {
        let nested = |open: &str, close: &str| [&open.repeat(30), "0", &close.repeat(30)].concat();
        for schema in
            [nested(r#"{"const":"#, "}"), nested(r#"{"enum":["#, "]}"), nested(r#"{"oneOf":["#, "]}")]
        {
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
            assert!(
                pass.n_copied <= 2 * COPIED_BYTES_MAX && pass.sizes.n_values <= 2 * VALUES_MAX,
                "{short}"
            );
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
}
