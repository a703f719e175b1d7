//! Planning: synchronous, asynchronous and progressive switching.

use std::ops::Range;

use super::simulate::{Load, Plan, simulate};
use super::times::{GraphKind, Prefill, SwitchTimes};

/// Synchronous switching: after the prefill, loads the verify graph of every block that holds a prefill
/// graph.
pub fn synchronous(prefill: &Prefill, initial: &[GraphKind]) -> Plan {
    // No computation follows the last part of the last block, so a load that waits for it is not hidden.
    let mut plan = asynchronous(prefill, initial);
    let last = initial.len().wrapping_sub(1);
    plan.loads.sort_by_key(|load| load.block != last);
    plan
}

/// Naive asynchronous switching: each block's verify graph is loaded after the block's last chunk, while the
/// following blocks compute.
pub fn asynchronous(prefill: &Prefill, initial: &[GraphKind]) -> Plan {
    let after = prefill.chunks.len().checked_sub(1);
    let blocks = (0..initial.len()).filter(|&block| initial[block] != GraphKind::Verify);
    Plan { loads: blocks.map(|block| Load { block, graph: GraphKind::Verify, after }).collect() }
}

/// Progressive switching, planned greedily.
///
/// After a block has computed its part of a chunk, its verify graph is loaded. The next block to change comes
/// after the fewest blocks whose computation hides that load (CoordGen eqs. 1 and 2):
///
/// ```text
/// next(i) = i + min { k : compute(i + 1) + … + compute(i + k) ≥ load(i) }
/// ```
///
/// Here, a block that has already changed computes in short calls. Blocks that have not changed before the
/// last chunk change directly after it. With an earlier start, more blocks change in time, but more parts are
/// computed in short calls. Several starts are therefore simulated, and the best is kept. In a short prompt,
/// some blocks may change before they compute anything. If blocks hold verify graphs at first (after an
/// earlier request), plans that load their prefill graphs are compared with plans that keep them.
pub fn progressive(times: &SwitchTimes, prefill: &Prefill, initial: &[GraphKind]) -> Plan {
    let (n_blocks, n_chunks) = (initial.len(), prefill.chunks.len());
    let parts = PartTimes::new(times, prefill);
    let mut best = (f64::INFINITY, Plan::default());
    let mut consider = |loads: Vec<Load>| {
        let plan = Plan { loads };
        // Plans made here are valid; an invalid one would be ignored.
        if let Ok(timeline) = simulate(times, prefill, initial, &plan)
            && timeline.total_us < best.0
        {
            best = (timeline.total_us, plan);
        }
    };
    // Synchronous switching may be best if loads and computation slow each other down strongly.
    consider(synchronous(prefill, initial).loads);
    let prepared: Vec<Load> = (0..n_blocks)
        .filter(|&block| initial[block] == GraphKind::Verify)
        .map(|block| Load { block, graph: GraphKind::Prefill, after: None })
        .collect();
    let all_prefill = vec![GraphKind::Prefill; n_blocks];
    let last_begin = parts.len().saturating_sub(n_blocks);
    for begin in (0..=last_begin).rev().take(BEGINNINGS_MAX) {
        consider(greedy(times, &parts, initial, begin, 0..0));
        if !prepared.is_empty() {
            let mut loads = prepared.clone();
            loads.extend(greedy(times, &parts, &all_prefill, begin, 0..0));
            consider(loads);
        }
    }
    if n_chunks <= AT_ONCE_CHUNKS_MAX && n_blocks <= AT_ONCE_BLOCKS_MAX {
        for first in 0..n_blocks {
            for end in first + 1..=n_blocks {
                for begin in 0..=last_begin {
                    consider(greedy(times, &parts, initial, begin, first..end));
                }
            }
        }
    }
    best.1
}

/// Maximum number of simulated starts, counted from the end: more than any device needs. Planning takes far
/// less time than a chunk.
const BEGINNINGS_MAX: usize = 512;
/// With more chunks than this, no block changes before it computes, because that would gain nothing.
const AT_ONCE_CHUNKS_MAX: usize = 2;
/// With more blocks than this, no block changes before it computes, because there would be too many choices.
const AT_ONCE_BLOCKS_MAX: usize = 32;

/// The greedy rule, starting at the part `begin`. The blocks `at_once` change before they compute anything.
fn greedy(
    times: &SwitchTimes,
    parts: &PartTimes,
    initial: &[GraphKind],
    begin: usize,
    at_once: Range<usize>,
) -> Vec<Load> {
    let n_blocks = initial.len();
    let mut graphs = initial.to_vec();
    let mut loads = Vec::new();
    // Load time that is not yet hidden by computation.
    let mut unhidden_us = 0.0f64;
    let mut change = |graphs: &mut [GraphKind], unhidden_us: &mut f64, block: usize, after| {
        if graphs[block] == GraphKind::Prefill {
            graphs[block] = GraphKind::Verify;
            *unhidden_us = unhidden_us.max(0.0) + times.blocks[block].verify.load_us;
            loads.push(Load { block, graph: GraphKind::Verify, after });
        }
    };
    at_once.for_each(|block| change(&mut graphs, &mut unhidden_us, block, None));
    for part in 0..parts.len() {
        let (chunk, block) = (part / n_blocks, part % n_blocks);
        unhidden_us -= parts.us(part, graphs[block]);
        let is_last = part + n_blocks >= parts.len();
        if is_last || (part >= begin && unhidden_us <= 0.0) {
            change(&mut graphs, &mut unhidden_us, block, Some(chunk));
        }
    }
    loads
}

/// The time of each part of a prefill with either graph, µs.
struct PartTimes {
    /// By part, then by graph.
    us: Vec<[f64; 2]>,
}

impl PartTimes {
    fn new(times: &SwitchTimes, prefill: &Prefill) -> Self {
        let parts = prefill.with_contexts().flat_map(|(context, rows)| {
            (0..times.blocks.len())
                .map(move |block| GraphKind::ALL.map(|graph| times.chunk_us(block, graph, context, rows)))
        });
        Self { us: parts.collect() }
    }

    fn len(&self) -> usize {
        self.us.len()
    }

    fn us(&self, part: usize, graph: GraphKind) -> f64 {
        self.us[part][graph as usize]
    }
}
