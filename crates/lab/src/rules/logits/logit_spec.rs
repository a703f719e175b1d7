//! LogitSpec: lookup of the root and of the runners-up of the row before it.

use refrain::TokenId;

use super::SharedRows;
use crate::rules::source::{Plan, Rule};

/// The longest n-gram for the lookup; shorter ones follow.
const NGRAM_MAX: usize = 3;
/// Tokens of the longest continuation.
const N_TOKENS: usize = 20;
/// Tokens of a runner-up and its continuation, for the ranks that a trace has.
const N_TOKENS_OF_RUNNER_UP: usize = 4;

#[derive(Clone)]
pub(super) struct LogitSpec {
    rows: SharedRows,
}

impl LogitSpec {
    pub(super) fn new(rows: &SharedRows) -> Self {
        LogitSpec { rows: rows.clone() }
    }
}

impl Rule for LogitSpec {
    fn read(&mut self, _committed: &[TokenId]) {}

    fn reset(&mut self) {}

    fn plan(&mut self, committed: &[TokenId], plan: &mut Plan) {
        let mut text = committed.to_vec();
        plan.push_path(lookup(committed, &text));
        let rows = self.rows.lock();
        for (token, _) in rows.last().into_iter().flat_map(|top| top.iter().skip(1)) {
            text.push(token);
            let mut draft = vec![token];
            draft.extend(lookup(committed, &text).iter().take(N_TOKENS_OF_RUNNER_UP - 1));
            plan.push_path(&draft);
            text.pop();
        }
    }

    fn memory_usage(&self) -> usize {
        self.rows.lock().memory_usage()
    }
}

/// What follows the last tokens of `text` in `within`: the newest of the longest continuations.
fn lookup<'a>(within: &'a [TokenId], text: &[TokenId]) -> &'a [TokenId] {
    for n in (1..=NGRAM_MAX.min(text.len())).rev() {
        let ngram = &text[text.len() - n..];
        let ends = (n..within.len()).filter(|&end| &within[end - n..end] == ngram);
        // Equal lengths: the last, by `max_by_key`.
        if let Some(end) = ends.max_by_key(|&end| N_TOKENS.min(within.len() - end)) {
            return &within[end..within.len().min(end + N_TOKENS)];
        }
    }
    &[]
}
