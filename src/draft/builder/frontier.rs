//! The nodes proposed by sources, and their order of expansion.

use std::cmp::Ordering;

use refrain_trees::NodeIdx;
use refrain_trees::TokenId;

/// A proposed node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) token: TokenId,
    /// Index in the tree of the node's parent, which is already in the tree.
    pub(super) parent: NodeIdx,
    pub(super) depth: u32,
    pub(super) reach: f32,
    pub(super) source: u8,
    /// The node's range in `cursors`.
    pub(super) cursors: (u32, u32),
    /// Upper bound of a child's probability.
    pub(super) cap: f32,
}

/// A node in the frontier. Order: highest reach first, then first found first.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Ranked {
    /// The node's reach; for a node in the tree, the upper bound of its children's reach.
    pub(super) reach: f32,
    pub(super) found: u32,
    /// The node's index if it is in the tree and waits for its expansion.
    pub(super) node: Option<NodeIdx>,
}

impl Eq for Ranked {}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.reach.total_cmp(&other.reach).then(other.found.cmp(&self.found))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
