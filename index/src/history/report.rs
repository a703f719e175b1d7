//! What a history says about itself.

use std::path::{Path, PathBuf};

use super::HistoryError;
use super::disk::Disk;
use super::error::io_error;
use super::key::RecordId;
use super::log::Scan;

/// Something that was not as it should be when the history was opened, and how it was put right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// Bytes that were dropped; all from `offset` on where the file went as a whole.
    pub bytes: u64,
    /// Whether these were the remains of an append that a crash had cut short, and no damage.
    pub torn: bool,
}

/// A response in the history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordInfo {
    /// Its id, which is also when it was appended: µs from 1970.
    pub record: RecordId,
    /// Its namespace.
    pub namespace: String,
    /// Its length.
    pub n_tokens: u32,
}

/// What a namespace holds.
#[derive(Debug)]
pub struct NamespaceStats {
    /// Its name.
    pub namespace: String,
    /// Responses.
    pub n_records: u64,
    /// Their tokens.
    pub n_tokens: u64,
    /// Those of them that are still in the log.
    pub n_live_tokens: u64,
    /// Segments.
    pub n_segments: usize,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Segments that draft no more, each with what is wrong.
    pub damaged: Vec<HistoryError>,
}

/// What the history holds.
#[derive(Debug)]
pub struct HistoryStats {
    /// By name.
    pub namespaces: Vec<NamespaceStats>,
    /// Bytes on the heap, the cache included.
    pub memory_bytes: usize,
}

impl Recovered {
    pub(super) fn of_scan(path: &Path, scan: &Scan) -> Vec<Self> {
        let of = |torn| {
            move |&(offset, bytes): &(u64, u64)| Recovered { path: path.to_owned(), offset, bytes, torn }
        };
        scan.damaged.iter().map(of(false)).chain(scan.torn.iter().map(of(true))).collect()
    }

    pub(super) fn remove_segment(disk: &dyn Disk, path: PathBuf, offset: u64) -> Result<Self, HistoryError> {
        let len = disk.open(&path).and_then(|file| file.len()).map_err(io_error("read", &path))?;
        disk.remove_file(&path).map_err(io_error("remove", &path))?;
        Ok(Recovered { path, offset, bytes: len.saturating_sub(offset), torn: false })
    }
}
