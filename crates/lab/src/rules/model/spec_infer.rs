//! SpecInfer's expansion-based tree: a fixed number of successors per node in each layer.

use super::planner::Planner;
use crate::rules::source::Plan;
use refrain::TokenId;
use refrain::internals::draft_model::{KvTree, ROOT};
use refrain::internals::error::ForwardError;

/// Number of successors per node of each layer, as published.
const WIDTHS: [usize; 8] = [1, 1, 3, 1, 1, 1, 1, 1];

/// The largest number of successors.
pub(super) const WIDTH_MAX: usize = 3;

/// Nodes of the whole tree: two above the branch, three in each of the other layers.
pub(super) const N_NODES: usize = 2 + 3 * 6;

#[derive(Clone)]
pub(super) struct SpecInfer;

impl Planner for SpecInfer {
    fn plan(&mut self, tree: &mut KvTree, plan: &mut Plan) -> Result<(), ForwardError> {
        // Computed nodes of the newest layer, each with its planned node and probability.
        let mut layer = vec![(ROOT, 0, 1.0)];
        for (depth, width) in WIDTHS.into_iter().enumerate() {
            let mut wanted: Vec<(u32, TokenId)> = Vec::new();
            let mut below = Vec::new();
            for (node, parent, reach) in layer {
                for likely in tree.likely(node).iter().take(width) {
                    let reach: f32 = reach * likely.probability;
                    let Some(planned) = plan.push(parent, likely.token, reach) else { return Ok(()) };
                    wanted.push((node, likely.token));
                    below.push((planned, reach));
                }
            }
            if depth + 1 == WIDTHS.len() || wanted.is_empty() {
                break;
            }
            let first = tree.compute(&wanted)?;
            layer = (first..).zip(below).map(|(node, (planned, reach))| (node, planned, reach)).collect();
        }
        Ok(())
    }
}
