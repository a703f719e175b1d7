//! The drafting part of a session: its sources, the tree builder, and the policy of the running generation.

use super::Sources;
use crate::draft::{BuilderConfig, CostProfile, DraftSource, DraftTree, TreeBuilder};
use crate::draft_model::OwnRows;
use crate::engine::policy::{Account, Policy};

/// State of drafting for one session.
pub(in crate::engine) struct DraftingState {
    pub(in crate::engine) sources: Sources,
    pub(in crate::engine) builder: TreeBuilder,
    pub(in crate::engine) policy: Policy,
    /// What drafts have saved and may spend.
    pub(in crate::engine) account: Account,
    /// Row costs behind `context` tokens, as learned by the running generation.
    pub(in crate::engine) costs: CostProfile,
    pub(in crate::engine) context: usize,
    /// The newest step's draft.
    pub(in crate::engine) tree: DraftTree,
}

impl DraftingState {
    pub(super) fn new(sources: Vec<Box<dyn DraftSource>>, bounds: BuilderConfig) -> Self {
        Self::of(Sources::new(sources), bounds)
    }

    fn of(sources: Sources, bounds: BuilderConfig) -> Self {
        let (policy, costs) = (Policy::disabled(), CostProfile::free_rows(1.0));
        let (builder, tree) = (TreeBuilder::new(bounds), DraftTree::default());
        Self { sources, builder, policy, account: Account::default(), costs, context: 0, tree }
    }

    /// The state of a fork, whose target has `own_rows` in common with a source.
    pub(super) fn fork(&self, own_rows: Option<&OwnRows>) -> Self {
        Self::of(self.sources.fork(own_rows), self.builder.config())
    }

    /// Prepares a generation behind `context` tokens, with the costs there.
    pub(in crate::engine) fn begin(&mut self, policy: Policy, (costs, context): (CostProfile, usize)) {
        (self.policy, self.costs, self.context) = (policy, costs, context);
    }

    /// Bytes of this session's drafting state.
    pub(super) fn memory_usage(&self) -> usize {
        self.builder.memory_usage() + self.sources.memory_usage()
    }
}
