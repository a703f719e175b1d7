//! A token of an output.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use refrain::{Origin, TextKind, TokenEvent};

/// One token of an output. The target model chose every token; drafts change the speed only.
#[pyclass(frozen, module = "refrain")]
pub(crate) struct Token(pub(crate) TokenEvent);

/// The name of a kind of text in Python.
pub(crate) fn kind_name(kind: TextKind) -> &'static str {
    match kind {
        TextKind::Reasoning => "reasoning",
        _ => "answer",
    }
}

/// Pairs of kind and text as a tuple of tuples.
pub(crate) fn segments_tuple<'py>(
    py: Python<'py>,
    segments: &[(TextKind, String)],
) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(
        py,
        segments.iter().map(|(kind, text)| (kind_name(*kind), text.as_str())).collect::<Vec<_>>(),
    )
}

#[pymethods]
impl Token {
    /// The id in the vocabulary.
    #[getter]
    fn id(&self) -> u32 {
        self.0.id.0
    }

    /// The text that became final with the token: complete characters only, and no text that may still turn out to be part of a stop
    /// string. Sometimes empty, sometimes the text of several tokens.
    #[getter]
    fn text(&self) -> &str {
        &self.0.text
    }

    /// The same text in pairs of kind (``"reasoning"`` or ``"answer"``) and text, without the markers between them.
    #[getter]
    fn segments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        segments_tuple(py, &self.0.segments)
    }

    /// The name of the source that drafted the token; ``None`` if no source did, and the token is the target's own.
    #[getter]
    fn origin(&self) -> Option<&str> {
        match &self.0.origin {
            Origin::Target => None,
            Origin::Draft(name) => Some(name.as_str()),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let quoted =
            |text: Option<&str>| -> PyResult<String> { Ok(text.into_pyobject(py)?.repr()?.to_string()) };
        Ok(format!(
            "Token(id={}, text={}, origin={})",
            self.id(),
            quoted(Some(self.text()))?,
            quoted(self.origin())?
        ))
    }
}
