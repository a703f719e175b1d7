//! The walk: follows the target's own choices through the draft tree.

use crate::draft::{DraftTree, NodeIdx, NodeSet};
use refrain_trees::TokenId;

/// The visited nodes and chosen tokens of a walk. The buffers are reused between steps.
#[derive(Debug, Default)]
pub struct Walk {
    path: Vec<NodeIdx>,
    tokens: Vec<TokenId>,
    /// The verified node that carries the last token.
    last: Option<NodeIdx>,
}

impl Walk {
    /// Visited nodes, root first: the rows to commit. Shape `[tokens().len()]`, or one more if the walk failed at the
    /// last node.
    pub fn path(&self) -> &[NodeIdx] {
        &self.path
    }

    /// The token chosen at each visited node. The last one is not in the KV cache: it is the bonus token, or a
    /// drafted token that ended the output.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The verified node whose drafted token equals token `i`; `None` for the bonus token.
    pub fn drafted(&self, i: usize) -> Option<NodeIdx> {
        self.path.get(i + 1).copied().or(self.last).filter(|_| i < self.tokens.len())
    }
}

/// Follows the target's choices from the root of `tree` through the nodes in `verified`, whose rows passed through
/// the whole target. `verified` contains the root.
///
/// At each visited node, `choose` receives the node and the tokens chosen so far, and returns the target's token.
/// `is_end` receives the token and returns whether it ends the output. The walk continues at the verified child with
/// that token.
///
/// # Errors
/// The first error of `choose`. The last visited node then has no token.
pub fn walk<E>(
    tree: &DraftTree,
    verified: NodeSet,
    walk: &mut Walk,
    mut choose: impl FnMut(NodeIdx, &[TokenId]) -> Result<TokenId, E>,
    mut is_end: impl FnMut(TokenId) -> bool,
) -> Result<(), E> {
    let Walk { path, tokens, last } = walk;
    path.clear();
    tokens.clear();
    *last = None;
    let mut next = Some(NodeIdx::ROOT);
    while let Some(node) = next {
        path.push(node);
        let token = choose(node, tokens)?;
        tokens.push(token);
        let is_last = is_end(token);
        let child = tree.child(node, token).filter(|&child| verified.contains(child));
        next = child.filter(|_| !is_last);
        if next.is_none() {
            *last = child;
        }
    }
    Ok(())
}
