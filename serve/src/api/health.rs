//! `GET /health` and `GET /metrics`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::app::App;

pub(crate) async fn health() -> Response {
    super::json_response(StatusCode::OK, &json!({ "status": "ok" }))
}

pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let text = app.metrics().text(&app.gauges());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
