//! `POST /tokenize` and `POST /detokenize`.

use refrain::TokenId;
use serde_json::Value;

use super::chat::messages;
use super::common;
use super::completions::prompts;
use crate::body::Given;
use crate::error::{ApiError, ApiResult};
use crate::work::{Input, Plain, Request};

/// A request for the tokens of a text or a conversation.
pub(crate) struct TextRequest {
    pub(crate) request: Request,
    /// Whether the token that begins a text is added, for models that have one.
    pub(crate) adds_bos: bool,
    /// Whether each token has its text beside it.
    pub(crate) has_pieces: bool,
    /// Whether the texts of the tokens follow.
    pub(crate) has_texts: bool,
}

pub(crate) fn read_text(given: Given<'_>) -> ApiResult<TextRequest> {
    let (mut fields, limits) = (given.fields()?, given.limits);
    let model = common::model(&mut fields)?;
    let (prompt, content) = (fields.string("prompt")?, fields.string("content")?);
    let conversation = match fields.value("messages") {
        None => None,
        Some(_) => Some(messages(&mut fields, limits)?),
    };
    let is_content = content.is_some();
    let (input, param) = match (prompt, content, conversation) {
        (Some(text), None, None) => (Input::Plain(vec![Plain::Text(text.to_owned())]), "prompt"),
        (None, Some(text), None) => (Input::Plain(vec![Plain::Text(text.to_owned())]), "content"),
        (None, None, Some(messages)) => (Input::Chat(messages), "messages"),
        (None, None, None) => {
            let error = ApiError::field("prompt", "one of `prompt`, `content` and `messages` is required");
            return Err(error.with_code("missing_required_parameter"));
        }
        _ => {
            return Err(ApiError::field(
                "prompt",
                "only one of `prompt`, `content` and `messages` is expected",
            ));
        }
    };
    // llama.cpp adds it if `add_special` asks for it, vLLM unless `add_special_tokens` is false.
    let adds_bos = match fields.bool("add_special")? {
        Some(adds) => adds,
        None => fields.bool("add_special_tokens")?.unwrap_or(!is_content),
    };
    let has_pieces = fields.bool("with_pieces")?.unwrap_or(false);
    let has_texts = fields.bool("return_token_strs")?.unwrap_or(false);
    fields.refuse_unless("add_generation_prompt", |value| value == true, "only `true` is supported")?;
    fields.refuse_unless("parse_special", |value| value == false, "texts have no control tokens here")?;
    fields.finish()?;
    Ok(TextRequest { request: Request::of_input(model, input, param), adds_bos, has_pieces, has_texts })
}

pub(crate) fn read_tokens(given: Given<'_>) -> ApiResult<(Option<String>, Vec<TokenId>)> {
    let mut fields = given.fields()?;
    let model = common::model(&mut fields)?;
    let given = fields.required("tokens")?;
    let tokens = match given {
        Value::Array(items) if items.is_empty() => Vec::new(),
        given => match prompts(given, "tokens")?.pop() {
            Some(Plain::Tokens(tokens)) if given.get(0).is_some_and(Value::is_number) => tokens,
            _ => return Err(ApiError::field("tokens", "token ids are expected")),
        },
    };
    fields.finish()?;
    Ok((model, tokens))
}
