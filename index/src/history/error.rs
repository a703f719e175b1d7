//! Why the history could not be opened, read or written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

/// Why the history could not be opened, read or written. Unless a variant says otherwise, nothing has changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// The system refused.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process writes the history of this model, so this one cannot forget or repair.
    #[error("`{}` is in use by another process", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The history was opened for reading only.
    #[error("`{}` is only read: {reason}", path.display())]
    ReadOnly {
        /// The folder.
        path: PathBuf,
        /// Why it cannot be written.
        reason: Arc<HistoryError>,
    },
    /// The responses that other processes have handed in reach their limit; the next writer takes them in.
    #[error("`{}` holds {max} responses that wait for the writer, and takes no more", path.display())]
    InboxFull {
        /// The folder of the hand-ins.
        path: PathBuf,
        /// The limit.
        max: usize,
    },
    /// A write, a sync or a removal has failed earlier, so that what the files hold is not known: nothing more is changed until
    /// the history is opened again.
    #[error("the history has stopped after an earlier failure to write; open it again")]
    Stopped,
    /// The bytes at a place are not what was written.
    #[error("`{}` is damaged at byte {offset}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// A whole file of another history, model or namespace lies here.
    #[error("`{}` belongs to another place (model, namespace or number)", path.display())]
    Misplaced {
        /// The file.
        path: PathBuf,
    },
    /// The file has a version that this one does not know.
    #[error("`{}` has version {given} of the history's format, this program reads {known}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        given: u32,
        /// The version that is known.
        known: u32,
    },
    /// The file is longer than any that the history writes.
    #[error("`{}`: {bytes} bytes exceed the limit of {max}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// An option is outside its range.
    #[error("{option} is {given}, outside {min}..={max}")]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        given: u64,
        /// The least allowed value.
        min: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// A response is longer than the log of a namespace may get.
    #[error("a response of {n_tokens} tokens exceeds the limit of {max}")]
    RecordTooLong {
        /// Its tokens.
        n_tokens: usize,
        /// The limit: [`HistoryOptions::live_tokens_max`](super::HistoryOptions::live_tokens_max).
        max: u32,
    },
    /// A namespace has no name, or too long a one.
    #[error("a namespace's name has {bytes} bytes, outside 1..={max}")]
    NamespaceName {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// There are too many namespaces.
    #[error("the history has {max} namespaces, and takes no more")]
    TooManyNamespaces {
        /// The limit.
        max: usize,
    },
    /// There is no such record.
    #[error("there is no record {record}")]
    NoSuchRecord {
        /// Its id.
        record: u64,
    },
}

/// An action on a path, for errors of the system.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HistoryError {
    let path = path.to_owned();
    move |source| HistoryError::Io { action, path, source }
}
