//! The error of a forward pass.

use refrain_files::{ErrorKind, Facts, Fault};
use thiserror::Error;

use crate::model::layers::LayersError;

/// A forward pass failed or was cancelled. In every case committed KV entries are unchanged, and the rows of
/// the batch are not committed.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForwardError {
    /// The batch does not fit; nothing was read or written.
    #[error("{n_rows} rows after {base} tokens exceed the {n_slots} slots of the KV cache")]
    CacheFull {
        /// Committed tokens.
        base: usize,
        /// Rows of the batch.
        n_rows: usize,
        /// Slots of the cache.
        n_slots: usize,
    },
    /// The batch does not continue the cache; nothing was read or written.
    #[error("the batch starts at position {base}, but the KV cache holds {len} tokens")]
    NotNext {
        /// The first position of the batch.
        base: usize,
        /// Committed tokens in the cache.
        len: usize,
    },
    /// A token is not in the vocabulary; nothing was read or written.
    #[error("token {token} is outside the vocabulary of {vocab_size} tokens")]
    TokenOutOfRange {
        /// The token.
        token: u32,
        /// Entries of the embedding.
        vocab_size: usize,
    },
    /// Streamed layers could not be read. The next pass reads again.
    #[error(transparent)]
    Layers(#[from] LayersError),
    /// The batch has more rows than the recurrent layers or the bounded windows of the cache were made for; nothing was read
    /// or written.
    #[error("{n_rows} rows exceed the {n_rows_max} that the state of the sequence was made for")]
    TooManyRows {
        /// Rows of the batch.
        n_rows: usize,
        /// Rows that the state was made for.
        n_rows_max: usize,
    },
    /// An [`Interlude`](crate::model::Interlude) was given for a model of static graphs; nothing was read or written.
    #[error("static graphs compute whole blocks of layers: rows cannot be looked at between them")]
    Undivided,
    /// The cancel flag was set.
    #[error("cancelled")]
    Cancelled,
    /// The first layers of a streamed model were to run alone, and are not in memory; nothing was read or written.
    #[error(
        "the first {n_layers} layers are not in memory: memory pressure has released them, and passes without pressure pin them again"
    )]
    Released {
        /// Layers that were to run.
        n_layers: usize,
    },
    /// A pass was begun within a pass of the same streamed model, by the thread that runs it: by a draft source that computes ahead. It would
    /// wait for itself. Nothing was read or written.
    #[error("a draft source has begun a pass while its own thread runs one of the same streamed model")]
    Reentered,
}

impl Fault for ForwardError {
    fn facts(&self) -> Facts<'_> {
        let wrong_state = Facts::new(ErrorKind::WrongState);
        match self {
            Self::CacheFull { base, n_rows, n_slots } => {
                Facts::new(ErrorKind::ContextFull).over(base.saturating_add(*n_rows), *n_slots)
            }
            Self::TokenOutOfRange { token, vocab_size } => {
                Facts::new(ErrorKind::InvalidArgument).field("token").over(*token, *vocab_size)
            }
            Self::Layers(error) => error.facts(),
            Self::TooManyRows { n_rows, n_rows_max } => {
                Facts::new(ErrorKind::OverLimit).over(*n_rows, *n_rows_max)
            }
            Self::Undivided => Facts::new(ErrorKind::Unsupported),
            Self::Cancelled => Facts::new(ErrorKind::Cancelled),
            Self::NotNext { .. } | Self::Released { .. } | Self::Reentered => wrong_state,
        }
    }
}
