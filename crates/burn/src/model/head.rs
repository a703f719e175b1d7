//! Draft heads for a target with such blocks: one block that continues hidden states of the target.
//!
//! ```text
//! depth 1, row i: the token at i + 1 and the target's state at i                   a row of text
//! depth d, row i: the token at i + 1 and the head's own state at depth d − 1, row i − 1   a node of a draft
//! ```
//!
//! Both predict the token at `i + 2`. A node sees the rows of text up to its ancestor at depth 1, its ancestors, and itself.

use std::ops::Range;

use burn::module::{Module, Param};
use burn::tensor::{Bool, Device, Tensor, TensorData};

use super::{Block, MASKED, ModelShape, Rope, project, rms_norm};

/// A head that is trained.
pub trait DraftHead: Module + Sync {
    /// The sizes of the target, and the head's block: one of the target's but for the width of what queries, keys and values read.
    fn parts(&self) -> (&ModelShape, &Block);

    /// Hidden states of rows of text, `[batch, seq, hidden]`, from the target's, `[batch, seq, state_dim]`.
    fn fuse(&self, states: Tensor<3>) -> Tensor<3>;

    /// The residual stream before the block, and what queries, keys and values read, from the embeddings of the tokens and the hidden
    /// states, `[batch, rows, hidden]` each.
    fn begin(&self, embedded: Tensor<3>, hidden: Tensor<3>) -> [Tensor<3>; 2];

    /// What rows below read, and what the output matrix projects, from the residual stream behind the block.
    fn end(&self, x: Tensor<3>) -> [Tensor<3>; 2];

    /// Logits, `[rows, tokens]`, of `[rows, hidden]`. `embedding` is the target's output matrix, `[vocab, hidden]`.
    fn logits(&self, projected: Tensor<2>, embedding: &Tensor<2>) -> Tensor<2>;
}

/// A head for multi-token prediction: it reads the target's final hidden state.
#[derive(Module, Debug)]
pub struct MtpHead {
    /// Gain of the norm of the embedding, `[hidden]`.
    pub embedding_norm: Param<Tensor<1>>,
    /// Gain of the norm of the hidden state, `[hidden]`.
    pub hidden_norm: Param<Tensor<1>>,
    /// Projection of both side by side, `[2 · hidden, hidden]`.
    pub input: Param<Tensor<2>>,
    /// Its block.
    pub block: Block,
    /// Gain of the last norm, `[hidden]`.
    pub final_norm: Param<Tensor<1>>,
    /// The sizes of the target.
    #[module(skip)]
    pub shape: ModelShape,
}

impl DraftHead for MtpHead {
    fn parts(&self) -> (&ModelShape, &Block) {
        (&self.shape, &self.block)
    }

    fn fuse(&self, states: Tensor<3>) -> Tensor<3> {
        states
    }

    fn begin(&self, embedded: Tensor<3>, hidden: Tensor<3>) -> [Tensor<3>; 2] {
        let eps = self.shape.norm_eps;
        let embedded = rms_norm(embedded, &self.embedding_norm, eps);
        let joined = Tensor::cat(vec![embedded, rms_norm(hidden, &self.hidden_norm, eps)], 2);
        let x = project(joined, self.input.val());
        [x.clone(), rms_norm(x, &self.block.attn_norm, eps)]
    }

    fn end(&self, x: Tensor<3>) -> [Tensor<3>; 2] {
        let state = rms_norm(x, &self.final_norm, self.shape.norm_eps);
        [state.clone(), state]
    }

    fn logits(&self, projected: Tensor<2>, embedding: &Tensor<2>) -> Tensor<2> {
        projected.matmul(embedding.clone().transpose())
    }
}

/// An EAGLE-3 head (arXiv 2503.01840): it reads the target's residual streams before three layers, and drafts some of the tokens.
#[derive(Module, Debug)]
pub struct Eagle3Head {
    /// Projection of the three streams side by side, `[3 · hidden, hidden]`.
    pub input: Param<Tensor<2>>,
    /// Gain of the norm of the hidden state, `[hidden]`; that of the embedding is the block's first.
    pub hidden_norm: Param<Tensor<1>>,
    /// Its block, whose queries, keys and values read embedding and hidden state side by side.
    pub block: Block,
    /// Gain of the last norm, `[hidden]`.
    pub final_norm: Param<Tensor<1>>,
    /// Output matrix, `[hidden, drafted tokens]`.
    pub output: Param<Tensor<2>>,
    /// The sizes of the target.
    #[module(skip)]
    pub shape: ModelShape,
}

impl DraftHead for Eagle3Head {
    fn parts(&self) -> (&ModelShape, &Block) {
        (&self.shape, &self.block)
    }

    fn fuse(&self, states: Tensor<3>) -> Tensor<3> {
        project(states, self.input.val())
    }

    fn begin(&self, embedded: Tensor<3>, hidden: Tensor<3>) -> [Tensor<3>; 2] {
        let eps = self.shape.norm_eps;
        let embedded = rms_norm(embedded, &self.block.attn_norm, eps);
        let read = Tensor::cat(vec![embedded, rms_norm(hidden.clone(), &self.hidden_norm, eps)], 2);
        [hidden, read]
    }

    fn end(&self, x: Tensor<3>) -> [Tensor<3>; 2] {
        [x.clone(), rms_norm(x, &self.final_norm, self.shape.norm_eps)]
    }

    fn logits(&self, projected: Tensor<2>, _: &Tensor<2>) -> Tensor<2> {
        projected.matmul(self.output.val())
    }
}

/// Passages of equal length with their padding in front.
#[derive(Debug)]
pub struct Texts {
    /// Embeddings of the tokens, each one position ahead of its row, `[batch, seq, hidden]`.
    pub embedded: Tensor<3>,
    /// The target's states, `[batch, seq, state_dim]`.
    pub states: Tensor<3>,
    /// Rows of padding of each passage.
    pub n_skipped: Vec<usize>,
}

/// What the output matrix projects of the last `n_rows` rows of each passage, `[batch, n_rows, hidden]`, at the depths `1..=n_depths`.
/// The first `n_depths − 1` of these rows have no ancestors at some depths, and mean nothing there.
pub fn drafts(head: &impl DraftHead, texts: Texts, n_rows: usize, n_depths: usize) -> Vec<Tensor<3>> {
    let (shape, block) = head.parts();
    let Texts { embedded, states, n_skipped } = texts;
    let [_, seq, _] = embedded.dims();
    let (first, device) = (seq - n_rows, embedded.device());
    let rope = Rope::new(shape, seq, &device);
    let hidden = head.fuse(states);
    let [_, read] = head.begin(embedded.clone(), hidden.clone());
    let (keys, values) = block.keys_and_values(read, shape, &rope, 0);
    let text = (keys.swap_dims(2, 3), values);
    let embedded = embedded.narrow(1, first, n_rows);
    let mut hidden = hidden.narrow(1, first, n_rows);
    let (mut nodes, mut projected) = (Vec::new(), Vec::with_capacity(n_depths));
    for depth in 1..=n_depths {
        let [x, read] = head.begin(embedded.clone(), hidden.clone());
        if depth > 1 {
            nodes.push(block.keys_and_values(read.clone(), shape, &rope, first));
        }
        let mask = text_mask(shape, &n_skipped, first..seq, depth, &device);
        let queries = block.queries(read, shape, &rope, first);
        let mixed = attend(queries, &text, mask, &nodes, depth);
        let [batch, _, _, dim] = mixed.dims();
        let mixed = mixed.reshape([batch, shape.heads, n_rows, dim]).swap_dims(1, 2);
        let mixed = mixed.reshape([batch, n_rows, shape.heads * dim]);
        let x = x + project(mixed, block.attn_out.val());
        let x = x.clone() + block.feed_forward(rms_norm(x, &block.ffn_norm, shape.norm_eps));
        let [own, out] = head.end(x);
        hidden = down(own, 1);
        projected.push(out);
    }
    projected
}

/// `x`, `[batch, rows, width]`, by `n` rows further down, behind rows of zeros.
fn down(x: Tensor<3>, n: usize) -> Tensor<3> {
    let [batch, rows, width] = x.dims();
    let zeros = Tensor::zeros([batch, n, width], &x.device());
    Tensor::cat(vec![zeros, x.narrow(1, 0, rows - n)], 1)
}

/// `true` where a row of `rows` at `depth` does not see a row of text, `[batch, 1, group · rows, rows.end]`: padding, and the rows behind
/// its ancestor at depth 1.
fn text_mask(
    shape: &ModelShape,
    n_skipped: &[usize],
    rows: Range<usize>,
    depth: usize,
    device: &Device,
) -> Tensor<4, Bool> {
    let (seq, group) = (rows.end, shape.heads / shape.kv_heads);
    let of_row =
        |row: usize, n_skipped: usize| (0..seq).map(move |key| key + depth > row + 1 || key < n_skipped);
    let of_text = |&n_skipped: &usize| {
        let rows = rows.clone();
        (0..group).flat_map(move |_| rows.clone().flat_map(move |row| of_row(row, n_skipped)))
    };
    let masked: Vec<bool> = n_skipped.iter().flat_map(of_text).collect();
    Tensor::from_data(TensorData::new(masked, [n_skipped.len(), 1, group * rows.len(), seq]), device)
}

/// Attention of rows at `depth`, `[batch, kv_heads, group · rows, head_dim]`, to the text and to their ancestors and themselves in
/// `nodes`, those of each depth from 2 on. As the queries.
fn attend(
    queries: Tensor<4>,
    (keys, values): &(Tensor<4>, Tensor<4>),
    mask: Tensor<4, Bool>,
    nodes: &[(Tensor<4>, Tensor<4>)],
    depth: usize,
) -> Tensor<4> {
    let [batch, kv, stacked, dim] = queries.dims();
    let seq = keys.dims()[3];
    // The rows of a depth that are `depth − of_node` rows above, once for each query head of their key head.
    let above = |x: &Tensor<4>, of_node: usize| {
        let [_, _, rows, width] = x.dims();
        let x = down(x.clone().reshape([batch * kv, rows, width]), depth - of_node);
        x.repeat_dim(1, stacked / rows).reshape([batch, kv, stacked, width])
    };
    let mut scores = vec![queries.clone().matmul(keys.clone()).mask_fill(mask, MASKED)];
    for (of_node, (keys, _)) in (2..).zip(nodes) {
        scores.push((queries.clone() * above(keys, of_node)).sum_dim(3));
    }
    let scores = Tensor::cat(scores, 3);
    let highest = scores.clone().detach().max_dim(3);
    let weights = (scores - highest).exp();
    let mut sums = weights.clone().narrow(3, 0, seq).matmul(values.clone());
    for (i, (_, values)) in nodes.iter().enumerate() {
        sums = sums + above(values, i + 2) * weights.clone().narrow(3, seq + i, 1);
    }
    sums.clone().narrow(3, 0, dim) / sums.narrow(3, dim, 1)
}
