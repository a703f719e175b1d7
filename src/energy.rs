//! Energy: what the device has used, where the system or the app tells it.
//!
//! The counters are those of a whole package or device, not of one program: a figure is that of an answer only if
//! nothing else runs. Linux has counters of Intel and AMD processors under `/sys/class/powercap` (RAPL), which only root
//! may read on most systems. On phones the app supplies an [`EnergyMeter`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use thiserror::Error;

use crate::error::LoadError;
use refrain_files::{ErrorKind, Facts, Fault};

/// A counter of energy.
///
/// On Android an app can use `BatteryManager.BATTERY_PROPERTY_CHARGE_COUNTER` times the voltage, or the power rails of
/// the device.
pub trait EnergyMeter: Send + Sync {
    /// Joules since a moment that stays the same for the life of the meter; never falls. `None` if the counter cannot
    /// be read now. Called at the start and at the end of the decoding of each generation, from its thread.
    fn joules(&self) -> Option<f64>;
}

/// The energy of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct EnergyStats {
    /// Joules of the device from the end of the prefill to the end of the output.
    pub decode_joules: f64,
    /// `decode_joules` divided by the output tokens.
    pub joules_per_token: f64,
}

impl EnergyStats {
    /// `None` without a reading at both ends, or without tokens.
    pub(crate) fn between(start: Option<f64>, end: Option<f64>, n_tokens: usize) -> Option<Self> {
        let decode_joules = end? - start?;
        let is_reading = decode_joules.is_finite() && decode_joules >= 0.0;
        (is_reading && n_tokens > 0)
            .then(|| Self { decode_joules, joules_per_token: decode_joules / n_tokens as f64 })
    }
}

/// The energy counters of the processor packages and their memory, from Linux's powercap files (RAPL of Intel and AMD).
///
/// A counter wraps after about 260 kJ: an hour at 70 W. A meter that is not read for longer misses the wraps.
#[derive(Debug)]
pub struct Powercap {
    zones: Vec<Zone>,
    /// The last reading of each zone in µJ, and the sum of all differences.
    state: Mutex<(Vec<u64>, u64)>,
}

#[derive(Debug)]
struct Zone {
    counter: PathBuf,
    /// The counter's values are below this number of µJ; 0 if unknown.
    range_uj: u64,
}

/// The counters of the processor cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PowercapError {
    /// The system has no counters: no such folder (another system, a virtual machine), or no package in it.
    #[error("{path}: no energy counter of a processor package")]
    NoCounter {
        /// The folder.
        path: PathBuf,
    },
    /// The process may not read a counter. Most systems allow it to root only.
    #[error("{path}: no permission to read the energy counter")]
    Permission {
        /// The counter's file.
        path: PathBuf,
    },
    /// A counter cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The counter's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A counter is not a number.
    #[error("{path}: not a number of microjoules: {text:?}")]
    Malformed {
        /// The counter's file.
        path: PathBuf,
        /// The beginning of its content.
        text: String,
    },
}

impl Fault for PowercapError {
    fn facts(&self) -> Facts<'_> {
        match self {
            Self::NoCounter { path } => Facts::new(ErrorKind::NotFound).file(path),
            Self::Permission { path } => Facts::new(ErrorKind::Io).file(path),
            Self::Io { path, source } => Facts::io(source.kind()).file(path),
            Self::Malformed { path, .. } => Facts::new(ErrorKind::Damaged).file(path),
        }
    }
}

/// Maximum zones; a server has a package and a memory zone for each of its few sockets.
const ZONES_MAX: usize = 256;
/// Maximum bytes read of a file; a number or a name is far shorter.
const FILE_BYTES_MAX: u64 = 256;

impl Powercap {
    /// Opens the counters of this machine.
    ///
    /// # Errors
    /// Kind [`NotFound`](crate::ErrorKind::NotFound): there are none; [`Io`](crate::ErrorKind::Io): this process may not read them.
    pub fn open() -> Result<Self, LoadError> {
        Self::open_at(Path::new("/sys/class/powercap"))
    }

    /// As [`Powercap::open`], with the folder that has the zones (`intel-rapl:0`, `intel-rapl:0:2`, …).
    ///
    /// # Errors
    /// As [`Powercap::open`].
    pub fn open_at(folder: &Path) -> Result<Self, LoadError> {
        let none = || PowercapError::NoCounter { path: folder.to_owned() };
        let entries = fs::read_dir(folder).map_err(|_| none())?;
        let mut names: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.file_name()).collect();
        names.sort();
        let mut zones = Vec::new();
        // `intel-rapl-mmio` repeats the package through another interface.
        let is_zone = |name: &&std::ffi::OsString| name.to_string_lossy().starts_with("intel-rapl:");
        for name in names.iter().filter(is_zone).take(ZONES_MAX) {
            let zone = folder.join(name);
            // A package includes its cores and graphics, and not its memory. `psys` is the whole device, packages
            // included, on some laptops only.
            let kind = read(&zone.join("name")).unwrap_or_default();
            if kind.trim().starts_with("package") || kind.trim() == "dram" {
                let counter = zone.join("energy_uj");
                number(&counter)?;
                let range_uj = number(&zone.join("max_energy_range_uj")).unwrap_or(0);
                zones.push(Zone { counter, range_uj });
            }
        }
        if zones.is_empty() {
            return Err(none().into());
        }
        let last = zones.iter().map(|zone| number(&zone.counter)).collect::<Result<_, PowercapError>>()?;
        Ok(Self { zones, state: Mutex::new((last, 0)) })
    }
}

impl EnergyMeter for Powercap {
    fn joules(&self) -> Option<f64> {
        let now: Vec<u64> =
            self.zones.iter().map(|zone| number(&zone.counter).ok()).collect::<Option<_>>()?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, sum) = &mut *state;
        for ((last, now), zone) in last.iter_mut().zip(now).zip(&self.zones) {
            // A smaller number has wrapped. Without a range it counts from zero.
            let passed = now.checked_sub(*last);
            *sum += passed.unwrap_or_else(|| zone.range_uj.saturating_sub(*last).saturating_add(now));
            *last = now;
        }
        Some(*sum as f64 / 1e6)
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(fs::File::open(path)?, FILE_BYTES_MAX), &mut text)?;
    Ok(text)
}

fn number(path: &Path) -> Result<u64, PowercapError> {
    let text = read(path).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => PowercapError::Permission { path: path.to_owned() },
        _ => PowercapError::Io { path: path.to_owned(), source },
    })?;
    text.trim().parse().map_err(|_| PowercapError::Malformed {
        path: path.to_owned(),
        text: text.chars().take(40).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of zones: name, kind, counter, range.
    fn folder(zones: &[(&str, &str, &str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (zone, kind, counter, range) in zones {
            let zone = root.path().join(zone);
            fs::create_dir_all(&zone).unwrap();
            for (file, text) in [("name", kind), ("energy_uj", counter), ("max_energy_range_uj", range)] {
                fs::write(zone.join(file), format!("{text}\n")).unwrap();
            }
        }
        root
    }

    fn set(root: &tempfile::TempDir, zone: &str, uj: u64) {
        fs::write(root.path().join(zone).join("energy_uj"), format!("{uj}\n")).unwrap();
    }

    #[test]
    fn packages_and_memory_add_up_across_wraps() {
        let root = folder(&[
            ("intel-rapl", "control", "", ""),
            ("intel-rapl:0", "package-0", "900000", "1000000"),
            ("intel-rapl:0:0", "core", "700000", "1000000"),
            ("intel-rapl:0:1", "dram", "5", "1000000"),
            ("intel-rapl:1", "psys", "1", "1000000"),
            ("intel-rapl-mmio:0", "package-0", "900000", "1000000"),
        ]);
        let meter = Powercap::open_at(root.path()).unwrap();
        assert_eq!(meter.zones.len(), 2);
        assert_eq!(meter.joules(), Some(0.0));
        set(&root, "intel-rapl:0", 950_000);
        set(&root, "intel-rapl:0:1", 250_005);
        assert_eq!(meter.joules(), Some(0.3));
        // 50,000 to the end, then 150,000.
        set(&root, "intel-rapl:0", 150_000);
        assert_eq!(meter.joules(), Some(0.5));
        // A reading that fails leaves the sum.
        fs::write(root.path().join("intel-rapl:0").join("energy_uj"), "?").unwrap();
        assert_eq!(meter.joules(), None);
        set(&root, "intel-rapl:0", 250_000);
        assert_eq!(meter.joules(), Some(0.6));
    }

    #[test]
    fn a_system_without_counters_says_so() {
        let open = |root: &Path| Powercap::open_at(root).unwrap_err();
        assert!(matches!(open(Path::new("/nowhere/at/all")).detail(), Some(PowercapError::NoCounter { .. })));
        assert!(matches!(open(folder(&[]).path()).detail(), Some(PowercapError::NoCounter { .. })));
        let psys = folder(&[("intel-rapl:1", "psys", "1", "9")]);
        assert!(matches!(open(psys.path()).detail(), Some(PowercapError::NoCounter { .. })));
        let odd = folder(&[("intel-rapl:0", "package-0", "many", "9")]);
        assert!(
            matches!(open(odd.path()).detail(), Some(PowercapError::Malformed { text, .. }) if text == "many\n")
        );
        let gone = folder(&[("intel-rapl:0", "package-0", "1", "9")]);
        fs::remove_file(gone.path().join("intel-rapl:0").join("energy_uj")).unwrap();
        assert!(matches!(open(gone.path()).detail(), Some(PowercapError::Io { .. })));
    }

    #[cfg(unix)]
    #[test]
    fn a_counter_of_root_is_a_permission_error() {
        use std::os::unix::fs::PermissionsExt;
        let root = folder(&[("intel-rapl:0", "package-0", "1", "9")]);
        let counter = root.path().join("intel-rapl:0").join("energy_uj");
        fs::set_permissions(&counter, fs::Permissions::from_mode(0o000)).unwrap();
        // Root reads it anyway.
        if fs::File::open(&counter).is_err() {
            let error = Powercap::open_at(root.path()).unwrap_err();
            assert!(matches!(error.detail(), Some(PowercapError::Permission { path }) if *path == counter));
        }
    }

    #[test]
    fn statistics_need_two_readings_and_a_token() {
        let stats = EnergyStats::between(Some(2.0), Some(5.0), 6).unwrap();
        assert_eq!((stats.decode_joules, stats.joules_per_token), (3.0, 0.5));
        for (start, end, n) in
            [(None, Some(1.0), 1), (Some(1.0), None, 1), (Some(1.0), Some(2.0), 0), (Some(2.0), Some(1.0), 1)]
        {
            assert_eq!(EnergyStats::between(start, end, n), None);
        }
        assert_eq!(EnergyStats::between(Some(0.0), Some(f64::NAN), 1), None);
    }
}
