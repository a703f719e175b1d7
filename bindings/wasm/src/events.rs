//! Events of a generation, as the other bindings name them.

use refrain::{FinishReason, Stats};
use serde::Serialize;

use crate::error::ErrorInfo;

/// An event of a generation. `done` or `failed` is the last one.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// Work before the first text.
    Progress {
        /// What is done.
        stage: Stage,
        /// Tokens that are done.
        done: u64,
        /// All of them.
        total: u64,
    },
    /// A piece of the output.
    Text(Text),
    /// The result; nothing follows.
    Done {
        /// The result.
        result: Box<JobResult>,
    },
    /// The generation failed or was cancelled; nothing follows.
    Failed {
        /// Why.
        error: Box<ErrorInfo>,
    },
}

/// What is done before the first text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Computes the prompt; counts tokens.
    Prefill,
}

/// A piece of the output: whole characters, never empty. Pieces of a batch are one if their kind and origin are the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Text {
    /// The text.
    pub text: String,
    /// Answer or reasoning.
    pub kind: TextKind,
    /// The draft source that proposed it; `null`: decoded by the model alone. Drafts never change the text.
    pub drafted_by: Option<String>,
}

/// The kind of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TextKind {
    /// The answer.
    Answer,
    /// The reasoning before it.
    Reasoning,
}

impl From<refrain::TextKind> for TextKind {
    fn from(kind: refrain::TextKind) -> Self {
        match kind {
            refrain::TextKind::Reasoning => Self::Reasoning,
            _ => Self::Answer,
        }
    }
}

/// The result of a generation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobResult {
    /// The answer.
    pub text: String,
    /// The reasoning before it.
    pub reasoning: String,
    /// Why the output ended.
    pub finish: FinishReason,
    /// The seed, given or drawn. `null` at temperature 0.
    pub seed: Option<u64>,
    /// Counts and times.
    pub stats: JobStats,
}

/// Counts and times of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct JobStats {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Those that were computed already.
    pub cached_tokens: u64,
    /// Output tokens.
    pub tokens: u64,
    /// Passes of the model for them.
    pub steps: u64,
    /// Microseconds for the prompt.
    pub prefill_us: f64,
    /// Microseconds for the output.
    pub decode_us: f64,
    /// Microseconds that drafts have saved, about; negative: lost.
    pub saved_us: f64,
}

impl From<&Stats> for JobStats {
    fn from(stats: &Stats) -> Self {
        Self {
            prompt_tokens: stats.prompt_tokens as u64,
            cached_tokens: stats.cached_tokens as u64,
            tokens: stats.tokens as u64,
            steps: stats.steps as u64,
            prefill_us: stats.time_us.prefill,
            decode_us: stats.time_us.decode(),
            saved_us: stats.saved_us,
        }
    }
}
