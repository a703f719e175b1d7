//! Qwen3-Coder, Qwen3.5 and models trained like them: `<tool_call>`, in it `<function=NAME>`, in it a `<parameter=NAME>` with a text for each argument.

use super::hermes::{CLOSE, OPEN};
use super::xml_calls::{Element, XmlCalls};

const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";

pub(super) static QWEN_CODER: XmlCalls = XmlCalls {
    name: "qwen_coder",
    recognises: |template| template.contains(FUNCTION) && template.contains(PARAMETER),
    around: Some((OPEN, CLOSE)),
    // Some calls come without the marker.
    opens: &[OPEN, FUNCTION],
    controls: &[CLOSE, "</function>", PARAMETER, "</parameter>"],
    function: &Element { open: FUNCTION, name: ("", ">"), close: "</function>" },
    parameter: &Element { open: PARAMETER, name: ("", ">"), close: "</parameter>" },
    line: "\n",
};
