//! The errors of the store.

use std::io;
use std::path::{Path, PathBuf};

use refrain_index::KeyProblem;
use refrain_index::history::HistoryError;
use refrain_index::prefixes::PrefixError;
use thiserror::Error;

/// The store cannot be opened or changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
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
    /// Somebody else has the store open. Clones of one assistant and [`Assistant::in_namespace`](crate::Assistant::in_namespace)
    /// share it.
    #[error("`{}` is in use by another {}", path.display(), if *by_this_process { "assistant of this process" } else { "process" })]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Whether it is another assistant of this process.
        by_this_process: bool,
    },
    /// The ledger is too long for another entry, because making it shorter has failed, or the entry is too long.
    #[error("`{}`: {bytes} bytes exceed the limit of {max}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The ledger was written by a newer program; nothing was changed.
    #[error("`{}`: the ledger is of a newer version", path.display())]
    Version {
        /// The file.
        path: PathBuf,
    },
    /// The key is not that of the store. Nothing was changed.
    #[error("`{}`: {problem}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: KeyProblem,
    },
    /// The history failed.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The store of prefixes failed.
    #[error(transparent)]
    Prefixes(#[from] PrefixError),
}

/// Makes a [`StoreError::Io`] of an action on a path.
pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { action, path, source }
}
