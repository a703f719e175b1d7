//! A job as server-sent events. The page stops it by closing the stream.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header::{self, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use refrain::CancelToken;
use refrain_assistant::Priority;
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Sleep, sleep};

use super::state::Page;
use crate::blocking::{CancelOnDrop, blocking};
use crate::error::{ApiError, ApiResult};
use crate::metrics::add;
use crate::queue::Place;

/// Where a job writes its events. They are bounded by the tokens of its output, so a slow client does not hold its place.
pub(crate) struct Sink {
    sender: UnboundedSender<String>,
    pub(super) cancel: CancelToken,
    started: Instant,
    time_max: Duration,
}

impl Sink {
    /// Sends an event. If the page has gone, the job has been cancelled.
    pub(crate) fn send(&self, name: &str, data: &impl Serialize) {
        let data = serde_json::to_string(data).expect("numbers and texts have a JSON form");
        let _ = self.sender.send(format!("event: {name}\ndata: {data}\n\n"));
    }

    /// # Errors
    /// The time of the request is over.
    pub(super) fn check_time(&self) -> ApiResult<()> {
        match self.started.elapsed() > self.time_max {
            true => {
                let seconds = self.time_max.as_secs();
                Err(ApiError::server(format!(
                    "the job took more than the {seconds} s that a request may take"
                )))
            }
            false => Ok(()),
        }
    }

    /// Cancelled when the client has gone.
    pub(crate) fn cancel(&self) -> &CancelToken {
        &self.cancel
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Runs `job` on a thread of its own when its turn in the queue comes, and streams what it sends.
pub(crate) fn run(
    page: &Page,
    place: Place,
    job: impl FnOnce(&Arc<Sink>) -> ApiResult<()> + Send + 'static,
) -> Response {
    let app = page.app().clone();
    add(&app.metrics().requests, 1);
    let (sender, receiver) = unbounded_channel();
    let cancel = CancelToken::new();
    let body = Events {
        receiver,
        _cancelling: CancelOnDrop(cancel.clone()),
        ping: Box::pin(sleep(app.limits().ping_time)),
        ping_time: app.limits().ping_time,
    };
    tokio::spawn(async move {
        let registered = app.register(cancel.clone());
        let permit = tokio::select! {
            permit = place.permit(Priority::Interactive) => permit,
            () = sender.closed() => {
                add(&app.metrics().cancelled, 1);
                return;
            }
        };
        let sink =
            Arc::new(Sink { sender, cancel, started: Instant::now(), time_max: app.limits().request_time });
        let theirs = Arc::clone(&sink);
        let driven = async {
            let permit = permit?;
            let job = move || {
                let done = job(&theirs);
                drop((permit, place, registered));
                done
            };
            blocking(job).await
        };
        match driven.await {
            Err(_) if sink.sender.is_closed() => add(&app.metrics().cancelled, 1),
            Err(error) => {
                add(&app.metrics().failed, 1);
                sink.send("error", &json!({ "message": error.message }));
            }
            Ok(()) => app.metrics().add_request(sink.elapsed()),
        }
    });
    let mut response = Body::from_stream(body).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

/// The body of a stream, with a comment whenever nothing was sent for a while.
struct Events {
    receiver: UnboundedReceiver<String>,
    _cancelling: CancelOnDrop,
    ping: Pin<Box<Sleep>>,
    ping_time: Duration,
}

impl Stream for Events {
    type Item = Result<String, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = match self.receiver.poll_recv(context) {
            Poll::Ready(event) => event,
            Poll::Pending => match self.ping.as_mut().poll(context) {
                Poll::Ready(()) => Some(": waiting\n\n".to_owned()),
                Poll::Pending => return Poll::Pending,
            },
        };
        let next = tokio::time::Instant::now() + self.ping_time;
        self.ping.as_mut().reset(next);
        Poll::Ready(event.map(Ok))
    }
}
