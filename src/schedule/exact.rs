//! Finds the best plan by exhaustive search, as a reference for the greedy plan on small instances.
//!
//! A plan changes each block once, before the first chunk or after one of the chunks, and orders the loads.
//! There are (c + 1)ᵇ · b! plans for `b` blocks and `c` chunks. The computation alone is a lower bound of a
//! plan's time, so choices of chunks are pruned if their computation takes longer than the best plan so far.

use super::simulate::simulate;
use super::simulate::{Load, Plan};
use super::times::{GraphKind, Prefill, SwitchTimes};

/// Maximum number of plans to simulate: about a second.
const PLANS_MAX: u64 = 500_000;

/// The fastest plan from prefill graphs in every block to verify graphs in every block, with its time in µs.
/// `None` if there are too many plans.
pub fn exact(times: &SwitchTimes, prefill: &Prefill) -> Option<(Plan, f64)> {
    let (n_blocks, n_chunks) = (times.blocks.len(), prefill.chunks.len());
    let n_choices = (n_chunks as u64 + 1).checked_pow(n_blocks as u32)?;
    let n_plans = (1..=n_blocks as u64).try_fold(n_choices, u64::checked_mul)?;
    if n_plans > PLANS_MAX {
        return None;
    }
    let mut search = Search { times, prefill, best: (Plan::default(), f64::INFINITY) };
    search.choose(&mut Vec::new());
    Some(search.best)
}

struct Search<'a> {
    times: &'a SwitchTimes,
    prefill: &'a Prefill,
    best: (Plan, f64),
}

impl Search<'_> {
    /// Chooses the chunk of each block in turn.
    fn choose(&mut self, loads: &mut Vec<Load>) {
        let block = loads.len();
        if self.least_us(loads) >= self.best.1 {
            return;
        }
        if block == self.times.blocks.len() {
            return self.order(&mut Vec::new(), loads);
        }
        for after in std::iter::once(None).chain((0..self.prefill.chunks.len()).map(Some)) {
            loads.push(Load { block, graph: GraphKind::Verify, after });
            self.choose(loads);
            loads.pop();
        }
    }

    /// Tries every order of the loads.
    fn order(&mut self, ordered: &mut Vec<Load>, left: &mut Vec<Load>) {
        if left.is_empty() {
            let plan = Plan { loads: ordered.clone() };
            let initial = vec![GraphKind::Prefill; self.times.blocks.len()];
            // Many orders deadlock; the simulation rejects them.
            if let Ok(timeline) = simulate(self.times, self.prefill, &initial, &plan)
                && timeline.total_us < self.best.1
            {
                self.best = (plan, timeline.total_us);
            }
            return;
        }
        for i in 0..left.len() {
            ordered.push(left.remove(i));
            self.order(ordered, left);
            left.insert(i, ordered.pop().expect("it was pushed above"));
        }
    }

    /// A lower bound: the computation of the chosen blocks, and the faster graph of each other block.
    fn least_us(&self, loads: &[Load]) -> f64 {
        let mut us = 0.0;
        for (chunk_idx, (context, rows)) in self.prefill.with_contexts().enumerate() {
            for block in 0..self.times.blocks.len() {
                let of = |graph| self.times.chunk_us(block, graph, context, rows);
                us += match loads.get(block) {
                    Some(load) if load.after.is_none_or(|after| after < chunk_idx) => of(GraphKind::Verify),
                    Some(_) => of(GraphKind::Prefill),
                    None => of(GraphKind::Prefill).min(of(GraphKind::Verify)),
                };
            }
        }
        us
    }
}
