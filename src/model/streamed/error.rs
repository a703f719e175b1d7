//! Why a model could not be streamed.

use std::io;

use thiserror::Error;

use crate::kernels::AllocError;
use crate::model::layers::LayersError;
use crate::model::packed::PackedFileError;

/// Why a model could not be set up for streaming. Nothing is left behind.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StreamedError {
    /// The model is no packed file: its layers do not lie as the kernels read them.
    #[error("{file}: only packed files are streamed from flash")]
    NotPacked {
        /// The model.
        file: String,
    },
    /// The packed file is in memory.
    #[error("{file}: a packed file that is in memory already is not streamed")]
    InMemory {
        /// Its name.
        file: String,
    },
    /// Layers are computed with as they lie in the file.
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
    /// The least that streaming needs is more than the budget leaves.
    #[error(
        "streaming needs {needed} bytes for two buffers; of the budget of {limit} bytes, {taken} are taken or reserved"
    )]
    MemoryLimit {
        /// What the smallest ring takes.
        needed: u64,
        /// The budget.
        limit: u64,
        /// What the process holds already, and what is reserved.
        taken: u64,
    },
    /// There is no memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A thread that reads could not be started.
    #[error("the reading threads could not be started: {0}")]
    Spawn(io::Error),
    /// A section that stays in memory could not be read.
    #[error(transparent)]
    Layers(#[from] LayersError),
}
