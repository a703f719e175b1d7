//! Seeded initial weights.

use burn::module::Param;
use burn::tensor::{Device, Tensor, TensorData};

use super::{Block, Llama, ModelShape};
use crate::rng::Rng;

fn gaussian(rng: &mut Rng, rows: usize, cols: usize, deviation: f64, device: &Device) -> Param<Tensor<2>> {
    let values: Vec<f32> = (0..rows * cols).map(|_| (rng.gaussian() * deviation) as f32).collect();
    Param::from_tensor(Tensor::from_data(TensorData::new(values, [rows, cols]), device))
}

fn ones(width: usize, device: &Device) -> Param<Tensor<1>> {
    Param::from_tensor(Tensor::ones([width], device))
}

impl Llama {
    /// Weights drawn from a seed: the same on every backend and platform, because the generator's own random numbers
    /// are used, not the backend's. Projections into the residual stream are scaled by 1/√(2·layers), as in GPT-2.
    pub fn init(shape: &ModelShape, seed: u64, device: &Device) -> Self {
        let mut rng = Rng::new(seed, 0);
        let width = shape.heads * shape.head_dim;
        let wide = 1.0 / (shape.hidden as f64).sqrt();
        let into_residual = 1.0 / (2.0 * shape.layers as f64).sqrt();
        let embedding = gaussian(&mut rng, shape.vocab, shape.hidden, 0.02, device);
        let blocks = (0..shape.layers)
            .map(|_| Block {
                attn_norm: ones(shape.hidden, device),
                qkv: gaussian(
                    &mut rng,
                    shape.hidden,
                    width + 2 * shape.kv_heads * shape.head_dim,
                    wide,
                    device,
                ),
                attn_out: gaussian(
                    &mut rng,
                    width,
                    shape.hidden,
                    into_residual / (width as f64).sqrt(),
                    device,
                ),
                ffn_norm: ones(shape.hidden, device),
                gate_up: gaussian(&mut rng, shape.hidden, 2 * shape.intermediate, wide, device),
                down: gaussian(
                    &mut rng,
                    shape.intermediate,
                    shape.hidden,
                    into_residual / (shape.intermediate as f64).sqrt(),
                    device,
                ),
            })
            .collect();
        Self { embedding, blocks, final_norm: ones(shape.hidden, device), shape: shape.clone() }
    }
}
