//! Seeded initial weights: the same on every backend and platform, because this crate makes the random numbers.

use burn::module::Param;
use burn::tensor::{Device, Tensor, TensorData};

use super::{Block, Eagle3Head, Llama, ModelShape, MtpHead};
use crate::rng::Rng;

/// Standard deviation of the embeddings, as in GPT-2.
const EMBEDDING: f64 = 0.02;

/// Width of the constant part of every embedding. Llama has no biases, and a head that attends by position
/// alone needs an input component that is the same for every token. (A constant in the tied output matrix
/// adds the same value to all logits.)
const CONSTANT: usize = 4;

/// Value of the constant part, in standard deviations.
const CONSTANT_VALUE: f64 = 3.0;

/// Distances of the first key/value heads of the first block at the start. Copying a name starts with finding the
/// token before the current one. Without such heads, copying had not started after 1700 steps; with them it started
/// within 250.
const LOOK_BACK: [usize; 2] = [1, 2];

/// Amplitude of such a head in each of its rotations: 93 % of its weight falls on the token at its distance, the rest
/// on the neighbours.
const AMPLITUDE: f64 = 5.2;

/// The fastest rotations, which distinguish neighbours.
const ROTATIONS: usize = 5;

/// A matrix before it becomes a tensor.
struct Matrix {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn gaussian(rng: &mut Rng, rows: usize, cols: usize, deviation: f64) -> Self {
        let values = (0..rows * cols).map(|_| (rng.gaussian() * deviation) as f32).collect();
        Self { rows, cols, values }
    }

    /// No column reads the constant part yet.
    fn without_constant_rows(mut self) -> Self {
        self.values[..CONSTANT * self.cols].fill(0.0);
        self
    }

    /// No row writes to the constant part yet.
    fn without_constant_cols(mut self) -> Self {
        for row in self.values.chunks_exact_mut(self.cols) {
            row[..CONSTANT].fill(0.0);
        }
        self
    }

    /// A column that is the same for every token: a constant.
    fn set_constant(&mut self, col: usize, value: f64) {
        for row in 0..self.rows {
            self.values[row * self.cols + col] = 0.0;
        }
        for row in 0..CONSTANT {
            self.values[row * self.cols + col] =
                (value / (CONSTANT as f64 * constant_input(self.rows))) as f32;
        }
    }

    fn param(self, device: &Device) -> Param<Tensor<2>> {
        Param::from_tensor(Tensor::from_data(TensorData::new(self.values, [self.rows, self.cols]), device))
    }
}

/// The constant part as input of the first block, after the norm.
fn constant_input(hidden: usize) -> f64 {
    let constant = CONSTANT as f64;
    let mean_square = (constant * CONSTANT_VALUE.powi(2) + hidden as f64 - constant) / hidden as f64;
    CONSTANT_VALUE / mean_square.sqrt()
}

/// Turns the first heads of a `qkv` matrix into heads with fixed distances. Keys are `a` at angle 0, and
/// queries are at the angle of `-back` positions. The rotations then give the highest score to the key `back`
/// positions before the query.
fn look_back(qkv: &mut Matrix, shape: &ModelShape) {
    let (dim, group) = (shape.head_dim, shape.heads / shape.kv_heads);
    for (kv, back) in LOOK_BACK.into_iter().enumerate().take(shape.kv_heads / 2) {
        let key = (shape.heads + kv) * dim;
        for i in 0..dim / 2 {
            let amplitude = if i < ROTATIONS { AMPLITUDE } else { 0.0 };
            let angle = back as f64 * shape.rope_theta.powf(-((2 * i) as f64) / dim as f64);
            qkv.set_constant(key + i, amplitude);
            qkv.set_constant(key + dim / 2 + i, 0.0);
            for head in kv * group..(kv + 1) * group {
                qkv.set_constant(head * dim + i, amplitude * angle.cos());
                qkv.set_constant(head * dim + dim / 2 + i, -amplitude * angle.sin());
            }
        }
    }
}

fn ones(width: usize, device: &Device) -> Param<Tensor<1>> {
    Param::from_tensor(Tensor::ones([width], device))
}

impl Block {
    /// `read` is the width of what queries, keys and values read.
    fn random(rng: &mut Rng, shape: &ModelShape, read: usize, looks_back: bool, device: &Device) -> Self {
        let (hidden, width, wide) = (shape.hidden, shape.heads * shape.head_dim, shape.intermediate);
        let reading = 1.0 / (hidden as f64).sqrt();
        let writing = |from: usize| 1.0 / (2.0 * (shape.layers * from) as f64).sqrt();
        let heads = width + 2 * shape.kv_heads * shape.head_dim;
        let mut qkv = Matrix::gaussian(rng, read, heads, 1.0 / (read as f64).sqrt()).without_constant_rows();
        if looks_back {
            look_back(&mut qkv, shape);
        }
        let attn_out = Matrix::gaussian(rng, width, hidden, writing(width)).without_constant_cols();
        let gate_up = Matrix::gaussian(rng, hidden, 2 * wide, reading).without_constant_rows();
        let down = Matrix::gaussian(rng, wide, hidden, writing(wide)).without_constant_cols();
        Self {
            attn_norm: ones(hidden, device),
            qkv: qkv.param(device),
            attn_out: attn_out.param(device),
            ffn_norm: ones(hidden, device),
            gate_up: gate_up.param(device),
            down: down.param(device),
        }
    }
}

/// A gain for each column.
fn gain(values: Vec<f32>, device: &Device) -> Param<Tensor<1>> {
    let width = values.len();
    Param::from_tensor(Tensor::from_data(TensorData::new(values, [width]), device))
}

/// A projection of `n_parts` hidden states side by side that begins as the last of them, with a little of the others.
fn passing_on(rng: &mut Rng, hidden: usize, n_parts: usize) -> Matrix {
    let mut input = Matrix::gaussian(rng, n_parts * hidden, hidden, 0.1 / (hidden as f64).sqrt());
    for i in 0..hidden {
        input.values[((n_parts - 1) * hidden + i) * hidden + i] += 1.0;
    }
    input
}

impl MtpHead {
    /// Weights drawn from a seed. The input begins as the target's hidden state with a little of the embedding, and the last norm as the
    /// target's, `norm`.
    pub fn init(shape: &ModelShape, norm: Vec<f32>, seed: u64, device: &Device) -> Self {
        let mut rng = Rng::new(seed, 0);
        let hidden = shape.hidden;
        let input = passing_on(&mut rng, hidden, 2);
        let one_block = ModelShape { layers: 1, ..shape.clone() };
        Self {
            embedding_norm: ones(hidden, device),
            hidden_norm: ones(hidden, device),
            input: input.param(device),
            block: Block::random(&mut rng, &one_block, hidden, false, device),
            final_norm: gain(norm, device),
            shape: shape.clone(),
        }
    }
}

impl Eagle3Head {
    /// Weights drawn from a seed. The hidden state begins as the last of the three streams with a little of the others, the last norm
    /// as the target's, `norm`, and the output matrix as `rows` of the target's, `[n_drafted, hidden]`.
    pub fn init(shape: &ModelShape, norm: Vec<f32>, rows: &[f32], seed: u64, device: &Device) -> Self {
        let mut rng = Rng::new(seed, 0);
        let hidden = shape.hidden;
        let input = passing_on(&mut rng, hidden, 3);
        let one_block = ModelShape { layers: 1, ..shape.clone() };
        let values = (0..hidden).flat_map(|i| rows.iter().skip(i).step_by(hidden).copied()).collect();
        let output = Matrix { rows: hidden, cols: rows.len() / hidden, values };
        Self {
            input: input.param(device),
            hidden_norm: ones(hidden, device),
            block: Block::random(&mut rng, &one_block, 2 * hidden, false, device),
            final_norm: gain(norm, device),
            output: output.param(device),
            shape: shape.clone(),
        }
    }
}

impl Llama {
    /// Weights drawn from a seed. Projections into the residual stream are scaled by 1/√(2·layers), as in GPT-2.
    pub fn init(shape: &ModelShape, seed: u64, device: &Device) -> Self {
        let mut rng = Rng::new(seed, 0);
        let hidden = shape.hidden;
        let mut embedding = Matrix::gaussian(&mut rng, shape.vocab, hidden, EMBEDDING);
        for row in embedding.values.chunks_exact_mut(hidden) {
            row[..CONSTANT].fill((CONSTANT_VALUE * EMBEDDING) as f32);
        }
        let mut blocks = Vec::with_capacity(shape.layers);
        for layer in 0..shape.layers {
            blocks.push(Block::random(&mut rng, shape, hidden, layer == 0, device));
        }
        Self {
            embedding: embedding.param(device),
            blocks,
            final_norm: ones(hidden, device),
            shape: shape.clone(),
        }
    }
}
