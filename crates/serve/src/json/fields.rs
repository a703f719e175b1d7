//! Reads the fields of a JSON object, with their names in every error.
//!
//! A reader says the type of each field where it reads it, which is also what [`Shape`] knows of the field. `null` counts as absent. A field that is read or refused is known. [`Fields::finish`] notes the others in a body of an API that other
//! projects define, whose clients send more than this server knows; in a body of this project's own, it refuses them.

use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

use super::ignored::Ignored;
use super::shape::Shape;
use crate::error::{ApiError, ApiResult};

/// The fields of an object.
pub(crate) struct Fields<'a> {
    /// The object's own path with a dot behind it; empty for the request itself.
    prefix: String,
    map: &'a Map<String, Value>,
    known: Vec<&'static str>,
    /// Where unknown fields are noted; without it, they are refused.
    ignored: Option<&'a Ignored>,
    /// Where the fields that are read are noted.
    shape: Option<&'a Shape>,
}

impl<'a> Fields<'a> {
    /// The fields of a request, of which unknown ones are refused.
    pub(crate) fn of_request(value: &'a Value) -> ApiResult<Self> {
        Self::of_outermost(value, None, None)
    }

    /// The fields of a request, of which unknown ones are noted.
    pub(crate) fn of_foreign(
        value: &'a Value,
        ignored: &'a Ignored,
        shape: Option<&'a Shape>,
    ) -> ApiResult<Self> {
        Self::of_outermost(value, Some(ignored), shape)
    }

    fn of_outermost(
        value: &'a Value,
        ignored: Option<&'a Ignored>,
        shape: Option<&'a Shape>,
    ) -> ApiResult<Self> {
        match value {
            Value::Object(map) => Ok(Self { prefix: String::new(), map, known: Vec::new(), ignored, shape }),
            _ => Err(ApiError::bad_request("the request is not a JSON object")),
        }
    }

    /// The fields of the object at `path` in the same request.
    pub(crate) fn of(&self, value: &'a Value, path: &str) -> ApiResult<Self> {
        let Self { ignored, shape, .. } = *self;
        match value {
            Value::Object(map) => {
                if let Some(shape) = shape {
                    shape.note(path, json!({ "type": "object" }));
                }
                Ok(Self { prefix: format!("{path}."), map, known: Vec::new(), ignored, shape })
            }
            _ => Err(ApiError::field(path, "an object is expected")),
        }
    }

    /// The objects of an array, each with its path.
    pub(crate) fn objects(&mut self, name: &'static str) -> ApiResult<Vec<Self>> {
        let path = self.path(name);
        let items = self.array(name)?.unwrap_or_default().iter().enumerate();
        items.map(|(index, item)| self.of(item, &format!("{path}[{index}]"))).collect()
    }

    /// The path of a field, such as `messages[0].content`.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn wrong(&self, name: &str, expected: impl std::fmt::Display) -> ApiError {
        ApiError::field(self.path(name), format!("{expected} is expected"))
    }

    /// The field, if it is there and not `null`.
    fn take(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The field, if it is there and not `null`, which a schema describes.
    pub(crate) fn described(
        &mut self,
        name: &'static str,
        schema: impl FnOnce() -> Value,
    ) -> Option<&'a Value> {
        if let Some(shape) = self.shape {
            shape.note(&self.path(name), schema());
        }
        self.take(name)
    }

    /// A field whose type its reader checks, if it is there and not `null`.
    pub(crate) fn value(&mut self, name: &'static str) -> Option<&'a Value> {
        self.described(name, || json!({}))
    }

    pub(crate) fn required(&mut self, name: &'static str) -> ApiResult<&'a Value> {
        if let Some(shape) = self.shape.filter(|_| self.prefix.is_empty()) {
            shape.require(name);
        }
        self.value(name).ok_or_else(|| {
            ApiError::field(self.path(name), "is required").with_code("missing_required_parameter")
        })
    }

    pub(crate) fn bool(&mut self, name: &'static str) -> ApiResult<Option<bool>> {
        let Some(value) = self.described(name, || json!({ "type": "boolean" })) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(name, "`true` or `false`"))
    }

    pub(crate) fn number(
        &mut self,
        name: &'static str,
        range: RangeInclusive<f64>,
    ) -> ApiResult<Option<f32>> {
        let (min, max) = (range.start(), range.end());
        let schema = || json!({ "type": "number", "minimum": min, "maximum": max });
        let Some(value) = self.described(name, schema) else { return Ok(None) };
        let number = value.as_f64().filter(|number| range.contains(number));
        let expected = format!("a number in {min}..={max}");
        number.map(|number| Some(number as f32)).ok_or_else(|| self.wrong(name, expected))
    }

    pub(crate) fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
    ) -> ApiResult<Option<i64>> {
        let Some(value) = self.described(name, || integers(&range)) else { return Ok(None) };
        self.in_range(name, value, range).map(Some)
    }

    fn in_range(&self, name: &str, value: &Value, range: RangeInclusive<i64>) -> ApiResult<i64> {
        let number = value.as_i64().filter(|number| range.contains(number));
        let expected = match range.end() {
            &i64::MAX => format!("an integer from {}", range.start()),
            end => format!("an integer in {}..={end}", range.start()),
        };
        number.ok_or_else(|| self.wrong(name, expected))
    }

    /// A number of things, at least `min`.
    pub(crate) fn count(&mut self, name: &'static str, min: i64) -> ApiResult<Option<usize>> {
        Ok(self.integer(name, min..=i64::MAX)?.map(size))
    }

    pub(crate) fn string(&mut self, name: &'static str) -> ApiResult<Option<&'a str>> {
        let Some(value) = self.described(name, || json!({ "type": "string" })) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(name, "a string"))
    }

    pub(crate) fn required_string(&mut self, name: &'static str) -> ApiResult<&'a str> {
        self.required(name)?;
        Ok(self.string(name)?.unwrap_or_default())
    }

    /// A text that is not empty.
    pub(crate) fn text(&mut self, name: &'static str, bytes_max: usize) -> ApiResult<Option<&'a str>> {
        let text = self.string(name)?;
        text.map(|text| check_text(&self.path(name), text, bytes_max)).transpose()
    }

    /// A text that is there and not empty.
    pub(crate) fn required_text(&mut self, name: &'static str, bytes_max: usize) -> ApiResult<String> {
        let text = self.required_string(name)?;
        check_text(&self.path(name), text, bytes_max).map(str::to_owned)
    }

    /// A short string without a meaning for the output.
    pub(crate) fn key(&mut self, name: &'static str, bytes_max: usize) -> ApiResult<Option<&'a str>> {
        let text = self.string(name)?;
        match text {
            Some(text) if text.len() > bytes_max => {
                Err(self.wrong(name, format!("a string of at most {bytes_max} bytes")))
            }
            text => Ok(text),
        }
    }

    pub(crate) fn array(&mut self, name: &'static str) -> ApiResult<Option<&'a [Value]>> {
        let Some(value) = self.described(name, || json!({ "type": "array" })) else { return Ok(None) };
        match value {
            Value::Array(items) => Ok(Some(items)),
            _ => Err(self.wrong(name, "an array")),
        }
    }

    /// An array of texts that are not empty; an empty one without the field.
    pub(crate) fn texts(
        &mut self,
        name: &'static str,
        n_max: usize,
        bytes_max: usize,
    ) -> ApiResult<Vec<String>> {
        let texts = || json!({ "type": "array", "items": { "type": "string" }, "maxItems": n_max });
        self.described(name, texts);
        let items = self.array(name)?.unwrap_or_default();
        if items.len() > n_max {
            let (path, given) = (self.path(name), items.len());
            return Err(ApiError::field(path, format!("{given} texts exceed the limit of {n_max}")));
        }
        let text = |(index, item): (usize, &Value)| {
            let path = format!("{}[{index}]", self.path(name));
            let text = item.as_str().ok_or_else(|| ApiError::field(&path, "a string is expected"))?;
            check_text(&path, text, bytes_max).map(str::to_owned)
        };
        items.iter().enumerate().map(text).collect()
    }

    pub(crate) fn object(&mut self, name: &'static str) -> ApiResult<Option<Fields<'a>>> {
        let path = self.path(name);
        let value = self.described(name, || json!({ "type": "object" }));
        value.map(|value| self.of(value, &path)).transpose()
    }

    pub(crate) fn required_object(&mut self, name: &'static str) -> ApiResult<Fields<'a>> {
        let value = self.required(name)?;
        self.of(value, &self.path(name))
    }

    /// The index of a string in `choices`.
    pub(crate) fn choice(&mut self, name: &'static str, choices: &[&str]) -> ApiResult<Option<usize>> {
        self.described(name, || json!({ "enum": choices }));
        let Some(text) = self.string(name)? else { return Ok(None) };
        let index = choices.iter().position(|choice| *choice == text);
        index.map(Some).ok_or_else(|| self.wrong(name, one_of(choices)))
    }

    /// A number of things, at least 1; -1 means no limit, as its absence does.
    pub(crate) fn limit(&mut self, name: &'static str) -> ApiResult<Option<usize>> {
        let Some(value) = self.described(name, || integers(&(-1..=i64::MAX))) else { return Ok(None) };
        match value.as_i64() {
            Some(-1) => Ok(None),
            _ => self.in_range(name, value, 1..=i64::MAX).map(|n| Some(size(n))),
        }
    }

    /// The field at `path` has no effect.
    pub(crate) fn note(&self, path: &str) {
        if let Some(ignored) = self.ignored {
            ignored.add(path);
        }
    }

    /// A field that is not supported, but has values that mean its absence.
    pub(crate) fn refuse_unless(
        &mut self,
        name: &'static str,
        is_neutral: impl FnOnce(&Value) -> bool,
        reason: &str,
    ) -> ApiResult<()> {
        match self.take(name) {
            Some(value) if !is_neutral(value) => Err(ApiError::unsupported(self.path(name), reason)),
            _ => Ok(()),
        }
    }

    pub(crate) fn refuse(&mut self, name: &'static str, reason: &str) -> ApiResult<()> {
        self.refuse_unless(name, |_| false, reason)
    }

    /// Notes or refuses the fields that nothing has read.
    pub(crate) fn finish(self) -> ApiResult<()> {
        let is_unknown =
            |(name, value): &(&String, &Value)| !value.is_null() && !self.known.contains(&name.as_str());
        let mut unknown = self.map.iter().filter(is_unknown);
        if let Some(ignored) = self.ignored {
            unknown.filter(|(_, value)| !is_empty(value)).for_each(|(name, _)| ignored.add(&self.path(name)));
            return Ok(());
        }
        let Some((name, _)) = unknown.next() else { return Ok(()) };
        // The name is the client's, so it is shown if it looks like one.
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        let name = if name.len() <= 64 && name.bytes().all(is_name) { name.as_str() } else { "…" };
        let error = ApiError::field(self.path(name), "the field is not known, and might change the output");
        Err(error.with_code("unknown_parameter"))
    }
}

fn size(n: i64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// The schema of integers in a range. The ends of `i64` are no bounds.
fn integers(range: &RangeInclusive<i64>) -> Value {
    let mut schema = json!({ "type": "integer" });
    for (key, bound, end) in [("minimum", *range.start(), i64::MIN), ("maximum", *range.end(), i64::MAX)] {
        if bound != end {
            schema[key] = bound.into();
        }
    }
    schema
}

/// Whether a value says nothing: an empty text, array or object.
pub(crate) fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// # Errors
/// The text of the field `path` is empty or too long.
pub(crate) fn check_text<'a>(path: &str, text: &'a str, bytes_max: usize) -> ApiResult<&'a str> {
    match text.len() {
        given if given > bytes_max => {
            Err(ApiError::field(path, format!("{given} bytes of text exceed the limit of {bytes_max}")))
        }
        _ if text.trim().is_empty() => Err(ApiError::field(path, "the text is empty")),
        _ => Ok(text),
    }
}

/// `a`, `b` or `c`.
pub(crate) fn one_of(choices: &[&str]) -> String {
    let quoted: Vec<String> = choices.iter().map(|choice| format!("`{choice}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn errors_name_the_field_and_never_quote_its_value() {
        let request = json!({ "x": { "a": "secret", "b": 3, "c": null, "secret value": 1 } });
        let mut fields = Fields::of_request(&request).unwrap().required_object("x").unwrap();
        for error in [
            fields.bool("a").unwrap_err(),
            fields.number("a", 0.0..=1.0).unwrap_err(),
            fields.integer("b", 0..=2).unwrap_err(),
            fields.choice("a", &["p", "q"]).unwrap_err(),
            fields.required("c").map(drop).unwrap_err(),
            fields.finish().unwrap_err(),
        ] {
            assert_eq!(error.kind, ErrorKind::Invalid);
            assert!(error.param.as_deref().unwrap().starts_with("x."), "{error:?}");
            assert!(!error.message.contains("secret"), "{error:?}");
        }
        assert_eq!(one_of(&["p", "q", "r"]), "`p`, `q` or `r`");
    }

    #[test]
    fn unknown_fields_of_foreign_requests_are_noted() {
        let request = json!({ "a": 1, "b": [{ "c": 2 }, { "c": 3, "d": null }], "e": null });
        let ignored = Ignored::default();
        let mut fields = Fields::of_foreign(&request, &ignored, None).unwrap();
        for item in fields.objects("b").unwrap() {
            item.finish().unwrap();
        }
        fields.finish().unwrap();
        assert_eq!(ignored.names(), ["b[].c", "a"]);
    }
}
