//! Evaluates claims: finds the claims that the target confirmed.

use super::TreeBuilder;
use super::claim::Claim;
use crate::draft::evidence::Evidence;
use crate::draft::source::StepOutcome;
use refrain_trees::NodeIdx;
use refrain_trees::TokenId;

impl TreeBuilder {
    /// Calls `sink` with the evidence on claims that [`observe`](Self::observe) learns from after a step of the
    /// newest tree: each claim under a visited node, and whether the target chose its token. For fitting the
    /// built-in table.
    pub fn claims_seen(&self, outcome: &StepOutcome<'_>, mut sink: impl FnMut(&Evidence, bool)) {
        for_each_judged(&self.claims, &self.claims_of, outcome, |claim, hit| sink(&claim.evidence, hit));
    }

    /// Learns from every claim under a visited node: the committed token decides whether the claim was right.
    pub(super) fn learn(&mut self, outcome: &StepOutcome<'_>) {
        let TreeBuilder { table, claims, claims_of, slots, computes, .. } = self;
        for_each_judged(claims, claims_of, outcome, |claim, hit| {
            table.update(slots[usize::from(claim.source)], &claim.evidence, hit);
        });
        for (index, _) in computes.iter().enumerate().filter(|(_, computes)| **computes) {
            for_visited(claims, claims_of, outcome, |claims, chosen| {
                let of_source = claims.iter().filter(|claim| usize::from(claim.source) == index);
                let first = of_source.reduce(|first, claim| {
                    if claim.evidence.probability > first.evidence.probability { claim } else { first }
                });
                if let Some(first) = first {
                    table.update_first(slots[index], first.token == chosen);
                }
            });
        }
    }

    /// Learns from the draft tokens under visited nodes.
    pub(super) fn learn_drafted(&mut self, outcome: &StepOutcome<'_>) {
        let (tree, reach) = (outcome.tree, outcome.tree.reach());
        let visited = std::iter::once(NodeIdx::ROOT).chain(outcome.accepted.iter().copied());
        for (node, &chosen) in visited.zip(outcome.new_tokens) {
            for child in tree.children(node) {
                let Some(source) = tree.source(child) else { continue };
                let probability = reach[child.index()] / reach[node.index()];
                self.table.update_drafted(self.slots[source], probability, tree.token(child) == chosen);
            }
        }
    }

    /// Ages the first-hit rate of a computing source in steps without its expansion, and withheld claims in
    /// every step.
    pub(super) fn age(&mut self) {
        let TreeBuilder { table, claims, slots, computes, .. } = self;
        for (index, (&slot, &computes)) in slots.iter().zip(&*computes).enumerate() {
            if computes && !claims.iter().any(|claim| usize::from(claim.source) == index) {
                table.age_first(slot);
            }
            table.end_step(slot);
        }
    }
}

/// Calls `judged` with every claim under the visited nodes, and whether the target chose its token.
fn for_each_judged(
    claims: &[Claim],
    claims_of: &[(u32, u32)],
    outcome: &StepOutcome<'_>,
    mut judged: impl FnMut(&Claim, bool),
) {
    for_visited(claims, claims_of, outcome, |claims, chosen| {
        // Sorted by token and source; the first of a source's claims about one token is the strongest.
        for same in claims.chunk_by(|a, b| (a.token, a.source) == (b.token, b.source)) {
            judged(&same[0], same[0].token == chosen);
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
