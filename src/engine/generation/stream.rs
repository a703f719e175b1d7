//! A generation as an asynchronous stream (feature `stream`).
//!
//! A step computes for milliseconds or longer, so it must not run inside `poll_next`. A worker thread
//! computes one event each time the stream is polled.

use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

use futures_core::Stream;

use super::OwnedGeneration;
use crate::cancel::CancelToken;
use crate::engine::error::GenerateProblem;
use crate::engine::event::Event;
use crate::engine::session::Session;
use crate::error::GenerateError;

/// The events of a generation as a [`Stream`], computed by a thread of its own; made by
/// [`OwnedGeneration::into_stream`].
///
/// The worker computes only when the stream is polled, and at most one event ahead. Dropping the stream
/// cancels the generation.
#[derive(Debug)]
pub struct EventStream {
    exchange: Arc<Exchange>,
    cancel: CancelToken,
    /// Present until [`into_session`](Self::into_session) takes it.
    worker: Option<JoinHandle<Session>>,
}

#[derive(Debug, Default)]
struct Exchange {
    state: Mutex<State>,
    /// The worker waits on this until an event is requested or the stream is dropped.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_wanted: bool,
    is_closed: bool,
    /// Whether the worker has stopped: after the last event, or after a panic.
    has_ended: bool,
    /// The computed event, or the panic of a draft source or a logits processor.
    event: Option<thread::Result<Result<Event, GenerateError>>>,
    waker: Option<Waker>,
}

impl Exchange {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the stream requests an event; `false` if the stream was dropped.
    fn is_wanted(&self) -> bool {
        let waits = |state: &mut State| !state.is_wanted && !state.is_closed;
        let state = self.changed.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        !state.is_closed
    }

    /// Changes the shared state and wakes the stream.
    fn tell(&self, change: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = self.lock();
            change(&mut state);
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl OwnedGeneration {
    /// Moves the generation to a worker thread and returns its events as a stream. (Feature `stream`.)
    ///
    /// # Errors
    /// The system cannot start a thread; the generation is lost.
    pub fn into_stream(mut self) -> Result<EventStream, GenerateError> {
        let (exchange, cancel) = (Arc::new(Exchange::default()), self.cancel_token());
        let shared = Arc::clone(&exchange);
        let worker = thread::Builder::new().name("refrain-stream".to_owned()).spawn(move || {
            while shared.is_wanted() {
                // A generation stays consistent when its step unwinds, so the session survives the panic.
                let event = panic::catch_unwind(AssertUnwindSafe(|| self.next())).transpose();
                let is_last = !matches!(event, Some(Ok(_)));
                shared.tell(|state| {
                    // The task may have been polled again meanwhile: this event answers all polls so far.
                    (state.event, state.is_wanted, state.has_ended) = (event, false, is_last);
                });
                if is_last {
                    break;
                }
            }
            self.into_session()
        });
        let worker = worker.map_err(GenerateProblem::Worker)?;
        Ok(EventStream { exchange, cancel, worker: Some(worker) })
    }
}

impl EventStream {
    /// A token that cancels this generation.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// Ends the generation and returns the session. The session contains the tokens of the computed events:
    /// the yielded events and at most one more. Blocks until the worker has stopped, which takes at most one
    /// layer. A generation that panicked returns its session too.
    pub fn into_session(mut self) -> Session {
        self.close();
        let worker = self.worker.take().expect("the session is taken once");
        worker.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    }

    fn close(&self) {
        self.cancel.cancel();
        self.exchange.lock().is_closed = true;
        self.exchange.changed.notify_one();
    }
}

impl Stream for EventStream {
    type Item = Result<Event, GenerateError>;

    /// Resumes the panic of a draft source or a logits processor; after it, the stream has ended.
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.exchange.lock();
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
        self.exchange.changed.notify_one();
        Poll::Pending
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.close();
    }
}
