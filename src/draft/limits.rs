//! Bounds of draft trees: for good, and for one step.

use super::fitted;

/// Rows of the longest verification batch, the root included.
pub const VERIFY_ROWS_MAX: usize = 64;

/// Draft sources that a tree is built from at most.
pub const SOURCES_MAX: usize = u8::MAX as usize - 1;

/// Bounds and constants of a [`TreeBuilder`](super::TreeBuilder). Defaults without a number here were fitted to recorded
/// responses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BuilderConfig {
    /// Rows of a tree at most, the root included. Default 32: beyond it a CPU's verification is bound by arithmetic, and
    /// the replayed responses gain little.
    pub max_rows: usize,
    /// Depth of a node at most. Default 64.
    pub max_depth: usize,
    /// Tokens at or above this number are dropped.
    pub vocab_size: usize,
    /// Candidates taken from one source per node at most.
    pub n_candidates_max: usize,
    /// Children considered per node at most, best first.
    pub n_children_max: usize,
    /// Nodes below this reach are not considered.
    pub reach_min: f32,
    /// By how much a draft must beat plain decoding to be worth it.
    pub margin: f32,
    /// Whether claims are weighed. Default [`Weighing::Learned`].
    pub weighing: Weighing,
}

/// What the builder makes of the sources' claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weighing {
    /// They pass through the reliability table, and the nodes that pay by the cost profile are kept.
    Learned,
    /// They are taken as they are, and every node is kept: for rules that weigh by themselves.
    AsClaimed,
}

impl BuilderConfig {
    /// The defaults for a vocabulary.
    pub fn new(vocab_size: usize) -> Self {
        BuilderConfig {
            max_rows: 32,
            max_depth: 64,
            vocab_size,
            n_candidates_max: fitted::N_CANDIDATES_MAX,
            n_children_max: fitted::N_CHILDREN_MAX,
            reach_min: fitted::REACH_MIN,
            margin: fitted::MARGIN,
            weighing: Weighing::Learned,
        }
    }

    /// The builder of a source that plans whole trees of up to `max_rows` rows, such as a published rule: its proposal is the tree.
    pub fn as_claimed(vocab_size: usize, max_rows: usize) -> Self {
        BuilderConfig {
            max_rows,
            n_candidates_max: max_rows,
            n_children_max: max_rows,
            reach_min: 0.0,
            weighing: Weighing::AsClaimed,
            ..Self::new(vocab_size)
        }
    }
}

/// Bounds of one step, within those of the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepLimits {
    /// Rows at most, the root included: what the backend and the KV cache have room for. 0 counts as 1.
    pub max_rows: usize,
    /// Depth of a node at most: what is left of the context and of the output.
    pub max_depth: usize,
}

impl StepLimits {
    /// No bounds but the configuration's.
    pub const NONE: StepLimits = StepLimits { max_rows: usize::MAX, max_depth: usize::MAX };
}
