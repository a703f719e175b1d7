//! Options that several programs have. The library that uses an option checks its range.

mod drafts;
mod engine;
mod size;
mod streaming;

pub use drafts::{DraftModelArg, PruningArg, ReuseArgs};
pub use engine::{ComputeArgs, KvArg, ModelArgs, QuantizeArg, SwitchingArg, isa};
pub use size::{addressable_bytes, bytes};
pub use streaming::{StreamingArgs, bandwidth};
