//! The forms of calls of tools: how a model writes them, what a grammar of them allows, and what a reader of them finds.

use refrain::internals::tokenizer::TokenizerParts as _;
use refrain::internals::tokenizer::{ReasoningMarkers, ReasoningSplitter};
use refrain::{ChatOptions, Message, Role, TextKind, TokenId, Tokenizer};
use serde_json::{Value, json};

use super::request::Tools;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";

/// The beginning of a function as the recipient. The point belongs to the grammar, because tokens join it with the name.
pub(super) const CHANNEL_MARKER: &str = " to=functions";

/// How a model calls, and who tells it about tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallFormat {
    /// Between [`OPEN`] and [`CLOSE`]; the chat template.
    Template,
    /// Between the same; the system turn.
    Text,
    /// In channels; the chat template.
    Channels,
}

impl CallFormat {
    /// Renders a tool to see whether the template shows it, and in which form.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Self {
        let tool = json!({
            "type": "function",
            "function": {
                "name": "refrain_probe",
                "description": "",
                "parameters": { "type": "object", "properties": {} },
            },
        });
        let mut options = ChatOptions::default();
        options.tools = vec![tool];
        let tokens = tokenizer.encode_chat(&[Message::new(Role::User, "x")], &options, true);
        let bytes: Vec<u8> = tokens
            .iter()
            .flatten()
            .flat_map(|&token| tokenizer.token_bytes(token).unwrap_or_default())
            .copied()
            .collect();
        let text = String::from_utf8_lossy(&bytes);
        if !text.contains("refrain_probe") {
            return Self::Text;
        }
        let has_channels = tokenizer.reasoning_markers().is_some_and(ReasoningMarkers::writes_header);
        match text.contains(OPEN) {
            true => Self::Template,
            false if has_channels => Self::Channels,
            false => Self::Text,
        }
    }

    /// The text behind which a call is certain.
    pub(crate) fn marker(self) -> &'static str {
        match self {
            Self::Template | Self::Text => OPEN,
            Self::Channels => CHANNEL_MARKER,
        }
    }

    /// Whether the marker means a call behind what `splitter` has read. Elsewhere it is only mentioned.
    pub(crate) fn may_call(self, splitter: &ReasoningSplitter) -> bool {
        match self {
            Self::Template | Self::Text => splitter.kind() == TextKind::Answer,
            Self::Channels => splitter.is_in_header(),
        }
    }
}

/// What an output with tools may be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form<'a> {
    /// Behind the opening marker: the rest of a call, and further calls.
    BehindMarker,
    /// Calls.
    Calls,
    /// Calls, or JSON under a schema, which is at this path in the request.
    CallsOr { schema: &'a Value, path: &'a str },
}

/// The right side of a rule in llguidance's variant of Lark: JSON under a schema.
pub(crate) fn json_rule(schema: &Value) -> String {
    let mut schema = if schema.is_object() { schema.clone() } else { json!({}) };
    // As `Grammar::json_schema` compiles schemas: compact, and never weakened.
    schema["x-guidance"] = json!({ "whitespace_flexible": false, "coerce_one_of": false, "lenient": false });
    format!("%json {schema}")
}

/// The rules of a call of one of the tools; `rule` is the right side of the rule of a name around the symbol of its arguments.
pub(super) fn call_rules(tools: &Tools, rule: impl Fn(&str, &str) -> String) -> String {
    let functions = tools.callable();
    let names: Vec<String> = (0..functions.len()).map(|index| format!("call_{index}")).collect();
    let mut rules = format!("call: {}\n", names.join(" | "));
    for (index, function) in functions.into_iter().enumerate() {
        let arguments = format!("arguments_{index}");
        let (call, schema) = (rule(&function.name, &arguments), json_rule(&function.parameters));
        rules.push_str(&format!("call_{index}: {call}\n{arguments}: {schema}\n"));
    }
    rules
}

/// Reads a token for what the splitter then says of it.
pub(super) fn read_token(splitter: &mut ReasoningSplitter, tokenizer: &Tokenizer, token: TokenId) {
    let text = String::from_utf8_lossy(tokenizer.token_bytes(token).unwrap_or_default());
    let mut unused = Vec::new();
    match tokenizer.is_special(token) {
        true => splitter.push_control(&text, &mut unused),
        false => splitter.push(&text, &mut unused),
    }
}

/// A part of an output that may have calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallPart {
    Text(String),
    /// A call of this function begins.
    Begin(String),
    Arguments(String),
}
