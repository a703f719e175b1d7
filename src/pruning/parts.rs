//! The numbers of a predictor, as they are trained and stored.

use half::f16;

use crate::model::packed::ModelIdentity;
use refrain_trees::TokenId;

/// Maximum tokens of the shadow pool: scoring them for a row then takes a hundredth of a row's time in the
/// smallest models.
pub const SHADOW_POOL_MAX: usize = 4096;

/// The parts of a predictor: see [`Predictor`](super::Predictor).
#[derive(Debug, Clone, PartialEq)]
pub struct PredictorParts {
    /// The model that the predictor was trained for.
    pub model: ModelIdentity,
    /// The layer before which rows are scored, 1 or more.
    pub layer_idx: usize,
    /// Width of the residual stream.
    pub hidden_dim: usize,
    /// Rank of the map, at most `hidden_dim`.
    pub rank: usize,
    /// Entries of the vocabulary.
    pub vocab_size: usize,
    /// `[rank, hidden_dim]`
    pub down: Vec<f32>,
    /// `[vocab_size, rank]`
    pub up: Vec<f16>,
    /// Tokens of the shadow candidates, rising: the most frequent tokens of the training text.
    pub shadow_pool: Vec<TokenId>,
}
