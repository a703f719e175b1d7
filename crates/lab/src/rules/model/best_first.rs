//! Best-first drafting by confidence alone: the most confident branch is extended until no branch is confident enough.
//!
//! It has the adaptive threshold of LLMCad and EdgeLLM, but none of their pacing: every successor of a node competes for
//! the next pass, whatever its branch was given before. It needs fewer rows for the same tokens than the published rule
//! ([`edge_llm`](super::edge_llm)).

use super::edge_llm::Threshold;
use super::planner::Planner;
use crate::rules::source::Plan;
use refrain::drafting::StepOutcome;
use refrain::internals::draft_model::{KvTree, Likely, ROOT};
use refrain::internals::error::ForwardError;

/// Maximum number of branches from a node.
pub(super) const BRANCHES: usize = 3;

#[derive(Clone, Default)]
pub(super) struct BestFirst {
    threshold: Threshold,
}

/// A branch that may be extended: a successor of a computed node.
#[derive(Clone, Copy)]
struct Branch {
    node: u32,
    /// The node in the plan.
    parent: usize,
    likely: Likely,
    confidence: f32,
}

impl Planner for BestFirst {
    fn plan(&mut self, tree: &mut KvTree, plan: &mut Plan) -> Result<(), ForwardError> {
        let mut branches: Vec<Branch> = Vec::new();
        extend(&mut branches, tree, ROOT, 0, 1.0);
        // The first of equal branches.
        let most_confident = |branches: &[Branch]| {
            let confidences = branches.iter().map(|branch| branch.confidence).enumerate();
            confidences.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|best| best.0)
        };
        while let Some(best) = most_confident(&branches) {
            let Branch { node, parent, likely, confidence } = branches.swap_remove(best);
            if confidence < self.threshold.confidence() {
                break;
            }
            let Some(planned) = plan.push(parent, likely.token, confidence) else { break };
            if plan.len() == plan.n_max() {
                break;
            }
            let computed = tree.compute(&[(node, likely.token)])?;
            extend(&mut branches, tree, computed, planned, confidence);
        }
        Ok(())
    }

    fn learn(&mut self, step: &StepOutcome<'_>) {
        let n_all = step.tree.depths().iter().copied().max().unwrap_or(0);
        self.threshold.learn(n_all as usize, step.accepted.len());
    }
}

fn extend(branches: &mut Vec<Branch>, tree: &KvTree, node: u32, parent: usize, confidence: f32) {
    let branch =
        |&likely: &Likely| Branch { node, parent, likely, confidence: confidence * likely.probability };
    branches.extend(tree.likely(node).iter().map(branch));
}
