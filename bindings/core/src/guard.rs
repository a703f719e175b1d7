//! The rules of every call: the process, listeners, closed objects, panics.
//!
//! A forked child has the memory of its parent and none of its other threads: a pass would wait for workers that do not exist, a lock may
//! be held by a thread that is gone, and freeing an engine would join such threads. So a child is refused before any lock, and frees
//! nothing.

use std::cell::Cell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{ErrorKind, FfiError};

thread_local! {
    /// Whether this thread runs a listener.
    static LISTENS: Cell<bool> = const { Cell::new(false) };
}

/// Runs a listener. Within it, this thread's calls are refused.
pub(crate) fn listening<T>(call: impl FnOnce() -> T) -> T {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            LISTENS.set(self.0);
        }
    }
    let _leave = Leave(LISTENS.replace(true));
    call()
}

/// Checks that this thread runs no listener.
///
/// # Errors
/// [`ErrorKind::Reentrant`].
pub(crate) fn check_reentry() -> Result<(), FfiError> {
    match LISTENS.get() {
        false => Ok(()),
        true => {
            let message = "a listener calls the library from within a call of it; it may call `cancel` only";
            Err(FfiError::new(ErrorKind::Reentrant, message))
        }
    }
}

/// Calls `work` by the rules of every call: a listener is refused, a panic becomes an error. For what a wrapping library does itself.
///
/// # Errors
/// [`ErrorKind::Reentrant`], [`ErrorKind::Panicked`], and those of `work`.
pub fn call<T>(work: impl FnOnce() -> Result<T, FfiError>) -> Result<T, FfiError> {
    check_reentry()?;
    caught(work)
}

/// Calls `work`; a panic becomes an error.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T, FfiError>) -> Result<T, FfiError> {
    // What a panic leaves behind is dropped with its object.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(FfiError::panicked(&*panic)))
}

/// Takes a lock whose last holder may have panicked: what it holds is valid between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value of an object, until it is closed.
pub(crate) struct Guarded<T> {
    process: u32,
    is_poisoned: AtomicBool,
    value: Mutex<Option<Arc<T>>>,
}

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            process: process::id(),
            is_poisoned: AtomicBool::new(false),
            value: Mutex::new(Some(Arc::new(value))),
        }
    }

    /// The value.
    ///
    /// # Errors
    /// The process is a fork, a listener calls, or the object is closed.
    pub(crate) fn get(&self) -> Result<Arc<T>, FfiError> {
        self.check_process()?;
        check_reentry()?;
        lock(&self.value).clone().ok_or_else(|| match self.is_poisoned.load(Ordering::Relaxed) {
            true => {
                FfiError::new(ErrorKind::Poisoned, "an earlier call has panicked, and has closed this object")
            }
            false => FfiError::new(ErrorKind::Closed, "this object is closed"),
        })
    }

    /// Calls `work` with the value. If it panics, the object is closed.
    ///
    /// # Errors
    /// As [`get`](Self::get), and those of `work`.
    pub(crate) fn call<R>(&self, work: impl FnOnce(&Arc<T>) -> Result<R, FfiError>) -> Result<R, FfiError> {
        let value = self.get()?;
        let outcome = caught(|| work(&value));
        if matches!(&outcome, Err(error) if error.kind() == ErrorKind::Panicked) {
            self.poison();
        }
        outcome
    }

    /// Closes the object after a panic.
    pub(crate) fn poison(&self) {
        self.is_poisoned.store(true, Ordering::Relaxed);
        drop(lock(&self.value).take());
    }

    /// Closes the object. Calls that are running keep its value until they return.
    ///
    /// # Errors
    /// The process is a fork, or a listener calls.
    pub(crate) fn close(&self) -> Result<(), FfiError>
    where
        T: Made,
    {
        self.check_process()?;
        check_reentry()?;
        self.shut();
        Ok(())
    }

    /// Closes the object from within the library.
    pub(crate) fn shut(&self)
    where
        T: Made,
    {
        // (Closed and dropped without the lock.)
        let value = lock(&self.value).take();
        if let Some(value) = value {
            value.closing();
        }
    }

    /// The value, for the library itself: not to be called in a fork.
    pub(crate) fn peek(&self) -> Option<Arc<T>> {
        lock(&self.value).clone()
    }

    fn check_process(&self) -> Result<(), FfiError> {
        if self.process == process::id() {
            return Ok(());
        }
        let message = format!(
            "this object belongs to process {}, whose threads a fork does not copy; open an engine in this one",
            self.process
        );
        Err(FfiError::new(ErrorKind::Forked, message))
    }
}

/// The value of an object, as the engine that made it sees it.
pub(crate) trait Made: Send + Sync {
    /// Ends what would go on without the object.
    fn closing(&self) {}

    /// Answers the newest report of memory pressure.
    fn release_memory(&self) {}

    /// Writes what is not durable yet.
    fn sync(&self) -> Result<(), FfiError> {
        Ok(())
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        if self.process != process::id() {
            mem::forget(self.value.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Made for i32 {}
    impl Made for () {}
    impl Made for Arc<()> {}

    #[test]
    fn a_panic_closes_the_object_and_no_other() {
        let [broken, whole] = [1, 2].map(Guarded::new);
        let failed = broken.call(|_| -> Result<(), FfiError> { panic!("boom {}", 7) }).unwrap_err();
        assert_eq!(
            (failed.kind(), failed.to_string()),
            (ErrorKind::Panicked, "a bug of Refrain: boom 7".to_owned())
        );
        assert_eq!(broken.call(|_| Ok(())).unwrap_err().kind(), ErrorKind::Poisoned);
        broken.close().unwrap();
        assert_eq!(broken.get().unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(whole.call(|value| Ok(**value)), Ok(2));
        whole.close().unwrap();
        whole.close().unwrap();
        assert_eq!(whole.get().unwrap_err().kind(), ErrorKind::Closed);
    }

    #[test]
    fn a_listener_is_refused_until_it_returns() {
        let object = Guarded::new(());
        listening(|| {
            assert_eq!(object.get().unwrap_err().kind(), ErrorKind::Reentrant);
            assert_eq!(object.close().unwrap_err().kind(), ErrorKind::Reentrant);
            listening(|| ());
            assert_eq!(
                call(|| Ok(())).unwrap_err().kind(),
                ErrorKind::Reentrant,
                "still within the outer one"
            );
        });
        let _ = std::panic::catch_unwind(|| listening(|| panic!()));
        object.get().unwrap();
    }

    #[test]
    fn an_object_of_another_process_is_refused_and_not_freed() {
        let value = Arc::new(());
        let mut object = Guarded::new(Arc::clone(&value));
        object.process += 1;
        assert_eq!(object.get().unwrap_err().kind(), ErrorKind::Forked);
        assert_eq!(object.close().unwrap_err().kind(), ErrorKind::Forked);
        drop(object);
        assert_eq!(Arc::strong_count(&value), 2, "its memory is that of the parent");
    }
}
