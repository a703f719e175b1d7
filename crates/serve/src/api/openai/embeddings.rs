//! `POST /v1/embeddings`.

use axum::extract::{Request, State};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::wire::embeddings::read;
use crate::app::App;
use crate::body;
use crate::error::ApiResult;
use crate::response;
use crate::work;

pub(crate) async fn create(state: State<App>, request: Request) -> ApiResult<Response> {
    let (place, (request, is_base64)) = body::read(&state, request, read).await?;
    let answer = work::embed(&state, place, request).await?;
    let entry = |(index, vector): (usize, &Vec<f32>)| {
        let embedding: Value = match is_base64 {
            false => json!(vector),
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                STANDARD.encode(bytes).into()
            }
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    };
    let data: Vec<Value> = answer.vectors.iter().enumerate().map(entry).collect();
    Ok(response::json(&json!({
        "object": "list",
        "data": data,
        "model": answer.model,
        "usage": { "prompt_tokens": answer.n_tokens, "total_tokens": answer.n_tokens },
    })))
}
