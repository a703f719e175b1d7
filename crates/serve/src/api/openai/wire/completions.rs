//! `POST /v1/completions`.

use refrain::TokenId;
use serde_json::Value;

use super::chat::{Delivery, delivery};
use super::common;
use crate::api::shared::KEY_BYTES_MAX;
use crate::body::Given;
use crate::error::{ApiError, ApiResult};
use crate::json::fields::is_empty;
use crate::work::{Format, Gap, Input, Plain, Request};

/// Reads a request. The flag: whether the outputs begin with their prompts.
pub(crate) fn read(given: Given<'_>) -> ApiResult<(Request, Delivery, bool)> {
    let (mut fields, limits) = (given.fields()?, given.limits);
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
    let scores_prompts = echoes && logprobs.is_some();
    if echoes && !scores_prompts && prompts.iter().any(|prompt| matches!(prompt, Plain::Tokens(_))) {
        return Err(ApiError::unsupported("echo", "needs `logprobs` for prompts of tokens"));
    }
    if let Some(best_of) = fields.integer("best_of", 1..=20)?
        && best_of as usize != n
    {
        return Err(ApiError::unsupported("best_of", "other values than `n` are not supported"));
    }
    let input = match fields.string("suffix")?.filter(|after| !after.is_empty()) {
        None => Input::Plain(prompts),
        Some(_) if echoes => {
            return Err(ApiError::unsupported("echo", "is not supported together with `suffix`"));
        }
        Some(after) => {
            let gap = |prompt| match prompt {
                Plain::Text(before) => Ok(Gap::new(before, after, "suffix")),
                Plain::Tokens(_) => Err(ApiError::unsupported("suffix", "needs prompts of text")),
            };
            Input::Gaps(prompts.into_iter().map(gap).collect::<ApiResult<_>>()?)
        }
    };
    let delivery = delivery(&mut fields)?;
    let max_tokens = match fields.value("max_tokens") {
        // The default of this endpoint.
        None => Some(16),
        Some(_) => fields.limit("max_tokens")?,
    };
    let request = Request {
        n,
        sampling: common::sampling(&mut fields)?,
        max_tokens,
        stop: common::stop(&mut fields)?,
        logprobs,
        scores_prompts,
        format: common::grammar(&mut fields, Format::Text)?,
        cache_key: fields.key("prompt_cache_key", KEY_BYTES_MAX)?.map(str::to_owned),
        priority: common::priority(&mut fields)?,
        ..Request::of_input(model, input, "prompt")
    };
    for name in ["messages", "tools", "response_format"] {
        fields.refuse(name, "use `/v1/chat/completions`")?;
    }
    fields.refuse_unless("documents", is_empty, "use `/v1/chat/completions`")?;
    common::refuse_unsupported_but(&mut fields, &[common::GRAMMAR])?;
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
