//! Fields and parts of answers that several APIs have in one form.

use serde_json::{Value, json};

use crate::error::{ApiError, ApiResult};
use crate::json::fields::Fields;
use crate::json::numbers;
use crate::limits::Limits;
use crate::work::{Function, Plain, TokenLogprob, ToolChoice};

/// Maximum bytes of keys and names.
pub(super) const KEY_BYTES_MAX: usize = 512;
/// Maximum bytes of a function's name, as in the OpenAI API.
const NAME_BYTES_MAX: usize = 64;
/// Stop strings of a request. OpenAI allows four; editors send a dozen.
const STOP_MAX: usize = 64;

/// Stop strings in this field.
pub(super) fn stops(fields: &mut Fields<'_>, name: &'static str) -> ApiResult<Vec<String>> {
    let path = fields.path(name);
    let wrong = || ApiError::field(&path, format!("a string or 1 to {STOP_MAX} strings are expected"));
    let schema = || {
        let text = json!({ "type": "string" });
        json!({ "oneOf": [text, { "type": "array", "items": text, "maxItems": STOP_MAX }] })
    };
    let texts: Vec<String> = match fields.described(name, schema) {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(items)) if items.len() <= STOP_MAX => {
            let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
            texts.collect::<Option<_>>().ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    match texts.iter().position(|text| !(1..=refrain::STOP_BYTES_MAX).contains(&text.len())) {
        Some(index) => {
            let (given, max) = (texts[index].len(), refrain::STOP_BYTES_MAX);
            Err(ApiError::field(path, format!("string {index} has {given} bytes, outside 1..={max}")))
        }
        None => Ok(texts),
    }
}

/// The number of newest tokens that a penalty sees; -1: all of the context.
pub(super) fn window(fields: &mut Fields<'_>, name: &'static str) -> ApiResult<Option<usize>> {
    let given = fields.integer(name, -1..=i64::from(u32::MAX))?;
    Ok(given.map(|given| usize::try_from(given).unwrap_or(usize::MAX)))
}

/// # Errors
/// There are too many tools.
pub(super) fn check_number(fields: &mut Fields<'_>, limits: &Limits) -> ApiResult<()> {
    match fields.array("tools")?.unwrap_or_default().len() {
        given if given > limits.tools => Err(ApiError::field(
            fields.path("tools"),
            format!("{given} tools are more than {}", limits.tools),
        )),
        _ => Ok(()),
    }
}

/// # Errors
/// Two tools have one name.
pub(super) fn check_names(functions: &[Function]) -> ApiResult<()> {
    for (index, function) in functions.iter().enumerate() {
        if functions[..index].iter().any(|earlier| earlier.name == function.name) {
            return Err(ApiError::field(&function.path, "another tool has the same name"));
        }
    }
    Ok(())
}

/// # Errors
/// The field `path` chooses a tool that is not there.
pub(super) fn check_choice(choice: &ToolChoice, functions: &[Function], path: &str) -> ApiResult<()> {
    let is_there = |name: &String| functions.iter().any(|function| function.name == *name);
    let is_known = match choice {
        ToolChoice::Named(name) => is_there(name),
        ToolChoice::Allowed { names, .. } => !names.is_empty() && names.iter().all(is_there),
        ToolChoice::Required => !functions.is_empty(),
        ToolChoice::Auto | ToolChoice::None => true,
    };
    match is_known {
        true => Ok(()),
        false => Err(ApiError::field(path, "the tool is not among `tools`")),
    }
}

/// A function with its name and description; `schema` names the field with its parameters.
pub(super) fn described(mut inner: Fields<'_>, schema: &'static str) -> ApiResult<Function> {
    let name = inner.required_string("name")?;
    let is_name_byte = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_name_byte) {
        let message = format!("1 to {NAME_BYTES_MAX} letters, digits, `_` or `-` are expected");
        return Err(ApiError::field(inner.path("name"), message));
    }
    let description = inner.string("description")?.map(str::to_owned);
    let path = inner.path(schema);
    let parameters = match inner.value(schema) {
        // No parameters: an empty object.
        None => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        Some(Value::Object(schema)) => {
            if schema.contains_key("x-guidance") {
                return Err(ApiError::field(path, "the key `x-guidance` is not allowed"));
            }
            let mut schema = schema.clone();
            match schema.get("type") {
                None => drop(schema.insert("type".to_owned(), "object".into())),
                Some(kind) if kind == "object" => {}
                Some(_) => return Err(ApiError::field(path, "a schema of type `object` is expected")),
            }
            Value::Object(schema)
        }
        Some(_) => return Err(ApiError::field(path, "a schema of type `object` is expected")),
    };
    // Arguments are always those of the schema, as with `strict`.
    inner.bool("strict")?;
    inner.finish()?;
    Ok(Function { name: name.to_owned(), description, parameters, path })
}

/// An earlier call in the form that templates expect: its arguments as an object. With `has_index`, it may name its place among
/// the calls.
pub(super) fn tool_call(mut fields: Fields<'_>, has_index: bool) -> ApiResult<Value> {
    let id = fields.key("id", KEY_BYTES_MAX)?.unwrap_or_default();
    fields.choice("type", &["function"])?;
    let mut function = fields.required_object("function")?;
    let name = function.required_string("name")?;
    let arguments = match function.value("arguments") {
        Some(object @ Value::Object(_)) => object.clone(),
        _ => read_arguments(function.string("arguments")?.unwrap_or_default()),
    };
    if has_index {
        function.value("index");
    }
    function.finish()?;
    fields.finish()?;
    Ok(call_json(id, name, arguments))
}

pub(super) fn call_json(id: &str, name: &str, arguments: Value) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// The arguments of an earlier call. Models write JSON that is cut, so other text stays a string.
pub(super) fn read_arguments(text: &str) -> Value {
    if text.trim().is_empty() {
        return json!({});
    }
    serde_json::from_str::<Value>(text)
        .ok()
        // A number that a value would round stays as it was written.
        .filter(|value| value.is_object() && numbers::rounded(text.as_bytes(), None).is_none())
        .unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Checks the texts of a field.
pub(super) fn check_inputs(inputs: &[Plain], path: &str, limits: &Limits) -> ApiResult<()> {
    if inputs.len() > limits.inputs {
        let message = format!("{} texts are more than {}", inputs.len(), limits.inputs);
        return Err(ApiError::field(path, message));
    }
    let is_empty = |input: &Plain| match input {
        Plain::Text(text) => text.is_empty(),
        Plain::Tokens(tokens) => tokens.is_empty(),
    };
    match inputs.iter().any(is_empty) {
        true => Err(ApiError::field(path, "a text is empty")),
        false => Ok(()),
    }
}

/// Token probabilities of chat answers and responses.
pub(super) fn logprobs_json(tokens: &[TokenLogprob]) -> Vec<Value> {
    let entry = |text: &[u8], logprob: f32| {
        let token = String::from_utf8_lossy(text);
        json!({ "token": token, "logprob": finite(logprob), "bytes": text })
    };
    let of = |token: &TokenLogprob| {
        let mut value = entry(&token.bytes, token.logprob);
        value["top_logprobs"] =
            token.top.iter().map(|(bytes, logprob)| entry(bytes, *logprob)).collect::<Vec<_>>().into();
        value
    };
    tokens.iter().map(of).collect()
}

/// OpenAI's number for what is never chosen; JSON has no infinity.
pub(super) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_keep_their_numbers() {
        for text in [r#"{"a": 9007199254740993}"#, r#"{"a": [0.1, 1e308]}"#] {
            assert_eq!(read_arguments(text), serde_json::from_str::<Value>(text).unwrap(), "{text}");
        }
        for text in
            [r#"{"a": 18446744073709551616}"#, r#"{"a": {"b": [0.10000000000000000001]}}"#, r#"{"a": "#]
        {
            assert_eq!(read_arguments(text), Value::String(text.to_owned()), "{text}");
        }
    }
}
