//! Bodies of requests and of responses.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;
use crate::blocking::blocking;
use crate::error::{ApiError, ApiResult, ErrorKind};
use crate::json::fields::Fields;
use crate::json::{Ignored, Shape};
use crate::limits::Limits;
use crate::metrics::add;
use crate::queue::Place;

/// The JSON of a request, while it is read.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub(crate) value: &'a Value,
    pub(crate) limits: &'a Limits,
    /// Takes the names of the fields that nothing reads.
    pub(crate) ignored: &'a Ignored,
    /// Takes the fields that the reader asks for.
    pub(crate) shape: Option<&'a Shape>,
}

impl<'a> Given<'a> {
    /// The fields of a request of an API that other projects define.
    pub(crate) fn fields(&self) -> ApiResult<Fields<'a>> {
        Fields::of_foreign(self.value, self.ignored, self.shape)
    }
}

/// Reads a request with a JSON body, with its place in the queue.
///
/// # Errors
/// 429: the queue is full. 415: another content type. 413: the body is too long. 408: it comes too slowly. 400: no JSON, or a field is refused.
pub(crate) async fn read<T: Send + 'static>(
    State(app): &State<App>,
    request: Request,
    read: impl FnOnce(Given<'_>) -> ApiResult<T> + Send + 'static,
) -> ApiResult<(Place, T)> {
    let ignored = request.extensions().get::<Ignored>().cloned().unwrap_or_default();
    let result = async {
        app.queue().check()?;
        // Users of Ollama's API give `curl` a body without its type.
        if !request.uri().path().starts_with("/api/") {
            check_content_type(request.headers())?;
        }
        let (bytes, permit) = body(app, request.into_body()).await?;
        // Admitted with its whole body: a client that sends slowly takes no place of others.
        let place = app.queue().admit(permit)?;
        let their_app = app.clone();
        let preparing = app.preparing().await;
        let parse = move || {
            let _preparing = preparing;
            let limits = their_app.limits();
            let value = crate::json::read(&bytes, limits.json_values)?;
            drop(bytes);
            // The place goes along, so that the work of clients that go away is bounded too. It keeps the share of bytes: the request has
            // the texts of the body until it ends.
            Ok((place, read(Given { value: &value, limits, ignored: &ignored, shape: None })?))
        };
        blocking(parse).await
    };
    result.await.inspect_err(|_| add(&app.metrics().refused, 1))
}

fn check_content_type(headers: &HeaderMap) -> ApiResult<()> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = given.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = "the header `Content-Type: application/json` is missing";
    Err(ApiError::new(ErrorKind::WrongType, message))
}

/// Reads a body. The permit counts its bytes among those of all bodies.
pub(crate) async fn body(app: &App, mut body: Body) -> ApiResult<(Vec<u8>, Option<OwnedSemaphorePermit>)> {
    let limits = app.limits();
    let too_long = || {
        let message = format!("the body has more than {} bytes", limits.body_bytes);
        ApiError::new(ErrorKind::TooLarge, message)
    };
    if body.size_hint().lower() > limits.body_bytes as u64 {
        return Err(too_long());
    }
    let read = async {
        let (mut bytes, mut permit) = (Vec::new(), None::<OwnedSemaphorePermit>);
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|_| ApiError::bad_request("the body is incomplete"))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > limits.body_bytes {
                return Err(too_long());
            }
            let n_bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
            let more = Arc::clone(app.bodies()).try_acquire_many_owned(n_bytes);
            let more =
                more.map_err(|_| ApiError::busy("the bodies of other requests fill the memory for them", 1))?;
            match &mut permit {
                Some(permit) => permit.merge(more),
                None => permit = Some(more),
            }
            bytes.extend_from_slice(&data);
        }
        Ok((bytes, permit))
    };
    tokio::time::timeout(limits.body_time, read).await.unwrap_or_else(|_| {
        let message = format!("the body took more than {} s", limits.body_time.as_secs());
        Err(ApiError::new(ErrorKind::TooSlow, message))
    })
}
