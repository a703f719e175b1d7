//! Pruning: unlikely nodes of a draft tree are dropped at a middle layer of the target (Lever, arXiv
//! 2605.16786).
//!
//! ```text
//! layers 0..m over all rows ──► hidden states ──► Predictor: scores of children and shadow candidates
//!                                                     │ chance of each node, multiplied along its path
//! layers m.. over the kept rows ◄── keep set ◄────────┘ ancestors, backbone, breadth at the root, minimum size
//! ```
//!
//! - A [`Predictor`] is a low-rank linear map from a middle layer's hidden state to scores of tokens. Its
//!   file names the model that it was trained for (`refrain-train predictor`).
//! - A node's chance is its share of the probability among its siblings *and* several likely tokens that were
//!   not drafted. Without such shadow candidates an only child would always have the chance 1 (Lever, eq.
//!   11).
//! - The keep set ([`select`]) contains the nodes with a sufficient chance, and safeguards. If it drops too
//!   few rows, the whole batch is kept.
//!
//! A pruned row is a draft token without verification, so pruning can only reduce the number of accepted
//! tokens. The target's choices come from rows that passed all layers, and these rows attend only to such
//! rows. A predictor therefore never changes the output.

mod error;
mod file;
mod keep;
mod parts;
mod predictor;
mod pruner;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

/// The element type of `PredictorParts::up`.
pub use half::f16;

pub use error::{PredictorError, PredictorField};
pub use file::{FORMAT_VERSION, MAGIC};
pub use keep::{KeepRules, select};
pub use parts::{PredictorParts, SHADOW_POOL_MAX};
pub(crate) use predictor::ExitHead;
pub use predictor::{Predictor, PredictorScratch};
pub(crate) use pruner::{Pruned, Pruner};

/// How drafts are pruned. No value changes the output.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct PruningConfig {
    /// Minimum chance of a kept node, 0 to 1. Default 0.01: on the fixture target, a fifth to a third of the
    /// rows are kept, and a hundredth of the accepted tokens is lost; at 0.05 a thirtieth is lost
    /// (`refrain-bench ablate --pruning`).
    pub threshold: f32,
    /// Maximum shadow tokens: likely tokens that were not drafted and share the probability with the draft
    /// tokens.
    pub shadow_tokens: usize,
    /// Nodes that are kept at any score. `None`: only nodes above the threshold are kept, for comparison.
    pub safeguards: Option<Safeguards>,
}

/// The nodes that pruning always keeps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Safeguards {
    /// Number of kept nodes of the backbone below the root. The backbone is the draft's own likeliest path.
    pub backbone_len: usize,
    /// Minimum number of kept children of the root, those with the best chances.
    pub root_breadth: usize,
    /// Minimum number of kept rows, including the root.
    pub rows_min: usize,
    /// Minimum share of the rows that must be dropped, 0 to 1; otherwise no row is dropped.
    pub saved_min: f32,
}

impl Default for PruningConfig {
    fn default() -> Self {
        PruningConfig { threshold: 0.01, shadow_tokens: 8, safeguards: Some(Safeguards::default()) }
    }
}

impl Default for Safeguards {
    fn default() -> Self {
        Safeguards { backbone_len: 2, root_breadth: 2, rows_min: 4, saved_min: 0.15 }
    }
}
