//! Trains an early-exit predictor: a linear map of low rank from a middle layer's hidden state to scores of tokens.
//!
//! The scores end in the target's own output matrix, `up = output · back`, and `down` and `back` are learnt. With `up` learnt freely, a row for
//! each token of a published vocabulary, the map knew its text by heart and little of any other.
//!
//! The loss has two parts (Lever, arXiv 2605.16786, eqs. 8–10): the divergence from the target's final
//! distribution, reduced to the likeliest tokens and the rest, and the cross entropy of the target's first
//! choice, which decides the walk:
//!
//! ```text
//! L = λ · KL(p ‖ q) − (1 − λ) · log q(argmax p)        q = softmax(up · down · x) over candidates
//! ```
//!
//! Candidates are the shadow pool and the likely tokens of the step's positions, because these compete at run time, and tokens drawn
//! for each step, because an exit lets all compete. For a small vocabulary all tokens are candidates.

use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor};
use refrain::internals::pruning::{PredictorParts, SHADOW_POOL_MAX, f16};
use refrain::{Engine, TokenId};

use super::record::{Record, TOP};
use super::{HeldOut, choices, indices, kl_sum, matrix, rate_share};
use crate::Error;
use crate::rng::Rng;

/// The recipe of a predictor. Together with the record it determines the predictor.
#[derive(Debug, Clone, PartialEq)]
pub struct PredictorRecipe {
    /// Rank of the map.
    pub rank: usize,
    /// Optimiser steps.
    pub steps: usize,
    /// Positions of a step.
    pub batch: usize,
    /// Highest learning rate.
    pub rate: f64,
    /// λ: weight of the divergence relative to the cross entropy, 0 to 1.
    pub soft_weight: f64,
    /// Tokens of the shadow pool: the target's most frequent first choices.
    pub shadow_pool: usize,
    /// Seed of the first weights and of the order of the positions.
    pub seed: u64,
}

impl Default for PredictorRecipe {
    fn default() -> Self {
        Self { rank: 64, steps: 2000, batch: 256, rate: 4e-3, soft_weight: 0.5, shadow_pool: 1024, seed: 1 }
    }
}

/// Maximum number of held-out positions that are evaluated. With a large vocabulary, each costs a product with the
/// whole output matrix.
const HELD_OUT_MAX: usize = 4000;

/// Up to this size of the vocabulary, all tokens are candidates of a step.
const WHOLE_VOCABULARY_MAX: usize = 4096;

/// Candidates of a step that are drawn from the whole vocabulary.
const N_DRAWN: usize = 2048;

/// Tokens whose rows of the output matrix are in memory as f32 at a time.
const PIECE: usize = 4096;

#[derive(Module, Debug)]
struct LowRank {
    /// `[hidden_dim, rank]`
    down: Param<Tensor<2>>,
    /// `[hidden_dim, rank]`
    back: Param<Tensor<2>>,
}

/// Trains a predictor for layer `layer_idx` of the target from the record of that layer's input. Calls `progress` with
/// (step, loss).
///
/// # Errors
/// [`Error::TooFewPositions`]; [`Error::Diverged`]; [`Error::Weights`]: the target's output matrix is not in memory.
pub fn train(
    record: &Record,
    target: &Engine,
    layer_idx: usize,
    recipe: &PredictorRecipe,
    mut progress: impl FnMut(usize, f64),
) -> Result<(PredictorParts, HeldOut), Error> {
    let (model, vocab_size) = (target.model_identity(), target.config().vocab_size);
    let (learnt, held_out) = record.split();
    let needed = recipe.batch;
    if learnt.len() < needed || held_out.is_empty() {
        return Err(Error::TooFewPositions { given: record.len(), needed: needed + needed / 9 + 1 });
    }
    let device = Device::default().autodiff();
    let rank = recipe.rank.min(record.hidden_dim);
    let pool = shadow_pool(record, &learnt, recipe.shadow_pool.min(SHADOW_POOL_MAX), vocab_size);
    let mut map = LowRank::init(record.hidden_dim, rank, recipe.seed, &device);
    let mut optimizer = AdamWConfig::new().with_weight_decay(1e-4).with_epsilon(1e-8).init();
    let mut order = Order::new(learnt, recipe.seed);
    let mut candidates = Candidates::new(vocab_size, &pool, recipe.seed);
    for step in 0..recipe.steps {
        let positions = order.next(recipe.batch);
        candidates.set(record, positions);
        let output = output_rows(target, &candidates.tokens, &device)?;
        let loss = map.loss(record, positions, &candidates, output, recipe.soft_weight, &device);
        let value = f64::from(loss.clone().into_scalar::<f32>());
        if !value.is_finite() {
            return Err(Error::Diverged { step, loss: value });
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &map);
        map = optimizer.step(recipe.rate * rate_share(step, recipe.steps), map, gradients);
        progress(step + 1, value);
    }
    let map = map.valid();
    let device = Device::default();
    let mut up = Vec::with_capacity(vocab_size * rank);
    let vocabulary: Vec<u32> = (0..vocab_size as u32).collect();
    for tokens in vocabulary.chunks(PIECE) {
        let rows = output_rows(target, tokens, &device)?.matmul(map.back.val());
        up.extend(values(rows)?.into_iter().map(f16::from_f32));
    }
    let parts = PredictorParts {
        model,
        layer_idx,
        hidden_dim: record.hidden_dim,
        rank,
        vocab_size,
        down: values(map.down.val().transpose())?,
        up,
        shadow_pool: pool,
    };
    let held_out = evaluate(record, &held_out, &parts)?;
    Ok((parts, held_out))
}

impl LowRank {
    fn init(hidden_dim: usize, rank: usize, seed: u64, device: &Device) -> Self {
        let mut rng = Rng::new(seed, 1);
        let scale = 1.0 / (hidden_dim as f64).sqrt();
        let mut gaussian = || {
            let values = (0..hidden_dim * rank).map(|_| (scale * rng.gaussian()) as f32).collect();
            Param::from_tensor(matrix(values, [hidden_dim, rank], device))
        };
        Self { down: gaussian(), back: gaussian() }
    }

    /// The mean loss of the positions. `output`: the candidates' rows of the target's output matrix.
    fn loss(
        &self,
        record: &Record,
        positions: &[usize],
        candidates: &Candidates,
        output: Tensor<2>,
        soft_weight: f64,
        device: &Device,
    ) -> Tensor<1> {
        let n = positions.len();
        let hidden = positions.iter().flat_map(|&at| record.hidden_row(at).iter().copied()).collect();
        let x = matrix(hidden, [n, record.hidden_dim], device);
        let up = output.matmul(self.back.val());
        let log_q = log_softmax(x.matmul(self.down.val()).matmul(up.transpose()), 1);
        let columns = positions.iter().flat_map(|&at| record.top[at].map(|token| candidates.column(token)));
        let log_q = log_q.gather(1, indices(columns.collect(), [n, TOP], device));
        let log_p: Vec<f32> = positions.iter().flat_map(|&at| record.log_p[at]).collect();
        let log_p = matrix(log_p, [n, TOP], device);
        let p = log_p.clone().exp();
        let rest = p.clone().sum_dim(1).neg().add_scalar(1.0).clamp_min(0.0);
        let first = log_q.clone().narrow(1, 0, 1).sum().neg();
        let soft = kl_sum(log_q, p, log_p, rest);
        (soft.mul_scalar(soft_weight) + first.mul_scalar(1.0 - soft_weight)).div_scalar(n as f64)
    }
}

/// Rows of the target's output matrix, `[tokens.len(), hidden_dim]`.
fn output_rows(target: &Engine, tokens: &[u32], device: &Device) -> Result<Tensor<2>, Error> {
    let ids: Vec<TokenId> = tokens.iter().copied().map(TokenId).collect();
    let rows = target
        .output_rows(&ids)
        .ok_or_else(|| Error::Weights("the target's output matrix is not in memory".to_owned()))?;
    Ok(matrix(rows, [tokens.len(), target.config().hidden_dim], device))
}

fn values(tensor: Tensor<2>) -> Result<Vec<f32>, Error> {
    tensor.into_data().try_to_vec::<f32>().map_err(|error| Error::Weights(format!("{error:?}")))
}

/// The competing tokens of a step.
struct Candidates {
    /// In rising order if all tokens compete; otherwise the pool comes first.
    tokens: Vec<u32>,
    /// The place of each token, or `NONE`: `[vocab_size]`.
    columns: Vec<i32>,
    n_fixed: usize,
    rng: Rng,
}

const NONE: i32 = -1;

impl Candidates {
    fn new(vocab_size: usize, pool: &[TokenId], seed: u64) -> Self {
        let whole = vocab_size <= WHOLE_VOCABULARY_MAX;
        let (columns, rng) = (vec![NONE; vocab_size], Rng::new(seed, 4));
        let mut this = Self { tokens: Vec::new(), columns, n_fixed: 0, rng };
        match whole {
            true => (0..vocab_size as u32).for_each(|token| this.add(token)),
            false => pool.iter().for_each(|token| this.add(token.0)),
        }
        this.n_fixed = this.tokens.len();
        this
    }

    fn add(&mut self, token: u32) {
        let column = &mut self.columns[token as usize];
        if *column == NONE {
            *column = self.tokens.len() as i32;
            self.tokens.push(token);
        }
    }

    fn set(&mut self, record: &Record, positions: &[usize]) {
        for token in self.tokens.drain(self.n_fixed..) {
            self.columns[token as usize] = NONE;
        }
        positions.iter().flat_map(|&at| record.top[at]).for_each(|token| self.add(token));
        let vocab_size = self.columns.len();
        if self.n_fixed < vocab_size {
            for _ in 0..N_DRAWN {
                let token = self.rng.below(vocab_size) as u32;
                self.add(token);
            }
        }
    }

    fn column(&self, token: u32) -> i32 {
        self.columns[token as usize]
    }
}

/// Positions, shuffled again after each round.
struct Order {
    positions: Vec<usize>,
    next: usize,
    rng: Rng,
}

impl Order {
    fn new(positions: Vec<usize>, seed: u64) -> Self {
        Self { next: positions.len(), positions, rng: Rng::new(seed, 2) }
    }

    /// The next `n` positions; the record has at least as many.
    fn next(&mut self, n: usize) -> &[usize] {
        if self.next + n > self.positions.len() {
            self.rng.shuffle(&mut self.positions);
            self.next = 0;
        }
        self.next += n;
        &self.positions[self.next - n..self.next]
    }
}

/// The most frequent first choices, in rising order. Ties go to the lowest.
fn shadow_pool(record: &Record, learnt: &[usize], n_max: usize, vocab_size: usize) -> Vec<TokenId> {
    let mut counts = vec![0u32; vocab_size];
    learnt.iter().for_each(|&at| counts[record.top[at][0] as usize] += 1);
    let mut tokens: Vec<u32> = (0..vocab_size as u32).filter(|&token| counts[token as usize] > 0).collect();
    tokens.sort_by_key(|&token| (std::cmp::Reverse(counts[token as usize]), token));
    tokens.truncate(n_max);
    tokens.sort_unstable();
    tokens.into_iter().map(TokenId).collect()
}

/// Quality of the finished predictor on positions, with weights as the file stores them.
fn evaluate(record: &Record, positions: &[usize], parts: &PredictorParts) -> Result<HeldOut, Error> {
    let PredictorParts { hidden_dim, rank, vocab_size, .. } = *parts;
    let device = Device::default();
    let down = matrix(parts.down.clone(), [rank, hidden_dim], &device).transpose();
    let up: Vec<f32> = parts.up.iter().map(|value| value.to_f32()).collect();
    let up = matrix(up, [vocab_size, rank], &device).transpose();
    let stride = positions.len().div_ceil(HELD_OUT_MAX);
    let positions: Vec<usize> = positions.iter().copied().step_by(stride).collect();
    let (mut n_agreed, mut kl) = (0, 0.0);
    for some in positions.chunks(64) {
        let n = some.len();
        let hidden = some.iter().flat_map(|&at| record.hidden_row(at).iter().copied()).collect();
        let x = matrix(hidden, [n, hidden_dim], &device);
        let log_q = log_softmax(x.matmul(down.clone()).matmul(up.clone()), 1);
        let choices = choices(&log_q)?;
        n_agreed +=
            some.iter().zip(choices).filter(|(at, choice)| i64::from(record.top[**at][0]) == *choice).count();
        let tokens = some.iter().flat_map(|&at| record.top[at].map(|token| token as i32)).collect();
        let log_q = log_q.gather(1, indices(tokens, [n, TOP], &device));
        let log_p = matrix(some.iter().flat_map(|&at| record.log_p[at]).collect(), [n, TOP], &device);
        let p = log_p.clone().exp();
        let rest = p.clone().sum_dim(1).neg().add_scalar(1.0).clamp_min(0.0);
        kl += f64::from(kl_sum(log_q, p, log_p, rest).into_scalar::<f32>());
    }
    Ok(HeldOut::new(positions.len(), n_agreed, kl))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likely_tokens_compete_with_the_pool_and_with_drawn_ones() {
        let vocab_size = WHOLE_VOCABULARY_MAX + 1;
        let record = Record { top: (0..2).map(|n| [4000 + n; TOP]).collect(), ..Record::default() };
        let mut candidates = Candidates::new(vocab_size, &[TokenId(7), TokenId(9)], 1);
        let mut drawn = Vec::new();
        for positions in [[0], [1], [0]] {
            candidates.set(&record, &positions);
            let tokens = candidates.tokens.clone();
            assert_eq!(tokens[..3], [7, 9, 4000 + positions[0] as u32]);
            assert!((N_DRAWN / 2..=N_DRAWN + 3).contains(&tokens.len()), "{}", tokens.len());
            for (column, &token) in tokens.iter().enumerate() {
                assert_eq!(candidates.column(token), column as i32, "each token has one place");
            }
            let n_placed = candidates.columns.iter().filter(|&&column| column != NONE).count();
            assert_eq!(n_placed, tokens.len(), "the tokens of earlier steps are gone");
            drawn.push(tokens);
        }
        assert_ne!(drawn[0][3..], drawn[2][3..]);
        let mut whole = Candidates::new(WHOLE_VOCABULARY_MAX, &[TokenId(7)], 1);
        whole.set(&record, &[1]);
        assert!(whole.tokens.iter().copied().eq(0..WHOLE_VOCABULARY_MAX as u32));
    }
}
