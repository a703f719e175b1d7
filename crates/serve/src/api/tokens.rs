//! `POST /tokenize` and `POST /detokenize`: the tokens of a text, and the text of tokens. `POST …/input_tokens`: the number of tokens that a
//! request's prompt has.
//!
//! Of these, the OpenAI API has that of responses. The others have the names and answers that clients of llama.cpp and vLLM know.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::blocking::blocking;
use crate::body;
use crate::error::{ApiError, ApiResult};
use crate::metrics::add;
use crate::models::{Model, ModelKind};
use crate::queue::Place;
use crate::response;
use crate::wire;
use crate::wire::tokens::{read_text, read_tokens};
use crate::work;

pub(crate) async fn encode(state: State<App>, request: Request) -> ApiResult<Response> {
    let (place, request) = body::read(&state, request, |value, app| read_text(value, app.limits())).await?;
    answer(&state, place, request.request.model.clone(), move |model| {
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
    })
    .await
}

/// Answers from the tokenizer of a model, on a thread where it may block. The place in the queue is held until then, also if the client has
/// gone.
async fn answer(
    app: &App,
    place: Place,
    model: Option<String>,
    work: impl FnOnce(&Model) -> ApiResult<Value> + Send + 'static,
) -> ApiResult<Response> {
    let answer = async {
        let model = app.model(model, ModelKind::Text).await?;
        let preparing = app.preparing().await;
        let work = move || {
            let answer = work(&model);
            drop((preparing, place));
            answer
        };
        blocking(work).await
    };
    let answer = answer.await.inspect_err(|_| add(&app.metrics().refused, 1))?;
    Ok(response::json(&answer))
}

/// The number of tokens of a chat's prompt.
pub(crate) async fn of_chat(state: State<App>, request: Request) -> ApiResult<Response> {
    let read = |value: &Value, app: &App| Ok(wire::chat::read(value, app.limits())?.0);
    let (place, request) = body::read(&state, request, read).await?;
    count(&state, place, request).await
}

/// The number of tokens of a response's input.
pub(crate) async fn of_response(state: State<App>, request: Request) -> ApiResult<Response> {
    let read = |value: &Value, app: &App| Ok(wire::responses::read(value, app.limits())?.request);
    let (place, request) = body::read(&state, request, read).await?;
    count(&state, place, request).await
}

async fn count(app: &App, place: Place, request: work::Request) -> ApiResult<Response> {
    answer(app, place, request.model.clone(), move |model| {
        let n_tokens = work::tokens(model, &request)?.len();
        Ok(json!({ "object": "response.input_tokens", "input_tokens": n_tokens }))
    })
    .await
}

pub(crate) async fn decode(state: State<App>, request: Request) -> ApiResult<Response> {
    let (place, (id, tokens)) = body::read(&state, request, |value, _| read_tokens(value)).await?;
    answer(&state, place, id, move |model| {
        let vocab_size = model.engine.config().vocab_size;
        if let Some(token) = tokens.iter().find(|token| token.index() >= vocab_size) {
            let message = format!("token {} is outside the vocabulary of {vocab_size} tokens", token.0);
            return Err(ApiError::field("tokens", message));
        }
        let text = model.engine.tokenizer().decode(&tokens);
        Ok(json!({ "content": text, "prompt": text }))
    })
    .await
}
