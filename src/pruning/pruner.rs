//! Pruning of one session: computes the chances of a tree's nodes from the hidden states of a middle layer.

use std::sync::Arc;

use super::keep::{self, KeepRules};
use super::predictor::{Predictor, PredictorScratch};
use super::{PruningConfig, keep::select};
use crate::draft::{DraftTree, NodeIdx, NodeSet};
use crate::kernels::Instant;
use crate::model::Interlude;
use crate::model::transformer::Compute;
use refrain_trees::TokenId;

/// Prunes the trees of one session.
pub(crate) struct Pruner {
    predictor: Arc<Predictor>,
    config: PruningConfig,
    scratch: PredictorScratch,
    /// Nodes with children: their rows are scored. Their hidden states are contiguous in `hidden`.
    parents: Vec<NodeIdx>,
    /// `[parents.len(), hidden_dim]`
    hidden: Vec<f32>,
    /// The best scores of the shadow pool after one node, best first.
    shadows: Vec<f32>,
    /// Chances in the newest tree. `[tree.len()]`
    chances: Vec<f32>,
}

/// The pruning decision for a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pruned {
    /// The kept nodes.
    pub(crate) kept: NodeSet,
    /// Number of kept rows, including padding.
    pub(crate) n_rows: usize,
    /// Time of scoring, in µs.
    pub(crate) time_us: f64,
}

/// A pass over one tree, with the pruning decision at its middle layer.
pub(crate) struct TreePass<'a> {
    pruner: &'a mut Pruner,
    tree: &'a DraftTree,
    batch_lens: &'a [usize],
    pruned: Option<Pruned>,
}

impl Pruner {
    pub(crate) fn new(predictor: Arc<Predictor>, config: PruningConfig) -> Self {
        Self {
            predictor,
            config,
            scratch: PredictorScratch::default(),
            parents: Vec::new(),
            hidden: Vec::new(),
            shadows: Vec::new(),
            chances: Vec::new(),
        }
    }

    /// A pruner of the same kind, with buffers of its own.
    pub(crate) fn fork(&self) -> Self {
        Self::new(Arc::clone(&self.predictor), self.config)
    }

    /// The pass over `tree`; `None` if the tree has too few rows for pruning to pay.
    pub(crate) fn pass<'a>(
        &'a mut self,
        tree: &'a DraftTree,
        batch_lens: &'a [usize],
    ) -> Option<TreePass<'a>> {
        let rows_min = self.config.safeguards.map_or(1, |safeguards| {
            let least = safeguards.rows_min.max(1);
            // Never prunes if even the minimum number of kept rows drops too few.
            if least > keep::rows_max(tree.len(), safeguards.saved_min) { usize::MAX } else { least }
        });
        let worth_it = tree.len() > keep::batch_len(rows_min, batch_lens);
        worth_it.then_some(TreePass { pruner: self, tree, batch_lens, pruned: None })
    }

    /// Fills `chances` with the probability that the walk reaches each node of `tree`. `hidden` are the
    /// hidden states of the tree's rows.
    ///
    /// A child's share is `exp(s) / (Σ siblings exp(s) + Σ shadows exp(s))` (Lever, eq. 11); it is multiplied
    /// along the path.
    fn rate(&mut self, compute: Compute<'_>, tree: &DraftTree, hidden: &[f32]) {
        let hidden_dim = self.predictor.parts().hidden_dim;
        self.parents.clear();
        self.hidden.clear();
        for node in (0..tree.len() as u32).map(NodeIdx) {
            if tree.children(node).next().is_some() {
                self.parents.push(node);
                let start = node.index() * hidden_dim;
                self.hidden.extend_from_slice(&hidden[start..start + hidden_dim]);
            }
        }
        let with_pool = self.config.shadow_tokens > 0;
        self.predictor.set_rows(compute, &self.hidden, with_pool, &mut self.scratch);
        self.chances.clear();
        self.chances.resize(tree.len(), 1.0);
        for row in 0..self.parents.len() {
            self.rate_children(tree, row);
        }
    }

    /// A parent precedes its children, so its own chance is already computed.
    fn rate_children(&mut self, tree: &DraftTree, row: usize) {
        let (predictor, scratch, parent) = (&*self.predictor, &self.scratch, self.parents[row]);
        let mut max = f32::NEG_INFINITY;
        for child in tree.children(parent) {
            let score = predictor.score(scratch, row, tree.token(child));
            self.chances[child.index()] = score;
            max = max.max(score);
        }
        self.shadows.clear();
        if self.config.shadow_tokens > 0 {
            let pool = predictor.parts().shadow_pool.iter().zip(predictor.pool_scores(scratch, row));
            let drafted = |token: TokenId| tree.child(parent, token).is_some();
            push_best(&mut self.shadows, self.config.shadow_tokens, pool, drafted);
        }
        let max = self.shadows.first().map_or(max, |&best| best.max(max));
        let shadow_total: f32 = self.shadows.iter().map(|score| (score - max).exp()).sum();
        let shares = tree.children(parent).map(|child| (self.chances[child.index()] - max).exp());
        let total = shadow_total + shares.sum::<f32>();
        let of_parent = self.chances[parent.index()];
        for child in tree.children(parent) {
            let share = (self.chances[child.index()] - max).exp() / total;
            // Overflowed scores carry no information; they count as a chance of 0.
            self.chances[child.index()] = if share.is_finite() { of_parent * share } else { 0.0 };
        }
    }
}

/// Appends the `n_max` best scores of the tokens that are not `drafted`, best first.
fn push_best<'a>(
    best: &mut Vec<f32>,
    n_max: usize,
    scored: impl Iterator<Item = (&'a TokenId, &'a f32)>,
    drafted: impl Fn(TokenId) -> bool,
) {
    for (&token, &score) in scored {
        let worse = best.len() >= n_max && best.last().is_some_and(|&last| last >= score);
        if worse || score.is_nan() || drafted(token) {
            continue;
        }
        let at = best.partition_point(|&held| held >= score);
        best.insert(at, score);
        best.truncate(n_max);
    }
}

impl TreePass<'_> {
    /// The decision; `None` if the pass did not reach the middle layer.
    pub(crate) fn pruned(&self) -> Option<Pruned> {
        self.pruned
    }
}

impl Interlude for TreePass<'_> {
    fn layer_idx(&self) -> usize {
        self.pruner.predictor.parts().layer_idx
    }

    fn look(&mut self, compute: Compute<'_>, hidden: &[f32], kept_rows: &mut Vec<u32>) {
        let start = Instant::now();
        self.pruner.rate(compute, self.tree, hidden);
        let PruningConfig { threshold, safeguards, .. } = self.pruner.config;
        let rules = KeepRules { threshold, safeguards, batch_lens: self.batch_lens };
        let kept = select(self.tree, &self.pruner.chances, &rules);
        if kept != NodeSet::ALL {
            // Padding rows follow the tree; enough of them are kept to fill the batch.
            let n_nodes = kept.count(self.tree.len());
            let n_padding = keep::batch_len(n_nodes, self.batch_lens) - n_nodes;
            let first_padding = self.tree.len() as u32;
            kept_rows.retain(|&row| match row.checked_sub(first_padding) {
                Some(padding) => (padding as usize) < n_padding,
                None => kept.contains(NodeIdx(row)),
            });
        }
        let time_us = start.elapsed().as_secs_f64() * 1e6;
        self.pruned = Some(Pruned { kept, n_rows: kept_rows.len(), time_us });
    }
}
