//! Llama 3.2 and 4 with templates that ask for Python's notation: a list of calls, `[f(a="b"), g()]`, that is the whole output.

use super::python_calls::PythonCalls;

pub(super) static PYTHONIC: PythonCalls = PythonCalls {
    name: "pythonic",
    recognises: |template| template.contains("[func_name1("),
    opens: &["<|python_start|>"],
    close: &["<|python_end|>"],
    around: ("[", "]"),
    between: ", ",
    begins_output: true,
};
