//! Recomputes a text: log-probabilities of its tokens, and hidden states before some layers. The final hidden state of its
//! newest token.

use serde::Serialize;

use super::Session;
use crate::cancel::CancelToken;
use crate::engine::error::{GenerateProblem, SessionProblem};
use crate::error::GenerateError;
use crate::face::internals;
use crate::kernels::{self, FloatEnv};
use crate::model::transformer::{ForwardError, PassEnd};
use refrain_trees::TokenId;

/// Receives the logits of one position, `[vocab_size]`.
pub type LogitsReceiver<'a> = &'a mut dyn FnMut(&[f32]);

/// How likely the model finds each token of a text.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Score {
    /// Natural logarithm of each token's probability, from the second token on.
    pub log_probabilities: Vec<f64>,
    /// `exp(-mean(log_probabilities))`
    pub perplexity: f64,
}

/// The model's results at one position of a text: see [`Session::trace`].
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Traced<'a> {
    /// The position, from 0.
    pub position: usize,
    /// The residual streams before the requested layers, `[3, hidden_dim]`.
    pub hidden: &'a [f32],
    /// The final hidden state, behind the last norm, `[hidden_dim]`.
    pub last_hidden: &'a [f32],
    /// The logits for the next token, `[vocab_size]`.
    pub logits: &'a [f32],
}

impl Session {
    /// Scores the session's tokens; `logits`, if given, receives each position's logits `[vocab_size]` in
    /// order.
    ///
    /// The tokens are recomputed from the first, in prefill chunks; afterwards the KV cache holds them.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn score(
        &mut self,
        cancel: &CancelToken,
        mut logits: Option<LogitsReceiver<'_>>,
    ) -> Result<Score, GenerateError> {
        let kernels = self.shared.kernels;
        let mut log_probabilities = Vec::new();
        self.run_again(cancel, |tokens, position, _, logit_row| {
            if let Some(receive) = &mut logits {
                receive(logit_row);
            }
            if let Some(next) = tokens.get(position + 1) {
                let _env = FloatEnv::ieee();
                let total = kernels::log_sum_exp(kernels, logit_row);
                log_probabilities.push(f64::from(logit_row[next.index()]) - f64::from(total));
            }
        })?;
        let _env = FloatEnv::ieee();
        let mean = log_probabilities.iter().sum::<f64>() / log_probabilities.len().max(1) as f64;
        Ok(Score { perplexity: (-mean).exp(), log_probabilities })
    }

    /// The final hidden state of the session's newest token, behind the last norm: what the output matrix would project.
    /// Models for embeddings give the vector of a text there. `[hidden_dim]`; its length is not normalized.
    ///
    /// Tokens behind those in the KV cache are computed in prefill chunks; afterwards the KV cache holds all tokens.
    ///
    /// # Errors
    /// The session has no token; otherwise as [`Session::prefill`].
    pub fn last_hidden_state(&mut self, cancel: &CancelToken) -> Result<Vec<f32>, GenerateError> {
        self.encode_turns()?;
        let Self { shared, options, conversation, target, .. } = self;
        let tokens = &conversation.tokens;
        let Some(newest) = tokens.len().checked_sub(1) else {
            return Err(GenerateProblem::EmptyPrompt.into());
        };
        target.kv.truncate(newest);
        while target.kv.len() < tokens.len() {
            let done = target.kv.len();
            let end = tokens.len().min(done + options.prefill_chunk);
            let pass_end = if end == tokens.len() { PassEnd::Hidden } else { PassEnd::KeysAndValues };
            target.forward_chain(shared, &tokens[done..end], pass_end, cancel)?;
            target.kv.commit_all(&target.batch);
        }
        let n_rows = target.batch.len();
        Ok(target.workspace.hidden_row(n_rows - 1, shared.model.config().hidden_dim).to_vec())
    }

    internals! {
        /// Calls `receive` for each token of the session, in order, with the residual streams before the layers
        /// `layers` (layer 0: the embedding; behind the last layer: before the last norm) and the final logits.
        ///
        /// The tokens are recomputed from the first, in prefill chunks; afterwards the KV cache holds them.
        /// They are the tokens that [`Session::generate`] would continue, including the beginning of an
        /// answer.
        ///
        /// # Errors
        /// [`SessionProblem::OutOfRange`]: a layer does not exist; `ForwardError::Undivided`: the layers are
        /// static graphs; otherwise as [`Session::prefill`].
        fn trace(
            &mut self,
            cancel: &CancelToken,
            layers: [usize; 3],
            receive: &mut dyn FnMut(Traced<'_>),
        ) -> Result<(), GenerateError> {
            let max = self.shared.model.config().n_layers();
            if let Some(given) = layers.into_iter().find(|&layer_idx| layer_idx > max) {
                return Err(SessionProblem::OutOfRange { option: "layers", given, min: 0, max }.into());
            }
            if self.shared.model.graphs().is_some() {
                return Err(ForwardError::Undivided.into());
            }
            // What draft sources read is set anew by each generation and prefill.
            self.target.taps = Some(layers);
            let result = self.run_again(cancel, |_, position, [hidden, last_hidden], logits| {
                receive(Traced { position, hidden, last_hidden, logits });
            });
            self.target.taps = None;
            result
        }
    }

    /// Calls `receive` with (tokens, position, tapped hidden states or an empty slice and the final one, logits).
    fn run_again(
        &mut self,
        cancel: &CancelToken,
        mut receive: impl FnMut(&[TokenId], usize, [&[f32]; 2], &[f32]),
    ) -> Result<(), GenerateError> {
        self.encode_turns()?;
        let Self { shared, options, conversation, target, .. } = self;
        let tokens = &conversation.tokens;
        target.kv.truncate(0);
        let (vocab_size, hidden_dim) = (shared.model.config().vocab_size, shared.model.config().hidden_dim);
        let tapped_dim = if target.taps.is_some() { 3 * hidden_dim } else { 0 };
        let mut projected = Vec::new();
        while target.kv.len() < tokens.len() {
            let done = target.kv.len();
            let end = tokens.len().min(done + options.prefill_chunk);
            target.forward_chain(shared, &tokens[done..end], PassEnd::Hidden, cancel)?;
            let rows: Vec<u32> = (0..(end - done) as u32).collect();
            // A few rows at a time: the logits of a whole chunk would take more memory than the model.
            for rows in rows.chunks(options.projection_rows) {
                shared.model.logits_with_cancel(
                    shared.compute(),
                    &mut target.workspace,
                    rows,
                    &mut projected,
                    cancel.flag(),
                )?;
                for (&row, logits) in rows.iter().zip(projected.chunks_exact(vocab_size)) {
                    let hidden = &target.workspace.tapped_rows()[row as usize * tapped_dim..][..tapped_dim];
                    let last_hidden = target.workspace.hidden_row(row as usize, hidden_dim);
                    receive(tokens, done + row as usize, [hidden, last_hidden], logits);
                }
            }
            target.kv.commit_all(&target.batch);
        }
        Ok(())
    }
}
