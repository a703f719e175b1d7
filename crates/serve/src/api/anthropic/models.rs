//! The models of this server, as Anthropic's API lists them.

use axum::response::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::response;
use crate::time::timestamp;

pub(in crate::api) fn list(app: &App) -> Response {
    let data: Vec<Value> = app.models().ids().map(|(id, _)| model_json(app, id)).collect();
    let id = |model: Option<&Value>| model.map(|model| model["id"].clone());
    let (first, last) = (id(data.first()), id(data.last()));
    response::json(&json!({ "data": data, "has_more": false, "first_id": first, "last_id": last }))
}

pub(in crate::api) fn model_json(app: &App, id: &str) -> Value {
    json!({
        "type": "model",
        "id": id,
        "display_name": id,
        "created_at": timestamp(app.models().created()),
        "lifecycle": "active",
    })
}
