//! The routes. Each API that clients speak is a folder, which translates between its own JSON and the requests and pieces of `work`; none
//! knows another, except that two share the address of the models.

pub(crate) mod anthropic;
pub(crate) mod face;
mod monitor;
pub(crate) mod ollama;
pub(crate) mod openai;
mod openapi;
mod shared;
mod stream;

use axum::Router;
use axum::http::Uri;
use axum::routing::get;

use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::response::json_text;

/// All routes of the APIs. Further routers can be merged with this one.
pub(crate) fn router() -> Router<App> {
    Router::new()
        .merge(openai::router())
        .merge(ollama::router())
        .merge(anthropic::router())
        .route("/health", get(monitor::health))
        .route("/metrics", get(monitor::metrics))
        .route("/openapi.json", get(|| async { json_text(openapi::text()) }))
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_address)
}

async fn wrong_method() -> ApiError {
    let message = "the method of the request is not supported at this address";
    ApiError::new(ErrorKind::WrongMethod, message)
}

async fn unknown_address(uri: Uri) -> ApiError {
    // A path may be a prompt that went astray, so it is not repeated.
    let advice = match uri.path().starts_with("/v1/") || uri.path().starts_with("/api/") {
        true => "",
        false => " (the OpenAI API is below `/v1`, Ollama's below `/api`)",
    };
    ApiError::not_found(format!("no such address{advice}")).with_code("unknown_url")
}
