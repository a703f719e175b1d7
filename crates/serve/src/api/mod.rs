//! The routes.

mod chat;
mod completions;
mod embeddings;
mod head;
mod health;
mod models;
mod responses;
mod sse;
mod tokens;

#[cfg(feature = "internals")]
pub(crate) use embeddings::check as check_embeddings;

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::routing::{get, post};

use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::openapi;
use crate::response::json_text;

/// All routes of the API. Further routers can be merged with this one.
pub(crate) fn router() -> Router<App> {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/chat/completions/input_tokens", post(tokens::of_chat))
        .route("/v1/responses/input_tokens", post(tokens::of_response))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/tokenize", post(tokens::encode))
        .route("/detokenize", post(tokens::decode))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/health", get(health::health))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(|| async { json_text(openapi::text()) }))
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
