//! What tells an unchanged file without reading it.
//!
//! A file counts as unchanged only if its length, its inode, its time of modification *and* its time of change are the
//! stored ones, and if both times lay at least two seconds before the moment at which it was read. The system sets the
//! time of change (Unix) at every write and rename, so a program that restores the time of modification is noticed. The
//! two seconds exceed the resolution of every file system: a write after the reading then has another time, even if
//! both fall into one tick. A clock that went backwards gives files times in the future of the reading, or new times
//! that differ from the stored ones; both are read again. Other systems have no time of change; there, a program that
//! restores the time of modification of a file of the same length is noticed only with
//! [`NotesOptions::reads_all`](super::NotesOptions::reads_all).

use std::fs::Metadata;
use std::time::{SystemTime, UNIX_EPOCH};

/// Least age of a file's times at its reading, in ns. FAT stores times to two seconds.
const SETTLED_NS: i64 = 2_000_000_000;

/// A file's length, times and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) bytes: u64,
    /// ns since 1970.
    pub(super) modified: i64,
    /// ns since 1970; 0 where the system has no such time.
    pub(super) changed: i64,
    pub(super) inode: u64,
}

impl Stamp {
    pub(super) fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
            Self {
                bytes: metadata.len(),
                modified: ns(metadata.mtime(), metadata.mtime_nsec()),
                changed: ns(metadata.ctime(), metadata.ctime_nsec()),
                inode: metadata.ino(),
            }
        }
        #[cfg(not(unix))]
        Self {
            bytes: metadata.len(),
            modified: metadata.modified().map_or(i64::MAX, since_1970),
            changed: 0,
            inode: 0,
        }
    }

    /// Whether a file with this stamp, read at `now` (ns since 1970), cannot change later without another stamp.
    pub(super) fn is_settled(&self, now: i64) -> bool {
        self.modified.max(self.changed) <= now.saturating_sub(SETTLED_NS)
    }

    /// Seconds since 1970 of the modification.
    pub(super) fn seconds(&self) -> i64 {
        self.modified.div_euclid(1_000_000_000)
    }
}

/// ns since 1970.
pub(super) fn since_1970(time: SystemTime) -> i64 {
    let ns = |duration: std::time::Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => ns(after),
        Err(before) => -ns(before.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn young_and_future_files_are_not_settled() {
        let second = 1_000_000_000;
        let stamp = |modified, changed| Stamp { bytes: 1, modified, changed, inode: 1 };
        assert!(stamp(5 * second, 6 * second).is_settled(8 * second));
        assert!(!stamp(5 * second, 7 * second).is_settled(8 * second), "too young");
        assert!(!stamp(9 * second, 1).is_settled(8 * second), "the clock went backwards");
        assert!(!stamp(i64::MAX, 0).is_settled(i64::MIN));
    }
}
