//! Pruning: nodes of a draft tree that look wrong half-way through the target go no further (Lever, arXiv 2605.16786).
//!
//! ```text
//! layers 0..m over all rows ──► hidden states ──► Predictor: scores of children and shadow candidates
//!                                                     │ chance of each node, multiplied along its path
//! layers m.. over the kept rows ◄── keep set ◄────────┘ ancestors, backbone, breadth at the root, least size
//! ```
//!
//! - A [`Predictor`] is a linear map from a middle layer's hidden state to scores of tokens, of low rank, in a file that names the
//!   model it was trained for (`refrain train predictor`).
//! - A node's chance is its share among its siblings *and* some likely tokens that were not drafted: without such shadow
//!   candidates a lone child would be certain of itself (Lever, eq. 11).
//! - The keep set ([`select`]) has the nodes whose chance is good enough, and safeguards; where it saves too little the
//!   whole batch goes on.
//!
//! A row that is pruned is a draft that nobody verifies: it can only shorten what is accepted. What the target says comes from
//! rows that went through all layers, and those see none but such rows, so no bit of the output depends on a predictor.

mod error;
mod file;
mod keep;
mod predictor;
mod pruner;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

/// The numbers of `PredictorParts::up`.
pub use half::f16;

pub use error::{PredictorError, PredictorField};
pub use file::{FORMAT_VERSION, MAGIC};
pub use keep::{KeepRules, select};
pub use predictor::{Predictor, PredictorParts, PredictorScratch, SHADOW_POOL_MAX};
pub(crate) use pruner::{Pruned, Pruner};

/// How drafts are pruned. None of it changes a bit of the output.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PruningConfig {
    /// Nodes whose chance is at least this are kept, 0 to 1. Default 0.01: on the fixture target a fifth to a third of the rows go on and a
    /// hundredth of what is accepted is lost; at 0.05 a thirtieth (`refrain bench ablate --pruning`).
    pub threshold: f32,
    /// Likely tokens besides those drafted that share a node's chances, at most.
    pub shadow_tokens: usize,
    /// What is kept whatever the predictor says; `None`: nothing but what passes the threshold, for comparison.
    pub safeguards: Option<Safeguards>,
}

/// What pruning keeps besides the nodes that look good.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Safeguards {
    /// Nodes of the backbone, the path that the draft itself finds likeliest, that are kept below the root.
    pub backbone_len: usize,
    /// Children of the root that are kept, those with the best chances.
    pub root_breadth: usize,
    /// Rows that are kept at least, the root included.
    pub rows_min: usize,
    /// Share of the rows that must be left out, or else all go on: 0 to 1.
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
