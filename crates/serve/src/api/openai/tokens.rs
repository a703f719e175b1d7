//! `POST /tokenize` and `POST /detokenize`: the tokens of a text, and the text of tokens. `POST …/input_tokens`: the number of tokens that a
//! request's prompt has.
//!
//! Of these, the OpenAI API has that of responses. The others have the names and answers that clients of llama.cpp and vLLM know.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::wire;
use super::wire::tokens::{read_text, read_tokens};
use crate::app::App;
use crate::body::{self, Given};
use crate::error::{ApiError, ApiResult};
use crate::queue::Place;
use crate::response;
use crate::work;

pub(crate) async fn encode(state: State<App>, request: Request) -> ApiResult<Response> {
    let (place, request) = body::read(&state, request, read_text).await?;
    let answer = work::of_tokenizer(&state, place, request.request.model.clone(), move |model| {
        let tokens = work::tokens(model, &request.request)?;
        let tokens = match request.adds_bos {
            true => &*tokens,
            false => work::without_bos(model, &tokens),
        };
        let tokenizer = model.engine.tokenizer();
        // A piece that is no text by itself is shown by its bytes.
        let piece = |token| {
            let bytes = tokenizer.token_bytes(token).unwrap_or_default();
            std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text))
        };
        let ids: Vec<Value> = match request.has_pieces {
            true => tokens.iter().map(|&id| json!({ "id": id.0, "piece": piece(id) })).collect(),
            false => tokens.iter().map(|id| id.0.into()).collect(),
        };
        let texts = request.has_texts.then(|| {
            let text = |&id| String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default());
            tokens.iter().map(text).collect::<Vec<_>>()
        });
        Ok(json!({
            "tokens": ids,
            "count": tokens.len(),
            "max_model_len": model.context_len(),
            "token_strs": texts,
        }))
    });
    Ok(response::json(&answer.await?))
}

/// The number of tokens of a chat's prompt.
pub(crate) async fn of_chat(state: State<App>, request: Request) -> ApiResult<Response> {
    let read = |given: Given<'_>| Ok(wire::chat::read(given)?.0);
    let (place, request) = body::read(&state, request, read).await?;
    count(&state, place, request).await
}

/// The number of tokens of a response's input.
pub(crate) async fn of_response(state: State<App>, request: Request) -> ApiResult<Response> {
    let theirs = state.0.clone();
    let read = move |given: Given<'_>| {
        let find = |id: &str| theirs.responses().find(id).map(|stored| stored.items.clone());
        Ok(wire::responses::read(given, &find)?.request)
    };
    let (place, request) = body::read(&state, request, read).await?;
    count(&state, place, request).await
}

async fn count(app: &App, place: Place, request: work::Request) -> ApiResult<Response> {
    let n_tokens = work::count(app, place, request).await?;
    Ok(response::json(&json!({ "object": "response.input_tokens", "input_tokens": n_tokens })))
}

pub(crate) async fn decode(state: State<App>, request: Request) -> ApiResult<Response> {
    let (place, (id, tokens)) = body::read(&state, request, read_tokens).await?;
    let answer = work::of_tokenizer(&state, place, id, move |model| {
        let vocab_size = model.engine.config().vocab_size;
        if let Some(token) = tokens.iter().find(|token| token.index() >= vocab_size) {
            let message = format!("token {} is outside the vocabulary of {vocab_size} tokens", token.0);
            return Err(ApiError::field("tokens", message));
        }
        let text = model.engine.tokenizer().decode(&tokens);
        Ok(json!({ "content": text, "prompt": text }))
    });
    Ok(response::json(&answer.await?))
}
