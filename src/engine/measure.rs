//! Measures row costs while an engine is loaded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::draft::CostProfile;
use crate::engine::error::EngineError;
use crate::kernels::KvType;
use crate::model::graphs::{GraphsError, StaticGraphs};
use crate::model::transformer::{Compute, ForwardError, PassEnd};
use crate::model::{Batch, Checkpoint, Interlude, KvCache, Model, Workspace};
use crate::profile::cpu_name;
use crate::schedule::{GraphKind, SwitchTimes};
use crate::token::TokenId;

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

/// Rows of the measured projections: waves are no longer than this unless a session requests it.
const PROJECTION_ROWS: [usize; 4] = [1, 8, 2, 4];

/// The context behind which rows are measured: long enough that attention shows beside the weights, and short enough
/// that its cache is written in a few ms.
const CONTEXT: usize = 512;

/// Batch lengths measured behind the context: the first of `COST_ROWS`.
const CONTEXT_ROWS: [usize; COST_LENGTHS_MIN] = [COST_ROWS[0], COST_ROWS[1]];

/// Passes of one row that all measured passes together take: 27 on the development machine, where 32 rows take 5.
const PASSES: f64 = 30.0;

/// Bytes of layers that a measured pass reads at least, if the model has them: more than the last-level cache of a
/// laptop or a phone, so that the weights come from memory as in a whole pass.
const LAYER_BYTES_MIN: usize = 64 << 20;

/// What was measured while loading.
pub(super) struct LoadCosts {
    /// A step behind an empty context.
    pub(super) costs: CostProfile,
    pub(super) projection: CostProfile,
    /// `None`: not measured.
    pub(super) context: Option<ContextCosts>,
}

/// The part of a step's cost that grows with the context, relative to the step behind an empty one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ContextCosts {
    /// Per token of context, for each of `CONTEXT_ROWS`.
    per_token: [f32; CONTEXT_ROWS.len()],
}

impl ContextCosts {
    #[cfg(test)]
    pub(super) fn of(per_token: [f32; CONTEXT_ROWS.len()]) -> Self {
        Self { per_token }
    }

    /// The cost of `rows` rows behind `context` tokens, relative to an empty context.
    pub(crate) fn factor(&self, context: usize, rows: usize) -> f32 {
        let [low, high] = CONTEXT_ROWS;
        let weight = (rows.clamp(low, high) - low) as f32 / (high - low) as f32;
        let per_token = self.per_token[0] + weight * (self.per_token[1] - self.per_token[0]);
        1.0 + per_token * context as f32
    }
}

/// Costs without a measurement: each further row adds a quarter of the first one. Steps correct it.
pub(super) fn assumed_costs() -> CostProfile {
    CostProfile::from_measurements(&[1, 8, 32].map(|rows| (rows, 10_000.0 * (0.75 + 0.25 * rows as f32))))
}

/// Measures rows, projections and the context of a model in memory, in about `time`. At least two numbers of rows are
/// measured, so a model whose pass takes long exceeds the time.
///
/// All layers have the same shape, so passes end after a part of the layers if whole passes would take too long.
pub(super) fn measure_load(
    model: &Model,
    compute: Compute<'_>,
    time: Duration,
) -> Result<LoadCosts, EngineError> {
    if time.is_zero() {
        return Ok(LoadCosts {
            costs: assumed_costs(),
            projection: CostProfile::free_rows(1.0),
            context: None,
        });
    }
    let start = Instant::now();
    let is_over = |share: f64| start.elapsed() >= time.mul_f64(share);
    let projection = measure_projection(model, compute, || is_over(0.3))?;
    let mut probe = LayerProbe::new(model, compute)?;
    probe.choose_layers(time.saturating_sub(start.elapsed()))?;
    let step_us = |n_rows: usize, us: f32| us + projection.verify_us(n_rows.min(8), 1);
    let mut steps: Vec<(usize, f32)> = Vec::new();
    let mut context = None;
    for n_rows in COST_ROWS {
        if is_over(0.8) && steps.len() >= COST_LENGTHS_MIN {
            break;
        }
        let us = probe.least_us(0, n_rows, || is_over(1.0))?;
        steps.push((n_rows, step_us(n_rows, us)));
        // The other lengths follow the context, so that it is measured on slow machines too.
        if steps.len() == COST_LENGTHS_MIN && probe.fill() {
            let mut per_token = [0.0; CONTEXT_ROWS.len()];
            for (per_token, (n_rows, empty_us)) in per_token.iter_mut().zip(&steps) {
                let us = probe.least_us(probe.context, *n_rows, || is_over(1.0))?;
                let added = (step_us(*n_rows, us) - empty_us).max(0.0);
                *per_token = added / (empty_us * probe.context as f32);
            }
            context = Some(ContextCosts { per_token });
        }
    }
    let costs = CostProfile::from_measurements(&steps);
    Ok(LoadCosts { costs, projection, context })
}

/// Runs the first layers of a model.
struct LayerProbe<'a> {
    model: &'a Model,
    compute: Compute<'a>,
    kv: KvCache,
    workspace: Workspace,
    batch: Batch,
    /// Layers that a pass runs.
    n_layers: usize,
    /// Slots for a context.
    context: usize,
}

impl<'a> LayerProbe<'a> {
    fn new(model: &'a Model, compute: Compute<'a>) -> Result<Self, EngineError> {
        let rows_max = COST_ROWS.into_iter().max().unwrap_or(1);
        let context = CONTEXT.min(model.config().context_len.saturating_sub(rows_max));
        let kv = KvCache::new(model.config(), KvType::F16, context + rows_max)?;
        let (workspace, batch) = (Workspace::new(model.config()), Batch::new());
        Ok(Self { model, compute, kv, workspace, batch, n_layers: model.config().n_layers(), context })
    }

    /// Chooses the number of layers for which all passes together take about `time`. The passes that find it out are
    /// the warm-up.
    fn choose_layers(&mut self, time: Duration) -> Result<(), EngineError> {
        let all = self.model.config().n_layers();
        let layer_bytes = (self.model.memory_usage() / all).max(1);
        let least = LAYER_BYTES_MIN.div_ceil(layer_bytes).clamp(1, all);
        self.n_layers = least;
        self.us(0, 1)?;
        let layer_s = f64::from(self.us(0, 1)?) * 1e-6 / all as f64;
        let affordable = time.as_secs_f64() * 0.8 / (PASSES * layer_s.max(1e-9));
        self.n_layers = (affordable as usize).clamp(least, all);
        Ok(())
    }

    /// Writes a context to the cache, because memory that was never written costs nothing to read; `false` if the
    /// model's context is too short.
    fn fill(&mut self) -> bool {
        if self.context > 0 {
            self.kv.fill_layers(self.n_layers, self.compute.kernels, 0.5);
        }
        self.context > 0
    }

    /// The time of all layers behind `context` tokens, in µs: the least of two runs, or of one if the time is over.
    fn least_us(
        &mut self,
        context: usize,
        n_rows: usize,
        is_over: impl Fn() -> bool,
    ) -> Result<f32, EngineError> {
        let us = self.us(context, n_rows)?;
        Ok(if is_over() { us } else { us.min(self.us(context, n_rows)?) })
    }

    fn us(&mut self, context: usize, n_rows: usize) -> Result<f32, EngineError> {
        self.kv.assume_len(context);
        self.batch.set_chain(context, &vec![TokenId(0); n_rows]);
        let cancel = AtomicBool::new(false);
        let all = self.model.config().n_layers();
        let mut end =
            EndBefore { layer_idx: self.n_layers, cancel: &cancel, start: Instant::now(), us: None };
        let Self { model, compute, batch, kv, workspace, .. } = self;
        let interlude = Some(&mut end as &mut dyn Interlude);
        match model.forward_through(*compute, batch, kv, workspace, PassEnd::Hidden, interlude, &cancel) {
            Ok(()) => {}
            // The pass ended where it should.
            Err(ForwardError::Cancelled) if end.us.is_some() => {}
            Err(error) => return Err(error.into()),
        }
        let us = end.us.unwrap_or_else(|| end.start.elapsed().as_secs_f32() * 1e6);
        Ok(us * all as f32 / self.n_layers as f32)
    }
}

/// Ends a pass before a layer, and notes the time.
struct EndBefore<'a> {
    layer_idx: usize,
    cancel: &'a AtomicBool,
    start: Instant,
    us: Option<f32>,
}

impl Interlude for EndBefore<'_> {
    fn layer_idx(&self) -> usize {
        self.layer_idx
    }

    fn look(&mut self, _compute: Compute<'_>, _hidden: &[f32], _kept: &mut Vec<u32>) {
        self.us = Some(self.start.elapsed().as_secs_f32() * 1e6);
        self.cancel.store(true, Ordering::Relaxed);
    }
}

/// Measures two batch lengths of a streamed model.
pub(super) fn measure_streamed(model: &Model, compute: Compute<'_>) -> Result<CostProfile, EngineError> {
    let mut kv = KvCache::new(model.config(), KvType::F16, COST_ROWS_STREAMED[1])?;
    let mut workspace = Workspace::new(model.config());
    let (mut batch, mut logits) = (Batch::new(), Vec::new());
    let never = AtomicBool::new(false);
    let mut run = |n_rows: usize| -> Result<f32, ForwardError> {
        let start = Instant::now();
        batch.set_chain(0, &vec![TokenId(0); n_rows]);
        model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::Hidden, &never)?;
        let rows: Vec<u32> = (0..n_rows.min(8) as u32).collect();
        model.logits(compute, &mut workspace, &rows, &mut logits)?;
        Ok(start.elapsed().as_secs_f32() * 1e6)
    };
    // The first pass fixes the ring's order and touches the memory.
    run(1)?;
    let measured = COST_ROWS_STREAMED.map(|n_rows| run(n_rows).map(|us| (n_rows, us)));
    Ok(CostProfile::from_measurements(&measured.into_iter().collect::<Result<Vec<_>, _>>()?))
}

/// Measures the projection of a few row counts: the minimum of two runs each, after a warm-up. Two counts at least,
/// then as many as `is_over` leaves time for.
pub(super) fn measure_projection(
    model: &Model,
    compute: Compute<'_>,
    is_over: impl Fn() -> bool,
) -> Result<CostProfile, EngineError> {
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
    Ok(CostProfile::from_measurements(&measured))
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
        assert!(model.config().n_layers() > 1 && probe.fill());
        for n_layers in [1, model.config().n_layers(), 1] {
            probe.n_layers = n_layers;
            for (context, n_rows) in [(0, 1), (0, 32), (probe.context, 8)] {
                let us = probe.us(context, n_rows).unwrap();
                assert!(us > 0.0 && us.is_finite(), "{n_layers} layers, {n_rows} rows behind {context}");
            }
        }
        // However short the time is, some layers are measured.
        probe.choose_layers(Duration::ZERO).unwrap();
        assert!((1..=model.config().n_layers()).contains(&probe.n_layers));
    }

    #[test]
    fn a_context_adds_to_the_costs_in_proportion() {
        let costs = ContextCosts { per_token: [0.001, 0.008] };
        let factor = |context, rows| (costs.factor(context, rows) * 1000.0).round();
        assert_eq!([factor(0, 1), factor(0, 8), factor(0, 32)], [1000.0; 3]);
        assert_eq!([factor(100, 1), factor(100, 8), factor(100, 32)], [1100.0, 1800.0, 1800.0]);
        assert_eq!((factor(200, 1), factor(100, 0), factor(100, 2)), (1200.0, 1100.0, 1200.0));
    }

    #[test]
    fn at_least_two_lengths_are_measured_in_any_time() {
        let (model, pool) = (fixture(), Pool::new(1));
        let compute = Compute { kernels: Kernels::detect(), pool: &pool };
        for time in [Duration::from_nanos(1), Duration::from_millis(20)] {
            let LoadCosts { costs, projection, .. } = measure_load(&model, compute, time).unwrap();
            assert!(costs.verify_us(8, 1) >= costs.verify_us(1, 1), "{costs:?}");
            assert!(projection.verify_us(1, 1) > 0.0);
        }
    }
}
