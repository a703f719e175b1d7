//! What the sources claim under a node, and what remains of it: children, each with one probability.

use super::TreeBuilder;
use crate::draft::Weighing;
use crate::draft::reliability::{Agreement, Evidence};
use crate::draft::source::{Cursor, DraftSource, SourceKind};
use crate::token::TokenId;

/// A source's claim about a token under an expanded node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) token: TokenId,
    pub(super) source: u8,
    /// The claim's probability after the reliability table.
    pub(super) probability: f32,
    pub(super) evidence: Evidence,
    pub(super) next: Cursor,
}

/// A token under the node being expanded, and the claims that agree on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Child {
    pub(super) token: TokenId,
    pub(super) probability: f32,
    pub(super) source: u8,
    pub(super) claims: (u32, u32),
}

/// How much more a claim of calibration or reuse may be worth once matches of text agree with it: by the priors up to 4.3 times.
const AGREED_RISE_MAX: f32 = 5.0;

impl TreeBuilder {
    /// Takes down what a source claims at the cursors of `scratch.frontier`, below a node with this reach. What would be below the
    /// least reach is left out: most claims are, and sorting them takes longer than finding them.
    pub(super) fn claim(&mut self, index: u8, source: &mut dyn DraftSource, (depth, reach): (u32, f32)) {
        self.scratch.candidates.clear();
        source.expand(&self.scratch.frontier, &mut self.scratch.candidates);
        for candidate in self.scratch.candidates.as_slice() {
            if candidate.token.index() >= self.config.vocab_size {
                continue;
            }
            let evidence = Evidence {
                kind: source.kind(),
                probability: candidate.probability,
                match_len: candidate.match_len,
                count: candidate.count,
                depth,
                agreement: Agreement::Unknown,
            };
            let probability = match self.config.weighing {
                Weighing::Learned => self.table.probability(&evidence),
                Weighing::AsClaimed => evidence.probability.clamp(0.0, 1.0),
            };
            let rise = if is_of_target(evidence.kind) { AGREED_RISE_MAX } else { 1.0 };
            let most = (rise * probability).min(1.0);
            if reach * most >= self.config.reach_min {
                let (token, next) = (candidate.token, candidate.next);
                self.claims.push(Claim { token, source: index, probability, evidence, next });
            }
        }
    }

    /// Weighs the claims about which others have something to say anew; they are sorted by token.
    fn note_agreement(&mut self, first_claim: usize) {
        let claims = &mut self.claims[first_claim..];
        let was_asked = claims.iter().any(|claim| is_of_model(claim.evidence.kind));
        for group in claims.chunk_by_mut(|a, b| a.token == b.token) {
            let of_text = group.iter().filter(|claim| claim.evidence.kind.matches_text());
            let text = of_text.map(|claim| claim.evidence.match_len).max();
            let mut model = None;
            for claim in group.iter_mut().filter(|claim| is_of_model(claim.evidence.kind)) {
                claim.evidence.agreement = if text.is_some() { Agreement::Text } else { Agreement::Unknown };
                claim.evidence.match_len = text.unwrap_or(0);
                claim.probability = self.table.probability(&claim.evidence);
                model = Some(claim.probability);
            }
            for claim in group.iter_mut().filter(|claim| !is_of_model(claim.evidence.kind)) {
                let before = claim.evidence.agreement;
                claim.evidence.agreement = match (model, text) {
                    (Some(_), _) => Agreement::Model,
                    (None, _) if was_asked => Agreement::NotModel,
                    (None, Some(_)) if is_of_target(claim.evidence.kind) => Agreement::Text,
                    (None, _) => Agreement::Unknown,
                };
                if let Some(probability) = model {
                    // The model's claim, which knows of the match, speaks for both.
                    claim.probability = probability;
                } else if claim.evidence.agreement != before {
                    claim.probability = self.table.probability(&claim.evidence);
                }
            }
        }
    }

    /// Merges the claims from `first_claim` on into children, best first.
    ///
    /// Claims for one token come from the same text more often than not, so they are no independent witnesses: the
    /// strongest counts. (Their noisy-or was tried: acceptance with context and history was the same to three digits.)
    pub(super) fn agree(&mut self, first_claim: usize) {
        // Unstable, with a complete key: a stable sort would allocate.
        self.claims[first_claim..].sort_unstable_by(|a, b| {
            let by_token = a.token.cmp(&b.token).then(a.source.cmp(&b.source));
            by_token.then(b.probability.total_cmp(&a.probability)).then(a.next.0.cmp(&b.next.0))
        });
        if (self.hears_target || self.hears_model) && self.config.weighing == Weighing::Learned {
            self.note_agreement(first_claim);
        }
        let children = &mut self.scratch.children;
        children.clear();
        let mut start = first_claim as u32;
        for group in self.claims[first_claim..].chunk_by(|a, b| a.token == b.token) {
            let end = start + group.len() as u32;
            let strongest = group
                .iter()
                .reduce(|best, claim| if claim.probability > best.probability { claim } else { best });
            let strongest = strongest.expect("a group is not empty");
            children.push(Child {
                token: strongest.token,
                probability: strongest.probability,
                source: strongest.source,
                claims: (start, end),
            });
            start = end;
        }
        children.sort_unstable_by(|a, b| b.probability.total_cmp(&a.probability).then(a.token.cmp(&b.token)));
        share(children, self.hears_target || self.hears_model);
        children.truncate(self.config.n_children_max);
    }
}

/// Whether a kind's claims are what the target has said elsewhere.
pub(super) fn is_of_target(kind: SourceKind) -> bool {
    matches!(kind, SourceKind::Calibration | SourceKind::Reuse)
}

/// Whether a kind's claims are a smaller model's.
pub(super) fn is_of_model(kind: SourceKind) -> bool {
    kind == SourceKind::DraftModel
}

/// Scales the children's probabilities where they exceed 1 together: alike, where matches of text claim them. What the
/// target has said elsewhere, or a draft model says, adds many weak claims to a strong one, which would cut a long copy short
/// token by token; there the odds share the whole, so that what is nearly certain stays so.
fn share(children: &mut [Child], by_odds: bool) {
    let total: f32 = children.iter().map(|child| child.probability).sum();
    if total <= 1.0 {
        return;
    }
    if !by_odds {
        children.iter_mut().for_each(|child| child.probability /= total);
        return;
    }
    let odds = |child: &Child| child.probability / (1.0 - child.probability).max(1e-3);
    let total: f32 = children.iter().map(odds).sum();
    children.iter_mut().for_each(|child| child.probability = child.probability.min(odds(child) / total));
}
