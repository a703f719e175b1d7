//! The app's choice of when a session drafts, how many rows, and which drafted tokens are accepted.

use serde::{Deserialize, Serialize};

use crate::draft::VERIFY_ROWS_MAX;

/// When a session drafts, and how many rows. No value changes the output.
///
/// The device state ([`Device::set_thermal_state`](crate::device::Device::set_thermal_state),
/// [`Device::set_memory_pressure`](crate::device::Device::set_memory_pressure)) bounds every choice.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
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
    /// A controller holds the acceptance rate at a set point. For comparison.
    Pid(PidConfig),
}

impl DraftRows {
    /// Maximum draft rows of a step.
    pub const MAX: usize = VERIFY_ROWS_MAX - 1;
}

/// A proportional-integral-derivative controller of the number of draft rows.
///
/// The error is `e = acceptance rate − set point`. The acceptance rate is an exponential mean over the steps
/// that drafted, and [`PidConfig::SMOOTHING`] is the weight of the newest step:
///
/// ```text
/// k = clamp(k₀ + proportional·e + integral·Σe + derivative·Δe, rows_min, rows_max), rounded
/// ```
///
/// A positive error lengthens the drafts. Later draft tokens are accepted less often, which closes the loop.
/// *Anti-windup* is conditional integration: while `k` is at a bound and the error pushes further, nothing is
/// integrated, so the controller leaves the bound at the first error of the other sign (K. J. Åström and L.
/// Rundqwist, "Integrator windup and how to avoid it", American Control Conference 1989).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct PidConfig {
    /// The acceptance rate to hold (accepted ÷ drafted rows), 0..=1. Default 0.6: the last row of a draft is
    /// then accepted about half of the time. One more row gains as much as it costs if a row costs half a
    /// step.
    pub set_point: f32,
    /// Rows per unit of the error. Default 4: a fully accepted draft at the set point 0.6 adds 1.6 rows at
    /// once.
    pub proportional: f32,
    /// Rows per unit of the error and step. Default 1: a fully accepted draft adds 0.4 rows permanently.
    pub integral: f32,
    /// Rows per unit of change of the error. Default 1, a quarter of the proportional gain, because a single
    /// bad step is noise.
    pub derivative: f32,
    /// Rows of the first step. Default 4.
    pub rows_start: usize,
    /// Minimum rows, 1 or more: without a draft there is no acceptance rate to measure. Default 1.
    pub rows_min: usize,
    /// Maximum rows, up to [`DraftRows::MAX`]. Default 15: with the root, a batch of 16.
    pub rows_max: usize,
}

impl PidConfig {
    /// Weight of the newest step in the acceptance rate. The mean then covers about three steps, the length
    /// of a passage of uniform text.
    pub const SMOOTHING: f32 = 0.3;

    /// Maximum absolute gain; larger gains make the controller unstable.
    pub const GAIN_MAX: f32 = 1000.0;
}

impl Default for PidConfig {
    fn default() -> Self {
        Self {
            set_point: 0.6,
            proportional: 4.0,
            integral: 1.0,
            derivative: 1.0,
            rows_start: 4,
            rows_min: 1,
            rows_max: 15,
        }
    }
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

/// The acceptance rule for draft tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum Acceptance {
    /// Accepts only the target's own choice: the output equals plain decoding, bit for bit.
    #[default]
    Strict,
    /// **Lossy.** Also accepts a draft token that the target did not choose, if the token is in the target's
    /// nucleus. The nucleus is the smallest set of most likely tokens whose probabilities sum to at least
    /// this value (above 0, at most 1). Probabilities are taken after processors, bias, penalties and
    /// temperature (1 if the temperature is 0). Tokens that `top_k`, `top_p` or `min_p` drop are never
    /// accepted. If several draft tokens qualify, the first in the tree is accepted.
    ///
    /// The output **differs** from plain decoding and depends on the drafts. It is still a function of the
    /// model, the prompt, the options, the seed and the text of the draft sources (including history, if on),
    /// because no measured time influences it: rows count as free ([`DraftRows::Auto`] drafts [`LOSSY_ROWS`]
    /// of them), generations start from the built-in reliability table,
    /// [`Calibration::Auto`](crate::engine::Calibration::Auto) is off, and with
    /// [`Drafting::Auto`](crate::engine::Drafting::Auto) the draft model is off. Heat and memory pressure
    /// change the drafts and therefore the output. [`Stats::lossy`](crate::engine::Stats::lossy) reports
    /// lossy acceptance in every generation.
    LossyTopP(f32),
}

/// Rows that [`DraftRows::Auto`] drafts with [`Acceptance::LossyTopP`], which ignores measured costs.
pub const LOSSY_ROWS: usize = 8;

impl Acceptance {
    /// Whether the output may differ from that of plain decoding.
    pub(crate) fn is_lossy(self) -> bool {
        self != Self::Strict
    }
}
