//! The errors of vocabularies and grammars.

use std::fmt;

use thiserror::Error;

use crate::gbnf::GbnfProblem;

/// A vocabulary cannot be used with grammars.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum VocabularyError {
    /// The tokenizer has no end token, so an output could not end where the grammar does.
    #[error("the tokenizer has no end token, so an output could not end where the grammar does")]
    NoEndToken,
    /// The trie of the tokens could not be built.
    #[error("the vocabulary cannot be used with grammars: {reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
}

/// What a grammar was given as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrammarKind {
    /// A JSON Schema.
    JsonSchema,
    /// A regular expression.
    Regex,
    /// A list of choices.
    Choices,
    /// A Lark grammar.
    Lark,
    /// A GBNF grammar.
    Gbnf,
}

impl fmt::Display for GrammarKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::JsonSchema => "JSON Schema",
            Self::Regex => "regular expression",
            Self::Choices => "list of choices",
            Self::Lark => "Lark grammar",
            Self::Gbnf => "GBNF grammar",
        })
    }
}

/// A grammar was refused, or its mask could not be computed.
///
/// Masks report it as the source of a [`refrain::GenerateError`] of the kind [`Processor`](refrain::ErrorKind::Processor).
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrammarError {
    /// The grammar is too long.
    #[error("the {kind} has {given} bytes, more than {max}")]
    TooLong {
        /// What was given.
        kind: GrammarKind,
        /// Its bytes.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// The schema is not JSON.
    #[error("the schema is not JSON (line {line}, column {column}): {reason}")]
    NotJson {
        /// Line, counted from 1.
        line: usize,
        /// Column, counted from 1.
        column: usize,
        /// The reason.
        reason: String,
    },
    /// The schema is invalid, or uses what is not supported. It is never weakened instead.
    #[error("the JSON Schema is refused{}: {reason}", at(.pointer.as_deref()))]
    Schema {
        /// JSON pointer to the part of the schema, if it is known; the empty pointer is the whole schema.
        pointer: Option<String>,
        /// The reason.
        reason: String,
    },
    /// The GBNF grammar cannot be read, or has what is not supported.
    #[error("the GBNF grammar is refused at line {line}, column {column}: {problem}")]
    Gbnf {
        /// Byte of the grammar.
        offset: usize,
        /// Line, counted from 1.
        line: usize,
        /// Column, counted from 1 in characters.
        column: usize,
        /// What is wrong there.
        problem: GbnfProblem,
    },
    /// The grammar is invalid, or too complex.
    #[error("the {kind} is refused: {reason}")]
    Refused {
        /// What was given.
        kind: GrammarKind,
        /// The reason, with the place if the parser knows it.
        reason: String,
    },
    /// The grammar was not looked at: earlier ones take too long, or no thread is free.
    #[error("no grammar can be compiled now: {reason}")]
    Busy {
        /// The reason.
        reason: String,
    },
    /// There are no choices, or too many.
    #[error("{given} choices are outside 1..={max}")]
    NumberOfChoices {
        /// Their number.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// A choice is empty.
    #[error("choice {index} is empty")]
    EmptyChoice {
        /// Its index, from 0.
        index: usize,
    },
    /// The marker after which the grammar starts is empty or too long.
    #[error("the marker has {given} bytes, outside 1..={max}")]
    MarkerLength {
        /// Its bytes.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// A mask needs more work or memory than the limits allow.
    #[error("the grammar is too complex at output token {position}: {reason}")]
    TooComplex {
        /// Number of output tokens before the mask.
        position: usize,
        /// The limit.
        reason: String,
    },
    /// The grammar is not at an end, and the vocabulary has no token that continues it.
    #[error("the vocabulary has no token that the grammar allows at output token {position}")]
    NoToken {
        /// Number of output tokens before the mask.
        position: usize,
    },
    /// The text has a token that the grammar does not allow: another processor has changed the logits after the mask.
    #[error("token {token} at output token {position} is not allowed by the grammar")]
    NotAllowed {
        /// Number of output tokens before the token.
        position: usize,
        /// The token.
        token: u32,
    },
    /// The parser failed; a fault of this crate or of its parser.
    #[error("the parser failed at output token {position}: {reason}")]
    Parser {
        /// Number of output tokens before the failure.
        position: usize,
        /// The parser's message.
        reason: String,
    },
}

impl GrammarError {
    /// The same error in an output with `n_tokens` tokens before the constrained text.
    pub(crate) fn behind(mut self, n_tokens: usize) -> Self {
        match &mut self {
            Self::TooComplex { position, .. }
            | Self::NoToken { position }
            | Self::NotAllowed { position, .. }
            | Self::Parser { position, .. } => *position += n_tokens,
            _ => {}
        }
        self
    }
}

fn at(pointer: Option<&str>) -> String {
    pointer.map(|pointer| format!(" at `#{pointer}`")).unwrap_or_default()
}

/// The first lines of a message of the parser: a caught panic carries a backtrace.
pub(crate) fn brief(message: &dyn fmt::Display) -> String {
    let message = format!("{message:#}");
    let end =
        ["\n<backtrace>", "\n<state>", "\n<non-verbose/>"].iter().filter_map(|mark| message.find(mark)).min();
    let message = &message[..end.unwrap_or(message.len())];
    let short: String = message.chars().take(REASON_CHARS_MAX).collect();
    if short.len() < message.len() { format!("{short}…") } else { short }
}

/// Maximum characters of a reason: messages quote parts of a grammar.
const REASON_CHARS_MAX: usize = 1000;
