//! What a draft source is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;

use super::evidence::EvidenceClass;
use super::successors::SuccessorLists;
use super::tree::{DraftTree, NodeIdx};
use crate::token::TokenId;

/// Where a source stands for one tree node, in the source's own encoding. Valid until the source's next `anchors`,
/// `observe`, `prime` or `reset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor(pub u64);

/// A cursor that matches the end of the committed tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// Where the source stands.
    pub cursor: Cursor,
    /// How many trailing committed tokens the source recognised.
    pub match_len: u32,
}

/// A token that may come next at a cursor, with the evidence for it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    /// Index of the cursor in the frontier given to [`DraftSource::expand`].
    pub parent: u32,
    /// The token. Any number: the builder drops what lies outside the vocabulary.
    pub token: TokenId,
    /// The source's own estimate that the token comes next, 0 to 1. The builder passes it through the reliability table.
    pub probability: f32,
    /// How many tokens before this one agree with what the estimate rests on.
    pub match_len: u32,
    /// How many times this was seen: the evidence behind the estimate.
    pub count: u32,
    /// Where the source stands after the token.
    pub next: Cursor,
}

/// Candidates of one call of [`DraftSource::expand`], bounded: what is pushed past the bound is dropped, so a source
/// pushes its best first.
#[derive(Debug)]
pub struct Candidates {
    items: Vec<Candidate>,
    n_max: usize,
}

impl Candidates {
    /// An empty list that takes up to `n_max` candidates.
    pub fn with_limit(n_max: usize) -> Self {
        Candidates { items: Vec::with_capacity(n_max), n_max }
    }

    /// Adds a candidate; `false` where the list is full, and whatever follows would be dropped too.
    pub fn push(&mut self, candidate: Candidate) -> bool {
        let fits = self.items.len() < self.n_max;
        if fits {
            self.items.push(candidate);
        }
        fits
    }

    /// Whether further candidates would be dropped.
    pub fn is_full(&self) -> bool {
        self.items.len() >= self.n_max
    }

    /// The candidates, in the order in which they were pushed.
    pub fn as_slice(&self) -> &[Candidate] {
        &self.items
    }

    /// Empties the list.
    pub fn clear(&mut self) {
        self.items.clear();
    }
}

/// What became of a tree: the end of one step.
#[derive(Clone, Copy, Debug)]
pub struct StepOutcome<'a> {
    /// The tree that was verified.
    pub tree: &'a DraftTree,
    /// The accepted nodes below the root, in order: a path that starts at a child of the root.
    pub accepted: &'a [NodeIdx],
    /// The tokens that the step committed: those of `accepted`, then the bonus token. Fewer where the output ended.
    pub new_tokens: &'a [TokenId],
    /// The probability that the target gives each node's token after the node's parent, not a number where it was not computed.
    /// Shape `[tree.len()]`; empty where none was.
    pub confidence: &'a [f32],
}

/// Adds up the counts of each token: the tokens with the most, at most `n_max`, and of equal ones the lowest first.
pub fn most_frequent(counts: impl Iterator<Item = (u32, u32)>, n_max: usize) -> Vec<TokenId> {
    let mut sums = BTreeMap::<u32, u64>::new();
    counts.for_each(|(token, count)| *sums.entry(token).or_default() += u64::from(count));
    let mut tokens: Vec<(u64, u32)> =
        sums.into_iter().map(|(token, count)| (u64::MAX - count, token)).collect();
    tokens.sort_unstable();
    tokens.into_iter().take(n_max).map(|(_, token)| TokenId(token)).collect()
}

/// What a source has computed so far, where it computes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Computed {
    /// Forward passes of a draft model, those that read the text included.
    pub passes: usize,
    /// Rows of these passes.
    pub rows: usize,
    /// Their time, in µs.
    pub time_us: f64,
    /// Why the source does not draft, where it does not.
    pub off: Option<String>,
}

impl Computed {
    /// The work since `earlier`; none where the source has begun to count anew in between.
    pub fn since(self, earlier: &Computed) -> Computed {
        Computed {
            passes: self.passes.saturating_sub(earlier.passes),
            rows: self.rows.saturating_sub(earlier.rows),
            time_us: (self.time_us - earlier.time_us).max(0.0),
            off: self.off,
        }
    }
}

/// Something that proposes tokens without running the target.
///
/// A source hands over [`Cursor`]s: the tree builder asks it to [`expand`](Self::expand) those that are worth it, in
/// one tree together with every other source's. The call order of a session:
///
/// ```text
/// calibrate* → prime(prompt) → { anchors → (prepare | expand | advance)* → calibrate → observe }* → calibrate* → prime(next turn) → …
/// truncate → prime                        after a truncation
/// ```
///
/// What only some sources do is in optional traits, which a source hands out: [`ComputingSource`] and [`TargetListener`].
///
/// A source must be deterministic: the same calls give the same candidates. It bounds its own memory and documents the bound.
pub trait DraftSource: Send {
    /// A name, unique among the sources of a session and the same in every session: how often the source was right is learnt under
    /// it.
    fn name(&self) -> &str;

    /// What the source's claims rest on.
    fn evidence(&self) -> EvidenceClass;

    /// The source as one that computes; `None` (the default) for a source that only looks up.
    fn computing(&mut self) -> Option<&mut dyn ComputingSource> {
        None
    }

    /// The source as a listener to the target's rows; `None` (the default) for a source that has no use for them.
    fn target_listener(&mut self) -> Option<&mut dyn TargetListener> {
        None
    }

    /// Text was committed outside of a decoding step: the prompt, or the next turn. `committed` is all committed text; the
    /// part that the source has read is its beginning.
    fn prime(&mut self, committed: &[TokenId]);

    /// Forgets the committed text. A [`prime`](Self::prime) with another one follows.
    fn reset(&mut self);

    /// As [`reset`](Self::reset), and frees the memory of everything that the source can learn again.
    fn release(&mut self) {
        self.reset();
    }

    /// The committed text was truncated to its first `len` tokens. A [`prime`](Self::prime) with the rest follows. The
    /// default resets the source.
    fn truncate(&mut self, len: usize) {
        let _ = len;
        self.reset();
    }

    /// The tokens that the source has seen most often in outputs, at most `n_max`, none by default. Calibration looks at them besides
    /// the tokens of the session. Called once per prefill.
    fn frequent_tokens(&mut self, n_max: usize) -> Vec<TokenId> {
        let _ = n_max;
        Vec::new()
    }

    /// Cursors that match the end of the committed tokens, longest match first. `out` comes empty.
    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>);

    /// Likely next tokens of each cursor, likeliest first. `out` comes empty.
    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates);

    /// A step ended and its tokens became final; `committed` is all committed text, those tokens included.
    fn observe(&mut self, committed: &[TokenId], step: &StepOutcome<'_>);

    /// Bytes on the heap that this source owns; shared memory is reported by its owner.
    fn memory_usage(&self) -> usize;

    /// A source in the same position for a fork of the session.
    fn fork(&self) -> Box<dyn DraftSource>;
}

/// A source whose expansions take computation, such as a draft model.
pub trait ComputingSource {
    /// Where the source stands after a token that others claim at this cursor, and it does not. `None` (the default): the source
    /// proposes nothing below that token.
    fn advance(&mut self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let _ = (cursor, token);
        None
    }

    /// Expected time of [`DraftSource::expand`] for these cursors together, in µs, beyond that of a lookup. Where it is 0 (the
    /// default) the source is always asked; where it is more, the builder asks when it pays.
    fn expansion_us(&self, frontier: &[Cursor]) -> f32 {
        let _ = frontier;
        0.0
    }

    /// Computes the expansions of these cursors together; expanding them is a lookup afterwards.
    fn prepare(&mut self, frontier: &[Cursor]) {
        let _ = frontier;
    }

    /// Long work of this source ends soon after `cancel` is set, and is done when its result is next needed.
    fn watch(&mut self, cancel: &Arc<AtomicBool>);

    /// The work of the source so far.
    fn computed(&self) -> Computed;
}

/// A source that learns from the target's rows.
pub trait TargetListener {
    /// The target's likely successors of the tokens at positions `first..` of the committed text, which the source may not
    /// have read yet. They hold until the text is truncated before them.
    fn calibrate(&mut self, first: usize, lists: &SuccessorLists);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_counts_anew_has_computed_nothing_since() {
        let computed = |n: usize| Computed { passes: n, rows: 2 * n, time_us: 3.0 * n as f64, off: None };
        assert_eq!(computed(7).since(&computed(5)), computed(2));
        assert_eq!(computed(1).since(&computed(5)), computed(0));
    }
}
