//! The work of a request: the tokens of its prompt, its turn in the queue, the passes of the model.
//!
//! Endpoints translate their requests into a [`Request`] and the [`Piece`]s of its outputs into their responses, streamed or whole. So a
//! stream and a whole answer cannot differ.

mod auto;
mod calls;
mod drive;
mod grammars;
mod logprobs;
mod prediction;
mod prepare;
mod request;
mod warm;

use std::sync::Arc;

use refrain::{CancelToken, Sampling};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

pub(crate) use calls::CallFormat;
pub(crate) use grammars::Grammars;
pub(crate) use logprobs::TokenLogprob;
pub(crate) use refrain::Origin;
pub(crate) use request::{
    Document, Format, Function, Input, Plain, Request, SamplingFields, ToolChoice, Tools,
};
pub(crate) use warm::Warm;

use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::metrics::add;
use crate::models::{Model, ModelKind};
use crate::queue::Place;

/// A part of the outputs, in order. `choice` is the index of the output.
#[derive(Debug, Clone)]
pub(crate) enum Piece {
    /// Tokens of the prompt that are computed, and all of them.
    Prefill { done: usize, total: usize, cached: usize },
    /// Reasoning before the answer.
    Reasoning { choice: usize, text: String, origin: Origin },
    /// Text of the answer with the probabilities of its tokens, if they were asked for. The text may be empty if they are not.
    Text { choice: usize, text: String, logprobs: Vec<TokenLogprob>, origin: Origin },
    /// A call of a tool begins.
    Call { choice: usize, call: usize, id: String, name: String },
    /// Text of the call's arguments.
    Arguments { choice: usize, call: usize, text: String },
    /// An output has ended.
    End { choice: usize, finish: Finish, annotations: Vec<Annotation> },
    /// All outputs have ended; nothing follows.
    Done(Usage),
    /// The request has failed; nothing follows.
    Failed(ApiError),
}

/// Why an output has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

impl Finish {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// A span of an answer that stands in a document. Places of the answer are in characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Annotation {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) document: usize,
    pub(crate) title: String,
    pub(crate) url: String,
    /// Bytes in the document's text.
    pub(crate) place: std::ops::Range<usize>,
    pub(crate) is_exact: bool,
}

/// Token counts of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) output: usize,
    pub(crate) reasoning: usize,
    pub(crate) accepted_prediction: usize,
    pub(crate) rejected_prediction: usize,
}

/// A request that waits or computes. Dropping it cancels the computation before its next layer.
pub(crate) struct Running {
    pub(crate) pieces: UnboundedReceiver<Piece>,
    pub(crate) model: Arc<Model>,
    /// The sampling options, with the model's defaults.
    pub(crate) sampling: Sampling,
    _cancelling: CancelOnDrop,
}

struct CancelOnDrop(CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs `work` on a thread where it may block.
///
/// # Errors
/// Its own, or status 500 if it panics.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|_| Err(ApiError::server("a bug in this server")))
}

/// Checks a request and starts its work. All refusals come before the first piece.
///
/// The channel of pieces is not bounded by itself, so a slow client does not hold its place among the requests that compute: the pieces
/// are bounded by the tokens of the outputs.
pub(crate) async fn start(app: &App, place: Place, request: Request) -> ApiResult<Running> {
    let models = app.clone();
    // The place goes along: a client that goes away meanwhile does not make room for another request before this one ends.
    let prepared = blocking(move || {
        let model = models.models().get(request.model.as_deref(), ModelKind::Text)?;
        Ok((prepare::prepare(model, request)?, place))
    });
    let (prepared, place) = prepared.await?;
    add(&app.metrics().requests, 1);
    let (sender, pieces) = unbounded_channel();
    let cancel = CancelToken::new();
    let model = Arc::clone(&prepared.model);
    let sampling = prepared.request.sampling.over(&model.sampling);
    tokio::spawn(compute(app.clone(), place, prepared, sender, cancel.clone()));
    Ok(Running { pieces, model, sampling, _cancelling: CancelOnDrop(cancel) })
}

async fn compute(
    app: App,
    place: Place,
    prepared: prepare::Prepared,
    sender: UnboundedSender<Piece>,
    cancel: CancelToken,
) {
    let registered = app.register(cancel.clone());
    let permit = tokio::select! {
        permit = place.permit(prepared.request.priority) => permit,
        () = sender.closed() => {
            add(&app.metrics().cancelled, 1);
            return;
        }
    };
    let (their_app, their_sender) = (app.clone(), sender.clone());
    let driven = tokio::task::spawn_blocking(move || {
        drive::drive(&their_app, &prepared, &their_sender, &cancel);
        drop((permit, place, registered));
    });
    if driven.await.is_err() {
        add(&app.metrics().failed, 1);
        // The receiver may have gone.
        let _ = sender.send(Piece::Failed(ApiError::server("a bug in this server")));
    }
}
