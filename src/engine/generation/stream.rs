//! A generation as an asynchronous stream (feature `stream`).

use std::panic;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};

use futures_core::Stream;

use super::OwnedGeneration;
use super::exchange::Exchange;
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
    exchange: Arc<Exchange<Result<Event, GenerateError>>>,
    cancel: CancelToken,
    /// Present until [`into_session`](Self::into_session) takes it.
    worker: Option<JoinHandle<Session>>,
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
            // The session survives a panic.
            shared.serve(|| self.next());
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
        self.exchange.close();
    }
}

impl Stream for EventStream {
    type Item = Result<Event, GenerateError>;

    /// Resumes the panic of a draft source or a logits processor; after it, the stream has ended.
    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.exchange.poll(context)
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.close();
    }
}
