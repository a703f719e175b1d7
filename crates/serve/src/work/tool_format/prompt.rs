//! How a model is told about tools, earlier calls and their results.

use refrain::internals::tokenizer::{ReasoningMarkers, TokenizerParts as _};
use refrain::{ChatOptions, Message, Role, Tokenizer};
use serde_json::{Value, json};

use super::hermes::{CLOSE, HERMES, OPEN};
use super::{FORMATS, ToolFormat, WrittenCall};
use crate::work::request::Function;

/// A name that no template has.
const PROBE: &str = "refrain_probe";

/// How a model calls, and who tells it about tools.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) format: &'static dyn ToolFormat,
    /// Whether the chat template shows tools. Otherwise the system turn describes them, and calls are those of [`HERMES`].
    by_template: bool,
    /// Whether the chat template shows earlier calls.
    shows_calls: bool,
}

impl Told {
    const BY_TEXT: Self = Self { format: &HERMES, by_template: false, shows_calls: false };

    /// Recognises the form of a model's chat template, and renders a tool to see whether it shows it.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Self {
        let Some(template) = tokenizer.chat_template() else { return Self::BY_TEXT };
        let has_channels = tokenizer.reasoning_markers().is_some_and(ReasoningMarkers::writes_header);
        let Some(format) =
            recognised(template.source()).filter(|format| has_channels || !format.has_channels())
        else {
            return Self::BY_TEXT;
        };
        let empty = json!({ "type": "object", "properties": {} });
        let tool = json!({ "type": "function", "function": { "name": PROBE, "description": "", "parameters": empty } });
        let shows = |mut messages: Vec<Message>, tools: Vec<Value>| {
            let mut options = ChatOptions::default();
            if !tools.is_empty() {
                format.show(&mut messages, &mut options, tools);
            }
            let tokens = tokenizer.encode_chat(&messages, &options, true).ok()?;
            let bytes: Vec<u8> = tokens
                .iter()
                .flat_map(|&token| tokenizer.token_bytes(token).unwrap_or_default())
                .copied()
                .collect();
            Some(String::from_utf8_lossy(&bytes).contains(PROBE))
        };
        let asked = Message::new(Role::User, "x");
        if shows(vec![asked.clone()], vec![tool]) != Some(true) {
            return Self::BY_TEXT;
        }
        let id = "probe0000";
        let mut call = Message::new(Role::Assistant, "");
        call.tool_calls =
            vec![json!({ "id": id, "type": "function", "function": { "name": PROBE, "arguments": {} } })];
        let mut result = Message::new(Role::Tool, "y");
        result.tool_call_id = Some(id.to_owned());
        // A template that refuses this may show other calls.
        let shows_calls = shows(vec![asked, call, result], Vec::new()).unwrap_or(true);
        Self { format, by_template: true, shows_calls }
    }

    /// Shows tools, earlier calls and their results.
    pub(crate) fn show(
        &self,
        messages: &mut Vec<Message>,
        options: &mut ChatOptions,
        functions: &[&Function],
    ) {
        if !self.by_template {
            return as_text(messages, functions);
        }
        for message in messages.iter_mut() {
            if !self.shows_calls && !message.tool_calls.is_empty() {
                write_calls(message, self.format);
            }
            for call in &mut message.tool_calls {
                if let Some(id) = call["id"].as_str().and_then(|id| self.format.id(id)) {
                    call["id"] = id.into();
                }
            }
            if let Some(id) = message.tool_call_id.as_deref().and_then(|id| self.format.id(id)) {
                message.tool_call_id = Some(id);
            }
        }
        if !functions.is_empty() {
            let tools = functions.iter().map(|function| function_json(function, self.format)).collect();
            self.format.show(messages, options, tools);
        }
    }
}

/// The form that a template's text has.
pub(super) fn recognised(template: &str) -> Option<&'static dyn ToolFormat> {
    FORMATS.into_iter().find(|format| format.recognises(template))
}

/// A function as templates expect it.
fn function_json(function: &Function, format: &dyn ToolFormat) -> Value {
    let mut inner = json!({ "name": function.name });
    let default = format.needs_description().then_some("");
    if let Some(description) = function.description.as_deref().or(default) {
        inner["description"] = description.into();
    }
    inner["parameters"] = function.parameters.clone();
    json!({ "type": "function", "function": inner })
}

/// Writes the calls of a message behind its text.
fn write_calls(message: &mut Message, format: &dyn ToolFormat) {
    let calls = std::mem::take(&mut message.tool_calls);
    let written = |call: &'_ Value| {
        let name = call["function"]["name"].as_str().unwrap_or_default();
        (name.to_owned(), call["function"]["arguments"].clone())
    };
    let calls: Vec<(String, Value)> = calls.iter().map(written).collect();
    let calls: Vec<WrittenCall<'_>> =
        calls.iter().map(|(name, arguments)| WrittenCall { name, arguments }).collect();
    let separator = if message.content.is_empty() { "" } else { "\n" };
    message.content.push_str(separator);
    message.content.push_str(&format.write(&calls));
}

/// Writes tools, earlier calls and their results as plain turns, for a template without tools.
fn as_text(messages: &mut Vec<Message>, functions: &[&Function]) {
    for message in messages.iter_mut() {
        if !message.tool_calls.is_empty() {
            write_calls(message, &HERMES);
        }
        if message.role == Role::Tool {
            message.role = Role::User;
            message.content = format!("<tool_response>\n{}\n</tool_response>", message.content);
            (message.tool_call_id, message.name) = (None, None);
        }
    }
    if functions.is_empty() {
        return;
    }
    let mut text = String::from("You can call functions. Each line is one:\n");
    for function in functions {
        text.push_str(&function_json(function, &HERMES).to_string());
        text.push('\n');
    }
    let example = r#"{"name": NAME, "arguments": {...}}"#;
    text.push_str(&format!("To call one, write:\n{OPEN}\n{example}\n{CLOSE}"));
    match messages.first_mut() {
        Some(first) if matches!(first.role, Role::System | Role::Developer) => {
            first.content = format!("{}\n\n{text}", first.content);
        }
        _ => messages.insert(0, Message::new(Role::System, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::named;
    use super::*;

    fn told(format: &str, shows_calls: bool) -> Told {
        Told { format: named(format), by_template: true, shows_calls }
    }

    /// A question, a call, and its result.
    fn conversation() -> Vec<Message> {
        let mut call = Message::new(Role::Assistant, "Wait.");
        let function = json!({ "name": "now", "arguments": { "zone": "CET" } });
        call.tool_calls = vec![json!({ "id": "call_1", "type": "function", "function": function })];
        let mut result = Message::new(Role::Tool, "Ten.");
        result.tool_call_id = Some("call_1".to_owned());
        vec![Message::new(Role::User, "When?"), call, result]
    }

    fn function() -> Function {
        let parameters = json!({ "type": "object" });
        Function { name: "now".to_owned(), description: None, parameters, path: String::new() }
    }

    #[test]
    fn templates_get_tools_where_they_read_them() {
        let (mut messages, mut options) = (conversation(), ChatOptions::default());
        told("hermes", true).show(&mut messages, &mut options, &[&function()]);
        let tool =
            json!({ "type": "function", "function": { "name": "now", "parameters": { "type": "object" } } });
        assert_eq!((messages, &options.tools), (conversation(), &vec![tool.clone()]));
        let (mut messages, mut options) = (conversation(), ChatOptions::default());
        told("phi4", true).show(&mut messages, &mut options, &[&function()]);
        assert_eq!((messages[0].role, messages.len()), (Role::System, conversation().len() + 1));
        assert_eq!(messages[0].tools, Some(json!([tool["function"]]).to_string()));
        let mut options = ChatOptions::default();
        told("gemma4", true).show(&mut conversation(), &mut options, &[&function()]);
        assert_eq!(options.tools[0]["function"]["description"], "");
        let mut options = ChatOptions::default();
        told("smollm3", true).show(&mut conversation(), &mut options, &[&function()]);
        assert_eq!(
            (options.tools.len(), options == ChatOptions::default()),
            (0, false),
            "a variable has them"
        );
    }

    #[test]
    fn earlier_calls_are_shown_in_the_form_of_the_model() {
        let show = |told: Told| {
            let mut messages = conversation();
            told.show(&mut messages, &mut ChatOptions::default(), &[]);
            messages
        };
        for (format, written) in [
            ("granite", "Wait.\n<|tool_call|>[{\"name\": \"now\", \"arguments\": {\"zone\":\"CET\"}}]"),
            ("lfm2", "Wait.\n<|tool_call_start|>[now(zone=\"CET\")]<|tool_call_end|>"),
        ] {
            let messages = show(told(format, false));
            assert_eq!((&*messages[1].content, messages[1].tool_calls.len()), (written, 0));
            assert_eq!(messages[2], conversation()[2]);
        }
        let messages = show(told("mistral", true));
        let id = messages[2].tool_call_id.as_deref().expect("an id");
        assert_eq!((messages[1].tool_calls[0]["id"].as_str(), id.len()), (Some(id), 9));
        assert_eq!(show(told("hermes", true)), conversation());
        let messages = show(Told::BY_TEXT);
        assert!(messages[1].content.contains("<tool_call>") && messages[2].role == Role::User);
    }
}
