//! What an app chooses about when and how much a session drafts.

use serde::{Deserialize, Serialize};

use crate::draft::VERIFY_ROWS_MAX;
use crate::face::setters;

/// When a session drafts, and how many rows. None of it changes a bit of the output.
///
/// What the device reports ([`Engine::set_thermal_state`](crate::engine::Engine::set_thermal_state),
/// [`Engine::set_memory_pressure`](crate::engine::Engine::set_memory_pressure)) bounds whatever is chosen here.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct DraftPolicy {
    /// How many rows a step drafts.
    pub rows: DraftRows,
    /// Below which acceptance a session decodes plainly for a while; `None` (the default): what does not pay is left to
    /// [`DraftRows::Auto`], which knows the costs too.
    pub floor: Option<AcceptanceFloor>,
    /// Which generations do not draft at all.
    pub skip: SkipRules,
}

setters!(DraftPolicy {
    with_rows: rows: DraftRows,
    with_floor: floor: Option<AcceptanceFloor>,
    with_skip: skip: SkipRules,
});

/// How many rows a step drafts, the root not counted: the *k* of speculative decoding.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DraftRows {
    /// As many as pay: the tree builder weighs gain against measured cost.
    #[default]
    Auto,
    /// The likeliest `k`, whatever they cost, 1..=[`DraftRows::MAX`]; fewer where the sources know no more. For comparison.
    Fixed(usize),
    /// As many as keep the acceptance rate at a set point. For comparison.
    Pid(PidConfig),
}

impl DraftRows {
    /// Rows that a step can draft.
    pub const MAX: usize = VERIFY_ROWS_MAX - 1;
}

/// A controller of the number of drafted rows: proportional, integral, derivative.
///
/// With the error `e = acceptance rate − set point`, where the rate is that of the steps that drafted, the newest weighing
/// [`PidConfig::SMOOTHING`]:
///
/// ```text
/// k = clamp(k₀ + proportional·e + integral·Σe + derivative·Δe, rows_min, rows_max), rounded
/// ```
///
/// A positive error says that drafts come true more often than asked for, so they grow; their later tokens come true less often,
/// which closes the loop. *Anti-windup* is conditional integration: while `k` is at a bound and the error pushes further, nothing is
/// integrated, so that the controller leaves the bound with the first error of the other sign (K. J. Åström and L. Rundqwist,
/// "Integrator windup and how to avoid it", American Control Conference 1989).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct PidConfig {
    /// Accepted drafted rows ÷ drafted rows that is aimed at, 0..=1. Default 0.6: the last row of a draft then comes true about
    /// as often as not, where one more costs what it brings if a row costs half a step.
    pub set_point: f32,
    /// Rows per unit of the error. Default 4: a draft that was wholly right where 0.6 was aimed at grows by 1.6 rows at once.
    pub proportional: f32,
    /// Rows per unit of the error and step. Default 1: such steps add 0.4 rows each for good.
    pub integral: f32,
    /// Rows per unit by which the error has changed. Default 1, a quarter of the proportional gain: one bad step is noise.
    pub derivative: f32,
    /// Rows in the first step. Default 4.
    pub rows_start: usize,
    /// Rows at least, 1 or more: without a draft there is nothing to measure. Default 1.
    pub rows_min: usize,
    /// Rows at most, up to [`DraftRows::MAX`]. Default 15: with the root, a batch of 16.
    pub rows_max: usize,
}

setters!(PidConfig {
    with_set_point: set_point: f32,
    with_proportional: proportional: f32,
    with_integral: integral: f32,
    with_derivative: derivative: f32,
    with_rows_start: rows_start: usize,
    with_rows_min: rows_min: usize,
    with_rows_max: rows_max: usize,
});

impl PidConfig {
    /// The weight of the newest step in the acceptance rate: of a rate over some three steps, which is as long as one
    /// sentence's part goes in one manner.
    pub const SMOOTHING: f32 = 0.3;

    /// Gains beyond this are no control.
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

/// Falls back to plain decoding where drafts are seldom right, and tries again later.
///
/// After `window` steps that drafted with fewer accepted than `rate_min` of the drafted rows, `pause` steps decode plainly. Then
/// drafting is on probation: a whole window again. Each probation that fails doubles the pause, up to
/// [`AcceptanceFloor::PAUSE_FACTOR_MAX`] times, so that a text that cannot be drafted costs a vanishing share of drafts; one that
/// passes sets the pause back. A decision always takes a whole window, so the policy cannot swing from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct AcceptanceFloor {
    /// Steps that drafted, over which acceptance is counted, 1..=[`AcceptanceFloor::STEPS_MAX`]. Default 16.
    pub window: usize,
    /// Accepted drafted rows ÷ drafted rows, 0..=1. Default 0.05: a tree of 32 rows of which two are accepted still pays
    /// where rows are nearly free.
    pub rate_min: f32,
    /// Plain steps before drafting is tried again, 1..=[`AcceptanceFloor::STEPS_MAX`]. Default 32.
    pub pause: usize,
}

setters!(AcceptanceFloor {
    with_window: window: usize,
    with_rate_min: rate_min: f32,
    with_pause: pause: usize,
});

impl AcceptanceFloor {
    /// Steps of a window or a pause at most.
    pub const STEPS_MAX: usize = 1 << 16;
    /// By how much failing probations lengthen the pause at most.
    pub const PAUSE_FACTOR_MAX: usize = 16;
}

impl Default for AcceptanceFloor {
    fn default() -> Self {
        Self { window: 16, rate_min: 0.05, pause: 32 }
    }
}

/// Generations that decode plainly from their first token to their last. All rules are off by default.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct SkipRules {
    /// Those that may give fewer tokens than this, by `max_tokens` and the room in the context.
    pub tokens_min: usize,
    /// Those that sample at a higher temperature than this, 0..=100.
    pub temperature_max: Option<f32>,
    /// Those that begin while the system has less memory available than this, in bytes
    /// ([`available_bytes`](crate::stream::available_bytes)); looked at again every 32 steps, in both directions. Where the
    /// system does not say, the rule does not apply.
    pub available_bytes_min: u64,
}

setters!(SkipRules {
    with_tokens_min: tokens_min: usize,
    with_temperature_max: temperature_max: Option<f32>,
    with_available_bytes_min: available_bytes_min: u64,
});

/// Which tokens the target accepts.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acceptance {
    /// The one that it chooses itself: the output is that of plain decoding, bit for bit.
    #[default]
    Strict,
    /// **Lossy.** Also a drafted token that the target did not choose, if it is in the target's nucleus: among the fewest most
    /// likely tokens whose probabilities reach this value together (0..=1, not 0), after processors, bias, penalties and
    /// temperature (1 where the temperature is 0), and never one that `top_k`, `top_p` or `min_p` would have dropped. Of
    /// several such drafted tokens the first in the tree is taken.
    ///
    /// The output is **not** that of plain decoding, and depends on what drafts. It still is a function of the model, the prompt,
    /// the options, the seed and what drafts from (the texts, and history, where that is on), since nothing that reads a
    /// clock takes part: rows count as free ([`DraftRows::Auto`] drafts [`LOSSY_ROWS`] of them), generations start from the
    /// reliability table that ships, [`Calibration::Auto`](crate::engine::Calibration::Auto) is off, and with
    /// [`Drafting::Auto`](crate::engine::Drafting::Auto) a draft model does not draft. Heat and memory pressure do change it,
    /// since they change drafts. [`Stats::lossy`](crate::engine::Stats::lossy) says so in every generation.
    LossyTopP(f32),
}

/// Rows that [`DraftRows::Auto`] drafts with [`Acceptance::LossyTopP`]: their costs, which a clock measures, do not enter.
pub const LOSSY_ROWS: usize = 8;

impl Acceptance {
    /// Whether the output may differ from that of plain decoding.
    pub fn is_lossy(self) -> bool {
        self != Self::Strict
    }
}
