//! Collects the sources' claims under a node and merges them into children, each with one probability.

use super::TreeBuilder;
use super::claim::{Child, Claim};
use crate::draft::evidence::{Agreement, Evidence, EvidenceClass};
use crate::draft::source::DraftSource;
use crate::kernels::Instant;

/// Bound on the factor by which agreement with text raises a claim of the target's rows. The largest factor of the
/// priors is 4.3.
const AGREED_RISE_MAX: f32 = 5.0;

impl TreeBuilder {
    /// Collects the claims of a source at the cursors of `scratch.frontier`, below a node with the given
    /// reach. Claims below `reach_min` are withheld: they are the majority, and sorting them takes longer
    /// than finding them.
    pub(super) fn claim(&mut self, index: u8, source: &mut dyn DraftSource, (depth, reach): (u32, f32)) {
        let started = self.is_timed.then(Instant::now);
        let (class, slot) = (source.evidence(), self.slots.get(usize::from(index)).copied());
        self.scratch.candidates.clear();
        source.expand(&self.scratch.frontier, &mut self.scratch.candidates);
        for candidate in self.scratch.candidates.as_slice() {
            if candidate.token.index() >= self.config.vocab_size {
                continue;
            }
            let evidence = Evidence {
                class,
                probability: candidate.probability,
                match_len: candidate.match_len,
                count: candidate.count,
                depth,
                agreement: Agreement::Unknown,
            };
            // Sources have slots only if claims are weighed.
            let probability = match slot {
                Some(slot) => self.table.probability(slot, &evidence),
                None => evidence.probability.clamp(0.0, 1.0),
            };
            let rise = if class.is_of_target() { AGREED_RISE_MAX } else { 1.0 };
            let most = (rise * probability).min(1.0);
            if reach * most >= self.config.reach_min {
                let (token, next) = (candidate.token, candidate.next);
                self.claims.push(Claim { token, source: index, probability, evidence, next });
            } else if let Some(slot) = slot {
                self.table.withhold(slot, &evidence);
            }
        }
        if let Some(started) = started {
            self.source_us[usize::from(index)] += started.elapsed().as_secs_f32() * 1e6;
        }
    }

    /// Recomputes the probability of claims whose token other sources claim too. The claims are sorted by
    /// token.
    fn note_agreement(&mut self, first_claim: usize) {
        let Self { table, slots, claims, .. } = self;
        let probability =
            |claim: &Claim| table.probability(slots[usize::from(claim.source)], &claim.evidence);
        let claims = &mut claims[first_claim..];
        let was_asked = claims.iter().any(is_of_model);
        for group in claims.chunk_by_mut(|a, b| a.token == b.token) {
            let of_text = group.iter().filter(|claim| claim.evidence.class.matches_text());
            let text = of_text.map(|claim| claim.evidence.match_len).max();
            let mut model = None;
            for claim in group.iter_mut().filter(|claim| is_of_model(claim)) {
                claim.evidence.agreement = if text.is_some() { Agreement::Text } else { Agreement::Unknown };
                claim.evidence.match_len = text.unwrap_or(0);
                claim.probability = probability(claim);
                model = Some(claim.probability);
            }
            for claim in group.iter_mut().filter(|claim| !is_of_model(claim)) {
                let before = claim.evidence.agreement;
                claim.evidence.agreement = match (model, text) {
                    (Some(_), _) => Agreement::Model,
                    (None, _) if was_asked => Agreement::NotModel,
                    (None, Some(_)) if claim.evidence.class.is_of_target() => Agreement::Text,
                    (None, _) => Agreement::Unknown,
                };
                if let Some(probability) = model {
                    // The model's claim includes the text match, so it is used for both.
                    claim.probability = probability;
                } else if claim.evidence.agreement != before {
                    claim.probability = probability(claim);
                }
            }
        }
    }

    /// Merges the claims from `first_claim` on into children, best first.
    ///
    /// Claims for one token usually come from the same text, so they are not independent: the strongest
    /// counts. (With a noisy-or of the claims, acceptance with context and history was the same to three
    /// digits.)
    pub(super) fn agree(&mut self, first_claim: usize) {
        // An unstable sort with a complete key, because a stable sort allocates.
        self.claims[first_claim..].sort_unstable_by(|a, b| {
            let by_token = a.token.cmp(&b.token).then(a.source.cmp(&b.source));
            by_token.then(b.probability.total_cmp(&a.probability)).then(a.next.0.cmp(&b.next.0))
        });
        if self.has_rows && self.weighs() {
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
        share(children, self.has_rows);
        children.truncate(self.config.n_children_max);
    }
}

fn is_of_model(claim: &Claim) -> bool {
    claim.evidence.class == EvidenceClass::DraftModel
}

/// Scales the children's probabilities to a sum of 1 if they exceed it. Claims of text matches are scaled
/// proportionally. Claims of the target's rows or of a draft model add many weak claims to a strong one, and
/// proportional scaling would cut a long copy short. They are therefore limited to their share of the total
/// odds, so a nearly certain child stays nearly certain.
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
