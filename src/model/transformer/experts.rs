//! Mixtures of experts: each row is computed by the networks that its router chooses.
//!
//! ```text
//! scores = router·b (+ bias)                                   [n_experts]
//! chosen = the n_used greatest scores, or sigmoids of scores plus a bias; of equal ones, those of the first experts
//! y      = Σ weight·(Wdown·(activation(Wgate·b) ∘ Wup·b))      over the chosen experts, in their order
//! y     += gate·shared(b)                                      if there is a shared network
//! ```
//!
//! With norms of their own ([`Experts::own_norms`]), router, experts and shared network each read the residual stream through another norm,
//! and the two results are normed before they are added.
//!
//! The rows of a pass are sorted by expert, and a product multiplies each expert's rows with its own panels, all experts in
//! one parallel section. A row adds its experts in ascending order, and its sums do not depend on the other rows of an
//! expert, so a row has the same bits in every batch.
//!
//! **Memory.** A pass takes its experts in rounds of about [`ROUND_ROWS`] rows, so that a long chunk of a prompt does not
//! hold the values of every row and expert at a time. The rounds follow the order of the experts, so they change no sum.

use super::recurrent::sigmoid;
use super::{At, Buffers, ForwardError, Model, Normed, Part, activate, for_rows, form_of, project_computed};
use crate::kernels::{
    self, ActivationForm, Activations, GroupedMatMul, Kernels, MatMul, PackedRows, RowGroup, resize_exact,
};
use crate::model::arch::tensors::LayerWeight;
use crate::model::config::{Experts, FeedForward, ModelConfig, Routing};
use crate::model::streamed::{ExpertCache, LoadedExperts, Streamed};

/// Rows of a round, unless a single expert has more. Half of a chunk of the usual length with eight experts a row takes
/// four rounds; their sections cost far less than reading the weights of an expert.
const ROUND_ROWS: usize = 512;

/// What LFM2 adds to the sum of sigmoids that it divides by.
const SIGMOID_SUM_EPS: f32 = 1e-6;

/// The buffers of a mixture.
#[derive(Default)]
pub(super) struct ExpertBuffers {
    choices: Choices,
    round: Round,
    /// Of the rows of a round: `[n_round_rows, ffn_dim]`
    gate: Vec<f32>,
    /// `[n_round_rows, ffn_dim]`
    up: Vec<f32>,
    /// `[n_round_rows, hidden_dim]`; of all rows, for the shared network.
    out: Vec<f32>,
}

/// The experts of each row. A *choice* is an expert of a row; choice `i` is one of row `i / n_used`.
#[derive(Default)]
struct Choices {
    n_used: usize,
    /// `[n_rows, n_experts]`
    scores: Vec<f32>,
    /// Of the row at hand, what its experts are chosen by if not by their scores: `[n_experts]`
    biased: Vec<f32>,
    /// `[n_rows, n_used]`, ascending in each row.
    experts: Vec<u32>,
    /// `[n_rows, n_used]`
    weights: Vec<f32>,
    /// The choices in the order of their experts, then of their rows.
    order: Vec<u32>,
    /// `[n_experts]`: the end of an expert's choices in `order`.
    ends: Vec<u32>,
    /// `[n_rows, n_used]`: the row of the round that computes the choice.
    at: Vec<u32>,
}

/// Consecutive experts that are computed together.
#[derive(Default)]
struct Round {
    /// The end of its experts.
    end: usize,
    /// The rows of each of its experts that have any.
    groups: Vec<RowGroup>,
    /// The expert of each group.
    experts: Vec<u32>,
    /// `[n_round_rows]`: the row of the pass.
    rows: Vec<u32>,
    /// `[n_round_rows]`: the expert.
    expert_of: Vec<u32>,
}

/// Maximum rows of a round in a pass over `n_rows` rows.
fn round_rows_max(n_rows: usize, n_used: usize, step: usize) -> usize {
    n_rows.saturating_mul(n_used).saturating_mul(step).min(ROUND_ROWS.max(n_rows.next_multiple_of(step)))
}

/// Maximum bytes of the buffers of mixtures in passes over up to `n_rows` rows.
pub(super) fn bytes(config: &ModelConfig, n_rows: usize) -> u64 {
    let of_layer = |experts: &Experts| {
        let Experts { n_experts, n_used, ffn_dim, .. } = *experts;
        // Groups begin at even rows on some instruction sets.
        let round_rows = round_rows_max(n_rows, n_used, 2).max(n_rows);
        let values = 2 * ffn_dim + config.hidden_dim + 2;
        let prepared = 6 * ffn_dim.max(config.hidden_dim);
        let of_round = ((4 * values + prepared) as u64).saturating_mul(round_rows as u64);
        let of_rows = (4 * (n_experts + 4 * n_used) as u64).saturating_mul(n_rows as u64);
        of_round.saturating_add(of_rows).saturating_add(4 * n_experts as u64)
    };
    let layers = config.layers.iter().filter_map(|layer| match &layer.feed {
        FeedForward::Experts(experts) => Some(of_layer(experts)),
        _ => None,
    });
    layers.max().unwrap_or(0)
}

impl ExpertBuffers {
    /// Bytes on the heap of the numbers of rows.
    pub(super) fn memory_usage(&self) -> usize {
        let Self { choices, round, gate, up, out } = self;
        let floats = [&choices.scores, &choices.biased, &choices.weights, gate, up, out].map(Vec::capacity);
        let indices = [&choices.experts, &choices.order, &choices.ends, &choices.at];
        let indices = indices.into_iter().chain([&round.experts, &round.rows, &round.expert_of]);
        4 * (floats.iter().sum::<usize>() + indices.map(Vec::capacity).sum::<usize>())
            + size_of::<RowGroup>() * round.groups.capacity()
    }
}

impl Choices {
    /// Chooses the experts of every row from `scores`; `bias` is that of the sigmoids, `[n_experts]`, if there is one.
    fn choose(&mut self, k: Kernels, plan: &Experts, bias: Option<&[f32]>) {
        let Self { n_used, scores, biased, experts, weights, order, ends, at } = self;
        *n_used = plan.n_used;
        let n_choices = scores.len() / plan.n_experts * plan.n_used;
        for buffer in [&mut *experts, order, at] {
            resize_exact(buffer, n_choices);
        }
        resize_exact(weights, n_choices);
        let rows = experts.chunks_exact_mut(plan.n_used).zip(weights.chunks_exact_mut(plan.n_used));
        for ((experts, weights), scores) in rows.zip(scores.chunks_exact_mut(plan.n_experts)) {
            if let Routing::Sigmoid { .. } = plan.routing {
                scores.iter_mut().for_each(|score| *score = sigmoid(*score));
            }
            match bias {
                None => greatest(scores, experts),
                Some(bias) => {
                    biased.clear();
                    biased.reserve_exact(scores.len());
                    biased.extend(scores.iter().zip(bias).map(|(score, bias)| score + bias));
                    greatest(biased, experts);
                }
            }
            experts.sort_unstable();
            for (weight, &expert) in weights.iter_mut().zip(&*experts) {
                *weight = scores[expert as usize];
            }
            match plan.routing {
                // Probabilities divided by their sum are a softmax of their scores alone.
                Routing::SoftmaxNormalized | Routing::SoftmaxOfChosen => kernels::softmax(k, weights),
                Routing::Softmax => {
                    let sum = kernels::log_sum_exp(k, scores);
                    weights.iter_mut().for_each(|weight| *weight = kernels::exp(*weight - sum));
                }
                Routing::Sigmoid { normalized, scale, .. } => {
                    let sum = if normalized { weights.iter().sum::<f32>() + SIGMOID_SUM_EPS } else { 1.0 };
                    weights.iter_mut().for_each(|weight| *weight = *weight / sum * scale);
                }
            }
        }
        // Sorts the choices by counting.
        ends.clear();
        resize_exact(ends, plan.n_experts);
        experts.iter().for_each(|&expert| ends[expert as usize] += 1);
        let mut start = 0;
        for end in &mut *ends {
            start += std::mem::replace(end, start);
        }
        for (choice, &expert) in experts.iter().enumerate() {
            let end = &mut ends[expert as usize];
            order[*end as usize] = choice as u32;
            *end += 1;
        }
    }

    /// The choices of an expert.
    fn of(&self, expert: usize) -> &[u32] {
        let start = if expert == 0 { 0 } else { self.ends[expert - 1] };
        &self.order[start as usize..self.ends[expert] as usize]
    }
}

/// Writes the numbers of the `greatest.len()` greatest scores, in descending order; of equal ones, the first.
fn greatest(scores: &[f32], greatest: &mut [u32]) {
    let mut n = 0;
    for (i, &score) in scores.iter().enumerate() {
        let above = |at: &u32| score > scores[*at as usize];
        if n == greatest.len() && !greatest.last().is_some_and(above) {
            continue;
        }
        let at = greatest[..n].partition_point(|at| !above(at));
        n = (n + 1).min(greatest.len());
        greatest.copy_within(at..n - 1, at + 1);
        greatest[at] = i as u32;
    }
}

impl Round {
    /// Before the first expert; rounds of up to so many rows and experts will need no more memory.
    fn begin(&mut self, n_rows_max: usize, n_experts_max: usize) {
        let Self { end, groups, experts, rows, expert_of } = self;
        *end = 0;
        groups.clear();
        groups.reserve_exact(n_experts_max);
        for (buffer, len) in [(experts, n_experts_max), (rows, n_rows_max), (expert_of, n_rows_max)] {
            buffer.clear();
            buffer.reserve_exact(len);
        }
    }

    /// The next experts that have rows, at most `n_experts_max`; `false` if there are none. The rows of each begin at a
    /// multiple of `step`.
    fn advance(&mut self, choices: &mut Choices, n_experts_max: usize, step: usize) -> bool {
        let Self { end, groups, experts, rows, expert_of } = self;
        groups.clear();
        experts.clear();
        rows.clear();
        expert_of.clear();
        while *end < choices.ends.len() && groups.len() < n_experts_max {
            let expert = *end as u32;
            let n_rows = choices.of(*end).len();
            if n_rows > 0 {
                if !groups.is_empty() && rows.len() + n_rows.next_multiple_of(step) > ROUND_ROWS {
                    break;
                }
                let first = rows.len();
                for i in 0..n_rows {
                    let choice = choices.of(*end)[i];
                    choices.at[choice as usize] = rows.len() as u32;
                    rows.push(choice / choices.n_used as u32);
                }
                // What stands between two experts is computed and not used.
                let padded = rows.len().next_multiple_of(step);
                rows.resize(padded, rows[first]);
                expert_of.resize(padded, expert);
                groups.push(RowGroup { first_row: first, n_rows, first_out: first });
                experts.push(expert);
            }
            *end += 1;
        }
        !groups.is_empty()
    }
}

/// The matrices of the experts of a round.
pub(super) trait ExpertMatrices: Sync {
    /// A matrix of the expert of a group.
    fn rows(&self, weight: LayerWeight, group: usize) -> PackedRows<'_>;
}

/// Matrices that lie one behind the other.
struct Stacked<'a> {
    at: &'a At<'a>,
    experts: &'a [u32],
}

impl ExpertMatrices for Stacked<'_> {
    fn rows(&self, weight: LayerWeight, group: usize) -> PackedRows<'_> {
        let At { layer, plan, .. } = self.at;
        let matrix = layer.matrix(weight);
        let FeedForward::Experts(plan) = &plan.feed else { unreachable!("a layer of experts") };
        let n_rows = matrix.n_rows() / plan.n_experts;
        let expert = self.experts[group] as usize;
        matrix.rows(expert * n_rows..(expert + 1) * n_rows)
    }
}

/// Matrices that were read for a round.
struct Loaded(LoadedExperts);

impl ExpertMatrices for Loaded {
    fn rows(&self, weight: LayerWeight, group: usize) -> PackedRows<'_> {
        self.0.rows(weight, group)
    }
}

impl Model {
    /// `projected = Σ weight · expert(norm(x)) + gate · shared(norm(x))`
    pub(super) fn feed_experts(
        &self,
        at: &At<'_>,
        plan: &Experts,
        parts: &mut [Part<'_>],
        ws: &mut Buffers,
    ) -> Result<(), ForwardError> {
        let mut mixture = std::mem::take(&mut ws.mixture);
        let result = self.feed_rounds(at, plan, parts, &mut mixture, ws);
        ws.mixture = mixture;
        result
    }

    fn feed_rounds(
        &self,
        at: &At<'_>,
        plan: &Experts,
        parts: &mut [Part<'_>],
        mixture: &mut ExpertBuffers,
        ws: &mut Buffers,
    ) -> Result<(), ForwardError> {
        let &At { compute, layer, .. } = at;
        let (k, hidden_dim) = (compute.kernels, self.config.hidden_dim);
        let n_rows = ws.x.len() / hidden_dim;
        let ExpertBuffers { choices, round, gate, up, out } = mixture;
        let streamed = self.streamed.as_ref().filter(|_| !layer.has_experts());
        let form_of = |weight: LayerWeight| match streamed.and_then(Streamed::experts) {
            Some(experts) => experts.form(at.layer_idx, weight),
            None => layer.matrix(weight).activation_form(),
        };
        let n_experts_max = streamed.and_then(Streamed::experts).map_or(usize::MAX, ExpertCache::n_slots);
        let form = form_of(LayerWeight::ExpertGate).with(form_of(LayerWeight::ExpertUp));
        let down_form = form_of(LayerWeight::ExpertDown);
        resize_exact(&mut choices.scores, n_rows * plan.n_experts);
        self.project_routed(at, plan, form, n_rows, &mut choices.scores, ws);
        if let Some(bias) = layer.vector(LayerWeight::RouterBias) {
            choices.scores.chunks_exact_mut(plan.n_experts).for_each(|row| kernels::add(k, row, bias));
        }
        choices.choose(k, plan, layer.vector(LayerWeight::ChoiceBias));
        if let Some(scale) = layer.vector(LayerWeight::ExpertScale) {
            let chosen = choices.weights.iter_mut().zip(&choices.experts);
            chosen.for_each(|(weight, &expert)| *weight *= scale[expert as usize]);
        }
        let Buffers { x, normed, activations, projected, .. } = &mut *ws;
        let input = if layer.vector(LayerWeight::FfnNorm).is_some() { &*normed } else { &*x };
        let vector = |weight: LayerWeight| layer.vector(weight);
        projected.fill(0.0);
        let step = Activations::group_step(k);
        // The same length in every pass over so many rows, whatever their experts are.
        let n_round_rows_max = round_rows_max(n_rows, plan.n_used, step);
        resize_exact(gate, n_round_rows_max * plan.ffn_dim);
        resize_exact(up, n_round_rows_max * plan.ffn_dim);
        resize_exact(out, n_round_rows_max * hidden_dim);
        round.begin(n_round_rows_max, plan.n_experts.min(n_rows * plan.n_used));
        loop {
            let first = round.end;
            if !round.advance(choices, n_experts_max, step) {
                break;
            }
            Part::poll(parts)?;
            let n_values = round.rows.len() * plan.ffn_dim;
            if n_rows == 1 && first == 0 {
                // The activations are those of the row already.
                round.groups.iter_mut().for_each(|group| group.first_row = 0);
            } else {
                activations.set_gathered(k, compute.pool, input, &round.rows, hidden_dim, form);
            }
            let (stacked, loaded);
            let matrices: &dyn ExpertMatrices = match streamed {
                None => {
                    stacked = Stacked { at, experts: &round.experts };
                    &stacked
                }
                Some(streamed) => {
                    let experts = &round.experts;
                    loaded = Loaded(Part::wait(parts, |cancel| {
                        streamed.load_experts(at.layer_idx, experts, cancel)
                    })?);
                    &loaded
                }
            };
            let jobs = &mut [
                GroupedMatMul { w: &|group| matrices.rows(LayerWeight::ExpertGate, group), out: gate },
                GroupedMatMul { w: &|group| matrices.rows(LayerWeight::ExpertUp, group), out: up },
            ];
            kernels::matmul_groups(k, compute.pool, activations, &round.groups, plan.ffn_dim, jobs);
            let add_bias = |weight: LayerWeight, i: usize, row: &mut [f32]| {
                if let Some(bias) = vector(weight) {
                    kernels::add(k, row, &bias[round.expert_of[i] as usize * row.len()..][..row.len()]);
                }
            };
            if plan.bias {
                for_rows(compute, &mut up[..n_values], plan.ffn_dim, &|i, row| {
                    add_bias(LayerWeight::ExpertUpBias, i, row)
                });
            }
            let gate = &mut gate[..n_values];
            activations.set_computed_for_groups(k, compute.pool, gate, plan.ffn_dim, down_form, &|i, row| {
                add_bias(LayerWeight::ExpertGateBias, i, row);
                activate(k, plan.activation, row, &up[i * row.len()..(i + 1) * row.len()]);
            });
            round.groups.iter_mut().for_each(|group| group.first_row = group.first_out);
            let jobs =
                &mut [GroupedMatMul { w: &|group| matrices.rows(LayerWeight::ExpertDown, group), out }];
            kernels::matmul_groups(k, compute.pool, activations, &round.groups, hidden_dim, jobs);
            let experts = first as u32..round.end as u32;
            for_rows(compute, projected, hidden_dim, &|row_idx, row| {
                for choice in row_idx * plan.n_used..(row_idx + 1) * plan.n_used {
                    let expert = choices.experts[choice];
                    if !experts.contains(&expert) {
                        continue;
                    }
                    let weight = choices.weights[choice];
                    let result = &out[choices.at[choice] as usize * row.len()..][..row.len()];
                    kernels::add_scaled(k, row, result, weight);
                    if let Some(bias) = vector(LayerWeight::ExpertDownBias) {
                        kernels::add_scaled(
                            k,
                            row,
                            &bias[expert as usize * row.len()..][..row.len()],
                            weight,
                        );
                    }
                }
            });
        }
        if plan.shared_ffn_dim > 0 {
            self.add_shared(at, plan, out, ws);
        }
        Ok(())
    }

    /// Multiplies the normed rows with the router, into `scores`, and with gate and up of the shared network. `normed` and, if there
    /// is one row, the activations are those of the experts.
    fn project_routed(
        &self,
        at: &At<'_>,
        plan: &Experts,
        form: ActivationForm,
        n_rows: usize,
        scores: &mut [f32],
        ws: &mut Buffers,
    ) {
        let &At { compute, layer, .. } = at;
        let (k, hidden_dim) = (compute.kernels, self.config.hidden_dim);
        let Buffers { x, normed, activations, gate, up, .. } = ws;
        let router = MatMul { w: layer.matrix(LayerWeight::Router), out: scores };
        let (mut alone, mut with_shared);
        let jobs: &mut [MatMul<'_>] = if plan.shared_ffn_dim == 0 {
            alone = [router];
            &mut alone
        } else {
            resize_exact(gate, n_rows * plan.shared_ffn_dim);
            resize_exact(up, n_rows * plan.shared_ffn_dim);
            with_shared = [
                router,
                MatMul { w: layer.matrix(LayerWeight::SharedGate), out: gate },
                MatMul { w: layer.matrix(LayerWeight::SharedUp), out: up },
            ];
            &mut with_shared
        };
        if let (Some(factors), Some(weight)) =
            (layer.vector(LayerWeight::RouterScale), layer.vector(LayerWeight::ExpertNorm))
        {
            let (router, shared) = jobs.split_at_mut(1);
            self.project_input(at, LayerWeight::FfnNorm, x, normed, activations, shared);
            let eps = self.config.norm_eps;
            let (norm, scale) = (Normed { x, weight: factors, eps }, 1.0 / (hidden_dim as f32).sqrt());
            project_computed(compute, activations, normed, hidden_dim, router, &|i, row| {
                norm.row(compute, i, row);
                kernels::scale(k, row, scale);
            });
            let norm = Normed { x, weight, eps };
            match n_rows {
                1 => {
                    let row = |i: usize, row: &mut [f32]| norm.row(compute, i, row);
                    activations.set_computed(k, compute.pool, normed, hidden_dim, form, &row);
                }
                _ => norm.write(compute, normed),
            }
            return;
        }
        let own = form_of(jobs).expect("there is a router");
        let form = if n_rows == 1 { own.with(form) } else { own };
        match layer.vector(LayerWeight::FfnNorm) {
            Some(weight) => {
                let norm = Normed { x, weight, eps: self.config.norm_eps };
                let row = |i: usize, row: &mut [f32]| norm.row(compute, i, row);
                activations.set_computed(k, compute.pool, normed, hidden_dim, form, &row);
            }
            None => activations.set(k, compute.pool, x, n_rows, hidden_dim, form),
        }
        kernels::matmul(k, compute.pool, activations, jobs);
    }

    /// `projected += gate · (Wdown · (activation(gate) ∘ up))` with the shared network, where both may have a norm.
    fn add_shared(&self, at: &At<'_>, plan: &Experts, out: &mut Vec<f32>, ws: &mut Buffers) {
        let &At { compute, layer, .. } = at;
        let (k, hidden_dim) = (compute.kernels, self.config.hidden_dim);
        let Buffers { x, normed, activations, projected, gate, up, .. } = ws;
        resize_exact(out, projected.len());
        let jobs = &mut [MatMul { w: layer.matrix(LayerWeight::SharedDown), out }];
        project_computed(compute, activations, gate, plan.shared_ffn_dim, jobs, &|i, row| {
            activate(k, plan.activation, row, &up[i * row.len()..(i + 1) * row.len()]);
        });
        let input = if layer.vector(LayerWeight::FfnNorm).is_some() { &*normed } else { &*x };
        let router = layer.vector(LayerWeight::SharedRouter);
        let eps = self.config.norm_eps;
        if let Some(norm) = layer.vector(LayerWeight::PostSharedNorm) {
            for_rows(compute, out, hidden_dim, &|_, row| kernels::rms_norm_in_place(k, row, norm, eps));
        }
        let norm = layer.vector(LayerWeight::PostExpertNorm);
        for_rows(compute, projected, hidden_dim, &|i, row| {
            if let Some(norm) = norm {
                kernels::rms_norm_in_place(k, row, norm, eps);
            }
            let result = &out[i * row.len()..(i + 1) * row.len()];
            match router {
                None => kernels::add(k, row, result),
                Some(router) => {
                    let score = kernels::dot(k, &input[i * row.len()..(i + 1) * row.len()], router);
                    kernels::add_scaled(k, row, result, 1.0 / (1.0 + kernels::exp(-score)));
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    use super::*;
    use crate::kernels::{BlockType, KvType, PackedMatrix, Pool};
    use crate::model::arch::tensors::{WeightId, layer_slots};
    use crate::model::batch::Batch;
    use crate::model::config::{Activation, Architecture, Attention, LayerPlan, Mixer, Norms};
    use crate::model::kv_cache::KvCache;
    use crate::model::resident::{Layer, TensorSource, Weights};
    use crate::model::transformer::{Compute, Workspace};

    fn plan(n_experts: usize, n_used: usize, routing: Routing) -> Experts {
        let activation = Activation::Silu;
        Experts {
            n_experts,
            n_used,
            ffn_dim: 16,
            activation,
            routing,
            bias: false,
            shared_ffn_dim: 0,
            shared_gated: false,
            own_norms: false,
        }
    }

    /// The obvious implementation: sorts all experts by score, or by sigmoid plus bias.
    fn by_sorting(
        scores: &[f64],
        bias: &[f32],
        n_used: usize,
        routing: Routing,
        is_close: &mut bool,
    ) -> Vec<(usize, f64)> {
        let sigmoid = |i: usize| 1.0 / (1.0 + (-scores[i]).exp());
        let key = |i: usize| match routing {
            Routing::Sigmoid { biased: true, .. } => sigmoid(i) + f64::from(bias[i]),
            _ => scores[i],
        };
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
        // Rounding can decide between numbers that are not equal.
        *is_close = order.get(n_used).is_some_and(|&next| {
            let difference = key(order[n_used - 1]) - key(next);
            difference > 0.0 && difference < 1e-6
        });
        order.truncate(n_used);
        order.sort_unstable();
        let exp = |i: usize| scores[i].exp();
        let weight = |i: usize| match routing {
            Routing::Softmax => exp(i) / (0..scores.len()).map(exp).sum::<f64>(),
            Routing::Sigmoid { normalized: false, scale, .. } => sigmoid(i) * f64::from(scale),
            Routing::Sigmoid { normalized: true, scale, .. } => {
                sigmoid(i) / (order.iter().map(|&i| sigmoid(i)).sum::<f64>() + 1e-6) * f64::from(scale)
            }
            _ => exp(i) / order.iter().map(|&i| exp(i)).sum::<f64>(),
        };
        order.iter().map(|&i| (i, weight(i))).collect()
    }

    proptest! {
        #[test]
        fn the_greatest_are_chosen_and_the_first_of_equals(
            rows in proptest::collection::vec(proptest::collection::vec(-4i8..4, 9), 0..7),
            n_used in 1usize..=9,
            routing in proptest::sample::select(&[
                Routing::Softmax, Routing::SoftmaxNormalized, Routing::SoftmaxOfChosen,
                Routing::Sigmoid { biased: true, normalized: true, scale: 1.0 },
                Routing::Sigmoid { biased: true, normalized: false, scale: 2.5 },
                Routing::Sigmoid { biased: false, normalized: true, scale: 2.5 },
            ][..]),
            bias in proptest::collection::vec(-3i8..3, 9),
            step in 1usize..=2,
            n_max in 1usize..4,
        ) {
            let plan = plan(9, n_used, routing);
            // Whole numbers, so that many are equal.
            let scores: Vec<f32> = rows.iter().flatten().map(|&score| f32::from(score)).collect();
            let mut choices = Choices { scores: scores.clone(), ..Choices::default() };
            let bias: Vec<f32> = bias.into_iter().map(|bias| 0.25 * f32::from(bias)).collect();
            let is_biased = matches!(routing, Routing::Sigmoid { biased: true, .. });
            choices.choose(Kernels::detect(), &plan, is_biased.then_some(&bias));
            for (row, scores) in scores.chunks_exact(9).enumerate() {
                let (scores, mut is_close) = (scores.iter().map(|&s| f64::from(s)).collect::<Vec<_>>(), false);
                let expected = by_sorting(&scores, &bias, n_used, routing, &mut is_close);
                prop_assert!(!is_close, "scores and biases are far from each other or equal");
                for (i, (expert, weight)) in expected.into_iter().enumerate() {
                    prop_assert_eq!(choices.experts[row * n_used + i] as usize, expert);
                    let difference = f64::from(choices.weights[row * n_used + i]) - weight;
                    prop_assert!(difference.abs() < 1e-6, "off by {difference}");
                }
            }
            // Every choice is in one round, in a row of its own, behind those of lower experts.
            let (mut round, mut seen) = (Round::default(), vec![false; choices.experts.len()]);
            let mut first = 0;
            while round.advance(&mut choices, n_max, step) {
                prop_assert!(round.groups.len() <= n_max);
                let mut end = 0;
                for (group, &expert) in round.groups.iter().zip(&round.experts) {
                    prop_assert!((first..round.end).contains(&(expert as usize)));
                    prop_assert!(group.first_row.is_multiple_of(step) && group.first_row >= end);
                    prop_assert_eq!(group.n_rows, choices.of(expert as usize).len());
                    end = group.first_row + group.n_rows;
                    for &choice in choices.of(expert as usize) {
                        let at = choices.at[choice as usize] as usize;
                        prop_assert!((group.first_row..end).contains(&at));
                        prop_assert_eq!(round.rows[at], choice / n_used as u32);
                        prop_assert_eq!(round.expert_of[at], expert);
                        prop_assert!(!std::mem::replace(&mut seen[choice as usize], true));
                    }
                }
                first = round.end;
            }
            prop_assert!(seen.into_iter().all(|seen| seen));
        }
    }

    /// Numbers of a tensor, about as large as a trained model's.
    fn numbers(weight: LayerWeight, n: usize, scale: f32) -> Vec<f32> {
        let mut state = 0x9E37_79B9u64.wrapping_mul(weight as u64 + 77);
        let number = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            scale * ((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
        };
        std::iter::repeat_with(number).take(n).collect()
    }

    fn vector_of(weight: LayerWeight, len: usize) -> Vec<f32> {
        let mut values = numbers(weight, len, 0.3);
        if weight == LayerWeight::FfnNorm {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        values
    }

    fn matrix_of(weight: LayerWeight, n_rows: usize, n_cols: usize) -> Vec<f32> {
        numbers(weight, n_rows * n_cols, 1.7 / (n_cols as f32).sqrt())
    }

    struct Random<'a> {
        config: &'a ModelConfig,
        ty: BlockType,
    }

    impl Random<'_> {
        fn shape(&self, id: WeightId) -> (LayerWeight, Vec<usize>) {
            let WeightId::Layer(_, weight) = id else { panic!("of a layer") };
            let slots = layer_slots(self.config, &self.config.layers[0]);
            let slot = slots.into_iter().find(|slot| slot.0 == weight).unwrap();
            (weight, slot.1.into_iter().map(|n| n as usize).collect())
        }
    }

    impl TensorSource for Random<'_> {
        type Error = std::convert::Infallible;

        fn matrix(&mut self, id: WeightId) -> Result<PackedMatrix, Self::Error> {
            let (weight, shape) = self.shape(id);
            let ty = if weight == LayerWeight::Router { BlockType::F32 } else { self.ty };
            let mut bytes = Vec::new();
            for row in matrix_of(weight, shape[0], shape[1]).chunks(shape[1]) {
                kernels::quantize(ty, row, &mut bytes);
            }
            Ok(PackedMatrix::pack(ty, shape[0], shape[1], &bytes, &|row| row).unwrap())
        }

        fn vector(&mut self, id: WeightId) -> Result<Vec<f32>, Self::Error> {
            let (weight, shape) = self.shape(id);
            Ok(vector_of(weight, shape[0]))
        }
    }

    const HIDDEN: usize = 64;
    const FFN: usize = 32;

    fn model(experts: Experts) -> Model {
        let layer = LayerPlan {
            mixer: Mixer::Attention(Attention { rope: None, ..Attention::plain(1, 1, 32) }),
            feed: FeedForward::Experts(experts),
            norms: Norms::Pre,
            residual_scale: 1.0,
            output_scaled: false,
            branch_rank: None,
        };
        let config = ModelConfig {
            architecture: Architecture::from_name("qwen3moe").unwrap(),
            hidden_dim: HIDDEN,
            vocab_size: 16,
            context_len: 16,
            norm_eps: 1e-5,
            tied_head: true,
            embedding_scale: 1.0,
            logit_scale: 1.0,
            logit_softcap: None,
            per_layer: None,
            streams: None,
            draft_head: None,
            ropes: Vec::new(),
            layers: vec![layer],
        };
        config.validate("test").unwrap();
        let (layers, output_norm) = (Vec::new(), Vec::new());
        let weights = Weights {
            embedding: None,
            layers,
            output_norm,
            head: None,
            per_layer: None,
            streams: None,
            draft_head: None,
        };
        Model { config, weights, graphs: None, streamed: None, identity: OnceLock::new() }
    }

    fn run(model: &Model, layer: &Layer, compute: Compute<'_>, x: &[f32]) -> Vec<f32> {
        let plan = &model.config.layers[0];
        let FeedForward::Experts(experts) = &plan.feed else { panic!("experts") };
        let (mut kv, mut workspace) =
            (KvCache::new(&model.config, KvType::F16, 1).unwrap(), Workspace::new(&model.config));
        let (batch, never) = (Batch::new(), AtomicBool::new(false));
        let parts = &mut [Part::new(&batch, &mut kv, &mut workspace, &never)];
        let mut ws = Buffers::default();
        ws.resize(&model.config, x.len() / HIDDEN);
        ws.x.copy_from_slice(x);
        let at = At { compute, plan, layer, layer_idx: 0 };
        model.feed_experts(&at, experts, parts, &mut ws).unwrap();
        ws.projected
    }

    /// One row in f64, expert by expert.
    fn plainly(experts: &Experts, x: &[f32]) -> Vec<f64> {
        use LayerWeight::*;
        let times = |weight: LayerWeight, n_rows: usize, first: usize, n: usize, x: &[f64]| -> Vec<f64> {
            let w = matrix_of(weight, n_rows, x.len());
            let rows = w[first * x.len()..(first + n) * x.len()].chunks(x.len());
            rows.map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
        };
        let plus = |weight: LayerWeight, len: usize, first: usize, values: &mut [f64]| {
            if experts.bias {
                let bias = vector_of(weight, len);
                values.iter_mut().zip(&bias[first..]).for_each(|(value, &bias)| *value += f64::from(bias));
            }
        };
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let act = |gate: f64, up: f64| match experts.activation {
            Activation::ClampedSwiglu { limit } => {
                let (gate, limit) = (gate.min(f64::from(limit)), f64::from(limit));
                gate * sigmoid(1.702 * gate) * (up.clamp(-limit, limit) + 1.0)
            }
            _ => gate * sigmoid(gate) * up,
        };
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
        let norm = vector_of(FfnNorm, x.len());
        let b: Vec<f64> =
            x.iter().zip(norm).map(|(&x, w)| f64::from(x) / (mean + 1e-5).sqrt() * f64::from(w)).collect();
        let n = experts.n_experts;
        let mut scores = times(Router, n, 0, n, &b);
        plus(RouterBias, n, 0, &mut scores);
        let mut is_close = false;
        let chosen =
            by_sorting(&scores, &vector_of(ChoiceBias, n), experts.n_used, experts.routing, &mut is_close);
        assert!(!is_close, "rounding decides between experts");
        let mut y = vec![0.0; HIDDEN];
        for (expert, weight) in chosen {
            let mut gate = times(ExpertGate, n * FFN, expert * FFN, FFN, &b);
            let mut up = times(ExpertUp, n * FFN, expert * FFN, FFN, &b);
            plus(ExpertGateBias, n * FFN, expert * FFN, &mut gate);
            plus(ExpertUpBias, n * FFN, expert * FFN, &mut up);
            let a: Vec<f64> = gate.iter().zip(&up).map(|(&gate, &up)| act(gate, up)).collect();
            let mut out = times(ExpertDown, n * HIDDEN, expert * HIDDEN, HIDDEN, &a);
            plus(ExpertDownBias, n * HIDDEN, expert * HIDDEN, &mut out);
            y.iter_mut().zip(out).for_each(|(y, out)| *y += weight * out);
        }
        if experts.shared_ffn_dim > 0 {
            let d = experts.shared_ffn_dim;
            let (gate, up) = (times(SharedGate, d, 0, d, &b), times(SharedUp, d, 0, d, &b));
            let a: Vec<f64> = gate.iter().zip(&up).map(|(&gate, &up)| act(gate, up)).collect();
            let router = vector_of(SharedRouter, HIDDEN);
            let score: f64 = router.iter().zip(&b).map(|(&w, b)| f64::from(w) * b).sum();
            let weight = if experts.shared_gated { sigmoid(score) } else { 1.0 };
            y.iter_mut()
                .zip(times(SharedDown, HIDDEN, 0, HIDDEN, &a))
                .for_each(|(y, out)| *y += weight * out);
        }
        y
    }

    /// Like the experts alone in `f64`; and the bits of a row are the same alone and in a batch, on any threads and
    /// instruction set.
    #[test]
    fn a_row_is_the_sum_of_its_experts_in_any_batch() {
        let swiglu = Activation::ClampedSwiglu { limit: 0.7 };
        let sigmoid = Routing::Sigmoid { biased: true, normalized: true, scale: 1.5 };
        for (n_experts, n_used, routing, activation, bias, shared_ffn_dim, shared_gated) in [
            (8, 2, Routing::SoftmaxNormalized, Activation::Silu, false, 0, false),
            (5, 4, Routing::SoftmaxOfChosen, swiglu, true, 0, false),
            (40, 3, Routing::Softmax, Activation::Silu, false, 96, true),
            (3, 3, Routing::Softmax, Activation::Silu, false, 32, false),
            (13, 4, sigmoid, Activation::Silu, false, 0, false),
            (1, 1, Routing::SoftmaxNormalized, Activation::Silu, false, 0, false),
        ] {
            let experts = Experts {
                n_experts,
                n_used,
                ffn_dim: FFN,
                activation,
                routing,
                bias,
                shared_ffn_dim,
                shared_gated,
                own_norms: false,
            };
            let model = model(experts.clone());
            // With 400 rows, there are several rounds.
            let x = numbers(LayerWeight::Q, 400 * HIDDEN, 2.0);
            let expected: Vec<f64> =
                x[..33 * HIDDEN].chunks(HIDDEN).flat_map(|x| plainly(&experts, x)).collect();
            for ty in [BlockType::F32, BlockType::F16, BlockType::Q8_0, BlockType::Q4_0] {
                let mut source = Random { config: &model.config, ty };
                let layer = Layer::build(&model.config, 0, &mut source).unwrap_or_else(|e| match e {});
                let mut first: Option<Vec<f32>> = None;
                for n_threads in [1, 3] {
                    let pool = Pool::new(n_threads);
                    for kernels in Kernels::available() {
                        let compute = Compute { kernels, pool: &pool };
                        let batch = run(&model, &layer, compute, &x);
                        let first = first.get_or_insert_with(|| batch.clone());
                        assert!(same_bits(first, &batch), "{ty} {}", kernels.isa());
                        for row in [0, 1, 31, 32, 399] {
                            let alone = run(&model, &layer, compute, &x[row * HIDDEN..][..HIDDEN]);
                            let own = &batch[row * HIDDEN..][..HIDDEN];
                            assert!(same_bits(&alone, own), "{ty} {} row {row}", kernels.isa());
                        }
                        let some = run(&model, &layer, compute, &x[..33 * HIDDEN]);
                        assert!(same_bits(&some, &batch[..33 * HIDDEN]), "{ty} {}", kernels.isa());
                    }
                }
                if ty == BlockType::F32 {
                    for (i, (got, expected)) in first.unwrap().iter().zip(&expected).enumerate() {
                        let difference = (f64::from(*got) - expected).abs();
                        assert!(difference < 2e-5, "{n_experts} experts: value {i} is off by {difference}");
                    }
                }
            }
        }
    }

    fn same_bits(a: &[f32], b: &[f32]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
    }

    #[test]
    fn the_buffers_stay_below_their_stated_size() {
        let experts = plan(40, 3, Routing::Softmax);
        let model = model(Experts { ffn_dim: FFN, ..experts });
        let plan = &model.config.layers[0];
        let mut source = Random { config: &model.config, ty: BlockType::F32 };
        let layer = Layer::build(&model.config, 0, &mut source).unwrap_or_else(|e| match e {});
        let pool = Pool::new(1);
        for n_rows in [1, 33, 400] {
            let FeedForward::Experts(experts) = &plan.feed else { panic!("experts") };
            let (batch, never) = (Batch::new(), AtomicBool::new(false));
            let mut kv = KvCache::new(&model.config, KvType::F16, 1).unwrap();
            let mut workspace = Workspace::new(&model.config);
            let parts = &mut [Part::new(&batch, &mut kv, &mut workspace, &never)];
            let mut ws = Buffers::default();
            ws.resize(&model.config, n_rows);
            ws.x.copy_from_slice(&numbers(LayerWeight::Q, n_rows * HIDDEN, 2.0));
            let compute = Compute { kernels: Kernels::detect(), pool: &pool };
            model
                .feed_experts(&At { compute, plan, layer: &layer, layer_idx: 0 }, experts, parts, &mut ws)
                .unwrap();
            let (used, stated) = (ws.mixture.memory_usage() as u64, bytes(&model.config, n_rows));
            // Indices double as they grow; the stated size has room for prepared activations too.
            assert!(used <= stated, "{used} of {stated} bytes for {n_rows} rows");
        }
    }

    #[test]
    fn scores_that_are_no_numbers_choose_some_experts() {
        let mut choices = Choices { scores: vec![f32::NAN; 8], ..Choices::default() };
        choices.choose(Kernels::detect(), &plan(8, 3, Routing::SoftmaxOfChosen), None);
        assert_eq!(choices.experts, [0, 1, 2]);
        choices.scores.fill(f32::NAN);
        let sigmoid = Routing::Sigmoid { biased: true, normalized: true, scale: 1.0 };
        choices.choose(Kernels::detect(), &plan(8, 3, sigmoid), Some(&[0.0; 8]));
        assert_eq!(choices.experts, [0, 1, 2]);
    }
}
