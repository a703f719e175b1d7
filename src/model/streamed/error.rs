//! Errors of setting up a streamed model.

use std::io;

use thiserror::Error;

use crate::error::{of_alloc, of_pack};
use crate::kernels::{AllocError, PackError};
use crate::model::layers::LayersError;
use crate::model::packed::PackedFileError;
use refrain_files::{ErrorKind, Facts, Fault};
use refrain_stream::StreamOptionError;

/// A model could not be set up for streaming. Nothing stays open or allocated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StreamedError {
    /// The model is not a packed file, so its layers are not in the layout of the kernels.
    #[error("{file}: only packed files are streamed from flash")]
    NotPacked {
        /// The model.
        file: String,
    },
    /// A number of the options is out of its range.
    #[error("streaming: {0}")]
    Options(#[from] StreamOptionError),
    /// The packed file is in memory.
    #[error("{file}: a packed file that is in memory already is not streamed")]
    InMemory {
        /// Its name.
        file: String,
    },
    /// Streamed layers are used with the types of the file.
    #[error("{file}: streamed layers cannot be widened to f32")]
    Widened {
        /// The file.
        file: String,
    },
    /// The file could not be opened a second time, for direct reads.
    #[error("{file}: cannot open for streaming: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// A pinned tensor could not be read.
    #[error(transparent)]
    Packed(#[from] PackedFileError),
    /// The smallest ring does not fit the rest of the budget.
    #[error(
        "streaming needs {needed} bytes for two buffers; of the budget of {limit} bytes, {taken} are taken or reserved"
    )]
    MemoryLimit {
        /// Bytes of the smallest ring.
        needed: u64,
        /// The budget.
        limit: u64,
        /// Bytes that the process holds already, and reserved bytes.
        taken: u64,
    },
    /// An allocation failed.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// Memory for rows of the embedding could not be allocated.
    #[error(transparent)]
    Rows(#[from] PackError),
    /// A reading thread could not be started.
    #[error("the reading threads could not be started: {0}")]
    Spawn(io::Error),
    /// A section that stays in memory could not be read.
    #[error(transparent)]
    Layers(#[from] LayersError),
}

impl Fault for StreamedError {
    fn facts(&self) -> Facts<'_> {
        match self {
            Self::NotPacked { file } | Self::InMemory { file } | Self::Widened { file } => {
                Facts::new(ErrorKind::Unsupported).file(file)
            }
            Self::Options(error) => {
                let invalid = Facts::new(ErrorKind::InvalidArgument);
                match error {
                    StreamOptionError::Bandwidth { given } => invalid.field("bandwidth_max").value(*given),
                    StreamOptionError::StallTime => invalid.field("stall_max").value(0u64),
                }
            }
            Self::Io { file, source } => Facts::io(source.kind()).file(file),
            Self::Packed(error) => error.facts(),
            Self::MemoryLimit { needed, limit, .. } => {
                Facts::new(ErrorKind::OverLimit).field("streaming").over(*needed, *limit)
            }
            Self::Alloc(error) => of_alloc(error),
            Self::Rows(error) => of_pack(error),
            Self::Spawn(source) => Facts::io(source.kind()),
            Self::Layers(error) => error.facts(),
        }
    }
}
