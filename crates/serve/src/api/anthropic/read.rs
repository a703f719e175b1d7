//! Requests of Anthropic's API.

use refrain::{Message, Role};
use serde_json::{Value, json};

use crate::api::shared::{
    KEY_BYTES_MAX, call_json, check_choice, check_names, check_number, described, stops,
};
use crate::body::Given;
use crate::error::{ApiError, ApiResult};
use crate::json::fields::{Fields, is_empty};
use crate::limits::Limits;
use crate::work::{Document, Effort, Format, Function, Input, Request, SamplingFields, ToolChoice, Tools};

/// Reads a request of `/v1/messages`. The flag: whether the answer is a stream.
pub(crate) fn create(given: Given<'_>) -> ApiResult<(Request, bool)> {
    let mut fields = given.fields()?;
    fields.required("max_tokens")?;
    let max_tokens = fields.count("max_tokens", 1)?;
    let streams = fields.bool("stream")?.unwrap_or(false);
    let mut request = conversation(&mut fields, given.limits)?;
    request.max_tokens = max_tokens;
    request.stop = stops(&mut fields, "stop_sequences")?;
    request.sampling = SamplingFields {
        temperature: fields.number("temperature", 0.0..=2.0)?,
        top_p: fields.number("top_p", 0.0..=1.0)?,
        top_k: fields.integer("top_k", -1..=i64::from(u32::MAX))?.map(|k| k.max(0) as usize),
        ..SamplingFields::default()
    };
    for name in ["container", "mcp_servers"] {
        fields.refuse_unless(name, is_empty, "is not supported")?;
    }
    fields.finish()?;
    Ok((request, streams))
}

/// Reads a request of `/v1/messages/count_tokens`.
pub(crate) fn count(given: Given<'_>) -> ApiResult<Request> {
    let mut fields = given.fields()?;
    let request = conversation(&mut fields, given.limits)?;
    fields.finish()?;
    Ok(request)
}

/// What the prompt is made of, and the form of the answer.
fn conversation(fields: &mut Fields<'_>, limits: &Limits) -> ApiResult<Request> {
    let model = fields.required_string("model")?.to_owned();
    fields.required("messages")?;
    match fields.array("messages")?.unwrap_or_default().len() {
        0 => return Err(ApiError::field("messages", "is empty")),
        given if given > limits.messages => {
            return Err(ApiError::field(
                "messages",
                format!("{given} messages are more than {}", limits.messages),
            ));
        }
        _ => {}
    }
    let mut reader = Reader::default();
    if let Some(value) = fields.value("system") {
        reader.messages.push(Message::new(Role::System, texts(fields, value, "system")?));
    }
    for message in fields.objects("messages")? {
        reader.message(message)?;
    }
    let Reader { messages, documents } = reader;
    // The answer goes on where the last message of the model ends.
    let continues = messages.last().is_some_and(|last| {
        last.role == Role::Assistant
            && last.tool_calls.is_empty()
            && last.reasoning_content.is_none()
            && !last.content.is_empty()
    });
    let tools = tools(fields, limits)?;
    let thinking = thinking(fields)?;
    let (format, effort) = output(fields)?;
    Ok(Request {
        tools,
        thinking,
        effort,
        format,
        documents,
        continues,
        ..Request::of_input(Some(model), Input::Chat(messages), "messages")
    })
}

/// Turns messages of blocks into turns: results of calls are turns of their own.
#[derive(Default)]
struct Reader {
    messages: Vec<Message>,
    documents: Vec<Document>,
}

impl Reader {
    fn message(&mut self, mut fields: Fields<'_>) -> ApiResult<()> {
        let role = fields.choice("role", &["user", "assistant"])?;
        let role = match role.ok_or_else(|| ApiError::field(fields.path("role"), "is required"))? {
            0 => Role::User,
            _ => Role::Assistant,
        };
        let mut turn = Message::new(role, "");
        let mut has_results = false;
        match fields.required("content")? {
            Value::String(text) => turn.content = text.clone(),
            Value::Array(_) => {
                for block in fields.objects("content")? {
                    match role {
                        Role::Assistant => assistant_block(block, &mut turn)?,
                        _ => has_results |= self.user_block(block, &mut turn)?,
                    }
                }
            }
            _ => {
                return Err(ApiError::field(
                    fields.path("content"),
                    "a string or an array of blocks is expected",
                ));
            }
        }
        fields.finish()?;
        if !has_results || !turn.content.is_empty() {
            self.messages.push(turn);
        }
        Ok(())
    }

    /// Reads a block of the user; whether it is the result of a call.
    fn user_block(&mut self, mut block: Fields<'_>, turn: &mut Message) -> ApiResult<bool> {
        let path = block.path("type");
        let kind = block.required_string("type")?;
        match kind {
            "text" => add_text(&mut turn.content, block.required_string("text")?),
            "tool_result" => {
                let id = block.required_string("tool_use_id")?.to_owned();
                let content = match block.value("content") {
                    None => String::new(),
                    Some(value) => texts(&block, value, &block.path("content"))?,
                };
                if !turn.content.is_empty() {
                    self.messages.push(Message::new(Role::User, std::mem::take(&mut turn.content)));
                }
                let mut result = Message::new(Role::Tool, content);
                result.tool_call_id = Some(id);
                self.messages.push(result);
                block.finish()?;
                return Ok(true);
            }
            "document" => {
                let title = block.string("title")?.unwrap_or_default().to_owned();
                let mut source = block.required_object("source")?;
                if source.required_string("type")? != "text" {
                    return Err(ApiError::unsupported(
                        source.path("type"),
                        "only documents of text are supported",
                    ));
                }
                let text = source.required_string("data")?.to_owned();
                // Plain text, or it would not be in this field.
                source.value("media_type");
                source.finish()?;
                self.documents.push(Document { title, text, url: None });
            }
            _ => return Err(unsupported(&path, kind)),
        }
        block.finish()?;
        Ok(false)
    }
}

fn assistant_block(mut block: Fields<'_>, turn: &mut Message) -> ApiResult<()> {
    let path = block.path("type");
    let kind = block.required_string("type")?;
    match kind {
        "text" => turn.content.push_str(block.required_string("text")?),
        "thinking" => {
            let text = block.required_string("thinking")?;
            add_text(turn.reasoning_content.get_or_insert_default(), text);
            // Of the answer that this server gave; it signs nothing.
            block.value("signature");
        }
        // Another server's, and not to be read.
        "redacted_thinking" => {}
        "tool_use" => {
            let id = block.key("id", KEY_BYTES_MAX)?.unwrap_or_default();
            let name = block.required_string("name")?;
            let input = match block.value("input") {
                None => json!({}),
                Some(input @ Value::Object(_)) => input.clone(),
                Some(_) => return Err(ApiError::field(block.path("input"), "an object is expected")),
            };
            turn.tool_calls.push(call_json(id, name, input));
        }
        _ => return Err(unsupported(&path, kind)),
    }
    block.finish()
}

fn unsupported(path: &str, kind: &str) -> ApiError {
    let what = match kind {
        "image" => "images are not supported",
        "document" => "documents are supported in messages of the user",
        "tool_use" | "tool_result" | "thinking" => "a block of the other role",
        _ => "`text`, `thinking`, `tool_use` or `tool_result` is expected",
    };
    ApiError::unsupported(path, what)
}

/// Blocks of text are paragraphs.
fn add_text(to: &mut String, text: &str) {
    if !to.is_empty() && !text.is_empty() {
        to.push('\n');
    }
    to.push_str(text);
}

/// A string, or blocks of text.
fn texts<'a>(within: &Fields<'a>, value: &'a Value, path: &str) -> ApiResult<String> {
    let blocks = match value {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(blocks) => blocks,
        _ => return Err(ApiError::field(path, "a string or an array of blocks is expected")),
    };
    let mut text = String::new();
    for (index, block) in blocks.iter().enumerate() {
        let mut block = within.of(block, &format!("{path}[{index}]"))?;
        let kind = block.required_string("type")?;
        if kind != "text" {
            return Err(unsupported(&block.path("type"), kind));
        }
        add_text(&mut text, block.required_string("text")?);
        block.finish()?;
    }
    Ok(text)
}

fn tools(fields: &mut Fields<'_>, limits: &Limits) -> ApiResult<Tools> {
    check_number(fields, limits)?;
    let function = |mut tool: Fields<'_>| {
        // The API's own tools run on its servers.
        tool.choice("type", &["custom"]).map_err(|error| error.with_code("unsupported_parameter"))?;
        described(tool, "input_schema")
    };
    let functions: Vec<Function> =
        fields.objects("tools")?.into_iter().map(function).collect::<ApiResult<_>>()?;
    check_names(&functions)?;
    let (mut choice, mut is_parallel) = (ToolChoice::Auto, true);
    if let Some(mut given) = fields.object("tool_choice")? {
        choice = match given.choice("type", &["auto", "any", "tool", "none"])? {
            None => return Err(ApiError::field(given.path("type"), "is required")),
            Some(0) => ToolChoice::Auto,
            Some(1) => ToolChoice::Required,
            Some(2) => ToolChoice::Named(given.required_string("name")?.to_owned()),
            Some(_) => ToolChoice::None,
        };
        is_parallel = !given.bool("disable_parallel_tool_use")?.unwrap_or(false);
        given.finish()?;
    }
    check_choice(&choice, &functions, "tool_choice")?;
    // One named function is called once.
    is_parallel &= !matches!(choice, ToolChoice::Named(_));
    Ok(Tools { functions, choice, is_parallel })
}

/// `thinking`: whether the model reasons. A budget has no effect.
fn thinking(fields: &mut Fields<'_>) -> ApiResult<Option<bool>> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok(None) };
    let kind = thinking.choice("type", &["enabled", "disabled", "adaptive"])?;
    let thinks = match kind.ok_or_else(|| ApiError::field("thinking.type", "is required"))? {
        0 => Some(true),
        1 => Some(false),
        // The model's own choice.
        _ => None,
    };
    thinking.finish()?;
    Ok(thinks)
}

/// `output_config`, and the older `output_format`: the form of the answer, and how much the model reasons.
fn output(fields: &mut Fields<'_>) -> ApiResult<(Format, Option<Effort>)> {
    const LEVELS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];
    let (mut format, mut effort) = (Format::Text, None);
    if let Some(given) = fields.object("output_format")? {
        format = schema(given)?;
    }
    if let Some(mut config) = fields.object("output_config")? {
        if let Some(given) = config.object("format")? {
            format = schema(given)?;
        }
        // `high` is the default of this API.
        let level = config.choice("effort", &LEVELS)?;
        let path = "output_config.effort";
        effort = level.map(|level| Effort { level: LEVELS[level], neutral: "high", path });
        config.finish()?;
    }
    Ok((format, effort))
}

fn schema(mut fields: Fields<'_>) -> ApiResult<Format> {
    if fields.choice("type", &["json_schema"])?.is_none() {
        return Err(ApiError::field(fields.path("type"), "is required"));
    }
    let path = fields.path("schema");
    let schema = fields.required("schema")?.clone();
    if !schema.is_object() {
        return Err(ApiError::field(path, "an object is expected"));
    }
    fields.finish()?;
    Ok(Format::JsonSchema { schema, path })
}
