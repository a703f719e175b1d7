//! The training loop: one optimiser step per call, the same on any number of threads.

use std::thread;

use burn::grad_clipping::GradientClippingConfig;
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::batch::MicroBatch;
use crate::model::{Llama, ModelShape, Positions};

/// A step's micro-batches are dealt to this many shards, whose gradients are added in order. A shard is the unit of
/// parallel work; the number is fixed, so that the sum, and with it the model, does not depend on the machine.
const SHARDS: usize = 2;

/// The recipe of a training run; together with the shape and the code it determines the weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// Seed of weights and corpus.
    pub seed: u64,
    /// Optimiser steps in all.
    pub steps: usize,
    /// Documents of one step.
    pub documents: usize,
    /// Steps with easy documents at the start.
    pub easy_steps: usize,
    /// Steps with many lines to repeat.
    pub drill_steps: usize,
    /// Highest learning rate.
    pub rate: f64,
    /// Steps over which the rate rises.
    pub warmup: usize,
    /// Steps at the end over which the rate falls; before them it is constant, so a run can be prolonged.
    pub decay: usize,
}

impl Recipe {
    /// The recipe of a fixture model.
    pub fn of(model: &str, seed: u64) -> Self {
        let target = Self {
            seed,
            steps: 6000,
            documents: 10,
            easy_steps: 400,
            drill_steps: 1200,
            rate: 1.2e-3,
            warmup: 100,
            decay: 3000,
        };
        match model {
            "draft" => Self { steps: 3500, rate: 2e-3, decay: 1500, ..target },
            _ => target,
        }
    }

    /// Learning rate of a step: warm-up, plateau, linear decay to a fiftieth.
    pub fn rate_at(&self, step: usize) -> f64 {
        let rise = ((step + 1) as f64 / self.warmup as f64).min(1.0);
        let left = self.steps.saturating_sub(step) as f64 / self.decay as f64;
        self.rate * rise * left.clamp(0.02, 1.0)
    }
}

/// Model and optimiser between two steps.
pub struct Trainer {
    /// The model, on an autodiff device.
    pub model: Llama,
    /// AdamW and its moments.
    pub optimizer: ModuleOptimizer,
    device: Device,
}

/// AdamW with the usual settings for small language models.
pub fn optimizer() -> ModuleOptimizer {
    AdamWConfig::new()
        .with_beta_2(0.98)
        .with_epsilon(1e-8)
        .with_weight_decay(0.05)
        .with_grad_clipping(Some(GradientClippingConfig::Norm(1.0)))
        .init()
}

/// Sum of the negative log-likelihoods of the learnt tokens.
pub fn loss(model: &Llama, batch: &MicroBatch, device: &Device) -> (Tensor<1>, usize) {
    let positions = Positions::new(&model.shape, batch.seq(), device);
    let hidden = model.hidden(batch.inputs(device), &positions);
    let [rows, seq, width] = hidden.dims();
    let (at, targets) = batch.targets();
    let count = targets.len();
    let at = Tensor::<1, Int>::from_data(TensorData::new(at, [count]), device);
    let targets = Tensor::<2, Int>::from_data(TensorData::new(targets, [count, 1]), device);
    let logits = model.logits(hidden.reshape([rows * seq, width]).select(0, at));
    (log_softmax(logits, 1).gather(1, targets).sum().neg(), count)
}

impl Trainer {
    /// A new model.
    pub fn new(shape: &ModelShape, seed: u64, device: &Device) -> Self {
        let device = device.clone().autodiff();
        Self { model: Llama::init(shape, seed, &device), optimizer: optimizer(), device }
    }

    /// Goes on with a model and an optimiser.
    pub fn from_parts(model: Llama, optimizer: ModuleOptimizer, device: &Device) -> Self {
        Self { model, optimizer, device: device.clone().autodiff() }
    }

    /// The model without the autodiff graph, to ask it something.
    pub fn plain_model(&self) -> Llama {
        self.model.clone().valid()
    }

    /// One step; returns the mean loss of the learnt tokens.
    pub fn step(&mut self, batches: &[MicroBatch], rate: f64) -> f64 {
        let total: usize = batches.iter().map(|batch| batch.targets().0.len()).sum();
        let (model, device) = (&self.model, &self.device);
        let results: Vec<(GradientsParams, f64)> = thread::scope(|scope| {
            let shards: Vec<_> = (0..SHARDS.min(batches.len()))
                .map(|shard| scope.spawn(move || shard_gradients(model, device, batches, shard, total)))
                .collect();
            shards.into_iter().map(|shard| shard.join().expect("a training shard panicked")).collect()
        });
        let mut sum = GradientsAccumulator::new();
        let mut mean = 0.0;
        for (gradients, part) in results {
            sum.accumulate(&self.model, gradients);
            mean += part;
        }
        self.model = self.optimizer.step(rate, self.model.clone(), sum.grads());
        mean
    }
}

/// Gradients of every `SHARDS`-th micro-batch, added in order. The shard works on its own leaves, so that two shards'
/// autodiff graphs have nothing in common.
fn shard_gradients(
    model: &Llama,
    device: &Device,
    batches: &[MicroBatch],
    shard: usize,
    total: usize,
) -> (GradientsParams, f64) {
    let model = model.clone().fork(device);
    let mut sum = GradientsAccumulator::new();
    let mut mean = 0.0;
    for batch in batches.iter().skip(shard).step_by(SHARDS) {
        let (nll, _) = loss(&model, batch, device);
        let nll = nll.div_scalar(total as f64);
        mean += f64::from(nll.clone().into_scalar::<f32>());
        sum.accumulate(&model, GradientsParams::from_grads(nll.backward(), &model));
    }
    (sum.grads(), mean)
}
