//! The Llama architecture on burn: RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied embeddings.
//!
//! Since burn 0.22 a tensor's backend is a property of its [`Device`], not of its type, so the same code runs
//! on every backend that the build enables. Projections that read the same input are one matrix here (`qkv`,
//! `gate_up`): a CPU backend spends its time in the matrix products, and fewer, wider ones are faster. The
//! exporter splits them again.

mod head;
mod init;
mod rope;
mod shape;

use std::ops::Range;

use burn::module::{Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Bool, Device, Int, Tensor};

pub use head::{DraftHead, Eagle3Head, MtpHead, Texts, drafts};
pub use rope::Rope;
pub use shape::ModelShape;

/// Score of a masked key. Not minus infinity: `exp` of a number that underflows takes the slow path of libm, 8 % of a
/// training step at -1e9. A weight of e⁻⁷⁰ is far below the f32 precision of a sum with the others.
const MASKED: f64 = -70.0;

/// Queries of one attention block. A block computes no scores for keys after its last query.
const QUERY_BLOCK: usize = 128;

/// One transformer block.
#[derive(Module, Debug)]
pub struct Block {
    /// Gain of the norm before attention, `[hidden]`.
    pub attn_norm: Param<Tensor<1>>,
    /// Query, key and value projections side by side, `[hidden, (heads + 2 · kv_heads) · head_dim]`.
    pub qkv: Param<Tensor<2>>,
    /// Output projection of attention, `[heads · head_dim, hidden]`.
    pub attn_out: Param<Tensor<2>>,
    /// Gain of the norm before the feed-forward part, `[hidden]`.
    pub ffn_norm: Param<Tensor<1>>,
    /// Gate and up projections side by side, `[hidden, 2 · intermediate]`.
    pub gate_up: Param<Tensor<2>>,
    /// Down projection, `[intermediate, hidden]`.
    pub down: Param<Tensor<2>>,
}

/// The whole model; the output matrix is the embedding matrix.
#[derive(Module, Debug)]
pub struct Llama {
    /// Token embeddings, `[vocab, hidden]`.
    pub embedding: Param<Tensor<2>>,
    /// The blocks, first to last.
    pub blocks: Vec<Block>,
    /// Gain of the last norm, `[hidden]`.
    pub final_norm: Param<Tensor<1>>,
    /// The sizes.
    #[module(skip)]
    pub shape: ModelShape,
}

/// Values shared by all forward passes of one sequence length: rotation tables and causal masks.
#[derive(Debug, Clone)]
pub struct Positions {
    rope: Rope,
    /// One per block of queries: `true` for a masked key, `[1, 1, group · rows, keys]`.
    masks: Vec<Tensor<4, Bool>>,
}

impl Positions {
    /// Tables for sequences of exactly `seq` tokens.
    pub fn new(shape: &ModelShape, seq: usize, device: &Device) -> Self {
        let group = shape.heads / shape.kv_heads;
        let masks = (0..seq).step_by(QUERY_BLOCK).map(|first| {
            let rows = QUERY_BLOCK.min(seq - first);
            let keys = first + rows;
            // The queries of one key/value head are stacked along the rows.
            let mask: Vec<bool> = (0..group * rows)
                .flat_map(|row| (0..keys).map(move |key| key > first + row % rows))
                .collect();
            Tensor::from_data(burn::tensor::TensorData::new(mask, [1, 1, group * rows, keys]), device)
        });
        Self { rope: Rope::new(shape, seq, device), masks: masks.collect() }
    }
}

fn rms_norm(x: Tensor<3>, gain: &Param<Tensor<1>>, eps: f64) -> Tensor<3> {
    let scale = x.clone().square().mean_dim(2).add_scalar(eps).sqrt().recip();
    x.mul(scale).mul(gain.val().unsqueeze())
}

/// `x · w` with the batch folded into the rows: one matrix product instead of one per sequence.
fn project(x: Tensor<3>, w: Tensor<2>) -> Tensor<3> {
    let [batch, seq, width] = x.dims();
    let out = w.dims()[1];
    x.reshape([batch * seq, width]).matmul(w).reshape([batch, seq, out])
}

/// Values, `[batch, kv_heads, rows, head_dim]`, with a last column of ones: their weighted sum then contains the sum of the weights.
fn with_ones(values: Tensor<4>) -> Tensor<4> {
    let [batch, kv, rows, _] = values.dims();
    let ones = Tensor::ones([batch, kv, rows, 1], &values.device());
    Tensor::cat(vec![values, ones], 3)
}

impl Block {
    /// Heads `range` of queries, keys and values of `[batch, rows, width]`: `[batch, heads, rows, head_dim]`.
    fn heads(&self, read: Tensor<3>, shape: &ModelShape, range: Range<usize>) -> Tensor<4> {
        let ([batch, rows, _], dim) = (read.dims(), shape.head_dim);
        let weights = self.qkv.val().narrow(1, range.start * dim, range.len() * dim);
        project(read, weights).reshape([batch, rows, range.len(), dim]).swap_dims(1, 2)
    }

    /// Queries of rows from position `first` on, those of one key head below each other: `[batch, kv_heads, group · rows, head_dim]`.
    fn queries(&self, read: Tensor<3>, shape: &ModelShape, rope: &Rope, first: usize) -> Tensor<4> {
        let ([batch, rows, _], kv, dim) = (read.dims(), shape.kv_heads, shape.head_dim);
        let queries = rope.apply(self.heads(read, shape, 0..shape.heads), first);
        queries.mul_scalar(1.0 / (dim as f64).sqrt()).reshape([batch, kv, shape.heads / kv * rows, dim])
    }

    /// Keys, `[batch, kv_heads, rows, head_dim]`, and [values](with_ones) of rows from position `first` on.
    fn keys_and_values(
        &self,
        read: Tensor<3>,
        shape: &ModelShape,
        rope: &Rope,
        first: usize,
    ) -> (Tensor<4>, Tensor<4>) {
        let (heads, kv) = (shape.heads, shape.kv_heads);
        let both = self.heads(read, shape, heads..heads + 2 * kv);
        (rope.apply(both.clone().narrow(1, 0, kv), first), with_ones(both.narrow(1, kv, kv)))
    }

    /// Softmax attention with few passes over the scores, which are the largest tensors of a training step. The
    /// maximum has no gradient, and the division by the sum follows the mixing of the values. (Without the maximum,
    /// training overflowed after about 1600 steps, because scores grow beyond 88.)
    fn attention(&self, x: Tensor<3>, shape: &ModelShape, positions: &Positions) -> Tensor<3> {
        let [batch, seq, _] = x.dims();
        let (heads, kv, dim) = (shape.heads, shape.kv_heads, shape.head_dim);
        let group = heads / kv;
        let qkv = project(x, self.qkv.val()).reshape([batch, seq, heads + 2 * kv, dim]).swap_dims(1, 2);
        let rotated = positions.rope.apply(qkv.clone().narrow(1, 0, heads + kv), 0);
        let values = qkv.narrow(1, heads + kv, kv);
        let queries = rotated.clone().narrow(1, 0, heads).mul_scalar(1.0 / (dim as f64).sqrt());
        let queries = queries.reshape([batch, kv, group, seq, dim]);
        let keys = rotated.narrow(1, heads, kv).swap_dims(2, 3);
        let values = with_ones(values);
        let mut mixed = Vec::with_capacity(positions.masks.len());
        for (at, mask) in positions.masks.iter().enumerate() {
            let first = at * QUERY_BLOCK;
            let rows = QUERY_BLOCK.min(seq - first);
            let block = queries.clone().narrow(3, first, rows).reshape([batch, kv, group * rows, dim]);
            let scores = block.matmul(keys.clone().narrow(3, 0, first + rows));
            let scores = scores.mask_fill(mask.clone(), MASKED);
            let highest = scores.clone().detach().max_dim(3);
            let weights = (scores - highest).exp();
            let sums = weights.matmul(values.clone().narrow(2, 0, first + rows));
            let block = sums.clone().narrow(3, 0, dim) / sums.narrow(3, dim, 1);
            mixed.push(block.reshape([batch, heads, rows, dim]));
        }
        let mixed = Tensor::cat(mixed, 2);
        project(mixed.swap_dims(1, 2).reshape([batch, seq, heads * dim]), self.attn_out.val())
    }

    fn feed_forward(&self, x: Tensor<3>) -> Tensor<3> {
        let both = project(x, self.gate_up.val());
        let half = both.dims()[2] / 2;
        let gate = both.clone().narrow(2, 0, half);
        let up = both.narrow(2, half, half);
        project(gate.clone().mul(sigmoid(gate)).mul(up), self.down.val())
    }

    /// The residual stream behind the block, `[batch, seq, hidden]`, from that before it.
    pub fn forward(&self, x: Tensor<3>, shape: &ModelShape, positions: &Positions) -> Tensor<3> {
        let x = x.clone() + self.attention(rms_norm(x, &self.attn_norm, shape.norm_eps), shape, positions);
        x.clone() + self.feed_forward(rms_norm(x, &self.ffn_norm, shape.norm_eps))
    }
}

impl Llama {
    /// Final hidden states, `[batch, seq, hidden]`, of token ids, `[batch, seq]`.
    pub fn hidden(&self, tokens: Tensor<2, Int>, positions: &Positions) -> Tensor<3> {
        let [batch, seq] = tokens.dims();
        let rows = self.embedding.val().select(0, tokens.reshape([batch * seq]));
        let mut x = rows.reshape([batch, seq, self.shape.hidden]);
        for block in &self.blocks {
            x = block.forward(x, &self.shape, positions);
        }
        rms_norm(x, &self.final_norm, self.shape.norm_eps)
    }

    /// Logits, `[rows, vocab]`, of chosen hidden states, `[rows, hidden]`.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        hidden.matmul(self.embedding.val().transpose())
    }
}
