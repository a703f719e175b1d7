//! A model as static graphs: blocks of layers that compute batches of one length only, and are read from flash.
//!
//! This is the contract of a backend with static shapes, such as an NPU, over the CPU's kernels. A model is cut into blocks of
//! consecutive layers. Each block has two *graphs*: one for prefill chunks (say 256 rows), one for verification batches (say
//! 32). A graph computes all of its rows at every call, padding those that have no token; a longer batch takes several calls.
//! Embedding, final norm and head stay in memory; of each block at most one graph does, so memory is bounded by the blocks
//! and not by the graphs, and a change of graph means to read its file again, on a thread beside the computation. Which
//! block changes when is planned by [`schedule`](crate::schedule).
//!
//! A folder of graphs holds [packed files](crate::model::packed) of a piece each, so that one run of reads brings a graph:
//!
//! ```text
//! graphs.refrain               tokenizer, embedding, output norm, head
//! block-000-prefill.refrain    the layers of block 0
//! block-000-verify.refrain     the same layers
//! block-001-prefill.refrain    …
//! times.json                   what loads and calls take where they were measured (not needed)
//! ```
//!
//! Every header names the model, the blocks and both lengths; a file that does not belong to the others is refused. A file's
//! weights are compared with their checksums whenever they are read. Here both files of a block hold the same weights,
//! since the CPU's kernels take any number of rows; for a compiler of true graphs they would differ.
//!
//! Batch lengths, blocks and changes of graph leave every bit of the output as it is: a row's arithmetic does not depend on the
//! rows beside it, and a row sees only rows before it.

mod error;
mod file;
mod folder;
mod loader;
mod memory;
mod pass;
mod slots;
mod target;
mod warm_up;
mod write;

pub use crate::model::layers::{LayersError, LayersProblem};
pub use error::GraphsError;
pub use folder::GraphFolder;
pub use memory::GraphMemory;
pub use slots::{Switching, TracedWork, WorkKind};
pub use target::StaticGraphs;
pub use write::{GraphsSummary, write_graphs};

pub(in crate::model) use folder::ENDS;
