//! What became of claims: which of them the target confirmed.

use super::TreeBuilder;
use super::claims::Claim;
use crate::draft::NodeIdx;
use crate::draft::reliability::Evidence;
use crate::draft::source::{DraftSource, SourceKind, StepOutcome};
use crate::token::TokenId;

impl TreeBuilder {
    /// What [`observe`](Self::observe) learns, or would learn, from a step of the newest tree: each claim under a visited
    /// node, and whether the target chose its token. For fitting the table that ships.
    pub fn claims_seen(&self, outcome: &StepOutcome<'_>, sink: impl FnMut(&Evidence, bool)) {
        for_judged(&self.claims, &self.claims_of, outcome, sink);
    }

    /// Every claim under a visited node is evidence: the committed token shows if it was right.
    pub(super) fn learn(&mut self, outcome: &StepOutcome<'_>) {
        let TreeBuilder { table, claims, claims_of, .. } = self;
        for_judged(claims, claims_of, outcome, |evidence, hit| table.update(evidence, hit));
        for_visited(claims, claims_of, outcome, |claims, chosen| {
            let of_model = claims.iter().filter(|claim| claim.evidence.kind == SourceKind::DraftModel);
            let first = of_model.reduce(|first, claim| {
                if claim.evidence.probability > first.evidence.probability { claim } else { first }
            });
            if let Some(first) = first {
                table.update_first(first.evidence.kind, first.token == chosen);
            }
        });
    }

    /// What is known of kinds that compute ages where none of them was asked.
    pub(super) fn age(&mut self, sources: &[Box<dyn DraftSource>]) {
        let kind = SourceKind::DraftModel;
        let was_asked = self.claims.iter().any(|claim| claim.evidence.kind == kind);
        if !was_asked && sources.iter().any(|source| source.kind() == kind) {
            self.table.age_first(kind);
        }
    }
}

/// Calls `judged` with every claim under the visited nodes, and whether the target chose its token.
fn for_judged(
    claims: &[Claim],
    claims_of: &[(u32, u32)],
    outcome: &StepOutcome<'_>,
    mut judged: impl FnMut(&Evidence, bool),
) {
    for_visited(claims, claims_of, outcome, |claims, chosen| {
        // Sorted by token and source: of a source's claims about one token, the strongest is the first.
        for same in claims.chunk_by(|a, b| (a.token, a.source) == (b.token, b.source)) {
            judged(&same[0].evidence, same[0].token == chosen);
        }
    });
}

/// Calls `visit` with the claims under each visited node, and the token that the target chose there.
fn for_visited(
    claims: &[Claim],
    claims_of: &[(u32, u32)],
    outcome: &StepOutcome<'_>,
    mut visit: impl FnMut(&[Claim], TokenId),
) {
    let visited = std::iter::once(NodeIdx::ROOT).chain(outcome.accepted.iter().copied());
    for (node, &chosen) in visited.zip(outcome.new_tokens) {
        let Some(&(start, end)) = claims_of.get(node.index()) else { break };
        visit(&claims[start as usize..end as usize], chosen);
    }
}
