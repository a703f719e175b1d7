//! The walk: the target's own choices, followed through the draft tree.

use std::ops::ControlFlow;

use crate::draft::{DraftTree, NodeIdx, NodeSet};
use crate::token::TokenId;

/// The nodes that a walk visited. Its buffers are reused between steps.
#[derive(Debug, Default)]
pub struct Walk {
    path: Vec<NodeIdx>,
}

impl Walk {
    /// Visited nodes, the root first: the rows to commit.
    ///
    /// The token chosen at the last of them is the newest committed token and not in the KV cache: the bonus token, or a
    /// token at which the output ended.
    pub fn path(&self) -> &[NodeIdx] {
        &self.path
    }
}

/// Follows the target's choices from the root of `tree` through the nodes in `verified`: those whose rows went through the whole
/// target. The root is one.
///
/// At each visited node `choose` gives the target's token, and `emit` takes it, with the verified node that carries it
/// as a draft (`None`: the bonus token). The walk continues at that node unless `emit` breaks, because the output has ended.
///
/// # Errors
/// The first error of `choose`. The path then holds the nodes visited so far, of which all but the last have been emitted.
pub fn walk<E>(
    tree: &DraftTree,
    verified: NodeSet,
    walk: &mut Walk,
    mut choose: impl FnMut(NodeIdx) -> Result<TokenId, E>,
    mut emit: impl FnMut(TokenId, Option<NodeIdx>) -> ControlFlow<()>,
) -> Result<(), E> {
    walk.path.clear();
    let mut node = Some(NodeIdx::ROOT);
    while let Some(visited) = node {
        walk.path.push(visited);
        let token = choose(visited)?;
        let child = tree.child(visited, token).filter(|&child| verified.contains(child));
        node = match emit(token, child) {
            ControlFlow::Continue(()) => child,
            ControlFlow::Break(()) => None,
        };
    }
    Ok(())
}
