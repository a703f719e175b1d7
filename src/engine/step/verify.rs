//! Runs the verification batch through the target.

use std::time::Duration;

use super::Member;
use crate::draft::{DraftSource, NodeSet};
use crate::engine::run::Run;
use crate::engine::session::{DraftingState, Session, Verified};
use crate::engine::shared::Shared;
use crate::model::Meanwhile;
use crate::model::transformer::{ForwardError, Part, PassEnd};

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

/// Runs the rows of a group to their final hidden states, in one pass. A member whose rows fail has an error as its outcome;
/// nothing is committed.
///
/// The rows of a single generation may be pruned, and may begin behind layers that have drafted them. Returns the nodes whose rows passed
/// all layers.
pub(super) fn verify(shared: &Shared, group: &mut [Member<'_>]) -> Verified {
    let whole = Verified { nodes: NodeSet::ALL, pruned: None, n_kept: 0 };
    match group {
        [member] => verify_alone(member).unwrap_or(whole),
        _ => {
            verify_together(shared, group);
            whole
        }
    }
}

/// The pass of one generation. Meanwhile, where weights are read from flash, sources that compute prepare the next draft, unless this
/// step does without drafts.
fn verify_alone(member: &mut Member<'_>) -> Option<Verified> {
    let drafts = member.begun.is_some_and(|begun| begun.decision.limits().is_some());
    let result = member.guarded(|session, Run { cancel, .. }| {
        let Session { shared, options, conversation, target, drafting, .. } = session;
        drafting.watched(cancel, |DraftingState { sources, tree, .. }| {
            let meanwhile = drafts.then_some(Ahead { sources });
            target.verify(shared, &conversation.tokens, tree, &options.verify_lens, meanwhile, cancel)
        })
    })?;
    result.map_err(|error| member.fail(error)).ok()
}

/// The pass of several generations.
fn verify_together(shared: &Shared, group: &mut [Member<'_>]) {
    let parts = group.iter_mut().map(|member| member.session.target.part(&member.run.cancel));
    let mut parts: Vec<Part<'_>> = parts.collect();
    let result = shared.model.forward_together(shared.compute(), &mut parts, PassEnd::Hidden);
    let is_cancelled: Vec<bool> = parts.iter().map(Part::is_cancelled).collect();
    drop(parts);
    for (member, is_cancelled) in group.iter_mut().zip(is_cancelled) {
        let failure = if is_cancelled { Some(ForwardError::Cancelled) } else { result.clone().err() };
        failure.into_iter().for_each(|error| member.fail(error));
    }
}
