//! Log-probabilities of the output's tokens: those of the model, before grammars, biases, penalties and temperature.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use refrain::{LogitsProcessor, ProcessorError, TokenId, Tokenizer};

/// A token of the output with its log-probability, and the likeliest tokens at its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenLogprob {
    pub(crate) bytes: Vec<u8>,
    pub(crate) logprob: f32,
    pub(crate) top: Vec<(Vec<u8>, f32)>,
}

/// A token at a place with these logits.
pub(super) fn scored(logits: &[f32], token: TokenId, n_top: usize, tokenizer: &Tokenizer) -> TokenLogprob {
    let log_sum = log_sum(logits);
    let bytes = |token: TokenId| tokenizer.token_bytes(token).unwrap_or_default().to_vec();
    let logit = logits.get(token.index()).copied().unwrap_or(f32::NEG_INFINITY);
    let top = top(logits, n_top).into_iter().map(|(token, logit)| (bytes(token), logit - log_sum)).collect();
    TokenLogprob { bytes: bytes(token), logprob: logit - log_sum, top }
}

/// The logarithm of the sum of the exponentials.
fn log_sum(logits: &[f32]) -> f32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    max + sum.ln() as f32
}

/// Reads the probabilities of a generation. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Logprobs {
    rows: Arc<Mutex<VecDeque<Row>>>,
    n_top: usize,
}

/// The place of a token.
#[derive(Debug)]
struct Row {
    /// Tokens before it.
    position: usize,
    top: Vec<(TokenId, f32)>,
    log_sum: f32,
    /// The logits, until the token at the place is known.
    logits: Vec<f32>,
    chosen: Option<(TokenId, f32)>,
}

impl Logprobs {
    pub(crate) fn new(n_top: usize) -> Self {
        Self { rows: Arc::default(), n_top }
    }

    /// The probabilities of the token at `position`.
    pub(crate) fn take(
        &self,
        position: usize,
        token: TokenId,
        tokenizer: &Tokenizer,
    ) -> Option<TokenLogprob> {
        let mut rows = self.lock();
        while rows.front().is_some_and(|row| row.position < position) {
            rows.pop_front();
        }
        let row = rows.pop_front_if(|row| row.position == position)?;
        let logprob = match row.chosen {
            Some((chosen, logprob)) if chosen == token => logprob,
            _ => row.logits.get(token.index())? - row.log_sum,
        };
        let bytes = |token: TokenId| tokenizer.token_bytes(token).unwrap_or_default().to_vec();
        let top = row.top.iter().map(|&(token, logit)| (bytes(token), logit - row.log_sum)).collect();
        Some(TokenLogprob { bytes: bytes(token), logprob, top })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogitsProcessor for Logprobs {
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        let n_top = self.n_top;
        let mut rows = self.lock();
        // A step that is repeated visits its places again.
        while rows.back().is_some_and(|row| row.position >= tokens.len()) {
            rows.pop_back();
        }
        let mut reused = Vec::new();
        if let (Some(row), Some(&chosen)) = (rows.back_mut(), tokens.last())
            && row.position + 1 == tokens.len()
        {
            reused = std::mem::take(&mut row.logits);
            row.chosen = reused.get(chosen.index()).map(|logit| (chosen, logit - row.log_sum));
        }
        reused.clear();
        reused.extend_from_slice(logits);
        rows.push_back(Row {
            position: tokens.len(),
            top: top(logits, n_top),
            log_sum: log_sum(logits),
            logits: reused,
            chosen: None,
        });
        Ok(())
    }
}

/// The `n` greatest logits, the greatest first; of equal ones, the smallest ids.
fn top(logits: &[f32], n: usize) -> Vec<(TokenId, f32)> {
    let mut top: Vec<(TokenId, f32)> = Vec::with_capacity(n + 1);
    for (id, &logit) in (0..).zip(logits) {
        if top.len() == n && top.last().is_none_or(|&(_, least)| logit <= least) {
            continue;
        }
        let at = top.partition_point(|&(_, other)| other >= logit);
        top.insert(at, (TokenId(id), logit));
        top.truncate(n);
    }
    top
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_come_first() {
        let logits = [0.5, 2.0, -1.0, 2.0, 1.0];
        let ids = |n| top(&logits, n).iter().map(|(id, _)| id.0).collect::<Vec<_>>();
        assert_eq!(ids(3), [1, 3, 4]);
        assert_eq!(ids(0), [0; 0]);
        assert_eq!(ids(9), [1, 3, 4, 0, 2]);
    }
}
