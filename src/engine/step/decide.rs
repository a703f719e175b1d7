//! Whether the step drafts, and how many rows at most.

use crate::draft::StepLimits;
use crate::engine::output::Output;
use crate::engine::policy::Skip;
use crate::engine::session::Session;

/// The bounds of this step's draft.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decision {
    /// Rows that may be drafted, the root not counted; or why the step does not draft.
    pub(super) rows: Result<usize, Skip>,
    /// Tokens that may be drafted in a row: the output has room for them and the bonus token.
    pub(super) max_depth: usize,
}

impl Decision {
    /// The bounds as the tree builder takes them, the root included.
    pub(super) fn limits(&self) -> Option<StepLimits> {
        let n_rows = self.rows.ok()?;
        Some(StepLimits { max_rows: n_rows.saturating_add(1), max_depth: self.max_depth })
    }
}

/// Asks the policy, with the device's newest reports.
pub(super) fn decide(session: &mut Session, output: &Output) -> Decision {
    let (thermal, pressure) = (session.shared.device.thermal(), session.pressure.level);
    let rows = session.drafting.policy.decide(thermal, pressure);
    Decision { rows, max_depth: output.remaining().saturating_sub(1) }
}
