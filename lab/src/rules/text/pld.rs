//! Prompt lookup decoding.

use crate::rules::source::{Plan, Rule};
use refrain::TokenId;

/// The longest n-gram for the lookup; shorter ones follow.
pub(super) const NGRAM_MAX: usize = 3;
/// Maximum number of drafted tokens.
pub(super) const N_TOKENS: usize = 10;

/// Scans the text at each step, as published. No state is kept.
#[derive(Clone, Default, Debug)]
pub(super) struct Pld;

impl Rule for Pld {
    fn read(&mut self, _committed: &[TokenId]) {}

    fn reset(&mut self) {}

    fn plan(&mut self, committed: &[TokenId], plan: &mut Plan) {
        let len = committed.len();
        for n in (1..=NGRAM_MAX.min(len)).rev() {
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
