//! The prior of the reliability table, for sources that match text.
//!
//! A suffix source's raw probability is a count's share; what that is worth depends on how long the match is and how often
//! it was seen. A prior is the share of such claims that came true when recorded responses were replayed. The one that ships
//! (`fitted.rs`) is written by `refrain bench tune`, which fits on the even rows of a collection and reports on the odd
//! ones, every subtask with the same weight.
//!
//! It has two tables: one for the automata's claims, and one for those of [`ResumeSource`](super::ResumeSource), whose raw
//! probability stands for the alignment, match length for the tokens that agreed since, and count for those before.
//!
//! The claims of calibration, of reuse and of draft models come from a model's rows, which no recording has; theirs are by match
//! length alone, as the target of the fixtures was seen to keep them (`refrain bench ablate fixtures/rows.jsonl --free-rows`,
//! with `--draft fixture` for what a draft model's word makes of them).

use super::constants::Permille;
use super::evidence::{
    Agreement, COUNTS, Evidence, EvidenceClass, MATCH_LENS, PROBABILITIES, PROBABILITY_BOUNDS,
    bucket_probability, count_bucket, match_len_bucket, probability_bucket,
};
use super::fitted;

/// How often a claim comes true before anything was learnt in a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prior {
    matched: Permille,
    resumed: Permille,
}

/// Which table a class has, if any: the claims of the others count as they are.
fn table_of<T>(class: EvidenceClass, matched: T, resumed: T) -> Option<T> {
    match class {
        EvidenceClass::TextMatch => Some(matched),
        EvidenceClass::ResumedCopy => Some(resumed),
        _ => None,
    }
}

impl Prior {
    /// The prior that ships.
    pub const SHIPPED: Prior = Prior { matched: fitted::MATCHED_PERMILLE, resumed: fitted::RESUMED_PERMILLE };

    /// The share of such claims that came true; of classes that do not match text the claim itself. `probability` of the
    /// evidence is 0 to 1.
    ///
    /// Within a bucket the share grows with the square root of the claim: between "as claimed" and "all alike", as measured.
    pub(super) fn probability(&self, evidence: &Evidence) -> f32 {
        let Evidence { probability, match_len, count, .. } = *evidence;
        let agreed = usize::from(matches!(evidence.agreement, Agreement::Text | Agreement::Model));
        let Some(table) = table_of(evidence.class, &self.matched, &self.resumed) else {
            let (calibrated, reused) = (&CALIBRATED[agreed], &REUSED[agreed]);
            return match evidence.class {
                EvidenceClass::TargetRows => calibrated[match_len_bucket(match_len)] * probability,
                EvidenceClass::RejectedSegment => reused[match_len_bucket(match_len)],
                EvidenceClass::DraftModel if evidence.agreement == Agreement::Text => {
                    let odds = AGREED_ODDS[match_len_bucket(match_len)] * probability;
                    odds / (odds + 1.0 - probability)
                }
                _ => probability,
            };
        };
        let bucket = probability_bucket(probability);
        let permille = table[match_len_bucket(match_len)][bucket][count_bucket(count)];
        let share = f32::from(permille) / 1000.0 * (probability / bucket_probability(bucket)).sqrt();
        if evidence.agreement == Agreement::NotModel { NOT_OF_MODEL * share } else { share }
    }
}

impl Prior {
    /// The most that [`probability`](Self::probability) gives for a claim of these buckets, whatever its count.
    pub(super) fn probability_max(
        &self,
        class: EvidenceClass,
        match_len_bucket: usize,
        bucket: usize,
    ) -> f32 {
        let Some(table) = table_of(class, &self.matched, &self.resumed) else { return 1.0 };
        let permille = table[match_len_bucket][bucket].iter().copied().max().unwrap_or(0);
        let above = PROBABILITY_BOUNDS.get(bucket).copied().unwrap_or(1.0);
        f32::from(permille) / 1000.0 * (above / bucket_probability(bucket)).sqrt()
    }
}

/// What a match of text is worth where a draft model claims other tokens, as a factor.
const NOT_OF_MODEL: f32 = 0.03;

/// What a draft model's claim gains where text agrees, as a factor of its odds, by bucket of match lengths. Much of what text knows
/// the model has read, too.
const AGREED_ODDS: [f32; MATCH_LENS] = [1.0, 1.3, 1.3, 2.5, 2.5, 2.5, 3.3, 3.3, 8.0];

/// What the target says elsewhere, as a share of the probability that it gave there, by bucket of match lengths. What text agrees
/// with comes true nearly as often as it says; what only the target's rows say, a fifth of it, however long the match. Shape
/// `[whether text agrees, match length]`.
const CALIBRATED: [[f32; MATCH_LENS]; 2] =
    [[0.22; MATCH_LENS], [0.5, 0.5, 0.8, 0.82, 0.82, 0.82, 0.82, 0.9, 0.95]];

/// Share of the tokens of rejected segments that came true, by bucket of match lengths, whatever the alignment: hardly any at
/// the root, where nothing agrees yet; once the output is in a segment, most of it. Shape `[whether text agrees, match length]`.
const REUSED: [[f32; MATCH_LENS]; 2] =
    [[0.015, 0.5, 0.8, 0.85, 0.85, 0.85, 0.85, 0.85, 0.85], [0.04, 0.75, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]];

/// Counts claims and makes a [`Prior`] of them.
#[derive(Clone, Debug, Default)]
pub struct PriorFit {
    matched: Cells,
    resumed: Cells,
}

/// Claims that came true and claims, weighted. Shape `[match length, probability, count]`.
#[derive(Clone, Debug)]
struct Cells(Vec<(f64, f64)>);

/// Claims of each cell that are taken from the cell's own probability: a cell that was hardly seen leans towards it.
const PSEUDO_CLAIMS: f64 = 3.0;
/// What such a claim is worth: claims that were seen a few times only come true a little less often than they say.
const PSEUDO_WORTH: f64 = 0.75;

impl Default for Cells {
    fn default() -> Self {
        Cells(vec![(0.0, 0.0); MATCH_LENS * PROBABILITIES * COUNTS])
    }
}

impl PriorFit {
    /// Counts a claim, where its class has a table.
    pub fn add(&mut self, evidence: &Evidence, hit: bool, weight: f64) {
        if let Some(cells) = table_of(evidence.class, &mut self.matched, &mut self.resumed) {
            cells.add(evidence, hit, weight);
        }
    }

    /// Adds what was counted elsewhere.
    pub fn merge(&mut self, other: &PriorFit) {
        self.matched.merge(&other.matched);
        self.resumed.merge(&other.resumed);
    }

    /// The prior of the claims so far.
    pub fn prior(&self) -> Prior {
        Prior { matched: self.matched.permille(), resumed: self.resumed.permille() }
    }
}

impl Cells {
    fn add(&mut self, evidence: &Evidence, hit: bool, weight: f64) {
        let by_len = match_len_bucket(evidence.match_len) * PROBABILITIES;
        let by_probability = (by_len + probability_bucket(evidence.probability)) * COUNTS;
        let (hits, claims) = &mut self.0[by_probability + count_bucket(evidence.count)];
        *hits += if hit { weight } else { 0.0 };
        *claims += weight;
    }

    fn merge(&mut self, other: &Cells) {
        for ((hits, claims), (other_hits, other_claims)) in self.0.iter_mut().zip(&other.0) {
            *hits += other_hits;
            *claims += other_claims;
        }
    }

    fn permille(&self) -> Permille {
        let mut permille: Permille = [[[0; COUNTS]; PROBABILITIES]; MATCH_LENS];
        let cells = permille.iter_mut().flat_map(|by_len| by_len.iter_mut().enumerate());
        let cells = cells.flat_map(|(bucket, by_count)| by_count.iter_mut().map(move |cell| (bucket, cell)));
        for ((bucket, cell), (hits, claims)) in cells.zip(&self.0) {
            let claim = PSEUDO_WORTH * f64::from(bucket_probability(bucket));
            let share = (hits + PSEUDO_CLAIMS * claim) / (claims + PSEUDO_CLAIMS);
            *cell = (1000.0 * share).round().clamp(0.0, 1000.0) as u16;
        }
        permille
    }
}

impl Prior {
    /// The tables as Rust, for `fitted.rs`.
    pub fn to_rust(&self) -> String {
        let matched = to_rust("MATCHED", "the automata's claims", &self.matched);
        let resumed = to_rust("RESUMED", "the claims to go on where a text was left", &self.resumed);
        format!("{matched}\n{resumed}")
    }
}

fn to_rust(name: &str, what: &str, table: &Permille) -> String {
    let mut out = format!("/// Share of {what} that came true, in thousandths.\n#[rustfmt::skip]\n");
    out += &format!("pub(super) const {name}_PERMILLE: Permille = [\n");
    for by_len in table {
        out += "    [\n";
        by_len.iter().for_each(|by_probability| out += &format!("        {by_probability:?},\n"));
        out += "    ],\n";
    }
    out + "];\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(class: EvidenceClass, probability: f32, match_len: u32) -> Evidence {
        Evidence { class, probability, match_len, count: 2, depth: 1, agreement: Agreement::Unknown }
    }

    #[test]
    fn a_fit_gives_back_the_shares_that_it_saw() {
        use EvidenceClass::{ResumedCopy, TextMatch};
        let mut fit = PriorFit::default();
        for i in 0..10_000 {
            fit.add(&claim(TextMatch, 0.5, 3), i % 4 == 0, 1.0);
            fit.add(&claim(TextMatch, 0.5, 30), i % 4 != 0, 1.0);
            fit.add(&claim(ResumedCopy, 0.5, 3), i % 10 == 0, 1.0);
        }
        let (prior, middle) = (fit.prior(), bucket_probability(probability_bucket(0.5)));
        let worth = |class, match_len| prior.probability(&claim(class, middle, match_len));
        assert!((worth(TextMatch, 3) - 0.25).abs() < 0.01);
        assert!((worth(TextMatch, 30) - 0.75).abs() < 0.01);
        assert!((worth(ResumedCopy, 3) - 0.1).abs() < 0.01);
        let unseen = prior.probability(&claim(TextMatch, 0.4, 1));
        assert!((0.1..0.5).contains(&unseen), "what was not seen leans on its claim: {unseen}");
    }

    #[test]
    fn claims_of_other_classes_count_as_they_are() {
        let mut fit = PriorFit::default();
        (0..100).for_each(|_| fit.add(&claim(EvidenceClass::DraftModel, 0.5, 3), true, 1.0));
        assert_eq!(fit.prior(), PriorFit::default().prior());
        assert_eq!(fit.prior().probability(&claim(EvidenceClass::DraftModel, 0.3, 3)), 0.3);
    }
}
