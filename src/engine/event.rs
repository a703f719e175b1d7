//! Events of a generation.

use serde::Serialize;

use crate::draft::SourceName;
use crate::engine::stats::Stats;
use refrain_tokenizer::TextKind;
use refrain_trees::TokenId;

/// An event of a generation.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "events are taken one by one, and the large one ends them")]
pub enum Event {
    /// A token of the output.
    Token(TokenEvent),
    /// The output has ended; nothing follows.
    Done(Summary),
}

/// One token of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenEvent {
    /// The token.
    pub id: TokenId,
    /// The text that became final with the token: complete characters only, and no text that may still turn
    /// out to be part of a stop string. Often the token's own text, sometimes empty, sometimes the text of
    /// several tokens.
    pub text: String,
    /// The same text, split into reasoning and answer, without the markers between them. Text that may be
    /// part of a marker comes with a later token, or with the summary. For a model without reasoning all text
    /// is answer.
    pub segments: Vec<(TextKind, String)>,
    /// Where the token came from.
    pub origin: Origin,
}

/// The origin of a token. The target model chose every token; the origin names the source that proposed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum Origin {
    /// No source: the target's own next token.
    Target,
    /// The draft source of this name.
    Draft(SourceName),
}

/// How a generation ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// Why it ended.
    pub finish: FinishReason,
    /// Held-back text that belongs to the output: the start of a possible stop string, or of a character.
    /// Empty unless the generation was cancelled.
    pub text: String,
    /// The rest of the output, split as in [`TokenEvent::segments`].
    pub segments: Vec<(TextKind, String)>,
    /// The seed of the random numbers, given or drawn. The same seed repeats the output. `None` at
    /// temperature 0.
    pub seed: Option<u64>,
    /// Counts and times.
    pub stats: Stats,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The model output an end token.
    EndToken,
    /// The output contained a stop string or a stop token.
    Stop,
    /// The output has `max_tokens` tokens.
    MaxTokens,
    /// The session's context is full.
    ContextFull,
    /// The app cancelled. If it had taken no token, the conversation has no answer turn and ends with the
    /// user's turn.
    Cancelled,
}
