//! Alignment of a rejected draft with the tokens that the target chose instead.
//!
//! `d` are the tokens of the draft from the first rejected one on, and `t` the tokens of the target
//! (CoordGen, arXiv 2510.15312, section 3.4 and Table 2):
//!
//! ```text
//! draft       … d₁ d₂ d₃ d₄ …
//! missing     … t₁ d₁ d₂ d₃ …      the draft lacked a token
//! synonym     … t₁ d₂ d₃ d₄ …      the target took another one
//! redundant   … d₃ d₄ …            the draft had tokens that the target skips: t₁ = d₃
//! ```

use serde::Serialize;

use super::source::StepOutcome;
use refrain_trees::TokenId;
use refrain_trees::{DraftTree, NodeIdx};

/// Maximum tokens that the target may skip.
pub(super) const REDUNDANT_MAX: usize = 6;

/// Alignment of a followed text with the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alignment {
    /// The output has not departed from the text.
    Straight,
    /// The target chose another token.
    Synonym,
    /// The target inserted a token that the text lacks.
    Missing,
    /// The target skipped tokens of the text.
    Redundant,
}

impl Alignment {
    /// The raw claim of a place: it encodes the alignment, and the prior contains its probability. Each value
    /// is the middle of a bucket of the prior.
    pub(super) fn claim(self) -> f32 {
        match self {
            Alignment::Straight => 0.9,
            Alignment::Redundant => 0.7,
            Alignment::Synonym => 0.525,
            Alignment::Missing => 0.375,
        }
    }

    /// The alignment in two bits, for cursors.
    pub(super) fn to_bits(self) -> u64 {
        match self {
            Alignment::Straight => 0,
            Alignment::Synonym => 1,
            Alignment::Missing => 2,
            Alignment::Redundant => 3,
        }
    }

    /// Decodes the result of [`to_bits`](Self::to_bits); other bits are ignored.
    pub(super) fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Alignment::Straight,
            1 => Alignment::Synonym,
            2 => Alignment::Missing,
            _ => Alignment::Redundant,
        }
    }
}

/// Rejected drafts by their later alignment with the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Rejections {
    /// The draft lacked one token.
    pub missing: usize,
    /// The target chose another token.
    pub synonym: usize,
    /// The draft had tokens, at most six, that the target skipped.
    pub redundant: usize,
    /// No alignment.
    pub other: usize,
}

impl Rejections {
    /// The number of all rejected drafts.
    pub fn total(&self) -> usize {
        self.missing + self.synonym + self.redundant + self.other
    }
}

impl std::ops::AddAssign for Rejections {
    fn add_assign(&mut self, other: Self) {
        self.missing += other.missing;
        self.synonym += other.synonym;
        self.redundant += other.redundant;
        self.other += other.other;
    }
}

/// Counts the alignments of the likeliest draft of each step.
#[derive(Clone, Debug, Default)]
pub struct RejectionCounter {
    /// The likeliest draft tokens from the first rejected one of the newest draft, until its alignment is
    /// known; empty if none is open.
    rejected: Vec<TokenId>,
    counts: Rejections,
}

impl RejectionCounter {
    /// Observes a step.
    pub fn observe(&mut self, step: &StepOutcome<'_>) {
        if let (Some(&said), false) = (step.new_tokens.first(), self.rejected.is_empty()) {
            let next = self.rejected.get(1);
            *(if self.rejected[0] == said {
                &mut self.counts.missing
            } else if next == Some(&said) {
                &mut self.counts.synonym
            } else {
                &mut self.counts.other
            }) += 1;
        }
        self.leave(step);
        // If the chosen token occurs further on in the draft, the alignment is known.
        let is_redundant = |said| self.rejected.iter().skip(1).any(|token| token == said);
        if step.new_tokens.last().is_some_and(is_redundant) {
            self.counts.redundant += 1;
            self.rejected.clear();
        }
    }

    /// The counts; a draft rejected in the last step counts as other.
    pub fn finish(&mut self) -> Rejections {
        self.counts.other += usize::from(!self.rejected.is_empty());
        self.rejected.clear();
        self.counts
    }

    /// Stores the likeliest tokens below the last visited node, unless the last token is among its children.
    fn leave(&mut self, step: &StepOutcome<'_>) {
        self.rejected.clear();
        let mut node = step.accepted.last().copied().unwrap_or(NodeIdx::ROOT);
        let ended_in_draft =
            step.new_tokens.last().is_some_and(|&said| step.tree.child(node, said).is_some());
        if ended_in_draft {
            return;
        }
        while self.rejected.len() <= REDUNDANT_MAX
            && let Some(child) = first_child(step.tree, node)
        {
            self.rejected.push(step.tree.token(child));
            node = child;
        }
    }
}

fn first_child(tree: &DraftTree, node: NodeIdx) -> Option<NodeIdx> {
    tree.children(node).next()
}

#[cfg(test)]
mod tests {
    use super::super::evidence;
    use super::*;

    const ALL: [Alignment; 4] =
        [Alignment::Straight, Alignment::Synonym, Alignment::Missing, Alignment::Redundant];

    #[test]
    fn each_alignment_has_a_bucket_of_the_prior() {
        let claims = ALL.map(Alignment::claim);
        for claim in claims {
            let bucket = evidence::probability_bucket(claim);
            assert!((evidence::bucket_probability(bucket) - claim).abs() < 1e-6);
            let same = claims.iter().filter(|&&other| evidence::probability_bucket(other) == bucket);
            assert_eq!(same.count(), 1, "{claim}");
        }
    }

    #[test]
    fn alignments_read_back() {
        for alignment in ALL {
            assert_eq!(Alignment::from_bits(alignment.to_bits() | 0xF0), alignment);
        }
    }

    /// The counts after one step that drafts `draft` as a chain and accepts the first `n_accepted` tokens of
    /// `said`. The later tokens of `said` are committed one per step, without drafts.
    fn counts(draft: &str, n_accepted: usize, said: &str) -> [usize; 4] {
        let token = |c: char| TokenId(c as u32);
        let said: Vec<TokenId> = said.chars().map(token).collect();
        let mut tree = DraftTree::new(token('^'));
        let mut node = NodeIdx::ROOT;
        let nodes: Vec<NodeIdx> = draft
            .chars()
            .map(|c| {
                node = tree.push(node, token(c), 1.0, 0);
                node
            })
            .collect();
        let mut counter = RejectionCounter::default();
        let (first, rest) = said.split_at(n_accepted + 1);
        let accepted = &nodes[..n_accepted];
        counter.observe(&StepOutcome { tree: &tree, accepted, new_tokens: first });
        for next in rest {
            let empty = DraftTree::new(TokenId(0));
            let new_tokens = std::slice::from_ref(next);
            counter.observe(&StepOutcome { tree: &empty, accepted: &[], new_tokens });
        }
        let Rejections { missing, synonym, redundant, other } = counter.finish();
        [missing, synonym, redundant, other]
    }

    #[test]
    fn reasons_are_those_of_the_next_tokens() {
        assert_eq!(counts("abcd", 1, "aXb"), [1, 0, 0, 0], "X was missing");
        assert_eq!(counts("abcd", 1, "aXc"), [0, 1, 0, 0], "X for b");
        assert_eq!(counts("abcd", 1, "ad"), [0, 0, 1, 0], "b and c were redundant");
        assert_eq!(counts("abcd", 1, "aXY"), [0, 0, 0, 1]);
        assert_eq!(counts("abcd", 1, "aX"), [0, 0, 0, 1], "the output ended");
        assert_eq!(counts("abcd", 0, "Xab"), [1, 0, 0, 0], "counted once");
    }

    #[test]
    fn drafts_that_were_right_have_no_reason() {
        assert_eq!(counts("abc", 3, "abcd"), [0; 4], "the bonus token leaves nothing");
        assert_eq!(counts("", 0, "ab"), [0; 4]);
        assert_eq!(counts("abc", 1, "ab"), [0; 4], "ended with a drafted token");
    }
}
