//! What a draft head reads of its target: hidden states.
//!
//! ```text
//! target   position   0    1    2    3    4       tokens a b c d e, of which the target has computed a b c d
//! head     row             0    1    2    3       row i: token and the target's hidden state at the position before
//! ```
//!
//! The head's text is therefore that of the session without its first token, and each of its rows needs a hidden state. A state is
//! kept until its row is in the head's cache. Positions whose states never came (restored, or computed while nothing was drafted)
//! are left out of the head's text: rotations depend on distances alone, so drafts lose a little of their context and nothing else.
//! Below the text, a node reads the head's own hidden state of its parent.

use crate::model::ModelConfig;
use crate::token::TokenId;

/// The hidden states that one session's head has to read.
///
/// # Invariants
/// - `positions` rises;
/// - `hidden` has those of the rows from `n_taken` on;
/// - the rows before `n_taken` are in the head's cache.
#[derive(Clone, Default)]
pub(super) struct HiddenRows {
    /// Numbers of a position.
    state_dim: usize,
    /// The head's own hidden states have so many.
    hidden_dim: usize,
    /// The target's position of each row. Rows behind the head's text wait for their tokens.
    positions: Vec<u32>,
    /// Rows whose hidden states are no longer kept.
    n_taken: usize,
    /// `[n, state_dim]`
    hidden: Vec<f32>,
    /// Tokens of the session's text.
    n_committed: usize,
    /// The head's own hidden states of its nodes, `[n_nodes, hidden_dim]`.
    pub(super) of_nodes: Vec<f32>,
}

impl HiddenRows {
    pub(super) fn new(config: &ModelConfig) -> Self {
        let (state_dim, hidden_dim) = (config.target_state_dim(), config.hidden_dim);
        Self { state_dim, hidden_dim, ..Self::default() }
    }

    /// Adds states of the target at the positions from `first` on. They replace those at the same and later positions; returns the
    /// rows before them.
    pub(super) fn push(&mut self, first: usize, hidden: &[f32]) -> usize {
        let n_before = self.n_before(first);
        self.keep(n_before, n_before);
        self.positions.extend((first..first + hidden.len() / self.state_dim).map(|position| position as u32));
        self.hidden.extend_from_slice(hidden);
        n_before
    }

    /// Rows of positions before `position`.
    fn n_before(&self, position: usize) -> usize {
        self.positions.partition_point(|&own| (own as usize) < position)
    }

    /// Keeps the first `n_rows` rows, whose tokens are the same as before, and the states that are kept of those up to `n_states`.
    fn keep(&mut self, n_rows: usize, n_states: usize) {
        // A row whose state is gone cannot be computed again with another token.
        let n_states = if n_rows < self.n_taken { n_rows } else { n_states };
        self.n_taken = self.n_taken.min(n_rows);
        self.positions.truncate(n_states);
        self.hidden.truncate((n_states - self.n_taken) * self.state_dim);
    }

    /// Updates `text`, the head's, to that of the session, `committed`. Returns the rows that stay: their tokens are those of
    /// before, and so are all tokens of the session before them.
    pub(super) fn follow(&mut self, committed: &[TokenId], text: &mut Vec<TokenId>) -> usize {
        let token = |&position: &u32| committed.get(position as usize + 1).copied();
        let is_same = |(own, position): (&TokenId, &u32)| token(position) == Some(*own);
        let n_same = text.iter().zip(&self.positions).take_while(|&pair| is_same(pair)).count();
        if n_same < text.len() {
            // The state at the position of the first row that differs depends on the tokens up to it alone.
            let is_there = (self.positions[n_same] as usize) < committed.len();
            self.keep(n_same, n_same + usize::from(is_there));
            text.truncate(n_same);
        }
        self.n_committed = committed.len();
        text.extend(self.positions[n_same..].iter().map_while(token));
        n_same
    }

    /// Updates `text` to that of a session whose text was cut to `len` tokens. Returns the rows that stay.
    pub(super) fn cut(&mut self, len: usize, text: &mut Vec<TokenId>) -> usize {
        text.truncate(self.n_before(len.saturating_sub(1)));
        self.keep(text.len(), self.n_before(len));
        self.n_committed = self.n_committed.min(len);
        text.len()
    }

    /// Whether the newest token of the session can be the root: it is that of the last row of `n_rows`, whose state is here, or
    /// that needs none any more.
    pub(super) fn has_root(&self, n_rows: usize, is_computed: bool) -> bool {
        let Some(newest) = n_rows.checked_sub(1) else { return false };
        self.positions[newest] as usize + 2 == self.n_committed && (is_computed || newest >= self.n_taken)
    }

    /// The states of `n` rows from row `first` on. `[n, state_dim]`
    ///
    /// # Panics
    /// If they are not kept.
    pub(super) fn rows(&self, first: usize, n: usize) -> &[f32] {
        let start =
            first.checked_sub(self.n_taken).expect("the state of a row is kept until the row is read");
        &self.hidden[start * self.state_dim..][..n * self.state_dim]
    }

    /// The head's own state of a node. `[hidden_dim]`
    pub(super) fn of_node(&self, node: u32) -> &[f32] {
        &self.of_nodes[node as usize * self.hidden_dim..][..self.hidden_dim]
    }

    /// Forgets the states of the first `n_read` rows, which are in the cache.
    pub(super) fn take(&mut self, n_read: usize) {
        let n = n_read.saturating_sub(self.n_taken);
        self.hidden.drain(..n * self.state_dim);
        self.n_taken += n;
    }

    pub(super) fn memory_usage(&self) -> usize {
        (self.hidden.capacity() + self.of_nodes.capacity()) * size_of::<f32>()
            + self.positions.capacity() * size_of::<u32>()
    }
}
