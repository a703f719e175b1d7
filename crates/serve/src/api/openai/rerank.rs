//! `POST /v1/rerank`: documents in the order of their similarity to a query, as clients of Jina, vLLM and llama.cpp ask for it.
//!
//! The scores are those of an embedding model: the cosine of the angle between the vectors of query and document.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::wire::rerank::{Rerank, read};
use crate::app::App;
use crate::body;
use crate::error::{ApiError, ApiResult};
use crate::response;
use crate::work;

pub(super) async fn create(state: State<App>, request: Request) -> ApiResult<Response> {
    let (place, Rerank { request, n_results, texts }) = body::read(&state, request, read).await?;
    let answer = work::embed(&state, place, request).await?;
    let (query, documents) = answer.vectors.split_first().ok_or_else(ApiError::bug)?;
    let cosine = |vector: &Vec<f32>| query.iter().zip(vector).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    let mut scores: Vec<(usize, f64)> = documents.iter().map(cosine).enumerate().collect();
    // Of equal documents, the first one.
    scores.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let result = |&(index, score): &(usize, f64)| {
        let mut result = json!({ "index": index, "relevance_score": score });
        if let Some(texts) = &texts {
            result["document"] = json!({ "text": texts[index] });
        }
        result
    };
    let results: Vec<Value> = scores.iter().take(n_results).map(result).collect();
    Ok(response::json(&json!({
        "object": "list",
        "model": answer.model,
        "results": results,
        "usage": { "prompt_tokens": answer.n_tokens, "total_tokens": answer.n_tokens },
    })))
}
