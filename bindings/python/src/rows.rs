//! Rows of an engine's likeliest tokens, as Python gives them.

use refrain::TokenId;
use refrain::internals::draft::{SUCCESSORS_MAX, Successor, SuccessorLists};

use crate::errors::Failure;

/// What the numbers of a row are.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Logits,
    LogProbabilities,
    Probabilities,
}

/// Token ids and their numbers, `[n_rows][n]`.
pub(crate) struct Rows {
    pub(crate) tokens: Vec<Vec<u32>>,
    pub(crate) values: Vec<Vec<f32>>,
    pub(crate) kind: Kind,
}

/// By how much the probabilities of a row may exceed 1 together: those of engines in half precision are rounded.
const SUM_TOLERANCE: f32 = 0.02;

/// Less likely tokens are left out, as the engine's own calibration leaves them out: none of them would be drafted.
const LOG_PROBABILITY_MIN: f32 = -7.0;

impl Rows {
    /// The likeliest successors of each row.
    ///
    /// # Errors
    /// [`Failure::Logits`], [`Failure::Token`]: the rows are not at most `n_rows_max` rows of distinct tokens of the vocabulary with
    /// numbers of the kind.
    pub(crate) fn lists(&self, vocab_size: usize, n_rows_max: usize) -> Result<SuccessorLists, Failure> {
        let Self { tokens, values, kind } = self;
        if tokens.len() != values.len() {
            return Err(Failure::Logits { row: None, problem: "are not as many rows of ids as of values" });
        }
        if tokens.len() > n_rows_max {
            return Err(Failure::Logits { row: Some(n_rows_max), problem: "belongs to no token" });
        }
        let mut lists = SuccessorLists::new();
        for (row, (tokens, values)) in tokens.iter().zip(values).enumerate() {
            let fail = |problem| Failure::Logits { row: Some(row), problem };
            if tokens.len() != values.len() {
                return Err(fail("has not as many ids as values"));
            }
            if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
                return Err(Failure::Token { token, vocab_size });
            }
            let mut sorted = tokens.clone();
            sorted.sort_unstable();
            if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(fail("has an id twice"));
            }
            let log_probabilities = kind.log_probabilities(values).map_err(fail)?;
            let mut successors: Vec<Successor> = tokens
                .iter()
                .zip(log_probabilities)
                .filter(|&(_, log_probability)| log_probability >= LOG_PROBABILITY_MIN)
                .map(|(&token, log_probability)| Successor { token: TokenId(token), log_probability })
                .collect();
            // Ties go to the lower id, whatever the order of the row.
            successors.sort_unstable_by(|a, b| {
                b.log_probability.total_cmp(&a.log_probability).then(a.token.0.cmp(&b.token.0))
            });
            successors.truncate(SUCCESSORS_MAX);
            lists.push(&successors);
        }
        Ok(lists)
    }
}

impl Kind {
    /// The natural logarithms of the probabilities that `values` stand for, at most 0.
    ///
    /// # Errors
    /// What is wrong with the values.
    fn log_probabilities(self, values: &[f32]) -> Result<Vec<f32>, &'static str> {
        if values.iter().any(|value| value.is_nan()) {
            return Err("has a value that is NaN");
        }
        let logs: Vec<f32> = match self {
            Kind::Logits => {
                let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                if most == f32::INFINITY {
                    return Err("has an infinite logit");
                }
                let sum: f32 = values.iter().map(|value| (value - most).exp()).sum();
                // Nothing but minus infinity: no token is possible.
                let total = if most == f32::NEG_INFINITY { 0.0 } else { most + sum.ln() };
                values.iter().map(|value| value - total).collect()
            }
            Kind::LogProbabilities => values.to_vec(),
            Kind::Probabilities if values.iter().any(|&value| value < 0.0) => {
                return Err("has a negative probability");
            }
            Kind::Probabilities => values.iter().map(|value| value.ln()).collect(),
        };
        let sum: f32 = logs.iter().map(|log| log.exp()).sum();
        if sum > 1.0 + SUM_TOLERANCE {
            return Err("has probabilities whose sum is above 1");
        }
        Ok(logs.into_iter().map(|log| log.min(0.0)).collect())
    }
}
