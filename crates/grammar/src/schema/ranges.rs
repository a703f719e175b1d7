//! Numbers and listed values of a schema, exactly or refused.

use super::keywords::{EXCLUSIVE, NUMERIC, Place};
use super::pass::{Checked, Pass};
use super::values::{FLOAT_INTEGER_MAX, as_str, exact_value, inexact, is_of_type, short};
use crate::decimal::{DIGITS_MAX, Decimal};
use crate::json::Json;
use crate::numbers::{Bound, MULTIPLE_DIGITS_MAX, MULTIPLE_MAX, Range, multiple};
use llguidance::derivre::RegexAst;
use serde_json::{Map, Value, json};

impl Pass<'_, '_> {
    /// `const` or `enum`, with no other keywords than those of types and numbers: the values that those allow.
    pub(super) fn values(&mut self, json: &Json, types: Option<&[&str]>, place: Place) -> Checked<Value> {
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
    pub(super) fn composite(&mut self, value: &Json) -> Checked<Value> {
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
    pub(super) fn exact(&mut self, value: &Json) -> Checked<Value> {
        match exact_value(value) {
            Some(value) => Ok(value),
            None => self.refused(format!(
                "the number {} cannot be kept exactly beside other keywords",
                inexact(value).map(short).unwrap_or_default()
            )),
        }
    }

    pub(super) fn too_many_digits<T>(&self, key: &str, literal: &str) -> Checked<T> {
        self.refused(format!("`{key}` {} has more than {DIGITS_MAX} digits", short(literal)))
    }

    /// The set of numbers of the keywords of an object.
    pub(super) fn range(&mut self, json: &Json, is_integer: bool) -> Checked<Range> {
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
    pub(super) fn check_joined(&mut self, range: &Range, json: &Json) -> Checked<()> {
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
    pub(super) fn set(&mut self, range: &Range) -> Checked<Option<usize>> {
        match (range.is_empty(), range.regex()) {
            (Some(true), _) => Ok(None),
            (Some(false), Some(regex)) => Ok(Some(self.numbers.add(regex))),
            _ => self.refused("the multiples between `minimum` and `maximum` take too much work"),
        }
    }

    /// The reference to a set.
    pub(super) fn reference(&mut self, set: usize) -> Value {
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
}
