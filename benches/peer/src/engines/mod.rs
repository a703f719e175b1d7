//! The operations of both engines, in the terms of a verification step.

#[cfg(feature = "llama")]
mod llama;
mod refrain;

use std::error::Error;

#[cfg(feature = "llama")]
pub use self::llama::{FlashAttention, LlamaModels, system_info};
pub use self::refrain::{Refrain, RefrainModel};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Prompt tokens per pass while llama.cpp fills its cache, and the largest batch that it computes at once.
pub const BATCH_LEN: usize = 512;

/// The type of the keys and values of both engines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, serde::Serialize)]
pub enum KvKind {
    F16,
    #[value(name = "q8_0")]
    Q8_0,
}

impl KvKind {
    pub fn name(self) -> &'static str {
        match self {
            KvKind::F16 => "f16",
            KvKind::Q8_0 => "q8_0",
        }
    }
}

/// The rows that are projected onto the vocabulary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Logits {
    /// Only the last row.
    Last,
    /// All rows.
    All,
}

/// One sequence of a loaded model.
pub trait Engine {
    /// The name in the tables.
    fn name(&self) -> &'static str;

    /// Drops the positions from `len` on.
    fn truncate(&mut self, len: usize) -> Result<()>;

    /// Prefills `tokens` as the engine does for its users, up to the logits of the last token.
    fn prefill(&mut self, tokens: &[u32]) -> Result<()>;

    /// Runs `tokens` in one pass after the cached positions. Returns when the logits are in memory.
    fn verify(&mut self, tokens: &[u32], logits: Logits) -> Result<()>;

    /// The logits of a row of the last pass, if the pass projected it.
    fn logits(&self, row: usize) -> &[f32];
}
