//! The draft of one step: a tree of tokens.

use std::fmt;

use crate::token::TokenId;

/// Index of a node in a [`DraftTree`], and of its row in the verification batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeIdx(pub u32);

impl NodeIdx {
    /// The root: the last committed token.
    pub const ROOT: NodeIdx = NodeIdx(0);

    /// The node as an index into per-node tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeIdx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A draft with branches. Node 0 is the root, the last committed token; every other node is a draft token.
///
/// Invariants ([`check_integrity`](Self::check_integrity)): a parent precedes its children; siblings have
/// different tokens; depth is the parent's plus one; reach is at most the parent's. The builder inserts nodes
/// in order of falling reach, so every prefix of the arrays is a tree too, and the best tree of its size.
///
/// All arrays have the shape `[len]`. Bounded by the builder's `max_rows`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftTree {
    tokens: Vec<TokenId>,
    parents: Vec<u32>,
    depths: Vec<u32>,
    reach: Vec<f32>,
    sources: Vec<u8>,
    /// Number of leaves of each prefix: entry `i` belongs to the first `i + 1` nodes.
    leaves: Vec<u32>,
    id: u64,
}

/// The source index of the root.
const NO_SOURCE: u8 = u8::MAX;

impl DraftTree {
    /// An empty draft: only the root. Its verification is plain decoding.
    pub fn new(root: TokenId) -> Self {
        let mut tree = DraftTree::default();
        tree.start(root);
        tree
    }

    /// Removes all nodes and sets another root.
    pub fn start(&mut self, root: TokenId) {
        self.truncate(0);
        self.id = 0;
        self.insert(root, 0, 0, 1.0, NO_SOURCE);
    }

    /// Appends a node and returns its index.
    ///
    /// # Panics
    /// `parent` is not a node, or `source` is 255.
    pub fn push(&mut self, parent: NodeIdx, token: TokenId, reach: f32, source: usize) -> NodeIdx {
        assert!(parent.index() < self.len(), "parent {parent} of {} nodes", self.len());
        assert!(source < usize::from(NO_SOURCE), "source {source}");
        let node = NodeIdx(self.len() as u32);
        self.insert(token, parent.0, self.depths[parent.index()] + 1, reach, source as u8);
        node
    }

    /// Keeps the first `len` nodes.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.parents.truncate(len);
        self.depths.truncate(len);
        self.reach.truncate(len);
        self.sources.truncate(len);
        self.leaves.truncate(len);
    }

    fn insert(&mut self, token: TokenId, parent: u32, depth: u32, reach: f32, source: u8) {
        // The first child replaces its parent among the leaves; a lone root is one leaf.
        let branches = self.parents.get(1..).is_some_and(|parents| parents.contains(&parent));
        let leaves = self.leaves.last().map_or(1, |leaves| leaves + u32::from(branches));
        self.leaves.push(leaves);
        self.tokens.push(token);
        self.parents.push(parent);
        self.depths.push(depth);
        self.reach.push(reach);
        self.sources.push(source);
    }

    /// Number of nodes, including the root: the rows of the verification batch.
    #[expect(clippy::len_without_is_empty, reason = "a tree has at least its root; see `is_empty_draft`")]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the tree has only the root.
    pub fn is_empty_draft(&self) -> bool {
        self.len() <= 1
    }

    /// Number of nodes without children: 1 for a chain, and for a lone root.
    pub fn n_leaves(&self) -> usize {
        self.leaves.last().map_or(0, |&leaves| leaves as usize)
    }

    /// Tokens of all nodes.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Parents of all nodes; `parents()[i] < i`, except that the root is its own parent.
    pub fn parents(&self) -> &[u32] {
        &self.parents
    }

    /// Depths of all nodes; the root's is 0.
    pub fn depths(&self) -> &[u32] {
        &self.depths
    }

    /// Estimated probability that the walk reaches each node; the root's is 1.
    pub fn reach(&self) -> &[f32] {
        &self.reach
    }

    /// The node's token.
    pub fn token(&self, node: NodeIdx) -> TokenId {
        self.tokens[node.index()]
    }

    /// The node's parent; `None` for the root.
    pub fn parent(&self, node: NodeIdx) -> Option<NodeIdx> {
        (node != NodeIdx::ROOT).then(|| NodeIdx(self.parents[node.index()]))
    }

    /// Index of the source that proposed the node, in the order given to the builder; `None` for the root. If
    /// several sources agreed, the source with the strongest claim.
    pub fn source(&self, node: NodeIdx) -> Option<usize> {
        let source = self.sources[node.index()];
        (source != NO_SOURCE).then_some(usize::from(source))
    }

    /// The child of `node` with `token`. O(nodes after `node`).
    pub fn child(&self, node: NodeIdx, token: TokenId) -> Option<NodeIdx> {
        self.children(node).find(|&child| self.token(child) == token)
    }

    /// The children of `node`, best first. O(nodes after `node`).
    pub fn children(&self, node: NodeIdx) -> impl Iterator<Item = NodeIdx> + Clone + '_ {
        let after = node.index() + 1..self.len();
        after.filter(move |&i| self.parents[i] == node.0).map(|i| NodeIdx(i as u32))
    }

    /// Expected tokens of the step, bonus token included: `gain(T) = 1 + Σ r(v)` (Lever, eq. 2).
    pub fn gain(&self) -> f32 {
        self.reach.iter().sum()
    }

    /// Number of the build that made this tree, 0 if none: identifies the builder's own tree.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Sets the number of the build.
    pub fn set_id(&mut self, id: u64) {
        self.id = id;
    }

    /// Panics if an invariant is violated: for tests, after any operation.
    pub fn check_integrity(&self) {
        let len = self.len();
        assert!(len > 0, "a tree has a root");
        for lens in
            [self.parents.len(), self.depths.len(), self.reach.len(), self.sources.len(), self.leaves.len()]
        {
            assert_eq!(lens, len);
        }
        assert_eq!((self.parents[0], self.depths[0], self.reach[0]), (0, 0, 1.0));
        for i in 1..len {
            let parent = self.parents[i] as usize;
            assert!(parent < i, "parent {parent} of node {i}");
            assert_eq!(self.depths[i], self.depths[parent] + 1, "depth of node {i}");
            assert!(self.reach[i] >= 0.0 && self.reach[i] <= self.reach[parent], "reach of node {i}");
            assert_ne!(self.sources[i], NO_SOURCE);
            let twin = self.child(NodeIdx(parent as u32), self.tokens[i]);
            assert_eq!(twin, Some(NodeIdx(i as u32)), "siblings with token {}", self.tokens[i]);
            let is_leaf = |node: &usize| !self.parents[1..=i].contains(&(*node as u32));
            assert_eq!((0..=i).filter(is_leaf).count(), self.leaves[i] as usize, "leaves of {} nodes", i + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_by_parent_and_token() {
        let mut tree = DraftTree::new(TokenId(1));
        let a = tree.push(NodeIdx::ROOT, TokenId(2), 0.5, 0);
        let b = tree.push(NodeIdx::ROOT, TokenId(3), 0.4, 1);
        let c = tree.push(a, TokenId(3), 0.25, 1);
        tree.check_integrity();
        assert_eq!(tree.child(NodeIdx::ROOT, TokenId(3)), Some(b));
        assert_eq!(tree.child(a, TokenId(3)), Some(c));
        assert_eq!(tree.child(b, TokenId(3)), None);
        assert_eq!((tree.parent(c), tree.parent(NodeIdx::ROOT)), (Some(a), None));
        assert_eq!((tree.source(c), tree.source(NodeIdx::ROOT)), (Some(1), None));
        assert!((tree.gain() - 2.15).abs() < 1e-6);
        assert_eq!(tree.n_leaves(), 2);
        tree.truncate(2);
        assert_eq!(tree.n_leaves(), 1);
        tree.push(a, TokenId(7), 0.25, 0);
        tree.push(a, TokenId(8), 0.25, 0);
        assert_eq!(tree.n_leaves(), 2);
        tree.check_integrity();
        tree.start(TokenId(9));
        assert!(tree.is_empty_draft());
        assert_eq!(tree.n_leaves(), 1);
        tree.check_integrity();
    }
}
