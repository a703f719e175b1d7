//! The checks of request bodies without a server, for fuzzing: everything between the bytes of a body and the first pass of a model.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::response::IntoResponse as _;
use refrain::{CancelToken, Engine};
use serde_json::Value;

use crate::api::anthropic::read as anthropic;
use crate::api::face::Face;
use crate::api::ollama::read::{self as ollama, Asked, What};
use crate::api::openai::wire;
use crate::body::Given;
use crate::error::ApiResult;
use crate::json::{self, Ignored};
use crate::limits::Limits;
use crate::models::{Loaded, Model, ModelKind, ModelSpec, Models};
use crate::page;
use crate::work::{self, EmbeddingsRequest, Request, prepare};

/// Checks bodies as a server with one model does. The model writes texts and makes vectors.
#[derive(Debug)]
pub struct BodyChecker {
    text: Arc<Model>,
    embedding: Arc<Model>,
    limits: Limits,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("id", &self.id).finish_non_exhaustive()
    }
}

impl BodyChecker {
    /// The endpoints whose bodies can be checked.
    pub const ENDPOINTS: [&'static str; 16] = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/tokenize",
        "/detokenize",
        "/page/ask",
        "/page/edit",
        "/page/forget",
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/infill",
        "/completion",
    ];

    /// A checker with this model and the default limits.
    pub fn new(engine: &Engine) -> Self {
        let load = |kind| {
            let engine = engine.clone();
            let spec = ModelSpec::new("model", move || Ok(Loaded::new(engine.clone()))).with_kind(kind);
            let models = Models::new([spec]).expect("one model has a name of its own");
            models.get(None, kind, std::time::Instant::now()).expect("it is loaded")
        };
        let (text, embedding) = (load(ModelKind::Text), load(ModelKind::Embedding));
        Self { text, embedding, limits: Limits::default() }
    }

    /// Checks a body up to the first pass of the model: the status of its refusal.
    ///
    /// # Panics
    /// `endpoint` is no index of [`ENDPOINTS`](Self::ENDPOINTS).
    pub fn refusal(&self, endpoint: usize, body: &[u8]) -> Option<u16> {
        let path = Self::ENDPOINTS[endpoint];
        let checked = json::read(body, self.limits.json_values).and_then(|value| self.check(path, &value));
        let error = checked.err()?;
        assert!(!error.message.is_empty(), "a refusal without a message");
        let mut response = error.into_response();
        Face::of(path, &HeaderMap::new()).write_refusal(&mut response, "");
        Some(response.status().as_u16())
    }

    fn check(&self, path: &str, value: &Value) -> ApiResult<()> {
        let Self { text, embedding, limits } = self;
        let ignored = Ignored::default();
        let given = Given { value, limits, ignored: &ignored, shape: None };
        let embed = |request: &EmbeddingsRequest| {
            work::embeddings::check(embedding, request, &CancelToken::new()).map(drop)
        };
        match path {
            "/v1/chat/completions" => self.prepare(wire::chat::read(given)?.0),
            "/v1/completions" => self.prepare(wire::completions::read(given)?.0),
            "/infill" => self.prepare(wire::infill::read(given)?.request),
            "/completion" => self.prepare(wire::infill::read_completion(given)?.request),
            "/v1/responses" => self.prepare(wire::responses::read(given, &|_| None)?.request),
            "/v1/embeddings" => embed(&wire::embeddings::read(given)?.0),
            "/tokenize" => work::tokens(text, &wire::tokens::read_text(given)?.request).map(drop),
            "/detokenize" => wire::tokens::read_tokens(given).map(drop),
            "/api/chat" => self.answer(ollama::chat(given)?),
            "/api/generate" => self.answer(ollama::generate(given)?),
            "/api/embed" => ollama::embeddings(given, "input")?.1.iter().try_for_each(embed),
            "/v1/messages" => self.prepare(anthropic::create(given)?.0),
            "/v1/messages/count_tokens" => work::tokens(text, &anthropic::count(given)?).map(drop),
            path => page::check(path, value),
        }
    }

    fn answer(&self, asked: Asked) -> ApiResult<()> {
        match asked.what {
            What::Text(request) => self.prepare(*request),
            What::Load | What::Unload => Ok(()),
        }
    }

    /// The options of every output are made too.
    fn prepare(&self, request: Request) -> ApiResult<()> {
        let cancel = CancelToken::new();
        let prepared = prepare::prepare(Arc::clone(&self.text), request, &cancel)?.constrain(&cancel)?;
        (0..prepared.n_outputs()).for_each(|output| drop(prepared.output(output, &cancel)));
        Ok(())
    }
}
