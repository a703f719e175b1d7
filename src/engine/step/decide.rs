//! Decides whether the step drafts, and the maximum number of rows.

use crate::draft::StepLimits;
use crate::engine::policy::{MemoryPressure, Policy, Skip, ThermalState};

/// The bounds of this step's draft.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decision {
    /// Maximum draft rows, without the root; or the reason for no draft.
    pub(super) rows: Result<usize, Skip>,
    /// Maximum depth of the draft tree: the output must have room for a full path and the bonus token.
    pub(super) max_depth: usize,
}

impl Decision {
    /// The limits for the tree builder, including the root.
    pub(super) fn limits(&self) -> Option<StepLimits> {
        let n_rows = self.rows.ok()?;
        Some(StepLimits { max_rows: n_rows.saturating_add(1), max_depth: self.max_depth })
    }
}

/// Asks the policy, with the newest device state and the tokens that the output has room for. Changes the policy's own state.
pub(super) fn decide(
    (thermal, pressure): (ThermalState, MemoryPressure),
    room: usize,
    policy: &mut Policy,
) -> Decision {
    Decision { rows: policy.decide(thermal, pressure), max_depth: room.saturating_sub(1) }
}
