//! Text to tokens and back, and chat templates.
//!
//! `refrain` exports [`Tokenizer`] and the types of its methods. [`TokenizerParts`] and the rest are a part of Refrain outside
//! semantic versioning.

mod charsmap;
mod chat;
mod date;
mod error;
mod gguf;
mod hf;
mod infill;
mod json;
mod json_steps;
mod limits;
mod memo;
mod message;
mod parts;
mod pipeline;
mod pre;
mod reasoning;
mod regexp;
mod spm;
mod steps;
mod template;
mod tokenizer;
mod unigram;
mod utf8;
mod vocab;
mod wordpiece;

pub use date::{ChatDate, MONTHS};
pub use error::{ContainerError, TokenizerError, TokenizerProblem};
pub use hf::FOLDER_FILES;
pub use infill::Gap;
pub use json_steps::GROWTH_MAX;
pub use limits::{
    ADDED_TOKEN_BYTES_MAX, ADDED_TOKENS_BYTES_MAX, ADDED_TOKENS_MAX, FILE_MEMORY_MULTIPLE, FILE_MEMORY_SLACK,
    PRE_TOKENIZER, TEXT_BYTES_MAX, VOCAB_SIZE_MAX,
};
pub use message::{ChatOptions, Message, Role};
pub use parts::TokenizerParts;
pub use pipeline::MERGES_MAX;
pub use reasoning::{ReasoningMarkers, ReasoningSplitter, TextKind};
pub use template::{
    ChatTemplate, SpecialTexts, TEMPLATE_BYTES_MAX, TEMPLATE_FUEL, TEMPLATE_MEMORY_BYTES_MAX,
    TEMPLATE_MEMORY_MULTIPLE, TEMPLATE_OUTPUT_BYTES_MAX, TemplateError,
};
pub use tokenizer::{SpecialTokens, Tokenizer};
pub use unigram::UNIGRAM_PIECE_BYTES_MAX;
pub use utf8::Utf8Stream;
pub use vocab::{ID_GAPS_MAX, TOKEN_BYTES_MAX};
pub use wordpiece::WORDPIECE_BYTES_MAX;
