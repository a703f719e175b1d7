//! `POST /api/embed`, and `POST /api/embeddings` for one text.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::chat::nanoseconds;
use super::{known, read};
use crate::app::App;
use crate::body;
use crate::error::ApiResult;
use crate::models::ModelKind;
use crate::response;
use crate::work::{self, Vectors};

pub(super) async fn several(state: State<App>, request: Request) -> ApiResult<Response> {
    let since = Instant::now();
    let (model, vectors) = vectors(state, request, "input").await?;
    let mut answer = json!({ "model": model, "embeddings": [] });
    if let Some(Vectors { vectors, n_tokens, load_time, .. }) = vectors {
        answer["embeddings"] = json!(vectors);
        answer["prompt_eval_count"] = n_tokens.into();
        answer["load_duration"] = nanoseconds(load_time);
        answer["total_duration"] = nanoseconds(since.elapsed());
    }
    Ok(response::json(&answer))
}

pub(super) async fn one(state: State<App>, request: Request) -> ApiResult<Response> {
    let (_, vectors) = vectors(state, request, "prompt").await?;
    let embedding: Value = vectors.and_then(|mut of| of.vectors.pop()).map_or(json!([]), |it| json!(it));
    Ok(response::json(&json!({ "embedding": embedding })))
}

/// The model as the request names it, and its vectors of the texts in this field. Without a text, the model is loaded.
async fn vectors(
    state: State<App>,
    request: Request,
    input: &'static str,
) -> ApiResult<(String, Option<Vectors>)> {
    let (place, (model, request)) =
        body::read(&state, request, move |given| read::embeddings(given, input)).await?;
    let name = known(&state, model.clone());
    let Some(mut request) = request else {
        state.model(Some(name), ModelKind::Embedding).await?;
        return Ok((model, None));
    };
    request.model = Some(name);
    let vectors = work::embed(&state, place, request).await?;
    Ok((model, Some(vectors)))
}
