//! `POST /v1/embeddings`.

use axum::extract::{Request, State};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use refrain::{CancelToken, SpecialTokens};
use refrain_index::notes::Embedder as _;
use serde_json::{Value, json};

use crate::app::App;
use crate::blocking::{CancelOnDrop, blocking};
use crate::body;
use crate::error::{ApiError, ApiResult};
use crate::metrics::add;
use crate::models::{Model, ModelKind};
use crate::response;
use crate::wire::embeddings::{EmbeddingsRequest, read};
use crate::work::Plain;

/// Tokens of a text with those that the embedder adds. It would cut a longer one without saying so.
const TOKENS_MAX: usize = 1024;

pub(crate) async fn create(state: State<App>, request: Request) -> ApiResult<Response> {
    let (place, request) = body::read(&state, request, |value, app| read(value, app.limits())).await?;
    let State(app) = state;
    // A client that goes away stops the work before its next layer.
    let cancel = CancelToken::new();
    let _cancelling = CancelOnDrop(cancel.clone());
    let registered = app.register(cancel.clone());
    let checked = async {
        let model = app.model(request.model.clone(), ModelKind::Embedding).await?;
        let preparing = app.preparing().await;
        let their_cancel = cancel.clone();
        let check = move || {
            let _preparing = preparing;
            check(&model, &request, &their_cancel).map(|(texts, n_tokens)| (model, request, texts, n_tokens))
        };
        blocking(check).await
    };
    let (model, request, texts, n_tokens) = checked.await.inspect_err(|_| add(&app.metrics().refused, 1))?;
    add(&app.metrics().requests, 1);
    let permit = place.permit(request.priority).await;
    let value = blocking(move || {
        let value = compute(&model, &request, &texts, n_tokens, &cancel);
        drop((permit, place, registered));
        value
    });
    Ok(response::json(&value.await?))
}

/// The texts, and their tokens in all.
pub(crate) fn check(
    model: &Model,
    request: &EmbeddingsRequest,
    cancel: &CancelToken,
) -> ApiResult<(Vec<String>, usize)> {
    let embedder = model.embedder()?;
    let (given, own) = (request.dimensions, embedder.dimensions());
    if given.is_some_and(|given| given != own) {
        return Err(ApiError::unsupported(
            "dimensions",
            format!("the model has {own}, and others are not supported"),
        ));
    }
    let tokenizer = model.engine.tokenizer();
    let n_added = 1 + usize::from(tokenizer.adds_bos() && tokenizer.bos().is_some());
    let max = TOKENS_MAX.min(model.engine.config().context_len).saturating_sub(n_added);
    let mut n_tokens = 0;
    let mut texts = Vec::with_capacity(request.inputs.len());
    for (index, input) in request.inputs.iter().enumerate() {
        if cancel.is_cancelled() {
            return Err(ApiError::stopped());
        }
        let text = match input {
            Plain::Text(text) => text.clone(),
            Plain::Tokens(tokens) => tokenizer.decode(tokens),
        };
        let tokens = tokenizer.encode(&text, SpecialTokens::AsText);
        let tokens = tokens.map_err(|error| ApiError::of_engine(error, "input"))?;
        if matches!(input, Plain::Tokens(given) if *given != tokens) {
            // Another tokenizer's, for example.
            let message =
                format!("the tokens of text {index} are not those of its text in this model; send the text");
            return Err(ApiError::field("input", message));
        }
        if tokens.len() > max {
            let message = format!("text {index} has {} tokens, more than {max}", tokens.len());
            return Err(ApiError::field("input", message).with_code("context_length_exceeded"));
        }
        n_tokens += tokens.len();
        texts.push(text);
    }
    Ok((texts, n_tokens))
}

fn compute(
    model: &Model,
    request: &EmbeddingsRequest,
    texts: &[String],
    n_tokens: usize,
    cancel: &CancelToken,
) -> ApiResult<Value> {
    let embedder = model.embedder()?;
    let mut data = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let turn = model.gate.enter(request.priority, cancel).ok_or_else(ApiError::stopped)?;
        let vector = embedder.embed_text(text, cancel);
        drop(turn);
        let vector = vector.map_err(|_| match cancel.is_cancelled() {
            true => ApiError::stopped(),
            false => ApiError::server("a pass of the model failed"),
        })?;
        let embedding = match request.is_base64 {
            false => json!(vector),
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                STANDARD.encode(bytes).into()
            }
        };
        data.push(json!({ "object": "embedding", "index": index, "embedding": embedding }));
    }
    Ok(json!({
        "object": "list",
        "data": data,
        "model": model.id,
        "usage": { "prompt_tokens": n_tokens, "total_tokens": n_tokens },
    }))
}
