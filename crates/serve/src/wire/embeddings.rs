//! `POST /v1/embeddings`.

use refrain_assistant::Priority;
use serde_json::Value;

use super::common;
use super::completions::prompts;
use super::fields::Fields;
use crate::error::{ApiError, ApiResult};
use crate::limits::Limits;
use crate::work::Plain;

/// A request for vectors.
pub(crate) struct EmbeddingsRequest {
    pub(crate) model: Option<String>,
    pub(crate) inputs: Vec<Plain>,
    pub(crate) is_base64: bool,
    pub(crate) dimensions: Option<usize>,
    pub(crate) priority: Priority,
}

pub(crate) fn read(value: &Value, limits: &Limits) -> ApiResult<EmbeddingsRequest> {
    let mut fields = Fields::of_request(value)?;
    fields.ignore(&common::IGNORED);
    common::metadata(&mut fields)?;
    let model = common::model(&mut fields)?;
    let inputs = prompts(fields.required("input")?, "input")?;
    if inputs.len() > limits.inputs {
        let message = format!("{} texts are more than {}", inputs.len(), limits.inputs);
        return Err(ApiError::field("input", message));
    }
    let is_empty = |input: &Plain| match input {
        Plain::Text(text) => text.is_empty(),
        Plain::Tokens(tokens) => tokens.is_empty(),
    };
    if inputs.iter().any(is_empty) {
        return Err(ApiError::field("input", "a text is empty"));
    }
    let is_base64 = fields.choice("encoding_format", &["float", "base64"])? == Some(1);
    let dimensions = fields.count("dimensions", 1)?;
    let priority = common::priority(&mut fields)?;
    fields.finish()?;
    Ok(EmbeddingsRequest { model, inputs, is_base64, dimensions, priority })
}
