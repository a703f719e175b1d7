//! Requests of Ollama's API.

use refrain::{Message, Role};
use refrain_assistant::Priority;
use serde_json::Value;

use crate::api::shared::{
    KEY_BYTES_MAX, check_inputs, check_names, check_number, described, stops, tool_call, window,
};
use crate::body::Given;
use crate::error::{ApiError, ApiResult};
use crate::json::fields::{Fields, is_empty};
use crate::limits::Limits;
use crate::work::{
    Effort, EmbeddingsRequest, Format, Function, Gap, Input, Plain, Request, SamplingFields, Tools,
};

/// What a request for text asks for.
pub(crate) struct Asked {
    pub(crate) model: String,
    pub(crate) streams: bool,
    pub(crate) what: What,
}

pub(crate) enum What {
    Text(Box<Request>),
    /// Nothing but the model in memory: there is no message or prompt.
    Load,
    /// The model out of memory.
    Unload,
}

/// Reads a request of `/api/chat`.
pub(crate) fn chat(given: Given<'_>) -> ApiResult<Asked> {
    let (mut fields, limits) = (given.fields()?, given.limits);
    let model = model(&mut fields)?;
    let streams = fields.bool("stream")?.unwrap_or(true);
    let n_messages = fields.array("messages")?.unwrap_or_default().len();
    if n_messages > limits.messages {
        let message = format!("{n_messages} messages are more than {}", limits.messages);
        return Err(ApiError::field("messages", message));
    }
    if n_messages == 0 {
        return without_text(fields, model, streams);
    }
    let messages = fields.objects("messages")?.into_iter().map(message).collect::<ApiResult<_>>()?;
    let functions = functions(&mut fields, limits)?;
    let mut request = text(&mut fields, Input::Chat(messages), "messages")?;
    request.tools = Tools { functions, is_parallel: true, ..Tools::default() };
    fields.finish()?;
    Ok(Asked { model, streams, what: What::Text(Box::new(request)) })
}

/// Reads a request of `/api/generate`.
pub(crate) fn generate(given: Given<'_>) -> ApiResult<Asked> {
    let mut fields = given.fields()?;
    let model = model(&mut fields)?;
    let streams = fields.bool("stream")?.unwrap_or(true);
    let prompt = fields.string("prompt")?.unwrap_or_default();
    if prompt.is_empty() {
        return without_text(fields, model, streams);
    }
    let system = fields.string("system")?.filter(|text| !text.is_empty());
    let is_raw = fields.bool("raw")?.unwrap_or(false);
    fields.refuse_unless("images", is_empty, "images are not supported")?;
    let suffix = fields.string("suffix")?.filter(|text| !text.is_empty());
    fields.refuse_unless("template", is_empty, "the template is that of the model; `raw` takes none")?;
    fields.refuse_unless(
        "context",
        is_empty,
        "no contexts are kept; send the conversation to `/api/chat`",
    )?;
    let input = match (is_raw, system) {
        _ if suffix.is_some() => {
            // As in the templates of models that fill in gaps.
            system.into_iter().for_each(|_| fields.note("system"));
            Input::Gaps(vec![Gap::new(prompt, suffix.unwrap_or_default(), "suffix")])
        }
        (true, Some(_)) => return Err(ApiError::field("raw", "raw mode does not support `system`")),
        (true, None) => Input::Plain(vec![Plain::Text(prompt.to_owned())]),
        (false, system) => {
            let system = system.map(|text| Message::new(Role::System, text));
            Input::Chat(system.into_iter().chain([Message::new(Role::User, prompt)]).collect())
        }
    };
    let request = text(&mut fields, input, "prompt")?;
    fields.finish()?;
    Ok(Asked { model, streams, what: What::Text(Box::new(request)) })
}

/// A request that has no text to answer: it loads the model, or unloads it if it should be kept for no time.
fn without_text(mut fields: Fields<'_>, model: String, streams: bool) -> ApiResult<Asked> {
    let is_zero = |value: &Value| match value {
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic()) == "0",
        _ => false,
    };
    // Models leave memory when others need it, and no sooner.
    let what = match fields.value("keep_alive") {
        Some(value) if is_zero(value) => What::Unload,
        given => {
            given.into_iter().for_each(|_| fields.note("keep_alive"));
            What::Load
        }
    };
    Ok(Asked { model, streams, what })
}

/// Reads a request of `/api/show`: the model.
pub(crate) fn shown(given: Given<'_>) -> ApiResult<String> {
    let mut fields = given.fields()?;
    let model = model(&mut fields)?;
    fields.finish()?;
    Ok(model)
}

/// Reads a request of `/api/pull`: the model. Its progress is one line, so that a stream of it is the same.
pub(crate) fn pulled(given: Given<'_>) -> ApiResult<String> {
    let mut fields = given.fields()?;
    let model = model(&mut fields)?;
    fields.bool("stream")?;
    fields.finish()?;
    Ok(model)
}

/// `model`, or its older name.
fn model(fields: &mut Fields<'_>) -> ApiResult<String> {
    match fields.string("model")?.or(fields.string("name")?).filter(|name| !name.is_empty()) {
        Some(name) => Ok(name.to_owned()),
        None => Err(ApiError::field("model", "is required")),
    }
}

/// The fields that both endpoints have.
fn text(fields: &mut Fields<'_>, input: Input, param: &'static str) -> ApiResult<Request> {
    let mut request = Request::of_input(None, input, param);
    if let Some(options) = fields.object("options")? {
        self::options(options, &mut request)?;
    }
    request.format = format(fields)?;
    (request.thinking, request.effort) = think(fields)?;
    let top_logprobs = fields.integer("top_logprobs", 0..=20)?;
    if fields.bool("logprobs")?.unwrap_or(false) {
        request.logprobs = Some(top_logprobs.unwrap_or(0) as usize);
    }
    request.truncates = fields.bool("truncate")?.unwrap_or(true);
    Ok(request)
}

fn options(mut options: Fields<'_>, request: &mut Request) -> ApiResult<()> {
    let penalty = -100.0..=100.0;
    request.sampling = SamplingFields {
        temperature: options.number("temperature", 0.0..=100.0)?,
        top_p: options.number("top_p", 0.0..=1.0)?,
        top_k: options.integer("top_k", -1..=i64::from(u32::MAX))?.map(|k| k.max(0) as usize),
        min_p: options.number("min_p", 0.0..=1.0)?,
        frequency_penalty: options.number("frequency_penalty", penalty.clone())?,
        presence_penalty: options.number("presence_penalty", penalty)?,
        repetition_penalty: options.number("repeat_penalty", 0.01..=100.0)?,
        penalty_window: window(&mut options, "repeat_last_n")?,
        // -1: another seed each time.
        seed: options
            .integer("seed", i64::MIN..=i64::MAX)?
            .filter(|&seed| seed != -1)
            .map(|seed| seed as u64),
        ..SamplingFields::default()
    };
    // Below 1: no limit.
    let max = options.integer("num_predict", i64::MIN..=i64::MAX)?;
    request.max_tokens = max.and_then(|max| usize::try_from(max).ok()).filter(|&max| max > 0);
    request.stop = stops(&mut options, "stop")?;
    let is_off = |off: f64| move |value: &Value| value.as_f64() == Some(off);
    for (name, off) in [("typical_p", 1.0), ("tfs_z", 1.0), ("mirostat", 0.0)] {
        options.refuse_unless(name, is_off(off), "is not supported, and would change the output")?;
    }
    options.finish()
}

/// Objects of a schema with properties have no others unless it says so, as in the grammars that Ollama makes: clients send the schemas of
/// their classes, and a small model would invent keys. Parts of `allOf` together describe one object, and stay open. The reader of JSON
/// bounds the depth.
fn close(schema: &mut Value, is_part: bool) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match (name.as_str(), value) {
                    ("const" | "enum" | "default" | "examples", _) => {}
                    (
                        "properties" | "patternProperties" | "$defs" | "definitions",
                        Value::Object(schemas),
                    ) => {
                        schemas.values_mut().for_each(|schema| close(schema, false));
                    }
                    (name, value) => close(value, name == "allOf"),
                }
            }
            if fields.contains_key("properties") && !fields.contains_key("allOf") && !is_part {
                fields.entry("additionalProperties").or_insert(Value::Bool(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| close(item, is_part)),
        _ => {}
    }
}

/// `format`: `json`, or a schema.
fn format(fields: &mut Fields<'_>) -> ApiResult<Format> {
    Ok(match fields.value("format") {
        None => Format::Text,
        Some(Value::String(name)) if name.is_empty() => Format::Text,
        Some(Value::String(name)) if name == "json" => Format::JsonObject,
        Some(schema @ Value::Object(_)) => {
            let mut schema = schema.clone();
            close(&mut schema, false);
            Format::JsonSchema { schema, path: "format".to_owned() }
        }
        Some(_) => return Err(ApiError::field("format", "`json` or a schema is expected")),
    })
}

/// `think`: whether the model reasons, or how much.
fn think(fields: &mut Fields<'_>) -> ApiResult<(Option<bool>, Option<Effort>)> {
    const LEVELS: [&str; 3] = ["low", "medium", "high"];
    let path = "think";
    Ok(match fields.value(path) {
        None => (None, None),
        Some(Value::Bool(thinks)) => (Some(*thinks), None),
        Some(Value::String(level)) if level.is_empty() => (None, None),
        Some(_) => match fields.choice(path, &LEVELS)? {
            None => (None, None),
            Some(level) => (Some(true), Some(Effort { level: LEVELS[level], neutral: "medium", path })),
        },
    })
}

fn functions(fields: &mut Fields<'_>, limits: &Limits) -> ApiResult<Vec<Function>> {
    check_number(fields, limits)?;
    let function = |mut tool: Fields<'_>| {
        tool.choice("type", &["function"]).map_err(|error| error.with_code("unsupported_parameter"))?;
        let function = tool.required_object("function")?;
        tool.finish()?;
        described(function, "parameters")
    };
    let functions: Vec<Function> =
        fields.objects("tools")?.into_iter().map(function).collect::<ApiResult<_>>()?;
    check_names(&functions)?;
    Ok(functions)
}

fn message(mut fields: Fields<'_>) -> ApiResult<Message> {
    const ROLES: [(&str, Role); 4] = [
        ("system", Role::System),
        ("user", Role::User),
        ("assistant", Role::Assistant),
        ("tool", Role::Tool),
    ];
    let role = fields.choice("role", &ROLES.map(|(name, _)| name))?;
    let role = ROLES[role.ok_or_else(|| ApiError::field(fields.path("role"), "is required"))?].1;
    let mut message = Message::new(role, fields.string("content")?.unwrap_or_default());
    fields.refuse_unless("images", is_empty, "images are not supported")?;
    match role {
        Role::Assistant => {
            let thinking = fields.string("thinking")?.filter(|text| !text.is_empty());
            message.reasoning_content = thinking.map(str::to_owned);
            let calls = fields.objects("tool_calls")?.into_iter();
            message.tool_calls = calls.map(|call| tool_call(call, true)).collect::<ApiResult<_>>()?;
        }
        Role::Tool => {
            message.name = fields.key("tool_name", KEY_BYTES_MAX)?.map(str::to_owned);
            message.tool_call_id = fields.key("tool_call_id", KEY_BYTES_MAX)?.map(str::to_owned);
        }
        _ => {}
    }
    fields.finish()?;
    Ok(message)
}

/// Reads a request for vectors, of `/api/embed` or, with one text, of `/api/embeddings`. Without a text there is nothing to do.
pub(crate) fn embeddings(
    given: Given<'_>,
    input: &'static str,
) -> ApiResult<(String, Option<EmbeddingsRequest>)> {
    let mut fields = given.fields()?;
    let model = model(&mut fields)?;
    let wrong = || ApiError::field(input, "a string or strings are expected");
    let inputs = match fields.value(input) {
        None => Vec::new(),
        Some(Value::String(text)) if text.is_empty() => Vec::new(),
        Some(Value::String(text)) => vec![Plain::Text(text.clone())],
        Some(Value::Array(items)) if input == "input" => {
            let text = |item: &Value| item.as_str().map(|text| Plain::Text(text.to_owned()));
            items.iter().map(text).collect::<Option<_>>().ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    check_inputs(&inputs, input, given.limits)?;
    let dimensions = fields.count("dimensions", 1)?;
    let truncates = fields.bool("truncate")?.unwrap_or(true);
    fields.finish()?;
    let priority = Priority::Interactive;
    let request = EmbeddingsRequest { model: None, inputs, dimensions, truncates, priority };
    Ok((model, (!request.inputs.is_empty()).then_some(request)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_closed_unless_they_say_otherwise() {
        let closed = |mut schema: Value| {
            close(&mut schema, false);
            schema
        };
        let inner = json!({ "properties": { "properties": { "type": "string" } } });
        assert_eq!(
            closed(json!({ "properties": { "a": inner }, "const": inner })),
            json!({
                "properties": { "a": { "properties": { "properties": { "type": "string" } }, "additionalProperties": false } },
                "const": inner,
                "additionalProperties": false,
            })
        );
        for open in [
            json!({ "properties": {}, "additionalProperties": { "type": "string" } }),
            json!({ "type": "object" }),
            json!({ "allOf": [{ "properties": { "a": {} } }, { "properties": { "b": {} } }] }),
        ] {
            assert_eq!(closed(open.clone()), open);
        }
    }
}
