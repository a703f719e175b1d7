//! Drafting with a smaller model of the same vocabulary.
//!
//! ```text
//! DraftModel (weights, shared) ◄── KvTree (one session's keys and values: text, and the nodes computed behind it)
//!                                    ▲                ▲
//!                     DraftModelSource (cursors)   published rules (crate `refrain-bench`)
//! ```
//!
//! - [`DraftModel`] is a checkpoint that was found to have the target's [vocabulary](VocabularyMismatch).
//! - The source competes in the tree builder with the sources that look up; what a pass costs was measured, and the
//!   builder asks when that pays (Lever, arXiv 2605.16786, eqs. 4 and 6).
//! - [`Drafter`] and [`KvTree`] are the building blocks of published rules that draft with a model, to compare with.
//!
//! What a node says is a function of the text and its path, bit for bit. Which nodes are computed depends on measured times, as
//! the size of a tree does. The draft model decides nothing about the output. Where it fails, it stops drafting and says why
//! ([`Computed::off`](crate::draft::Computed::off)).

mod drafter;
mod kv_tree;
mod source;
#[cfg(test)]
mod tests;
pub(crate) mod vocabulary;

use std::sync::{Arc, Mutex, PoisonError};

use crate::draft::CostProfile;
use crate::kernels::{Kernels, Pool};
use crate::model::transformer::Compute;
use crate::model::{Model, ModelConfig};

pub use drafter::Drafter;
pub use kv_tree::{KvTree, Likely, ROOT};
pub(crate) use source::DraftModelSource;
pub use vocabulary::VocabularyMismatch;

/// A small model that drafts, loaded: immutable but for what its passes are found to cost, and shared by sessions.
pub struct DraftModel {
    name: String,
    model: Model,
    kernels: Kernels,
    pool: Arc<Pool>,
    /// What a pass costs by its rows, corrected with each one.
    costs: Mutex<CostProfile>,
}

impl DraftModel {
    pub(crate) fn new(
        name: &str,
        model: Model,
        kernels: Kernels,
        pool: Arc<Pool>,
        costs: CostProfile,
    ) -> Self {
        Self { name: name.to_owned(), model, kernels, pool, costs: Mutex::new(costs) }
    }

    /// The checkpoint's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model's dimensions.
    pub fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    /// Bytes of the weights, those of a mapped file included.
    pub fn memory_usage(&self) -> usize {
        self.model.memory_usage()
    }

    /// What a pass costs by its rows, as measured so far.
    pub fn cost_profile(&self) -> CostProfile {
        self.costs().clone()
    }

    fn compute(&self) -> Compute<'_> {
        Compute { kernels: self.kernels, pool: &self.pool }
    }

    fn costs(&self) -> std::sync::MutexGuard<'_, CostProfile> {
        // Each change leaves a whole profile, so a panic elsewhere cannot have left half of one.
        self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for DraftModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DraftModel").field("name", &self.name).finish_non_exhaustive()
    }
}
