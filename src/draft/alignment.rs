//! How a draft that the target has left lines up with what it said instead.
//!
//! With `d` the tokens of the draft from where it was left, and `t` those that the target said (CoordGen, arXiv 2510.15312,
//! section 3.4 and Table 2):
//!
//! ```text
//! draft       … d₁ d₂ d₃ d₄ …
//! missing     … t₁ d₁ d₂ d₃ …      the draft lacked a token
//! synonym     … t₁ d₂ d₃ d₄ …      the target took another one
//! redundant   … d₃ d₄ …            the draft had tokens that the target leaves out: t₁ = d₃
//! ```

use serde::Serialize;

use super::source::StepOutcome;
use super::tree::{DraftTree, NodeIdx};
use crate::token::TokenId;

/// Tokens that the target may leave out.
pub(super) const REDUNDANT_MAX: usize = 6;

/// How a text that is being followed lines up with the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alignment {
    /// The output has not left it.
    Straight,
    /// The target took another token.
    Synonym,
    /// It lacked a token that the target put in.
    Missing,
    /// It had tokens that the target left out.
    Redundant,
}

impl Alignment {
    /// The raw claim of a place: it stands for the alignment, and the prior knows what that is worth. Each is the middle of
    /// a bucket of the prior.
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

    /// What [`to_bits`](Self::to_bits) gave; other bits are ignored.
    pub(super) fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Alignment::Straight,
            1 => Alignment::Synonym,
            2 => Alignment::Missing,
            _ => Alignment::Redundant,
        }
    }
}

/// Why drafts were left: how many lined up again in each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rejections {
    /// The draft lacked one token.
    pub missing: usize,
    /// The target took another token.
    pub synonym: usize,
    /// The draft had tokens, six at most, that the target left out.
    pub redundant: usize,
    /// None of these.
    pub other: usize,
}

impl Rejections {
    /// All of them.
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

/// Counts why the likeliest draft of each step was left.
#[derive(Clone, Debug, Default)]
pub struct RejectionCounter {
    /// The likeliest draft tokens from where the newest draft was left, until it is known why; empty: nothing is open.
    rejected: Vec<TokenId>,
    counts: Rejections,
}

impl RejectionCounter {
    /// Learns how a step went on.
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
        // Where the draft was left for a token that it has further on, nothing more is needed.
        let is_redundant = |said| self.rejected.iter().skip(1).any(|token| token == said);
        if step.new_tokens.last().is_some_and(is_redundant) {
            self.counts.redundant += 1;
            self.rejected.clear();
        }
    }

    /// The counts; a draft whose step was the last one is among the others.
    pub fn finish(&mut self) -> Rejections {
        self.counts.other += usize::from(!self.rejected.is_empty());
        self.rejected.clear();
        self.counts
    }

    /// Takes down the likeliest tokens under the last node that the walk visited, unless it ended with one of them.
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

    /// The counts after one step that drafted `draft` as a chain, of which `said` begins with `n_accepted` tokens; what is said
    /// after that step comes one token a step, without drafts.
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
        counter.observe(&StepOutcome { tree: &tree, accepted, new_tokens: first, confidence: &[] });
        for next in rest {
            let empty = DraftTree::new(TokenId(0));
            let new_tokens = std::slice::from_ref(next);
            counter.observe(&StepOutcome { tree: &empty, accepted: &[], new_tokens, confidence: &[] });
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
