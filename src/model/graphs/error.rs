//! Errors of opening static graphs.

use std::io;

use thiserror::Error;

use crate::error::of_alloc;
use crate::kernels::AllocError;
use crate::model::layers::LayersError;
use crate::model::packed::PackedFileError;
use refrain_files::{ErrorKind, Facts, Fault};

/// A folder of graphs could not be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GraphsError {
    /// One of its files is invalid or could not be read.
    #[error(transparent)]
    Packed(#[from] PackedFileError),
    /// A file belongs to another model, or has the name of another file.
    #[error("{file}: {field} is {found}, expected {expected}")]
    Foreign {
        /// The file.
        file: String,
        /// The field that differs.
        field: &'static str,
        /// Its value in this file.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// The model has recurrent layers, which static graphs do not support.
    #[error("{file}: static graphs cannot hold recurrent layers")]
    Recurrent {
        /// The file.
        file: String,
    },
    /// The system refused a second handle to a file, for direct reads.
    #[error("{file}: cannot read: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// One graph per block, embedding and head exceed the limit of memory. Nothing was loaded.
    #[error("one graph per block, embedding and head need {needed} bytes of memory, the limit is {limit}")]
    MemoryLimit {
        /// The bytes that they need.
        needed: u64,
        /// The limit.
        limit: u64,
    },
    /// An allocation failed.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The loading thread could not be started.
    #[error("the loading thread could not be started: {0}")]
    Spawn(io::Error),
    /// The element types of graphs are fixed when they are written.
    #[error("{file}: graphs cannot be widened to f32; load the model that they were made from")]
    Widened {
        /// The folder.
        file: String,
    },
    /// A graph could not be loaded during the measurement of times.
    #[error(transparent)]
    Layers(#[from] LayersError),
}

impl Fault for GraphsError {
    fn facts(&self) -> Facts<'_> {
        match self {
            Self::Packed(error) => error.facts(),
            Self::Foreign { file, field, .. } => Facts::new(ErrorKind::Mismatch).file(file).field(field),
            Self::Recurrent { file } | Self::Widened { file } => {
                Facts::new(ErrorKind::Unsupported).file(file)
            }
            Self::Io { file, source } => Facts::io(source.kind()).file(file),
            Self::MemoryLimit { needed, limit } => {
                Facts::new(ErrorKind::OverLimit).field("graph_memory_max").over(*needed, *limit)
            }
            Self::Alloc(error) => of_alloc(error),
            Self::Spawn(source) => Facts::io(source.kind()),
            Self::Layers(error) => error.facts(),
        }
    }
}
