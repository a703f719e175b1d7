//! Runs the verification batch through the target.

use std::time::Duration;

use crate::cancel::CancelToken;
use crate::draft::{DraftSource, DraftTree};
use crate::engine::session::{Sources, TargetState, Verified};
use crate::engine::shared::Shared;
use crate::model::Meanwhile;
use crate::model::transformer::{ForwardError, Part, PassEnd};
use refrain_trees::TokenId;

/// What the pass of one generation reads.
pub(super) struct Reads<'a> {
    pub(super) shared: &'a Shared,
    pub(super) committed: &'a [TokenId],
    /// The tree whose rows are set in the target's batch.
    pub(super) tree: &'a DraftTree,
    pub(super) verify_lens: &'a [usize],
    /// Whether this step drafts.
    pub(super) drafts: bool,
    pub(super) cancel: &'a CancelToken,
}

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

/// Runs the rows of one generation to their final hidden states. They may be pruned, and may begin behind layers that have drafted
/// them. Meanwhile, where weights are read from flash, sources that compute prepare the next draft, unless this step does without
/// drafts.
///
/// # Errors
/// [`ForwardError`]; nothing is committed.
pub(super) fn verify(
    reads: Reads<'_>,
    target: &mut TargetState,
    sources: &mut Sources,
) -> Result<Verified, ForwardError> {
    let Reads { shared, committed, tree, verify_lens, drafts, cancel } = reads;
    sources.watched(cancel, |sources| {
        let meanwhile = drafts.then_some(Ahead { sources });
        target.verify(shared, committed, tree, verify_lens, meanwhile, cancel)
    })
}

/// Runs the rows of several generations in one pass. Returns the error of each part that failed.
pub(super) fn verify_together(shared: &Shared, parts: &mut [Part<'_>]) -> Vec<Option<ForwardError>> {
    let result = shared.model.forward_together(shared.compute(), parts, PassEnd::Hidden);
    let failure = |part: &Part<'_>| match part.is_cancelled() {
        true => Some(ForwardError::Cancelled),
        false => result.clone().err(),
    };
    parts.iter().map(failure).collect()
}
