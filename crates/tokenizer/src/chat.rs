//! Renders and encodes a conversation. No message can insert a control token.
//!
//! A template writes control tokens and messages into one text. In that text, the letters `<|im_end|>` of a message
//! look like a real end of turn. Before rendering, the text of every control token inside a message is therefore
//! broken by a mark: a Unicode noncharacter that occurs nowhere in the conversation. The rendered text is split at
//! the remaining control tokens, the marks are removed, and the parts between are encoded as plain text.
//!
//! All other texts of the app are marked in the same way: names, tool calls, tools, documents and variables. A text
//! that ends with the beginning of a control token is marked too, because the next text could complete the token.

use std::collections::BTreeMap;

use serde_json::Value;

use super::date::ChatDate;
use super::pipeline::Piece;
use super::{TEXT_BYTES_MAX, Tokenizer, TokenizerError, TokenizerProblem};
use refrain_trees::TokenId;

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
        }
    }

    /// Calls `see` with every text of the message, including the keys of tool calls.
    pub(super) fn each_text(&self, see: &mut dyn FnMut(&str)) {
        see(&self.content);
        [&self.reasoning_content, &self.tool_call_id, &self.name]
            .into_iter()
            .flatten()
            .for_each(|text| see(text));
        self.tool_calls.iter().for_each(|call| each_json_text(call, see));
    }

    fn map_texts(&self, map: &dyn Fn(&str) -> String) -> Self {
        let optional = |text: &Option<String>| text.as_deref().map(map);
        Self {
            role: self.role,
            content: map(&self.content),
            reasoning_content: optional(&self.reasoning_content),
            tool_calls: self.tool_calls.iter().map(|call| map_json_texts(call, map)).collect(),
            tool_call_id: optional(&self.tool_call_id),
            name: optional(&self.name),
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

/// Names with a fixed meaning in templates.
const RESERVED: [&str; 16] = [
    "messages",
    "tools",
    "documents",
    "enable_thinking",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "raise_exception",
    "strftime_now",
    "range",
    "namespace",
    "dict",
    "loop",
    "caller",
    "self",
    "super",
];

impl ChatOptions {
    /// Sets a further variable of the template. `date_string` is accepted too and replaces the date's default form.
    ///
    /// # Errors
    /// The name has a fixed meaning in templates. The options are unchanged.
    pub fn set_variable(&mut self, name: impl Into<String>, value: Value) -> Result<(), TokenizerError> {
        let name = name.into();
        if RESERVED.contains(&name.as_str()) {
            return Err(TokenizerProblem::ReservedVariable { name }.into());
        }
        self.variables.insert(name, value);
        Ok(())
    }

    /// Calls `see` with every text, including keys.
    pub(super) fn each_text(&self, see: &mut dyn FnMut(&str)) {
        self.tools.iter().chain(&self.documents).for_each(|value| each_json_text(value, see));
        self.variables.values().for_each(|value| each_json_text(value, see));
    }

    fn map_texts(&self, map: &dyn Fn(&str) -> String) -> Self {
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

/// The noncharacters that can serve as the mark.
const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

impl Tokenizer {
    /// Renders a conversation with the model's chat template and encodes it. Control tokens come from the template
    /// alone. The texts of control tokens inside a message or an option are encoded as letters.
    ///
    /// # Errors
    /// The model has no template, or the template cannot be parsed or does not accept the conversation; then the
    /// [field](TokenizerError::field) is `chat_template`. Otherwise as [`Tokenizer::encode`].
    pub fn encode_chat(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        add_generation_prompt: bool,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let template = match &self.template {
            None => return Err(TokenizerProblem::NoChatTemplate.into()),
            Some(Err(e)) => return Err(e.clone().into()),
            Some(Ok(template)) => template,
        };
        let mut total = 0;
        let mut used = [false; 32];
        let mut see = |text: &str| {
            total += text.len();
            let marks = text.chars().filter(|c| MARKS.contains(c));
            marks.for_each(|c| used[(u32::from(c) - u32::from(*MARKS.start())) as usize] = true);
        };
        messages.iter().for_each(|message| message.each_text(&mut see));
        options.each_text(&mut see);
        if total > TEXT_BYTES_MAX {
            return Err(TokenizerProblem::TextTooLong { len: total, limit: TEXT_BYTES_MAX }.into());
        }
        let Some(mark) = MARKS.zip(used).find_map(|(mark, is_used)| (!is_used).then_some(mark)) else {
            let reason = "a message uses every Unicode noncharacter from U+FDD0 to U+FDEF".to_owned();
            return Err(TokenizerProblem::Library { file: self.pipeline.file().to_owned(), reason }.into());
        };
        let break_controls = |text: &str| self.break_control_tokens(text, mark);
        let marked: Vec<Message> =
            messages.iter().map(|message| message.map_texts(&break_controls)).collect();
        let options = options.map_texts(&break_controls);
        let text = template.render(&marked, &options, add_generation_prompt, &self.special_texts)?;
        if text.len() > TEXT_BYTES_MAX {
            return Err(TokenizerProblem::TextTooLong { len: text.len(), limit: TEXT_BYTES_MAX }.into());
        }
        let mut ids = Vec::new();
        for piece in self.pipeline.split_at_controls(&text)? {
            match piece {
                Piece::Control(id) => ids.push(id),
                Piece::Text(text) => {
                    let text = text.replace(mark, "");
                    ids.extend(match ids.is_empty() {
                        true => self.pipeline.encode_as_text(&text)?,
                        false => self.pipeline.encode_as_text_inside(&text)?,
                    });
                }
            }
        }
        Ok(ids)
    }

    /// Inserts the mark after the first character of every control token's text, and of a control token's beginning
    /// at the end of the text.
    fn break_control_tokens(&self, text: &str, mark: char) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        // Each start of a control token gets a mark, so overlapping control tokens are all broken.
        while let Some(c) = rest.chars().next() {
            out.push(c);
            let may_start = self.control_starts.contains(&c);
            let begins = |control: &String| rest.starts_with(control.as_str()) || control.starts_with(rest);
            if may_start && self.controls.iter().any(begins) {
                out.push(mark);
            }
            rest = &rest[c.len_utf8()..];
        }
        out
    }
}
