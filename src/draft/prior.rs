//! The prior of the reliability table, for sources that match text.
//!
//! A suffix source's raw probability is a share of counts. Its real accuracy depends on the match length and
//! the count. A prior is the share of such claims that were correct when recorded responses were replayed.
//! The built-in prior (`fitted.rs`) is written by `refrain-bench tune`, which fits on the even rows of a
//! collection and reports on the odd rows, with equal weight for every subtask.
//!
//! It has two tables: one for claims of the automata, and one for claims of
//! [`ResumeSource`](super::ResumeSource). The latter encode the alignment as raw probability, the tokens that
//! agreed since the departure as match length, and the tokens before it as count.
//!
//! Claims of the target's own predictions and of draft models come from a model's rows, which no recording contains.
//! Their priors depend on the match length only, as measured with the target of the fixtures
//! (`refrain-bench ablate fixtures/rows.jsonl --free-rows`, with `--draft fixture` for the agreement with a
//! draft model).

use super::constants::Permille;
use super::evidence::{
    Agreement, COUNTS, Evidence, EvidenceClass, MATCH_LENS, PROBABILITIES, PROBABILITY_BOUNDS,
    bucket_probability, count_bucket, match_len_bucket, probability_bucket,
};
use super::fitted;

/// The share of claims that are correct before anything was learned in a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prior {
    matched: Permille,
    resumed: Permille,
}

/// The table of a class; `None` for classes whose claims are used unchanged.
fn table_of<T>(class: EvidenceClass, matched: T, resumed: T) -> Option<T> {
    match class {
        EvidenceClass::TextMatch => Some(matched),
        EvidenceClass::ResumedCopy => Some(resumed),
        _ => None,
    }
}

impl Prior {
    /// The built-in prior.
    pub const SHIPPED: Prior = Prior { matched: fitted::MATCHED_PERMILLE, resumed: fitted::RESUMED_PERMILLE };

    /// The share of such claims that were correct; for classes that do not match text, the claim itself.
    /// `probability` of the evidence is 0 to 1.
    ///
    /// Within a bucket the share grows with the square root of the claim. The measured dependence lies
    /// between proportional and constant.
    pub(super) fn probability(&self, evidence: &Evidence) -> f32 {
        let Evidence { probability, match_len, count, .. } = *evidence;
        let agreed = usize::from(matches!(evidence.agreement, Agreement::Text | Agreement::Model));
        let Some(table) = table_of(evidence.class, &self.matched, &self.resumed) else {
            return match evidence.class {
                EvidenceClass::TargetRows => CALIBRATED[agreed][match_len_bucket(match_len)] * probability,
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
    /// Upper bound of [`probability`](Self::probability) for a claim of these buckets, whatever its count.
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

/// Factor on a text match if a draft model claims other tokens.
const NOT_OF_MODEL: f32 = 0.03;

/// Factor on the odds of a draft model's claim if text agrees, by bucket of match lengths. The factor is
/// small because the model has read most of the same text.
const AGREED_ODDS: [f32; MATCH_LENS] = [1.0, 1.3, 1.3, 2.5, 2.5, 2.5, 3.3, 3.3, 8.0];

/// Factor on the probability that the target gave at another position, by bucket of match lengths. If text
/// agrees, the claim is nearly calibrated; without text, only a fifth is correct at any match length. Shape
/// `[whether text agrees, match length]`.
const CALIBRATED: [[f32; MATCH_LENS]; 2] =
    [[0.22; MATCH_LENS], [0.5, 0.5, 0.8, 0.82, 0.82, 0.82, 0.82, 0.9, 0.95]];

/// Counts claims and fits a [`Prior`] to them.
#[derive(Clone, Debug, Default)]
pub struct PriorFit {
    matched: Cells,
    resumed: Cells,
}

/// Correct claims and all claims, weighted. Shape `[match length, probability, count]`.
#[derive(Clone, Debug)]
struct Cells(Vec<(f64, f64)>);

/// Weight of a cell's own probability, in claims: cells with few observations lean towards it.
const PSEUDO_CLAIMS: f64 = 3.0;
/// Factor on that probability: rarely seen claims are correct a little less often than claimed.
const PSEUDO_WORTH: f64 = 0.75;

impl Default for Cells {
    fn default() -> Self {
        Cells(vec![(0.0, 0.0); MATCH_LENS * PROBABILITIES * COUNTS])
    }
}

impl PriorFit {
    /// Counts a claim, if its class has a table.
    pub fn add(&mut self, evidence: &Evidence, hit: bool, weight: f64) {
        if let Some(cells) = table_of(evidence.class, &mut self.matched, &mut self.resumed) {
            cells.add(evidence, hit, weight);
        }
    }

    /// Adds the counts of another fit.
    pub fn merge(&mut self, other: &PriorFit) {
        self.matched.merge(&other.matched);
        self.resumed.merge(&other.resumed);
    }

    /// The prior fitted to the claims so far.
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
    /// The tables as Rust source, for `fitted.rs`.
    pub fn to_rust(&self) -> String {
        let matched = to_rust("MATCHED", "the automata's claims", &self.matched);
        let resumed = to_rust("RESUMED", "the claims of the source `resume`", &self.resumed);
        format!("{matched}\n{resumed}")
    }
}

fn to_rust(name: &str, what: &str, table: &Permille) -> String {
    let mut out = format!("/// Hit rates of {what}, in thousandths.\n#[rustfmt::skip]\n");
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
