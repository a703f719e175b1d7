//! Granite 3: `<|tool_call|>[{"name": …, "arguments": {…}}]`. Granite 4 has the form of Hermes.

use super::hermes;
use super::json_calls::{JsonCalls, Layout, same_id, show_tools};

const OPEN: &str = "<|tool_call|>";

pub(super) static GRANITE: JsonCalls = JsonCalls {
    name: "granite",
    recognises: |template| template.contains(OPEN),
    opens: &[OPEN, hermes::OPEN],
    triggers: &[OPEN, hermes::OPEN],
    close: &[],
    arguments: "arguments",
    layout: Layout::List(""),
    show: show_tools,
    id: same_id,
};
