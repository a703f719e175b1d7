//! A chain: repeatedly the draft model's likeliest token.

use super::planner::Planner;
use crate::rules::source::Plan;
use refrain::internals::draft_model::{KvTree, ROOT};
use refrain::internals::error::ForwardError;

#[derive(Clone)]
pub(super) struct Chain {
    /// Length of the path in tokens.
    pub(super) len: usize,
}

impl Planner for Chain {
    fn plan(&mut self, tree: &mut KvTree, plan: &mut Plan) -> Result<(), ForwardError> {
        let len = self.len.min(plan.n_max());
        let (mut node, mut parent) = (ROOT, 0);
        for n_before in 0..len {
            let Some(&likeliest) = tree.likely(node).first() else { break };
            let Some(planned) = plan.push(parent, likeliest.token, 1.0) else { break };
            parent = planned;
            if n_before + 1 < len {
                node = tree.compute(&[(node, likeliest.token)])?;
            }
        }
        Ok(())
    }
}
