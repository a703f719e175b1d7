//! The error of the measurements of a running model.

use std::io;

use refrain::internals::model::graphs::LayersError;
use refrain::{GenerateError, LoadError, SessionError};
use thiserror::Error;

use crate::strategy::Strategy;

/// A measurement of [`graphs`](crate::graphs), [`pressure`](crate::pressure), [`stream`](crate::stream) or
/// [`sweep`](crate::sweep) failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A model could not be loaded, or cannot draft with its own layers at a share.
    #[error(transparent)]
    Engine(#[from] LoadError),
    /// The session could not be started.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Decoding failed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The file could not be read completely.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// A strategy drafts with a model, but there is no draft model.
    #[error("{0} requires a draft model")]
    NoDraftModel(Strategy),
    /// The model is not kept as static graphs.
    #[error("the model is not kept as static graphs")]
    NoGraphs,
    /// A graph could not be loaded.
    #[error(transparent)]
    Layers(#[from] LayersError),
    /// The whole model fits the budget, or it is not streamed.
    #[error("{model}: nothing is streamed with a budget of {budget} bytes")]
    NotStreamed {
        /// The model.
        model: String,
        /// The budget.
        budget: u64,
    },
    /// The system gives no thread for the reports of memory pressure.
    #[error("a thread could not be started: {0}")]
    Spawn(io::Error),
    /// An answer differs from the first one: a bug.
    #[error("answer {n_answer} has token {found} at place {place}, the first answer {expected}")]
    Differs {
        /// The answer.
        n_answer: usize,
        /// The index of the token.
        place: usize,
        /// The token of this answer.
        found: u32,
        /// The token of the first answer.
        expected: u32,
    },
    /// The system does not report the memory of the process.
    #[error("this system does not say how much memory the process has held (VmHWM of /proc/self/status)")]
    NoPeak,
}
