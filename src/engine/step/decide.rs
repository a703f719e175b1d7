//! Decides whether the step drafts, and the maximum number of rows.

use crate::draft::CostProfile;
use crate::draft::StepLimits;
use crate::engine::policy::{Account, MemoryPressure, Policy, Skip, ThermalState};
use crate::engine::session::Sources;

/// The bounds of this step's draft.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decision {
    /// Maximum draft rows, without the root; or the reason for no draft.
    pub(super) rows: Result<usize, Skip>,
    /// Maximum depth of the draft tree: the output must have room for a full path and the bonus token.
    pub(super) max_depth: usize,
    /// Maximum time of the rows beyond that of a plain step, in µs: what drafts have saved.
    pub(super) extra_us: f32,
    /// Whether nothing is attached to the step: it is that of a session without drafts, and the sources catch up later.
    pub(super) is_off: bool,
}

impl Decision {
    /// The limits for the tree builder, including the root.
    pub(super) fn limits(&self) -> Option<StepLimits> {
        let n_rows = self.rows.ok()?;
        Some(StepLimits {
            max_rows: n_rows.saturating_add(1),
            max_depth: self.max_depth,
            extra_us: self.extra_us,
        })
    }
}

/// Asks the policy, with the newest device state and the tokens that the output has room for, and the account whether it can
/// pay for a draft of one row. Changes the policy's own state.
pub(super) fn decide(
    (thermal, pressure): (ThermalState, MemoryPressure),
    room: usize,
    (account, costs): (&Account, &CostProfile),
    sources: &mut Sources,
    policy: &mut Policy,
) -> Decision {
    let row_us = costs.verify_us(1, 1);
    let extra_us = account.extra_us(f64::from(row_us)) as f32;
    let price_us = costs.verify_us(2, 1) - row_us;
    let rows = policy.decide(thermal, pressure);
    let rows = rows.and_then(|rows| if price_us <= extra_us { Ok(rows) } else { Err(Skip::NotPaid) });
    // A source that computes needs each hidden state, which later steps no longer have.
    let is_off = rows == Err(Skip::NotPaid) && !sources.compute();
    Decision { rows, max_depth: room.saturating_sub(1), extra_us, is_off }
}
