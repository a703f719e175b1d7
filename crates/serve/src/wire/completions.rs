//! `POST /v1/completions`.

use refrain::TokenId;
use serde_json::Value;

use super::chat::{Delivery, delivery, documents};
use super::common;
use super::fields::Fields;
use crate::error::{ApiError, ApiResult};
use crate::limits::Limits;
use crate::work::{Input, Plain, Request};

/// Reads a request. The flag: whether the outputs begin with their prompts.
pub(crate) fn read(value: &Value, limits: &Limits) -> ApiResult<(Request, Delivery, bool)> {
    let mut fields = Fields::of_request(value)?;
    fields.ignore(&common::IGNORED);
    common::metadata(&mut fields)?;
    let model = common::model(&mut fields)?;
    let prompts = prompts(fields.required("prompt")?, "prompt")?;
    let n = fields.integer("n", 1..=limits.choices as i64)?.unwrap_or(1) as usize;
    let n_outputs = n.saturating_mul(prompts.len());
    if n_outputs > limits.choices {
        let message =
            format!("{} prompts with {n} outputs each are more than {}", prompts.len(), limits.choices);
        return Err(ApiError::field("prompt", message));
    }
    let logprobs = fields.integer("logprobs", 0..=20)?.map(|n| n as usize);
    let echoes = fields.bool("echo")?.unwrap_or(false);
    if echoes && logprobs.is_some() {
        return Err(ApiError::unsupported("echo", "is not supported together with `logprobs`"));
    }
    if echoes && prompts.iter().any(|prompt| matches!(prompt, Plain::Tokens(_))) {
        return Err(ApiError::unsupported("echo", "is not supported for prompts of tokens"));
    }
    if let Some(best_of) = fields.integer("best_of", 1..=20)?
        && best_of as usize != n
    {
        return Err(ApiError::unsupported("best_of", "other values than `n` are not supported"));
    }
    fields.refuse("suffix", "insertions are not supported")?;
    let delivery = delivery(&mut fields)?;
    let request = Request {
        n,
        sampling: common::sampling(&mut fields)?,
        // The default of this endpoint.
        max_tokens: Some(fields.count("max_tokens", 1)?.unwrap_or(16)),
        stop: common::stop(&mut fields)?,
        logprobs,
        cache_key: fields.key("prompt_cache_key", common::KEY_BYTES_MAX)?.map(str::to_owned),
        priority: common::priority(&mut fields)?,
        ..Request::of_input(model, Input::Plain(prompts), "prompt")
    };
    if !documents(&mut fields)?.is_empty() {
        return Err(ApiError::unsupported("documents", "use `/v1/chat/completions`"));
    }
    fields.finish()?;
    Ok((request, delivery, echoes))
}

/// A text, texts, tokens, or lists of tokens.
pub(crate) fn prompts(value: &Value, path: &str) -> ApiResult<Vec<Plain>> {
    let wrong = || ApiError::field(path, "a string, strings, token ids or lists of token ids are expected");
    let items = match value {
        Value::String(text) => return Ok(vec![Plain::Text(text.clone())]),
        Value::Array(items) => items,
        _ => return Err(wrong()),
    };
    let tokens = |items: &[Value]| {
        let ids = items.iter().map(|item| item.as_u64().and_then(|id| u32::try_from(id).ok()).map(TokenId));
        ids.collect::<Option<Vec<_>>>().map(Plain::Tokens)
    };
    let all: Option<Vec<Plain>> = match items.first() {
        None => return Err(ApiError::field(path, "is empty")),
        Some(Value::Number(_)) => tokens(items).map(|prompt| vec![prompt]),
        Some(_) => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Some(Plain::Text(text.clone())),
                Value::Array(items) => tokens(items),
                _ => None,
            })
            .collect(),
    };
    all.ok_or_else(wrong)
}
