//! The page at `/`, and the endpoints that it alone uses, under `/page/`.
//!
//! | endpoint | request | answer |
//! | --- | --- | --- |
//! | `GET /page/status` | | the model, its limits, the number of passages |
//! | `POST /page/ask` | a question | a stream: `prefill`, `text`, then `done` or `error` |
//! | `POST /page/edit` | a text and an instruction | the same, with `change` between the texts |
//! | `GET /page/source/{id}` | an id that an answer gave out | the text of the note around the passage |
//! | `GET /page/history` | | what was answered and edited since the start |
//! | `POST /page/forget` | a note's id, a time, or everything | what was deleted |
//!
//! The page stops a job by closing its stream. Its files are built from `crates/serve/page/src` and need no token, because a browser cannot
//! send one when it opens an address; they have nothing of the user.
//!
//! Offsets are in UTF-16 code units, as the page's strings have them.

mod assets;
mod forget;
mod jobs;
mod shown;
mod source;
mod state;
mod stream;
mod units;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;

pub(crate) use assets::is_asset;
pub(crate) use forget::forgotten_json;
pub(crate) use jobs::{of_task, stats_json, support_of};
pub(crate) use shown::short_path;
pub(crate) use state::Page;
pub(crate) use stream::{Sink, run as run_stream};

use crate::blocking::blocking;
use crate::error::{ApiError, ApiResult};
use crate::response;

/// The routes of the page.
pub(crate) fn router(page: Page) -> Router {
    Router::new()
        .route("/", get(assets::index))
        .route("/page/page.js", get(assets::script))
        .route("/page/page.css", get(assets::style))
        .route("/page/icon.svg", get(assets::icon))
        .route("/page/status", get(status))
        .route("/page/ask", post(jobs::ask))
        .route("/page/edit", post(jobs::edit))
        .route("/page/source/{id}", get(source::source))
        .route("/page/history", get(forget::history))
        .route("/page/forget", post(forget::forget))
        .layer(middleware::from_fn(guarded))
        .with_state(page)
}

/// Refuses pages of other origins, also those that may use the API, and adds the headers that keep the page to itself.
async fn guarded(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let value = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let is_own = match (value(header::ORIGIN), value(header::HOST)) {
        (None, _) => !headers.contains_key(header::ORIGIN),
        (Some(origin), Some(host)) => {
            origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
        }
        (Some(_), None) => false,
    };
    let mut response = match is_own {
        true => next.run(request).await,
        false => ApiError::forbidden("origin_not_allowed", "only this server's own page may use this")
            .into_response(),
    };
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, assets::POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Checks the body of a request of the page.
#[cfg(feature = "internals")]
pub(crate) fn check(path: &str, value: &serde_json::Value) -> ApiResult<()> {
    match path {
        "/page/ask" => jobs::read_ask(value).map(drop),
        "/page/edit" => jobs::read_edit(value).map(drop),
        _ => forget::What::read(value).map(drop),
    }
}

async fn status(State(page): State<Page>) -> ApiResult<Response> {
    let (model, assistant) = page.assistant().await?;
    let n_passages = blocking(move || {
        let notes = assistant.notes();
        // What a writer has changed since; without it, the earlier state is searched.
        notes.map(|notes| notes.refresh().ok());
        Ok((notes.map(|notes| notes.n_passages()), assistant.has_store()))
    });
    let (n_passages, has_store) = n_passages.await?;
    let context_len = model.context_len();
    Ok(response::json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": model.id,
        "context_len": context_len,
        "max_tokens": context_len / 2,
        "has_chat_template": model.engine.tokenizer().has_chat_template(),
        "notes": n_passages.map(|n_passages| json!({ "n_passages": n_passages })),
        "has_store": has_store,
    })))
}
