//! What a history says about itself.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use thiserror::Error;

use super::HistoryError;
use super::key::RecordId;

/// A part of the folder that the history does not use.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LeftOut {
    /// The file, or the folder of a namespace, under the name that it had when the part was found.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// Bytes that are not used; 0 where they cannot be counted.
    pub bytes: u64,
    /// Why.
    pub reason: LeftOutReason,
    /// The new name of a damaged file that was set aside; its responses that can be read are kept in another file.
    pub aside: Option<PathBuf>,
}

/// Why a part of the folder is not used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LeftOutReason {
    /// An append that a crash interrupted before it was acknowledged. The writer cuts it off.
    #[error("an append that a crash interrupted")]
    Torn,
    /// The bytes are not what was written.
    #[error("damaged: {0}")]
    Damaged(&'static str),
    /// The file belongs to another model, namespace or number.
    #[error("a file of another place")]
    Misplaced,
    /// The file has a version that this program does not know.
    #[error("version {given} of the format, this program reads {known}")]
    Version {
        /// Its version.
        given: u32,
        /// The version that is known.
        known: u32,
    },
    /// The file is longer than any that the history writes.
    #[error("{bytes} bytes exceed the limit of {max}")]
    TooLarge {
        /// Its length.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The system does not let it be read.
    #[error("it cannot be read: {0}")]
    Io(io::ErrorKind),
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, byte {}", self.path.display(), self.offset)?;
        if self.bytes > 0 {
            write!(f, ", {} bytes", self.bytes)?;
        }
        write!(f, ": {}", self.reason)?;
        match &self.aside {
            Some(aside) => write!(f, " (now `{}`)", aside.display()),
            None => Ok(()),
        }
    }
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

impl LeftOut {
    fn new(path: &Path, offset: u64, bytes: u64, reason: LeftOutReason) -> Self {
        LeftOut { path: path.to_owned(), offset, bytes, reason, aside: None }
    }

    pub(super) fn damaged(path: &Path, offset: u64, bytes: u64, what: &'static str) -> Self {
        Self::new(path, offset, bytes, LeftOutReason::Damaged(what))
    }

    pub(super) fn torn(path: &Path, (offset, bytes): (u64, u64)) -> Self {
        Self::new(path, offset, bytes, LeftOutReason::Torn)
    }

    pub(super) fn is_damage(&self) -> bool {
        matches!(self.reason, LeftOutReason::Damaged(_))
    }

    /// The file that an error is about; other errors are given back.
    pub(super) fn of(error: HistoryError) -> Result<Self, HistoryError> {
        let whole = |path, bytes, reason| Ok(LeftOut { path, offset: 0, bytes, reason, aside: None });
        match error {
            HistoryError::Damaged { path, offset, what } => Ok(Self::damaged(&path, offset, 0, what)),
            HistoryError::Misplaced { path } => whole(path, 0, LeftOutReason::Misplaced),
            HistoryError::Version { path, given, known } => {
                whole(path, 0, LeftOutReason::Version { given, known })
            }
            HistoryError::TooLarge { path, bytes, max } => {
                whole(path, bytes, LeftOutReason::TooLarge { bytes, max })
            }
            HistoryError::Io { path, source, .. } => whole(path, 0, LeftOutReason::Io(source.kind())),
            error => Err(error),
        }
    }
}
