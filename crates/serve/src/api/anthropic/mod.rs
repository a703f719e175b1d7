//! Anthropic's API: messages of blocks, and typed events.

mod messages;
pub(super) mod models;
pub(crate) mod read;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::{Value, json};

use super::face::{Refusal, status};
use crate::app::App;
use crate::error::{ApiError, ErrorKind};

pub(super) fn router() -> Router<App> {
    Router::new()
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
}

/// Whether a client of this API asks, at an address that it shares with another. Its clients always name the version.
pub(super) fn is_asked_for(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

/// The status of a server that has no room. It has no name in HTTP.
const OVERLOADED: u16 = 529;

/// An error as this API has it: a full queue is status 529.
pub(super) fn refusal(error: &ApiError, id: Option<&str>) -> Refusal {
    let status = match error.kind {
        ErrorKind::Busy | ErrorKind::Unavailable => {
            StatusCode::from_u16(OVERLOADED).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
        }
        kind => status(kind),
    };
    let mut body = error_json(error);
    body["request_id"] = id.into();
    Refusal { status, body }
}

fn error_json(error: &ApiError) -> Value {
    let kind = match error.kind {
        ErrorKind::Invalid | ErrorKind::WrongMethod | ErrorKind::WrongType | ErrorKind::TooSlow => {
            "invalid_request_error"
        }
        ErrorKind::Unauthorized => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::TooLarge => "request_too_large",
        ErrorKind::Busy | ErrorKind::Unavailable => "overloaded_error",
        ErrorKind::Failed => "api_error",
    };
    // Clients shorten a conversation when a message begins so.
    let message = match (error.overflow, error.code) {
        (Some((n_tokens, context_len)), _) => {
            format!("prompt is too long: {n_tokens} tokens > {} maximum", context_len.saturating_sub(1))
        }
        (None, Some("context_length_exceeded")) => format!("prompt is too long: {}", error.message),
        _ => error.message.clone(),
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}
