//! The errors of the history.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use crate::seal::KeyProblem;

/// The history could not be opened, read or written. Unless a variant states otherwise, nothing has changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// An operation of the file system failed.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process writes the history of this model, so this one cannot forget or repair.
    #[error("`{}` is in use by another process", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The history was opened for reading only.
    #[error("`{}` is open for reading only: {reason}", path.display())]
    ReadOnly {
        /// The folder.
        path: PathBuf,
        /// The reason.
        reason: Arc<HistoryError>,
    },
    /// The number of responses handed in by other processes has reached its limit. The next writer moves them to its
    /// logs.
    #[error("`{}` is full: {max} responses wait for the writer", path.display())]
    InboxFull {
        /// The folder of the hand-ins.
        path: PathBuf,
        /// The limit.
        max: usize,
    },
    /// An earlier write, sync or removal failed, so the contents of the files are unknown. No change is possible
    /// until the history is opened again.
    #[error("the history has stopped after an earlier failure to write; open it again")]
    Stopped,
    /// The bytes of a file differ from the written ones.
    #[error("`{}` is damaged at byte {offset}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The offset.
        offset: u64,
        /// The kind of damage.
        what: &'static str,
    },
    /// The file belongs to another history, model or namespace.
    #[error("`{}` belongs to another place (model, namespace or number)", path.display())]
    Misplaced {
        /// The file.
        path: PathBuf,
    },
    /// The version of the file is not supported.
    #[error("`{}` has version {given} of the history's format, this program reads {known}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        given: u32,
        /// The supported version.
        known: u32,
    },
    /// The file is longer than any valid file of the history.
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
    /// A response is longer than the limit of a namespace's log.
    #[error("a response of {n_tokens} tokens exceeds the limit of {max}")]
    RecordTooLong {
        /// Length of the response in tokens.
        n_tokens: usize,
        /// The limit: [`HistoryOptions::live_tokens_max`](super::HistoryOptions::live_tokens_max).
        max: u32,
    },
    /// The name of a namespace is empty or too long.
    #[error("a namespace's name has {bytes} bytes, outside 1..={max}")]
    NamespaceName {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The key is not that of the history. Nothing was changed.
    #[error("`{}`: {problem}", path.display())]
    Key {
        /// The folder, or one file of it.
        path: PathBuf,
        /// What is wrong.
        problem: KeyProblem,
    },
    /// The history is encrypted, so its files are not shared with other hosts.
    #[error("`{}` is encrypted: its answers are not shared", path.display())]
    Encrypted {
        /// The folder.
        path: PathBuf,
    },
    /// There are too many namespaces.
    #[error("the history has reached the limit of {max} namespaces")]
    TooManyNamespaces {
        /// The limit.
        max: usize,
    },
    /// The record does not exist.
    #[error("there is no record {record}")]
    NoSuchRecord {
        /// Its id.
        record: u64,
    },
}

/// The error of reading an encrypted file: [`HistoryError::Key`], [`HistoryError::Damaged`] or [`HistoryError::Io`].
pub(super) fn read_error(path: &Path) -> impl Fn(io::Error) -> HistoryError {
    let path = path.to_owned();
    move |source| {
        let path = path.clone();
        match source.get_ref().and_then(|error| error.downcast_ref()) {
            Some(&problem) => HistoryError::Key { path, problem },
            None if source.kind() == io::ErrorKind::InvalidData => {
                HistoryError::Damaged { path, offset: 0, what: "the encryption" }
            }
            None => HistoryError::Io { action: "read", path, source },
        }
    }
}

/// Makes a [`HistoryError::Io`] of an action on a path.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HistoryError {
    let path = path.to_owned();
    move |source| HistoryError::Io { action, path, source }
}
