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
    /// What others say of the token.
    pub agreement: Agreement,
}

/// What others say of the token that a source claims, where that tells claims apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Agreement {
    /// Nobody was heard who matters.
    #[default]
    Unknown,
    /// Matches of text claim it too. Noted for calibration, reuse and draft models: most of their tokens are those of the
    /// text, and what these come to says little about the others.
    Text,
    /// A draft model claims it too.
    Model,
    /// A draft model was asked and claims others.
    NotModel,
}

impl Agreement {
    /// How many there are.
    pub(super) const COUNT: usize = 4;
}

/// The reliability table: from evidence to the probability that the target chooses the token.
///
/// A claim's probability starts at a prior (a function of probability, match length and count, fitted to recorded
/// responses: `prior.rs`; the claim itself for sources that do not match text) and is corrected by what was seen in the
/// claim's cell, source kind × match length × probability × depth × what others say of the token:
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
/// `update` and `probability` are O(1); the table is about 70 KB whatever happens.
#[derive(Clone, Debug)]
pub struct ReliabilityTable {
    /// Shape `[agreement, kind, match length, probability, depth]`.
    cells: Vec<Cell>,
    /// How often the likeliest claim of a kind came true, whatever it said.
    firsts: [Cell; SourceKind::COUNT],
    prior: Cow<'static, Prior>,
    /// The most that the prior gives. Shape `[kind, match length, probability]`.
    prior_max: Vec<f32>,
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

/// How often a draft model's likeliest token is the target's, before anything was seen, …
const FIRST_HIT: f32 = 0.7;
/// … and how many claims that opinion counts as.
const FIRST_CLAIMS: f32 = 4.0;
/// What remains of the claims seen after a step without one: half after 88 steps.
const FIRST_AGEING: f32 = 127.0 / 128.0;

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
        let n_cells =
            Agreement::COUNT * SourceKind::COUNT * prior::MATCH_LENS * prior::PROBABILITIES * DEPTHS;
        let prior_max = SourceKind::ALL.into_iter().flat_map(|kind| {
            let prior = &prior;
            (0..prior::MATCH_LENS).flat_map(move |len| {
                let most = move |bucket| prior.probability_max(kind, len, bucket);
                (0..prior::PROBABILITIES).map(most).map(|p| p.clamp(PROBABILITY_MIN, PROBABILITY_MAX))
            })
        });
        let prior_max = prior_max.collect();
        let firsts = [Cell::default(); SourceKind::COUNT];
        ReliabilityTable { cells: vec![Cell::default(); n_cells], firsts, prior, prior_max, config }
    }

    /// Probability that the target chooses the token.
    pub fn probability(&self, evidence: &Evidence) -> f32 {
        self.corrected(self.prior(evidence), &self.cells[cell_index(evidence)])
    }

    /// What claims of a kind can be worth now.
    pub(super) fn caps(&self, kind: SourceKind) -> Caps {
        let mut caps = Caps::NONE;
        if !kind.matches_text() {
            return caps;
        }
        let by_len = kind.index() * prior::MATCH_LENS;
        let mut so_far = [PROBABILITY_MIN; DEPTHS];
        for len in 0..prior::MATCH_LENS {
            for at in 0..prior::PROBABILITIES {
                let row = (by_len + len) * prior::PROBABILITIES + at;
                let cells = &self.cells[row * DEPTHS..][..DEPTHS];
                for (cap, cell) in so_far.iter_mut().zip(cells) {
                    *cap = cap.max(self.corrected(self.prior_max[row], cell));
                }
            }
            caps.0[len] = so_far;
        }
        caps
    }

    /// A prior after what was seen in its cell.
    fn corrected(&self, prior: f32, cell: &Cell) -> f32 {
        let prior_hits = self.config.prior_hits;
        let factor = (prior_hits + cell.hits) / (prior_hits + cell.expected);
        (prior * factor).clamp(PROBABILITY_MIN, PROBABILITY_MAX)
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

    /// How often the likeliest claim of sources of this kind comes true, before it is known: what asking them is worth.
    pub(super) fn first_hit(&self, kind: SourceKind) -> f32 {
        let cell = &self.firsts[kind.index()];
        (FIRST_CLAIMS * FIRST_HIT + cell.hits) / (FIRST_CLAIMS + cell.expected)
    }

    /// Learns whether the likeliest claim of a source that was asked came true.
    pub(super) fn update_first(&mut self, kind: SourceKind, hit: bool) {
        let cell = &mut self.firsts[kind.index()];
        cell.expected += 1.0;
        cell.hits += f32::from(u8::from(hit));
        if cell.expected > self.config.hits_max {
            *cell = Cell { hits: 0.5 * cell.hits, expected: 0.5 * cell.expected };
        }
    }

    /// A step went by in which sources of this kind were not asked: what is known of them ages, so that they are asked again
    /// some day.
    pub(super) fn age_first(&mut self, kind: SourceKind) {
        let cell = &mut self.firsts[kind.index()];
        *cell = Cell { hits: FIRST_AGEING * cell.hits, expected: FIRST_AGEING * cell.expected };
    }

    /// Bytes on the heap.
    pub fn memory_usage(&self) -> usize {
        self.cells.capacity() * size_of::<Cell>() + self.prior_max.capacity() * size_of::<f32>()
    }

    /// What the claim is worth before anything was seen.
    fn prior(&self, evidence: &Evidence) -> f32 {
        let probability =
            if evidence.probability.is_nan() { 0.0 } else { evidence.probability.clamp(0.0, 1.0) };
        self.prior.probability(&Evidence { probability, ..*evidence }).clamp(PROBABILITY_MIN, PROBABILITY_MAX)
    }
}

/// The most that a kind's claims can be worth, whatever their probability and count, up to a match length. Shape `[match
/// length, depth]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caps([[f32; DEPTHS]; prior::MATCH_LENS]);

impl Caps {
    /// For claims of which nothing is known.
    pub(super) const NONE: Caps = Caps([[1.0; DEPTHS]; prior::MATCH_LENS]);

    /// The most that a claim can be worth whose match is one token longer than this one's, or shorter.
    pub(super) fn after(&self, claim: &Evidence) -> f32 {
        let match_len = claim.match_len.saturating_add(1);
        self.0[prior::match_len_bucket(match_len)][depth_bucket(claim.depth.saturating_add(1))]
    }
}

fn depth_bucket(depth: u32) -> usize {
    match depth {
        0..=1 => 0,
        2..=5 => 1,
        _ => DEPTHS - 1,
    }
}

fn cell_index(evidence: &Evidence) -> usize {
    let depth = depth_bucket(evidence.depth);
    let kind = evidence.agreement as usize * SourceKind::COUNT + evidence.kind.index();
    let by_kind = kind * prior::MATCH_LENS + prior::match_len_bucket(evidence.match_len);
    (by_kind * prior::PROBABILITIES + prior::probability_bucket(evidence.probability)) * DEPTHS + depth
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: Evidence = Evidence {
        kind: SourceKind::Context,
        probability: 0.6,
        match_len: 4,
        count: 3,
        depth: 1,
        agreement: Agreement::Unknown,
    };

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
    fn no_claim_is_worth_more_than_its_cap() {
        let mut table = after(400, |i| i % 3 == 0);
        for i in 0..3000_u32 {
            let kind = SourceKind::ALL[i as usize % SourceKind::COUNT];
            let probability = (i * 37 % 101) as f32 / 100.0;
            let evidence = Evidence {
                kind,
                probability,
                match_len: i % 23,
                count: i % 7,
                depth: i % 9,
                agreement: Agreement::Unknown,
            };
            let before = Evidence {
                match_len: evidence.match_len.saturating_sub(1),
                depth: i % 9 - u32::from(i % 9 > 0),
                ..evidence
            };
            let cap = table.caps(kind).after(&before);
            assert!(
                table.probability(&evidence) <= cap,
                "{evidence:?}: {} > {cap}",
                table.probability(&evidence)
            );
            table.update(&evidence, i % 5 < 2);
        }
        let short = Evidence { match_len: 0, ..CLAIM };
        assert!(
            ReliabilityTable::new().caps(SourceKind::Context).after(&short) < 0.8,
            "a cap says something"
        );
    }

    #[test]
    fn a_kind_whose_first_claims_fail_is_worth_asking_again_some_day() {
        let kind = SourceKind::DraftModel;
        let mut table = ReliabilityTable::new();
        let start = table.first_hit(kind);
        (0..50).for_each(|_| table.update_first(kind, false));
        assert!(table.first_hit(kind) < 0.1 * start);
        assert_eq!(table.first_hit(SourceKind::Context), start);
        (0..1000).for_each(|_| table.age_first(kind));
        assert!(table.first_hit(kind) > 0.9 * start);
        (0..1000).for_each(|_| table.update_first(kind, true));
        assert!(table.first_hit(kind) > 0.95);
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
