//! A job as an asynchronous stream.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use refrain::CancelToken;
use refrain::internals::engine::Exchange;
use refrain::internals::error::GenerateProblem;

use crate::error::TaskError;
use crate::job::Job;
use crate::step::JobEvent;

/// The events of a job for asynchronous code, computed by a thread of its own; made by [`Job::into_stream`]. It needs no runtime.
///
/// The thread computes only when an event is awaited, and at most one event ahead. Dropping the stream cancels the job.
///
/// ```
/// # use refrain::{Engine, EngineOptions};
/// # use refrain_assistant::{AnswerRequest, Assistant, JobEvent, JobOptions, Passage, TaskError};
/// # async fn answer(assistant: Assistant, request: AnswerRequest) -> Result<(), TaskError> {
/// let mut stream = assistant.ask(request, JobOptions::default())?.into_stream()?;
/// while let Some(event) = stream.next_event().await {
///     if let JobEvent::Text(text) = event? {
///         print!("{}", text.text);
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// [`poll_next`](Self::poll_next) has the shape of `Stream::poll_next`: `futures::stream::poll_fn(move |context| stream.poll_next(context))`
/// is a stream of that crate.
pub struct JobStream<T> {
    exchange: Arc<Exchange<Result<JobEvent<T>, TaskError>>>,
    cancel: CancelToken,
}

impl<T: Send + 'static> Job<T> {
    /// Moves the job to a thread of its own, for asynchronous code.
    ///
    /// # Errors
    /// The system cannot start a thread; the job is dropped.
    pub fn into_stream(mut self) -> Result<JobStream<T>, TaskError> {
        let (exchange, cancel) = (Arc::new(Exchange::default()), self.cancel_token());
        let shared = Arc::clone(&exchange);
        let worker = thread::Builder::new().name("refrain-job".to_owned());
        // Not joined: it ends behind the event that it computes, and holds nothing of the app.
        let worker = worker.spawn(move || shared.serve(|| self.next()));
        worker.map_err(|source| TaskError::Generate(GenerateProblem::Worker(source).into()))?;
        Ok(JobStream { exchange, cancel })
    }
}

impl<T> JobStream<T> {
    /// The next event; `None` behind the last one.
    ///
    /// # Errors
    /// As the items of [`Job`].
    ///
    /// # Panics
    /// Resumes the panic of a draft source or processor of the app. After it, the stream has ended.
    pub fn next_event(&mut self) -> impl Future<Output = Option<Result<JobEvent<T>, TaskError>>> {
        poll_fn(|context| self.poll_next(context))
    }

    /// Asks for the next event, and gives it if it is there; otherwise the task of `context` is woken when it is.
    ///
    /// # Panics
    /// As [`next_event`](Self::next_event).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<JobEvent<T>, TaskError>>> {
        self.exchange.poll(context)
    }

    /// A token that cancels this job.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }
}

impl<T> fmt::Debug for JobStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobStream").finish_non_exhaustive()
    }
}

impl<T> Drop for JobStream<T> {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.exchange.close();
    }
}
