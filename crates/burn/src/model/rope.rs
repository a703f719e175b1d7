//! Rotary positions in the layout of Hugging Face checkpoints: dimension `i` is paired with dimension `i + dim/2`.

use burn::tensor::{Device, Tensor, TensorData};

use super::ModelShape;

/// Cosines and sines of every position.
#[derive(Debug, Clone)]
pub struct Rope {
    /// `[1, 1, seq, head_dim / 2]`.
    cos: Tensor<4>,
    /// `[1, 1, seq, head_dim / 2]`.
    sin: Tensor<4>,
}

impl Rope {
    /// Tables for positions `0..seq`, computed in f64.
    pub fn new(shape: &ModelShape, seq: usize, device: &Device) -> Self {
        let half = shape.head_dim / 2;
        let table = |f: fn(f64) -> f64| {
            let mut values = Vec::with_capacity(seq * half);
            for position in 0..seq {
                for i in 0..half {
                    let frequency = shape.rope_theta.powf(-((2 * i) as f64) / shape.head_dim as f64);
                    values.push(f(position as f64 * frequency) as f32);
                }
            }
            Tensor::<4>::from_data(TensorData::new(values, [1, 1, seq, half]), device)
        };
        Self { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Rotates `[batch, heads, rows, head_dim]` at the positions from `first` on.
    pub fn apply(&self, x: Tensor<4>, first: usize) -> Tensor<4> {
        let [_, _, rows, dim] = x.dims();
        let half = dim / 2;
        let [cos, sin] = [&self.cos, &self.sin].map(|table| table.clone().narrow(2, first, rows));
        let a = x.clone().narrow(3, 0, half);
        let b = x.narrow(3, half, half);
        let rotated_a = a.clone().mul(cos.clone()) - b.clone().mul(sin.clone());
        let rotated_b = b.mul(cos) + a.mul(sin);
        Tensor::cat(vec![rotated_a, rotated_b], 3)
    }
}
