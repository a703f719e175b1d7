//! MiniCPM5: `<function name="NAME"><param name="NAME">TEXT</param></function>`.

use super::xml_calls::{Element, XmlCalls};

const FUNCTION: &str = "<function";
const PARAMETER: &str = "<param";

pub(super) static MINICPM5: XmlCalls = XmlCalls {
    name: "minicpm5",
    recognises: |template| template.contains("<function name=") && template.contains("<param name="),
    around: None,
    opens: &[FUNCTION],
    controls: &["</function>", PARAMETER, "</param>"],
    function: &Element { open: FUNCTION, name: (" name=\"", "\">"), close: "</function>" },
    parameter: &Element { open: PARAMETER, name: (" name=\"", "\">"), close: "</param>" },
    line: "",
};
