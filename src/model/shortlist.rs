//! A shortlist: copies of some tokens' rows of the output matrix. Hidden states are projected onto these
//! tokens only.
//!
//! A context contains a few hundred different tokens of a vocabulary of 150 000. Projecting each of its
//! positions onto the whole vocabulary would add a fifth to the time of the prefill. The rows of the relevant
//! tokens are copied into a small matrix that fits a core's cache: about a thousand rows of 850 bytes for a
//! 1.5 B model in Q4_0.

use crate::kernels::{PackError, PackedMatrix};
use refrain_trees::TokenId;

/// Some tokens and their rows of the output matrix.
///
/// [`Model`](crate::model::Model) creates, extends and uses it. Its capacity is fixed when it is created.
pub struct Shortlist {
    /// `[tokens.len(), hidden_dim]`
    matrix: PackedMatrix,
    /// In order of addition.
    tokens: Vec<TokenId>,
    /// Each token's row, or `NO_ROW`. Shape `[vocab_size]`.
    rows: Vec<u32>,
    n_tokens_max: usize,
}

const NO_ROW: u32 = u32::MAX;

impl Shortlist {
    /// `like`: a matrix of the type and the columns of the output matrix.
    pub(in crate::model) fn new(
        like: &PackedMatrix,
        vocab_size: usize,
        n_tokens_max: usize,
    ) -> Result<Self, PackError> {
        let n_tokens_max = n_tokens_max.min(vocab_size);
        Ok(Shortlist {
            matrix: like.empty_like(n_tokens_max)?,
            tokens: Vec::with_capacity(n_tokens_max),
            rows: vec![NO_ROW; vocab_size],
            n_tokens_max,
        })
    }

    /// Adds the tokens that are not yet on the list, in order, while there is room. `push_row` appends a
    /// token's row to the matrix, and returns `false` if it cannot.
    pub(in crate::model) fn extend(
        &mut self,
        mut push_row: impl FnMut(&mut PackedMatrix, usize) -> bool,
        tokens: impl IntoIterator<Item = TokenId>,
    ) {
        for token in tokens {
            if self.tokens.len() >= self.n_tokens_max {
                return;
            }
            let row = &mut self.rows[token.index()];
            if *row == NO_ROW && push_row(&mut self.matrix, token.index()) {
                *row = self.tokens.len() as u32;
                self.tokens.push(token);
            }
        }
    }

    pub(in crate::model) fn matrix(&self) -> &PackedMatrix {
        &self.matrix
    }

    /// The tokens, by row of the logits.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The index of a token in the logits; `None` if it is not on the list.
    pub fn row(&self, token: TokenId) -> Option<usize> {
        self.rows.get(token.index()).filter(|&&row| row != NO_ROW).map(|&row| row as usize)
    }

    /// Bytes on the heap, unused capacity included.
    pub fn memory_usage(&self) -> usize {
        self.matrix.size_bytes() + 4 * (self.rows.capacity() + self.tokens.capacity())
    }
}
