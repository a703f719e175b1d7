//! Signals of the interpreter during long computations, such as Ctrl-C.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use refrain::CancelToken;

/// Between two looks: short for a person, long beside the interpreter's lock, which another thread may hold for 5 ms.
const INTERVAL: Duration = Duration::from_millis(50);

/// Looks for signals from time to time, and cancels the work when a handler raises.
pub(crate) struct Signals<'a> {
    cancel: &'a CancelToken,
    looked_at: Instant,
    raised: Option<PyErr>,
}

impl<'a> Signals<'a> {
    /// The work stops when `cancel` is cancelled.
    pub(crate) fn new(cancel: &'a CancelToken) -> Self {
        Self { cancel, looked_at: Instant::now(), raised: None }
    }

    /// Runs the handlers of signals that have arrived, if the last look was long ago. Called without the interpreter's lock. Outside
    /// the main thread there is nothing to see: Python runs handlers there only.
    pub(crate) fn look(&mut self) {
        if self.raised.is_some() || self.looked_at.elapsed() < INTERVAL {
            return;
        }
        self.looked_at = Instant::now();
        if let Some(Err(error)) = Python::try_attach(|py| py.check_signals()) {
            self.cancel.cancel();
            self.raised = Some(error);
        }
    }

    /// What a handler has raised.
    pub(crate) fn finish(self) -> PyResult<()> {
        self.raised.map_or(Ok(()), Err)
    }
}
