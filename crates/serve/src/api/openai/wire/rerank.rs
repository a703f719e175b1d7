//! `POST /v1/rerank`.

use refrain_assistant::Priority;
use serde_json::Value;

use super::common;
use crate::api::shared::check_inputs;
use crate::body::Given;
use crate::error::{ApiError, ApiResult};
use crate::work::{EmbeddingsRequest, Plain};

/// A request, and how its answer is shown.
pub(crate) struct Rerank {
    /// The query, then the documents.
    pub(crate) request: EmbeddingsRequest,
    /// Results in the answer.
    pub(crate) n_results: usize,
    /// The texts, if the answer has them.
    pub(crate) texts: Option<Vec<String>>,
}

pub(crate) fn read(given: Given<'_>) -> ApiResult<Rerank> {
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
