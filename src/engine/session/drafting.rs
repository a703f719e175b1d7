//! The drafting part of a session: its sources, the tree builder, and the policy of the running generation.

use crate::cancel::CancelToken;
use crate::draft::{BuilderConfig, CostProfile, DraftSource, DraftTree, TreeBuilder};
use crate::engine::policy::Policy;
use crate::token::TokenId;

/// State of drafting for one session.
pub(in crate::engine) struct DraftingState {
    pub(in crate::engine) sources: Vec<Box<dyn DraftSource>>,
    pub(in crate::engine) builder: TreeBuilder,
    pub(in crate::engine) policy: Policy,
    /// Row costs, as learned by the running generation.
    pub(in crate::engine) costs: CostProfile,
    /// The newest step's draft.
    pub(in crate::engine) tree: DraftTree,
    /// Number of committed tokens that the sources have observed.
    pub(in crate::engine) primed: usize,
    /// Number of positions whose successor lists the sources have received.
    pub(in crate::engine) calibrated: usize,
    /// Whether a call of a source has begun and not ended: the source panicked, so its state is unknown.
    pub(super) is_disturbed: bool,
}

impl DraftingState {
    pub(super) fn new(sources: Vec<Box<dyn DraftSource>>, bounds: BuilderConfig) -> Self {
        Self {
            sources,
            builder: TreeBuilder::new(bounds),
            policy: Policy::disabled(),
            costs: CostProfile::free_rows(1.0),
            tree: DraftTree::default(),
            primed: 0,
            calibrated: 0,
            is_disturbed: false,
        }
    }

    /// Prepares a generation: `cancel` stops long computations of the sources.
    pub(in crate::engine) fn begin(&mut self, policy: Policy, costs: CostProfile, cancel: &CancelToken) {
        self.policy = policy;
        self.costs = costs;
        let computing = self.sources.iter_mut().filter_map(|source| source.computing());
        computing.for_each(|source| source.watch(cancel.flag()));
    }

    /// Runs `work` on the sources. If it panics, every source restarts before its next call.
    pub(in crate::engine) fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        // Only `recover` clears the mark of an earlier panic.
        let was_disturbed = std::mem::replace(&mut self.is_disturbed, true);
        let result = work(self);
        self.is_disturbed = was_disturbed;
        result
    }

    /// Restarts every source if a call of one has panicked.
    pub(super) fn recover(&mut self) {
        if self.is_disturbed {
            self.sources.iter_mut().for_each(|source| source.reset());
            (self.primed, self.calibrated, self.is_disturbed) = (0, 0, false);
        }
    }

    /// Passes the committed tokens that the sources have not observed to them.
    pub(in crate::engine) fn prime(&mut self, tokens: &[TokenId]) {
        self.recover();
        if self.primed < tokens.len() {
            self.guarded(|drafting| drafting.sources.iter_mut().for_each(|source| source.prime(tokens)));
            self.primed = tokens.len();
        }
    }

    /// Removes the committed tokens from `len` on. Automata cannot remove tokens, so their sources restart
    /// and are primed before the next step.
    pub(in crate::engine) fn truncate(&mut self, len: usize) {
        if self.is_disturbed {
            // The sources start again anyway. A second panic, while the first one unwinds, would abort.
            (self.primed, self.calibrated) = (0, self.calibrated.min(len));
            return;
        }
        if len < self.primed.max(self.calibrated) {
            self.guarded(|drafting| drafting.sources.iter_mut().for_each(|source| source.truncate(len)));
            self.primed = 0;
            self.calibrated = self.calibrated.min(len);
        }
    }

    /// Bytes of this session's drafting state.
    pub(super) fn memory_usage(&self) -> usize {
        self.builder.memory_usage() + self.sources.iter().map(|source| source.memory_usage()).sum::<usize>()
    }
}
