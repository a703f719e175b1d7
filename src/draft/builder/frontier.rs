//! The nodes that sources have proposed, and the order in which they come up.

use std::cmp::Ordering;

use crate::draft::tree::NodeIdx;
use crate::token::TokenId;

/// A node that some source proposed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) token: TokenId,
    /// Index in the tree of the node's parent, which is there already.
    pub(super) parent: NodeIdx,
    pub(super) depth: u32,
    pub(super) reach: f32,
    pub(super) source: u8,
    /// The node's part of `cursors`.
    pub(super) cursors: (u32, u32),
    /// The most that a child's probability can be.
    pub(super) cap: f32,
}

/// A found node in the frontier: highest reach first, then first found first.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Ranked {
    /// The node's reach; of a node in the tree the most that a child's can be.
    pub(super) reach: f32,
    pub(super) found: u32,
    /// Where it is in the tree, if it is, and its children are to be asked for.
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
