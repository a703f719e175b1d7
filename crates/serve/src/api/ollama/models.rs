//! The models of this server, as Ollama lists them.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::{known, read};
use crate::app::App;
use crate::body;
use crate::error::{ApiError, ApiResult};
use crate::models::{ModelKind, Shown, ShownLoaded};
use crate::response;
use crate::time::timestamp;

/// The version of Ollama's API that these routes follow. Clients look for features by it.
const VERSION: &str = "0.13.0";

pub(super) async fn version() -> Response {
    response::json(&json!({ "version": VERSION }))
}

pub(super) async fn tags(State(app): State<App>) -> Response {
    let entry = |shown: &Shown<'_>| {
        let mut entry = entry_json(shown);
        entry["modified_at"] = timestamp(app.models().created()).into();
        entry
    };
    let models: Vec<Value> = app.models().shown().iter().map(entry).collect();
    response::json(&json!({ "models": models }))
}

/// The models in memory. They leave it when others need it, so the time at which they expire is far away.
pub(super) async fn ps(State(app): State<App>) -> Response {
    let entry = |shown: &Shown<'_>| {
        let loaded = shown.loaded.as_ref()?;
        let mut entry = entry_json(shown);
        entry["expires_at"] = "9999-12-31T23:59:59Z".into();
        entry["size_vram"] = 0.into();
        entry["context_length"] = loaded.context_len.into();
        Some(entry)
    };
    let models: Vec<Value> = app.models().shown().iter().filter_map(entry).collect();
    // Tells this server from Ollama; its clients read over it.
    response::json(&json!({ "models": models, "server": concat!("refrain-", env!("CARGO_PKG_VERSION")) }))
}

/// A model in a list. The digest tells models of this server apart; it is not that of a file.
fn entry_json(shown: &Shown<'_>) -> Value {
    json!({
        "name": shown.id,
        "model": shown.id,
        "size": shown.loaded.as_ref().map_or(0, |loaded| loaded.n_bytes),
        "digest": blake3::hash(shown.id.as_bytes()).to_hex().as_str(),
        "details": details_json(shown.loaded.as_ref()),
    })
}

fn details_json(loaded: Option<&ShownLoaded>) -> Value {
    let family = loaded.map(|loaded| loaded.architecture);
    json!({
        "parent_model": "",
        "format": "",
        "family": family.unwrap_or_default(),
        "families": family.into_iter().collect::<Vec<_>>(),
        "parameter_size": "",
        "quantization_level": "",
    })
}

pub(super) async fn show(state: State<App>, request: Request) -> ApiResult<Response> {
    let (_place, model) = body::read(&state, request, read::shown).await?;
    let model = known(&state, model);
    let all = state.models().shown();
    let shown = all.iter().find(|shown| shown.id == model).ok_or_else(not_found)?;
    let loaded = shown.loaded.as_ref();
    let mut capabilities = match shown.kind {
        ModelKind::Text => vec!["completion", "tools"],
        ModelKind::Embedding => vec!["embedding"],
    };
    if shown.kind == ModelKind::Text && loaded.is_some_and(|loaded| loaded.reasons) {
        capabilities.push("thinking");
    }
    let mut info = Map::new();
    if let Some(loaded) = loaded {
        let name = loaded.architecture;
        info.insert("general.architecture".to_owned(), name.into());
        info.insert(format!("{name}.context_length"), loaded.context_len.into());
        info.insert(format!("{name}.embedding_length"), loaded.hidden_dim.into());
        info.insert(format!("{name}.block_count"), loaded.n_layers.into());
    }
    Ok(response::json(&json!({
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": details_json(loaded),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": timestamp(state.models().created()),
    })))
}

/// A model of this server is there already. The server fetches no other: that is the program's part.
pub(super) async fn pull(state: State<App>, request: Request) -> ApiResult<Response> {
    let (_place, model) = body::read(&state, request, read::pulled).await?;
    let model = known(&state, model);
    match state.models().ids().any(|(id, _)| id == model) {
        // A stream of progress that has reached its end.
        true => Ok(response::json_text("{\"status\":\"success\"}\n")),
        false => {
            let message = "this server fetches no models: `refrain model pull` does, and `refrain serve --pulled` offers them";
            Err(ApiError::not_found(message))
        }
    }
}

fn not_found() -> ApiError {
    ApiError::not_found("no such model").with_param("model").with_code("model_not_found")
}
