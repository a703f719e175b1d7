//! The draft tree of the step.

use super::decide::Decision;
use crate::cancel::CancelToken;
use crate::draft::{CostProfile, DraftTree, TreeBuilder};
use crate::engine::session::Sources;
use refrain_trees::TokenId;

/// What drafting reads.
pub(super) struct Reads<'a> {
    pub(super) decision: &'a Decision,
    /// The whole text; the newest token is the root.
    pub(super) committed: &'a [TokenId],
    /// Generations that are expected to share the pass.
    pub(super) n_sharing: usize,
    pub(super) cancel: &'a CancelToken,
}

/// What drafting changes.
pub(super) struct Changes<'a> {
    pub(super) sources: &'a mut Sources,
    pub(super) builder: &'a mut TreeBuilder,
    /// When the next plain step is due.
    pub(super) costs: &'a mut CostProfile,
    pub(super) tree: &'a mut DraftTree,
}

/// The size of the step's draft.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drafted {
    /// Rows of the verification batch, padding included.
    pub(super) n_rows: usize,
    /// Draft tokens that the builder has considered.
    pub(super) n_considered: usize,
    /// Whether a tree was given up, so that the time of a plain step is learned.
    pub(super) is_given_up: bool,
}

/// Builds the draft tree from the newest committed token. A tree of only the root is plain decoding.
pub(super) fn draft(reads: Reads<'_>, changes: Changes<'_>) -> Drafted {
    let Reads { decision, committed, n_sharing, cancel } = reads;
    let Changes { sources, builder, costs, tree } = changes;
    let mut is_given_up = false;
    match decision.limits() {
        Some(limits) => {
            let shared = (n_sharing > 1).then(|| costs.shared_by(n_sharing));
            let shared = shared.as_ref().unwrap_or(costs);
            sources.watched(cancel, |sources| builder.build(sources, committed, limits, shared, tree));
            // The times of shared passes are not learned.
            is_given_up = n_sharing == 1 && is_plain_due(builder, costs, tree);
        }
        None => tree.start(committed[committed.len() - 1]),
    }
    if is_given_up {
        tree.truncate(1);
    }
    Drafted { n_rows: costs.batch_len(tree.len()), n_considered: builder.n_considered(), is_given_up }
}

/// Whether the time of a plain step is to be learned instead of drafting this tree.
fn is_plain_due(builder: &TreeBuilder, costs: &mut CostProfile, tree: &DraftTree) -> bool {
    tree.len() > 1 && builder.weighs() && {
        let advantage = builder.advantage(costs);
        costs.is_plain_due(tree.len(), advantage)
    }
}
