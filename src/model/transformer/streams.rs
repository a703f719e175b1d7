//! Several residual streams ([`Streams`]) and the branch beside the mixer, as Gemma 3n has them.
//!
//! ```text
//! before the layers:  s[0] = x;  s[i] = (P[i]·x) · rms(x) / rms(P[i]·x)                        [n, hidden_dim]
//! before a layer:     s[j] += Σ a[j, i] · s[i];  x = s[active];  branch = b + norm(out·in·b) with b = norm(x)
//! behind the mixer:   x = (x + branch) / √2
//! behind the layer:   y = x − s[active];  s[j] += c[j] · y;  x = s[active]
//! behind the layers:  x = (s[0] + Σ (U[i]·s[i]) · rms(s[0]) / rms(U[i]·s[i])) / n
//! ```
//!
//! The streams of a row lie one behind the other. They follow their rows when a pass drops some, or is cut into calls of a
//! static graph. Every sum is one over the numbers of a row, in an order of its own, so a row has the same bits in every batch.

use super::{At, Buffers, Compute, Model, Normed, for_rows, project};
use crate::kernels::{self, Kernels, MatMul, resize_exact};
use crate::model::arch::tensors::LayerWeight;
use crate::model::config::{STREAMS_MAX, Streams};

/// The least mean square that a projection of a stream is divided by, as the reference implementation has it.
const MEAN_SQUARE_MIN: f32 = 1e-5;

/// Numbers of a stream that are predicted at a time: the old ones of all streams take 8 KiB of the stack.
const BLOCK: usize = 256;

/// The streams of a pass's rows.
#[derive(Default)]
pub(super) struct StreamBuffers {
    /// `[n_rows, streams, hidden_dim]`; empty if there is one stream.
    rows: Vec<f32>,
    /// The row that belongs to the first row of the layer at hand.
    pub(super) start: usize,
    /// Results of the branch of the layer at hand, `[n_rows, hidden_dim]`.
    branch: Vec<f32>,
}

impl StreamBuffers {
    /// Bytes on the heap.
    pub(super) fn memory_usage(&self) -> usize {
        (self.rows.capacity() + self.branch.capacity()) * size_of::<f32>()
    }
}

impl Model {
    /// Makes the streams from the scaled embeddings in `x`.
    pub(super) fn begin_streams(&self, compute: Compute<'_>, ws: &mut Buffers) {
        let (Some(streams), Some(weights)) = (&self.config.streams, &self.weights.streams) else { return };
        let (k, hidden_dim) = (compute.kernels, self.config.hidden_dim);
        let row_len = streams.n * hidden_dim;
        let Buffers { x, projected, activations, streams: StreamBuffers { rows, start, .. }, .. } = ws;
        *start = 0;
        resize_exact(rows, x.len() / hidden_dim * row_len);
        for_rows(compute, rows, row_len, &|i, row| {
            row[..hidden_dim].copy_from_slice(&x[i * hidden_dim..(i + 1) * hidden_dim]);
        });
        for (i, projection) in weights.into.iter().enumerate() {
            let jobs = &mut [MatMul { w: projection, out: projected }];
            project(compute, activations, x, hidden_dim, jobs);
            for_rows(compute, rows, row_len, &|row_idx, row| {
                let (first, others) = row.split_at_mut(hidden_dim);
                let stream = &mut others[i * hidden_dim..(i + 1) * hidden_dim];
                stream.copy_from_slice(&projected[row_idx * hidden_dim..(row_idx + 1) * hidden_dim]);
                scale_like(k, stream, first);
            });
        }
    }

    /// Writes the mean of the streams to `x`.
    pub(super) fn end_streams(&self, compute: Compute<'_>, ws: &mut Buffers) {
        let (Some(streams), Some(weights)) = (&self.config.streams, &self.weights.streams) else { return };
        let (k, hidden_dim) = (compute.kernels, self.config.hidden_dim);
        let Buffers { x, normed, projected, activations, streams: StreamBuffers { rows, .. }, .. } = ws;
        let stream = |row: usize, i: usize| &rows[(row * streams.n + i) * hidden_dim..][..hidden_dim];
        for_rows(compute, x, hidden_dim, &|row_idx, row| row.copy_from_slice(stream(row_idx, 0)));
        for (i, projection) in weights.out.iter().enumerate() {
            for_rows(compute, normed, hidden_dim, &|row_idx, row| {
                row.copy_from_slice(stream(row_idx, 1 + i))
            });
            let jobs = &mut [MatMul { w: projection, out: projected }];
            project(compute, activations, normed, hidden_dim, jobs);
            for_rows(compute, projected, hidden_dim, &|row_idx, row| scale_like(k, row, stream(row_idx, 0)));
            for_rows(compute, x, hidden_dim, &|row_idx, row| {
                kernels::add(k, row, &projected[row_idx * hidden_dim..(row_idx + 1) * hidden_dim]);
            });
        }
        for_rows(compute, x, hidden_dim, &|_, row| kernels::scale(k, row, 1.0 / streams.n as f32));
    }

    /// Lets the streams of the kept rows of the batch close up.
    pub(super) fn keep_streams(&self, kept: &[u32], ws: &mut Buffers) {
        let Some(streams) = &self.config.streams else { return };
        let row_len = streams.n * self.config.hidden_dim;
        let rows = &mut ws.streams.rows;
        // The numbers rise, so no row is overwritten before it is moved.
        for (to, &from) in kept.iter().enumerate() {
            let from = from as usize * row_len;
            rows.copy_within(from..from + row_len, to * row_len);
        }
        rows.truncate(kept.len() * row_len);
    }

    /// Appends streams of padding rows to those of `n_rows` rows, or sets them to 0.
    pub(super) fn pad_streams(&self, n_rows: usize, n_padded: usize, ws: &mut Buffers) {
        let Some(streams) = &self.config.streams else { return };
        let row_len = streams.n * self.config.hidden_dim;
        let rows = &mut ws.streams.rows;
        rows.truncate(n_rows * row_len);
        rows.reserve_exact((n_padded - n_rows) * row_len);
        rows.resize(n_padded * row_len, 0.0);
    }

    /// Predicts the streams behind a layer; `x` becomes the active one.
    pub(super) fn predict_streams(&self, at: &At<'_>, streams: &Streams, ws: &mut Buffers) {
        let (k, hidden_dim) = (at.compute.kernels, self.config.hidden_dim);
        let (n, active) = (streams.n, streams.active);
        let row_len = n * hidden_dim;
        let Buffers { x, normed, streams: StreamBuffers { rows, start, .. }, .. } = ws;
        let first = *start * row_len;
        let rows = &mut rows[first..first + x.len() * n];
        for_rows(at.compute, x, hidden_dim, &|i, row| {
            row.copy_from_slice(&rows[i * row_len + active * hidden_dim..][..hidden_dim]);
        });
        self.norm_for_router(at, x, normed);
        let weights = vector(at, LayerWeight::StreamPredict);
        for_rows(at.compute, rows, row_len, &|i, row| {
            let mixed = mixed(k, at, &normed[i * hidden_dim..(i + 1) * hidden_dim], n);
            // The weight of stream `from` in stream `to`.
            let weight = |to: usize, from: usize| times(&weights[(to * n + from) * n..][..n], &mixed);
            let mut old = [[0.0; BLOCK]; STREAMS_MAX];
            for start in (0..hidden_dim).step_by(BLOCK) {
                let len = BLOCK.min(hidden_dim - start);
                for (i, old) in old[..n].iter_mut().enumerate() {
                    old[..len].copy_from_slice(&row[i * hidden_dim + start..][..len]);
                }
                for to in 0..n {
                    let stream = &mut row[to * hidden_dim + start..][..len];
                    for (from, old) in old[..n].iter().enumerate() {
                        kernels::add_scaled(k, stream, &old[..len], weight(to, from));
                    }
                }
            }
        });
        for_rows(at.compute, x, hidden_dim, &|i, row| {
            row.copy_from_slice(&rows[i * row_len + active * hidden_dim..][..hidden_dim]);
        });
    }

    /// Corrects the streams by what the layer made of the active one, which is in `x`; `x` becomes the active one again.
    pub(super) fn correct_streams(&self, at: &At<'_>, streams: &Streams, ws: &mut Buffers) {
        let (k, hidden_dim) = (at.compute.kernels, self.config.hidden_dim);
        let (n, active) = (streams.n, streams.active);
        let row_len = n * hidden_dim;
        let Buffers { x, normed, streams: StreamBuffers { rows, start, .. }, .. } = ws;
        let first = *start * row_len;
        let rows = &mut rows[first..first + x.len() * n];
        self.norm_for_router(at, x, normed);
        let predicted = &*rows;
        for_rows(at.compute, x, hidden_dim, &|i, row| {
            kernels::add_scaled(k, row, &predicted[i * row_len + active * hidden_dim..][..hidden_dim], -1.0);
        });
        let weights = vector(at, LayerWeight::StreamCorrect);
        for_rows(at.compute, rows, row_len, &|i, row| {
            let mixed = mixed(k, at, &normed[i * hidden_dim..(i + 1) * hidden_dim], n);
            let change = &x[i * hidden_dim..(i + 1) * hidden_dim];
            for (stream, weights) in row.chunks_exact_mut(hidden_dim).zip(weights.chunks_exact(n)) {
                kernels::add_scaled(k, stream, change, times(weights, &mixed) + 1.0);
            }
        });
        self.show_active(at, streams, ws);
    }

    /// Copies the active stream to `x`.
    fn show_active(&self, at: &At<'_>, streams: &Streams, ws: &mut Buffers) {
        let hidden_dim = self.config.hidden_dim;
        let Buffers { x, streams: StreamBuffers { rows, start, .. }, .. } = ws;
        let rows = &rows[*start * streams.n * hidden_dim..];
        for_rows(at.compute, x, hidden_dim, &|i, row| {
            row.copy_from_slice(&rows[(i * streams.n + streams.active) * hidden_dim..][..hidden_dim]);
        });
    }

    /// Scales the active stream in `x` for the gate of the layer's own inputs.
    pub(super) fn scale_for_gate(&self, at: &At<'_>, ws: &mut Buffers) {
        if let Some(scale) = at.layer.vector(LayerWeight::StreamGateScale) {
            let k = at.compute.kernels;
            for_rows(at.compute, &mut ws.x, self.config.hidden_dim, &|_, row| kernels::mul(k, row, scale));
        }
    }

    /// Adds `norm(projected)` to all streams but the first.
    pub(super) fn add_to_streams(&self, at: &At<'_>, norm: LayerWeight, streams: &Streams, ws: &mut Buffers) {
        let (k, hidden_dim) = (at.compute.kernels, self.config.hidden_dim);
        let row_len = streams.n * hidden_dim;
        let norm = vector(at, norm);
        let Buffers { projected, streams: StreamBuffers { rows, start, .. }, .. } = &mut *ws;
        for_rows(at.compute, projected, hidden_dim, &|_, row| {
            kernels::rms_norm_in_place(k, row, norm, self.config.norm_eps);
        });
        let first = *start * row_len;
        let rows = &mut rows[first..first + projected.len() * streams.n];
        for_rows(at.compute, rows, row_len, &|i, row| {
            for stream in row.chunks_exact_mut(hidden_dim).skip(1) {
                kernels::add(k, stream, &projected[i * hidden_dim..(i + 1) * hidden_dim]);
            }
        });
        self.show_active(at, streams, ws);
    }

    /// `normed = norm(x)` with the norm of the router.
    fn norm_for_router(&self, at: &At<'_>, x: &[f32], normed: &mut [f32]) {
        let weight = vector(at, LayerWeight::StreamRouterNorm);
        Normed { x, weight, eps: self.config.norm_eps }.write(at.compute, normed);
    }

    /// Computes the branch beside the mixer from `x`.
    pub(super) fn compute_branch(&self, at: &At<'_>, rank: usize, ws: &mut Buffers) {
        let (k, hidden_dim) = (at.compute.kernels, self.config.hidden_dim);
        let Buffers { x, normed, mixed, activations, streams: StreamBuffers { branch, .. }, .. } = ws;
        resize_exact(mixed, x.len() / hidden_dim * rank);
        resize_exact(branch, x.len());
        let jobs = &mut [MatMul { w: at.layer.matrix(LayerWeight::BranchIn), out: mixed }];
        self.project_input(at, LayerWeight::AttnNorm, x, normed, activations, jobs);
        let jobs = &mut [MatMul { w: at.layer.matrix(LayerWeight::BranchOut), out: branch }];
        project(at.compute, activations, mixed, rank, jobs);
        let norm = vector(at, LayerWeight::PostBranchNorm);
        for_rows(at.compute, branch, hidden_dim, &|i, row| {
            kernels::rms_norm_in_place(k, row, norm, self.config.norm_eps);
            kernels::add(k, row, &normed[i * row.len()..(i + 1) * row.len()]);
        });
    }

    /// `x = (x + branch) / √2`
    pub(super) fn add_branch(&self, at: &At<'_>, ws: &mut Buffers) {
        let k = at.compute.kernels;
        let Buffers { x, streams: StreamBuffers { branch, .. }, .. } = ws;
        for_rows(at.compute, x, self.config.hidden_dim, &|i, row| {
            kernels::add(k, row, &branch[i * row.len()..(i + 1) * row.len()]);
            kernels::scale(k, row, std::f32::consts::FRAC_1_SQRT_2);
        });
    }
}

/// Scales `x` to the root mean square of `like`.
fn scale_like(k: Kernels, x: &mut [f32], like: &[f32]) {
    let mean_square = |x: &[f32]| kernels::dot(k, x, x) / x.len() as f32;
    let wanted = mean_square(like).sqrt();
    let factor = wanted / mean_square(x).max(MEAN_SQUARE_MIN).sqrt();
    kernels::scale(k, x, factor);
}

/// `tanh(router·normed / hidden_dim)` of a row; numbers behind the `n`-th are 0.
fn mixed(k: Kernels, at: &At<'_>, normed: &[f32], n: usize) -> [f32; STREAMS_MAX] {
    let mut mixed = [0.0; STREAMS_MAX];
    let router = vector(at, LayerWeight::StreamRouter).chunks_exact(normed.len());
    for (out, weights) in mixed[..n].iter_mut().zip(router) {
        // From libm: the same bits on every platform.
        *out = libm::tanhf(kernels::dot(k, weights, normed) / normed.len() as f32);
    }
    mixed
}

/// The product of a few numbers.
fn times(weights: &[f32], mixed: &[f32; STREAMS_MAX]) -> f32 {
    weights.iter().zip(mixed).map(|(weight, mixed)| weight * mixed).sum()
}

/// A vector that the plan of a layer with several streams, or with a branch, always names.
fn vector<'a>(at: &At<'a>, weight: LayerWeight) -> &'a [f32] {
    at.layer.vector(weight).expect("the plan of the layer names this vector")
}

/// Sets the gate's values of a row that lie below its mean plus `cutoff` standard deviations to 0, and reduces the others by
/// that bound. `ones` is as long as the row.
pub(super) fn cut_off(k: Kernels, gate: &mut [f32], cutoff: f32, ones: &[f32]) {
    let n = gate.len() as f32;
    let mean = kernels::dot(k, gate, ones) / n;
    kernels::add_scaled(k, gate, ones, -mean);
    let bound = cutoff * (kernels::dot(k, gate, gate) / n).sqrt();
    gate.iter_mut().for_each(|value| *value = (*value - bound).max(0.0));
}
