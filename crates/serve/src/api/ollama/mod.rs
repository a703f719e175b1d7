//! Ollama's API: lines of JSON, options in an object of their own, times in nanoseconds.

mod chat;
mod embed;
mod models;
pub(crate) mod read;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde_json::json;

use super::face::{Refusal, status};
use crate::app::App;
use crate::error::{ApiError, ErrorKind};

pub(super) fn router() -> Router<App> {
    Router::new()
        .route("/api/chat", post(chat::chat))
        .route("/api/generate", post(chat::generate))
        .route("/api/embed", post(embed::several))
        .route("/api/embeddings", post(embed::one))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::ps))
        .route("/api/show", post(models::show))
        .route("/api/pull", post(models::pull))
        .route("/api/version", get(models::version))
}

/// An error as this API has it: a full queue is status 503.
pub(super) fn refusal(error: &ApiError) -> Refusal {
    let status = match error.kind {
        ErrorKind::Busy => StatusCode::SERVICE_UNAVAILABLE,
        kind => status(kind),
    };
    Refusal { status, body: json!({ "error": message(error) }) }
}

/// Clients look for some words of the original's messages.
fn message(error: &ApiError) -> String {
    match (error.kind, error.code, error.overflow) {
        (ErrorKind::Busy, ..) => format!("server busy, please try again: {}", error.message),
        (ErrorKind::NotFound, Some("model_not_found"), _) => {
            "model not found: `/api/tags` lists those of this server".to_owned()
        }
        (_, _, Some((n_tokens, context_len))) => {
            format!(
                "the input length exceeds the context length: {n_tokens} tokens, and the context has {context_len}"
            )
        }
        _ => error.message.clone(),
    }
}

/// The name of a model of this server: clients may add the tag `latest`.
fn known(app: &App, given: String) -> String {
    let is_known = |name: &str| app.models().ids().any(|(id, _)| id == name);
    match given.strip_suffix(":latest") {
        Some(name) if !is_known(&given) && is_known(name) => name.to_owned(),
        _ => given,
    }
}
