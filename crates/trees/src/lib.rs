//! The data of drafts: token ids, a suffix automaton over them, and trees of draft tokens.
//!
//! The crate computes no text, no logits and no costs. `refrain` exports [`TokenId`], [`DraftTree`], [`NodeIdx`] and
//! [`VERIFY_ROWS_MAX`]; the rest is a part of Refrain outside semantic versioning.

mod node_set;
pub mod sam;
mod token;
mod tree;

pub use node_set::NodeSet;
pub use token::TokenId;
pub use tree::{DraftTree, NodeIdx};

/// Rows of the longest verification batch, the root included.
pub const VERIFY_ROWS_MAX: usize = 64;
