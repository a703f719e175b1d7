//! Vectors of texts.

use std::time::{Duration, Instant};

use refrain::{CancelToken, SpecialTokens};
use refrain_assistant::Priority;
use refrain_index::notes::Embedder as _;

use super::request::Plain;
use crate::app::App;
use crate::blocking::{CancelOnDrop, blocking};
use crate::error::{ApiError, ApiResult};
use crate::metrics::add;
use crate::models::{Model, ModelKind};
use crate::queue::Place;

/// Tokens of a text with those that the embedder adds. It would cut a longer one without saying so.
const TOKENS_MAX: usize = 1024;

/// A request for vectors.
#[derive(Debug)]
pub(crate) struct EmbeddingsRequest {
    /// `None`: the first embedding model.
    pub(crate) model: Option<String>,
    pub(crate) inputs: Vec<Plain>,
    pub(crate) dimensions: Option<usize>,
    /// Whether a text that is too long is cut at its end, in place of a refusal.
    pub(crate) truncates: bool,
    pub(crate) priority: Priority,
}

/// The vectors of a request.
#[derive(Debug)]
pub(crate) struct Vectors {
    pub(crate) model: String,
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) n_tokens: usize,
    /// How long the request waited for its model.
    pub(crate) load_time: Duration,
}

/// Computes vectors. A client that goes away stops the work before its next layer.
pub(crate) async fn embed(app: &App, place: Place, request: EmbeddingsRequest) -> ApiResult<Vectors> {
    let cancel = CancelToken::new();
    let _cancelling = CancelOnDrop(cancel.clone());
    let registered = app.register(cancel.clone());
    let priority = request.priority;
    let since = Instant::now();
    let checked = async {
        let model = app.model(request.model.clone(), ModelKind::Embedding).await?;
        let load_time = since.elapsed();
        let preparing = app.preparing().await;
        let their_cancel = cancel.clone();
        let check = move || {
            let _preparing = preparing;
            let (texts, n_tokens) = check(&model, &request, &their_cancel)?;
            Ok((model, texts, n_tokens, load_time))
        };
        blocking(check).await
    };
    let (model, texts, n_tokens, load_time) =
        checked.await.inspect_err(|_| add(&app.metrics().refused, 1))?;
    add(&app.metrics().requests, 1);
    let permit = place.permit(priority).await.inspect_err(|_| add(&app.metrics().failed, 1))?;
    let compute = move || {
        let vectors = compute(&model, priority, &texts, &cancel);
        drop((permit, place, registered));
        Ok(Vectors { model: model.id.clone(), vectors: vectors?, n_tokens, load_time })
    };
    blocking(compute).await
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
    let max = TOKENS_MAX.min(model.engine.config().context_len()).saturating_sub(n_added);
    let encode = |text: &str| {
        tokenizer.encode(text, SpecialTokens::AsText).map_err(|error| ApiError::of_engine(error, "input"))
    };
    let mut n_tokens = 0;
    let mut texts = Vec::with_capacity(request.inputs.len());
    for (index, input) in request.inputs.iter().enumerate() {
        if cancel.is_cancelled() {
            return Err(ApiError::stopped());
        }
        let mut text = match input {
            Plain::Text(text) => text.clone(),
            Plain::Tokens(tokens) => tokenizer.decode(tokens),
        };
        let mut tokens = encode(&text)?;
        if matches!(input, Plain::Tokens(given) if *given != tokens) {
            // Another tokenizer's, for example.
            let message =
                format!("the tokens of text {index} are not those of its text in this model; send the text");
            return Err(ApiError::field("input", message));
        }
        // The encoding of a part may have more tokens than the part of the encoding.
        let mut keep = max;
        while request.truncates && tokens.len() > max && keep > 0 {
            text = tokenizer.decode(&tokens[..keep]);
            tokens = encode(&text)?;
            keep = keep.min(tokens.len()) - 1;
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
    priority: Priority,
    texts: &[String],
    cancel: &CancelToken,
) -> ApiResult<Vec<Vec<f32>>> {
    let embedder = model.embedder()?;
    let vector = |text: &String| {
        let turn = model.gate.enter(priority, cancel).ok_or_else(ApiError::stopped)?;
        let vector = embedder.embed_text(text, cancel);
        drop(turn);
        vector.map_err(|_| match cancel.is_cancelled() {
            true => ApiError::stopped(),
            false => ApiError::server("a pass of the model failed"),
        })
    };
    texts.iter().map(vector).collect()
}
