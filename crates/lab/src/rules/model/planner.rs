//! The shared part of the rules that draft with a model.

use std::fmt;

use refrain::TokenId;
use refrain::drafting::{ComputingSource, DraftSource, EvidenceClass, StepOutcome};
use refrain::internals::draft_model::{Drafter, KvTree};
use refrain::internals::error::ForwardError;

use crate::rules::source::{Plan, Rule, RuleSource};

/// Builds a tree from the draft model's predictions.
pub(super) trait Planner: Clone + Send + 'static {
    /// Whether the rule drafts on while the target verifies. What it drafts then stays in the tree.
    const IS_PROVISIONAL: bool = false;

    /// Plans the draft. The root of `tree` is computed, and `plan` is empty.
    fn plan(&mut self, tree: &mut KvTree, plan: &mut Plan) -> Result<(), ForwardError>;

    /// Learns from the outcome of the newest draft.
    fn learn(&mut self, step: &StepOutcome<'_>) {
        let _ = step;
    }
}

/// A planner with its draft model.
#[derive(Clone)]
struct Planned<P> {
    drafter: Drafter,
    planner: P,
}

pub(super) fn boxed<P: Planner>(
    rule: impl fmt::Display,
    n_max: usize,
    drafter: Drafter,
    planner: P,
) -> Box<dyn DraftSource> {
    let drafter = if P::IS_PROVISIONAL { drafter.keeping() } else { drafter };
    RuleSource::boxed(rule, n_max, Planned { drafter, planner })
}

impl<P: Planner> Rule for Planned<P> {
    const EVIDENCE: EvidenceClass = EvidenceClass::DraftModel;

    fn read(&mut self, committed: &[TokenId]) {
        self.drafter.prime(committed);
    }

    fn reset(&mut self) {
        self.drafter.truncate(0);
    }

    fn release(&mut self) {
        self.drafter.release();
    }

    fn plan(&mut self, _committed: &[TokenId], plan: &mut Plan) {
        let Self { drafter, planner } = self;
        drafter.with(|tree| {
            tree.compute_root()?;
            planner.plan(tree, plan)
        });
    }

    fn learn(&mut self, step: &StepOutcome<'_>) {
        self.planner.learn(step);
    }

    fn computing(&mut self) -> Option<&mut dyn ComputingSource> {
        Some(&mut self.drafter)
    }

    fn memory_usage(&self) -> usize {
        self.drafter.memory_usage()
    }
}
