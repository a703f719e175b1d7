//! The checks of request bodies without a server, for fuzzing: everything between the bytes of a body and the first pass of a model.

use std::sync::Arc;

use refrain::{CancelToken, Engine};
use serde_json::Value;

use crate::error::ApiResult;
use crate::limits::Limits;
use crate::models::{Loaded, Model, ModelKind, ModelSpec, Models};
use crate::wire::{self, json};
use crate::work::{self, Request, prepare};
use crate::{api, page};

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
    pub const ENDPOINTS: [&'static str; 9] = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/tokenize",
        "/detokenize",
        "/page/ask",
        "/page/edit",
        "/page/forget",
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
        Some(error.status.as_u16())
    }

    fn check(&self, path: &str, value: &Value) -> ApiResult<()> {
        let Self { text, embedding, limits } = self;
        match path {
            "/v1/chat/completions" => self.prepare(wire::chat::read(value, limits)?.0),
            "/v1/completions" => self.prepare(wire::completions::read(value, limits)?.0),
            "/v1/responses" => self.prepare(wire::responses::read(value, limits)?.request),
            "/v1/embeddings" => {
                let request = wire::embeddings::read(value, limits)?;
                api::check_embeddings(embedding, &request, &CancelToken::new()).map(drop)
            }
            "/tokenize" => work::tokens(text, &wire::tokens::read_text(value, limits)?.request).map(drop),
            "/detokenize" => wire::tokens::read_tokens(value).map(drop),
            path => page::check(path, value),
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
