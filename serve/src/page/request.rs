//! Bodies of the page's requests and answers.

use axum::extract::Request;
use axum::http::header::{self, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use crate::app::App;
use crate::error::ApiResult;

/// The body of a request.
///
/// # Errors
/// It is too long, comes too slowly, or is no JSON.
pub(super) async fn read(app: &App, request: Request) -> ApiResult<Value> {
    crate::api::body::json(app, request).await
}

/// A JSON answer.
pub(super) fn json_response(value: &impl Serialize) -> Response {
    let body = serde_json::to_string(value).expect("numbers and texts have a JSON form");
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}
