//! `POST /v1/embeddings`.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use refrain::{CancelToken, SpecialTokens};
use refrain_assistant::Priority;
use refrain_index::notes::Embedder;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::metrics::add;
use crate::models::ModelKind;
use crate::wire::embeddings::{EmbeddingsRequest, read};
use crate::work::{Plain, blocking};

/// Tokens of a text: the embedder would cut a longer one without saying so. One place is for the end token.
const TOKENS_MAX: usize = 1023;

pub(crate) async fn create(state: State<App>, request: Request) -> ApiResult<Response> {
    let (place, request) = super::read(&state, request, |value, app| read(value, app.limits())).await?;
    let State(app) = state;
    let permit = place.permit(Priority::Interactive).await;
    // A client that goes away stops the work between two texts.
    let cancel = CancelToken::new();
    let _cancelling = CancelOnDrop(cancel.clone());
    let registered = app.register(cancel.clone());
    let their_app = app.clone();
    let value = blocking(move || {
        let value = compute(&their_app, &request, &cancel);
        drop((permit, place, registered));
        value
    });
    Ok(super::json(StatusCode::OK, &value.await?))
}

struct CancelOnDrop(CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

fn compute(app: &App, request: &EmbeddingsRequest, cancel: &CancelToken) -> ApiResult<Value> {
    let model = app.models().get(request.model.as_deref(), ModelKind::Embedding)?;
    let embedder = model.embedder()?;
    let (given, own) = (request.dimensions, embedder.dimensions());
    if given.is_some_and(|given| given != own) {
        return Err(ApiError::unsupported(
            "dimensions",
            format!("the model has {own}, and others are not supported"),
        ));
    }
    let tokenizer = model.engine.tokenizer();
    let max = TOKENS_MAX.min(model.engine.config().context_len.saturating_sub(1));
    let mut n_tokens = 0;
    let mut texts = Vec::with_capacity(request.inputs.len());
    for (index, input) in request.inputs.iter().enumerate() {
        let text = match input {
            Plain::Text(text) => text.clone(),
            // The text of tokens, which are encoded again.
            Plain::Tokens(tokens) => tokenizer.decode(tokens),
        };
        let tokens = tokenizer.encode(&text, SpecialTokens::AsText);
        let given = tokens.map_err(|error| ApiError::of_tokenizer(&error, "input"))?.len();
        if given > max {
            let message = format!("text {index} has {given} tokens, more than {max}");
            return Err(ApiError::field("input", message).with_code("context_length_exceeded"));
        }
        n_tokens += given;
        texts.push(text);
    }
    add(&app.metrics().requests, 1);
    let mut data = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let turn = model.gate.enter(Priority::Interactive, cancel).ok_or_else(ApiError::stopped)?;
        let vectors = embedder.embed(&[text]);
        drop(turn);
        let vector = vectors.ok().and_then(|mut vectors| vectors.pop());
        let vector = vector.ok_or_else(|| ApiError::server("a pass of the model failed"))?;
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
