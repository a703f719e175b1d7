//! What loading has measured, kept for later starts: the times of rows, in one file in the user's folder of caches.
//!
//! The file is a cache: if it is missing, old, damaged, of another version or cannot be written, rows are measured as without it. It holds
//! times and names of hardware, and no text; it is private all the same, like every file that the user has not asked for.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use refrain::Engine;
use refrain::internals::engine::MeasuredCosts;
use refrain_files::open_regular;
use refrain_files::replace::{Manner, ReplaceError, create_private_folder, failed, replace_bytes};
use refrain_program::place::cache_folder;
use serde::{Deserialize, Serialize};

/// The format version of this program.
const VERSION: u32 = 1;

/// The name of the file.
const NAME: &str = "row-times.json";

/// Maximum size of the file; a full one takes less.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Models and settings that are remembered; a further one replaces the oldest.
const ENTRIES_MAX: usize = 64;

/// Seconds for which times are used: systems, cooling and what else runs change. A month, so that hardly a start measures.
const AGE_MAX_S: u64 = 30 * 24 * 3600;

/// Costs that earlier starts have measured.
#[derive(Debug)]
pub(crate) struct Prices {
    /// The folder of the file; `None`: there is none, or this run may write nothing.
    folder: Option<PathBuf>,
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Seconds since 1970.
    measured_at: u64,
    measured: MeasuredCosts,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    /// The newest last.
    entries: Vec<Entry>,
}

impl Prices {
    /// Those of this user. Without `keeps`, nothing will be written.
    pub(crate) fn of_user(keeps: bool) -> Self {
        cache_folder().map_or(Self { folder: None, entries: Vec::new() }, |folder| Self::open(folder, keeps))
    }

    fn open(folder: PathBuf, keeps: bool) -> Self {
        let entries = read(&folder, now());
        Self { folder: keeps.then_some(folder), entries }
    }

    /// What an engine may use.
    pub(crate) fn measured(&self) -> Vec<MeasuredCosts> {
        self.entries.iter().map(|entry| entry.measured.clone()).collect()
    }

    /// Keeps what the engine has measured itself. What cannot be kept is measured again by the next start.
    pub(crate) fn keep(&self, engine: &Engine) {
        self.keep_measured(engine.device().measured_costs(), now());
    }

    fn keep_measured(&self, new: Vec<MeasuredCosts>, now: u64) {
        let Some(folder) = self.folder.as_deref().filter(|_| !new.is_empty()) else { return };
        // Other processes may have written meanwhile. If two write at the same moment, the later one wins, and the other's are measured again.
        let mut entries = read(folder, now);
        for measured in new {
            entries.retain(|entry| !entry.measured.is_of_same(&measured));
            entries.push(Entry { measured_at: now, measured });
        }
        let n_left = entries.len().min(ENTRIES_MAX);
        entries.drain(..entries.len() - n_left);
        // A place that cannot be written is no reason to trouble the user: the answer is the same.
        let _ = write(folder, &Stored { version: VERSION, entries });
    }
}

/// The entries that are not too old; none if the file cannot be used.
fn read(folder: &Path, now: u64) -> Vec<Entry> {
    let Some(stored) = read_file(&folder.join(NAME)).filter(|stored| stored.version == VERSION) else {
        return Vec::new();
    };
    // A time in the future is that of a clock that was wrong.
    let is_fresh = |entry: &Entry| now.checked_sub(entry.measured_at).is_some_and(|age| age <= AGE_MAX_S);
    let mut entries: Vec<Entry> = stored.entries.into_iter().filter(is_fresh).collect();
    entries.truncate(ENTRIES_MAX);
    entries
}

fn read_file(path: &Path) -> Option<Stored> {
    let mut text = Vec::new();
    open_regular(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn write(folder: &Path, stored: &Stored) -> Result<(), ReplaceError> {
    let path = folder.join(NAME);
    let text = serde_json::to_vec(stored).map_err(|error| failed("write", &path)(error.into()))?;
    create_private_folder(folder).map_err(failed("create", folder))?;
    replace_bytes(&path, Manner::PrivateNotDurable, &text)
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use refrain::EngineOptions;
    use refrain::checkpoint::Checkpoint;
    use refrain::internals::engine::CostsOrigin;

    use super::*;

    const NOW: u64 = 2_000_000_000;

    fn engine(n_threads: usize, measured: Vec<MeasuredCosts>) -> Engine {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/target.gguf");
        let options = EngineOptions { n_threads: Some(n_threads), ..EngineOptions::default() };
        Engine::load_measured(&Checkpoint::open(model).unwrap(), options, measured, |_, _| {}).unwrap()
    }

    fn measured(n_threads: usize) -> Vec<MeasuredCosts> {
        let measured = engine(n_threads, Vec::new()).device().measured_costs();
        assert_eq!(measured.len(), 1);
        measured
    }

    fn kept_in(folder: &Path) -> Prices {
        Prices { folder: Some(folder.to_owned()), entries: read(folder, NOW) }
    }

    #[test]
    fn what_one_start_has_measured_the_next_one_uses() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("cache/refrain");
        let first = measured(1);
        kept_in(&place).keep_measured(first.clone(), NOW);
        let kept = kept_in(&place).measured();
        assert_eq!(kept, first, "every number is read as it was");
        let again = engine(1, kept.clone());
        assert_eq!(
            (again.device().costs_origin(), again.device().measured_costs()),
            (CostsOrigin::Kept, vec![])
        );
        let other = engine(2, kept);
        assert_eq!(other.device().costs_origin(), CostsOrigin::Measured);
        // Both settings are remembered, each once.
        kept_in(&place).keep_measured(other.device().measured_costs(), NOW);
        kept_in(&place).keep_measured(first, NOW);
        assert_eq!(kept_in(&place).measured().len(), 2);
        let names: Vec<_> = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [NAME], "no unfinished file is left");
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
            assert_eq!((mode(&place), mode(&place.join(NAME))), (0o700, 0o600));
        }
    }

    #[test]
    fn old_times_and_those_of_a_wrong_clock_are_not_used() {
        let folder = tempfile::tempdir().unwrap();
        kept_in(folder.path()).keep_measured(measured(1), NOW);
        for (now, n) in [(NOW, 1), (NOW + AGE_MAX_S, 1), (NOW + AGE_MAX_S + 1, 0), (NOW - 1, 0)] {
            assert_eq!(read(folder.path(), now).len(), n, "{now}");
        }
    }

    #[test]
    fn a_file_that_is_damaged_or_of_another_version_is_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let measured = measured(1);
        kept_in(folder.path()).keep_measured(measured.clone(), NOW);
        let whole = fs::read_to_string(&path).unwrap();
        let long = format!("{whole}{}", " ".repeat(FILE_BYTES_MAX as usize));
        let others = ["", "{", "[]", "null", &whole[..whole.len() / 2], &long[..]];
        let other_version = whole.replacen("\"version\":1", "\"version\":9", 1);
        for other in others.into_iter().chain([&other_version[..]]) {
            fs::write(&path, other).unwrap();
            // Spaces behind the object do no harm.
            let n = usize::from(other.len() as u64 > FILE_BYTES_MAX);
            assert_eq!(read(folder.path(), NOW).len(), n, "{:?}", &other[..other.len().min(40)]);
            kept_in(folder.path()).keep_measured(measured.clone(), NOW);
            assert_eq!(read(folder.path(), NOW).len(), 1, "the next start replaces it");
        }
    }

    #[test]
    fn a_place_that_cannot_be_written_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("file");
        fs::write(&blocked, "mine").unwrap();
        for place in [blocked.clone(), blocked.join("below")] {
            let prices = kept_in(&place);
            prices.keep_measured(measured(1), NOW);
            assert_eq!(kept_in(&place).measured(), []);
        }
        assert_eq!(fs::read_to_string(&blocked).unwrap(), "mine");
        // A folder in the place of the file.
        fs::create_dir(folder.path().join(NAME)).unwrap();
        kept_in(folder.path()).keep_measured(measured(1), NOW);
        assert_eq!(kept_in(folder.path()).measured(), []);
    }

    #[test]
    fn a_run_that_keeps_nothing_reads_and_does_not_write() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("refrain");
        let new = measured(1);
        Prices::open(place.clone(), false).keep_measured(new.clone(), now());
        assert!(!place.exists());
        Prices::open(place.clone(), true).keep_measured(new.clone(), now());
        assert_eq!(Prices::open(place, false).measured(), new);
    }

    #[test]
    fn the_file_has_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let of_one = serde_json::to_string(&measured(1)[0]).unwrap();
        let of_threads = |n: usize| -> MeasuredCosts {
            serde_json::from_str(&of_one.replace("\"n_threads\":1", &format!("\"n_threads\":{n}"))).unwrap()
        };
        for n in 1..=ENTRIES_MAX + 2 {
            kept_in(folder.path()).keep_measured(vec![of_threads(n)], NOW);
        }
        let kept = kept_in(folder.path()).measured();
        assert_eq!(kept.len(), ENTRIES_MAX);
        assert!(
            kept[0].is_of_same(&of_threads(3))
                && kept[ENTRIES_MAX - 1].is_of_same(&of_threads(ENTRIES_MAX + 2))
        );
    }
}
