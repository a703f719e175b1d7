//! Cancel tokens.

use pyo3::prelude::*;

/// Stops one generation from any thread.
///
/// Give it to :meth:`Session.generate`; :meth:`cancel` stops the generation before its next layer, and its last event is a
/// :class:`Summary` with ``finish == "cancelled"``. A cancelled token stays cancelled, so each generation needs a new one.
#[pyclass(frozen, module = "refrain", from_py_object)]
#[derive(Clone, Default)]
pub(crate) struct CancelToken(pub(crate) refrain::CancelToken);

#[pymethods]
impl CancelToken {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Stops the work before its next layer. Committed tokens stay.
    fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether :meth:`cancel` was called.
    #[getter]
    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    fn __repr__(&self) -> String {
        format!("CancelToken(is_cancelled={})", if self.0.is_cancelled() { "True" } else { "False" })
    }
}
