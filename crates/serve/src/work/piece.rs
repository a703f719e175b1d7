//! The parts of outputs, and what they say about them.

use refrain::Origin;

use super::logprobs::TokenLogprob;
use crate::error::ApiError;

/// A part of the outputs, in order. `choice` is the index of the output.
#[derive(Debug, Clone)]
pub(crate) enum Piece {
    /// Tokens of the prompt that are computed, and all of them.
    Prefill { done: usize, total: usize, cached: usize },
    /// Reasoning before the answer.
    Reasoning { choice: usize, text: String, origin: Origin },
    /// Text of the answer with the probabilities of its tokens, if they were asked for. The text may be empty if they are not.
    Text { choice: usize, text: String, logprobs: Vec<TokenLogprob>, origin: Origin },
    /// A call of a tool begins.
    Call { choice: usize, call: usize, id: String, name: String },
    /// Text of the call's arguments.
    Arguments { choice: usize, call: usize, text: String },
    /// An output has ended.
    End { choice: usize, finish: Finish, annotations: Vec<Annotation> },
    /// All outputs have ended; nothing follows.
    Done(Usage),
    /// The request has failed; nothing follows.
    Failed(ApiError),
}

/// Why an output has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

impl Finish {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
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

/// Token counts of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) output: usize,
    pub(crate) reasoning: usize,
    pub(crate) accepted_prediction: usize,
    pub(crate) rejected_prediction: usize,
}
