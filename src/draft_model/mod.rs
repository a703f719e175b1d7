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
mod source;
#[cfg(test)]
mod tests;
pub(crate) mod vocabulary;

use std::sync::{Arc, Mutex, PoisonError};

use crate::draft::{CostProfile, HiddenStates};
use crate::kernels::{Kernels, Pool};
use crate::model::config::DraftHead;
use crate::model::transformer::Compute;
use crate::model::{Model, ModelConfig};
use crate::token::TokenId;

pub use drafter::Drafter;
pub use kv_tree::{KvTree, Likely, ROOT};
pub(crate) use source::DraftModelSource;
pub use vocabulary::VocabularyMismatch;

/// A loaded draft model: immutable except for the measured costs of its passes, and shared by sessions.
pub struct DraftModel {
    name: String,
    model: Model,
    kernels: Kernels,
    pool: Arc<Pool>,
    /// Cost of a pass by its rows, corrected after each pass.
    costs: Mutex<CostProfile>,
    /// What a head reads of its target.
    reads: Option<HiddenStates>,
    /// The tokens of its vocabulary, `[n_logits]`; `None` if they are those of the target.
    tokens: Option<Arc<[TokenId]>>,
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
        Self { name: name.to_owned(), model, kernels, pool, costs: Mutex::new(costs), reads, tokens: None }
    }

    /// The EAGLE-3 head, which reads the residual streams before the layers `taps` and drafts `tokens`.
    pub(crate) fn eagle3(self, taps: [usize; 3], tokens: Option<Arc<[TokenId]>>) -> Self {
        Self { reads: Some(HiddenStates::Before(taps)), tokens, ..self }
    }

    /// The checkpoint's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model's dimensions.
    pub fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    /// Bytes of the weights, including those of a mapped file.
    pub fn memory_usage(&self) -> usize {
        self.model.memory_usage()
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
