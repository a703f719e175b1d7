//! MiniCPM3 and 4: a block of Python between markers, with a call on each line.

use super::lfm2::{CLOSE, OPEN};
use super::python_calls::PythonCalls;

pub(super) static MINICPM: PythonCalls = PythonCalls {
    name: "minicpm",
    recognises: |template| template.contains(OPEN) && template.contains("```python"),
    opens: &[OPEN],
    close: &[CLOSE],
    around: ("\n```python\n", "\n```\n"),
    between: "\n",
    begins_output: false,
};
