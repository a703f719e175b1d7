//! Streamed bodies: server-sent events, or lines of JSON.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{self, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::Value;
use tokio::time::{Instant, Sleep};

use crate::work::{Piece, Running};

/// Turns pieces into events of an endpoint.
pub(crate) trait Events: Send + Unpin + 'static {
    /// The content type of the body.
    const CONTENT_TYPE: &'static str = "text/event-stream";

    /// The events before the first piece.
    fn start(&mut self, out: &mut Sink);

    /// What a stream without events sends from time to time.
    fn ping(&mut self, out: &mut Sink) {
        out.comment("ping");
    }

    /// The events of a piece.
    fn piece(&mut self, piece: Piece, out: &mut Sink);
}

/// The bytes of events.
#[derive(Debug, Default)]
pub(crate) struct Sink(VecDeque<Bytes>);

impl Sink {
    /// An event without a name.
    pub(crate) fn data(&mut self, value: &Value) {
        self.0.push_back(format!("data: {}\n\n", one_line(value.to_string())).into());
    }

    /// An event with a name. `text` is JSON.
    pub(crate) fn named(&mut self, name: &str, text: String) {
        self.0.push_back(format!("event: {name}\ndata: {}\n\n", one_line(text)).into());
    }

    /// A line of JSON.
    pub(crate) fn line(&mut self, value: &Value) {
        self.text(format!("{value}\n"));
    }

    pub(crate) fn text(&mut self, text: String) {
        self.0.push_back(text.into());
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// A comment, which clients skip.
    pub(crate) fn comment(&mut self, text: &str) {
        self.0.push_back(format!(": {text}\n\n").into());
    }
}

/// JSON on one line, also for readers that know the line ends of Unicode.
fn one_line(text: String) -> String {
    match text.contains(['\u{85}', '\u{2028}', '\u{2029}']) {
        false => text,
        // They occur inside strings only.
        true => {
            text.replace('\u{85}', "\\u0085").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
        }
    }
}

struct EventBody<E> {
    running: Running,
    events: E,
    sink: Sink,
    has_ended: bool,
    ping: Pin<Box<Sleep>>,
    ping_time: Duration,
}

/// A response that streams the events of a request. Dropping it cancels the request.
pub(crate) fn response<E: Events>(running: Running, mut events: E, ping_time: Duration) -> Response {
    let mut sink = Sink::default();
    events.start(&mut sink);
    let ping = Box::pin(tokio::time::sleep(ping_time));
    let body = EventBody { running, events, sink, has_ended: false, ping, ping_time };
    let mut response = Body::from_stream(body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(E::CONTENT_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-store"));
    // nginx would collect the events otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl<E: Events> Stream for EventBody<E> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(bytes) = this.sink.0.pop_front() {
                let next = Instant::now() + this.ping_time;
                this.ping.as_mut().reset(next);
                return Poll::Ready(Some(Ok(bytes)));
            }
            if this.has_ended {
                return Poll::Ready(None);
            }
            match this.running.pieces.poll_recv(context) {
                Poll::Ready(Some(piece)) => {
                    this.has_ended = matches!(piece, Piece::Done(_) | Piece::Failed(_));
                    this.events.piece(piece, &mut this.sink);
                }
                // The sender ends with a last piece, unless the runtime stops.
                Poll::Ready(None) => this.has_ended = true,
                Poll::Pending => match this.ping.as_mut().poll(context) {
                    Poll::Ready(()) => {
                        let next = Instant::now() + this.ping_time;
                        this.ping.as_mut().reset(next);
                        this.events.ping(&mut this.sink);
                    }
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_have_no_line_ends_of_unicode() {
        let value = json!({ "text": "a\u{85}b\u{2028}c\u{2029}d\n" });
        let line = one_line(value.to_string());
        assert!(line.is_ascii() && !line.contains('\n'), "{line}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
    }
}
