//! Inputs of each layer beside the residual stream ([`PerLayerInputs`]), as Gemma 3n and 4 have them.
//!
//! ```text
//! before the layers:  p = (norm(projection·x / √hidden_dim) + √dim · embedding[token]) / √2   [n_layers, dim]
//! behind layer l:     x += post_norm(out·(activation(gate·x) ∘ p[l]))
//! ```
//!
//! A row's inputs depend on its token alone. They are computed for all rows of a pass at once and follow their rows when a
//! pass drops some, or is cut into calls of a static graph.

use super::{At, Buffers, Compute, ForwardError, Model, Part, activate, for_rows, project, project_computed};
use crate::kernels::{self, MatMul, resize_exact};
use crate::model::arch::tensors::LayerWeight;
use crate::model::config::PerLayerInputs;
use crate::model::layers::LayersError;
use refrain_trees::TokenId;

impl Model {
    /// Computes the layers' own inputs from the scaled embeddings in `x`.
    pub(super) fn set_per_layer(
        &self,
        compute: Compute<'_>,
        parts: &[Part<'_>],
        ws: &mut Buffers,
    ) -> Result<(), ForwardError> {
        let (Some(per_layer), Some(weights)) = (&self.config.per_layer, &self.weights.per_layer) else {
            return Ok(());
        };
        let (k, hidden_dim, row_len) =
            (compute.kernels, self.config.hidden_dim, self.config.per_layer_dims());
        let n_rows = ws.x.len() / hidden_dim;
        resize_exact(&mut ws.per_layer, n_rows * row_len);
        resize_exact(&mut ws.mixed, n_rows * row_len);
        ws.per_layer_start = 0;
        let mut rest = &mut ws.per_layer[..];
        for part in parts {
            let own = rest.split_off_mut(..part.tokens().len() * row_len).expect("a row for each token");
            self.embed_per_layer(per_layer, part.tokens(), own)?;
        }
        let jobs = &mut [MatMul { w: &weights.projection, out: &mut ws.mixed }];
        project(compute, &mut ws.activations, &ws.x, hidden_dim, jobs);
        let projection_scale = 1.0 / (hidden_dim as f32).sqrt();
        let embedding_scale = (per_layer.dim as f32).sqrt();
        let embedded = &ws.per_layer;
        for_rows(compute, &mut ws.mixed, row_len, &|i, row| {
            kernels::scale(k, row, projection_scale);
            for (layer_idx, own) in row.chunks_exact_mut(per_layer.dim).enumerate() {
                kernels::rms_norm_in_place(k, own, &weights.norm, self.config.norm_eps);
                let start = i * row_len + layer_idx * per_layer.dim;
                kernels::add_scaled(k, own, &embedded[start..start + per_layer.dim], embedding_scale);
            }
            kernels::scale(k, row, std::f32::consts::FRAC_1_SQRT_2);
        });
        std::mem::swap(&mut ws.per_layer, &mut ws.mixed);
        Ok(())
    }

    /// Writes the rows of tokens in the second embedding to `out`, `[tokens.len(), n_layers · dim]`.
    fn embed_per_layer(
        &self,
        per_layer: &PerLayerInputs,
        tokens: &[TokenId],
        out: &mut [f32],
    ) -> Result<(), LayersError> {
        let row_of = |token: &TokenId| match token.index() {
            row if row < per_layer.vocab_size => row,
            _ => 0,
        };
        let weights = self.weights.per_layer.as_ref().and_then(|weights| weights.embedding.as_ref());
        match (weights, &self.streamed) {
            (Some(embedding), _) => {
                for (row, token) in out.chunks_exact_mut(self.config.per_layer_dims()).zip(tokens) {
                    embedding.dequantize_row(row_of(token), row);
                }
                Ok(())
            }
            (None, Some(streamed)) => {
                let read = streamed.embed_per_layer(tokens.iter().map(row_of), out);
                read.expect("streamed where it is not in memory")
            }
            (None, None) => unreachable!("loading reads the second embedding"),
        }
    }

    /// Lets the inputs of the kept rows of the batch close up.
    pub(super) fn keep_per_layer(&self, kept: &[u32], ws: &mut Buffers) {
        if self.config.per_layer.is_none() {
            return;
        }
        let row_len = self.config.per_layer_dims();
        // The numbers rise, so no row is overwritten before it is moved.
        for (to, &from) in kept.iter().enumerate() {
            let from = from as usize * row_len;
            ws.per_layer.copy_within(from..from + row_len, to * row_len);
        }
        ws.per_layer.truncate(kept.len() * row_len);
    }

    /// Appends inputs of padding rows.
    pub(super) fn pad_per_layer(&self, n_rows: usize, ws: &mut Buffers) {
        let len = n_rows * self.config.per_layer_dims();
        if len > ws.per_layer.len() {
            ws.per_layer.resize(len, 0.0);
        }
    }

    /// Adds what the layer makes of its own inputs to the residual stream, or to all streams but the first.
    pub(super) fn add_per_layer(&self, at: &At<'_>, per_layer: &PerLayerInputs, ws: &mut Buffers) {
        let &At { compute, layer, layer_idx, .. } = at;
        let (dim, row_len, hidden_dim) =
            (per_layer.dim, self.config.per_layer_dims(), self.config.hidden_dim);
        resize_exact(&mut ws.gate, ws.x.len() / hidden_dim * dim);
        self.scale_for_gate(at, ws);
        let jobs = &mut [MatMul { w: layer.matrix(LayerWeight::PerLayerGate), out: &mut ws.gate }];
        project(compute, &mut ws.activations, &ws.x, hidden_dim, jobs);
        let inputs = &ws.per_layer[ws.per_layer_start * row_len..];
        let jobs = &mut [MatMul { w: layer.matrix(LayerWeight::PerLayerOut), out: &mut ws.projected }];
        project_computed(compute, &mut ws.activations, &mut ws.gate, dim, jobs, &|i, row| {
            let start = i * row_len + layer_idx * dim;
            activate(compute.kernels, per_layer.activation, row, &inputs[start..start + dim]);
        });
        match &self.config.streams {
            None => self.add_result(at, LayerWeight::PostPerLayerNorm, None, ws),
            Some(streams) => self.add_to_streams(at, LayerWeight::PostPerLayerNorm, streams, ws),
        }
    }
}
