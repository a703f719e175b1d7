//! The state of layers without a KV cache, in trees of draft rows.
//!
//! A KV cache holds every position apart, so a rejected row is dropped by forgetting its slot. A recurrent layer has one state that
//! every row changes and that cannot be taken back. [`RecurrentLayer`] therefore keeps the state at a position and the inputs of the
//! positions behind it; [`TreeRows`] is the order in which a pass walks a tree, so that each row starts from the state of its parent.

mod checkpoints;
mod recurrent;
#[cfg(test)]
mod tests;
mod tree;

pub use checkpoints::{CheckpointPolicy, Purpose};
pub use recurrent::{RecurrentError, RecurrentLayer, RecurrentShape, ShapeError};
pub use tree::TreeRows;
