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

/// Each step deals its micro-batches to this many shards and adds their gradients in order. A shard is the unit of
/// parallel work. The number is fixed, so that the order of the sum, and therefore the model, is independent of the
/// machine.
const SHARDS: usize = 2;

/// The recipe of a training run. Together with the shape and the code it determines the weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// Seed of weights and corpus.
    pub seed: u64,
    /// Cycles of the learning rate, one after the other.
    pub cycles: Vec<Cycle>,
    /// Documents of one step.
    pub documents: usize,
    /// Steps with easy documents at the start.
    pub easy_steps: usize,
    /// Steps with many repeated lines.
    pub drill_steps: usize,
    /// Steps over which the rate rises at the start of a cycle.
    pub warmup: usize,
}

/// One cycle of the learning rate (SGDR: Loshchilov and Hutter 2017, with a plateau and a linear fall).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cycle {
    /// Optimiser steps.
    pub steps: usize,
    /// Highest learning rate.
    pub rate: f64,
    /// Steps at the end over which the rate falls.
    pub decay: usize,
}

impl Recipe {
    /// The recipe of a fixture model.
    pub fn of(model: &str, seed: u64) -> Self {
        let cycles = match model {
            "draft" => vec![Cycle { steps: 3500, rate: 2e-3, decay: 1500 }],
            _ => vec![
                Cycle { steps: 6000, rate: 1.2e-3, decay: 3000 },
                Cycle { steps: 5000, rate: 1.2e-3, decay: 4500 },
            ],
        };
        Self { seed, cycles, documents: 10, easy_steps: 400, drill_steps: 1200, warmup: 100 }
    }

    /// Optimiser steps of all cycles.
    pub fn steps(&self) -> usize {
        self.cycles.iter().map(|cycle| cycle.steps).sum()
    }

    /// Learning rate of a step: in each cycle warm-up, plateau, linear decay to a fiftieth.
    pub fn rate_at(&self, step: usize) -> f64 {
        let mut step = step;
        for cycle in &self.cycles {
            if step < cycle.steps {
                let rise = ((step + 1) as f64 / self.warmup as f64).min(1.0);
                let left = (cycle.steps - step) as f64 / cycle.decay as f64;
                return cycle.rate * rise * left.clamp(0.02, 1.0);
            }
            step -= cycle.steps;
        }
        0.0
    }
}

/// Model and optimiser between two steps.
pub struct Trainer<M = Llama> {
    /// The model, on an autodiff device.
    pub model: M,
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

/// Sum of the negative log-likelihoods of the learnt tokens, and their number.
pub fn log_likelihood(model: &Llama, batch: &MicroBatch, device: &Device) -> (Tensor<1>, usize) {
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

impl Trainer<Llama> {
    /// A new model.
    pub fn new(shape: &ModelShape, seed: u64, device: &Device) -> Self {
        let device = device.clone().autodiff();
        Self { model: Llama::init(shape, seed, &device), optimizer: optimizer(), device }
    }

    /// Runs one step; returns the mean loss of the learnt tokens.
    pub fn step(&mut self, batches: &[MicroBatch], rate: f64) -> f64 {
        let total: usize = batches.iter().map(|batch| batch.targets().0.len()).sum();
        self.step_by(batches, rate, total, |model, batch, device| log_likelihood(model, batch, device).0)
    }
}

impl<M: Module + Sync> Trainer<M> {
    /// Continues with a model and an optimiser.
    pub fn from_parts(model: M, optimizer: ModuleOptimizer, device: &Device) -> Self {
        Self { model, optimizer, device: device.clone().autodiff() }
    }

    /// The model without the autodiff graph, for evaluation.
    pub fn plain_model(&self) -> M {
        self.model.clone().valid()
    }

    /// Runs one step with a given loss function, which returns the sum over a batch. Returns the mean over
    /// `total`.
    pub fn step_by<B: Sync>(
        &mut self,
        batches: &[B],
        rate: f64,
        total: usize,
        loss: impl Fn(&M, &B, &Device) -> Tensor<1> + Sync,
    ) -> f64 {
        let (model, device, loss) = (&self.model, &self.device, &loss);
        let results: Vec<(GradientsParams, f64)> = thread::scope(|scope| {
            let shards: Vec<_> = (0..SHARDS.min(batches.len()))
                .map(|shard| {
                    let batches = batches.iter().skip(shard).step_by(SHARDS);
                    scope.spawn(move || shard_gradients(model, device, batches, total, loss))
                })
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

/// Gradients of a shard's micro-batches, added in order. The shard has its own leaves, so that the autodiff graphs of
/// two shards are separate.
fn shard_gradients<'b, M: Module, B: 'b>(
    model: &M,
    device: &Device,
    batches: impl Iterator<Item = &'b B>,
    total: usize,
    loss: &impl Fn(&M, &B, &Device) -> Tensor<1>,
) -> (GradientsParams, f64) {
    let model = model.clone().fork(device);
    let mut sum = GradientsAccumulator::new();
    let mut mean = 0.0;
    for batch in batches {
        let loss = loss(&model, batch, device).div_scalar(total as f64);
        mean += f64::from(loss.clone().into_scalar::<f32>());
        sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
    }
    (sum.grads(), mean)
}
