//! Values that cannot leave their process.
//!
//! A forked child has the memory of its parent but none of its other threads: a pass would wait for workers that do not exist, a
//! lock may be held by a thread that is gone, and dropping an engine would join such threads.

use std::mem;
use std::process;

use crate::errors::Failure;

/// A value that only the process that made it can use. Other processes neither use nor drop it.
pub(crate) struct Resident<T> {
    value: Option<T>,
    process: u32,
}

impl<T> Resident<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), process: process::id() }
    }

    /// The value.
    ///
    /// # Errors
    /// [`Failure::Forked`] in a child of the process that made it.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        match &self.value {
            Some(value) if self.process == process::id() => Ok(value),
            _ => Err(Failure::Forked { process: self.process }),
        }
    }
}

impl<T> Drop for Resident<T> {
    fn drop(&mut self) {
        if self.process != process::id() {
            mem::forget(self.value.take());
        }
    }
}
