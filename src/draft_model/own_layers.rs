//! Drafting with the target's own first layers and an early exit: a draft model without weights of its own.
//!
//! ```text
//! node      token ─► layers 0..n, pinned ─┬─► predictor: likely successors
//!                                         └─► residual stream, kept
//! target    rows of the nodes ─► keys and values copied, residual streams joined before layer n ─► layers n.., streamed
//! ```
//!
//! A node of the tree is computed as the target computes its row: with the same layers, the same text before it and the same type of
//! keys and values. A row's arithmetic does not depend on the other rows of its pass, so the kept rows have the bits that the
//! verification would compute, which goes on behind these layers ([`KeptRows`]). The text's keys and values are copied from the
//! target's cache.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use super::DraftModel;
use super::drafter::Drafter;
use super::kv_tree::{KvTree, ROOT};
use crate::draft::{CostProfile, DraftTree};
use crate::error::of_pack;
use crate::kernels::Instant;
use crate::kernels::PackError;
use crate::model::kv_cache::{KvCache, KvCacheError};
use crate::model::transformer::{Compute, ForwardError, Part};
use crate::model::{KeptRows, Model, ModelConfig, VariedTokens, Workspace};
use crate::pruning::{ExitHead, Predictor, PredictorError, PredictorScratch};
use refrain_files::{ErrorKind, Facts, Fault};
use refrain_trees::TokenId;

/// The target cannot draft with its own first layers.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SelfDraftError {
    /// The predictor is that of another model.
    #[error(transparent)]
    Predictor(#[from] PredictorError),
    /// The exit, or rows of the embedding, could not be allocated.
    #[error("memory for drafting: {0}")]
    Pack(#[from] PackError),
    /// The target is in memory: nothing waits for a disk while the first layers draft.
    #[error("the model is not streamed; its own layers draft while the others are read from flash")]
    NotStreamed,
    /// A layer before the predictor's is read from flash.
    #[error(
        "layer {layer_idx} is read from flash, but the predictor stands before layer {n_layers}: pin that many layers first \
         (`StreamOptions::pinned_first`), or train a predictor for fewer"
    )]
    NotPinned {
        /// The first layer that is not pinned.
        layer_idx: usize,
        /// The predictor's layer.
        n_layers: usize,
    },
    /// The measurement of the passes failed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The memory of the measurement could not be allocated.
    #[error(transparent)]
    KvCache(#[from] KvCacheError),
    /// Rows of this model are more than a residual stream, keys and values.
    #[error("{parts} of this model cannot be kept from a draft for its verification")]
    Unsupported {
        /// The parts.
        parts: &'static str,
    },
}

impl Fault for SelfDraftError {
    fn facts(&self) -> Facts<'_> {
        let unsupported = Facts::new(ErrorKind::Unsupported);
        match self {
            Self::Predictor(error) => error.facts(),
            Self::Pack(error) => of_pack(error),
            Self::NotStreamed | Self::Unsupported { .. } => unsupported,
            Self::NotPinned { n_layers, .. } => {
                Facts::new(ErrorKind::InvalidArgument).field("pinned_first").limit(*n_layers)
            }
            Self::Forward(error) => error.facts(),
            Self::KvCache(error) => error.facts(),
        }
    }
}

/// The name of the draft source.
pub(super) const OWN_SOURCE: &str = "self_draft";

/// The first layers of a streamed target, and an exit behind them.
pub(super) struct OwnLayers {
    target: Arc<Model>,
    /// That of the target, with these layers only.
    config: ModelConfig,
    exit: ExitHead,
}

impl OwnLayers {
    pub(super) fn new(target: &Arc<Model>, predictor: Predictor) -> Result<Self, SelfDraftError> {
        predictor.check_model(target)?;
        let streamed = target.streamed().ok_or(SelfDraftError::NotStreamed)?;
        let n_layers = predictor.layer_idx();
        if let Some(layer_idx) = (0..n_layers).find(|&layer_idx| !streamed.pins(layer_idx)) {
            return Err(SelfDraftError::NotPinned { layer_idx, n_layers });
        }
        let config = target.config();
        let unsupported = [
            (config.is_recurrent(), "recurrent layers"),
            (config.streams.is_some(), "residual streams"),
            (config.per_layer.is_some(), "layers' own inputs"),
            (streamed.reads_experts(), "experts that are read on request"),
        ];
        if let Some((_, parts)) = unsupported.into_iter().find(|(is_there, _)| *is_there) {
            return Err(SelfDraftError::Unsupported { parts });
        }
        let config = ModelConfig { layers: config.layers[..n_layers].to_vec(), ..config.clone() };
        Ok(Self { target: Arc::clone(target), config, exit: ExitHead::new(predictor)? })
    }

    pub(super) fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub(super) fn memory_usage(&self) -> usize {
        self.exit.memory_usage()
    }

    /// Whether the layers are in memory now.
    pub(super) fn are_there(&self) -> bool {
        self.target.has_first_layers(self.config.n_layers())
    }

    pub(super) fn forward(&self, compute: Compute<'_>, part: Part<'_>) -> Result<(), ForwardError> {
        self.target.forward_first(compute, self.config.n_layers(), part)
    }

    /// The exit's scores of all tokens behind the rows from `first` on of the newest pass, `[n, vocab_size]`.
    pub(super) fn logits(
        &self,
        compute: Compute<'_>,
        workspace: &Workspace,
        first: usize,
        scratch: &mut PredictorScratch,
        out: &mut Vec<f32>,
    ) {
        let hidden = &workspace.hidden_rows()[first * self.config.hidden_dim..];
        self.exit.scores(compute, hidden, scratch, out);
    }
}

/// Rows of the measured passes.
const COST_ROWS: [usize; 3] = [1, 8, 32];

/// Measures the passes of a draft model of own layers, exit included: the best of three each, after one that touches the memory.
pub(super) fn measure(model: &Arc<DraftModel>) -> Result<CostProfile, SelfDraftError> {
    let n_rows_max = COST_ROWS.into_iter().max().unwrap_or(1);
    let mut tree = KvTree::new(Arc::clone(model), n_rows_max, 1, n_rows_max)?;
    let mut tokens = VariedTokens::new(model.config().vocab_size);
    let mut measured = Vec::new();
    for n_rows in COST_ROWS {
        let mut best = f32::INFINITY;
        for _ in 0..4 {
            tree.truncate(0);
            tree.follow(&tokens.draw(1));
            tree.compute_root()?;
            let nodes: Vec<(u32, TokenId)> =
                tokens.draw(n_rows).into_iter().map(|token| (ROOT, token)).collect();
            let start = Instant::now();
            tree.compute(&nodes)?;
            best = best.min(start.elapsed().as_secs_f32() * 1e6);
        }
        measured.push((n_rows, best));
    }
    Ok(CostProfile::from_measurements(&measured))
}

/// Rows that one session's target has in common with the draft source of its own layers.
pub(crate) struct OwnRows {
    drafter: Arc<Mutex<Drafter>>,
    /// Numbers of the kept rows of the newest verification batch.
    rows: Vec<u32>,
    /// `[rows.len(), hidden_dim]`
    hidden: Vec<f32>,
}

impl OwnRows {
    pub(super) fn new(drafter: &Arc<Mutex<Drafter>>) -> Self {
        Self { drafter: Arc::clone(drafter), rows: Vec::new(), hidden: Vec::new() }
    }

    /// The state of the draft source, which it shares with this value.
    pub(super) fn drafter(&self) -> &Arc<Mutex<Drafter>> {
        &self.drafter
    }

    fn lock(&self) -> MutexGuard<'_, Drafter> {
        lock(&self.drafter)
    }

    /// Copies keys and values of the committed text from the target's cache, so that the source does not compute them.
    pub(crate) fn read_text(&mut self, committed: &[TokenId], kv: &KvCache) {
        self.lock().copy_text(committed, kv);
    }

    /// Copies the keys and values of the rows of `tree` that were drafted with the target's own layers to the slots of its batch behind
    /// the committed prefix of `kv`. Returns these rows; `None` if there are none.
    pub(crate) fn hand_over(
        &mut self,
        committed: &[TokenId],
        tree: &DraftTree,
        kv: &mut KvCache,
    ) -> Option<KeptRows<'_>> {
        let Self { drafter, rows, hidden } = self;
        rows.clear();
        hidden.clear();
        let layer_idx = lock(drafter).hand_over(committed, tree, kv, rows, hidden)?;
        (!rows.is_empty()).then_some(KeptRows { layer_idx, rows, hidden })
    }

    /// That of a fork of the session.
    pub(crate) fn fork(&self) -> Self {
        Self::new(&Arc::new(Mutex::new(self.lock().clone())))
    }
}

pub(super) fn lock(drafter: &Mutex<Drafter>) -> MutexGuard<'_, Drafter> {
    // After a panic, the session resets its sources before the next call.
    drafter.lock().unwrap_or_else(PoisonError::into_inner)
}
