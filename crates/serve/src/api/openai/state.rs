//! `GET /props` and `GET /slots`: what front-ends of llama.cpp ask before they show a chat.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiResult;
use crate::models::{Model, ModelKind};
use crate::response;

/// The first model, its context, and how many requests compute at a time.
pub(super) async fn props(State(app): State<App>) -> ApiResult<Response> {
    let model = app.model(None, ModelKind::Text).await?;
    Ok(response::json(&json!({
        "default_generation_settings": { "n_ctx": model.context_len(), "params": params(&model) },
        "total_slots": app.limits().running,
        "model_alias": model.id,
        "modalities": { "vision": false, "audio": false },
        "build_info": concat!("refrain-", env!("CARGO_PKG_VERSION")),
    })))
}

/// The sampling of requests that state none.
fn params(model: &Model) -> Value {
    let sampling = &model.sampling;
    json!({
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": sampling.penalty_window,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    })
}

/// The places for requests that compute, the taken ones first.
pub(super) async fn slots(State(app): State<App>) -> ApiResult<Response> {
    let model = app.model(None, ModelKind::Text).await?;
    let (n_running, _) = app.queue().depth();
    let slot = |id| json!({ "id": id, "n_ctx": model.context_len(), "is_processing": id < n_running });
    Ok(response::json(&(0..app.limits().running).map(slot).collect::<Value>()))
}
