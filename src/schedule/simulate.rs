//! How long a prefill takes by a plan: two machines, one that computes and one that loads, from event to event.
//!
//! Computing goes through the blocks of each chunk in order. Loads are done in the plan's order, one at a time; each waits
//! until its block has computed the chunk that the plan names, and from then on the block has no graph until the load is
//! done. While both are at work each is slowed down as [`SwitchTimes`] says.

use thiserror::Error;

use super::plan::{Load, Plan};
use super::times::{GraphKind, Prefill, SwitchTimes};

/// What a simulated prefill takes, in µs.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// Until every chunk is computed and every load done.
    pub total_us: f64,
    /// Until every chunk is computed.
    pub computed_us: f64,
    /// How long computation had to wait for loads before that.
    pub stalled_us: f64,
    /// What the computation takes by itself, with the graphs that the plan gives it.
    pub work_us: f64,
}

/// Why a plan is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A load names a block or a chunk that there is not.
    #[error(
        "load {load_idx} names block {block} after chunk {after:?}; there are {n_blocks} blocks and {n_chunks} chunks"
    )]
    OutOfRange {
        /// Its place in the plan.
        load_idx: usize,
        /// The block that it names.
        block: usize,
        /// The chunk that it names.
        after: Option<usize>,
        /// Blocks there are.
        n_blocks: usize,
        /// Chunks there are.
        n_chunks: usize,
    },
    /// A load does not come after the one of the same block before it.
    #[error("load {load_idx} of block {block} does not come after the load of that block before it")]
    NotRising {
        /// Its place in the plan.
        load_idx: usize,
        /// The block.
        block: usize,
    },
    /// Computation waits for a load, which waits for a load that waits for the computation.
    #[error("load {load_idx} waits for computation that waits for it")]
    Deadlock {
        /// Its place in the plan.
        load_idx: usize,
    },
}

/// Follows `plan` through `prefill`, the blocks beginning with the graphs `initial`.
///
/// # Errors
/// [`PlanError`]: the plan cannot be followed.
///
/// # Panics
/// If there are not as many initial graphs as blocks.
pub fn simulate(
    times: &SwitchTimes,
    prefill: &Prefill,
    initial: &[GraphKind],
    plan: &Plan,
) -> Result<Timeline, PlanError> {
    let work = Work::new(times, prefill, initial, plan)?;
    let (n_parts, n_loads) = (work.parts.len(), plan.loads.len());
    let (mut now, mut computed_us, mut stalled_us) = (0.0, 0.0, 0.0);
    // What is at work, and what is left of it when it works alone.
    let (mut part_idx, mut load_idx) = (0, 0);
    let mut part_left = work.parts.first().map_or(0.0, |part| part.us);
    let mut load_left = plan.loads.first().map_or(0.0, |load| work.load_us(load));
    while part_idx < n_parts || load_idx < n_loads {
        let computes = work.parts.get(part_idx).is_some_and(|part| part.loads_before <= load_idx);
        let loads = plan.loads.get(load_idx).is_some_and(|load| work.starts_at(load) <= part_idx);
        if !computes && !loads {
            return Err(PlanError::Deadlock { load_idx });
        }
        let slowdown = |beside: f64| if computes && loads { beside } else { 1.0 };
        let part_slowdown = slowdown(times.compute_beside_load);
        let load_slowdown = slowdown(times.load_beside_compute);
        let part_ends = if computes { part_left * part_slowdown } else { f64::INFINITY };
        let load_ends = if loads { load_left * load_slowdown } else { f64::INFINITY };
        let step = part_ends.min(load_ends);
        now += step;
        if part_idx < n_parts && !computes {
            stalled_us += step;
        }
        if computes {
            part_left -= step / part_slowdown;
        }
        if loads {
            load_left -= step / load_slowdown;
        }
        if part_ends <= step {
            part_idx += 1;
            part_left = work.parts.get(part_idx).map_or(0.0, |part| part.us);
            computed_us = now;
        }
        if load_ends <= step {
            load_idx += 1;
            load_left = plan.loads.get(load_idx).map_or(0.0, |load| work.load_us(load));
        }
    }
    let work_us = work.parts.iter().map(|part| part.us).sum();
    Ok(Timeline { total_us: now, computed_us, stalled_us, work_us })
}

/// A block's part of a chunk.
struct PlannedPart {
    us: f64,
    /// How many loads of the plan must be done before.
    loads_before: usize,
}

/// What there is to do, and what waits for what.
struct Work<'a> {
    times: &'a SwitchTimes,
    /// Chunk after chunk, in each block after block.
    parts: Vec<PlannedPart>,
}

impl<'a> Work<'a> {
    fn new(
        times: &'a SwitchTimes,
        prefill: &Prefill,
        initial: &[GraphKind],
        plan: &Plan,
    ) -> Result<Self, PlanError> {
        let (n_blocks, n_chunks) = (times.blocks.len(), prefill.chunks.len());
        assert_eq!(initial.len(), n_blocks, "an initial graph for each block");
        // Of each block its loads in order, with their places in the plan.
        let mut loads_of: Vec<Vec<(usize, &Load)>> = vec![Vec::new(); n_blocks];
        for (load_idx, load) in plan.loads.iter().enumerate() {
            let Load { block, after, .. } = *load;
            if block >= n_blocks || after.is_some_and(|chunk| chunk >= n_chunks) {
                return Err(PlanError::OutOfRange { load_idx, block, after, n_blocks, n_chunks });
            }
            if loads_of[block].last().is_some_and(|(_, before)| before.after >= after) {
                return Err(PlanError::NotRising { load_idx, block });
            }
            loads_of[block].push((load_idx, load));
        }
        let mut parts = Vec::with_capacity(n_blocks * n_chunks);
        for (chunk_idx, (context, rows)) in prefill.with_contexts().enumerate() {
            for (block_idx, loads) in loads_of.iter().enumerate() {
                let newest =
                    loads.iter().rev().find(|(_, load)| load.after.is_none_or(|after| after < chunk_idx));
                let graph = newest.map_or(initial[block_idx], |(_, load)| load.graph);
                let us = times.chunk_us(block_idx, graph, context, rows);
                parts.push(PlannedPart { us, loads_before: newest.map_or(0, |(load_idx, _)| load_idx + 1) });
            }
        }
        Ok(Self { times, parts })
    }

    /// Parts that must be computed before the load may start.
    fn starts_at(&self, load: &Load) -> usize {
        load.starts_at(self.times.blocks.len())
    }

    fn load_us(&self, load: &Load) -> f64 {
        self.times.blocks[load.block].of(load.graph).load_us
    }
}
