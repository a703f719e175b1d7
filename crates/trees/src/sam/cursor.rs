//! Cursors: positions in an automaton, stored separately from it.

use super::automaton::{ROOT, SuffixAutomaton};

/// The position of a substring in a [`SuffixAutomaton`]: the state that accepts it, and its length.
///
/// A cursor is a plain value. Many cursors can walk one automaton, and a cursor stays valid after
/// [`extend`](SuffixAutomaton::extend). It is valid only for the automaton that returned it: after
/// [`clear`](SuffixAutomaton::clear), or with another automaton, methods may panic or use another substring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Match {
    pub(super) state: u32,
    pub(super) len: u32,
}

impl Match {
    /// The empty substring, in every automaton.
    pub const EMPTY: Match = Match { state: ROOT, len: 0 };

    /// The matched length in tokens.
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Whether nothing is matched.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The cursor as two numbers, for a compact encoding elsewhere.
    pub fn to_parts(self) -> (u32, u32) {
        (self.state, self.len)
    }

    /// The cursor of two numbers from [`to_parts`](Self::to_parts). A smaller length is allowed: after
    /// [`SuffixAutomaton::renew`] it denotes a shorter suffix of the substring.
    pub fn from_parts(state: u32, len: u32) -> Self {
        Match { state, len }
    }
}

/// A transition of the automaton: a token that has followed a substring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// The token.
    pub token: u32,
    /// The cursor of the substring with the token appended.
    pub next: Match,
    /// Number of occurrences of that substring (see [`SuffixAutomaton::count`]).
    pub count: u32,
    /// End of its most recent occurrence (see [`SuffixAutomaton::last_end`]).
    pub last_end: u32,
}

impl SuffixAutomaton {
    /// The longest suffix of the current sequence that has occurred before: in the same sequence (overlap is
    /// allowed) or in an earlier one. O(1): the link of the last state.
    pub fn suffix_match(&self) -> Match {
        let state = if self.last_is_new { self.state(self.last).link } else { self.last };
        Match { state, len: self.state(state).len }
    }

    /// The cursor of `m` with `token` appended; `None` if that substring has not occurred. O(1).
    pub fn advance(&self, m: Match, token: u32) -> Option<Match> {
        self.target(m.state, token).map(|state| Match { state, len: m.len + 1 })
    }

    /// Matches a text token by token: returns the longest suffix of `m` with `token` appended that occurs.
    /// Amortised O(1) per token of a text.
    pub fn follow(&self, m: Match, token: u32) -> Match {
        let mut m = self.renew(m);
        loop {
            if let Some(next) = self.advance(m, token) {
                return next;
            }
            match self.shorter(m) {
                Some(suffix) => m = suffix,
                None => return Match::EMPTY,
            }
        }
    }

    /// The longest suffix of `m` that occurs more often than `m`, by one suffix link; `None` for the empty substring.
    pub fn shorter(&self, m: Match) -> Option<Match> {
        (m.state != Match::EMPTY.state).then(|| {
            let state = self.state(m.state).link;
            Match { state, len: self.state(state).len }
        })
    }

    /// Updates a cursor after [`extend`](Self::extend). If its state was split, a short match belongs to the
    /// new state. Usually O(1).
    pub fn renew(&self, mut m: Match) -> Match {
        while m.state != Match::EMPTY.state {
            let link = self.state(m.state).link;
            if m.len > self.state(link).len {
                break;
            }
            m.state = link;
        }
        m
    }

    /// The number of occurrences of the matched substring: exact within the limit of the suffix-link walk, a
    /// lower bound beyond it.
    pub fn count(&self, m: Match) -> u32 {
        self.state(m.state).count
    }

    /// Position of the last token of the most recent occurrence, counted over all sequences. A lower bound
    /// beyond the limit of the suffix-link walk. Unspecified for the empty match.
    pub fn last_end(&self, m: Match) -> u32 {
        self.state(m.state).last_end
    }

    /// Position of the last token of the first occurrence, counted over all sequences; always exact.
    /// Unspecified for the empty match.
    pub fn first_end(&self, m: Match) -> u32 {
        self.state(m.state).first_end
    }

    /// Number of distinct tokens that have followed `m`. O(1).
    pub fn n_successors(&self, m: Match) -> usize {
        self.state(m.state).edges.len()
    }

    /// Every distinct token with its number of occurrences, in no particular order; the order is the same in
    /// every run. O(distinct tokens).
    pub fn token_counts(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let edges = self.all_edges(Match::EMPTY.state).into_iter();
        edges.map(|edge| (edge.token, self.state(edge.target).count))
    }

    /// Tokens that have followed `m`, in no particular order: all of them if there are at most 16, otherwise
    /// the 16 most frequent (of equally frequent ones, the most recent). The order is the same in every run.
    pub fn successors(&self, m: Match) -> impl Iterator<Item = Transition> + '_ {
        self.best_edges(m.state).iter().map(move |edge| {
            let state = self.state(edge.target);
            Transition {
                token: edge.token,
                next: Match { state: edge.target, len: m.len + 1 },
                count: state.count,
                last_end: state.last_end,
            }
        })
    }
}
