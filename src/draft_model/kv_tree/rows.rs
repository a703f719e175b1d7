//! What the kinds of trees do differently.

use std::ops::Range;

use super::trunk::Trunk;
use crate::model::transformer::ForwardError;
use refrain_trees::TokenId;

/// How the rows of nodes are computed, and what a commit keeps of them.
pub(super) trait Rows: Send {
    /// Updates the text: the nodes on its path become text, as far as they can; the others are rolled back. Computes nothing.
    fn follow(&mut self, trunk: &mut Trunk, committed: &[TokenId]);

    /// Removes the text from position `len` on, and all nodes if one of its computed rows is removed.
    fn truncate(&mut self, trunk: &mut Trunk, len: usize);

    /// Removes the cached rows from `len` on, and all nodes.
    fn forget_from(&mut self, trunk: &mut Trunk, len: usize);

    /// Computes the root, of a tree without nodes, after the unread text before it.
    fn compute_root(&mut self, trunk: &mut Trunk) -> Result<(), ForwardError>;

    /// Computes nodes, each given by its parent and its token.
    fn compute(&mut self, trunk: &mut Trunk, wanted: &[(u32, TokenId)]) -> Result<(), ForwardError>;

    /// The entries of `wanted` that each pass computes: all in one by default.
    fn passes(&self, trunk: &Trunk, wanted: &[(u32, TokenId)]) -> Vec<Range<usize>> {
        let _ = trunk;
        if wanted.is_empty() { Vec::new() } else { std::iter::once(0..wanted.len()).collect() }
    }

    /// Rows that a pass computes again beside its own; 0 by default.
    fn n_again(&self, trunk: &Trunk) -> usize {
        let _ = trunk;
        0
    }

    /// Bytes on the heap beside the trunk's; 0 by default.
    fn memory_usage(&self) -> usize {
        0
    }
}
