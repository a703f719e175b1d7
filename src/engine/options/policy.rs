//! The app's choice of when a session drafts, and how many rows.

use serde::{Deserialize, Serialize};

use crate::draft::VERIFY_ROWS_MAX;

/// When a session drafts, and how many rows. No value changes the output.
///
/// The device state ([`Device::set_thermal_state`](crate::device::Device::set_thermal_state),
/// [`Device::set_memory_pressure`](crate::device::Device::set_memory_pressure)) bounds every choice.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct DraftPolicy {
    /// Number of rows per step.
    pub rows: DraftRows,
    /// Acceptance rate below which a session decodes plainly for a while. `None` (the default):
    /// [`DraftRows::Auto`] alone decides, from gains and costs.
    pub floor: Option<AcceptanceFloor>,
    /// Generations that never draft.
    pub skip: SkipRules,
    /// Maximum share of the time of an answer that drafts may lose, 0..=1: a draft is bought only from the time that
    /// drafts have saved so far, and from this share of the time elapsed. Half of the share is spent only if drafts of earlier answers
    /// have saved as much, so all answers together lose at most the other half. The first text waits for drafts at most 1 ms. `None`: a draft need not be paid. Applies to
    /// [`DraftRows::Auto`], unless claims are drafted [as they are](crate::Drafting::AsClaimed). Default 0.01.
    pub stake: Option<f32>,
}

impl Default for DraftPolicy {
    fn default() -> Self {
        Self { rows: DraftRows::default(), floor: None, skip: SkipRules::default(), stake: Some(0.01) }
    }
}

/// Number of draft rows per step, without the root: the *k* of speculative decoding.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum DraftRows {
    /// The tree builder weighs the gain of each row against its measured cost.
    #[default]
    Auto,
    /// The likeliest `k` rows at any cost, 1..=[`DraftRows::MAX`]; fewer if the sources propose fewer. For
    /// comparison.
    Fixed(usize),
}

impl DraftRows {
    /// Maximum draft rows of a step.
    pub const MAX: usize = VERIFY_ROWS_MAX - 1;
}

/// Falls back to plain decoding if drafts are seldom accepted, and retries later.
///
/// If the acceptance rate over the last `window` drafting steps is below `rate_min`, `pause` steps decode
/// plainly. After a pause, drafting is on probation for a whole window. Each failed probation doubles the
/// pause, up to [`AcceptanceFloor::PAUSE_FACTOR_MAX`] times `pause`, so text without good drafts costs few
/// useless drafts. A passed probation resets the pause. Every decision covers a whole window, so the policy
/// cannot oscillate from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct AcceptanceFloor {
    /// Drafting steps per measurement of the acceptance rate, 1..=[`AcceptanceFloor::STEPS_MAX`]. Default 16.
    pub window: usize,
    /// Minimum acceptance rate (accepted ÷ drafted rows), 0..=1. Default 0.05: a tree of 32 rows with two
    /// accepted rows still pays if rows are nearly free.
    pub rate_min: f32,
    /// Plain steps before drafting is retried, 1..=[`AcceptanceFloor::STEPS_MAX`]. Default 32.
    pub pause: usize,
}

impl AcceptanceFloor {
    /// Maximum steps of a window or a pause.
    pub const STEPS_MAX: usize = 1 << 16;
    /// Maximum factor by which failed probations lengthen the pause.
    pub const PAUSE_FACTOR_MAX: usize = 16;
}

impl Default for AcceptanceFloor {
    fn default() -> Self {
        Self { window: 16, rate_min: 0.05, pause: 32 }
    }
}

/// Rules for generations that decode plainly from their first token to their last. All rules are off by
/// default.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct SkipRules {
    /// Skips generations that can output fewer tokens than this, by `max_tokens` and the room in the context.
    pub tokens_min: usize,
    /// Skips generations that sample at a higher temperature than this, 0..=100.
    pub temperature_max: Option<f32>,
    /// Skips drafting while the system has less available memory than this, in bytes
    /// ([`available_bytes`](refrain_stream::available_bytes)). Checked at the start and every 32 steps, so
    /// drafting can also resume. Ignored if the system does not report its available memory.
    pub available_bytes_min: u64,
}
