//! A source's claim about one token, and the features that distinguish claims: class, buckets, and agreement
//! of other sources.

use serde::{Deserialize, Serialize};

/// The kind of evidence for a source's claims. The class selects the prior of a claim and the rule that
/// combines claims of several sources about one token. The measured reliability is stored per source name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EvidenceClass {
    /// The text before the token occurred earlier, followed by the token. The probability is the token's
    /// share of the occurrences, the count their number.
    TextMatch,
    /// The token continues copied text after an edit. The probability encodes the alignment, the match length
    /// is the number of tokens that agreed since the edit, the count the number before it.
    ResumedCopy,
    /// The target gave the token this probability after the same text elsewhere.
    TargetRows,
    /// A smaller model gives the token this probability.
    DraftModel,
    /// The probability is the source's own estimate, used unchanged.
    Plain,
}

impl EvidenceClass {
    /// Every class.
    #[cfg(test)]
    pub(super) const ALL: [EvidenceClass; 5] = [
        EvidenceClass::TextMatch,
        EvidenceClass::ResumedCopy,
        EvidenceClass::TargetRows,
        EvidenceClass::DraftModel,
        EvidenceClass::Plain,
    ];

    /// Whether claims of the class are matches of text.
    pub(super) fn matches_text(self) -> bool {
        matches!(self, EvidenceClass::TextMatch | EvidenceClass::ResumedCopy)
    }

    /// Whether claims of the class come from rows of the target at other positions.
    pub(crate) fn is_of_target(self) -> bool {
        self == EvidenceClass::TargetRows
    }
}

/// A source's claim about one candidate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Evidence {
    /// The kind of evidence.
    pub class: EvidenceClass,
    /// The source's own probability.
    pub probability: f32,
    /// Number of preceding tokens that agree.
    pub match_len: u32,
    /// Number of observations.
    pub count: u32,
    /// Depth of the candidate in the tree; a child of the root has depth 1.
    pub depth: u32,
    /// Agreement of other sources about the token.
    pub agreement: Agreement,
}

/// Agreement of other sources with a claim, as far as it changes the claim's probability.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Agreement {
    /// No source of a relevant class was queried.
    #[default]
    Unknown,
    /// Matches of text claim the token too. Recorded for claims of the target's rows and
    /// draft models: most of their tokens are those of the text, and the success of these tokens says little
    /// about the others.
    Text,
    /// A draft model claims it too.
    Model,
    /// A draft model was queried and claims other tokens.
    NotModel,
}

impl Agreement {
    /// Number of variants.
    pub(super) const COUNT: usize = 4;
}

/// Buckets of match lengths.
pub(super) const MATCH_LENS: usize = 9;
/// Buckets of raw probabilities.
pub(super) const PROBABILITIES: usize = 10;
/// Buckets of counts.
pub(super) const COUNTS: usize = 4;
/// Buckets of depths.
pub(super) const DEPTHS: usize = 3;

pub(super) fn match_len_bucket(match_len: u32) -> usize {
    match match_len {
        0..=4 => match_len as usize,
        5..=6 => 5,
        7..=9 => 6,
        10..=16 => 7,
        _ => 8,
    }
}

/// Upper bounds of the buckets of raw probabilities, except the last.
pub(super) const PROBABILITY_BOUNDS: [f32; PROBABILITIES - 1] =
    [0.01, 0.03, 0.06, 0.12, 0.2, 0.3, 0.45, 0.6, 0.8];

pub(super) fn probability_bucket(probability: f32) -> usize {
    PROBABILITY_BOUNDS.partition_point(|&bound| bound <= probability)
}

pub(super) fn count_bucket(count: u32) -> usize {
    match count {
        0..=1 => 0,
        2 => 1,
        3..=4 => 2,
        _ => 3,
    }
}

pub(super) fn depth_bucket(depth: u32) -> usize {
    match depth {
        0..=1 => 0,
        2..=5 => 1,
        _ => DEPTHS - 1,
    }
}

/// The middle of a bucket.
pub(super) fn bucket_probability(bucket: usize) -> f32 {
    let below = if bucket == 0 { 0.0 } else { PROBABILITY_BOUNDS[bucket - 1] };
    0.5 * (below + PROBABILITY_BOUNDS.get(bucket).copied().unwrap_or(1.0))
}
