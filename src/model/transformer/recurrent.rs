//! Recurrent mixers: the gated short convolution, the gated delta rule, Mamba-2.
//!
//! ```text
//! short convolution:  b, c, u = Win·a (+ bias);  Wout·(c ∘ conv(b ∘ u)) (+ bias)
//! delta rule:         q, k, v = silu(conv(Wqkv·a));  q, k = q/‖q‖ · 1/√key_dim, k/‖k‖
//!                     β = sigmoid(Wb·a);  decay = exp(A · softplus(Wa·a + step_bias))
//!                     Wout·(norm(rule(q, k, v, decay, β)) ∘ silu(Wz·a))
//! Mamba-2:            z, (x, B, C), s = Win·a;  x, B, C = silu(conv(x, B, C));  Δ = softplus(s + step_bias)
//!                     y = rule(C, B, x, exp(A · Δ), Δ) + D ∘ x;  Wout·norm(y ∘ silu(z))
//! ```
//!
//! The convolution and the rule run along each path of a tree, in [`RecurrentLayer`](crate::model::state::RecurrentLayer); everything else is row
//! by row.

use super::{At, Buffers, Model, Part, for_rows, project};
use crate::kernels::{self, MatMul, RowPart, StateInputs, resize_exact};
use crate::model::arch::tensors::LayerWeight;
use crate::model::config::{DeltaNet, Mamba2, ShortConv};
use crate::model::rows::Rows;

/// Added to the sum of squares of queries and keys of the delta rule before its root.
const L2_EPS: f32 = 1e-6;

impl Model {
    /// `projected` of a gated short convolution.
    pub(super) fn short_conv(
        &self,
        at: &At<'_>,
        conv: &ShortConv,
        rows: &Rows<'_>,
        parts: &mut [Part<'_>],
        ws: &mut Buffers,
    ) {
        let &At { compute, layer, layer_idx, .. } = at;
        let (k, dim, n_rows) = (compute.kernels, conv.conv_dim, rows.positions.len());
        resize_exact(&mut ws.mixed, n_rows * 3 * dim);
        resize_exact(&mut ws.convolved, n_rows * dim);
        let jobs = &mut [MatMul { w: layer.matrix(LayerWeight::ConvIn), out: &mut ws.mixed }];
        self.project_input(at, LayerWeight::AttnNorm, &ws.x, &mut ws.normed, &mut ws.activations, jobs);
        let bias = layer.vector(LayerWeight::ConvInBias);
        for_rows(compute, &mut ws.mixed, 3 * dim, &|_, row| {
            if let Some(bias) = bias {
                kernels::add(k, row, bias);
            }
            let (b, rest) = row.split_at_mut(dim);
            kernels::mul(k, b, &rest[dim..]);
        });
        let weight = layer.vector(LayerWeight::ShortConv).expect("the plan names the convolution's weights");
        let bias = layer.vector(LayerWeight::ShortConvBias);
        for (part, (range, _)) in parts.iter_mut().zip(rows.by_part()) {
            let x = RowPart::all(&ws.mixed[range.start * 3 * dim..range.end * 3 * dim], 3 * dim);
            let out = &mut ws.convolved[range.start * dim..range.end * dim];
            let (state, rows, _) = part.recurrent(layer_idx);
            state.convolve(compute, rows, x, weight, bias, out);
        }
        let mixed = &ws.mixed;
        for_rows(compute, &mut ws.convolved, dim, &|i, row| {
            kernels::mul(k, row, &mixed[i * 3 * dim + dim..][..dim]);
        });
        let jobs = &mut [MatMul { w: layer.matrix(LayerWeight::ConvOut), out: &mut ws.projected }];
        project(compute, &mut ws.activations, &ws.convolved, dim, jobs);
    }

    /// `projected` of a gated delta rule.
    pub(super) fn delta_net(
        &self,
        at: &At<'_>,
        delta: &DeltaNet,
        rows: &Rows<'_>,
        parts: &mut [Part<'_>],
        ws: &mut Buffers,
    ) {
        let &At { compute, layer, .. } = at;
        let (k, n_rows) = (compute.kernels, rows.positions.len());
        let DeltaNet { n_key_heads, n_value_heads: n_heads, key_dim, value_dim, .. } = *delta;
        let (conv_dim, keys_len, inner) = (delta.conv_dim(), n_key_heads * key_dim, n_heads * value_dim);
        for (buffer, row_len) in [
            (&mut ws.mixed, conv_dim),
            (&mut ws.convolved, conv_dim),
            (&mut ws.gate, inner),
            (&mut ws.attended, inner),
            (&mut ws.decay, n_heads),
            (&mut ws.gain, n_heads),
        ] {
            resize_exact(buffer, n_rows * row_len);
        }
        let jobs = &mut [
            MatMul { w: layer.matrix(LayerWeight::DeltaIn), out: &mut ws.mixed },
            MatMul { w: layer.matrix(LayerWeight::DeltaGate), out: &mut ws.gate },
            MatMul { w: layer.matrix(LayerWeight::DeltaStep), out: &mut ws.decay },
            MatMul { w: layer.matrix(LayerWeight::DeltaBeta), out: &mut ws.gain },
        ];
        self.project_input(at, LayerWeight::AttnNorm, &ws.x, &mut ws.normed, &mut ws.activations, jobs);
        let (rates, step_bias) = (vector(at, LayerWeight::StateA), vector(at, LayerWeight::StateStepBias));
        for (i, decay) in ws.decay.iter_mut().enumerate() {
            let head = i % n_heads;
            *decay = kernels::exp(rates[head] * softplus(*decay + step_bias[head]));
        }
        ws.gain.iter_mut().for_each(|gain| *gain = sigmoid(*gain));
        self.convolve(at, (conv_dim, 0, conv_dim), rows, parts, ws);
        let query_scale = 1.0 / (key_dim as f32).sqrt();
        for_rows(compute, &mut ws.convolved, conv_dim, &|_, row| {
            kernels::silu(k, row);
            for (i, head) in row[..2 * keys_len].chunks_exact_mut(key_dim).enumerate() {
                kernels::l2_norm_in_place(k, head, L2_EPS);
                if i < n_key_heads {
                    kernels::scale(k, head, query_scale);
                }
            }
        });
        self.advance(at, (conv_dim, n_heads, inner), [0, keys_len, 2 * keys_len], rows, parts, ws);
        let (norm, gate, eps) = (vector(at, LayerWeight::StateNorm), &ws.gate, self.config.norm_eps);
        for_rows(compute, &mut ws.attended, inner, &|i, row| {
            let gate = &gate[i * inner..][..inner];
            for (head, gate) in row.chunks_exact_mut(value_dim).zip(gate.chunks_exact(value_dim)) {
                kernels::rms_norm_gated(k, head, norm, eps, gate);
            }
        });
        let jobs = &mut [MatMul { w: layer.matrix(LayerWeight::DeltaOut), out: &mut ws.projected }];
        project(compute, &mut ws.activations, &ws.attended, inner, jobs);
    }

    /// `projected` of Mamba-2.
    pub(super) fn mamba2(
        &self,
        at: &At<'_>,
        mamba: &Mamba2,
        rows: &Rows<'_>,
        parts: &mut [Part<'_>],
        ws: &mut Buffers,
    ) {
        let &At { compute, layer, .. } = at;
        let (k, n_rows) = (compute.kernels, rows.positions.len());
        let Mamba2 { n_heads, head_dim, n_groups, state_dim, .. } = *mamba;
        let (inner, conv_dim, keys_len) = (mamba.inner_dim(), mamba.conv_dim(), n_groups * state_dim);
        let width = inner + conv_dim + n_heads;
        for (buffer, row_len) in [
            (&mut ws.mixed, width),
            (&mut ws.convolved, conv_dim),
            (&mut ws.attended, inner),
            (&mut ws.decay, n_heads),
            (&mut ws.gain, n_heads),
        ] {
            resize_exact(buffer, n_rows * row_len);
        }
        let jobs = &mut [MatMul { w: layer.matrix(LayerWeight::MambaIn), out: &mut ws.mixed }];
        self.project_input(at, LayerWeight::AttnNorm, &ws.x, &mut ws.normed, &mut ws.activations, jobs);
        let (rates, step_bias) = (vector(at, LayerWeight::StateA), vector(at, LayerWeight::StateStepBias));
        for (row, mixed) in ws.mixed.chunks_exact(width).enumerate() {
            for (head, &step) in mixed[inner + conv_dim..].iter().enumerate() {
                let step = softplus(step + step_bias[head]);
                ws.gain[row * n_heads + head] = step;
                ws.decay[row * n_heads + head] = kernels::exp(rates[head] * step);
            }
        }
        self.convolve(at, (width, inner, conv_dim), rows, parts, ws);
        for_rows(compute, &mut ws.convolved, conv_dim, &|_, row| kernels::silu(k, row));
        self.advance(at, (conv_dim, n_heads, inner), [inner + keys_len, inner, 0], rows, parts, ws);
        let (skip, norm) = (vector(at, LayerWeight::StateSkip), vector(at, LayerWeight::StateNorm));
        let (mixed, convolved, eps) = (&ws.mixed, &ws.convolved, self.config.norm_eps);
        for_rows(compute, &mut ws.attended, inner, &|i, row| {
            let x = &convolved[i * conv_dim..][..inner];
            let heads = row.chunks_exact_mut(head_dim).zip(x.chunks_exact(head_dim));
            for ((head, x), &skip) in heads.zip(skip) {
                kernels::add_scaled(k, head, x, skip);
            }
            kernels::silu_mul_by(k, row, &mixed[i * width..][..inner]);
            kernels::rms_norm_in_place(k, row, norm, eps);
        });
        let jobs = &mut [MatMul { w: layer.matrix(LayerWeight::MambaOut), out: &mut ws.projected }];
        project(compute, &mut ws.activations, &ws.attended, inner, jobs);
    }

    /// Applies the rows to the states; `attended` becomes the result, `[n_rows, inner]`. `columns` are those where queries, keys and
    /// values begin in rows of `conv_dim` in `convolved`.
    fn advance(
        &self,
        at: &At<'_>,
        (conv_dim, n_heads, inner): (usize, usize, usize),
        columns: [usize; 3],
        rows: &Rows<'_>,
        parts: &mut [Part<'_>],
        ws: &mut Buffers,
    ) {
        for (part, (range, _)) in parts.iter_mut().zip(rows.by_part()) {
            let convolved = &ws.convolved[range.start * conv_dim..range.end * conv_dim];
            let [queries, keys, values] = columns.map(|start| RowPart::from(convolved, conv_dim, start));
            let per_head = range.start * n_heads..range.end * n_heads;
            let inputs = StateInputs {
                queries,
                keys,
                values,
                decay: RowPart::all(&ws.decay[per_head.clone()], n_heads),
                gain: RowPart::all(&ws.gain[per_head], n_heads),
            };
            let out = &mut ws.attended[range.start * inner..range.end * inner];
            let (state, rows, scratch) = part.recurrent(at.layer_idx);
            state.advance(at.compute, rows, inputs, scratch, out);
        }
    }

    /// The convolution before a state: of columns `start..start + conv_dim` of rows of `width` in `mixed`.
    fn convolve(
        &self,
        at: &At<'_>,
        (width, start, conv_dim): (usize, usize, usize),
        rows: &Rows<'_>,
        parts: &mut [Part<'_>],
        ws: &mut Buffers,
    ) {
        let (weight, bias) =
            (vector(at, LayerWeight::StateConv), at.layer.vector(LayerWeight::StateConvBias));
        for (part, (range, _)) in parts.iter_mut().zip(rows.by_part()) {
            let x = RowPart::from(&ws.mixed[range.start * width..range.end * width], width, start);
            let out = &mut ws.convolved[range.start * conv_dim..range.end * conv_dim];
            let (state, rows, _) = part.recurrent(at.layer_idx);
            state.convolve(at.compute, rows, x, weight, bias, out);
        }
    }
}

/// A vector that the plan of a recurrent layer always names.
fn vector<'a>(at: &At<'a>, weight: LayerWeight) -> &'a [f32] {
    at.layer.vector(weight).expect("the plan of the layer names this vector")
}

pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + kernels::exp(-x))
}

/// `ln(1 + exp(x))`, which is x for large x. The logarithm comes from libm: the same bits on every platform.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { libm::log1pf(kernels::exp(x)) }
}
