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
//! So are the oldest unread positions if more than [`STATES_MAX`] states wait for a read, as after reads that were cancelled. A head whose
//! context is full takes no more states until the text is cut.
//!
//! Below the text, a node reads the head's own hidden state of its parent.

use crate::model::ModelConfig;
use refrain_trees::TokenId;

/// Maximum states that are kept: those of a pass, and of a part of the text that arrives meanwhile.
pub(super) const STATES_MAX: usize = 2 * CHUNK;

/// Maximum text tokens of one pass.
pub(super) const CHUNK: usize = 256;

/// The hidden states that one session's head has to read.
///
/// # Invariants
/// - `positions` rises;
/// - `hidden` has those of the rows from `n_taken` on, at most [`STATES_MAX`];
/// - there are at most `n_rows_max` rows;
/// - the rows before `n_taken` are in the head's cache.
#[derive(Clone, Default)]
pub(super) struct HiddenRows {
    /// Numbers of a position.
    state_dim: usize,
    /// The head's own hidden states have so many.
    hidden_dim: usize,
    /// The head's context.
    n_rows_max: usize,
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
    /// Rows of a head with a context of `n_rows_max`.
    pub(super) fn new(config: &ModelConfig, n_rows_max: usize) -> Self {
        let (state_dim, hidden_dim) = (config.target_state_dim(), config.hidden_dim);
        Self { state_dim, hidden_dim, n_rows_max, ..Self::default() }
    }

    /// Adds states of the target, at most [`CHUNK`], at the positions from `first` on. They replace those at the same and later positions;
    /// returns the rows before them, which are those of `text` that stay. States behind the head's context are not kept; the
    /// oldest unread rows give way to those that are, also in `text`.
    pub(super) fn push(&mut self, first: usize, hidden: &[f32], text: &mut Vec<TokenId>) -> usize {
        let n_before = self.n_before(first);
        self.keep(n_before, n_before);
        text.truncate(n_before);
        let n_given = hidden.len() / self.state_dim;
        debug_assert!(n_given <= CHUNK, "{n_given} states");
        let n_new = n_given.min(self.n_rows_max.saturating_sub(self.positions.len()));
        self.leave_out((self.n_states() + n_new).saturating_sub(STATES_MAX), text);
        self.positions.extend((first..first + n_new).map(|position| position as u32));
        let (len, n_added) = (self.hidden.len(), n_new * self.state_dim);
        if len + n_added > self.hidden.capacity() {
            // `Vec` would double its memory beyond the bound.
            let n_max = (STATES_MAX * self.state_dim).min(2 * self.hidden.capacity()).max(len + n_added);
            self.hidden.reserve_exact(n_max - len);
        }
        self.hidden.extend_from_slice(&hidden[..n_added]);
        n_before
    }

    /// States that are kept.
    pub(super) fn n_states(&self) -> usize {
        self.positions.len() - self.n_taken
    }

    /// Leaves the oldest `n` unread rows out.
    fn leave_out(&mut self, n: usize, text: &mut Vec<TokenId>) {
        let (start, end) = (self.n_taken, self.n_taken + n);
        self.positions.drain(start..end);
        self.hidden.drain(..n * self.state_dim);
        text.drain(start.min(text.len())..end.min(text.len()));
    }

    /// Whether the head's context has no room for another row.
    pub(super) fn is_full(&self) -> bool {
        self.positions.len() >= self.n_rows_max
    }

    /// Tokens of the session's text, if the head's context has ended before it.
    pub(super) fn exceeded_by(&self) -> Option<usize> {
        let n_read = self.positions.last().map_or(0, |&newest| newest as usize + 2);
        (self.is_full() && n_read < self.n_committed).then_some(self.n_committed)
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
