//! The automaton: its states, and its extension by one token.
//!
//! ```text
//! extend(c):                              the text was w, it becomes wc
//!   cur ← new state, len = |wc|
//!   p ← last; while p has no edge c:      the suffixes of w that c never followed
//!     edge p –c→ cur;  p ← link(p)
//!   q ← target of p –c→                   the longest suffix of w that c has followed
//!   if len(q) > len(p) + 1: split q       some strings of q do not end here: they keep q, the others get a copy
//!   link(cur) ← q (or the copy);  last ← cur
//!   walk the suffix links from cur, at most WALK_MAX of them: count += 1, last_end ← position
//! ```
//!
//! A new sequence starts at the root (a generalised automaton), so a match never spans two sequences, and no
//! separator token is needed.
//!
//! Cost sketch: a state has 32 bytes, and there are at most 2n − 1 states. Natural text needs about 1.5
//! states per token. With the blocks of `edges` this is about 60 bytes per token: 8 k tokens of context take
//! half a megabyte.

use super::edges::{Edge, EdgePool, EdgeSet};

/// Maximum suffix links followed per token to update counts and positions.
///
/// In ordinary text there are about ten suffix links from a state to the root, so counts are exact. In a long
/// repetition, there are as many links as the repetition has tokens. States beyond this limit keep a count
/// that is a lower bound, and a position that is older than the true one. The limit bounds the time of
/// `extend`. Its cost is that *short* suffixes of a *long* match are undercounted, and drafting uses those
/// last.
const WALK_MAX: usize = 64;

/// The state of the empty string.
pub(super) const ROOT: u32 = 0;

#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Length of the longest string of the state.
    pub(super) len: u32,
    /// The state of its longest suffix with other end positions. The root's link is the root.
    pub(super) link: u32,
    /// Occurrences.
    pub(super) count: u32,
    /// End of the first occurrence.
    pub(super) first_end: u32,
    /// End of the most recent occurrence.
    pub(super) last_end: u32,
    pub(super) edges: EdgeSet,
}

const ROOT_STATE: State =
    State { len: 0, link: ROOT, count: 0, first_end: 0, last_end: 0, edges: EdgeSet::NONE };

/// The automaton has reached its bound. Nothing was added; reading is still possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the suffix automaton is full: {max_tokens} tokens")]
pub struct FullError {
    /// The maximum number of tokens.
    pub max_tokens: u32,
}

/// A suffix automaton of one or more token sequences, extended token by token.
///
/// ```
/// use refrain_trees::sam::SuffixAutomaton;
///
/// let mut automaton = SuffixAutomaton::new();
/// automaton.extend_all(&[7, 8, 9, 5, 7, 8])?;
/// let seen_before = automaton.suffix_match(); // "7 8" stood at the start as well
/// assert_eq!(seen_before.len(), 2);
/// let next: Vec<u32> = automaton.successors(seen_before).map(|s| s.token).collect();
/// assert_eq!(next, [9]);
/// # Ok::<(), refrain_trees::sam::FullError>(())
/// ```
///
/// `Clone` copies the whole automaton, as a forked session needs.
#[derive(Clone, Debug)]
pub struct SuffixAutomaton {
    states: Vec<State>,
    edges: EdgePool,
    /// State of the whole current sequence.
    pub(super) last: u32,
    /// Whether `last` was created for the newest token: the whole sequence has not occurred before.
    pub(super) last_is_new: bool,
    n_tokens: u32,
    max_tokens: u32,
}

impl Default for SuffixAutomaton {
    fn default() -> Self {
        Self::new()
    }
}

impl SuffixAutomaton {
    /// Maximum tokens of any automaton: state numbers are `u32`, and there are up to twice as many states as
    /// tokens.
    pub const MAX_TOKENS: u32 = 1 << 30;

    /// An empty automaton for up to [`MAX_TOKENS`](Self::MAX_TOKENS) tokens.
    pub fn new() -> Self {
        Self::with_max_tokens(Self::MAX_TOKENS)
    }

    /// An empty automaton for up to `max_tokens` tokens (at most [`MAX_TOKENS`](Self::MAX_TOKENS)).
    pub fn with_max_tokens(max_tokens: u32) -> Self {
        SuffixAutomaton {
            states: vec![ROOT_STATE],
            edges: EdgePool::default(),
            last: ROOT,
            last_is_new: false,
            n_tokens: 0,
            max_tokens: max_tokens.min(Self::MAX_TOKENS),
        }
    }

    /// Appends a token to the current sequence. Amortised O(1): the number of new and redirected edges is
    /// linear in the text, and the walk for counts is bounded.
    ///
    /// # Errors
    /// [`FullError`]: the bound is reached; nothing changed.
    pub fn extend(&mut self, token: u32) -> Result<(), FullError> {
        if self.n_tokens >= self.max_tokens {
            return Err(FullError { max_tokens: self.max_tokens });
        }
        let before = self.last;
        self.last = match self.target(before, token) {
            Some(next) => {
                self.last_is_new = false;
                self.exact_target(before, token, next)
            }
            None => {
                self.last_is_new = true;
                self.append_state(before, token)
            }
        };
        self.count_occurrence();
        self.touch_edges(before, token);
        self.n_tokens += 1;
        Ok(())
    }

    /// Appends several tokens.
    ///
    /// # Errors
    /// [`FullError`]: the tokens up to the bound were added, the others were not.
    pub fn extend_all(&mut self, tokens: &[u32]) -> Result<(), FullError> {
        tokens.iter().try_for_each(|&token| self.extend(token))
    }

    /// Ends the current sequence. The next token starts another one, and no match spans both.
    pub fn start_sequence(&mut self) {
        self.last = ROOT;
        self.last_is_new = false;
    }

    /// Removes all tokens and keeps the memory. Tokens cannot be removed from the end: after a truncation,
    /// clear the automaton and extend it again.
    pub fn clear(&mut self) {
        self.states.truncate(1);
        self.states[0] = ROOT_STATE;
        self.edges.clear();
        self.start_sequence();
        self.n_tokens = 0;
    }

    /// Number of tokens of all sequences.
    pub fn len(&self) -> usize {
        self.n_tokens as usize
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.n_tokens == 0
    }

    /// Maximum number of tokens.
    pub fn max_tokens(&self) -> u32 {
        self.max_tokens
    }

    /// Number of states, including the root: at most 2n for n tokens.
    pub fn n_states(&self) -> usize {
        self.states.len()
    }

    /// Bytes on the heap, including spare capacity, without `self`.
    pub fn memory_usage(&self) -> usize {
        self.states.capacity() * size_of::<State>() + self.edges.memory_usage()
    }

    pub(super) fn state(&self, state: u32) -> &State {
        &self.states[state as usize]
    }

    pub(super) fn target(&self, state: u32, token: u32) -> Option<u32> {
        self.edges.get(&self.state(state).edges, token)
    }

    pub(super) fn best_edges(&self, state: u32) -> &[Edge] {
        self.edges.best(&self.state(state).edges)
    }

    pub(super) fn all_edges(&self, state: u32) -> Vec<Edge> {
        self.edges.all(&self.state(state).edges)
    }

    /// Appends the new last state, for a token that has not followed the whole sequence before.
    fn append_state(&mut self, before: u32, token: u32) -> u32 {
        let (len, first_end) = (self.state(before).len + 1, self.n_tokens);
        let appended = self.push_state(State { len, first_end, ..ROOT_STATE });
        let mut suffix = before;
        let link = loop {
            if let Some(next) = self.target(suffix, token) {
                break self.exact_target(suffix, token, next);
            }
            let edges = &mut self.states[suffix as usize].edges;
            self.edges.insert(edges, Edge { token, target: appended });
            if suffix == ROOT {
                break ROOT;
            }
            suffix = self.state(suffix).link;
        };
        self.states[appended as usize].link = link;
        appended
    }

    /// The state whose longest string is the longest string of `from` with `token` appended. `next` is the
    /// target of that edge, and is split if it has longer strings.
    fn exact_target(&mut self, from: u32, token: u32, next: u32) -> u32 {
        let len = self.state(from).len + 1;
        if self.state(next).len == len {
            return next;
        }
        let edges = self.edges.duplicate(&self.states[next as usize].edges);
        let split = self.push_state(State { len, edges, ..*self.state(next) });
        self.states[next as usize].link = split;
        let mut suffix = from;
        while self.target(suffix, token) == Some(next) {
            let edges = &mut self.states[suffix as usize].edges;
            self.edges.redirect(edges, Edge { token, target: split });
            if suffix == ROOT {
                break;
            }
            suffix = self.state(suffix).link;
        }
        split
    }

    fn push_state(&mut self, state: State) -> u32 {
        let index = self.states.len() as u32; // fits: at most 2 · MAX_TOKENS states
        self.states.push(state);
        index
    }

    /// Counts the newest occurrence of the sequence's suffixes, longest first, up to the limit.
    fn count_occurrence(&mut self) {
        self.states[ROOT as usize].count += 1;
        let mut suffix = self.last;
        for _ in 0..WALK_MAX {
            if suffix == ROOT {
                break;
            }
            let state = &mut self.states[suffix as usize];
            state.count += 1;
            state.last_end = self.n_tokens;
            suffix = state.link;
        }
    }

    /// Updates the hot lists of the suffixes that `token` has just followed.
    fn touch_edges(&mut self, before: u32, token: u32) {
        let mut suffix = before;
        for _ in 0..WALK_MAX {
            let edges = self.state(suffix).edges;
            self.edges.touch(&edges, token, |target| self.states[target as usize].count);
            if suffix == ROOT {
                break;
            }
            suffix = self.state(suffix).link;
        }
    }

    /// Panics if an invariant is violated: for tests, after any operation. O(states).
    #[cfg(test)]
    pub(super) fn check_integrity(&self) {
        let n_states = self.states.len();
        assert!(n_states <= (2 * self.len()).max(1), "{n_states} states for {} tokens", self.len());
        for (index, state) in self.states.iter().enumerate() {
            let link = self.state(state.link);
            if index as u32 == ROOT {
                assert_eq!((state.len, state.link), (0, ROOT));
            } else {
                assert!(link.len < state.len, "link of {index} is not shorter");
                assert!(
                    state.count > 0 && state.first_end <= state.last_end && state.last_end < self.n_tokens
                );
            }
            let edges = self.all_edges(index as u32);
            assert_eq!(edges.len(), state.edges.len(), "edges of {index}");
            for edge in &edges {
                let target = self.state(edge.target);
                assert!(target.len > state.len, "edge {index} –{}→ {}", edge.token, edge.target);
                assert_eq!(self.target(index as u32, edge.token), Some(edge.target));
                if index as u32 != ROOT {
                    assert!(
                        self.target(state.link, edge.token).is_some(),
                        "the link of {index} misses token {}",
                        edge.token
                    );
                }
            }
            let best = self.best_edges(index as u32);
            assert!(best.iter().all(|edge| edges.contains(edge)), "hot list of {index}");
        }
    }
}
