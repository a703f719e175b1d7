//! The interface of draft sources.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;

use super::evidence::EvidenceClass;
use super::successors::SuccessorLists;
use refrain_trees::TokenId;
use refrain_trees::{DraftTree, NodeIdx};

/// The state of a source at one tree node, in the source's own encoding. Valid until the source's next
/// `anchors`, `observe`, `prime` or `truncate`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor(pub u64);

/// A cursor that matches the end of the committed tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Anchor {
    /// The source's state at the end of the committed tokens.
    pub cursor: Cursor,
    /// Number of trailing committed tokens that the source recognised.
    pub match_len: u32,
}

impl Anchor {
    /// An anchor.
    pub fn new(cursor: Cursor, match_len: u32) -> Self {
        Self { cursor, match_len }
    }
}

/// A candidate for the next token at a cursor, with its evidence.
#[derive(Clone, Copy, PartialEq, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Candidate {
    /// Index of the cursor in the frontier given to [`DraftSource::expand`].
    pub parent: u32,
    /// The token. The builder drops tokens outside the vocabulary.
    pub token: TokenId,
    /// The source's own probability of the token, 0 to 1. The builder corrects it with the reliability table.
    pub probability: f32,
    /// Number of preceding tokens that agree with the evidence.
    pub match_len: u32,
    /// Number of observations for the probability.
    pub count: u32,
    /// The source's state after the token.
    pub next: Cursor,
}

impl Candidate {
    /// A candidate from one observation, with no preceding token that agrees.
    pub fn new(parent: u32, token: TokenId, probability: f32, next: Cursor) -> Self {
        Self { parent, token, probability, match_len: 0, count: 1, next }
    }
}

/// Candidates of one call of [`DraftSource::expand`]. The list is bounded and drops later candidates, so a
/// source pushes its best candidates first.
#[derive(Debug)]
pub struct Candidates {
    items: Vec<Candidate>,
    n_max: usize,
}

impl Candidates {
    /// An empty list of at most `n_max` candidates.
    pub fn with_limit(n_max: usize) -> Self {
        Candidates { items: Vec::with_capacity(n_max), n_max }
    }

    /// Adds a candidate. Returns `false` if the list is full; later candidates would be dropped too.
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

/// The result of one step for its tree.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct StepOutcome<'a> {
    /// The tree that was verified.
    pub tree: &'a DraftTree,
    /// The accepted nodes below the root, in order: a path that starts at a child of the root.
    pub accepted: &'a [NodeIdx],
    /// The tokens that the step committed: the accepted tokens, then the bonus token. Fewer if the output
    /// ended.
    pub new_tokens: &'a [TokenId],
}

/// Sums the counts per token and returns the at most `n_max` tokens with the highest sums; ties go to the
/// lower token id.
pub fn most_frequent(counts: impl Iterator<Item = (u32, u32)>, n_max: usize) -> Vec<TokenId> {
    let mut sums = BTreeMap::<u32, u64>::new();
    counts.for_each(|(token, count)| *sums.entry(token).or_default() += u64::from(count));
    let mut tokens: Vec<(u64, u32)> =
        sums.into_iter().map(|(token, count)| (u64::MAX - count, token)).collect();
    tokens.sort_unstable();
    tokens.into_iter().take(n_max).map(|(_, token)| TokenId(token)).collect()
}

/// The total computation of a source that runs a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Computed {
    /// Forward passes of a draft model, including those over the text.
    pub passes: usize,
    /// Rows of these passes.
    pub rows: usize,
    /// Their time, in µs.
    pub time_us: f64,
    /// Those of the passes that ran while the target's pass waited for weights from flash.
    pub ahead: usize,
    /// The reason why the source does not draft, if it does not.
    pub off: Option<String>,
}

impl Computed {
    /// The computation since `earlier`; zero if the counters restarted in between.
    pub fn since(self, earlier: &Computed) -> Computed {
        Computed {
            passes: self.passes.saturating_sub(earlier.passes),
            rows: self.rows.saturating_sub(earlier.rows),
            time_us: (self.time_us - earlier.time_us).max(0.0),
            ahead: self.ahead.saturating_sub(earlier.ahead),
            off: self.off,
        }
    }
}

/// Proposes tokens without running the target.
///
/// A source returns [`Cursor`]s. The tree builder calls [`expand`](Self::expand) for the promising cursors of
/// all sources and merges the candidates into one tree. The call order of a session:
///
/// ```text
/// calibrate* → prime(prompt) → { anchors → (prepare | expand | excludes | advance)* → calibrate → observe }* → calibrate* → prime(next turn) → …
/// truncate → prime                        after a truncation
/// ```
///
/// Optional capabilities are separate traits: [`ComputingSource`] and [`TargetListener`].
///
/// A source must be deterministic: the same calls return the same candidates. It bounds its own memory and
/// documents the bound.
pub trait DraftSource: Send {
    /// A name, unique among the sources of a session and equal in every session: the reliability of the
    /// source is stored under it.
    fn name(&self) -> &str;

    /// The kind of evidence for the source's claims.
    fn evidence(&self) -> EvidenceClass;

    /// Appends the cursors that match the end of the committed tokens, longest match first. `out` is empty on
    /// entry.
    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>);

    /// Pushes the likely next tokens of each cursor, likeliest first. `out` is empty on entry.
    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates);

    /// Forgets the committed text from position `len` on; a source may forget all of it. Nothing of it stays after a
    /// truncation to 0. A [`prime`](Self::prime) with the whole text follows.
    fn truncate(&mut self, len: usize);

    /// A copy of the source for a fork of the session.
    fn fork(&self) -> Box<dyn DraftSource>;

    /// Observes text committed outside of a decoding step: the prompt, or the next turn. `committed` is the
    /// whole committed text; it begins with the text that the source has already observed. Nothing by default.
    fn prime(&mut self, committed: &[TokenId]) {
        let _ = committed;
    }

    /// Observes a finished step; `committed` is the whole committed text, including the step's tokens. As
    /// [`prime`](Self::prime) by default.
    fn observe(&mut self, committed: &[TokenId], step: &StepOutcome<'_>) {
        let _ = step;
        self.prime(committed);
    }

    /// As [`truncate`](Self::truncate) to 0, and frees the memory of all rebuildable state.
    fn release(&mut self) {
        self.truncate(0);
    }

    /// Bytes on the heap owned by this source; shared memory is reported by its owner. 0 by default.
    fn memory_usage(&self) -> u64 {
        0
    }

    /// The source as a [`ComputingSource`]; `None` (the default) if its expansions are lookups.
    fn computing(&mut self) -> Option<&mut dyn ComputingSource> {
        None
    }

    /// The source as a [`TargetListener`]; `None` (the default) if it does not use the target's rows.
    fn target_listener(&mut self) -> Option<&mut dyn TargetListener> {
        None
    }
}

/// Hidden states of the target that a source reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum HiddenStates {
    /// The final ones, `[n, hidden_dim]`. Prefill computes them, which takes about the time of one layer for each row of a prompt.
    Final,
    /// The residual streams before three layers, counted from 0, `[n, 3, hidden_dim]`; behind the last layer, that before the last norm.
    /// NaN if there is no such layer, or the layers are static graphs.
    Before([usize; 3]),
}

impl HiddenStates {
    /// The layers before which the residual stream is read.
    pub(crate) fn taps(self) -> Option<[usize; 3]> {
        match self {
            Self::Final => None,
            Self::Before(layers) => Some(layers),
        }
    }

    /// Numbers of a position.
    pub(crate) fn row_len(self, hidden_dim: usize) -> usize {
        if self == Self::Final { hidden_dim } else { 3 * hidden_dim }
    }
}

/// A source that runs a model to expand cursors, such as a draft model.
pub trait ComputingSource {
    /// The cursor after a token that another source proposed and this one did not. `None` (the default): the
    /// source proposes nothing below that token.
    fn advance(&mut self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let _ = (cursor, token);
        None
    }

    /// Whether the source knows that `token` cannot follow, as a grammar does; `false` by default. The builder asks for the
    /// tokens that other sources propose at the cursor's node, and drops those that are excluded.
    fn excludes(&mut self, cursor: Cursor, token: TokenId) -> bool {
        let _ = (cursor, token);
        false
    }

    /// Expected time of [`DraftSource::expand`] for these cursors together, in µs, beyond the time of a
    /// lookup. If it is 0 (the default), the source is always expanded. Otherwise the builder expands it only
    /// if that pays.
    fn expansion_us(&self, frontier: &[Cursor]) -> f32 {
        let _ = frontier;
        0.0
    }

    /// Computes the expansions of these cursors in one pass; expanding them is a lookup afterwards.
    fn prepare(&mut self, frontier: &[Cursor]) {
        let _ = frontier;
    }

    /// Computes what the next draft will probably need, while the target's pass waits for weights from flash: one pass, if it is
    /// expected to take `budget_us` at most. Returns whether it computed anything; `false` by default. The text and the newest draft are those of
    /// the step, and [`observe`](DraftSource::observe) follows.
    ///
    /// Passes of the engine's own streamed model are not possible meanwhile: on this thread they are errors
    /// (kind [`WrongState`](crate::ErrorKind::WrongState)), and on another one they wait until the target's pass has ended, so this
    /// function must not wait for them. Other engines are free.
    fn compute_ahead(&mut self, budget_us: f32) -> bool {
        let _ = budget_us;
        false
    }

    /// The target's hidden states that the source reads ([`read_hidden`](Self::read_hidden)): none by default.
    fn reads_hidden(&self) -> Option<HiddenStates> {
        None
    }

    /// Receives the target's hidden states, those of [`reads_hidden`](Self::reads_hidden), at the positions from `first` on of the
    /// committed text. Positions may be missing: those that were restored, or computed while the source was not asked.
    fn read_hidden(&mut self, committed: &[TokenId], first: usize, hidden: &[f32]) {
        let _ = (committed, first, hidden);
    }

    /// Sets the cancel flag of the calls that follow, until the next call of this function: the engine sets that of the generation or the
    /// prefill before calls in which a source may compute, and one that is never set behind them. A long computation stops soon after
    /// `cancel` is set, and is completed when its result is next needed.
    fn watch(&mut self, cancel: &Arc<AtomicBool>);

    /// The computation of the source so far.
    fn computed(&self) -> Computed;
}

/// A source that learns from the target's rows, or says onto which tokens they are projected.
pub trait TargetListener {
    /// Observes the target's likely successors of the tokens at positions `first..` of the committed text.
    /// The source may not have observed these tokens yet. Nothing by default.
    fn calibrate(&mut self, committed: &[TokenId], first: usize, lists: &SuccessorLists) {
        let _ = (committed, first, lists);
    }

    /// The tokens that occurred most often in outputs, at most `n_max`; none by default. Rows are projected onto them in
    /// addition to the session's tokens. Called once per prefill.
    fn frequent_tokens(&mut self, n_max: usize) -> Vec<TokenId> {
        let _ = n_max;
        Vec::new()
    }

    /// Observes the target's likely successors of rejected nodes of the tree of this step: `nodes[i]` has list `i`. Called
    /// before [`calibrate`](Self::calibrate) of the visited rows, if any source wants them.
    fn reject(&mut self, tree: &DraftTree, nodes: &[NodeIdx], lists: &SuccessorLists) {
        let _ = (tree, nodes, lists);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_counts_anew_has_computed_nothing_since() {
        let computed =
            |n: usize| Computed { passes: n, rows: 2 * n, time_us: 3.0 * n as f64, ahead: n / 2, off: None };
        assert_eq!(computed(7).since(&computed(5)), computed(2));
        assert_eq!(computed(1).since(&computed(5)), computed(0));
    }
}
