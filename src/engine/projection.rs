//! Projection on demand: the rows that the walk visits are projected onto the vocabulary in waves.
//!
//! The output matrix is the largest matrix of a small model. One wave reads it once: for the node that the
//! walk has reached, and for the likeliest nodes below it that pay. If the walk leaves the rows of this wave,
//! the next wave starts at the reached node.
//!
//! Lever projects as many rows per wave as cost no more than one row. Here the costs are measured, and they
//! rise in several steps rather than at one knee. A row therefore joins a wave if its added cost is less than
//! the cost of projecting it later times the probability that the walk reaches it.

use std::sync::atomic::AtomicBool;

use crate::cancel::CancelToken;
use crate::draft::{CostProfile, DraftTree, NodeIdx, NodeSet};
use crate::engine::shared::Shared;
use crate::engine::stats::Stopwatch;
use crate::model::Workspace;
use crate::model::transformer::{ForwardError, ProjectedPart};

/// The projected rows of a step.
pub(super) struct Projection {
    wave_rows_max: usize,
    /// Cost of projection by rows.
    costs: CostProfile,
    vocab_size: usize,
    /// Rows of the newest wave; the walk never returns to an earlier wave.
    rows: Vec<u32>,
    /// Rows of all waves of the step.
    n_projected: usize,
    /// Time of all waves of the step, µs.
    time_us: f64,
    /// `[rows of the wave, vocab_size]`
    logits: Vec<f32>,
}

/// The first wave of a step, to be projected with those of other generations.
pub(super) struct RootWave<'a> {
    pub(super) projection: &'a mut Projection,
    pub(super) workspace: &'a mut Workspace,
    pub(super) tree: &'a DraftTree,
    pub(super) cancel: &'a CancelToken,
}

impl Projection {
    /// Waves of up to `wave_rows_max` rows, whose costs are `costs`.
    pub(super) fn new(wave_rows_max: usize, costs: CostProfile, vocab_size: usize) -> Self {
        let (rows, logits) = (Vec::new(), Vec::new());
        Self { wave_rows_max, costs, vocab_size, rows, n_projected: 0, time_us: 0.0, logits }
    }

    /// Projects the waves at the roots of several trees with one reading of the output matrix, as far as they fit the
    /// waves of the first. If that fails, each walk projects its own.
    pub(super) fn project_roots(shared: &Shared, waves: &mut [RootWave<'_>]) {
        for wave in &mut *waves {
            wave.projection.plan_wave(wave.tree, NodeSet::ALL, NodeIdx::ROOT);
        }
        // The logits of a piece of a streamed matrix take the memory of a second wave.
        let n_shares = if shared.model.is_head_streamed() { 1 } else { 2 };
        let mut rest = waves;
        while let Some(first) = rest.first() {
            let rows_max = n_shares * first.projection.wave_rows_max;
            let mut n_rows = 0;
            let fits = |wave: &&RootWave<'_>| {
                n_rows += wave.projection.rows.len();
                n_rows <= rows_max
            };
            let n_waves = rest.iter().take_while(fits).count().max(1);
            let (together, others) = rest.split_at_mut(n_waves);
            Self::project_together(shared, together);
            rest = others;
        }
    }

    fn project_together(shared: &Shared, waves: &mut [RootWave<'_>]) {
        let cancel = waves[0].cancel;
        let (mut watch, mut us, mut n_rows) = (Stopwatch::start(), 0.0, 0);
        let parts = waves.iter_mut().map(|wave| {
            let Projection { rows, logits, .. } = &mut *wave.projection;
            n_rows += rows.len();
            ProjectedPart { workspace: &mut *wave.workspace, rows, out: logits }
        });
        let mut parts: Vec<ProjectedPart<'_>> = parts.collect();
        let projected = shared.model.logits_together(shared.compute(), &mut parts, cancel.flag());
        watch.lap(&mut us);
        for RootWave { projection, .. } in waves {
            if projected.is_err() {
                projection.rows.clear();
            }
            projection.n_projected += projection.rows.len();
            projection.time_us += us * projection.rows.len() as f64 / n_rows as f64;
        }
    }

    /// Starts a step.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.n_projected = 0;
        self.time_us = 0.0;
    }

    /// Frees the memory of the logits, between steps.
    pub(super) fn release(&mut self) {
        self.clear();
        self.logits = Vec::new();
    }

    /// Rows projected in this step so far.
    pub(super) fn n_projected(&self) -> usize {
        self.n_projected
    }

    /// Time of projection in this step so far, in µs.
    pub(super) fn time_us(&self) -> f64 {
        self.time_us
    }

    /// Returns the logits of `node`; the caller may modify them. `node` must be in `verified`, because only
    /// verified rows are projected.
    ///
    /// # Errors
    /// A streamed output matrix could not be read, or `cancel` was set meanwhile: the call may be repeated.
    pub(super) fn logits(
        &mut self,
        shared: &Shared,
        workspace: &mut Workspace,
        tree: &DraftTree,
        verified: NodeSet,
        node: NodeIdx,
        cancel: &AtomicBool,
    ) -> Result<&mut [f32], ForwardError> {
        let place = match self.rows.iter().position(|&row| row == node.0) {
            Some(place) => place,
            None => {
                self.plan_wave(tree, verified, node);
                let mut watch = Stopwatch::start();
                let (compute, rows) = (shared.compute(), &self.rows);
                let projected =
                    shared.model.logits_with_cancel(compute, workspace, rows, &mut self.logits, cancel);
                if projected.is_err() {
                    // The content of the buffer is undefined.
                    self.rows.clear();
                }
                projected?;
                watch.lap(&mut self.time_us);
                self.n_projected += self.rows.len();
                0 // The wave begins at this node.
            }
        };
        Ok(&mut self.logits[place * self.vocab_size..(place + 1) * self.vocab_size])
    }

    /// Chooses the rows of the wave that begins at `node`.
    fn plan_wave(&mut self, tree: &DraftTree, verified: NodeSet, node: NodeIdx) {
        self.rows.clear();
        self.rows.push(node.0);
        let (reach, alone_us) = (tree.reach()[node.index()], self.costs.verify_us(1, 1));
        // Parents precede their children.
        for row in node.0 + 1..tree.len() as u32 {
            let n_rows = self.rows.len();
            if n_rows >= self.wave_rows_max {
                break;
            }
            let row = NodeIdx(row);
            let goes_on = tree.parent(row).is_some_and(|parent| self.rows.contains(&parent.0));
            let added_us = self.costs.verify_us(n_rows + 1, 1) - self.costs.verify_us(n_rows, 1);
            let is_worth_it = added_us * reach <= tree.reach()[row.index()] * alone_us;
            if goes_on && is_worth_it && verified.contains(row) {
                self.rows.push(row.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_trees::TokenId;

    /// A root with the path 1, 2, 3 and the leaf 4, with the given reach probabilities.
    fn tree() -> DraftTree {
        let mut tree = DraftTree::new(TokenId(0));
        let first = tree.push(NodeIdx::ROOT, TokenId(1), 0.9, 0);
        let second = tree.push(first, TokenId(2), 0.8, 0);
        tree.push(second, TokenId(3), 0.2, 0);
        tree.push(NodeIdx::ROOT, TokenId(4), 0.1, 0);
        tree
    }

    fn wave(max: usize, costs: &[(usize, f32)], node: u32) -> Vec<u32> {
        let mut projection = Projection::new(max, CostProfile::from_measurements(costs), 8);
        projection.plan_wave(&tree(), NodeSet::ALL, NodeIdx(node));
        projection.rows
    }

    #[test]
    fn rows_that_were_left_behind_are_not_projected() {
        let mut verified = NodeSet::ROOT;
        [1, 4].into_iter().for_each(|node| verified.insert(NodeIdx(node)));
        let mut projection = Projection::new(8, CostProfile::free_rows(1.0), 8);
        projection.plan_wave(&tree(), verified, NodeIdx::ROOT);
        assert_eq!(projection.rows, [0, 1, 4]);
    }

    #[test]
    fn a_wave_takes_the_rows_along_that_are_worth_it() {
        let free = [(1, 10.0), (8, 10.0)];
        assert_eq!(wave(8, &free, 0), [0, 1, 2, 3, 4]);
        assert_eq!(wave(8, &free, 2), [2, 3], "what is below");
        assert_eq!(wave(2, &free, 0), [0, 1]);
        assert_eq!(wave(8, &free, 4), [4]);
        // A row more costs half a row alone: worth it at 0.9 and 0.8, not at 0.2.
        let half = [(1, 10.0), (2, 15.0), (8, 45.0)];
        assert_eq!(wave(8, &half, 0), [0, 1, 2]);
        // From the node before it, it is reached in a quarter of the cases.
        assert_eq!(wave(8, &half, 2), [2]);
        let quarter = [(1, 10.0), (2, 12.0), (8, 24.0)];
        assert_eq!(wave(8, &quarter, 2), [2, 3]);
        // Rows that share nothing are projected when they are visited.
        assert_eq!(wave(8, &[(1, 10.0), (2, 20.0), (8, 80.0)], 0), [0]);
    }
}
