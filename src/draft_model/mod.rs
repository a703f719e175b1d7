//! Drafting with a smaller model of the same vocabulary.
//!
//! ```text
//! DraftModel (weights, shared) ◄── KvTree (one session's keys and values: text, and the nodes computed after it)
//!                                    ▲                ▲
//!                     DraftModelSource (cursors)   published rules (crate `refrain-bench`)
//! ```
//!
//! - [`DraftModel`] is a checkpoint with the target's [vocabulary](VocabularyMismatch), or a head, which
//!   reads the target's hidden states ([`ModelConfig::draft_head`]).
//! - Of a streamed target, the first layers, which are pinned, can be the draft model, with an early exit. Their rows are
//!   the first part of the verification.
//! - The source competes in the tree builder with the sources that look up. The cost of a pass is measured,
//!   and the builder runs a pass if it pays (Lever, arXiv 2605.16786, eqs. 4 and 6).
//! - [`Drafter`] and [`KvTree`] are also the building blocks of published methods with a draft model, for
//!   comparison.
//!
//! The probabilities of a node are a function of the text and its path, bit for bit. The set of computed
//! nodes depends on measured times, like the size of a tree. The draft model never changes the output. After
//! an error it stops drafting and reports the reason ([`Computed::off`](crate::draft::Computed::off)).

mod drafter;
#[cfg(test)]
mod head_tests;
mod hidden_rows;
mod kv_tree;
mod measure;
mod own_layers;
mod own_rows;
mod source;
#[cfg(test)]
mod tests;
pub(crate) mod vocabulary;

use std::sync::{Arc, Mutex, PoisonError};

use crate::draft::{CostProfile, HiddenStates};
use crate::kernels::{Kernels, Pool};
use crate::model::config::DraftHead;
use crate::model::transformer::{Compute, ForwardError, Part, PassEnd};
use crate::model::{Hooks, Model, ModelConfig, Workspace};
use crate::pruning::PredictorScratch;
use refrain_trees::TokenId;

pub use drafter::Drafter;
pub use kv_tree::{KvTree, Likely, ROOT};
use own_layers::OwnLayers;
pub use own_layers::SelfDraftError;
pub(crate) use own_rows::OwnRows;
pub(crate) use source::DraftModelSource;
pub use vocabulary::VocabularyMismatch;

/// A loaded draft model: immutable except for the measured costs of its passes, and shared by sessions.
pub struct DraftModel {
    name: String,
    weights: Weights,
    kernels: Kernels,
    pool: Arc<Pool>,
    /// Cost of a pass by its rows, corrected after each pass.
    costs: Mutex<CostProfile>,
    /// What a head reads of its target.
    reads: Option<HiddenStates>,
    /// The tokens of its vocabulary, `[n_logits]`; `None` if they are those of the target.
    tokens: Option<Arc<[TokenId]>>,
}

/// The weights that a draft model computes with.
enum Weights {
    Own(Box<Model>),
    /// Those of the target.
    Target(Box<OwnLayers>),
}

impl DraftModel {
    pub(crate) fn new(
        name: &str,
        model: Model,
        kernels: Kernels,
        pool: Arc<Pool>,
        costs: CostProfile,
    ) -> Self {
        let reads = matches!(model.config().draft_head, Some(DraftHead::Mtp)).then_some(HiddenStates::Final);
        let weights = Weights::Own(Box::new(model));
        Self { name: name.to_owned(), weights, kernels, pool, costs: Mutex::new(costs), reads, tokens: None }
    }

    /// The EAGLE-3 head, which reads the residual streams before the layers `taps` and drafts `tokens`.
    pub(crate) fn eagle3(self, taps: [usize; 3], tokens: Option<Arc<[TokenId]>>) -> Self {
        Self { reads: Some(HiddenStates::Before(taps)), tokens, ..self }
    }

    /// The layers of the target, if the draft model has none of its own.
    fn own_layers(&self) -> Option<&OwnLayers> {
        match &self.weights {
            Weights::Own(_) => None,
            Weights::Target(layers) => Some(layers),
        }
    }

    /// Whether passes are possible now: layers of the target may have been released.
    fn is_there(&self) -> bool {
        self.own_layers().is_none_or(OwnLayers::are_there)
    }

    /// The name of its draft source.
    fn source_name(&self) -> &'static str {
        if self.own_layers().is_some() { own_layers::OWN_SOURCE } else { "draft_model" }
    }

    /// Runs a batch. Of the target's layers, the workspace then has the residual streams behind the last of them.
    ///
    /// # Errors
    /// [`ForwardError`]; nothing is committed.
    fn forward(&self, part: Part<'_>, end: PassEnd) -> Result<(), ForwardError> {
        match &self.weights {
            Weights::Own(model) => model.forward_through(self.compute(), part, end, Hooks::default()),
            Weights::Target(layers) => layers.forward(self.compute(), part),
        }
    }

    /// The logits of the last `n` of `n_rows` rows of the newest pass, `[n, vocab_size]`.
    ///
    /// # Errors
    /// [`ForwardError`].
    fn logits(
        &self,
        workspace: &mut Workspace,
        scratch: &mut PredictorScratch,
        (n, n_rows): (usize, usize),
        out: &mut Vec<f32>,
    ) -> Result<(), ForwardError> {
        match &self.weights {
            Weights::Own(model) => {
                let rows: Vec<u32> = ((n_rows - n) as u32..n_rows as u32).collect();
                model.logits(self.compute(), workspace, &rows, out)
            }
            Weights::Target(layers) => {
                layers.logits(self.compute(), workspace, n_rows - n, scratch, out);
                Ok(())
            }
        }
    }

    /// The checkpoint's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model's dimensions.
    pub fn config(&self) -> &ModelConfig {
        match &self.weights {
            Weights::Own(model) => model.config(),
            Weights::Target(layers) => layers.config(),
        }
    }

    /// Bytes of the weights, including those of a mapped file; of layers of the target, those of the exit.
    pub fn memory_usage(&self) -> usize {
        match &self.weights {
            Weights::Own(model) => model.memory_usage(),
            Weights::Target(layers) => layers.memory_usage(),
        }
    }

    /// Cost of a pass by its rows, as measured so far.
    pub fn cost_profile(&self) -> CostProfile {
        self.costs().clone()
    }

    fn compute(&self) -> Compute<'_> {
        Compute { kernels: self.kernels, pool: &self.pool }
    }

    fn costs(&self) -> std::sync::MutexGuard<'_, CostProfile> {
        // Every change replaces the whole profile, so a panic elsewhere cannot leave a partial one.
        self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for DraftModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DraftModel").field("name", &self.name).finish_non_exhaustive()
    }
}
