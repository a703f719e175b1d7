//! The parts of outputs, and what they say about them.

use std::time::Duration;

use refrain::Origin;

use super::logprobs::TokenLogprob;
use crate::error::ApiError;

/// A part of the outputs, in order. `choice` is the index of the output.
#[derive(Debug, Clone)]
pub(crate) enum Piece {
    /// Tokens of the prompt that are computed, and all of them.
    Prefill { done: usize, total: usize, cached: usize },
    /// The tokens of the output's prompt, if their probabilities were asked for.
    Prompt { choice: usize, scores: PromptScores },
    /// Reasoning before the answer.
    Reasoning { choice: usize, text: String, origin: Origin },
    /// Text of the answer with the probabilities of its tokens, if they were asked for. The text may be empty if they are not.
    Text { choice: usize, text: String, logprobs: Vec<TokenLogprob>, origin: Origin },
    /// A call of a tool begins.
    Call { choice: usize, call: usize, id: String, name: String },
    /// Text of the call's arguments.
    Arguments { choice: usize, call: usize, text: String },
    /// An output has ended; `stop` is the stop string that ended it.
    End { choice: usize, finish: Finish, stop: Option<String>, annotations: Vec<Annotation> },
    /// All outputs have ended; nothing follows.
    Done(Usage),
    /// The request has failed; nothing follows.
    Failed(ApiError),
}

/// The tokens of a prompt with their probabilities.
#[derive(Debug, Clone, Default)]
pub(crate) struct PromptScores {
    /// The bytes of a first token that follows nothing, and has no probability.
    pub(crate) first: Option<Vec<u8>>,
    pub(crate) rest: Vec<TokenLogprob>,
}

/// Why an output has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

/// A span of an answer that stands in a document. Places of the answer are in characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Annotation {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) document: usize,
    pub(crate) title: String,
    pub(crate) url: String,
    /// Bytes in the document's text.
    pub(crate) place: std::ops::Range<usize>,
    pub(crate) is_exact: bool,
}

/// Token counts of a request, and times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) output: usize,
    pub(crate) steps: usize,
    pub(crate) reasoning: usize,
    pub(crate) accepted_prediction: usize,
    pub(crate) rejected_prediction: usize,
    pub(crate) prefill_time: Duration,
    pub(crate) decode_time: Duration,
}
