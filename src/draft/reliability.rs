//! How often claims like this one have come true.

use std::borrow::Cow;

use super::SourceKind;
use super::fitted;
use super::prior::{self, Prior};

/// What a source claims for one candidate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Evidence {
    /// Kind of the source.
    pub kind: SourceKind,
    /// The source's own probability.
    pub probability: f32,
    /// Tokens before the candidate that agree.
    pub match_len: u32,
    /// Times it was seen.
    pub count: u32,
    /// Depth of the candidate in the tree; a child of the root has depth 1.
    pub depth: u32,
}

/// The reliability table: from evidence to the probability that the target chooses the token.
///
/// A claim's probability starts at a prior (a function of probability, match length and count, fitted to recorded
/// responses: `prior.rs`; the claim itself for sources that do not match text) and is corrected by what was seen in the
/// claim's cell, source kind × match length × probability × depth:
///
/// ```text
/// p = prior · (κ + hits) / (κ + expected)          expected = Σ prior over the cell's claims
/// ```
///
/// This is the posterior mean of a rate with a Gamma(κ, κ) prior: shrinkage like a Beta prior's, but it corrects the
/// prior by a factor, so that differences *within* a cell remain.
///
/// Every claim under a *visited* node is evidence, whether or not it got into the tree: the committed token tells if
/// it was right. So a table goes on learning while nothing is drafted, a source that was useless and becomes useful
/// is noticed at once, and no exploration is needed. What is old fades: a cell's sums are halved once they are large.
///
/// `update` and `probability` are O(1); the table is about 14 KB whatever happens.
#[derive(Clone, Debug)]
pub struct ReliabilityTable {
    /// Shape `[kind, match length, probability, depth]`.
    cells: Vec<Cell>,
    prior: Cow<'static, Prior>,
    config: ReliabilityConfig,
}

/// How fast a [`ReliabilityTable`] learns and forgets. The default was fitted to recorded responses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReliabilityConfig {
    /// Weight of the prior (κ), in expected hits: small, so that a task that copies is known after a few steps.
    pub prior_hits: f32,
    /// A cell remembers about this many expected hits (or hits), so that it follows a change of text.
    pub hits_max: f32,
}

impl Default for ReliabilityConfig {
    fn default() -> Self {
        fitted::RELIABILITY
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    hits: f32,
    expected: f32,
}

/// No token is certain, none impossible.
const PROBABILITY_MIN: f32 = 1e-4;
const PROBABILITY_MAX: f32 = 0.995;

const DEPTHS: usize = 3;

impl Default for ReliabilityTable {
    fn default() -> Self {
        Self::new()
    }
}

impl ReliabilityTable {
    /// The table as it ships: priors only.
    pub fn new() -> Self {
        static SHIPPED: Prior = Prior::SHIPPED;
        Self::with_cow(Cow::Borrowed(&SHIPPED), fitted::RELIABILITY)
    }

    /// A table that starts from another prior, or learns at another pace.
    pub fn with_prior(prior: Prior, config: ReliabilityConfig) -> Self {
        Self::with_cow(Cow::Owned(prior), config)
    }

    fn with_cow(prior: Cow<'static, Prior>, config: ReliabilityConfig) -> Self {
        let n_cells = SourceKind::COUNT * prior::MATCH_LENS * prior::PROBABILITIES * DEPTHS;
        ReliabilityTable { cells: vec![Cell::default(); n_cells], prior, config }
    }

    /// Probability that the target chooses the token.
    pub fn probability(&self, evidence: &Evidence) -> f32 {
        let cell = &self.cells[cell_index(evidence)];
        let prior_hits = self.config.prior_hits;
        let factor = (prior_hits + cell.hits) / (prior_hits + cell.expected);
        (self.prior(evidence) * factor).clamp(PROBABILITY_MIN, PROBABILITY_MAX)
    }

    /// Learns whether the target chose the token.
    pub fn update(&mut self, evidence: &Evidence, hit: bool) {
        let expected = self.prior(evidence);
        let cell = &mut self.cells[cell_index(evidence)];
        cell.expected += expected;
        cell.hits += f32::from(u8::from(hit));
        if cell.expected.max(cell.hits) > self.config.hits_max {
            cell.expected *= 0.5;
            cell.hits *= 0.5;
        }
    }

    /// Bytes on the heap.
    pub fn memory_usage(&self) -> usize {
        self.cells.capacity() * size_of::<Cell>()
    }

    /// What the claim is worth before anything was seen.
    fn prior(&self, evidence: &Evidence) -> f32 {
        let probability =
            if evidence.probability.is_nan() { 0.0 } else { evidence.probability.clamp(0.0, 1.0) };
        self.prior.probability(&Evidence { probability, ..*evidence }).clamp(PROBABILITY_MIN, PROBABILITY_MAX)
    }
}

fn cell_index(evidence: &Evidence) -> usize {
    let depth = match evidence.depth {
        0..=1 => 0,
        2..=5 => 1,
        _ => DEPTHS - 1,
    };
    let by_kind = evidence.kind.index() * prior::MATCH_LENS + prior::match_len_bucket(evidence.match_len);
    (by_kind * prior::PROBABILITIES + prior::probability_bucket(evidence.probability)) * DEPTHS + depth
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: Evidence =
        Evidence { kind: SourceKind::Context, probability: 0.6, match_len: 4, count: 3, depth: 1 };

    fn after(n: usize, hit: impl Fn(usize) -> bool) -> ReliabilityTable {
        let mut table = ReliabilityTable::new();
        (0..n).for_each(|i| table.update(&CLAIM, hit(i)));
        table
    }

    #[test]
    fn learns_what_comes_true() {
        let prior = ReliabilityTable::new().probability(&CLAIM);
        assert!((0.05..0.95).contains(&prior));
        assert!(after(400, |_| false).probability(&CLAIM) < 0.15 * prior);
        assert!(after(400, |_| true).probability(&CLAIM) > 0.9);
        let half = after(4000, |i| i % 2 == 0).probability(&CLAIM);
        assert!((0.4..0.6).contains(&half), "{half}");
    }

    #[test]
    fn forgets_what_is_no_longer_so() {
        let mut table = after(10_000, |_| false);
        (0..300).for_each(|_| table.update(&CLAIM, true));
        assert!(table.probability(&CLAIM) > 0.7, "{}", table.probability(&CLAIM));
    }

    #[test]
    fn other_claims_keep_their_prior() {
        let table = after(400, |_| false);
        for other in [
            Evidence { kind: SourceKind::History, ..CLAIM },
            Evidence { match_len: 40, ..CLAIM },
            Evidence { probability: 0.05, ..CLAIM },
            Evidence { depth: 9, ..CLAIM },
        ] {
            assert_eq!(table.probability(&other), ReliabilityTable::new().probability(&other));
        }
    }

    #[test]
    fn takes_any_number() {
        let mut table = ReliabilityTable::new();
        for probability in [f32::NAN, f32::INFINITY, -1.0, 0.0, 1.0, 7.0] {
            for extreme in [0, 1, u32::MAX] {
                let evidence =
                    Evidence { probability, match_len: extreme, count: extreme, depth: extreme, ..CLAIM };
                table.update(&evidence, true);
                let p = table.probability(&evidence);
                assert!((PROBABILITY_MIN..=PROBABILITY_MAX).contains(&p), "{evidence:?}: {p}");
            }
        }
    }
}
