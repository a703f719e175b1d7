//! The errors of loading a tokenizer and of encoding.

use refrain_files::{ErrorKind, Facts, Fault, opaque_error};
use thiserror::Error;

use super::limits::PRE_TOKENIZER;
use super::template::{self, TemplateError};
use refrain_containers::gguf::GgufError;
use refrain_containers::hf::HfError;

opaque_error! {
    /// A tokenizer could not be built, or a text could not be encoded.
    TokenizerError(TokenizerProblem)
}

impl<E: Into<TokenizerProblem>> From<E> for TokenizerError {
    fn from(problem: E) -> Self {
        Self(Box::new(problem.into()))
    }
}

impl Fault for TokenizerError {
    fn facts(&self) -> Facts<'_> {
        self.0.facts()
    }

    fn hidden(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

opaque_error! {
    /// An error of a container that this crate does not know.
    ContainerError(dyn Fault)
}

impl<E: Fault> From<E> for ContainerError {
    fn from(fault: E) -> Self {
        Self(Box::new(fault))
    }
}

/// The reason of a [`TokenizerError`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerProblem {
    /// The model has no tokenizer.
    #[error("{file}: no tokenizer: {missing} is missing")]
    Missing {
        /// The file or folder.
        file: String,
        /// The missing part.
        missing: String,
    },
    /// A file of the folder could not be read.
    #[error(transparent)]
    File(#[from] HfError),
    /// The container of the tokenizer's files could not be read: for a packed file, a `PackedFileError`.
    #[error(transparent)]
    Container(ContainerError),
    /// The GGUF metadata inside a packed file is invalid.
    #[error("tokenizer of {source}")]
    PackedGguf {
        /// The reason.
        source: GgufError,
    },
    /// A file is not JSON or has the wrong structure, for example a duplicate name.
    #[error("{file}: not a valid tokenizer file: {reason}")]
    Json {
        /// The file.
        file: String,
        /// The parser's message.
        reason: String,
    },
    /// The kind of tokenizer, or one of its steps, is not supported.
    #[error("{file}: {field} `{name}` is not supported")]
    Unsupported {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
        /// Its value.
        name: String,
    },
    /// A GGUF file with a byte-level vocabulary does not name its pre-tokenizer, as files before May 2024. A guess would cut
    /// texts into other tokens than those that the model was trained with. llama.cpp takes `default`.
    #[error(
        "{file}: `tokenizer.ggml.pre` is missing: how the model cuts texts into words is unknown; known pre-tokenizers: {known}"
    )]
    NoPreTokenizer {
        /// The file.
        file: String,
        /// All names.
        known: String,
    },
    /// A field has a value of the wrong type.
    #[error("{file}: `{field}` should be {expected}")]
    WrongType {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// The expected type.
        expected: &'static str,
    },
    /// A count or length exceeds its limit.
    #[error("{file}: {field} is {value}, the limit is {limit}")]
    OverLimit {
        /// The file.
        file: String,
        /// The counted thing.
        field: &'static str,
        /// The value.
        value: usize,
        /// The limit.
        limit: usize,
    },
    /// Two tokens have the same id, or one text has two ids.
    #[error("{file}: token {token:?} with id {id}: the text or the id is taken by another token")]
    DuplicateToken {
        /// The file.
        file: String,
        /// The second token's text.
        token: String,
        /// The second token's id.
        id: u32,
    },
    /// A token has no text.
    #[error("{file}: the token with id {id} has no text")]
    EmptyToken {
        /// The file.
        file: String,
        /// Its id.
        id: u32,
    },
    /// A merge is not a pair of texts, or one of the texts (or their concatenation) is not a token.
    #[error("{file}: merge {index} ({merge:?}) does not join two tokens to a token")]
    Merge {
        /// The file.
        file: String,
        /// Its index in the list, from 0.
        index: usize,
        /// The merge as written in the file.
        merge: String,
    },
    /// The merges implied by the scores (every split of a piece into two pieces) exceed the memory allowed for a file
    /// of this size.
    #[error(
        "{file}: the merges made from `tokenizer.ggml.scores` take over {bytes} bytes, the limit for a vocabulary of this size is {limit}"
    )]
    MergesTooLarge {
        /// The file.
        file: String,
        /// Bytes counted when the limit was exceeded.
        bytes: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// No token stands for a byte of ordinary text, so some texts could not be encoded.
    #[error("{file}: no token stands for byte {byte:#04x}")]
    MissingByte {
        /// The file.
        file: String,
        /// The byte.
        byte: u8,
    },
    /// An id has no token.
    #[error("{file}: {field} is {id}, the vocabulary has {vocab_size} entries")]
    IdOutOfRange {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
        /// The id.
        id: u64,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// The length of a list differs from the size of the vocabulary.
    #[error("{file}: `{field}` has {found} entries, the vocabulary has {expected}")]
    WrongCount {
        /// The file.
        file: String,
        /// The list.
        field: &'static str,
        /// Its length.
        found: usize,
        /// Size of the vocabulary.
        expected: usize,
    },
    /// The tokenizer has more tokens than the model's embedding has rows.
    #[error("{file}: the tokenizer has {tokenizer} tokens, the model's vocabulary only {model}")]
    VocabTooLarge {
        /// The model.
        file: String,
        /// Number of tokens.
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
    /// A chat cannot be rendered because the model has no chat template.
    #[error("the model has no chat template; pass plain text")]
    NoChatTemplate,
    /// The vocabulary has no control tokens for prompts with a gap.
    #[error("the vocabulary has no tokens to fill in the middle of a text")]
    NoInfill,
    /// [`ChatOptions::set_variable`](crate::ChatOptions::set_variable) refuses a name with a fixed meaning in templates.
    #[error("the template variable `{name}` is reserved")]
    ReservedVariable {
        /// The name.
        name: String,
    },
    /// The chat template failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The `tokenizers` library returned an error.
    #[error("{file}: {reason}")]
    Library {
        /// The tokenizer's file.
        file: String,
        /// The library's message.
        reason: String,
    },
    /// The system gives too little memory for the tokenizer.
    #[error("{file}: the tokenizer needs {bytes} bytes of memory, which the system does not give")]
    Memory {
        /// The tokenizer's file.
        file: String,
        /// Bytes needed.
        bytes: usize,
    },
    /// The regular expressions of the tokenizer take more than 512 steps for each byte of a text: a time that grows with the
    /// square of the text, or faster.
    #[error(
        "{file}: the patterns of the tokenizer take too many steps on a text of {len} bytes; its split expressions are not meant for such texts"
    )]
    TooManySteps {
        /// The tokenizer's file.
        file: String,
        /// Bytes of the text.
        len: usize,
    },
    /// The `tokenizers` library panicked on this tokenizer or text. The tokenizer stays usable. Nothing is printed.
    #[error("{file}: the tokenizer library failed: {reason}")]
    Panicked {
        /// The tokenizer's file.
        file: String,
        /// The panic's message.
        reason: String,
    },
}

/// Refuses a `value` of `field` over its `limit`.
pub(crate) fn check_limit(
    file: &str,
    field: &'static str,
    value: usize,
    limit: usize,
) -> Result<(), TokenizerProblem> {
    if value > limit {
        return Err(TokenizerProblem::OverLimit { file: file.to_owned(), field, value, limit });
    }
    Ok(())
}

impl Fault for TokenizerProblem {
    fn facts(&self) -> Facts<'_> {
        let damaged = Facts::new(ErrorKind::Damaged);
        let unsupported = Facts::new(ErrorKind::Unsupported);
        let over_limit = Facts::new(ErrorKind::OverLimit);
        match self {
            Self::Missing { file, missing } => Facts::new(ErrorKind::NotFound).file(file).field(missing),
            Self::File(error) => error.facts(),
            Self::Container(error) => error.0.facts(),
            Self::PackedGguf { source } => source.facts(),
            Self::Json { file, .. } => damaged.file(file),
            Self::Unsupported { file, field, .. } => unsupported.file(file).field(field),
            Self::NoPreTokenizer { file, .. } => {
                Facts::new(ErrorKind::NotFound).file(file).field(PRE_TOKENIZER)
            }
            Self::WrongType { file, field, .. } => damaged.file(file).field(field),
            Self::OverLimit { file, field, value, limit } => {
                over_limit.file(file).field(field).over(*value, *limit)
            }
            Self::DuplicateToken { file, id, .. } | Self::EmptyToken { file, id } => {
                damaged.file(file).value(*id)
            }
            Self::Merge { file, index, .. } => damaged.file(file).field("merges").value(*index),
            Self::MergesTooLarge { file, bytes, limit } => over_limit.file(file).over(*bytes, *limit),
            Self::MissingByte { file, byte } => damaged.file(file).value(*byte),
            Self::IdOutOfRange { file, field, id, vocab_size } => {
                damaged.file(file).field(field).over(*id, *vocab_size)
            }
            Self::WrongCount { file, field, found, .. } => damaged.file(file).field(field).value(*found),
            Self::VocabTooLarge { file, tokenizer, model } => {
                Facts::new(ErrorKind::Mismatch).file(file).over(*tokenizer, *model)
            }
            Self::TextTooLong { len, limit } => over_limit.field("text").over(*len, *limit),
            Self::NoChatTemplate => Facts::new(ErrorKind::NotFound).field(template::NAME),
            Self::NoInfill => Facts::new(ErrorKind::NotFound).field("infill"),
            Self::ReservedVariable { name } => Facts::new(ErrorKind::InvalidArgument).field(name),
            Self::Template(error) => error.facts(),
            Self::Library { file, .. } | Self::Panicked { file, .. } => unsupported.file(file),
            Self::Memory { file, bytes } => Facts::new(ErrorKind::OutOfMemory).file(file).value(*bytes),
            Self::TooManySteps { file, len } => over_limit.file(file).value(*len),
        }
    }
}
