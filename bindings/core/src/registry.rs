//! What was made from an engine.

use std::sync::{Arc, Mutex, Weak};

use crate::error::FfiError;
use crate::guard::{Guarded, Made, lock};

/// An object or a job that an engine has made.
pub(crate) trait Child: Send + Sync {
    /// Closes it, or cancels it.
    fn close(&self);

    /// Cancels a job. Returns whether it was running.
    fn cancel(&self) -> bool {
        false
    }

    /// Whether it is a running job.
    fn is_running(&self) -> bool {
        false
    }

    /// As [`Made::release_memory`].
    fn release_memory(&self) {}

    /// As [`Made::sync`].
    fn sync(&self) -> Result<(), FfiError> {
        Ok(())
    }
}

impl<T: Made> Child for Guarded<T> {
    fn close(&self) {
        self.shut();
    }

    fn release_memory(&self) {
        if let Some(value) = self.peek() {
            value.release_memory();
        }
    }

    fn sync(&self) -> Result<(), FfiError> {
        self.peek().map_or(Ok(()), |value| value.sync())
    }
}

/// The children that are alive.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Children>);

#[derive(Default)]
struct Children {
    all: Vec<Weak<dyn Child>>,
    /// The length at which those that are gone are removed.
    swept_at: usize,
}

impl Registry {
    pub(crate) fn add(&self, child: Weak<dyn Child>) {
        let mut children = lock(&self.0);
        if children.all.len() >= children.swept_at {
            children.all.retain(|child| child.strong_count() > 0);
            children.swept_at = 2 * children.all.len() + 8;
        }
        children.all.push(child);
    }

    /// The children, newest first: a job before its session.
    pub(crate) fn alive(&self) -> Vec<Arc<dyn Child>> {
        lock(&self.0).all.iter().rev().filter_map(Weak::upgrade).collect()
    }
}
