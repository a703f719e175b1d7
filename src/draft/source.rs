//! What a draft source is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;

use super::{DraftTree, NodeIdx, SuccessorLists};
use crate::token::TokenId;

/// What kind of source speaks: each kind earns its own reliability.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SourceKind {
    /// Prompt and output of this session.
    Context,
    /// Earlier responses.
    History,
    /// Retrieved passages.
    Passages,
    /// The target's own distributions over the context, from prefill.
    Calibration,
    /// Rejected segments of earlier drafts.
    Reuse,
    /// A smaller neural model.
    DraftModel,
    /// The place in the session's text that the output was copying.
    Resume,
    /// Anything else.
    Other,
}

impl SourceKind {
    /// Every kind, by index.
    pub(super) const ALL: [SourceKind; 8] = [
        SourceKind::Context,
        SourceKind::History,
        SourceKind::Passages,
        SourceKind::Calibration,
        SourceKind::Reuse,
        SourceKind::DraftModel,
        SourceKind::Resume,
        SourceKind::Other,
    ];

    /// How many kinds there are.
    pub(super) const COUNT: usize = Self::ALL.len();

    /// The kind as an index into per-kind tables.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The kind's name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            SourceKind::Context => "context",
            SourceKind::History => "history",
            SourceKind::Passages => "passages",
            SourceKind::Calibration => "calibration",
            SourceKind::Reuse => "reuse",
            SourceKind::DraftModel => "draft_model",
            SourceKind::Resume => "resume",
            SourceKind::Other => "other",
        }
    }
}

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
    /// What was computed since `earlier`.
    pub fn since(self, earlier: &Computed) -> Computed {
        Computed {
            passes: self.passes - earlier.passes,
            rows: self.rows - earlier.rows,
            time_us: self.time_us - earlier.time_us,
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
/// A source must be deterministic: the same calls give the same candidates. It bounds its own memory and says how.
pub trait DraftSource: Send {
    /// What kind of source this is.
    fn kind(&self) -> SourceKind;

    /// A name for statistics, unique among the sources of a session.
    fn name(&self) -> &str;

    /// Text was committed outside of a decoding step: the prompt, or the next turn. `committed` is everything
    /// committed so far; what the source knows already is its beginning.
    fn prime(&mut self, committed: &[TokenId]);

    /// Forgets the committed text. A [`prime`](Self::prime) with another one follows.
    fn reset(&mut self);

    /// As [`reset`](Self::reset), and gives back the memory of what the source can learn again, as far as it has any.
    fn release(&mut self) {
        self.reset();
    }

    /// The committed text was truncated to its first `len` tokens. A [`prime`](Self::prime) with what is left follows: a
    /// source that cannot go back starts again.
    fn truncate(&mut self, len: usize) {
        let _ = len;
        self.reset();
    }

    /// The target's likely successors of the tokens at positions `first..` of the committed text, which the source may not
    /// have seen yet. They hold until the text is truncated before them. Most sources have no use for them.
    fn calibrate(&mut self, first: usize, lists: &SuccessorLists) {
        let _ = (first, lists);
    }

    /// Tokens that the source has seen most often in outputs, at most `n_max`: calibration looks at these besides the tokens
    /// of the session. Asked once per prefill. Most sources know none that the session does not.
    fn frequent_tokens(&mut self, n_max: usize) -> Vec<TokenId> {
        let _ = n_max;
        Vec::new()
    }

    /// Cursors that match the end of the committed tokens, longest match first. `out` comes empty.
    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>);

    /// Likely next tokens of each cursor, likeliest first. `out` comes empty.
    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates);

    /// Where the source stands after a token that others claim at this cursor, and it does not. `None` (the default) where it
    /// has nothing to say there: what looks up has said all that it knows.
    fn advance(&mut self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let _ = (cursor, token);
        None
    }

    /// Expected time of [`expand`](Self::expand) for these cursors together, in µs, beyond that of a lookup. 0 (the default)
    /// where expanding is a lookup: then the source is always asked. Where it is more, the builder asks when it pays.
    fn expansion_us(&self, frontier: &[Cursor]) -> f32 {
        let _ = frontier;
        0.0
    }

    /// Computes what these cursors expand to, together; expanding them is a lookup afterwards.
    fn prepare(&mut self, frontier: &[Cursor]) {
        let _ = frontier;
    }

    /// Long work of this source ends soon after `cancel` is set; what it was for is done when it is next needed.
    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        let _ = cancel;
    }

    /// What the source has computed so far; `None` where it only looks up.
    fn computed(&self) -> Option<Computed> {
        None
    }

    /// A step ended and its tokens became final; `committed` is everything committed so far, those included.
    fn observe(&mut self, committed: &[TokenId], step: &StepOutcome<'_>);

    /// Bytes on the heap that this source holds for itself (what it shares with others is reported there).
    fn memory_usage(&self) -> usize;

    /// A source in the same position for a fork of the session.
    fn fork(&self) -> Box<dyn DraftSource>;
}
