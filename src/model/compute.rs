//! What a pass runs on, and how far it goes.

use crate::kernels::{Kernels, Pool};

/// The instruction set and the threads that a pass runs on.
#[derive(Clone, Copy)]
pub struct Compute<'a> {
    /// The instruction set.
    pub kernels: Kernels,
    /// The threads.
    pub pool: &'a Pool,
}

/// The last operation of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassEnd {
    /// The final hidden states, whose rows are projected onto the vocabulary next: a streamed output matrix is read ahead.
    Hidden,
    /// The final hidden states, which need no output matrix next.
    Unprojected,
    /// The keys and values of the last layer: all that a prefill chunk needs.
    KeysAndValues,
}
