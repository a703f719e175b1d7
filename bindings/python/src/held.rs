//! A lock that refuses its own thread.
//!
//! A draft source written in Python runs while its generation or sequence is locked. If its `propose` calls a method of that same
//! object, an ordinary lock would wait for itself for ever.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::errors::Failure;

thread_local! {
    /// Its address tells the threads apart that are alive.
    static HERE: u8 = const { 0 };
}

fn this_thread() -> usize {
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

pub(crate) struct Held<T> {
    value: Mutex<T>,
    /// The thread that holds the value; 0 if none does.
    holder: AtomicUsize,
}

pub(crate) struct Guard<'a, T> {
    value: MutexGuard<'a, T>,
    holder: &'a AtomicUsize,
}

impl<T> Held<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), holder: AtomicUsize::new(0) }
    }

    /// Checks that this thread may wait for the value.
    ///
    /// # Errors
    /// [`Failure::Reentered`]: it holds the value already.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        // Only this thread can have written its own address.
        let is_held = self.holder.load(Ordering::Relaxed) == this_thread();
        if is_held { Err(Failure::Reentered) } else { Ok(()) }
    }

    /// Waits for the value. A panic of another holder leaves it usable, so a poisoned lock is taken all the same.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn lock(&self) -> Result<Guard<'_, T>, Failure> {
        self.check()?;
        Ok(self.guard(self.value.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The value, if nobody holds it.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.value.try_lock() {
            Ok(value) => Some(self.guard(value)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.guard(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn guard<'a>(&'a self, value: MutexGuard<'a, T>) -> Guard<'a, T> {
        self.holder.store(this_thread(), Ordering::Relaxed);
        Guard { value, holder: &self.holder }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // Before the lock is released: fields are dropped after this.
        self.holder.store(0, Ordering::Relaxed);
    }
}
