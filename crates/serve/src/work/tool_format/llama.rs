//! Llama 3.1 to 4: an object `{"name": …, "parameters": {…}}` that is the whole output, also behind `<|python_tag|>`.
//!
//! Its templates refuse an earlier turn with two calls, so an output has one.

use super::json_calls::{JsonCalls, Layout, same_id, show_tools};

pub(super) static LLAMA: JsonCalls = JsonCalls {
    name: "llama",
    recognises: |template| {
        let headers = ["<|start_header_id|>", "<|header_start|>"];
        template.contains("\"parameters\": ") && headers.iter().any(|header| template.contains(header))
    },
    opens: &["<|python_tag|>"],
    triggers: &["<|python_tag|>"],
    close: &[],
    arguments: "parameters",
    layout: Layout::Alone,
    show: show_tools,
    id: same_id,
};
