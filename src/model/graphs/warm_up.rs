//! Measures the times of loads and calls, separately and concurrently.

use std::sync::atomic::AtomicBool;

use super::slots::{TracedWork, WorkKind};
use super::{GraphsError, StaticGraphs, Switching};
use crate::kernels::KvType;
use crate::model::transformer::{Compute, ForwardError, Model, PassEnd};
use crate::model::{Batch, KvCache, VariedTokens, Workspace};
use crate::schedule::{BlockTimes, GraphKind, GraphTimes, SwitchTimes};

/// The longer of the two contexts at which calls are measured, in tokens: within the range of prompts of a
/// few thousand tokens.
const CONTEXT: usize = 1024;

/// Limits of plausible slowdowns. Values beyond them come from other load on the machine.
const SLOWDOWNS: std::ops::RangeInclusive<f64> = 1.0..=10.0;

impl StaticGraphs {
    /// Measures the times for making plans, and sets them under the name `label`.
    ///
    /// Every graph is loaded and called `rounds` times; the result is the median. Afterwards every block
    /// holds its prefill graph.
    ///
    /// # Errors
    /// [`GraphsError::Layers`] if a graph cannot be loaded, [`GraphsError::Alloc`] if a KV cache cannot be
    /// allocated.
    pub(crate) fn measure(
        &self,
        model: &Model,
        compute: Compute<'_>,
        label: String,
        rounds: usize,
    ) -> Result<SwitchTimes, GraphsError> {
        let mut probe = Probe::new(self, model, compute)?;
        // The first loads touch fresh memory and are slower than later ones.
        self.load_all(GraphKind::Prefill)?;
        let mut loads = [const { Vec::new() }; 2];
        let (mut excess_us, mut overlap_us) = ([0.0; 2], [0.0; 2]);
        let mut calls = None;
        for _ in 0..rounds.max(1) {
            for graph in [GraphKind::Verify, GraphKind::Prefill] {
                self.start_trace();
                self.load_all(graph)?;
                loads[graph as usize].push(self.trace());
                if graph == GraphKind::Verify && calls.is_none() {
                    calls = Some(probe.calls(GraphKind::Verify)?);
                }
            }
        }
        let calls = [probe.calls(GraphKind::Prefill)?, calls.expect("a round was made")];
        let blocks: Vec<BlockTimes> = (0..self.piece().blocks.len())
            .map(|block| {
                let of = |graph: GraphKind| {
                    let loads = &loads[graph as usize];
                    let load_us =
                        median(loads.iter().map(|trace| us(trace, WorkKind::Load, block)).collect());
                    let [near, far] = calls[graph as usize].each_ref().map(|us| us[block]);
                    let per_token = ((far - near) / probe.context.max(1) as f64).max(0.0);
                    GraphTimes { load_us, compute_us: near, compute_us_per_token: per_token }
                };
                BlockTimes { prefill: of(GraphKind::Prefill), verify: of(GraphKind::Verify) }
            })
            .collect();
        for _ in 0..rounds.max(1) {
            let trace = probe.both()?;
            let (alone, beside) = excesses(&trace, &blocks);
            for kind in [0, 1] {
                excess_us[kind] += alone[kind];
                overlap_us[kind] += beside;
            }
        }
        let slowdown = |kind: usize| {
            // While loads and computation run concurrently, each does 1/slowdown of the work that it would do
            // alone.
            let share = 1.0 - excess_us[kind] / overlap_us[kind].max(1.0);
            (1.0 / share.max(0.01)).clamp(*SLOWDOWNS.start(), *SLOWDOWNS.end())
        };
        let piece = self.piece();
        let mut times = SwitchTimes::new(label, piece.prefill_len, piece.verify_len, blocks);
        times.compute_beside_load = slowdown(0);
        times.load_beside_compute = slowdown(1);
        self.set_times(times.clone());
        Ok(times)
    }
}

/// Runs passes over its own KV cache.
struct Probe<'a> {
    graphs: &'a StaticGraphs,
    model: &'a Model,
    compute: Compute<'a>,
    kv: KvCache,
    workspace: Workspace,
    /// The longer context.
    context: usize,
}

impl<'a> Probe<'a> {
    fn new(graphs: &'a StaticGraphs, model: &'a Model, compute: Compute<'a>) -> Result<Self, GraphsError> {
        let config = model.config();
        let rows = graphs.piece().prefill_len.max(graphs.piece().verify_len);
        let context = CONTEXT.min(config.context_len.saturating_sub(rows));
        let mut kv = KvCache::new(config, KvType::F16, context + rows).map_err(|_| {
            let bytes = KvCache::bytes_per_slot(config, KvType::F16).saturating_mul((context + rows) as u64);
            crate::kernels::AllocError::new(usize::try_from(bytes).unwrap_or(usize::MAX))
        })?;
        // Memory that was never written is read faster.
        kv.fill(compute.kernels, 0.5);
        Ok(Self { graphs, model, compute, kv, workspace: Workspace::new(config), context })
    }

    /// µs of each block's call, at the start of a context and at the longer one; each the median of three.
    fn calls(&mut self, graph: GraphKind) -> Result<[Vec<f64>; 2], GraphsError> {
        let (n_blocks, far) = (self.graphs.piece().blocks.len(), self.context);
        let mut at = |context: usize| -> Result<Vec<f64>, GraphsError> {
            let mut traces = Vec::new();
            for _ in 0..3 {
                traces.push(self.call(graph, context)?);
            }
            let of = |block| median(traces.iter().map(|trace| us(trace, WorkKind::Compute, block)).collect());
            Ok((0..n_blocks).map(of).collect())
        };
        Ok([at(0)?, at(far)?])
    }

    /// Runs one chunk in prefill graphs. After a block's part of the chunk, its verify graph is loaded.
    /// Afterwards all blocks hold prefill graphs again.
    fn both(&mut self) -> Result<Vec<TracedWork>, GraphsError> {
        let switching = Switching::Asynchronous;
        let before = std::mem::replace(&mut self.graphs.lock_state().switching, switching);
        let (n_rows, never) = (self.graphs.piece().prefill_len, AtomicBool::new(false));
        self.graphs.expect_prefill(0, n_rows, n_rows, &never);
        let result = self.call(GraphKind::Prefill, 0);
        self.graphs.lock_state().switching = before;
        result?;
        self.graphs.wait()?;
        let trace = self.graphs.trace();
        self.graphs.load_all(GraphKind::Prefill)?;
        Ok(trace)
    }

    fn call(&mut self, graph: GraphKind, context: usize) -> Result<Vec<TracedWork>, GraphsError> {
        self.kv.assume_len(context);
        let mut batch = Batch::new();
        let mut tokens = VariedTokens::new(self.model.config().vocab_size);
        batch.set_chain(context, &tokens.draw(self.graphs.piece().graph_len(graph)));
        self.graphs.start_trace();
        let never = AtomicBool::new(false);
        let (kv, workspace, end) = (&mut self.kv, &mut self.workspace, PassEnd::KeysAndValues);
        match self.model.forward(self.compute, &batch, kv, workspace, end, &never) {
            Ok(()) => Ok(self.graphs.trace()),
            Err(ForwardError::Layers(error)) => Err(error.into()),
            Err(error) => unreachable!("the rows fit the cache and nobody cancels: {error}"),
        }
    }
}

fn us(trace: &[TracedWork], kind: WorkKind, block: usize) -> f64 {
    let of_block = trace.iter().filter(|work| work.kind == kind && work.block == block);
    of_block.map(|work| work.end_us - work.start_us).sum()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

/// The extra time of computation and of loads in `trace`, compared with each alone, and the time during which
/// both ran, in µs.
fn excesses(trace: &[TracedWork], blocks: &[BlockTimes]) -> ([f64; 2], f64) {
    let mut excess_us = [0.0; 2];
    for work in trace {
        let (kind, alone) = match work.kind {
            WorkKind::Compute => (0, blocks[work.block].of(work.graph).compute_us),
            WorkKind::Load => (1, blocks[work.block].of(work.graph).load_us),
        };
        excess_us[kind] += work.end_us - work.start_us - alone;
    }
    let of = |kind| trace.iter().filter(move |work| work.kind == kind);
    let overlap_us = of(WorkKind::Compute).flat_map(|compute| {
        of(WorkKind::Load)
            .map(|load| (load.end_us.min(compute.end_us) - load.start_us.max(compute.start_us)).max(0.0))
    });
    (excess_us, overlap_us.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_works_cost_each_other() {
        let graph = |load_us, compute_us| GraphTimes { load_us, compute_us, compute_us_per_token: 0.0 };
        let block = BlockTimes { prefill: graph(10.0, 20.0), verify: graph(10.0, 4.0) };
        let work = |kind, block, graph, start_us, end_us| TracedWork { kind, block, graph, start_us, end_us };
        let trace = [
            work(WorkKind::Compute, 0, GraphKind::Prefill, 0.0, 20.0),
            work(WorkKind::Load, 0, GraphKind::Verify, 20.0, 32.0),
            // 6 µs longer than alone, in the 12 µs during which both ran.
            work(WorkKind::Compute, 1, GraphKind::Prefill, 20.0, 46.0),
        ];
        assert_eq!(excesses(&trace, &[block, block]), ([6.0, 2.0], 12.0));
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
    }
}
