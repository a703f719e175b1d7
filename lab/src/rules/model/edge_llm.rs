//! Branch navigation and pacing of LLMCad and EdgeLLM: the most confident branch is extended until no branch is
//! confident enough.

use super::planner::Planner;
use crate::rules::source::Plan;
use refrain::internals::draft_model::{KvTree, Likely, ROOT};
use refrain::{ForwardError, StepOutcome};

/// Maximum number of branches from a node.
pub(super) const BRANCHES: usize = 3;

/// The initial threshold: below this confidence, drafting stops and the target verifies.
const THRESHOLD_START: f32 = 0.01;
/// The threshold is multiplied by this factor if all tokens were accepted. Otherwise it is divided by the factor to
/// the power of the rejected share.
const THRESHOLD_FACTOR: f32 = 0.5;
/// Limits of the threshold. The publication has none, because its texts are finite. At a threshold of 1, the rule
/// would never draft, so the threshold would never fall.
const THRESHOLDS: std::ops::RangeInclusive<f32> = 1e-6..=0.9;

#[derive(Clone)]
pub(super) struct EdgeLlm {
    threshold: f32,
}

impl EdgeLlm {
    pub(super) fn new() -> Self {
        Self { threshold: THRESHOLD_START }
    }
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

impl Planner for EdgeLlm {
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
            if confidence < self.threshold {
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
        if n_all == 0 {
            return;
        }
        let missed = (n_all as usize - step.accepted.len()) as f32 / n_all as f32;
        let factor = if missed == 0.0 { THRESHOLD_FACTOR } else { THRESHOLD_FACTOR.powf(-missed) };
        self.threshold = (self.threshold * factor).clamp(*THRESHOLDS.start(), *THRESHOLDS.end());
    }
}

fn extend(branches: &mut Vec<Branch>, tree: &KvTree, node: u32, parent: usize, confidence: f32) {
    let branch =
        |&likely: &Likely| Branch { node, parent, likely, confidence: confidence * likely.probability };
    branches.extend(tree.likely(node).iter().map(branch));
}
