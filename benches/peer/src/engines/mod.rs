//! What both engines are asked to do, in the words of a verification step.

#[cfg(feature = "llama")]
mod llama;
mod refrain;

use std::error::Error;

#[cfg(feature = "llama")]
pub use self::llama::{FlashAttention, LlamaModels, system_info};
pub use self::refrain::{Refrain, RefrainModel};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Prompt tokens per pass where llama.cpp fills its cache, and the largest batch that it computes at once.
pub const BATCH_LEN: usize = 512;

/// Which rows are projected onto the vocabulary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Logits {
    /// Only the last one.
    Last,
    /// All of them.
    All,
}

/// One sequence of a loaded model, with its KV cache in f16.
pub trait Engine {
    /// The name in the tables.
    fn name(&self) -> &'static str;

    /// Forgets the positions from `len` on.
    fn truncate(&mut self, len: usize) -> Result<()>;

    /// Takes `tokens` in as a prompt, in the way that the engine does it for its users, to the last token's logits.
    fn prefill(&mut self, tokens: &[u32]) -> Result<()>;

    /// Runs `tokens` in one pass after the positions held. Returns when the logits are in memory.
    fn verify(&mut self, tokens: &[u32], logits: Logits) -> Result<()>;

    /// The logits of a row of the last pass, which must have been asked for.
    fn logits(&self, row: usize) -> &[f32];
}
