//! Device state: heat, and memory pressure.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::face::internals;
use crate::kernels::SPIN_TIME_DEFAULT;

/// Thermal state of the device, with the levels of iOS (`ProcessInfo.ThermalState`). No state changes the
/// output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum ThermalState {
    /// Normal: nothing is bounded. Android: `THERMAL_STATUS_NONE`, `LIGHT`.
    #[default]
    Nominal,
    /// Slightly warm: a step drafts at most 15 rows. Android: `MODERATE`.
    Fair,
    /// Hot: a step drafts at most 7 rows, and half of the threads compute, rounded up. Android: `SEVERE`.
    Serious,
    /// The system is about to throttle: no drafts, one thread. Android: `CRITICAL`, `EMERGENCY`, `SHUTDOWN`.
    Critical,
}

impl ThermalState {
    const ALL: [Self; 4] = [Self::Nominal, Self::Fair, Self::Serious, Self::Critical];

    /// The state of an Android status (`PowerManager.THERMAL_STATUS_*`, 0 to 6). Unknown values count as the
    /// nearest known value.
    pub fn from_android(status: i32) -> Self {
        match status {
            ..=1 => Self::Nominal,
            2 => Self::Fair,
            3 => Self::Serious,
            4.. => Self::Critical,
        }
    }

    internals! {
        /// Maximum draft rows of a step, without the root.
        fn draft_rows_max(self) -> usize {
            match self {
                Self::Nominal => usize::MAX,
                // With the root: whole batches of 16 and of 8 rows.
                Self::Fair => 15,
                Self::Serious => 7,
                Self::Critical => 0,
            }
        }
    }

    /// Number of computing threads, of `n_threads`.
    pub(crate) fn n_threads(self, n_threads: usize) -> usize {
        match self {
            Self::Nominal | Self::Fair => n_threads,
            Self::Serious => n_threads.div_ceil(2),
            Self::Critical => 1,
        }
    }
}

/// Memory pressure on the device, with the levels of iOS (`DISPATCH_MEMORYPRESSURE_*`). No level changes the
/// output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum MemoryPressure {
    /// Memory suffices. Released buffers are rebuilt when needed. Android: below `TRIM_MEMORY_RUNNING_LOW`.
    #[default]
    Normal,
    /// Releases calibration with its shortlist, kept segments of rejected drafts, and scratch memory. Echo learns nothing;
    /// its lists stay, because sessions share them. Until pressure is normal again, none of these is rebuilt, and a step drafts at most 7 rows.
    /// Android: `TRIM_MEMORY_RUNNING_LOW`; for an invisible app `UI_HIDDEN` and `BACKGROUND`.
    Warning,
    /// Also releases the automata and the draft model's keys and values, so nothing is drafted until pressure
    /// falls, and the responses of the engine's [`HistoryStore`](crate::HistoryStore), which are not kept elsewhere: drafts are fewer until
    /// later responses come. A streamed model also releases its pinned layers and all ring buffers except two. A session that waits
    /// gives up its KV cache in [`Session::release_memory`](crate::Session::release_memory), and computes it again from its tokens when it
    /// goes on; a running generation keeps it. Android: `TRIM_MEMORY_RUNNING_CRITICAL`, `MODERATE`, `COMPLETE`.
    Critical,
}

impl MemoryPressure {
    const ALL: [Self; 3] = [Self::Normal, Self::Warning, Self::Critical];

    /// The level of an Android call of `onTrimMemory` (`ComponentCallbacks2.TRIM_MEMORY_*`).
    pub fn from_android(level: i32) -> Self {
        match level {
            ..10 => Self::Normal,
            // RUNNING_LOW; Android sends UI_HIDDEN and BACKGROUND to invisible apps, and they are less urgent
            // than MODERATE.
            10..15 | 20..60 => Self::Warning,
            15..20 | 60.. => Self::Critical,
        }
    }

    /// The highest level set in an iOS flag word (`DISPATCH_MEMORYPRESSURE_NORMAL`, `WARN`, `CRITICAL`: 1, 2,
    /// 4).
    pub fn from_ios(flags: u64) -> Self {
        match flags {
            _ if flags & 4 != 0 => Self::Critical,
            _ if flags & 2 != 0 => Self::Warning,
            _ => Self::Normal,
        }
    }

    internals! {
        /// Maximum draft rows of a step, without the root.
        fn draft_rows_max(self) -> usize {
            match self {
                Self::Normal => usize::MAX,
                Self::Warning => 7,
                Self::Critical => 0,
            }
        }
    }
}

/// Power supply of the device. It bounds the time that idle threads wait with a busy processor for the next part of a
/// step; longer waits sleep and wake up some µs later. No state changes the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum PowerState {
    /// On mains: 100 µs, so that the threads stay awake while a step drafts.
    #[default]
    Mains,
    /// On battery: 30 µs, the gaps within a pass.
    Battery,
    /// The user saves power: threads sleep at once.
    Saver,
}

impl PowerState {
    const ALL: [Self; 3] = [Self::Mains, Self::Battery, Self::Saver];

    /// Maximum time that an idle thread spins.
    pub(crate) fn spin_time(self) -> Duration {
        match self {
            Self::Mains => SPIN_TIME_DEFAULT,
            Self::Battery => Duration::from_micros(30),
            Self::Saver => Duration::ZERO,
        }
    }
}

/// The newest reports. Every session of an engine reads them at its next step.
#[derive(Debug, Default)]
pub(crate) struct DeviceState {
    thermal: AtomicU8,
    power: AtomicU8,
    /// The call count, with the level in the lowest byte. Each call makes sessions release again, even at an
    /// unchanged level.
    pressure: AtomicU64,
}

/// A report of memory pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PressureReport {
    n_calls: u64,
    pub(crate) level: MemoryPressure,
}

impl DeviceState {
    pub(crate) fn set_thermal(&self, state: ThermalState) {
        self.thermal.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn thermal(&self) -> ThermalState {
        ThermalState::ALL[usize::from(self.thermal.load(Ordering::Relaxed))]
    }

    pub(crate) fn set_power(&self, state: PowerState) {
        self.power.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn power(&self) -> PowerState {
        PowerState::ALL[usize::from(self.power.load(Ordering::Relaxed))]
    }

    pub(crate) fn set_pressure(&self, level: MemoryPressure) {
        let next = |bits: u64| Some(((bits >> 8) + 1) << 8 | level as u64);
        // `next` always returns `Some`.
        let _ = self.pressure.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    pub(crate) fn pressure(&self) -> PressureReport {
        let bits = self.pressure.load(Ordering::Relaxed);
        PressureReport { n_calls: bits >> 8, level: MemoryPressure::ALL[(bits & 0xFF) as usize] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_systems_report_has_a_level() {
        let thermal: Vec<_> = (-1..=7).map(ThermalState::from_android).collect();
        assert!(thermal.is_sorted());
        assert_eq!([1, 2, 3, 4].map(ThermalState::from_android), ThermalState::ALL);
        use MemoryPressure::{Critical, Normal, Warning};
        for (level, expected) in [
            (0, Normal),
            (5, Normal),
            (10, Warning),
            (15, Critical),
            (20, Warning),
            (40, Warning),
            (60, Critical),
            (80, Critical),
        ] {
            assert_eq!(MemoryPressure::from_android(level), expected, "{level}");
        }
        assert_eq!(
            [0, 1, 2, 4, 6].map(MemoryPressure::from_ios),
            [Normal, Normal, Warning, Critical, Critical]
        );
    }

    #[test]
    fn worse_states_bound_more() {
        for pair in ThermalState::ALL.windows(2) {
            assert!(pair[0].draft_rows_max() > pair[1].draft_rows_max());
            assert!(
                (1..9).all(|n| pair[0].n_threads(n) >= pair[1].n_threads(n) && pair[1].n_threads(n) >= 1)
            );
        }
        assert!(
            MemoryPressure::ALL.windows(2).all(|pair| pair[0].draft_rows_max() > pair[1].draft_rows_max())
        );
    }

    #[test]
    fn every_call_is_news() {
        let device = DeviceState::default();
        assert_eq!((device.thermal(), device.pressure()), (ThermalState::Nominal, PressureReport::default()));
        for level in MemoryPressure::ALL.into_iter().chain([MemoryPressure::Critical]) {
            let before = device.pressure();
            device.set_pressure(level);
            assert_eq!(device.pressure().level, level);
            assert_ne!(device.pressure(), before);
        }
        for state in PowerState::ALL {
            device.set_power(state);
            assert_eq!(device.power(), state);
        }
        assert!(PowerState::ALL.is_sorted_by(|a, b| a.spin_time() > b.spin_time()));
        for state in ThermalState::ALL {
            device.set_thermal(state);
            assert_eq!(device.thermal(), state);
        }
    }
}
