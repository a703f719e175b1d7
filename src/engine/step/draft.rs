//! The draft tree of the step.

use super::decide::Decision;
use crate::cancel::CancelToken;
use crate::engine::session::{DraftingState, Session};

/// The step's draft; its tree is in [`DraftingState::tree`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Drafted {
    /// Rows of the verification batch, padding included.
    pub(super) n_rows: usize,
    /// Draft tokens that the builder has considered.
    pub(super) n_considered: usize,
    /// Whether a tree was given up, so that the time of a plain step is learned.
    pub(super) is_given_up: bool,
}

/// Builds the draft tree from the newest committed token, for a pass that `n_sharing` generations share. A tree of
/// only the root is plain decoding.
pub(super) fn draft(
    session: &mut Session,
    decision: &Decision,
    n_sharing: usize,
    cancel: &CancelToken,
) -> Drafted {
    session.follow_context();
    let tokens = &session.conversation.tokens;
    let is_given_up = match decision.limits() {
        Some(limits) => {
            session.target.share_text(tokens);
            session.drafting.watched(cancel, |drafting| {
                let DraftingState { sources, builder, costs, tree, .. } = drafting;
                let shared = (n_sharing > 1).then(|| costs.shared_by(n_sharing));
                let costs = shared.as_ref().unwrap_or(costs);
                builder.build(sources, tokens, limits, costs, tree);
                // The times of shared passes are not learned.
                n_sharing == 1 && is_given_up(drafting)
            })
        }
        None => {
            session.drafting.tree.start(tokens[tokens.len() - 1]);
            false
        }
    };
    let DraftingState { builder, costs, tree, .. } = &session.drafting;
    Drafted { n_rows: costs.batch_len(tree.len()), n_considered: builder.n_considered(), is_given_up }
}

/// Gives the newest tree up if the time of a plain step is to be learned.
fn is_given_up(drafting: &mut DraftingState) -> bool {
    let DraftingState { builder, costs, tree, .. } = drafting;
    let is_due = tree.len() > 1 && builder.weighs() && {
        let advantage = builder.advantage(costs);
        costs.is_plain_due(tree.len(), advantage)
    };
    if is_due {
        tree.truncate(1);
    }
    is_due
}
