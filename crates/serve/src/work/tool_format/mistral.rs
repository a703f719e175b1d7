//! Mistral up to Small 3.1: `[TOOL_CALLS] [{"name": …, "arguments": {…}}]`. Its templates demand ids of nine letters and digits.

use super::json_calls::{JsonCalls, Layout, show_tools};

pub(super) const OPEN: &str = "[TOOL_CALLS]";

/// Letters and digits of an id.
const ID_BYTES: usize = 9;

pub(super) static MISTRAL: JsonCalls = JsonCalls {
    name: "mistral",
    recognises: |template| template.contains(OPEN),
    opens: &[OPEN],
    triggers: &[OPEN],
    close: &[],
    arguments: "arguments",
    layout: Layout::List(" "),
    show: show_tools,
    id,
};

/// Another id, the same for the same one.
pub(super) fn id(id: &str) -> Option<String> {
    let is_allowed = id.len() == ID_BYTES && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (!is_allowed).then(|| blake3::hash(id.as_bytes()).to_hex()[..ID_BYTES].to_owned())
}
