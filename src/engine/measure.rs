//! Measures row costs while an engine is loaded.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::draft::CostProfile;
use crate::engine::layer_sample::{LayerKinds, Reach};
use crate::error::LoadError;
use crate::kernels::Instant;
use crate::kernels::KvType;
use crate::model::config::FeedForward;
use crate::model::graphs::{GraphsError, StaticGraphs};
use crate::model::transformer::{Compute, ForwardError, PassEnd};
use crate::model::{Batch, Checkpoint, KvCache, LayerTime, Model, VariedTokens, Workspace};
use crate::profile::cpu_name;
use crate::schedule::{GraphKind, SwitchTimes};

/// The label of stored times. Another machine, instruction set or thread count has other times.
pub(super) fn times_label(compute: Compute<'_>) -> String {
    let (isa, n_threads) = (compute.kernels.isa().name(), compute.pool.n_threads());
    format!("measured: {}, {isa}, {n_threads} threads", cpu_name())
}

/// Sets the graphs' times: those stored in their folder, or new measurements.
pub(super) fn set_times(
    graphs: &StaticGraphs,
    checkpoint: &Checkpoint,
    model: &Model,
    compute: Compute<'_>,
) -> Result<(), GraphsError> {
    let label = times_label(compute);
    // Unreadable stored times are measured again.
    let stored = checkpoint.graphs().and_then(|folder| folder.times().ok().flatten());
    match stored.filter(|times| times.label == label && graphs.fits(times)) {
        Some(times) => graphs.set_times(times),
        None => drop(graphs.measure(model, compute, label, 1)?),
    }
    Ok(())
}

/// Cost of a batch in verify graphs: the sum of its calls. The projection cost is learned from steps.
pub(super) fn graph_costs(times: &SwitchTimes) -> CostProfile {
    let us: f64 = times.blocks.iter().map(|block| block.of(GraphKind::Verify).compute_us).sum();
    let calls = [1, 2].map(|n_calls| (n_calls * times.verify_len, n_calls as f32 * us as f32));
    CostProfile::from_measurements(&[(1, us as f32), calls[0], calls[1]])
}

/// The default time of the measurement while loading: a wait that a user hardly notices beside the loading itself.
pub(crate) const MEASURE_TIME_DEFAULT: Duration = Duration::from_millis(300);

/// Batch lengths measured while loading, the most useful first. The builder interpolates between them.
const COST_ROWS: [usize; 6] = [1, 8, 2, 4, 16, 32];

/// Minimum number of lengths measured: a slope needs two.
const COST_LENGTHS_MIN: usize = 2;

/// Batch lengths measured for a streamed model. Its passes are long and vary with the disk, so a slope
/// between one row and two rows would be noise.
const COST_ROWS_STREAMED: [usize; 2] = [1, 32];

/// The same for a model with experts: each row reads its own, so the slope shows after few rows, and a pass of many
/// would read most of the file.
const COST_ROWS_STREAMED_EXPERTS: [usize; 2] = [1, 4];

/// Rows of the measured projections: waves are no longer than this unless a session requests it.
const PROJECTION_ROWS: [usize; 4] = [1, 8, 2, 4];

/// The context behind which rows are measured: long enough that attention shows beside the weights, and short enough
/// that its cache is written in a few ms.
const CONTEXT: usize = 512;

/// Batch lengths measured behind the context: the first of `COST_ROWS`.
const CONTEXT_ROWS: [usize; COST_LENGTHS_MIN] = [COST_ROWS[0], COST_ROWS[1]];

/// Passes of one row that all measured passes together take: 27 on the development machine, where 32 rows take 5.
const PASSES: f64 = 30.0;

/// The same of the first two lengths and their context, which are measured in any case.
const PASSES_LEAST: f64 = 12.0;

/// Bytes of layers that a measured pass reads at least, if the model has them: more than the last-level cache of a
/// laptop or a phone, so that the weights come from memory as in a whole pass.
const LAYER_BYTES_MIN: usize = 64 << 20;

/// What was measured while loading. It can be kept: another start of the same model on the same machine would measure the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoadCosts {
    /// Steps behind an empty context: rows and µs.
    steps: Vec<(usize, f32)>,
    /// Projections: rows and µs. Empty: they were not measured, and are taken for free.
    projection: Vec<(usize, f32)>,
    /// As in [`ContextCosts`]; empty: not measured.
    attention: Vec<(Reach, [f32; CONTEXT_ROWS.len()])>,
}

impl LoadCosts {
    #[cfg(test)]
    pub(super) fn of(steps: &[(usize, f32)]) -> Self {
        Self { steps: steps.to_vec(), projection: vec![(1, 10.0)], attention: Vec::new() }
    }

    /// A step behind an empty context.
    pub(super) fn costs(&self) -> CostProfile {
        CostProfile::from_measurements(&self.steps)
    }

    /// Projections of rows onto the vocabulary.
    pub(super) fn projection(&self) -> CostProfile {
        CostProfile::from_measurements(&self.projection)
    }

    /// `None`: not measured.
    pub(super) fn context(&self) -> Option<ContextCosts> {
        let is_measured = !self.attention.is_empty();
        is_measured.then(|| ContextCosts { attention: self.attention.clone(), steps: self.costs() })
    }

    /// Whether these can be times of a machine: they may come from a file.
    pub(super) fn are_times(&self) -> bool {
        let is_time = |us: f32| (0.0..=US_MAX).contains(&us);
        let are_steps = |steps: &[(usize, f32)]| {
            steps.len() <= LENGTHS_MAX && steps.iter().all(|&(rows, us)| rows > 0 && us > 0.0 && is_time(us))
        };
        let attention = &self.attention;
        !self.steps.is_empty()
            && are_steps(&self.steps)
            && are_steps(&self.projection)
            && attention.len() <= REACHES_MAX
            && attention.iter().all(|(_, us)| us.iter().all(|&us| is_time(us)))
    }
}

/// The most lengths and reaches that are taken from a file; loading measures fewer.
const LENGTHS_MAX: usize = 64;
const REACHES_MAX: usize = 1024;

/// The longest time that is taken from a file: an hour, as in a stored profile.
const US_MAX: f32 = 3.6e9;

/// The part of a step's cost that grows with the context: the attention of all layers, as a sum over layers of equal reach, so
/// that layers with a window stop growing at it. Each row adds as much as the one before.
#[derive(Debug, Clone)]
pub(crate) struct ContextCosts {
    /// For each reach, the attention of each of `CONTEXT_ROWS`, in µs per position read.
    attention: Vec<(Reach, [f32; CONTEXT_ROWS.len()])>,
    /// Steps behind an empty context.
    steps: CostProfile,
}

impl ContextCosts {
    #[cfg(test)]
    pub(super) fn of(attention: [f32; CONTEXT_ROWS.len()], steps: CostProfile) -> Self {
        Self { attention: vec![(Reach::Context, attention)], steps }
    }

    /// The cost of `rows` rows behind `context` tokens, relative to an empty context.
    pub(crate) fn factor(&self, context: usize, rows: usize) -> f32 {
        let [low, high] = CONTEXT_ROWS;
        let rows = rows.max(low);
        let weight = (rows - low) as f32 / (high - low) as f32;
        let of_reach = |(reach, us): &(Reach, [f32; CONTEXT_ROWS.len()])| {
            (us[0] + weight * (us[1] - us[0])) * reach.of(context) as f32
        };
        1.0 + self.attention.iter().map(of_reach).sum::<f32>() / self.steps.verify_us(rows, 1)
    }
}

/// Costs without a measurement: each further row adds a quarter of the first one. Steps correct it.
pub(super) fn assumed_costs() -> CostProfile {
    CostProfile::from_measurements(&[1, 8, 32].map(|rows| (rows, 10_000.0 * (0.75 + 0.25 * rows as f32))))
}

/// Measures rows, projections and the context of a model in memory, in about `time`. At least two numbers of rows are
/// measured, so a model whose pass takes long exceeds the time. Passes run some layers of each kind if whole passes would take
/// too long ([`LayerKinds`]).
pub(super) fn measure_load(
    model: &Model,
    compute: Compute<'_>,
    time: Duration,
) -> Result<LoadCosts, LoadError> {
    let start = Instant::now();
    let is_over = |share: f64| start.elapsed().as_secs_f64() >= time.as_secs_f64() * share;
    let measured = measure_projection(model, compute, || is_over(0.3))?;
    let projection = CostProfile::from_measurements(&measured);
    let mut probe = LayerProbe::new(model, compute)?;
    probe.choose_layers(time.saturating_sub(start.elapsed()))?;
    let projection_us = |n_rows: usize| projection.verify_us(n_rows.min(8), 1);
    let mut steps: Vec<(usize, f32)> = Vec::new();
    let mut attention = Vec::new();
    let mut empty = Vec::new();
    for n_rows in COST_ROWS {
        if is_over(0.8) && steps.len() >= COST_LENGTHS_MIN {
            break;
        }
        let pass = probe.least(0, n_rows, || is_over(1.0))?;
        steps.push((n_rows, probe.pass_us(&pass) + projection_us(n_rows)));
        if steps.len() <= COST_LENGTHS_MIN {
            empty.push(pass);
        }
        // The other lengths follow the context, so that it is measured on slow machines too.
        if steps.len() == COST_LENGTHS_MIN && probe.fill() {
            attention = measure_attention(&mut probe, &empty, || is_over(1.0))?;
        }
    }
    Ok(LoadCosts { steps, projection: measured, attention })
}

/// Measures the attention of `CONTEXT_ROWS` behind a context, in µs per position; `empty` are their passes behind an empty one.
fn measure_attention(
    probe: &mut LayerProbe<'_>,
    empty: &[PassTimes],
    is_over: impl Fn() -> bool,
) -> Result<Vec<(Reach, [f32; CONTEXT_ROWS.len()])>, LoadError> {
    let mut attention: Vec<(Reach, [f32; CONTEXT_ROWS.len()])> = Vec::new();
    for (i, (n_rows, empty)) in CONTEXT_ROWS.into_iter().zip(empty).enumerate() {
        let pass = probe.least(probe.context, n_rows, &is_over)?;
        let added = pass.layers.iter().zip(&empty.layers);
        let added = added.map(|((layer_idx, us), (_, before))| (*layer_idx, us.attention - before.attention));
        let added = probe.kinds.attention_totals(&added.collect::<Vec<_>>());
        attention.resize(added.len(), (Reach::Context, [0.0; CONTEXT_ROWS.len()]));
        for ((reach, per_token), (of, added_us)) in attention.iter_mut().zip(added) {
            *reach = of;
            per_token[i] = added_us.max(0.0) / of.of(probe.context) as f32;
        }
    }
    // Noise must not make rows cheaper than none.
    attention.iter_mut().for_each(|(_, us)| us[1] = us[1].max(us[0]));
    Ok(attention)
}

/// Times of a pass through some layers, in µs.
struct PassTimes {
    /// Of everything before the layers.
    begin: f32,
    /// Of each layer.
    layers: Vec<(usize, LayerTime)>,
}

/// Runs some layers of each kind.
struct LayerProbe<'a> {
    model: &'a Model,
    compute: Compute<'a>,
    kinds: LayerKinds,
    kv: KvCache,
    workspace: Workspace,
    batch: Batch,
    tokens: VariedTokens,
    /// The layers that a pass runs, in order.
    layers: Vec<usize>,
    /// Slots for a context.
    context: usize,
    /// Times of the layers of the last pass.
    times: Vec<LayerTime>,
}

impl<'a> LayerProbe<'a> {
    fn new(model: &'a Model, compute: Compute<'a>) -> Result<Self, LoadError> {
        let config = model.config();
        let rows_max = COST_ROWS.into_iter().max().unwrap_or(1);
        let context = CONTEXT.min(config.context_len.saturating_sub(rows_max));
        let bytes = (0..).map(|layer_idx| model.layer_bytes(layer_idx));
        Ok(Self {
            model,
            compute,
            kinds: LayerKinds::new(config.layers.iter().zip(bytes)),
            kv: KvCache::new(config, KvType::F16, context + rows_max)?,
            workspace: Workspace::new(config),
            batch: Batch::new(),
            tokens: VariedTokens::new(config.vocab_size),
            layers: (0..config.n_layers()).collect(),
            context,
            times: Vec::new(),
        })
    }

    /// Chooses the layers with which all passes together take about `time`. The passes that find it out are the warm-up.
    fn choose_layers(&mut self, time: Duration) -> Result<(), LoadError> {
        let order = self.kinds.order();
        let mut bytes = 0;
        let least = order.iter().take_while(|&&layer_idx| {
            let is_short = bytes < LAYER_BYTES_MIN;
            bytes += self.kinds.bytes(layer_idx);
            is_short
        });
        let least = least.count();
        self.layers = order[..least].to_vec();
        self.pass(0, 1)?;
        let us: f32 = self.pass(0, 1)?.layers.iter().map(|(_, time)| time.us).sum();
        let layer_s = f64::from(us).max(1e-3) * 1e-6 / least as f64;
        let affordable = |passes: f64| (time.as_secs_f64() * 0.8 / (passes * layer_s)) as usize;
        // A layer of each kind comes before further lengths, and further layers come behind them.
        let n = affordable(PASSES).max(affordable(PASSES_LEAST).min(self.kinds.len())).max(least);
        self.layers = order[..n.min(order.len())].to_vec();
        self.layers.sort_unstable();
        Ok(())
    }

    /// Writes a context to the cache, because memory that was never written costs nothing to read; `false` if the
    /// model's context is too short.
    fn fill(&mut self) -> bool {
        if self.context > 0 {
            self.kv.fill_layers(&self.layers, self.compute.kernels, 0.5);
        }
        self.context > 0
    }

    /// The times behind `context` tokens: for each layer the least of two runs, or of one if the time is over.
    fn least(
        &mut self,
        context: usize,
        n_rows: usize,
        is_over: impl Fn() -> bool,
    ) -> Result<PassTimes, LoadError> {
        let mut pass = self.pass(context, n_rows)?;
        if !is_over() {
            let again = self.pass(context, n_rows)?;
            pass.begin = pass.begin.min(again.begin);
            for ((_, time), (_, again)) in pass.layers.iter_mut().zip(again.layers) {
                *time = time.least(again);
            }
        }
        Ok(pass)
    }

    /// Runs rows of tokens that no pass had: weights of experts then come from memory, as in a whole pass.
    fn pass(&mut self, context: usize, n_rows: usize) -> Result<PassTimes, LoadError> {
        self.kv.assume_len(context);
        self.batch.set_chain(context, &self.tokens.draw(n_rows));
        let state_dim = self.model.config().target_state_dim();
        self.workspace.inputs(false).resize(n_rows * state_dim, 0.5);
        let Self { model, compute, batch, kv, workspace, layers, times, .. } = self;
        let begin = model.time_layers(*compute, batch, kv, workspace, layers, times)?;
        Ok(PassTimes { begin, layers: layers.iter().copied().zip(times.iter().copied()).collect() })
    }

    /// The time of a pass through all layers, in µs.
    fn pass_us(&self, pass: &PassTimes) -> f32 {
        let layers: Vec<_> = pass.layers.iter().map(|(layer_idx, time)| (*layer_idx, time.us)).collect();
        pass.begin + self.kinds.total(&layers)
    }
}

/// Measures two batch lengths of a streamed model. Each pass has tokens of its own, whose experts are read.
pub(super) fn measure_streamed(model: &Model, compute: Compute<'_>) -> Result<LoadCosts, LoadError> {
    let has_experts = model.config().layers.iter().any(|layer| matches!(layer.feed, FeedForward::Experts(_)));
    let lengths = if has_experts { COST_ROWS_STREAMED_EXPERTS } else { COST_ROWS_STREAMED };
    let mut kv = KvCache::new(model.config(), KvType::F16, lengths[1])?;
    let mut workspace = Workspace::new(model.config());
    let (mut batch, mut logits) = (Batch::new(), Vec::new());
    let mut tokens = VariedTokens::new(model.config().vocab_size);
    let never = AtomicBool::new(false);
    let mut run = |n_rows: usize| -> Result<f32, ForwardError> {
        let start = Instant::now();
        batch.set_chain(0, &tokens.draw(n_rows));
        model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::Hidden, &never)?;
        let rows: Vec<u32> = (0..n_rows.min(8) as u32).collect();
        model.logits(compute, &mut workspace, &rows, &mut logits)?;
        Ok(start.elapsed().as_secs_f32() * 1e6)
    };
    // The first pass fixes the ring's order and touches the memory.
    run(1)?;
    let measured = lengths.map(|n_rows| run(n_rows).map(|us| (n_rows, us)));
    let steps = measured.into_iter().collect::<Result<Vec<_>, _>>()?;
    // A measurement of projections would read weights from flash. Free rows make waves as long as allowed.
    Ok(LoadCosts { steps, projection: Vec::new(), attention: Vec::new() })
}

/// Measures the projection of a few row counts: the minimum of two runs each, after a warm-up. Two counts at least,
/// then as many as `is_over` leaves time for.
pub(super) fn measure_projection(
    model: &Model,
    compute: Compute<'_>,
    is_over: impl Fn() -> bool,
) -> Result<Vec<(usize, f32)>, LoadError> {
    let mut measured: Vec<(usize, f32)> = Vec::new();
    let mut workspace = Workspace::new(model.config());
    let mut logits = Vec::new();
    workspace.assume_hidden(model.config(), PROJECTION_ROWS.into_iter().max().unwrap_or(1));
    let mut run = |n_rows: usize| -> Result<f32, ForwardError> {
        let rows: Vec<u32> = (0..n_rows as u32).collect();
        let start = Instant::now();
        model.logits(compute, &mut workspace, &rows, &mut logits)?;
        Ok(start.elapsed().as_secs_f32() * 1e6)
    };
    run(1)?;
    for n_rows in PROJECTION_ROWS {
        if is_over() && measured.len() >= COST_LENGTHS_MIN {
            break;
        }
        let us = run(n_rows)?;
        measured.push((n_rows, if is_over() { us } else { us.min(run(n_rows)?) }));
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Kernels, Pool};
    use crate::model::weights::LoadOptions;

    fn fixture() -> Model {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf");
        Model::load(&Checkpoint::open(path).unwrap(), LoadOptions::default()).unwrap()
    }

    #[test]
    fn a_pass_over_a_part_of_the_layers_stands_for_all() {
        let (model, pool) = (fixture(), Pool::new(2));
        let compute = Compute { kernels: Kernels::detect(), pool: &pool };
        let mut probe = LayerProbe::new(&model, compute).unwrap();
        let all = model.config().n_layers();
        assert!(all > 1 && probe.fill());
        for layers in [vec![0], (0..all).collect(), vec![all - 1]] {
            probe.layers = layers;
            for (context, n_rows) in [(0, 1), (0, 32), (probe.context, 8)] {
                let pass = probe.pass(context, n_rows).unwrap();
                assert_eq!(
                    pass.layers.iter().map(|(layer_idx, _)| *layer_idx).collect::<Vec<_>>(),
                    probe.layers
                );
                let us = probe.pass_us(&pass);
                assert!(us > 0.0 && us.is_finite(), "{:?}, {n_rows} rows behind {context}", probe.layers);
            }
        }
        // However short the time is, some layers are measured.
        probe.choose_layers(Duration::ZERO).unwrap();
        assert!((1..=all).contains(&probe.layers.len()) && probe.layers.is_sorted());
    }

    #[test]
    fn every_pass_has_rows_of_its_own() {
        let (model, pool) = (fixture(), Pool::new(1));
        let compute = Compute { kernels: Kernels::detect(), pool: &pool };
        let mut probe = LayerProbe::new(&model, compute).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for n_rows in [1, 8, 8, 32] {
            probe.pass(0, n_rows).unwrap();
            assert!(probe.batch.tokens().iter().all(|token| seen.insert(*token)), "{n_rows} rows");
        }
    }

    #[test]
    fn a_context_adds_the_attention_of_each_row() {
        let steps = CostProfile::from_measurements(&[(1, 100.0), (8, 200.0), (16, 400.0)]);
        let costs = ContextCosts::of([0.1, 0.8], steps.clone());
        let us = |context, rows| (costs.factor(context, rows) * steps.verify_us(rows, 1)).round();
        assert_eq!([us(0, 1), us(0, 8), us(0, 16)], [100.0, 200.0, 400.0]);
        assert_eq!([us(1000, 1), us(1000, 8), us(1000, 16)], [200.0, 1000.0, 2000.0]);
        assert_eq!((us(2000, 1), us(1000, 0)), (300.0, 200.0));
        assert_eq!(us(1000, 4), (steps.verify_us(4, 1) + 400.0).round());
    }

    #[test]
    fn a_window_adds_no_more_than_its_positions() {
        let attention = vec![(Reach::Context, [0.1, 0.2]), (Reach::Window(50), [1.0, 4.0])];
        let costs =
            ContextCosts { attention, steps: CostProfile::from_measurements(&[(1, 100.0), (8, 100.0)]) };
        let factor = |context, rows| (costs.factor(context, rows) * 1000.0).round();
        assert_eq!([factor(0, 1), factor(20, 1), factor(50, 1)], [1000.0, 1220.0, 1550.0]);
        assert_eq!([factor(100, 1), factor(1000, 1)], [1600.0, 2500.0]);
        assert_eq!([factor(20, 8), factor(1000, 8)], [1840.0, 5000.0]);
    }

    #[test]
    fn attention_is_timed_in_each_layer_that_has_it() {
        let (model, pool) = (fixture(), Pool::new(1));
        let compute = Compute { kernels: Kernels::detect(), pool: &pool };
        let mut probe = LayerProbe::new(&model, compute).unwrap();
        assert!(probe.fill());
        let pass = probe.pass(probe.context, 8).unwrap();
        assert!(pass.layers.iter().all(|(_, time)| time.attention > 0.0 && time.attention.is_finite()));
    }

    #[test]
    fn at_least_two_lengths_are_measured_in_any_time() {
        let (model, pool) = (fixture(), Pool::new(1));
        let compute = Compute { kernels: Kernels::detect(), pool: &pool };
        for time in [Duration::from_nanos(1), Duration::from_millis(20)] {
            let measured = measure_load(&model, compute, time).unwrap();
            assert!(measured.are_times(), "{measured:?}");
            let (costs, projection) = (measured.costs(), measured.projection());
            assert!(costs.verify_us(8, 1) >= costs.verify_us(1, 1), "{costs:?}");
            assert!(projection.verify_us(1, 1) > 0.0);
        }
    }
}
