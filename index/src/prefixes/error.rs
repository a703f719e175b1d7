//! The errors of the store, and the reasons why a file is not used.

use std::io;
use std::path::{Path, PathBuf};

use refrain::SessionError;
use thiserror::Error;

/// Prefixes could not be restored, kept or forgotten.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// An operation of the file system failed. Blocks that are in place stay valid. If it was forgetting, it is
    /// finished by the next [`open`](super::PrefixStore::open).
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process is changing the folder, and did not finish in time: it may have been stopped.
    #[error("another process has been changing `{}` for {seconds} s", path.display())]
    Busy {
        /// The file that it locks.
        path: PathBuf,
        /// The time that was waited, in s.
        seconds: u64,
    },
    /// The session's turns could not be encoded.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The system gave no random numbers.
    #[error("the system gave no random numbers: {0}")]
    Random(getrandom::Error),
}

/// Makes a [`PrefixError::Io`] of an action on a path.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PrefixError {
    let path = path.to_owned();
    move |source| PrefixError::Io { action, path, source }
}

/// Why a file of the folder is not used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PrefixProblem {
    /// It does not have the name of a file of the store.
    #[error("not a file of the store")]
    Foreign,
    /// Its bytes differ from the written ones, or some are missing.
    #[error("damaged: {0}")]
    Damaged(&'static str),
    /// It has another version of the format.
    #[error("version {given} of the format, this program reads {known}")]
    Version {
        /// Its version.
        given: u32,
        /// The supported version.
        known: u32,
    },
    /// It is encrypted with another key, or encrypted without a key at hand, or not encrypted at all.
    #[error("written with another key")]
    OtherKey,
    /// It does not belong to its name or place.
    #[error("it belongs to another place")]
    Misplaced,
    /// Its state has a length that no state of its model has.
    #[error("a state of {given} bytes; with {n_tokens} tokens, its model has states of {expected:?} bytes")]
    StateBytes {
        /// The length in its header, in bytes.
        given: u64,
        /// Its tokens.
        n_tokens: usize,
        /// Bytes without and with the state of recurrent layers.
        expected: [u64; 2],
    },
    /// It could not be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}
