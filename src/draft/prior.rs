//! The prior of the reliability table, for sources that match text.
//!
//! A suffix source's raw probability is a count's share; what that is worth depends on how long the match is and how often
//! it was seen. A prior is the share of such claims that came true when recorded responses were replayed. The one that ships
//! (`fitted.rs`) is written by `refrain bench tune`, which fits on the even rows of a collection and reports on the odd
//! ones, every subtask with the same weight.

use super::fitted::ACCEPTED_PERMILLE;
use super::reliability::Evidence;

/// Shape `[match length, probability, count]`, in thousandths.
pub(super) type Permille = [[[u16; COUNTS]; PROBABILITIES]; MATCH_LENS];

/// How often a claim comes true before anything was learnt in a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prior {
    permille: Permille,
}

impl Prior {
    /// The prior that ships.
    pub const SHIPPED: Prior = Prior { permille: ACCEPTED_PERMILLE };

    /// The share of such claims that came true.
    ///
    /// Within a bucket the share grows with the square root of the claim: between "as claimed" and "all alike", as measured.
    pub(super) fn probability(&self, match_len: u32, probability: f32, count: u32) -> f32 {
        let bucket = probability_bucket(probability);
        let permille = self.permille[match_len_bucket(match_len)][bucket][count_bucket(count)];
        f32::from(permille) / 1000.0 * (probability / bucket_probability(bucket)).sqrt()
    }
}

/// Counts claims and makes a [`Prior`] of them.
#[derive(Clone, Debug)]
pub struct PriorFit {
    /// Claims that came true and claims, weighted. Shape `[match length, probability, count]`.
    cells: Vec<(f64, f64)>,
}

/// Claims of each cell that are taken from the cell's own probability: a cell that was hardly seen leans towards it.
const PSEUDO_CLAIMS: f64 = 3.0;
/// What such a claim is worth: claims that were seen a few times only come true a little less often than they say.
const PSEUDO_WORTH: f64 = 0.75;

impl Default for PriorFit {
    fn default() -> Self {
        PriorFit { cells: vec![(0.0, 0.0); MATCH_LENS * PROBABILITIES * COUNTS] }
    }
}

impl PriorFit {
    /// Counts a claim.
    pub fn add(&mut self, evidence: &Evidence, hit: bool, weight: f64) {
        let by_len = match_len_bucket(evidence.match_len) * PROBABILITIES;
        let by_probability = (by_len + probability_bucket(evidence.probability)) * COUNTS;
        let (hits, claims) = &mut self.cells[by_probability + count_bucket(evidence.count)];
        *hits += if hit { weight } else { 0.0 };
        *claims += weight;
    }

    /// Adds what was counted elsewhere.
    pub fn merge(&mut self, other: &PriorFit) {
        for ((hits, claims), (other_hits, other_claims)) in self.cells.iter_mut().zip(&other.cells) {
            *hits += other_hits;
            *claims += other_claims;
        }
    }

    /// The prior of the claims so far.
    pub fn prior(&self) -> Prior {
        let mut permille: Permille = [[[0; COUNTS]; PROBABILITIES]; MATCH_LENS];
        let cells = permille.iter_mut().flat_map(|by_len| by_len.iter_mut().enumerate());
        let cells = cells.flat_map(|(bucket, by_count)| by_count.iter_mut().map(move |cell| (bucket, cell)));
        for ((bucket, cell), (hits, claims)) in cells.zip(&self.cells) {
            let claim = PSEUDO_WORTH * f64::from(bucket_probability(bucket));
            let share = (hits + PSEUDO_CLAIMS * claim) / (claims + PSEUDO_CLAIMS);
            *cell = (1000.0 * share).round().clamp(0.0, 1000.0) as u16;
        }
        Prior { permille }
    }
}

impl Prior {
    /// The prior as `fitted.rs`, for the next build; `comment` says what it was fitted to.
    pub fn to_rust(&self, comment: &str) -> String {
        let mut out = String::from("//! Fitted constants, written by `refrain bench tune`.\n//!\n");
        comment.lines().for_each(|line| out += &format!("//! {line}\n"));
        out += "\nuse super::prior::Permille;\n\n/// Share of claims that came true, in thousandths.\n#[rustfmt::skip]\n";
        out += "pub(super) const ACCEPTED_PERMILLE: Permille = [\n";
        for by_len in &self.permille {
            out += "    [\n";
            by_len.iter().for_each(|by_probability| out += &format!("        {by_probability:?},\n"));
            out += "    ],\n";
        }
        out + "];\n"
    }
}

/// Buckets of match lengths.
pub(super) const MATCH_LENS: usize = 9;
/// Buckets of raw probabilities.
pub(super) const PROBABILITIES: usize = 10;

pub(super) fn match_len_bucket(match_len: u32) -> usize {
    match match_len {
        0..=4 => match_len as usize,
        5..=6 => 5,
        7..=9 => 6,
        10..=16 => 7,
        _ => 8,
    }
}

/// Upper bounds of the buckets of raw probabilities but the last.
const PROBABILITY_BOUNDS: [f32; PROBABILITIES - 1] = [0.01, 0.03, 0.06, 0.12, 0.2, 0.3, 0.45, 0.6, 0.8];

pub(super) fn probability_bucket(probability: f32) -> usize {
    PROBABILITY_BOUNDS.partition_point(|&bound| bound <= probability)
}

/// Buckets of counts.
pub(super) const COUNTS: usize = 4;

pub(super) fn count_bucket(count: u32) -> usize {
    match count {
        0..=1 => 0,
        2 => 1,
        3..=4 => 2,
        _ => 3,
    }
}

/// The middle of a bucket.
pub(super) fn bucket_probability(bucket: usize) -> f32 {
    let below = if bucket == 0 { 0.0 } else { PROBABILITY_BOUNDS[bucket - 1] };
    0.5 * (below + PROBABILITY_BOUNDS.get(bucket).copied().unwrap_or(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::SourceKind;

    #[test]
    fn a_fit_gives_back_the_shares_that_it_saw() {
        let claim = |probability, match_len| {
            let kind = SourceKind::Context;
            Evidence { kind, probability, match_len, count: 2, depth: 1 }
        };
        let mut fit = PriorFit::default();
        for i in 0..10_000 {
            fit.add(&claim(0.5, 3), i % 4 == 0, 1.0);
            fit.add(&claim(0.5, 30), i % 4 != 0, 1.0);
        }
        let (prior, middle) = (fit.prior(), bucket_probability(probability_bucket(0.5)));
        assert!((prior.probability(3, middle, 2) - 0.25).abs() < 0.01);
        assert!((prior.probability(30, middle, 2) - 0.75).abs() < 0.01);
        assert!((0.1..0.5).contains(&prior.probability(1, 0.4, 2)), "what was not seen leans on its claim");
    }

    #[test]
    fn a_prior_is_written_as_it_is_read() {
        let text = Prior::SHIPPED.to_rust("one line");
        let own = include_str!("fitted.rs");
        let numbers = |text: &str| {
            let table = text.split("Permille = ").nth(1).unwrap().to_owned();
            table.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect::<Vec<u16>>()
        };
        assert_eq!(numbers(&text), numbers(own));
    }
}
