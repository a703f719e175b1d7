//! `GET /v1/models` and `GET /v1/models/{id}`, at an address that the OpenAI API and the Anthropic API share.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use crate::api::anthropic;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::models::ModelKind;
use crate::response;

pub(crate) async fn list(State(app): State<App>, headers: HeaderMap) -> Response {
    if anthropic::is_asked_for(&headers) {
        return anthropic::models::list(&app);
    }
    let data: Vec<Value> = app.models().ids().map(|(id, kind)| model_json(&app, id, kind)).collect();
    response::json(&json!({ "object": "list", "data": data }))
}

pub(crate) async fn one(
    State(app): State<App>,
    headers: HeaderMap,
    given: Result<Path<String>, PathRejection>,
) -> ApiResult<Response> {
    // A path that is no UTF-8 names no model.
    let given = given.map(|Path(given)| given).unwrap_or_default();
    let found = app.models().ids().find(|(id, _)| *id == given);
    let Some((id, kind)) = found else {
        let error = ApiError::not_found("the model does not exist; `/v1/models` lists those of this server");
        return Err(error.with_param("model").with_code("model_not_found"));
    };
    match anthropic::is_asked_for(&headers) {
        true => Ok(response::json(&anthropic::models::model_json(&app, id))),
        false => Ok(response::json(&model_json(&app, id, kind))),
    }
}

fn model_json(app: &App, id: &str, kind: ModelKind) -> Value {
    let kind = match kind {
        ModelKind::Text => "text",
        ModelKind::Embedding => "embedding",
    };
    json!({ "id": id, "object": "model", "created": app.models().created(), "owned_by": "refrain", "kind": kind })
}
