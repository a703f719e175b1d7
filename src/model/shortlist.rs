//! The output rows of some tokens, so that a hidden state is projected onto these tokens only.
//!
//! Of a vocabulary of 150 000 tokens a context has some hundred, and a whole projection of each of its positions would cost as
//! much as a fifth of the prefill. The rows of the tokens that matter are copied into a matrix of their own, which lies in the
//! cache of a core: about a thousand rows of 850 bytes at the shape of a 1.5 B model in Q4_0.

use crate::kernels::{PackError, PackedMatrix};
use crate::token::TokenId;

/// Some tokens and their rows of the output matrix.
///
/// Made, extended and used through [`Model`](crate::model::Model). Bounded by the room that it was made with.
pub struct Shortlist {
    /// `[tokens.len(), hidden_dim]`
    matrix: PackedMatrix,
    /// In the order in which they were added.
    tokens: Vec<TokenId>,
    /// Each token's row, or `NO_ROW`. Shape `[vocab_size]`.
    rows: Vec<u32>,
    n_tokens_max: usize,
}

const NO_ROW: u32 = u32::MAX;

impl Shortlist {
    /// `like`: of the type and the columns of the output matrix.
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

    /// Adds what is not there yet of `tokens`, while there is room; `push_row` appends a token's row to the matrix, unless it
    /// cannot.
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

    /// Where the logits have this token.
    pub fn row(&self, token: TokenId) -> Option<usize> {
        self.rows.get(token.index()).filter(|&&row| row != NO_ROW).map(|&row| row as usize)
    }

    /// Bytes on the heap, those that are kept as room included.
    pub fn memory_usage(&self) -> usize {
        self.matrix.size_bytes() + 4 * (self.rows.capacity() + self.tokens.capacity())
    }
}
