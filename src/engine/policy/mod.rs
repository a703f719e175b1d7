//! Decides before each step whether to draft and how many rows, from the app's choice ([`DraftPolicy`]), the
//! properties of the generation, and the device state.
//!
//! ```text
//! skip rules ── acceptance floor ── heat, memory pressure ── account ──► no draft, with its reason
//!                                           │
//! k: auto or fixed ────── min ───────────────┴──► maximum rows
//! ```
//!
//! A policy bounds drafting and never decides acceptance, so no policy changes the output. The statistics
//! count every decision with its reason. The tree builder ([`DraftRows::Auto`]) adapts the number of rows; a fixed
//! number is a baseline. `refrain-bench` has the PID controller of earlier work on phones (strategy `refrain-pid`).

mod account;
mod device;
mod floor;

pub(crate) use account::Carried;
pub use account::{Account, StepTime};
pub(crate) use device::{DeviceState, PressureReport};
pub use device::{MemoryPressure, PowerState, ThermalState};

use crate::engine::options::{DraftPolicy, DraftRows, SkipRules};
use crate::engine::stats::{DraftingOffStats, PolicyStats};
use floor::Floor;
use refrain_stream::available_bytes;

/// Steps between two queries of available memory; a query of the system takes about 20 µs.
const AVAILABLE_STEPS: usize = 32;

/// The policy of one generation.
pub(super) struct Policy {
    /// A reason that holds for the whole generation.
    skip: Option<Skip>,
    available_bytes_min: u64,
    /// Whether available memory was too low at the last query.
    is_low: bool,
    rows: DraftRows,
    floor: Option<Floor>,
    n_steps: usize,
    /// The bound that limited the newest step.
    bound: Option<Bound>,
}

/// Why a step does not draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skip {
    Disabled,
    ShortOutput,
    HighTemperature,
    LowMemory,
    BelowFloor,
    MemoryPressure,
    Heat,
    NotPaid,
}

/// The reason for fewer rows than the policy's `k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Heat,
    Memory,
}

/// The properties of a generation that the policy depends on.
pub(super) struct Request {
    /// Whether the session drafts at all.
    pub(super) drafts: bool,
    /// Maximum tokens that the generation can output.
    pub(super) n_tokens_max: usize,
    pub(super) temperature: f32,
}

impl Policy {
    /// The policy between generations: no step drafts.
    pub(super) fn disabled() -> Self {
        let request = Request { drafts: false, n_tokens_max: 0, temperature: 0.0 };
        Self::new(&DraftPolicy::default(), &request)
    }

    /// `config` must have been checked.
    pub(super) fn new(config: &DraftPolicy, request: &Request) -> Self {
        let SkipRules { tokens_min, temperature_max, available_bytes_min } = config.skip;
        let skip = if !request.drafts {
            Some(Skip::Disabled)
        } else if request.n_tokens_max < tokens_min {
            Some(Skip::ShortOutput)
        } else if temperature_max.is_some_and(|max| request.temperature > max) {
            Some(Skip::HighTemperature)
        } else {
            None
        };
        let (rows, floor) = (config.rows, config.floor.map(Floor::new));
        Self { skip, available_bytes_min, is_low: false, rows, floor, n_steps: 0, bound: None }
    }

    /// Maximum draft rows of the next step, without the root, or the reason for no draft.
    pub(super) fn decide(&mut self, thermal: ThermalState, pressure: MemoryPressure) -> Result<usize, Skip> {
        if self.available_bytes_min > 0 && self.n_steps.is_multiple_of(AVAILABLE_STEPS) {
            self.is_low = available_bytes().is_some_and(|bytes| bytes < self.available_bytes_min);
        }
        self.n_steps += 1;
        self.bound = None;
        let (by_heat, by_memory) = (thermal.draft_rows_max(), pressure.draft_rows_max());
        if let Some(skip) = self.skip.or_else(|| self.passing_skip(by_heat, by_memory)) {
            return Err(skip);
        }
        let own = match self.rows {
            DraftRows::Auto => usize::MAX,
            DraftRows::Fixed(k) => k,
        };
        let rows = own.min(by_heat).min(by_memory);
        if rows < own {
            self.bound = Some(if by_heat <= by_memory { Bound::Heat } else { Bound::Memory });
        }
        Ok(rows)
    }

    /// A reason that holds for this step only.
    fn passing_skip(&self, by_heat: usize, by_memory: usize) -> Option<Skip> {
        let reasons = [
            (by_memory == 0, Skip::MemoryPressure),
            (by_heat == 0, Skip::Heat),
            (self.is_low, Skip::LowMemory),
            (self.floor.as_ref().is_some_and(Floor::is_paused), Skip::BelowFloor),
        ];
        reasons.into_iter().find(|(holds, _)| *holds).map(|(_, skip)| skip)
    }

    /// Observes and counts the finished step; the floor learns from it.
    pub(super) fn observe(
        &mut self,
        decided: Result<usize, Skip>,
        (drafted, accepted): (usize, usize),
        stats: &mut PolicyStats,
    ) {
        // A step skipped for another reason does not count as a plain step of a pause.
        let counts = matches!(decided, Ok(_) | Err(Skip::BelowFloor));
        if let Some(floor) = self.floor.as_mut().filter(|_| counts) {
            stats.floor_falls += usize::from(floor.observe(drafted, accepted));
        }
        match self.bound {
            Some(Bound::Heat) => stats.heat_limited += 1,
            Some(Bound::Memory) => stats.memory_limited += 1,
            None => {}
        }
        if let (Ok(rows), DraftRows::Fixed(_)) = (decided, self.rows) {
            if stats.rows_allowed.len() <= rows {
                stats.rows_allowed.resize(rows + 1, 0);
            }
            stats.rows_allowed[rows] += 1;
        }
    }
}

impl Skip {
    /// The counter of this reason.
    pub(super) fn counter(self, off: &mut DraftingOffStats) -> &mut usize {
        match self {
            Skip::Disabled => &mut off.disabled,
            Skip::ShortOutput => &mut off.short_output,
            Skip::HighTemperature => &mut off.high_temperature,
            Skip::LowMemory => &mut off.low_memory,
            Skip::BelowFloor => &mut off.below_floor,
            Skip::MemoryPressure => &mut off.memory_pressure,
            Skip::Heat => &mut off.heat,
            Skip::NotPaid => &mut off.not_paid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::options::AcceptanceFloor;

    const COOL: (ThermalState, MemoryPressure) = (ThermalState::Nominal, MemoryPressure::Normal);

    fn policy(config: DraftPolicy, n_tokens_max: usize, temperature: f32) -> Policy {
        Policy::new(&config, &Request { drafts: true, n_tokens_max, temperature })
    }

    fn decide(
        policy: &mut Policy,
        (thermal, pressure): (ThermalState, MemoryPressure),
    ) -> Result<usize, Skip> {
        policy.decide(thermal, pressure)
    }

    #[test]
    fn rules_skip_whole_generations() {
        let skip = SkipRules { tokens_min: 5, temperature_max: Some(1.0), available_bytes_min: 0 };
        let config = DraftPolicy { skip, ..DraftPolicy::default() };
        assert_eq!(decide(&mut policy(config, 4, 0.0), COOL), Err(Skip::ShortOutput));
        assert_eq!(decide(&mut policy(config, 5, 1.1), COOL), Err(Skip::HighTemperature));
        assert_eq!(decide(&mut policy(config, 5, 1.0), COOL), Ok(usize::MAX));
        assert_eq!(
            decide(&mut policy(DraftPolicy::default(), 1, 99.0), COOL),
            Ok(usize::MAX),
            "off by default"
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_is_looked_at_again() {
        let skip = SkipRules { available_bytes_min: u64::MAX, ..SkipRules::default() };
        let mut policy = policy(DraftPolicy { skip, ..DraftPolicy::default() }, 9, 0.0);
        assert_eq!(decide(&mut policy, COOL), Err(Skip::LowMemory));
        policy.available_bytes_min = 1;
        let first = (2..100).find(|_| decide(&mut policy, COOL).is_ok());
        assert_eq!(first, Some(AVAILABLE_STEPS + 1));
    }

    #[test]
    fn the_device_bounds_whatever_is_chosen() {
        let fixed = |k| DraftPolicy { rows: DraftRows::Fixed(k), ..DraftPolicy::default() };
        let mut stats = PolicyStats::default();
        for (config, device, expected) in [
            (fixed(20), COOL, Ok(20)),
            (fixed(20), (ThermalState::Fair, MemoryPressure::Normal), Ok(15)),
            (fixed(4), (ThermalState::Serious, MemoryPressure::Warning), Ok(4)),
            (fixed(9), (ThermalState::Fair, MemoryPressure::Warning), Ok(7)),
            (fixed(9), (ThermalState::Critical, MemoryPressure::Normal), Err(Skip::Heat)),
            (fixed(9), (ThermalState::Critical, MemoryPressure::Critical), Err(Skip::MemoryPressure)),
            (DraftPolicy::default(), (ThermalState::Serious, MemoryPressure::Normal), Ok(7)),
        ] {
            let mut policy = policy(config, 9, 0.0);
            let decided = decide(&mut policy, device);
            assert_eq!(decided, expected, "{config:?} {device:?}");
            policy.observe(decided, (0, 0), &mut stats);
        }
        assert_eq!((stats.heat_limited, stats.memory_limited), (2, 1));
        assert_eq!((stats.rows_allowed[20], stats.rows_allowed[15], stats.rows_allowed[7]), (1, 1, 1));
    }

    #[test]
    fn a_pause_is_as_long_in_heat() {
        let floor = AcceptanceFloor { window: 1, rate_min: 0.5, pause: 2 };
        let mut policy = policy(DraftPolicy { floor: Some(floor), ..DraftPolicy::default() }, 9, 0.0);
        let mut stats = PolicyStats::default();
        let mut step = |thermal| {
            let decided = policy.decide(thermal, MemoryPressure::Normal);
            let drafted = if decided.is_ok() { 4 } else { 0 };
            policy.observe(decided, (drafted, 0), &mut stats);
            decided
        };
        assert!(step(ThermalState::Nominal).is_ok());
        assert_eq!(step(ThermalState::Nominal), Err(Skip::BelowFloor));
        assert_eq!(step(ThermalState::Critical), Err(Skip::Heat));
        assert_eq!(step(ThermalState::Nominal), Err(Skip::BelowFloor));
        assert!(step(ThermalState::Nominal).is_ok());
        assert_eq!(stats.floor_falls, 2);
    }
}
