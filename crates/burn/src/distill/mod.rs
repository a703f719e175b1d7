//! Distillation: trains small models on the target's predictions for a text.
//!
//! ```text
//! text ──► passages (tokens of the target) ──► the engine runs the target ──► records: hidden states, likely next tokens
//!                                                                               │
//!                                 predictor for pruning (`predictor`)       ◄───┤
//!                                 draft model (`draft`)                     ◄───┤
//!                                 draft head (`head`)                       ◄───┘
//! ```
//!
//! The target is any model that the engine loads. The engine runs it, not burn.

pub mod draft;
pub mod head;
pub mod predictor;
pub mod record;
pub mod text;

pub use record::{Record, Recorder};
pub use text::Passage;

use std::fmt;

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::Error;
use crate::batch::{MICRO_TOKENS, split};
use crate::rng::Rng;
use record::TOP;

/// The quality of a student on held-out positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeldOut {
    /// Positions.
    pub n_positions: usize,
    /// Share of positions at which student and target have the same first choice: for a draft model, about the acceptance
    /// rate of one-token drafts.
    pub agreement: f64,
    /// Mean divergence from the target's distribution, in nats.
    pub kl: f64,
}

impl HeldOut {
    /// From sums over the positions.
    fn new(n_positions: usize, n_agreed: usize, kl: f64) -> Self {
        let share = |sum: f64| sum / n_positions.max(1) as f64;
        Self { n_positions, agreement: share(n_agreed as f64), kl: share(kl) }
    }
}

impl fmt::Display for HeldOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n_positions, agreement, kl } = self;
        let percent = 100.0 * agreement;
        write!(
            f,
            "{n_positions} positions, {percent:.1} % with the target's first choice; divergence {kl:.3} nats"
        )
    }
}

/// The student's first choice in each row.
fn choices(log_q: &Tensor<2>) -> Result<Vec<i64>, Error> {
    let choices = log_q.clone().argmax(1).into_data().convert::<i64>();
    choices.try_to_vec::<i64>().map_err(|error| Error::Weights(format!("{error:?}")))
}

/// Share of the learning rate at `step` of `n_steps`: it rises over the first twentieth and falls to a fiftieth over
/// the last half.
pub(crate) fn rate_share(step: usize, n_steps: usize) -> f64 {
    let rise = (step + 1) as f64 / (n_steps / 20).max(1) as f64;
    let fall = (n_steps - step) as f64 / (n_steps / 2).max(1) as f64;
    rise.min(1.0) * fall.clamp(0.02, 1.0)
}

/// Draws lessons, each once before any is drawn again, in an order of the seed.
struct Draws {
    order: Vec<usize>,
    next: usize,
    rng: Rng,
}

impl Draws {
    /// Draws of `n_lessons` lessons.
    fn new(n_lessons: usize, seed: u64) -> Self {
        Self { order: (0..n_lessons).collect(), next: n_lessons, rng: Rng::new(seed, 3) }
    }

    /// The next `n` of `lessons`.
    fn take<T: Copy>(&mut self, lessons: &[T], n: usize) -> Vec<T> {
        let mut taken = Vec::with_capacity(n);
        for _ in 0..n {
            if self.next == self.order.len() {
                self.rng.shuffle(&mut self.order);
                self.next = 0;
            }
            taken.push(lessons[self.order[self.next]]);
            self.next += 1;
        }
        taken
    }
}

/// Maximum number of logits in a micro-batch, about: half a gigabyte with the values that autodiff keeps.
const LOGITS_MAX: usize = 1 << 25;

/// Groups lessons of similar length, as large as memory for `n_logits` logits a token allows.
fn split_lessons<T>(mut lessons: Vec<T>, len: impl Fn(&T) -> usize, n_logits: usize) -> Vec<Vec<T>> {
    lessons.sort_by_key(&len);
    split(lessons, len, (LOGITS_MAX / n_logits.max(1)).clamp(1, MICRO_TOKENS))
}

/// `values` as a matrix.
pub(crate) fn matrix(values: Vec<f32>, shape: [usize; 2], device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// `values` as a matrix of indices.
fn indices(values: Vec<i32>, shape: [usize; 2], device: &Device) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// [`kl_sum`] of a student's log-probabilities, `[n, tokens]`, from the teacher's likely tokens and their log-probabilities, `[n, TOP]`.
pub(crate) fn kl(log_q: Tensor<2>, top: &[i32], log_p: &[f32], device: &Device) -> Tensor<1> {
    let shape = [top.len() / TOP, TOP];
    let log_q = log_q.gather(1, indices(top.to_vec(), shape, device));
    let log_p = matrix(log_p.to_vec(), shape, device);
    let p = log_p.clone().exp();
    let rest = p.clone().sum_dim(1).neg().add_scalar(1.0).clamp_min(0.0);
    kl_sum(log_q, p, log_p, rest)
}

/// `Σ p (log p − log q)` over the likely tokens of each position and the rest of the vocabulary, summed over the
/// positions. This is KL(p ‖ q) of the distributions in which the rest is one event.
///
/// `log_q` are the student's log-probabilities of these tokens, `p` and `log_p` the teacher's: `[n, k]`.
/// `rest` is the teacher's probability of all other tokens: `[n, 1]`.
fn kl_sum(log_q: Tensor<2>, p: Tensor<2>, log_p: Tensor<2>, rest: Tensor<2>) -> Tensor<1> {
    let named = (p * (log_p - log_q.clone())).sum();
    let log_rest = |share: Tensor<2>| share.clamp_min(REST_MIN).log();
    let student_rest = log_q.exp().sum_dim(1).neg().add_scalar(1.0);
    named + (rest.clone() * (log_rest(rest) - log_rest(student_rest))).sum()
}

/// Minimum share of the rest. Below it, the difference of a sum from 1 is rounding error.
const REST_MIN: f32 = 1e-5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_and_falls() {
        assert_eq!([0, 49, 500, 750, 999].map(|step| rate_share(step, 1000)), [0.02, 1.0, 1.0, 0.5, 0.02]);
        assert!(rate_share(0, 1) > 0.0);
    }

    #[test]
    fn divergence_is_nothing_between_equals_and_the_sum_over_all_events() {
        let device = Device::default();
        let kl = |p: [f32; 2], q: [f32; 2]| {
            let tensor = |values: [f32; 2]| matrix(values.to_vec(), [1, 2], &device);
            let rest = matrix(vec![1.0 - p[0] - p[1]], [1, 1], &device);
            let (p, q) = (tensor(p), tensor(q));
            kl_sum(q.log(), p.clone(), p.log(), rest).into_scalar::<f32>()
        };
        assert!(kl([0.5, 0.3], [0.5, 0.3]).abs() < 1e-6);
        let expected = 0.5 * (0.5f32 / 0.25).ln() + 0.3 * (0.3f32 / 0.25).ln() + 0.2 * (0.2f32 / 0.5).ln();
        assert!((kl([0.5, 0.3], [0.25, 0.25]) - expected).abs() < 1e-5);
    }
}
