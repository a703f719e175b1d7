//! The border between Python and the engine.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};

use pyo3::prelude::*;

use crate::errors::Failure;

/// Computes without the interpreter's lock, and [`guarded`].
pub(crate) fn compute<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> PyResult<T> {
    Ok(py.detach(|| guarded(work))?)
}

/// Calls `work`. A panic, which is a bug of the engine, becomes an error.
///
/// Unwinding is safe: what a panic leaves behind is in locks, whose users state why they take a poisoned one.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    outcome.unwrap_or_else(|panic| Err(Failure::Panic { message: message(&*panic) }))
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or(panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
        .to_owned()
}

/// Panics within [`compute`]. For the test suite: no input is known that makes the engine panic.
#[pyfunction]
pub(crate) fn _panic(py: Python<'_>, message: String) -> PyResult<()> {
    compute(py, || panic!("{message}"))
}
