//! Phi-4-mini: `<|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|>`, and `functools[…]`, which is read only.
//!
//! Its template reads the tools from a field of the system message.

use refrain::{ChatOptions, Message, Role};
use serde_json::Value;

use super::json_calls::{JsonCalls, Layout, inner, same_id};

pub(super) static PHI4: JsonCalls = JsonCalls {
    name: "phi4",
    recognises: |template| template.contains("<|tool|>") && template.contains("<|/tool|>"),
    opens: &["<|tool_call|>", "functools"],
    triggers: &["<|tool_call|>"],
    close: &["<|/tool_call|>"],
    arguments: "arguments",
    layout: Layout::List(""),
    show,
    id: same_id,
};

fn show(messages: &mut Vec<Message>, options: &mut ChatOptions, tools: Vec<Value>) {
    let functions: Vec<Value> = tools.iter().map(inner).collect();
    if !matches!(messages.first(), Some(message) if message.role == Role::System) {
        messages.insert(0, Message::new(Role::System, ""));
    }
    messages[0].tools = Some(Value::from(functions).to_string());
    // Other templates of the family read them where most do.
    options.tools = tools;
}
