//! SmolLM3: the form of Hermes, for tools that its template takes as `xml_tools`.

use refrain::{ChatOptions, Message};
use serde_json::Value;

use super::hermes::{FORM, HERMES};
use super::json_calls::{JsonCalls, inner};

pub(super) static SMOLLM3: JsonCalls = JsonCalls {
    name: "smollm3",
    recognises: |template| template.contains("xml_tools") && (HERMES.recognises)(template),
    show,
    ..FORM
};

fn show(_messages: &mut Vec<Message>, options: &mut ChatOptions, tools: Vec<Value>) {
    // The name has no fixed meaning, so this cannot fail.
    let _ = options.set_variable("xml_tools", tools.iter().map(inner).collect());
}
