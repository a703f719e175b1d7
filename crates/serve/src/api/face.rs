//! Which API an address belongs to, and how that API refuses.

use axum::body::Body;
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::{anthropic, ollama, openai};
use crate::error::{ApiError, ErrorKind};

/// The API that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Face {
    /// Also the form of errors at every address that belongs to no API.
    OpenAi,
    Ollama,
    Anthropic,
}

/// A refusal in the form of an API.
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) body: Value,
}

/// The status of an error, where an API has none of its own for it.
pub(super) fn status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorKind::Forbidden => StatusCode::FORBIDDEN,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
        ErrorKind::TooSlow => StatusCode::REQUEST_TIMEOUT,
        ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::WrongType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ErrorKind::Busy => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl Face {
    /// The API of a request.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Self {
        let is_below =
            |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if is_below("/api") {
            return Self::Ollama;
        }
        let is_shared = is_below("/v1/models") && anthropic::is_asked_for(headers);
        if is_below("/v1/messages") || is_shared { Self::Anthropic } else { Self::OpenAi }
    }

    /// Writes the refusal that a route or a check has left in a response; `id` is that of the request.
    pub(crate) fn write_refusal(self, response: &mut Response, id: &str) {
        let Some(error) = response.extensions_mut().remove::<ApiError>() else { return };
        let Refusal { status, body } = match self {
            Self::OpenAi => openai::refusal(&error),
            Self::Ollama => ollama::refusal(&error),
            Self::Anthropic => anthropic::refusal(&error, Some(id)),
        };
        *response.status_mut() = status;
        *response.body_mut() = Body::from(body.to_string());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // That of the empty body.
        headers.remove(header::CONTENT_LENGTH);
        if let Some(seconds) = error.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if error.is_final {
            headers.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
    }
}

impl IntoResponse for ApiError {
    /// A response that [`Face::write_refusal`] completes.
    fn into_response(self) -> Response {
        let mut response = status(self.kind).into_response();
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_has_the_errors_of_its_api() {
        let of = |path: &str| Face::of(path, &HeaderMap::new());
        for path in ["/api/chat", "/api/nowhere", "/api"] {
            assert_eq!(of(path), Face::Ollama, "{path}");
        }
        for path in ["/v1/messages", "/v1/messages/count_tokens"] {
            assert_eq!(of(path), Face::Anthropic, "{path}");
        }
        for path in ["/", "/v1/models", "/v1/chat/completions", "/apis", "/v1/messagesx", "/mcp"] {
            assert_eq!(of(path), Face::OpenAi, "{path}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
        assert_eq!(Face::of("/v1/models/a", &headers), Face::Anthropic);
        assert_eq!(Face::of("/v1/chat/completions", &headers), Face::OpenAi);
    }
}
