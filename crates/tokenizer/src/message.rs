//! The turns of a conversation, and what a template is given beside them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::date::ChatDate;

/// The author of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Role {
    /// Instructions to the model.
    System,
    /// Instructions by the app's developer. If the template has no such role, they become [`Role::System`].
    Developer,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The name in chat templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One turn of a conversation. Templates see each field that is set, under its name here.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The text.
    pub content: String,
    /// The model's reasoning before its answer. The template decides which turns show it.
    pub reasoning_content: Option<String>,
    /// The tool calls of the model, in the form that the model's template expects. Most templates expect
    /// `{"type": "function", "function": {"name": …, "arguments": {…}}}`.
    pub tool_calls: Vec<Value>,
    /// The id of the call that a message of [`Role::Tool`] answers.
    pub tool_call_id: Option<String>,
    /// The name of the tool or the author.
    pub name: Option<String>,
    /// The tools, as a text, for templates that read them from the system message (Phi-4-mini). Most templates read
    /// [`ChatOptions::tools`].
    pub tools: Option<String>,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
            tools: None,
        }
    }

    /// Calls `see` with every text of the message, including the keys of tool calls.
    pub(super) fn each_text(&self, see: &mut dyn FnMut(&str)) {
        see(&self.content);
        [&self.reasoning_content, &self.tool_call_id, &self.name, &self.tools]
            .into_iter()
            .flatten()
            .for_each(|text| see(text));
        self.tool_calls.iter().for_each(|call| each_json_text(call, see));
    }

    pub(super) fn map_texts(&self, map: &dyn Fn(&str) -> String) -> Self {
        let optional = |text: &Option<String>| text.as_deref().map(map);
        Self {
            role: self.role,
            content: map(&self.content),
            reasoning_content: optional(&self.reasoning_content),
            tool_calls: self.tool_calls.iter().map(|call| map_json_texts(call, map)).collect(),
            tool_call_id: optional(&self.tool_call_id),
            name: optional(&self.name),
            tools: optional(&self.tools),
        }
    }
}

/// The inputs of a chat template beside the conversation.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct ChatOptions {
    /// `enable_thinking`, which switches the model's reasoning on or off in many templates. Undefined by default.
    pub enable_thinking: Option<bool>,
    /// The tools that the model may call (`tools`), most often JSON schemas of functions. `none` by default.
    pub tools: Vec<Value>,
    /// Documents to answer from (`documents`), for templates that support them. `none` by default.
    pub documents: Vec<Value>,
    /// The date for `strftime_now` and `date_string` (`26 Jul 2024`). Set it for reproducible prompts. By default, it
    /// is the system clock's date in UTC, read once per session.
    pub date: Option<ChatDate>,
    pub(super) variables: BTreeMap<String, Value>,
}

impl ChatOptions {
    /// Calls `see` with every text, including keys.
    pub(super) fn each_text(&self, see: &mut dyn FnMut(&str)) {
        self.tools.iter().chain(&self.documents).for_each(|value| each_json_text(value, see));
        self.variables.values().for_each(|value| each_json_text(value, see));
    }

    pub(super) fn map_texts(&self, map: &dyn Fn(&str) -> String) -> Self {
        let all = |values: &[Value]| values.iter().map(|value| map_json_texts(value, map)).collect();
        let variables = self.variables.iter();
        Self {
            enable_thinking: self.enable_thinking,
            tools: all(&self.tools),
            documents: all(&self.documents),
            variables: variables.map(|(name, value)| (name.clone(), map_json_texts(value, map))).collect(),
            date: self.date,
        }
    }
}

fn each_json_text(value: &Value, see: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(items) => items.iter().for_each(|item| each_json_text(item, see)),
        Value::Object(entries) => entries.iter().for_each(|(key, value)| {
            see(key);
            each_json_text(value, see);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn map_json_texts(value: &Value, map: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(map(text)),
        Value::Array(items) => Value::Array(items.iter().map(|item| map_json_texts(item, map)).collect()),
        Value::Object(entries) => {
            let entries = entries.iter();
            Value::Object(entries.map(|(key, value)| (map(key), map_json_texts(value, map))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}
