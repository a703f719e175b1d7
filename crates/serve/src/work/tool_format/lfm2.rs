//! LFM2 and LFM2.5: `<|tool_call_start|>[f(a="b")]<|tool_call_end|>`.

use super::python_calls::PythonCalls;

pub(super) const OPEN: &str = "<|tool_call_start|>";
pub(super) const CLOSE: &str = "<|tool_call_end|>";

pub(super) static LFM2: PythonCalls = PythonCalls {
    name: "lfm2",
    // Early templates show tools and no calls.
    recognises: |template| template.contains(OPEN) || template.contains("<|tool_list_start|>"),
    opens: &[OPEN],
    close: &[CLOSE],
    around: ("[", "]"),
    between: ", ",
    begins_output: false,
};
