//! Stopping a generation from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops one generation, prefill or scoring pass from another thread.
///
/// A token is given away once, in [`GenerateOptions::cancel`](crate::GenerateOptions::cancel) or as an argument, and
/// clones of it stop that work. A cancelled token stays cancelled: work that starts with it stops before its first layer.
/// Cancelling after the work has ended does nothing.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops the work before its next layer. Committed tokens stay.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag that passes of a model poll.
    pub(crate) fn flag(&self) -> &Arc<AtomicBool> {
        &self.0
    }
}
