//! `POST /v1/embeddings`.

use super::common;
use super::completions::prompts;
use crate::api::shared::check_inputs;
use crate::body::Given;
use crate::error::ApiResult;
use crate::work::EmbeddingsRequest;

/// Reads a request. The flag: whether the vectors are sent as base64.
pub(crate) fn read(given: Given<'_>) -> ApiResult<(EmbeddingsRequest, bool)> {
    let (mut fields, limits) = (given.fields()?, given.limits);
    let model = common::model(&mut fields)?;
    let inputs = prompts(fields.required("input")?, "input")?;
    check_inputs(&inputs, "input", limits)?;
    let is_base64 = fields.choice("encoding_format", &["float", "base64"])? == Some(1);
    let dimensions = fields.count("dimensions", 1)?;
    let priority = common::priority(&mut fields)?;
    fields.refuse("truncate_prompt_tokens", "is not supported")?;
    fields.finish()?;
    Ok((EmbeddingsRequest { model, inputs, dimensions, truncates: false, priority }, is_base64))
}
