//! The sizes of the two fixture models.

use serde::{Deserialize, Serialize};

/// Sizes and constants of a Llama model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelShape {
    /// Number of token ids.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Width of the feed-forward part.
    pub intermediate: usize,
    /// Epsilon of every RMSNorm.
    pub norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// The longest sequence that config.json allows.
    pub max_positions: usize,
}

impl ModelShape {
    /// The target model.
    pub fn target(vocab: usize) -> Self {
        Self {
            vocab,
            hidden: 256,
            layers: 6,
            heads: 8,
            kv_heads: 4,
            head_dim: 32,
            intermediate: 512,
            norm_eps: 1e-5,
            rope_theta: 10_000.0,
            max_positions: 1024,
        }
    }

    /// Its draft model.
    pub fn draft(vocab: usize) -> Self {
        Self { hidden: 128, layers: 2, heads: 4, kv_heads: 2, intermediate: 320, ..Self::target(vocab) }
    }

    /// The shape of the model with this name.
    pub fn named(model: &str, vocab: usize) -> Self {
        if model == "draft" { Self::draft(vocab) } else { Self::target(vocab) }
    }

    /// Number of parameters; the tied output matrix counts once.
    pub fn parameters(&self) -> usize {
        let attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads);
        let block = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden;
        self.vocab * self.hidden + self.layers * block + self.hidden
    }
}
