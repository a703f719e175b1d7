//! Reports of a history about its contents and unused parts.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use thiserror::Error;

use super::HistoryError;
use super::key::RecordId;
use crate::seal::KeyProblem;

/// A part of the folder that the history does not use.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LeftOut {
    /// The file, under its name at the time of detection.
    pub path: PathBuf,
    /// The offset.
    pub offset: u64,
    /// Number of unused bytes; 0 if it is unknown.
    pub bytes: u64,
    /// The reason.
    pub reason: LeftOutReason,
    /// The new name of a damaged file that was set aside. Its readable responses are kept in another file.
    pub aside: Option<PathBuf>,
}

/// The reason why a part of the folder is not used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LeftOutReason {
    /// An append was interrupted by a crash before it was acknowledged. The writer cuts it off.
    #[error("an append interrupted by a crash")]
    Torn,
    /// The bytes differ from the written ones.
    #[error("damaged: {0}")]
    Damaged(&'static str),
    /// The file belongs to another model, namespace or number.
    #[error("a file of another model, namespace or number")]
    Misplaced,
    /// The version of the file is not supported.
    #[error("version {given} of the format, this program reads {known}")]
    Version {
        /// Its version.
        given: u32,
        /// The supported version.
        known: u32,
    },
    /// The file is longer than any valid file of the history.
    #[error("{bytes} bytes exceed the limit of {max}")]
    TooLarge {
        /// Its length.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The file is encrypted and the history is not, or the reverse.
    #[error("{0}")]
    Key(KeyProblem),
    /// The file cannot be read.
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
    /// Its id: the time of its append in µs since 1970.
    pub record: RecordId,
    /// Its namespace.
    pub namespace: String,
    /// Its length.
    pub n_tokens: u32,
}

/// Statistics of a namespace.
#[derive(Debug)]
pub struct NamespaceStats {
    /// Its name.
    pub namespace: String,
    /// Number of responses.
    pub n_records: u64,
    /// Number of tokens.
    pub n_tokens: u64,
    /// Tokens that are still in the log.
    pub n_live_tokens: u64,
    /// Number of segments.
    pub n_segments: usize,
    /// Bytes of all its files, without those of other hosts.
    pub bytes: u64,
    /// Number of segments of other hosts, which are searched too.
    pub n_pulled: usize,
    /// Their bytes.
    pub pulled_bytes: u64,
    /// Damaged segments, which provide no drafts, each with its error.
    pub damaged: Vec<HistoryError>,
}

/// Statistics of the history.
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

    /// The file of an error about one file. Other errors are returned unchanged.
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
            HistoryError::Key { path, problem } => whole(path, 0, LeftOutReason::Key(problem)),
            HistoryError::Io { path, source, .. } => whole(path, 0, LeftOutReason::Io(source.kind())),
            error => Err(error),
        }
    }
}
