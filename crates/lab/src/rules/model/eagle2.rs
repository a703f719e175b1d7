//! EAGLE-2's dynamic tree: layers of the likeliest paths, reranked.

use super::opt_tree::{Path, best, push_best, successors};
use super::planner::Planner;
use crate::rules::source::Plan;
use refrain::TokenId;
use refrain::internals::draft_model::{KvTree, ROOT};
use refrain::internals::error::ForwardError;

/// Nodes of a layer, and successors of a node: `top_k` of the authors' code.
pub(super) const WIDTH: usize = 10;
/// Passes after that of the root: `depth` of the authors' code.
const PASSES: usize = 5;
/// Nodes of a draft: `total_token` of the authors' code, without the root.
pub(super) const NODES_MAX: usize = 59;
/// Computed nodes.
pub(super) const N_COMPUTED: usize = WIDTH * PASSES;

#[derive(Clone)]
pub(super) struct Eagle2;

impl Planner for Eagle2 {
    fn plan(&mut self, tree: &mut KvTree, plan: &mut Plan) -> Result<(), ForwardError> {
        let mut paths: Vec<Path> = successors(tree, ROOT, None, 1.0).take(WIDTH).collect();
        // The newest layer, by index.
        let mut layer: Vec<usize> = (0..paths.len()).collect();
        for _ in 0..PASSES {
            let wanted: Vec<(u32, TokenId)> =
                layer.iter().map(|&i| (paths[i].parent_node, paths[i].token)).collect();
            if wanted.is_empty() {
                break;
            }
            let first = tree.compute(&wanted)?;
            let n_before = paths.len();
            for (node, &i) in (first..).zip(&layer) {
                let reach = paths[i].reach;
                paths.extend(successors(tree, node, Some(i), reach).take(WIDTH));
            }
            let below = paths[n_before..].iter().zip(n_before..);
            layer = best(WIDTH, below.map(|(path, i)| (path.reach, i)));
        }
        push_best(&paths, plan.n_max().min(NODES_MAX), plan);
        Ok(())
    }
}
