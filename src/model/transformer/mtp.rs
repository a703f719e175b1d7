//! The input of a head for multi-token prediction ([`ModelConfig::mtp`](crate::model::ModelConfig::mtp)).
//!
//! ```text
//! row of the token at position p + 1:   x = input · [norm(embedding[token]); norm(hidden)]
//! ```
//!
//! `hidden` is the target's final hidden state at position p, behind its last norm: that from which it predicted the token. Where the
//! target has not been yet, it is the head's own final hidden state of the row before (llama.cpp, `graph_mtp` of Qwen3.5; vLLM,
//! `Qwen3_5MultiTokenPredictor`).

use super::{Buffers, Compute, Model, for_rows, project};
use crate::kernels::{self, MatMul, resize_exact};

impl Model {
    /// Turns the embeddings in `x` into the input of the head's layer. Nothing happens in other models.
    ///
    /// # Panics
    /// If the workspace does not have a hidden state for each row.
    pub(super) fn join_hidden(&self, compute: Compute<'_>, ws: &mut Buffers) {
        let Some(mtp) = &self.weights.mtp else { return };
        let hidden_dim = self.config.hidden_dim;
        assert_eq!(ws.inputs.len(), ws.x.len(), "a hidden state of the target for each row");
        resize_exact(&mut ws.joined, 2 * ws.x.len());
        let (x, inputs) = (&ws.x, &ws.inputs);
        for_rows(compute, &mut ws.joined, 2 * hidden_dim, &|i, row| {
            let (embedding, hidden) = row.split_at_mut(hidden_dim);
            let own = i * hidden_dim..(i + 1) * hidden_dim;
            let norm = |from: &[f32], weight: &[f32], out: &mut [f32]| {
                kernels::rms_norm(compute.kernels, from, weight, self.config.norm_eps, out);
            };
            norm(&x[own.clone()], &mtp.embedding_norm, embedding);
            norm(&inputs[own], &mtp.hidden_norm, hidden);
        });
        let jobs = &mut [MatMul { w: &mtp.input, out: &mut ws.x }];
        project(compute, &mut ws.activations, &ws.joined, 2 * hidden_dim, jobs);
    }
}
