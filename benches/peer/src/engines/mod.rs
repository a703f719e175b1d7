//! The operations of both engines, in the terms of a verification step: a pass over rows, some of which are then kept.

#[cfg(feature = "llama")]
mod llama;
#[cfg(feature = "llama")]
mod mapped;
mod refrain;

use std::error::Error;

#[cfg(feature = "llama")]
pub use self::llama::{FlashAttention, Llama, LlamaModels, system_info};
#[cfg(feature = "llama")]
pub use self::mapped::Mapped;
pub use self::refrain::{Refrain, RefrainModel};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Prompt tokens per pass while llama.cpp fills its cache, and the largest batch that it computes at once.
pub const BATCH_LEN: usize = 512;

/// The type of the keys and values of both engines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, serde::Serialize)]
pub enum KvKind {
    F16,
    F32,
    #[value(name = "q8_0")]
    Q8_0,
}

impl KvKind {
    pub fn name(self) -> &'static str {
        match self {
            KvKind::F16 => "f16",
            KvKind::F32 => "f32",
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

    /// Drops all positions.
    fn clear(&mut self) -> Result<()>;

    /// Prefills `tokens` as the engine does for its users, up to the logits of the last token, and keeps them.
    fn prefill(&mut self, tokens: &[u32]) -> Result<()>;

    /// Runs `tokens` in one pass behind the kept positions. Returns when the logits are in memory. A call of
    /// [`keep`](Self::keep) follows.
    fn verify(&mut self, tokens: &[u32], logits: Logits) -> Result<()>;

    /// Keeps the first `n_rows` rows of the last pass and rolls the others back.
    fn keep(&mut self, n_rows: usize) -> Result<()>;

    /// The most rows of a pass that [`keep`](Self::keep) can roll back.
    fn rollback_max(&self) -> usize {
        usize::MAX
    }

    /// The logits of a row of the last pass, if the pass projected it.
    fn logits(&self, row: usize) -> &[f32];

    /// Remembers the kept positions.
    fn mark(&mut self) -> Result<()>;

    /// Returns to the positions of the last [`mark`](Self::mark).
    fn rewind(&mut self) -> Result<()>;
}
