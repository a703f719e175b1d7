//! Event simulation of a prefill under a plan, with one machine for computation and one for loads.
//!
//! The computation passes through the blocks of each chunk in order. Loads run one at a time in the plan's
//! order. A load waits until its block has computed the chunk that the plan names. From then on, the block
//! has no graph until the load has ended. While both machines work, each is slower by its factor in
//! [`SwitchTimes`].

use thiserror::Error;

use super::times::{GraphKind, Prefill, SwitchTimes};

/// A load: a graph that replaces the other graph of its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// The block.
    pub block: usize,
    /// The graph to load.
    pub graph: GraphKind,
    /// The load may start after the block has computed this chunk. `None`: before the first chunk.
    pub after: Option<usize>,
}

impl Load {
    /// The number of parts (a chunk in a block) that must be computed before the load may start.
    pub(crate) fn starts_at(&self, n_blocks: usize) -> usize {
        self.after.map_or(0, |chunk| chunk * n_blocks + self.block + 1)
    }
}

/// Loads in their order. They run one at a time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The loads.
    pub loads: Vec<Load>,
}

/// The times of a simulated prefill, in µs.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// Time until all chunks are computed and all loads have ended.
    pub total_us: f64,
    /// Time until all chunks are computed.
    pub computed_us: f64,
    /// Time in which the computation waited for loads.
    pub stalled_us: f64,
    /// Time of the computation alone, with the graphs of the plan.
    pub work_us: f64,
}

/// A plan is not valid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A load names a block or a chunk that does not exist.
    #[error(
        "load {load_idx} names block {block} after chunk {after:?}; there are {n_blocks} blocks and {n_chunks} chunks"
    )]
    OutOfRange {
        /// Its index in the plan.
        load_idx: usize,
        /// The block.
        block: usize,
        /// The chunk.
        after: Option<usize>,
        /// The number of blocks.
        n_blocks: usize,
        /// The number of chunks.
        n_chunks: usize,
    },
    /// A load does not start after a later chunk than the previous load of its block.
    #[error("load {load_idx} of block {block} does not come after the load of that block before it")]
    NotRising {
        /// Its index in the plan.
        load_idx: usize,
        /// The block.
        block: usize,
    },
    /// A deadlock: the computation waits for a load, and an earlier load of the plan waits for the
    /// computation.
    #[error("load {load_idx} waits for computation that waits for it")]
    Deadlock {
        /// Its index in the plan.
        load_idx: usize,
    },
}

/// Simulates `prefill` under `plan`. The blocks hold the graphs `initial` at first.
///
/// # Errors
/// [`PlanError`] if the plan is not valid.
///
/// # Panics
/// If the number of initial graphs is not the number of blocks.
pub fn simulate(
    times: &SwitchTimes,
    prefill: &Prefill,
    initial: &[GraphKind],
    plan: &Plan,
) -> Result<Timeline, PlanError> {
    let work = Work::new(times, prefill, initial, plan)?;
    let (n_parts, n_loads) = (work.parts.len(), plan.loads.len());
    let (mut now, mut computed_us, mut stalled_us) = (0.0, 0.0, 0.0);
    // The current work of each machine, and its remaining time without slowdown.
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
    /// The number of the plan's loads that must have ended before.
    loads_before: usize,
}

/// All parts and loads, and their dependencies.
struct Work<'a> {
    times: &'a SwitchTimes,
    /// Ordered by chunk, then by block.
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
        // The loads of each block in order, with their indices in the plan.
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

    /// The number of parts that must be computed before the load may start.
    fn starts_at(&self, load: &Load) -> usize {
        load.starts_at(self.times.blocks.len())
    }

    fn load_us(&self, load: &Load) -> f64 {
        self.times.blocks[load.block].of(load.graph).load_us
    }
}
