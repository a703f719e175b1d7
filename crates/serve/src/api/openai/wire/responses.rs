//! `POST /v1/responses`.

use refrain::{Message, Role};
use serde_json::{Map, Value, json};

use super::chat::{documents, json_schema, text_of};
use super::common;
use super::tools::{self, Form};
use crate::api::shared::{KEY_BYTES_MAX, call_json, read_arguments};
use crate::body::Given;
use crate::error::{ApiError, ApiResult};
use crate::json::Ignored;
use crate::json::fields::Fields;
use crate::work::{Format, Input, Request};

/// A request, and the fields that its response repeats.
#[derive(Debug)]
pub(crate) struct ResponsesRequest {
    pub(crate) request: Request,
    pub(crate) streams: bool,
    pub(crate) echo: Map<String, Value>,
    /// The items of the conversation, if the response is to be kept.
    pub(crate) kept: Option<Vec<Value>>,
    pub(crate) previous: Option<String>,
}

/// The items of the kept response with this id.
pub(crate) type FindItems<'a> = &'a dyn Fn(&str) -> Option<Vec<Value>>;

/// Fields whose values a response repeats, with the values for those that were not given.
fn echoed() -> Value {
    json!({
        "instructions": null,
        "max_output_tokens": null,
        "max_tool_calls": null,
        "metadata": {},
        "parallel_tool_calls": true,
        "prompt_cache_key": null,
        "safety_identifier": null,
        "text": { "format": { "type": "text" } },
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "user": null,
    })
}

pub(crate) fn read(given: Given<'_>, find: FindItems<'_>) -> ApiResult<ResponsesRequest> {
    let Given { value, limits, .. } = given;
    let mut fields = given.fields()?;
    metadata(&mut fields)?;
    let model = common::model(&mut fields)?;
    let mut messages: Vec<Message> = Vec::new();
    if let Some(text) = fields.string("instructions")? {
        messages.push(Message::new(Role::System, text));
    }
    let previous = fields.key("previous_response_id", KEY_BYTES_MAX)?.map(str::to_owned);
    let mut conversation = match &previous {
        None => Vec::new(),
        Some(id) => find(id).ok_or_else(|| {
            let message = "this server does not have the response, or no longer; send the whole conversation as `input`";
            ApiError::field("previous_response_id", message).with_code("previous_response_not_found")
        })?,
    };
    let mut reader = Items { messages, reasoning: None };
    // What this server has written, or taken before, has nothing to note.
    let noted = Ignored::default();
    for item in &conversation {
        reader.item(Fields::of_foreign(item, &noted, None)?, "previous_response_id")?;
    }
    let text_or_items =
        || json!({ "oneOf": [{ "type": "string" }, { "type": "array", "items": { "type": "object" } }] });
    fields.described("input", text_or_items);
    let items = match fields.required("input")? {
        Value::String(text) => {
            reader.messages.push(Message::new(Role::User, text.as_str()));
            conversation.push(json!({ "type": "message", "role": "user", "content": text }));
            &[][..]
        }
        Value::Array(items) => items,
        _ => return Err(ApiError::field("input", "a string or an array of items is expected")),
    };
    conversation.extend_from_slice(items);
    if conversation.len() > limits.messages {
        return Err(ApiError::field(
            "input",
            format!("{} items are more than {}", conversation.len(), limits.messages),
        ));
    }
    for (index, item) in items.iter().enumerate() {
        reader.item(fields.of(item, &format!("input[{index}]"))?, &format!("input[{index}]"))?;
    }
    let messages = reader.messages;
    if !messages.iter().any(|message| message.role != Role::System) {
        return Err(ApiError::field("input", "is empty"));
    }
    let format = match fields.object("text")? {
        None => Format::Text,
        Some(mut text) => {
            let format = match text.object("format")? {
                None => Format::Text,
                Some(format) => read_format(format)?,
            };
            text.refuse_unless("verbosity", |value| value == "medium", "is not supported")?;
            text.finish()?;
            format
        }
    };
    let (thinking, effort) = match fields.object("reasoning")? {
        None => (None, None),
        Some(mut reasoning) => {
            let effort = common::effort(&mut reasoning, "effort", "reasoning.effort")?;
            // Reasoning is shown as it is, without a summary.
            reasoning.finish()?;
            effort
        }
    };
    let top_logprobs = fields.integer("top_logprobs", 0..=20)?;
    let includes_logprobs = include(&mut fields)?;
    let wants_logprobs = includes_logprobs || top_logprobs.is_some_and(|n| n > 0);
    let tools = tools::tools(&mut fields, Form::Flat, limits)?;
    fields.count("max_tool_calls", 1)?;
    let streams = fields.bool("stream")?.unwrap_or(false);
    if let Some(options) = fields.object("stream_options")? {
        options.finish()?;
    }
    let request = Request {
        sampling: common::sampling(&mut fields)?,
        max_tokens: fields.limit("max_output_tokens")?,
        logprobs: wants_logprobs.then(|| top_logprobs.unwrap_or(0) as usize),
        format,
        tools,
        cache_key: fields.key("prompt_cache_key", KEY_BYTES_MAX)?.map(str::to_owned),
        documents: documents(&mut fields)?,
        thinking,
        effort,
        priority: common::priority(&mut fields)?,
        ..Request::of_input(model, Input::Chat(messages), "input")
    };
    let stores = fields.bool("store")?.unwrap_or(true);
    fields.refuse("conversation", "no conversations are stored; send the whole conversation as `input`")?;
    fields.refuse("prompt", "no prompts are stored; send the text as `instructions` and `input`")?;
    fields.refuse_unless("background", |value| value == false, "responses are sent as they are made")?;
    fields.refuse_unless("truncation", |value| value == "disabled", "only `disabled` is supported")?;
    fields.refuse("context_management", "is not supported")?;
    fields.refuse("stop", "is not supported here")?;
    for name in ["max_tokens", "max_completion_tokens"] {
        fields.refuse(name, "use `max_output_tokens`")?;
    }
    fields.refuse("messages", "use `input`")?;
    fields.refuse("response_format", "use `text.format`")?;
    common::refuse_unsupported(&mut fields)?;
    fields.finish()?;
    let Value::Object(mut echo) = echoed() else { unreachable!("it is an object") };
    for (name, default) in &mut echo {
        if let Some(given) = value.get(name).filter(|given| !given.is_null()) {
            *default = given.clone();
        }
    }
    echo.insert("reasoning".to_owned(), json!({ "effort": value["reasoning"]["effort"], "summary": null }));
    if let Some(Value::Array(tools)) = echo.get_mut("tools") {
        tools.iter_mut().filter_map(Value::as_object_mut).for_each(complete_tool);
    }
    Ok(ResponsesRequest { request, streams, echo, kept: stores.then_some(conversation), previous })
}

/// `metadata`: pairs of strings within the limits of the OpenAI API, which a response repeats.
fn metadata(fields: &mut Fields<'_>) -> ApiResult<()> {
    let path = fields.path("metadata");
    let is_pair = |(key, value): (&String, &Value)| {
        key.len() <= 64 && value.as_str().is_some_and(|value| value.chars().count() <= 512)
    };
    match fields.value("metadata") {
        None => Ok(()),
        Some(Value::Object(pairs)) if pairs.len() <= 16 && pairs.iter().all(is_pair) => Ok(()),
        Some(_) => {
            Err(ApiError::field(path, "at most 16 pairs of strings are expected, of 64 and 512 characters"))
        }
    }
}

/// A tool in a response has every field.
fn complete_tool(tool: &mut Map<String, Value>) {
    for (name, default) in
        [("description", Value::Null), ("parameters", Value::Null), ("strict", true.into())]
    {
        tool.entry(name).or_insert(default);
    }
}

/// `include`: whether it asks for probabilities. Parts that this server never has are left out.
fn include(fields: &mut Fields<'_>) -> ApiResult<bool> {
    let items = fields.array("include")?.unwrap_or_default();
    if let Some(index) = items.iter().position(|item| !item.is_string()) {
        return Err(ApiError::field(format!("include[{index}]"), "a string is expected"));
    }
    Ok(items.iter().any(|item| item == "message.output_text.logprobs"))
}

fn read_format(mut fields: Fields<'_>) -> ApiResult<Format> {
    let format = match fields.choice("type", &["text", "json_object", "json_schema"])? {
        None => return Err(ApiError::field(fields.path("type"), "is required")),
        Some(0) => Format::Text,
        Some(1) => Format::JsonObject,
        Some(_) => json_schema(&mut fields)?,
    };
    fields.finish()?;
    Ok(format)
}

/// Turns items into messages: calls and reasoning belong to the turn of the model around them.
struct Items {
    messages: Vec<Message>,
    /// Reasoning before the next turn of the model.
    reasoning: Option<String>,
}

impl Items {
    fn item(&mut self, mut fields: Fields<'_>, path: &str) -> ApiResult<()> {
        const KINDS: [&str; 5] =
            ["message", "function_call", "function_call_output", "reasoning", "item_reference"];
        match fields.choice("type", &KINDS).map_err(|error| error.with_code("unsupported_parameter"))? {
            None | Some(0) => self.message(fields),
            Some(1) => self.call(fields),
            Some(2) => {
                let id = fields.required_string("call_id")?;
                let output_path = fields.path("output");
                let output = fields.required("output")?;
                let output = text_of(&fields, output, &output_path, false)?;
                fields.finish()?;
                let mut message = Message::new(Role::Tool, output);
                message.tool_call_id = Some(id.to_owned());
                self.messages.push(message);
                Ok(())
            }
            Some(3) => self.reasoning(fields),
            Some(_) => Err(ApiError::unsupported(path, "no items are stored; send the item itself")),
        }
    }

    fn message(&mut self, mut fields: Fields<'_>) -> ApiResult<()> {
        const ROLES: [&str; 4] = ["user", "assistant", "system", "developer"];
        let role = fields.choice("role", &ROLES)?;
        let role = match role.ok_or_else(|| ApiError::field(fields.path("role"), "is required"))? {
            0 => Role::User,
            1 => Role::Assistant,
            2 => Role::System,
            _ => Role::Developer,
        };
        let path = fields.path("content");
        let content = fields.required("content")?;
        let text = text_of(&fields, content, &path, role == Role::Assistant)?;
        fields.finish()?;
        let mut message = Message::new(role, text);
        if role == Role::Assistant {
            message.reasoning_content = self.reasoning.take();
        }
        self.messages.push(message);
        Ok(())
    }

    fn call(&mut self, mut fields: Fields<'_>) -> ApiResult<()> {
        let (id, name) = (fields.required_string("call_id")?, fields.required_string("name")?);
        let arguments = read_arguments(fields.required_string("arguments")?);
        fields.finish()?;
        let is_own =
            self.messages.last().is_some_and(|last| last.role == Role::Assistant) && self.reasoning.is_none();
        if !is_own {
            let mut message = Message::new(Role::Assistant, "");
            message.reasoning_content = self.reasoning.take();
            self.messages.push(message);
        }
        if let Some(last) = self.messages.last_mut() {
            last.tool_calls.push(call_json(id, name, arguments));
        }
        Ok(())
    }

    fn reasoning(&mut self, mut fields: Fields<'_>) -> ApiResult<()> {
        let mut text = String::new();
        for mut part in fields.objects("content")? {
            part.choice("type", &["reasoning_text"])?;
            text.push_str(part.required_string("text")?);
            part.finish()?;
        }
        fields.refuse("encrypted_content", "it is another server's")?;
        fields.finish()?;
        if !text.is_empty() {
            self.reasoning = Some(text);
        }
        Ok(())
    }
}
