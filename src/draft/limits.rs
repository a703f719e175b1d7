//! Bounds of draft trees: permanent bounds, and bounds of one step.

use super::fitted;

/// Maximum draft sources of a tree.
pub const SOURCES_MAX: usize = u8::MAX as usize - 1;

/// Bounds and constants of a [`TreeBuilder`](super::TreeBuilder). Defaults without a stated value were fitted
/// to recorded responses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BuilderConfig {
    /// Maximum rows of a tree, including the root. Default 32: above it a CPU's verification is bound by
    /// arithmetic, and the replayed responses gain little.
    pub max_rows: usize,
    /// Maximum depth of a node. Default 64.
    pub max_depth: usize,
    /// Number of tokens; candidates with this id or above are dropped.
    pub vocab_size: usize,
    /// Maximum candidates from one source per node.
    pub n_candidates_max: usize,
    /// Maximum children considered per node, best first.
    pub n_children_max: usize,
    /// Minimum reach of a considered node.
    pub reach_min: f32,
    /// Required advantage of a draft over plain decoding.
    pub margin: f32,
    /// Whether claims are weighed. Default [`Weighing::Learned`].
    pub weighing: Weighing,
}

/// How the builder weighs the sources' claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weighing {
    /// Claims pass through the reliability table, and the builder keeps the nodes that pay by the cost
    /// profile.
    Learned,
    /// Claims are used unchanged, and every node is kept: for sources that weigh their claims themselves.
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

    /// The configuration for a source that plans whole trees of up to `max_rows` rows, such as a published
    /// method: its proposal is the tree.
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

/// Bounds of one step, in addition to those of the configuration.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepLimits {
    /// Maximum rows, including the root, by the room in the backend and the KV cache. 0 counts as 1.
    pub max_rows: usize,
    /// Maximum depth of a node, by the room in the context and the output.
    pub max_depth: usize,
    /// Maximum expected time of the step beyond that of a plain one, in µs.
    pub extra_us: f32,
}

impl StepLimits {
    /// Only the configuration's bounds.
    pub const NONE: StepLimits =
        StepLimits { max_rows: usize::MAX, max_depth: usize::MAX, extra_us: f32::INFINITY };
}
