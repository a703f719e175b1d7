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
    is_closed: bool,
}

impl Registry {
    /// Adds a child. One that was being made while the engine was closed is closed.
    pub(crate) fn add(&self, child: Weak<dyn Child>) {
        let mut children = lock(&self.0);
        if children.is_closed {
            drop(children);
            child.upgrade().iter().for_each(|child| child.close());
            return;
        }
        if children.all.len() >= children.swept_at {
            children.all.retain(|child| child.strong_count() > 0);
            children.swept_at = 2 * children.all.len() + 8;
        }
        children.all.push(child);
    }

    /// Closes the children, those that are alive and those that come.
    pub(crate) fn close(&self) {
        lock(&self.0).is_closed = true;
        self.alive().iter().for_each(|child| child.close());
    }

    /// The children, newest first: a job before its session.
    pub(crate) fn alive(&self) -> Vec<Arc<dyn Child>> {
        lock(&self.0).all.iter().rev().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Counted(AtomicUsize);

    impl Child for Counted {
        fn close(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_child_that_comes_after_the_end_is_closed() {
        let registry = Registry::default();
        let (early, late) = (Arc::new(Counted(AtomicUsize::new(0))), Arc::new(Counted(AtomicUsize::new(0))));
        registry.add(Arc::downgrade(&early) as Weak<dyn Child>);
        registry.close();
        registry.add(Arc::downgrade(&late) as Weak<dyn Child>);
        assert_eq!([early, late].map(|child| child.0.load(Ordering::Relaxed)), [1, 1]);
    }
}
