//! The work of a request: the tokens of its prompt, its turn in the queue, the passes of the model.
//!
//! This is the core that all APIs share, and it knows none of them. An API (`api`) translates its requests into a [`Request`], and the
//! [`Piece`]s of the outputs into its responses, streamed or whole. So a stream and a whole answer cannot differ, and neither can two APIs.

mod auto;
pub(crate) mod combine;
mod drive;
pub(crate) mod embeddings;
mod grammars;
pub(crate) mod kept_grammars;
mod logprobs;
mod piece;
mod prediction;
pub(crate) mod prepare;
mod request;
mod stops;
mod text;
pub(crate) mod tool_format;
pub(crate) mod warm;
mod whole;

use std::sync::Arc;
use std::time::{Duration, Instant};

use refrain::{CancelToken, Sampling};
use tokio::sync::mpsc::{Receiver, Sender, channel};

pub(crate) use embeddings::{EmbeddingsRequest, Vectors, embed};
pub(crate) use logprobs::TokenLogprob;
pub(crate) use piece::{Annotation, Finish, Piece, PromptScores, Usage};
pub(crate) use prepare::{tokens, without_bos};
pub(crate) use refrain::Origin;
pub(crate) use request::{
    Document, Dry, Effort, Format, Function, Gap, Input, Plain, Request, SamplingFields, ToolChoice, Tools,
};
pub(crate) use text::{count, of_tokenizer};
pub(crate) use whole::{Call, Whole};

use crate::app::{App, Registered};
use crate::blocking::{CancelOnDrop, blocking, caught, on_own_thread};
use crate::error::ApiResult;
use crate::metrics::add;
use crate::models::{Model, ModelKind};
use crate::queue::{Permit, Place};

/// A request that waits or computes. Dropping it cancels the computation before its next layer.
pub(crate) struct Running {
    pub(crate) pieces: Receiver<Piece>,
    pub(crate) model: Arc<Model>,
    /// The sampling options, with the model's defaults.
    pub(crate) sampling: Sampling,
    /// Tokens of all prompts.
    pub(crate) n_prompt: usize,
    /// Messages, or files beside a text with a gap, that were left out because the rest fills the context.
    pub(crate) n_left_out: usize,
    /// How long the request waited for its model.
    pub(crate) load_time: Duration,
    _cancelling: CancelOnDrop,
}

/// Pieces that wait for a client. With probabilities each has about 3 kB.
const PENDING_MAX: usize = 32 << 10;
const PENDING_WITH_LOGPROBS_MAX: usize = 4 << 10;

/// Checks a request and starts its work. All refusals come before the first piece.
///
/// A slow client does not hold its place among the requests that compute: its pieces wait in the channel, and a client that leaves too many of
/// them ends its request.
pub(crate) async fn start(app: &App, place: Place, request: Request) -> ApiResult<Running> {
    let cancel = CancelToken::new();
    let cancelling = CancelOnDrop(cancel.clone());
    let registered = app.register(cancel.clone());
    let their_cancel = cancel.clone();
    let since = Instant::now();
    let mut load_time = Duration::ZERO;
    // The place goes along: a client that goes away meanwhile does not make room for another request before this one ends.
    let prepared = async {
        let model = app.model(request.model.clone(), ModelKind::Text).await?;
        load_time = since.elapsed();
        let preparing = app.preparing().await;
        let (cancel, compiling_cancel) = (their_cancel.clone(), their_cancel);
        let prepare = move || {
            let _preparing = preparing;
            Ok((prepare::prepare(model, request, &cancel)?, place))
        };
        let (prepared, place) = blocking(prepare).await?;
        if !prepared.has_grammar() {
            return Ok((prepared, place));
        }
        let kept = move || Ok((prepared.constrain_kept(), place));
        let (prepared, place) = match blocking(kept).await? {
            (Ok(prepared), place) => return Ok((prepared, place)),
            (Err(prepared), place) => (*prepared, place),
        };
        // Requests without a grammar, or with one that is kept, do not wait for others.
        let compiling = app.compiling().await;
        let compile = move || {
            let _compiling = compiling;
            Ok((prepared.constrain(&compiling_cancel)?, place))
        };
        blocking(compile).await
    };
    let (prepared, place) = prepared.await.inspect_err(|_| add(&app.metrics().refused, 1))?;
    add(&app.metrics().requests, 1);
    let pending_max =
        if prepared.request.logprobs.is_some() { PENDING_WITH_LOGPROBS_MAX } else { PENDING_MAX };
    let (sender, pieces) = channel(pending_max);
    let model = Arc::clone(&prepared.model);
    let sampling = prepared.request.sampling.over(&model.sampling);
    let n_prompt = prepared.prompts.iter().map(Vec::len).sum();
    let n_left_out = prepared.n_left_out;
    let work = Work { app: app.clone(), place, registered, prepared, sender, cancel };
    tokio::spawn(work.wait_and_compute());
    Ok(Running { pieces, model, sampling, n_prompt, n_left_out, load_time, _cancelling: cancelling })
}

/// A request between its preparation and its computation.
struct Work {
    app: App,
    place: Place,
    registered: Registered,
    prepared: prepare::Prepared,
    sender: Sender<Piece>,
    cancel: CancelToken,
}

impl Work {
    async fn wait_and_compute(self) {
        let permit = tokio::select! {
            permit = self.place.permit(self.prepared.request.priority) => permit,
            () = self.sender.closed() => {
                add(&self.app.metrics().cancelled, 1);
                return;
            }
        };
        let permit = match permit {
            Ok(permit) => permit,
            Err(error) => {
                add(&self.app.metrics().failed, 1);
                // The channel is empty.
                let _ = self.sender.try_send(Piece::Failed(error));
                return;
            }
        };
        let (app, sender) = (self.app.clone(), self.sender.clone());
        // The threads of the runtime may all be checking other requests.
        if let Err(error) = on_own_thread("refrain-request", move || self.compute(permit)) {
            add(&app.metrics().failed, 1);
            let _ = sender.try_send(Piece::Failed(error));
        }
    }

    fn compute(self, permit: Permit) {
        let Self { app, place, registered, prepared, sender, cancel } = self;
        let driven = caught(|| {
            drive::drive(&app, &prepared, &sender, &cancel);
            Ok(())
        });
        if let Err(error) = driven {
            add(&app.metrics().failed, 1);
            // The receiver may have gone.
            let _ = sender.try_send(Piece::Failed(error));
        }
        drop((permit, place, registered));
    }
}
