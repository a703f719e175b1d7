//! Static graphs: blocks of layers that compute batches of one fixed length, loaded from flash.
//!
//! The module implements the contract of a backend with static shapes, such as an NPU, with the CPU's
//! kernels. A model is cut into blocks of consecutive layers. Each block has two *graphs*: one for prefill
//! chunks (for example 256 rows) and one for verification batches (for example 32). Each call of a graph
//! computes all of its rows; rows without a token are padding. A longer batch takes several calls. Embedding,
//! final norm and head stay in memory, with at most one graph per block. So the blocks bound the memory, not
//! the graphs. To change the graph of a block, a thread reads the other graph's file while passes compute.
//! The module `schedule` plans these changes.
//!
//! A folder of graphs holds [packed files](crate::model::packed), one piece each, so that one sequence of
//! reads loads a graph:
//!
//! ```text
//! graphs.refrain               tokenizer, embedding, output norm, head
//! block-000-prefill.refrain    the layers of block 0
//! block-000-verify.refrain     the same layers
//! block-001-prefill.refrain    …
//! times.json                   measured times of loads and calls (optional)
//! ```
//!
//! Every header states the model, the blocks and both lengths, and a file that does not match the others is
//! refused. The checksums of weights are verified at every load. Both files of a block hold the same weights,
//! since the CPU's kernels accept any number of rows. The two files of a graph compiler would differ.
//!
//! Batch lengths, blocks and graph changes do not affect the bits of the output: the arithmetic of a row does
//! not depend on the other rows, and a row sees only rows before it.

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
