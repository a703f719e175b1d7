//! A set of nodes of one draft tree, as a bit mask.

use crate::VERIFY_ROWS_MAX;
use crate::tree::NodeIdx;

/// Some nodes of a draft tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeSet(u64);

// A tree has at most as many nodes as a verification batch has rows.
const _: () = assert!(VERIFY_ROWS_MAX <= u64::BITS as usize);

impl NodeSet {
    /// Every node of any tree.
    pub const ALL: NodeSet = NodeSet(u64::MAX);

    /// Only the root.
    pub const ROOT: NodeSet = NodeSet(1);

    /// Whether the node is in the set.
    pub fn contains(self, node: NodeIdx) -> bool {
        // Trees outside an engine may exceed the mask; they use `ALL`.
        self == Self::ALL || (node.index() < u64::BITS as usize && self.0 >> node.0 & 1 == 1)
    }

    /// Adds a node.
    ///
    /// # Panics
    /// The node's index is [`VERIFY_ROWS_MAX`] or more.
    pub fn insert(&mut self, node: NodeIdx) {
        assert!(node.index() < VERIFY_ROWS_MAX, "node {node} of {VERIFY_ROWS_MAX} at most");
        self.0 |= 1 << node.0;
    }

    /// Number of the first `n_nodes` nodes that are in the set.
    pub fn count(self, n_nodes: usize) -> usize {
        self.nodes(n_nodes).count()
    }

    /// Iterates over the nodes of the set among the first `n_nodes`, in order.
    pub fn nodes(self, n_nodes: usize) -> impl Iterator<Item = NodeIdx> {
        (0..n_nodes as u32).map(NodeIdx).filter(move |&node| self.contains(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_there() {
        let mut set = NodeSet::ROOT;
        for node in [5, 63, 5] {
            set.insert(NodeIdx(node));
        }
        assert_eq!(set.nodes(64).map(|node| node.0).collect::<Vec<_>>(), [0, 5, 63]);
        assert_eq!((set.count(6), set.count(5)), (2, 1));
        assert!(!set.contains(NodeIdx(1)) && !set.contains(NodeIdx(64)));
        assert!(NodeSet::ALL.contains(NodeIdx(100)));
        assert_eq!(NodeSet::ALL.count(9), 9);
    }
}
