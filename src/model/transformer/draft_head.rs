//! The input of a draft head ([`ModelConfig::draft_head`](crate::model::ModelConfig::draft_head)).
//!
//! ```text
//! row of the token at position p + 1:   joined = [norm(embedding[token]); norm(hidden)]
//! multi-token prediction:               x = input · joined
//! EAGLE-3:                              x = hidden (or its norm);   q, k, v = W · joined
//! ```
//!
//! For multi-token prediction, `hidden` is the target's final hidden state at position p, behind its last norm: that from which it
//! predicted the token. Where the target has not been yet, it is the head's own final hidden state of the row before (llama.cpp,
//! `graph_mtp` of Qwen3.5; vLLM, `Qwen3_5MultiTokenPredictor`).
//!
//! For EAGLE-3, `hidden` is `input · [a; b; c]` with the target's residual streams at position p before three layers, or the head's own
//! stream of the row before, behind its layer and before the last norm (SafeAILab, `cnets.py`; vLLM, `llama_eagle3.py`).

use super::{Buffers, Compute, Model, for_rows, project};
use crate::kernels::{self, MatMul, resize_exact};

impl Model {
    /// Turns the embeddings in `x` into the input of the head's layer. Nothing happens in other models.
    ///
    /// # Panics
    /// If the workspace does not have a hidden state for each row.
    pub(super) fn join_hidden(&self, compute: Compute<'_>, ws: &mut Buffers) {
        let Some(head) = &self.weights.draft_head else { return };
        let (hidden_dim, eagle3) = (self.config.hidden_dim, self.config.eagle3());
        let input_dim = if ws.inputs_are_own { hidden_dim } else { self.config.target_state_dim() };
        assert_eq!(ws.inputs.len() * hidden_dim, ws.x.len() * input_dim, "a hidden state for each row");
        let hidden = match eagle3 {
            Some(_) if !ws.inputs_are_own => {
                let jobs = &mut [MatMul { w: &head.input, out: &mut ws.normed }];
                project(compute, &mut ws.activations, &ws.inputs, input_dim, jobs);
                &ws.normed
            }
            _ => &ws.inputs,
        };
        resize_exact(&mut ws.joined, 2 * ws.x.len());
        let x = &ws.x;
        for_rows(compute, &mut ws.joined, 2 * hidden_dim, &|i, row| {
            let (of_embedding, of_hidden) = row.split_at_mut(hidden_dim);
            let own = i * hidden_dim..(i + 1) * hidden_dim;
            let norm = |from: &[f32], weight: &[f32], out: &mut [f32]| {
                kernels::rms_norm(compute.kernels, from, weight, self.config.norm_eps, out);
            };
            norm(&x[own.clone()], &head.embedding_norm, of_embedding);
            norm(&hidden[own], &head.hidden_norm, of_hidden);
        });
        match eagle3 {
            None => {
                let jobs = &mut [MatMul { w: &head.input, out: &mut ws.x }];
                project(compute, &mut ws.activations, &ws.joined, 2 * hidden_dim, jobs);
            }
            Some(eagle3) if eagle3.normed_residual => {
                for (x, row) in ws.x.chunks_exact_mut(hidden_dim).zip(ws.joined.chunks_exact(2 * hidden_dim))
                {
                    x.copy_from_slice(&row[hidden_dim..]);
                }
            }
            Some(_) => ws.x.copy_from_slice(hidden),
        }
    }
}
