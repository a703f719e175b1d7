//! Responses of JSON.

use axum::http::header::{self, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

/// A JSON response.
pub(crate) fn json(value: &Value) -> Response {
    json_text(value.to_string())
}

/// A response whose text is JSON.
pub(crate) fn json_text(text: impl IntoResponse) -> Response {
    let mut response = text.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
