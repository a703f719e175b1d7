//! Measures row costs while an engine is loaded.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::draft::CostProfile;
use crate::engine::error::EngineError;
use crate::kernels::KvType;
use crate::model::graphs::{GraphsError, StaticGraphs};
use crate::model::transformer::{Compute, ForwardError, PassEnd};
use crate::model::{Batch, Checkpoint, KvCache, Model, Workspace};
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

/// Batch lengths measured while loading. The builder interpolates between them.
const COST_ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Maximum seconds of the measurement; the remaining lengths are extrapolated, so that loading stays short.
const COST_BUDGET_S: f64 = 1.0;

/// Minimum number of lengths measured: a slope needs two.
const COST_LENGTHS_MIN: usize = 2;

/// Batch lengths measured for a streamed model. Its passes are long and vary with the disk, so a slope
/// between one row and two rows would be noise.
const COST_ROWS_STREAMED: [usize; 2] = [1, 32];

/// Measures forward pass and projection at a short context: the minimum of three runs per length, the first
/// as warm-up. One run per length if a run exceeds the time for all.
pub(super) fn measure_costs(model: &Model, compute: Compute<'_>) -> Result<CostProfile, EngineError> {
    let longest = COST_ROWS[COST_ROWS.len() - 1];
    let mut kv = KvCache::new(model.config(), KvType::F16, longest)?;
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
    if model.streamed().is_some() {
        // The first pass fixes the ring's order and touches the memory.
        run(1)?;
        let measured = COST_ROWS_STREAMED.map(|n_rows| run(n_rows).map(|us| (n_rows, us)));
        return Ok(CostProfile::from_measurements(&measured.into_iter().collect::<Result<Vec<_>, _>>()?));
    }
    let start = Instant::now();
    let mut measured: Vec<(usize, f32)> = Vec::new();
    for n_rows in COST_ROWS {
        let late = start.elapsed().as_secs_f64() > COST_BUDGET_S;
        if late && measured.len() >= COST_LENGTHS_MIN {
            break;
        }
        let mut least = f32::INFINITY;
        for _ in 0..if late { 1 } else { 3 } {
            least = least.min(run(n_rows)?);
        }
        measured.push((n_rows, least));
    }
    Ok(CostProfile::from_measurements(&measured))
}

/// Rows of the measured projections: waves are no longer than this unless a session requests it.
const PROJECTION_ROWS: [usize; 4] = [1, 2, 4, 8];

/// Measures the projection of a few row counts: the minimum of a few runs each, the first as warm-up.
pub(super) fn measure_projection(model: &Model, compute: Compute<'_>) -> Result<CostProfile, EngineError> {
    let longest = PROJECTION_ROWS[PROJECTION_ROWS.len() - 1];
    let mut kv = KvCache::new(model.config(), KvType::F16, longest)?;
    let mut workspace = Workspace::new(model.config());
    let (mut batch, mut logits) = (Batch::new(), Vec::new());
    let never = AtomicBool::new(false);
    batch.set_chain(0, &[TokenId(0); PROJECTION_ROWS[PROJECTION_ROWS.len() - 1]]);
    model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::Hidden, &never)?;
    let mut measured = Vec::new();
    for n_rows in PROJECTION_ROWS {
        let rows: Vec<u32> = (0..n_rows as u32).collect();
        let mut least = f32::INFINITY;
        for _ in 0..4 {
            let start = Instant::now();
            model.logits(compute, &mut workspace, &rows, &mut logits)?;
            least = least.min(start.elapsed().as_secs_f32() * 1e6);
        }
        measured.push((n_rows, least));
    }
    Ok(CostProfile::from_measurements(&measured))
}
