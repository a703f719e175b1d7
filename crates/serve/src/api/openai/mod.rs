//! The OpenAI API, with the further endpoints that clients of llama.cpp and vLLM know.

mod chat;
mod completions;
mod embeddings;
mod head;
mod infill;
mod models;
mod rerank;
mod responses;
mod state;
mod tokens;
pub(crate) mod wire;

use axum::Router;
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::face::{Refusal, status};
use crate::app::App;
use crate::error::{ApiError, ErrorKind};

pub(super) fn router() -> Router<App> {
    Router::new()
        .nest("/v1", versioned())
        // As llama.cpp has them too: the address that clients are given often lacks the version.
        .merge(versioned())
        .route("/infill", post(infill::fill))
        .route("/completion", post(infill::complete))
        .route("/tokenize", post(tokens::encode))
        .route("/detokenize", post(tokens::decode))
        .route("/props", get(state::props))
        .route("/slots", get(state::slots))
}

/// The routes below the version.
fn versioned() -> Router<App> {
    Router::new()
        .route("/chat/completions", post(chat::create))
        .route("/completions", post(completions::create))
        .route("/responses", post(responses::create))
        .route("/responses/{id}", get(responses::one).delete(responses::delete))
        .route("/chat/completions/input_tokens", post(tokens::of_chat))
        .route("/responses/input_tokens", post(tokens::of_response))
        .route("/embeddings", post(embeddings::create))
        .route("/rerank", post(rerank::create))
        .route("/models", get(models::list))
        .route("/models/{*id}", get(models::one))
}

/// An error as this API has it.
pub(super) fn refusal(error: &ApiError) -> Refusal {
    Refusal { status: status(error.kind), body: error_json(error) }
}

/// The body: `{"error": {"message", "type", "param", "code"}}`.
fn error_json(error: &ApiError) -> Value {
    let ApiError { kind, message, param, code, .. } = error;
    let kind = match kind {
        ErrorKind::Unauthorized => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::Busy => "rate_limit_error",
        ErrorKind::Failed | ErrorKind::Unavailable => "server_error",
        ErrorKind::Invalid
        | ErrorKind::WrongMethod
        | ErrorKind::TooSlow
        | ErrorKind::TooLarge
        | ErrorKind::WrongType => "invalid_request_error",
    };
    json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
}
