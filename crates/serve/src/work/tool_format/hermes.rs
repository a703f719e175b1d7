//! Hermes, Qwen 2.5 and 3, Granite 4, and models whose template has no form of its own: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use super::json_calls::{JsonCalls, Layout, same_id, show_tools};

pub(crate) const OPEN: &str = "<tool_call>";
pub(crate) const CLOSE: &str = "</tool_call>";

pub(crate) static HERMES: JsonCalls = FORM;

pub(super) const FORM: JsonCalls = JsonCalls {
    name: "hermes",
    // The other one is GLM's: it has elements between these markers.
    recognises: |template| template.contains(OPEN) && !template.contains("<arg_key>"),
    opens: &[OPEN],
    triggers: &[OPEN],
    close: &[CLOSE],
    arguments: "arguments",
    layout: Layout::Lines,
    show: show_tools,
    id: same_id,
};
