//! `POST /v1/rerank`: documents in the order of their similarity to a query, as clients of Jina, vLLM and llama.cpp ask for it.
//!
//! The scores are those of an embedding model: the cosine of the angle between the vectors of query and document.

use axum::extract::{Request, State};
use axum::response::Response;
use refrain_assistant::Priority;
use serde_json::{Value, json};

use super::wire::common;
use crate::api::shared::check_inputs;
use crate::app::App;
use crate::body::{self, Given};
use crate::error::{ApiError, ApiResult};
use crate::response;
use crate::work::{self, EmbeddingsRequest, Plain};

/// A request, and how its answer is shown.
struct Rerank {
    /// The query, then the documents.
    request: EmbeddingsRequest,
    /// Results in the answer.
    n_results: usize,
    /// The texts, if the answer has them.
    texts: Option<Vec<String>>,
}

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

fn read(given: Given<'_>) -> ApiResult<Rerank> {
    let mut fields = given.fields()?;
    let model = common::model(&mut fields)?;
    let query = Plain::Text(fields.required_string("query")?.to_owned());
    fields.required("documents")?;
    let mut texts = Vec::new();
    for (index, item) in fields.array("documents")?.unwrap_or_default().iter().enumerate() {
        let path = format!("documents[{index}]");
        match item {
            Value::String(text) => texts.push(text.clone()),
            Value::Object(_) => {
                let mut document = fields.of(item, &path)?;
                texts.push(document.required_string("text")?.to_owned());
                document.finish()?;
            }
            _ => return Err(ApiError::field(path, "a string, or an object with `text`, is expected")),
        }
    }
    if texts.is_empty() {
        return Err(ApiError::field("documents", "is empty"));
    }
    let inputs: Vec<Plain> = [query].into_iter().chain(texts.iter().cloned().map(Plain::Text)).collect();
    check_inputs(&inputs, "documents", given.limits)?;
    let n_results = fields.count("top_n", 1)?.unwrap_or(texts.len());
    let returns_documents = fields.bool("return_documents")?.unwrap_or(false);
    fields.finish()?;
    let request = EmbeddingsRequest {
        model,
        inputs,
        dimensions: None,
        truncates: false,
        priority: Priority::Interactive,
    };
    Ok(Rerank { request, n_results, texts: returns_documents.then_some(texts) })
}
