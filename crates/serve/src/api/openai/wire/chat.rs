//! `POST /v1/chat/completions`.

use refrain::{Message, Role};
use serde_json::{Value, json};

use super::common;
use super::tools::{self, Form};
use crate::api::shared::{KEY_BYTES_MAX, tool_call};
use crate::body::Given;
use crate::error::{ApiError, ApiResult};
use crate::json::fields::Fields;
use crate::limits::Limits;
use crate::work::{Document, Effort, Format, Input, Request};

/// How an answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Delivery {
    pub(crate) streams: bool,
    /// Whether a last chunk has the usage.
    pub(crate) includes_usage: bool,
    /// Whether chunks show the prefill.
    pub(crate) shows_progress: bool,
    /// Whether chunks name the origin of their text, and the last one has the times.
    pub(crate) shows_origins: bool,
}

/// Reads a request.
pub(crate) fn read(given: Given<'_>) -> ApiResult<(Request, Delivery)> {
    let (mut fields, limits) = (given.fields()?, given.limits);
    let model = common::model(&mut fields)?;
    let messages = messages(&mut fields, limits)?;
    let n = fields.integer("n", 1..=limits.choices as i64)?.unwrap_or(1) as usize;
    let max_tokens = fields.limit("max_completion_tokens")?.or(fields.limit("max_tokens")?);
    let wants_logprobs = fields.bool("logprobs")?.unwrap_or(false);
    let top_logprobs = fields.integer("top_logprobs", 0..=20)?;
    if top_logprobs.is_some() && !wants_logprobs {
        return Err(ApiError::field("top_logprobs", "needs `logprobs: true`"));
    }
    let delivery = delivery(&mut fields)?;
    let format = match fields.object("response_format")? {
        None => Format::Text,
        Some(format) => response_format(format)?,
    };
    let format = common::grammar(&mut fields, format)?;
    let tools = tools::tools(&mut fields, Form::Nested, limits)?;
    let (thinking_from_effort, effort) = effort(&mut fields)?;
    let continues = continues(&mut fields, &messages)?;
    let (thinking, variables) = template_variables(&mut fields)?;
    let request = Request {
        model,
        input: Input::Chat(messages),
        param: "messages",
        n,
        sampling: common::sampling(&mut fields)?,
        max_tokens,
        stop: common::stop(&mut fields)?,
        logprobs: wants_logprobs.then(|| top_logprobs.unwrap_or(0) as usize),
        scores_prompts: false,
        format,
        tools,
        prediction: prediction(&mut fields)?,
        cache_key: fields.key("prompt_cache_key", KEY_BYTES_MAX)?.map(str::to_owned),
        documents: documents(&mut fields)?,
        thinking: thinking.or(fields.bool("enable_thinking")?).or(thinking_from_effort),
        effort,
        continues,
        truncates: false,
        variables,
        drafts: fields.bool("drafts")?.unwrap_or(true),
        priority: common::priority(&mut fields)?,
    };
    let is_text =
        |value: &Value| value.as_array().is_some_and(|items| items.iter().all(|item| item == "text"));
    fields.refuse_unless("modalities", is_text, "only text is supported")?;
    fields.refuse("audio", "audio is not supported")?;
    fields.refuse("web_search_options", "searches of the web are not supported")?;
    fields.refuse("functions", "use `tools`")?;
    fields.refuse("function_call", "use `tool_choice`")?;
    fields.refuse_unless("verbosity", |value| value == "medium", "is not supported")?;
    fields.refuse("prompt", "use `messages`, or `/v1/completions`")?;
    fields.refuse_unless("echo", |value| value == false, "is supported in `/v1/completions`")?;
    common::refuse_unsupported_but(&mut fields, &[common::GRAMMAR])?;
    fields.finish()?;
    Ok((request, delivery))
}

/// `reasoning_effort`, or the object that other servers take in its place.
fn effort(fields: &mut Fields<'_>) -> ApiResult<(Option<bool>, Option<Effort>)> {
    let (thinking, effort) = common::effort(fields, "reasoning_effort", "reasoning_effort")?;
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok((thinking, effort)) };
    let (other, other_effort) = common::effort(&mut reasoning, "effort", "reasoning.effort")?;
    let enabled = reasoning.bool("enabled")?;
    reasoning.finish()?;
    Ok((thinking.or(other).or(enabled), effort.or(other_effort)))
}

/// `stream`, `stream_options`, `return_progress`, `return_origins`.
pub(crate) fn delivery(fields: &mut Fields<'_>) -> ApiResult<Delivery> {
    let streams = fields.bool("stream")?.unwrap_or(false);
    let mut includes_usage = false;
    if let Some(mut options) = fields.object("stream_options")? {
        if !streams {
            return Err(ApiError::field("stream_options", "needs `stream: true`"));
        }
        includes_usage = options.bool("include_usage")?.unwrap_or(false);
        options.finish()?;
    }
    let shows_progress = fields.bool("return_progress")?.unwrap_or(false);
    let shows_origins = fields.bool("return_origins")?.unwrap_or(false);
    Ok(Delivery { streams, includes_usage, shows_progress, shows_origins })
}

/// `continue_final_message` and `add_generation_prompt`: whether the output continues the last message.
fn continues(fields: &mut Fields<'_>, messages: &[Message]) -> ApiResult<bool> {
    let continues = fields.bool("continue_final_message")?.unwrap_or(false);
    let begins = fields.bool("add_generation_prompt")?.unwrap_or(!continues);
    let is_begun = messages.last().is_some_and(|last| {
        last.role == Role::Assistant && last.tool_calls.is_empty() && last.reasoning_content.is_none()
    });
    match (continues, begins) {
        (true, true) => {
            Err(ApiError::field("continue_final_message", "needs `add_generation_prompt: false`"))
        }
        (true, false) if !is_begun => {
            let message = "the last message is no text of `assistant`, without calls and reasoning";
            Err(ApiError::field("continue_final_message", message))
        }
        (false, false) => {
            let message = "`false` is supported together with `continue_final_message`";
            Err(ApiError::unsupported("add_generation_prompt", message))
        }
        _ => Ok(continues),
    }
}

/// Names and values.
type Variables = Vec<(String, Value)>;

/// `chat_template_kwargs`: whether the model reasons, and the other variables of the chat template.
fn template_variables(fields: &mut Fields<'_>) -> ApiResult<(Option<bool>, Variables)> {
    let map = match fields.described("chat_template_kwargs", || json!({ "type": "object" })) {
        None => return Ok((None, Vec::new())),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(ApiError::field("chat_template_kwargs", "an object is expected")),
    };
    let mut thinking = None;
    let mut variables = Vec::new();
    for (name, value) in map {
        match (name.as_str(), value) {
            ("enable_thinking", Value::Bool(enable)) => thinking = Some(*enable),
            ("enable_thinking", _) => {
                let path = "chat_template_kwargs.enable_thinking";
                return Err(ApiError::field(path, "`true` or `false` is expected"));
            }
            _ => variables.push((name.clone(), value.clone())),
        }
    }
    Ok((thinking, variables))
}

pub(crate) fn messages(fields: &mut Fields<'_>, limits: &Limits) -> ApiResult<Vec<Message>> {
    fields.required("messages")?;
    match fields.array("messages")?.unwrap_or_default().len() {
        0 => return Err(ApiError::field("messages", "is empty")),
        given if given > limits.messages => {
            let message = format!("{given} messages are more than {}", limits.messages);
            return Err(ApiError::field("messages", message));
        }
        _ => {}
    }
    fields.objects("messages")?.into_iter().map(message).collect()
}

fn message(mut fields: Fields<'_>) -> ApiResult<Message> {
    const ROLES: [(&str, Role); 5] = [
        ("system", Role::System),
        ("developer", Role::Developer),
        ("user", Role::User),
        ("assistant", Role::Assistant),
        ("tool", Role::Tool),
    ];
    let role = fields.choice("role", &ROLES.map(|(name, _)| name))?;
    let role = ROLES[role.ok_or_else(|| ApiError::field(fields.path("role"), "is required"))?].1;
    let content_path = fields.path("content");
    let content = fields.value("content");
    let is_assistant = role == Role::Assistant;
    let content = content.map(|value| text_of(&fields, value, &content_path, is_assistant)).transpose()?;
    let mut message = Message::new(role, "");
    message.name = fields.key("name", KEY_BYTES_MAX)?.map(str::to_owned);
    let mut is_empty_allowed = false;
    match role {
        Role::Assistant => {
            fields.refuse("audio", "audio is not supported")?;
            fields.refuse("function_call", "use `tool_calls`")?;
            // Other servers name it `reasoning`.
            let reasoning = fields.string("reasoning_content")?.or(fields.string("reasoning")?);
            message.reasoning_content = reasoning.filter(|text| !text.is_empty()).map(str::to_owned);
            let calls = fields.objects("tool_calls")?.into_iter();
            message.tool_calls = calls.map(|call| tool_call(call, false)).collect::<ApiResult<_>>()?;
            is_empty_allowed = !message.tool_calls.is_empty() || message.reasoning_content.is_some();
        }
        Role::Tool => {
            message.tool_call_id = Some(fields.required_string("tool_call_id")?.to_owned());
        }
        _ => {}
    }
    fields.finish()?;
    match content {
        Some(content) => message.content = content,
        None if is_empty_allowed => {}
        None => {
            return Err(ApiError::field(content_path, "is required").with_code("missing_required_parameter"));
        }
    }
    Ok(message)
}

/// The text of a content: a string, or parts of text.
pub(crate) fn text_of<'a>(
    within: &Fields<'a>,
    value: &'a Value,
    path: &str,
    is_assistant: bool,
) -> ApiResult<String> {
    let parts = match value {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => return Err(ApiError::field(path, "a string or an array of parts is expected")),
    };
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let mut fields = within.of(part, &path)?;
        let kind = fields.required_string("type")?;
        match kind {
            "text" | "input_text" | "output_text" => {
                text.push_str(fields.required_string("text")?);
            }
            "refusal" if is_assistant => text.push_str(fields.required_string("refusal")?),
            "image_url" | "input_image" => {
                return Err(ApiError::unsupported(path, "images are not supported"));
            }
            "input_audio" => return Err(ApiError::unsupported(path, "audio is not supported")),
            "video_url" | "input_video" => return Err(ApiError::unsupported(path, "video is not supported")),
            "file" | "input_file" => return Err(ApiError::unsupported(path, "files are not supported")),
            _ => return Err(ApiError::field(fields.path("type"), "`text` is expected")),
        }
        fields.finish()?;
    }
    Ok(text)
}

fn response_format(mut fields: Fields<'_>) -> ApiResult<Format> {
    let kind = fields.choice("type", &["text", "json_object", "json_schema"])?;
    let format = match kind {
        None => return Err(ApiError::field(fields.path("type"), "is required")),
        Some(0) => Format::Text,
        Some(1) => match schema(&mut fields)? {
            // As llama.cpp names it.
            Some(format) => format,
            None => Format::JsonObject,
        },
        Some(_) => {
            let mut inner = fields.required_object("json_schema")?;
            let format = json_schema(&mut inner)?;
            inner.finish()?;
            format
        }
    };
    fields.finish()?;
    Ok(format)
}

/// `name`, `description`, `schema`, `strict`.
pub(crate) fn json_schema(fields: &mut Fields<'_>) -> ApiResult<Format> {
    // Without a meaning for the output. Other servers let it out.
    fields.string("name")?;
    fields.string("description")?;
    // Outputs always follow the schema.
    fields.bool("strict")?;
    fields.required("schema")?;
    Ok(schema(fields)?.unwrap_or(Format::JsonObject))
}

/// `schema`.
fn schema(fields: &mut Fields<'_>) -> ApiResult<Option<Format>> {
    let path = fields.path("schema");
    match fields.value("schema") {
        None => Ok(None),
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => {
            Ok(Some(Format::JsonSchema { schema: schema.clone(), path }))
        }
        Some(_) => Err(ApiError::field(path, "an object is expected")),
    }
}

/// `prediction`: the text that the output probably has.
fn prediction(fields: &mut Fields<'_>) -> ApiResult<Option<String>> {
    let Some(mut inner) = fields.object("prediction")? else { return Ok(None) };
    if inner.choice("type", &["content"])?.is_none() {
        return Err(ApiError::field("prediction.type", "is required"));
    }
    let content = inner.required("content")?;
    let text = text_of(&inner, content, "prediction.content", false)?;
    inner.finish()?;
    Ok(Some(text))
}

/// `documents`: passages to answer from. Copied text is then annotated.
pub(crate) fn documents(fields: &mut Fields<'_>) -> ApiResult<Vec<Document>> {
    let read = |mut fields: Fields<'_>| {
        let text = fields.required_string("text")?.to_owned();
        let title = fields.string("title")?.unwrap_or_default().to_owned();
        let url = fields.key("url", 2048)?.map(str::to_owned);
        fields.finish()?;
        Ok(Document { title, text, url })
    };
    fields.objects("documents")?.into_iter().map(read).collect()
}
