//! Why a tokenizer or a text was refused.

use thiserror::Error;

use super::TemplateError;
use crate::model::gguf::GgufError;
use crate::model::hf::HfError;
use crate::model::packed::PackedFileError;

/// Why a tokenizer could not be built, or a text not encoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The model comes without a tokenizer.
    #[error("{file}: no tokenizer: {missing} is missing")]
    Missing {
        /// The file or folder.
        file: String,
        /// What is missing.
        missing: String,
    },
    /// A file of the folder could not be read.
    #[error(transparent)]
    File(#[from] HfError),
    /// The tokenizer's section of a packed file could not be read.
    #[error(transparent)]
    Packed(#[from] PackedFileError),
    /// The GGUF metadata inside a packed file.
    #[error("tokenizer of {source}")]
    PackedGguf {
        /// What is wrong with it.
        source: GgufError,
    },
    /// A file is not JSON, or not of the form it should have (names given twice included).
    #[error("{file}: not a valid tokenizer file: {reason}")]
    Json {
        /// The file.
        file: String,
        /// What the parser says.
        reason: String,
    },
    /// A kind of tokenizer, or a step of it, that is not implemented.
    #[error("{file}: {field} `{name}` is not supported")]
    Unsupported {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
        /// Its value.
        name: String,
    },
    /// A field has a value of the wrong type.
    #[error("{file}: `{field}` should be {expected}")]
    WrongType {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// The type it should have.
        expected: &'static str,
    },
    /// More or longer of something than the limit.
    #[error("{file}: {field} is {value}, the limit is {limit}")]
    OverLimit {
        /// The file.
        file: String,
        /// What.
        field: &'static str,
        /// The value.
        value: usize,
        /// The limit.
        limit: usize,
    },
    /// Two tokens with one id, or two ids for one text.
    #[error("{file}: token {token:?} with id {id}: the text or the id is taken by another token")]
    DuplicateToken {
        /// The file.
        file: String,
        /// The second token's text.
        token: String,
        /// Its id.
        id: u32,
    },
    /// A token without text.
    #[error("{file}: the token with id {id} has no text")]
    EmptyToken {
        /// The file.
        file: String,
        /// Its id.
        id: u32,
    },
    /// A merge is not two texts, or one of the texts (or their sum) is no token.
    #[error("{file}: merge {index} ({merge:?}) does not join two tokens to a token")]
    Merge {
        /// The file.
        file: String,
        /// Its place in the list, from 0.
        index: usize,
        /// As it stands there.
        merge: String,
    },
    /// The merges that scored pieces imply (every split of a piece into two pieces) would take more memory than the file
    /// warrants.
    #[error(
        "{file}: the merges made from `tokenizer.ggml.scores` take over {bytes} bytes, the limit for a vocabulary of this size is {limit}"
    )]
    MergesTooLarge {
        /// The file.
        file: String,
        /// Bytes counted when the limit was passed.
        bytes: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A byte of ordinary text that no token stands for: text with it could not be encoded.
    #[error("{file}: no token stands for byte {byte:#04x}")]
    MissingByte {
        /// The file.
        file: String,
        /// The byte.
        byte: u8,
    },
    /// An id that names no token.
    #[error("{file}: {field} is {id}, the vocabulary has {vocab_size} entries")]
    IdOutOfRange {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
        /// The id.
        id: u64,
        /// Entries of the vocabulary.
        vocab_size: usize,
    },
    /// Lists that should be equally long are not.
    #[error("{file}: `{field}` has {found} entries, the vocabulary has {expected}")]
    WrongCount {
        /// The file.
        file: String,
        /// The list.
        field: &'static str,
        /// Its entries.
        found: usize,
        /// Entries of the vocabulary.
        expected: usize,
    },
    /// The tokenizer knows more tokens than the model has rows in its embedding.
    #[error("{file}: the tokenizer has {tokenizer} tokens, the model's vocabulary only {model}")]
    VocabTooLarge {
        /// The model.
        file: String,
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the embedding.
        model: usize,
    },
    /// A text to encode is too long.
    #[error("text of {len} bytes is over the limit of {limit}; shorten the prompt or the context")]
    TextTooLong {
        /// Its length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// A chat was to be rendered and the model has no chat template.
    #[error("the model has no chat template; pass plain text")]
    NoChatTemplate,
    /// The chat template failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The `tokenizers` library reported an error.
    #[error("{file}: {reason}")]
    Library {
        /// The tokenizer's file.
        file: String,
        /// What it says.
        reason: String,
    },
    /// The `tokenizers` library panicked on this tokenizer or text; the tokenizer itself stays usable.
    ///
    /// The process's panic hook has run by then: by default it prints the panic to standard error.
    #[error("{file}: the tokenizer library failed: {reason}")]
    Panicked {
        /// The tokenizer's file.
        file: String,
        /// The panic's message.
        reason: String,
    },
}
