//! A model so small that a test trains it in seconds.

#![allow(dead_code, reason = "each test file uses a part")]

use refrain_burn::model::ModelShape;
use refrain_burn::tokens;
use refrain_burn::train::{Cycle, Recipe};
use tokenizers::Tokenizer;

/// Seed of the tests.
pub(crate) const SEED: u64 = 3;

/// Vocabulary of the tests.
pub(crate) const VOCABULARY: usize = 320;

/// A tokenizer trained on a few documents.
pub(crate) fn tokenizer() -> Tokenizer {
    tokens::train_on(SEED, 60, VOCABULARY).expect("the tokenizer trains")
}

/// Two blocks, every kind of weight, all sizes multiples of a Q8_0 block.
pub(crate) fn shape() -> ModelShape {
    ModelShape {
        hidden: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        intermediate: 96,
        ..ModelShape::target(VOCABULARY)
    }
}

/// A few quick steps.
pub(crate) fn recipe(steps: usize) -> Recipe {
    Recipe {
        seed: SEED,
        cycles: vec![Cycle { steps, rate: 3e-3, decay: 1 }],
        documents: 2,
        easy_steps: steps,
        drill_steps: 0,
        warmup: 2,
    }
}
