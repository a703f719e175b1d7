//! LLMCad and EdgeLLM: branches advance in proportion to their confidence, until none is confident enough.
//!
//! ```text
//! branch i    a path from the root; Cᵢ: the product of its tokens' probabilities, Tᵢ: its tokens, M: those of all branches
//! next pass   the branch with the largest M·Cᵢ − Tᵢ, among those with Cᵢ ≥ α; drafting ends if there is none
//! after it    the branch goes on with its likeliest token; each other token above 0.3 opens a branch
//! α           0.01 at first; halved if all tokens of the best-matching branch were accepted, and divided by ½ to the
//!             power of that branch's rejected share otherwise
//! ```

use super::planner::Planner;
use crate::rules::source::Plan;
use refrain::TokenId;
use refrain::drafting::{NodeIdx, StepOutcome};
use refrain::internals::draft_model::{KvTree, ROOT};
use refrain::internals::error::ForwardError;

/// Token confidence above which a branch opens beside the likeliest token.
const BRANCH_CONFIDENCE: f32 = 0.3;
/// Maximum tokens of a node above [`BRANCH_CONFIDENCE`].
pub(super) const BRANCHES: usize = 3;

/// The initial threshold: below this confidence, drafting stops and the target verifies.
const THRESHOLD_START: f32 = 0.01;
/// The threshold is multiplied by this factor if all tokens were accepted. Otherwise it is divided by the factor to
/// the power of the rejected share.
const THRESHOLD_FACTOR: f32 = 0.5;
/// Limits of the threshold. The publication has none, because its texts are finite. At a threshold of 1, the rule
/// would never draft, so the threshold would never fall.
const THRESHOLDS: std::ops::RangeInclusive<f32> = 1e-6..=0.9;

/// The adaptive threshold.
#[derive(Clone)]
pub(super) struct Threshold(f32);

impl Default for Threshold {
    fn default() -> Self {
        Threshold(THRESHOLD_START)
    }
}

impl Threshold {
    /// The minimum confidence of a branch that is extended.
    pub(super) fn confidence(&self) -> f32 {
        self.0
    }

    /// Learns from a branch of `n_all` tokens, the first `n_accepted` of which were accepted.
    pub(super) fn learn(&mut self, n_all: usize, n_accepted: usize) {
        if n_all == 0 {
            return;
        }
        let missed = (n_all - n_accepted) as f32 / n_all as f32;
        let factor = if missed == 0.0 { THRESHOLD_FACTOR } else { THRESHOLD_FACTOR.powf(-missed) };
        self.0 = (self.0 * factor).clamp(*THRESHOLDS.start(), *THRESHOLDS.end());
    }
}

#[derive(Clone, Default)]
pub(super) struct EdgeLlm {
    threshold: Threshold,
}

/// A branch and its next token.
#[derive(Clone, Copy, Debug)]
struct Branch {
    /// The computed node at its end.
    node: u32,
    /// The same node in the plan.
    parent: usize,
    n_tokens: usize,
    next: TokenId,
    /// With the next token.
    confidence: f32,
}

/// The branch for the next pass: the first of equal ones.
fn paced(branches: &[Branch], n_all: usize, threshold: f32) -> Option<usize> {
    let pace = |branch: &Branch| n_all as f32 * branch.confidence - branch.n_tokens as f32;
    let open = branches.iter().enumerate().filter(|(_, branch)| branch.confidence >= threshold);
    let paces = open.map(|(i, branch)| (i, pace(branch)));
    paces.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|best| best.0)
}

/// The branches that go on or open at a computed node.
fn open(
    branches: &mut Vec<Branch>,
    tree: &KvTree,
    node: u32,
    parent: usize,
    n_tokens: usize,
    confidence: f32,
) {
    for (rank, likely) in tree.likely(node).iter().enumerate() {
        if rank == 0 || likely.probability > BRANCH_CONFIDENCE {
            let confidence = confidence * likely.probability;
            branches.push(Branch { node, parent, n_tokens, next: likely.token, confidence });
        }
    }
}

impl Planner for EdgeLlm {
    const IS_PROVISIONAL: bool = true;

    fn plan(&mut self, tree: &mut KvTree, plan: &mut Plan) -> Result<(), ForwardError> {
        let mut branches: Vec<Branch> = Vec::new();
        open(&mut branches, tree, ROOT, 0, 0, 1.0);
        while let Some(best) = paced(&branches, plan.len(), self.threshold.confidence()) {
            let Branch { node, parent, n_tokens, next, confidence } = branches.swap_remove(best);
            let Some(planned) = plan.push(parent, next, confidence) else { break };
            if plan.len() == plan.n_max() {
                break;
            }
            let computed = match tree.child(node, next) {
                Some(provisional) => provisional,
                None if tree.room() == 0 => break,
                None => tree.compute(&[(node, next)])?,
            };
            open(&mut branches, tree, computed, planned, n_tokens + 1, confidence);
        }
        Ok(())
    }

    fn learn(&mut self, step: &StepOutcome<'_>) {
        let end = step.accepted.last().copied().unwrap_or(NodeIdx::ROOT);
        // The best match: a branch through all accepted tokens with the fewest others.
        let is_below =
            |leaf: NodeIdx| std::iter::successors(Some(leaf), |&n| step.tree.parent(n)).any(|n| n == end);
        let nodes = (0..step.tree.len()).map(|i| NodeIdx(i as u32));
        let leaves = nodes.filter(|&node| step.tree.children(node).next().is_none() && is_below(node));
        let n_all = leaves.map(|leaf| step.tree.depths()[leaf.index()] as usize).min().unwrap_or(0);
        self.threshold.learn(n_all, step.accepted.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain::drafting::DraftTree;

    fn branch(n_tokens: usize, confidence: f32) -> Branch {
        Branch { node: 0, parent: 0, n_tokens, next: TokenId(0), confidence }
    }

    #[test]
    fn branches_advance_in_proportion_to_their_confidence() {
        // With 10 tokens: 10 · 0.6 − 8 = −2, and 10 · 0.3 − 2 = 1.
        assert_eq!(paced(&[branch(8, 0.6), branch(2, 0.3)], 10, 0.01), Some(1));
        assert_eq!(paced(&[branch(3, 0.6), branch(2, 0.3)], 5, 0.01), Some(0));
        assert_eq!(paced(&[branch(1, 0.2), branch(1, 0.2)], 2, 0.01), Some(0), "the first of equal ones");
        assert_eq!(paced(&[branch(8, 0.6), branch(2, 0.3)], 10, 0.5), Some(0), "below the threshold");
        assert_eq!(paced(&[branch(8, 0.6)], 10, 0.7), None);
    }

    #[test]
    fn the_threshold_follows_the_best_matching_branch() {
        // The root's children are 1 → 2 → 3 and 4.
        let mut tree = DraftTree::new(TokenId(0));
        let one = tree.push(NodeIdx::ROOT, TokenId(1), 1.0, 0);
        let two = tree.push(one, TokenId(2), 1.0, 0);
        tree.push(two, TokenId(3), 1.0, 0);
        let four = tree.push(NodeIdx::ROOT, TokenId(4), 1.0, 0);
        let learnt = |accepted: &[NodeIdx]| {
            let mut rule = EdgeLlm::default();
            rule.learn(&StepOutcome { tree: &tree, accepted, new_tokens: &[] });
            rule.threshold.confidence()
        };
        assert_eq!(learnt(&[four]), 0.005, "all of its branch");
        assert!((learnt(&[one, two]) - 0.01 * 2f32.powf(1.0 / 3.0)).abs() < 1e-6);
        assert_eq!(learnt(&[]), 0.02, "nothing of any");
    }
}
