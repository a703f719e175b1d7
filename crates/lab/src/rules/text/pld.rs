//! Prompt lookup decoding.

use crate::rules::source::{Plan, Rule};
use refrain::TokenId;

/// The longest n-gram for the lookup in the author's code; shorter ones follow.
pub(super) const NGRAM_MAX: usize = 3;
/// The same in Hugging Face transformers (`max_matching_ngram_size` if it is not given).
pub(super) const NGRAM_MAX_TRANSFORMERS: usize = 2;
/// Maximum number of drafted tokens.
pub(super) const N_TOKENS: usize = 10;

/// Scans the text at each step, as published. No state is kept.
#[derive(Clone, Debug)]
pub(crate) struct Pld {
    /// The longest n-gram.
    pub(super) ngram_max: usize,
}

impl Pld {
    /// With the n-grams of the author's code.
    pub(crate) const PUBLISHED: Pld = Pld { ngram_max: NGRAM_MAX };
}

impl Rule for Pld {
    fn read(&mut self, _committed: &[TokenId]) {}

    fn reset(&mut self) {}

    fn plan(&mut self, committed: &[TokenId], plan: &mut Plan) {
        let len = committed.len();
        for n in (1..=self.ngram_max.min(len)).rev() {
            // An occurrence at the end of the text is the n-gram itself.
            let before = &committed[..len - 1];
            let found = before.windows(n).position(|window| window == &committed[len - n..]);
            if let Some(start) = found {
                return plan.push_path(&committed[start + n..len.min(start + n + N_TOKENS)]);
            }
        }
    }

    fn memory_usage(&self) -> usize {
        0
    }
}
