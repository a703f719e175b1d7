//! Options that several programs have. The library that uses an option checks its range.

mod drafts;
mod engine;
mod settings;
mod size;
mod streaming;

pub use drafts::{DraftModelArg, PruningArg, ReuseArgs};
pub use engine::{ComputeArgs, KvArg, ModelArgs, QuantizeArg, isa};
pub use settings::{number, one_of, setting};
pub use size::{addressable_bytes, bytes, bytes_text};
pub use streaming::{StreamingArgs, bandwidth};
