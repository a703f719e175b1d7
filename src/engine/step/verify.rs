//! Runs the verification batch through the target.

use std::time::Duration;

use super::decide::Decision;
use super::draft::Drafted;
use crate::cancel::CancelToken;
use crate::draft::DraftSource;
use crate::engine::session::{DraftingState, Session, Verified};
use crate::model::Meanwhile;
use crate::model::transformer::ForwardError;

/// The sources that compute, while the pass waits for weights from flash.
struct Ahead<'a> {
    sources: &'a mut [Box<dyn DraftSource>],
}

impl Meanwhile for Ahead<'_> {
    fn work(&mut self, budget: Duration) -> bool {
        let us = budget.as_secs_f32() * 1e6;
        self.sources.iter_mut().filter_map(|source| source.computing()).any(|source| source.compute_ahead(us))
    }
}

/// Runs the tree's rows to their final hidden states. Meanwhile, where weights are read from flash, sources that compute prepare the next
/// draft, unless this step does without drafts.
///
/// # Errors
/// [`ForwardError`]; nothing is committed.
pub(super) fn verify(
    session: &mut Session,
    decision: &Decision,
    drafted: &Drafted,
    cancel: &CancelToken,
) -> Result<Verified, ForwardError> {
    let Session { shared, options, conversation, target, drafting, .. } = session;
    let committed = &conversation.tokens[..];
    drafting.watched(cancel, |DraftingState { sources, tree, .. }| {
        let meanwhile = decision.limits().map(|_| Ahead { sources });
        let rows = (&*tree, drafted.n_rows);
        target.verify(shared, committed, rows, &options.verify_lens, meanwhile, cancel)
    })
}
