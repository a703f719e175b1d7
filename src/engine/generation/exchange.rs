//! Events that a worker thread computes when a stream is polled.
//!
//! A step computes for milliseconds or longer, so it must not run inside `poll_next`. The worker computes one event each time the stream is
//! polled, and waits otherwise.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

/// What a stream and its worker share.
#[derive(Debug)]
pub struct Exchange<E> {
    state: Mutex<State<E>>,
    /// The worker waits on this until an event is requested or the stream is closed.
    changed: Condvar,
}

#[derive(Debug)]
struct State<E> {
    is_wanted: bool,
    is_closed: bool,
    /// Whether the worker has stopped: after the last event, or after a panic.
    has_ended: bool,
    /// The computed event, or the panic of a draft source or a logits processor.
    event: Option<thread::Result<E>>,
    waker: Option<Waker>,
}

impl<E> Default for Exchange<E> {
    fn default() -> Self {
        let state = State { is_wanted: false, is_closed: false, has_ended: false, event: None, waker: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<E> Exchange<E> {
    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker: computes an event with `next` whenever one is requested, until there is none, one panics or the stream is closed.
    pub fn serve(&self, mut next: impl FnMut() -> Option<E>) {
        while self.is_wanted() {
            // What computes stays consistent when its step unwinds.
            let event = panic::catch_unwind(AssertUnwindSafe(&mut next)).transpose();
            let is_last = !matches!(event, Some(Ok(_)));
            self.tell(|state| {
                // The task may have been polled again meanwhile: this event answers all polls so far.
                (state.event, state.is_wanted, state.has_ended) = (event, false, is_last);
            });
            if is_last {
                break;
            }
        }
    }

    /// Waits until the stream requests an event; `false` if the stream was closed.
    fn is_wanted(&self) -> bool {
        let waits = |state: &mut State<E>| !state.is_wanted && !state.is_closed;
        let state = self.changed.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        !state.is_closed
    }

    /// Changes the shared state and wakes the stream.
    fn tell(&self, change: impl FnOnce(&mut State<E>)) {
        let waker = {
            let mut state = self.lock();
            change(&mut state);
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// The next event, or a request for it. Resumes a panic of the worker; after it, the stream has ended.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Option<E>> {
        let mut state = self.lock();
        match state.event.take() {
            Some(Ok(event)) => return Poll::Ready(Some(event)),
            Some(Err(panicked)) => {
                drop(state);
                panic::resume_unwind(panicked);
            }
            None => {}
        }
        if state.has_ended {
            return Poll::Ready(None);
        }
        state.waker = Some(context.waker().clone());
        state.is_wanted = true;
        self.changed.notify_one();
        Poll::Pending
    }

    /// Ends the worker behind the event that it computes.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }
}
