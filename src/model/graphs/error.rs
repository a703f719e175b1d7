//! Why graphs could not be set up.

use std::io;

use thiserror::Error;

use crate::kernels::AllocError;
use crate::model::layers::LayersError;
use crate::model::packed::PackedFileError;

/// Why a folder of graphs could not be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GraphsError {
    /// One of its files was refused or could not be read.
    #[error(transparent)]
    Packed(#[from] PackedFileError),
    /// A file belongs to another model, or stands in the place of another file.
    #[error("{file}: {field} is {found}, expected {expected}")]
    Foreign {
        /// The file.
        file: String,
        /// What differs.
        field: &'static str,
        /// In this file.
        found: String,
        /// Where it would belong.
        expected: String,
    },
    /// A file could not be opened a second time, for direct reads.
    #[error("{file}: cannot read: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// One graph per block, embedding and head need more than they may have. Nothing was loaded.
    #[error("one graph per block, embedding and head need {needed} bytes of memory, the limit is {limit}")]
    MemoryLimit {
        /// What they need.
        needed: u64,
        /// What they may have.
        limit: u64,
    },
    /// There is no memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The thread that loads could not be started.
    #[error("the loading thread could not be started: {0}")]
    Spawn(io::Error),
    /// Graphs have the types that they were written with.
    #[error("{file}: graphs cannot be widened to f32; load the model that they were made from")]
    Widened {
        /// The folder.
        file: String,
    },
    /// A graph could not be loaded while times were measured.
    #[error(transparent)]
    Layers(#[from] LayersError),
}
