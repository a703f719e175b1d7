//! What the device reports: heat, and memory that others need.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// How hot the device is, in the words of iOS (`ProcessInfo.ThermalState`). None of it changes a bit of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThermalState {
    /// As it should be: nothing is bounded. Android: `THERMAL_STATUS_NONE`, `LIGHT`.
    #[default]
    Nominal,
    /// Getting warm: a step drafts 15 rows at most. Android: `MODERATE`.
    Fair,
    /// Hot: 7 rows at most, on half of the threads, rounded up. Android: `SEVERE`.
    Serious,
    /// The system is about to take measures of its own: no drafts, one thread. Android: `CRITICAL`, `EMERGENCY`, `SHUTDOWN`.
    Critical,
}

impl ThermalState {
    const ALL: [Self; 4] = [Self::Nominal, Self::Fair, Self::Serious, Self::Critical];

    /// The state of an Android status (`PowerManager.THERMAL_STATUS_*`, 0 to 6). What is not known counts as the nearest.
    pub fn from_android(status: i32) -> Self {
        match status {
            ..=1 => Self::Nominal,
            2 => Self::Fair,
            3 => Self::Serious,
            4.. => Self::Critical,
        }
    }

    /// Rows that a step may draft, the root not counted.
    pub fn draft_rows_max(self) -> usize {
        match self {
            Self::Nominal => usize::MAX,
            // With the root, whole batches of 16 and of 8.
            Self::Fair => 15,
            Self::Serious => 7,
            Self::Critical => 0,
        }
    }

    /// Of `n_threads`, those that compute.
    pub fn n_threads(self, n_threads: usize) -> usize {
        match self {
            Self::Nominal | Self::Fair => n_threads,
            Self::Serious => n_threads.div_ceil(2),
            Self::Critical => 1,
        }
    }
}

/// How much memory others need, in the words of iOS (`DISPATCH_MEMORYPRESSURE_*`). None of it changes a bit of the output, and the KV
/// cache stays, so that a session goes on where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPressure {
    /// There is enough. What was released comes back as it is needed. Android: below `TRIM_MEMORY_RUNNING_LOW`.
    #[default]
    Normal,
    /// Releases calibration with its shortlist, kept segments of rejected drafts, and scratch memory; until it is normal again, the
    /// first two are not made anew, and a step drafts 7 rows at most. Android: `TRIM_MEMORY_RUNNING_LOW`, and while the app is
    /// not seen `UI_HIDDEN` and `BACKGROUND`.
    Warning,
    /// Also releases the automata and the draft model's keys and values, so that nothing is drafted until it is better; of a
    /// streamed model also the pinned layers, and all of the ring but two buffers. Android: `TRIM_MEMORY_RUNNING_CRITICAL`,
    /// `MODERATE`, `COMPLETE`.
    Critical,
}

impl MemoryPressure {
    const ALL: [Self; 3] = [Self::Normal, Self::Warning, Self::Critical];

    /// The level of an Android call of `onTrimMemory` (`ComponentCallbacks2.TRIM_MEMORY_*`).
    pub fn from_android(level: i32) -> Self {
        match level {
            ..10 => Self::Normal,
            // RUNNING_LOW; UI_HIDDEN and BACKGROUND come to apps that are not seen, and ask for less than MODERATE does.
            10..15 | 20..60 => Self::Warning,
            15..20 | 60.. => Self::Critical,
        }
    }

    /// The level of a source of iOS (`DISPATCH_MEMORYPRESSURE_NORMAL`, `WARN`, `CRITICAL`: 1, 2, 4), the highest one set.
    pub fn from_ios(flags: u64) -> Self {
        match flags {
            _ if flags & 4 != 0 => Self::Critical,
            _ if flags & 2 != 0 => Self::Warning,
            _ => Self::Normal,
        }
    }

    /// Rows that a step may draft, the root not counted.
    pub fn draft_rows_max(self) -> usize {
        match self {
            Self::Normal => usize::MAX,
            Self::Warning => 7,
            Self::Critical => 0,
        }
    }
}

/// What was reported last, for every session of an engine to see at its next step.
#[derive(Debug, Default)]
pub(crate) struct Device {
    thermal: AtomicU8,
    /// The number of the call, and in the lowest byte its level: each call asks sessions to release again.
    pressure: AtomicU64,
}

/// A report of memory pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PressureReport {
    n_calls: u64,
    pub(crate) level: MemoryPressure,
}

impl Device {
    pub(crate) fn set_thermal(&self, state: ThermalState) {
        self.thermal.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn thermal(&self) -> ThermalState {
        ThermalState::ALL[usize::from(self.thermal.load(Ordering::Relaxed))]
    }

    pub(crate) fn set_pressure(&self, level: MemoryPressure) {
        let next = |bits: u64| Some(((bits >> 8) + 1) << 8 | level as u64);
        // The function never declines.
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
        let device = Device::default();
        assert_eq!((device.thermal(), device.pressure()), (ThermalState::Nominal, PressureReport::default()));
        for level in MemoryPressure::ALL.into_iter().chain([MemoryPressure::Critical]) {
            let before = device.pressure();
            device.set_pressure(level);
            assert_eq!(device.pressure().level, level);
            assert_ne!(device.pressure(), before);
        }
        for state in ThermalState::ALL {
            device.set_thermal(state);
            assert_eq!(device.thermal(), state);
        }
    }
}
