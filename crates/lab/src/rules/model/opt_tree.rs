//! OPT-Tree: the nodes with the most expected accepted tokens, from layers of likeliest paths.
//!
//! ```text
//! layer 1 ← the n likeliest successors of the root
//! repeat:  layer d + 1 ← the n likeliest successors of layer d, by the product of the probabilities along the path
//!          E ← sum of the n largest products in the layers 1 … d
//! until E has risen by no more than the threshold, or the maximum number of layers is reached
//! draft ← the nodes of that sum
//! ```
//!
//! The newest layer is considered only after the next one is computed, as in the authors' code.

use super::planner::Planner;
use crate::rules::source::Plan;
use refrain::TokenId;
use refrain::internals::draft_model::{KvTree, Likely, ROOT};
use refrain::internals::error::ForwardError;

/// Maximum nodes of a tree and of each layer: `--nodes` of the authors' evaluation.
pub(super) const NODES_MAX: usize = 60;
/// Maximum layers: `--max_depth` of the authors' evaluation.
pub(super) const LAYERS_MAX: usize = 10;
/// Minimum gain of a layer in expected accepted tokens: `--threshold` of the authors' evaluation.
const THRESHOLD: f32 = 0.5;
/// Smaller products are dropped: they add nothing to the expectation, and dividing by them would give NaN.
const REACH_MIN: f32 = 1e-30;

#[derive(Clone)]
pub(super) struct OptTree;

/// A path, by its last node.
#[derive(Clone, Copy)]
struct Path {
    token: TokenId,
    /// The index of the parent among all paths; `None` for the root.
    parent: Option<usize>,
    /// The index of the parent among the computed nodes.
    parent_node: u32,
    /// The product of the probabilities.
    reach: f32,
}

impl Planner for OptTree {
    fn plan(&mut self, tree: &mut KvTree, plan: &mut Plan) -> Result<(), ForwardError> {
        let n = plan.n_max().min(NODES_MAX);
        let mut paths: Vec<Path> = Vec::new();
        paths.extend(successors(tree, ROOT, None, 1.0).take(n));
        let mut newest = 0..paths.len();
        let mut promised = 0.0;
        for n_layers in 2.. {
            let wanted: Vec<(u32, TokenId)> =
                paths[newest.clone()].iter().map(|path| (path.parent_node, path.token)).collect();
            if wanted.is_empty() {
                break;
            }
            let first = tree.compute(&wanted)?;
            let of_layer = (first..).zip(newest.clone());
            let below = of_layer.flat_map(|(node, i)| successors(tree, node, Some(i), paths[i].reach));
            let below: Vec<Path> = below.collect();
            let layer = best(n, below.iter().map(|path| path.reach).zip(0..));
            let promise: f32 = order(&paths).iter().take(n).map(|&i| paths[i].reach).sum();
            if promise - promised <= THRESHOLD || n_layers >= LAYERS_MAX {
                break;
            }
            promised = promise;
            newest = paths.len()..paths.len() + layer.len();
            paths.extend(layer.into_iter().map(|i| below[i]));
        }
        push_best(&paths, n, plan);
        Ok(())
    }
}

fn successors(
    tree: &KvTree,
    node: u32,
    parent: Option<usize>,
    reach: f32,
) -> impl Iterator<Item = Path> + '_ {
    let path = move |likely: &Likely| Path {
        token: likely.token,
        parent,
        parent_node: node,
        reach: reach * likely.probability,
    };
    tree.likely(node).iter().map(path).filter(|path| path.reach >= REACH_MIN)
}

/// The indices of the `n` likeliest of paths given by probability and index. For equal paths, the first.
fn best(n: usize, paths: impl Iterator<Item = (f32, usize)>) -> Vec<usize> {
    let mut paths: Vec<(f32, usize)> = paths.collect();
    paths.sort_by(|a, b| b.0.total_cmp(&a.0));
    paths.into_iter().take(n).map(|path| path.1).collect()
}

/// All paths, likeliest first. A parent precedes its children: it is in an earlier layer and no less likely.
fn order(paths: &[Path]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..paths.len()).collect();
    order.sort_by(|&a, &b| paths[b].reach.total_cmp(&paths[a].reach));
    order
}

fn push_best(paths: &[Path], n: usize, plan: &mut Plan) {
    let mut planned = vec![None; paths.len()];
    for i in order(paths).into_iter().take(n) {
        let Path { token, parent, reach, .. } = paths[i];
        let parent = parent.map_or(Some(0), |parent| planned[parent]);
        planned[i] = parent.and_then(|parent| plan.push(parent, token, reach));
    }
}
