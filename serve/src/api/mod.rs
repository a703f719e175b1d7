//! The routes.

mod chat;
mod completions;
mod embeddings;
mod health;
mod models;
mod responses;
mod sse;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderValue};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::Value;

use crate::app::App;
use crate::error::{ApiError, ApiResult, ErrorKind};
use crate::metrics::add;
use crate::openapi;
use crate::queue::Place;
use crate::work::blocking;

/// All routes of the API. Further routers can be merged with this one.
pub(crate) fn router() -> Router<App> {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/health", get(health::health))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(|| async { json(StatusCode::OK, &openapi::document()) }))
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_address)
}

async fn wrong_method() -> ApiError {
    let message = "the method of the request is not supported at this address";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, ErrorKind::InvalidRequest, message)
}

async fn unknown_address(uri: Uri) -> ApiError {
    // A path may be a prompt that went astray, so it is not repeated.
    let advice = if uri.path().starts_with("/v1/") { "" } else { " (the API is below `/v1`)" };
    ApiError::not_found(format!("no such address{advice}")).with_code("unknown_url")
}

/// A JSON response.
pub(crate) fn json(status: StatusCode, value: &Value) -> Response {
    let mut response = (status, value.to_string()).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Reads a request with a JSON body, with its place in the queue.
///
/// # Errors
/// 429: the queue is full. 415: another content type. 413: the body is too long. 408: it comes too slowly. 400: no JSON, or a field is refused.
pub(crate) async fn read<T: Send + 'static>(
    State(app): &State<App>,
    request: Request,
    read: impl FnOnce(&Value, &App) -> ApiResult<T> + Send + 'static,
) -> ApiResult<(Place, T)> {
    let result = async {
        let place = app.queue().admit()?;
        check_content_type(request.headers())?;
        let bytes = body(app, request.into_body()).await?;
        let their_app = app.clone();
        let parse = move || {
            let value = serde_json::from_slice(&bytes).map_err(|error| {
                // The reader's own message quotes what it has found.
                let (line, column) = (error.line(), error.column());
                ApiError::bad_request(format!("the body is not JSON (line {line}, column {column})"))
            })?;
            // The place goes along, so that the work of clients that go away is bounded too.
            Ok((place, read(&value, &their_app)?))
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
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorKind::InvalidRequest, message))
}

async fn body(app: &App, body: Body) -> ApiResult<axum::body::Bytes> {
    let limits = app.limits();
    let too_long = || {
        let message = format!("the body has more than {} bytes", limits.body_bytes);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::InvalidRequest, message)
    };
    if axum::body::HttpBody::size_hint(&body).lower() > limits.body_bytes as u64 {
        return Err(too_long());
    }
    match tokio::time::timeout(limits.body_time, axum::body::to_bytes(body, limits.body_bytes)).await {
        Err(_) => {
            let message = format!("the body took more than {} s", limits.body_time.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, ErrorKind::InvalidRequest, message))
        }
        // Too long, or the client has gone and reads no answer.
        Ok(Err(_)) => Err(too_long()),
        Ok(Ok(bytes)) => Ok(bytes),
    }
}
