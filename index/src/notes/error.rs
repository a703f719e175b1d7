//! The errors of the stored notes.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use super::report::SkipReason;
use crate::seal::KeyProblem;

/// The stored notes could not be opened, read or changed. Unless a variant states otherwise, nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotesError {
    /// An operation of the file system failed. A change that was under way is finished or undone by the next writer.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The folder has no index yet.
    #[error("`{}` has no index of notes", path.display())]
    NoIndex {
        /// The folder.
        path: PathBuf,
    },
    /// The folder has files that are not of an index. Nothing was written there.
    #[error("`{}` is not a folder for an index of notes: it has the file `{name}`", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// One of the files.
        name: String,
    },
    /// The bytes of a file differ from the written ones. The next writer builds the index again from the notes.
    #[error("`{}` is damaged at byte {offset}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The offset.
        offset: u64,
        /// The kind of damage.
        what: String,
    },
    /// A newer program has written the file.
    #[error("`{}` has version {given}, this program reads {known}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        given: u32,
        /// The supported version.
        known: u32,
    },
    /// Another process writes the index.
    #[error("`{}` is in use by another process", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The number of requests that wait for the writer has reached its limit.
    #[error("`{}` is full: {max} requests wait for the writer", path.display())]
    InboxFull {
        /// The folder of the requests.
        path: PathBuf,
        /// The limit.
        max: usize,
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
    /// A path cannot be made absolute or stored, or is a file that is no source.
    #[error("the path `{}` cannot be used: {what}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// The reason.
        what: &'static str,
    },
    /// A document cannot be put ([`Transaction::put`](super::Transaction::put)).
    #[error("`{}` cannot be put into the index: {reason}", path.display())]
    Document {
        /// The path that stands for its id ([`document_path`](super::document_path)).
        path: PathBuf,
        /// The reason, with the limit.
        reason: SkipReason,
    },
    /// A transaction has too much for its memory. It is as before.
    #[error("the transaction would have {bytes} bytes, more than {max}: commit it, and begin another one")]
    TransactionFull {
        /// Its bytes with the change that was refused.
        bytes: u64,
        /// The limit ([`TRANSACTION_BYTES_MAX`](super::TRANSACTION_BYTES_MAX)).
        max: u64,
    },
    /// An [`Embedder`](super::Embedder) failed or returned vectors of another number or length.
    #[error("the embedder failed: {0}")]
    Embedder(Box<dyn Error + Send + Sync>),
    /// A tokenizer refused a passage.
    #[error("a passage cannot be tokenized: {0}")]
    Tokenizer(#[from] refrain::TokenizerError),
    /// The system cannot report changes in folders.
    #[error("cannot watch `{}`: {source}", path.display())]
    Watch {
        /// The folder.
        path: PathBuf,
        /// The system's reason.
        source: notify::Error,
    },
    /// The key is not that of the index. Nothing was changed.
    #[error("`{}`: {problem}", path.display())]
    Key {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        problem: KeyProblem,
    },
    /// An earlier write failed, so the state of the files is unknown. Open a new writer: it finishes or undoes the change.
    #[error("the writer of `{}` has stopped after an earlier failure; open it again", path.display())]
    Stopped {
        /// The folder.
        path: PathBuf,
    },
    /// The inverted index failed for another reason: a lack of memory, or a bug.
    #[error("the inverted index in `{}` failed: {source}", path.display())]
    Index {
        /// The folder.
        path: PathBuf,
        /// The reason.
        source: tantivy::TantivyError,
    },
}

/// Makes a [`NotesError::Io`] of an action on a path.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NotesError {
    let path = path.to_owned();
    move |source| NotesError::Io { action, path, source }
}

/// Makes a [`NotesError`] of an error of the inverted index in a folder.
pub(super) fn index_error(folder: &Path) -> impl Fn(tantivy::TantivyError) -> NotesError {
    use tantivy::TantivyError;
    use tantivy::directory::error::{OpenDirectoryError, OpenReadError, OpenWriteError};
    let folder = folder.to_owned();
    move |error| {
        let damaged = |file: &Path, what: String| NotesError::damaged(&folder.join(file), what);
        let failed = |action, file: &Path, error: &io::Error| NotesError::Io {
            action,
            path: folder.join(file),
            // The index shares its errors between threads.
            source: io::Error::new(error.kind(), error.to_string()),
        };
        match &error {
            TantivyError::DataCorruption(corruption) => damaged(Path::new(""), format!("{corruption:?}")),
            TantivyError::IncompatibleIndex(what) => damaged(Path::new(""), format!("{what:?}")),
            TantivyError::OpenReadError(OpenReadError::FileDoesNotExist(file)) => {
                damaged(file, "the file is missing".to_owned())
            }
            TantivyError::OpenReadError(OpenReadError::IncompatibleIndex(what)) => {
                damaged(Path::new(""), format!("{what:?}"))
            }
            TantivyError::OpenReadError(OpenReadError::IoError { io_error, filepath })
                if matches!(io_error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                damaged(filepath, io_error.to_string())
            }
            TantivyError::OpenReadError(OpenReadError::IoError { io_error, filepath }) => {
                failed("read", filepath, io_error)
            }
            TantivyError::OpenWriteError(OpenWriteError::IoError { io_error, filepath }) => {
                failed("write", filepath, io_error)
            }
            TantivyError::OpenDirectoryError(OpenDirectoryError::IoError { io_error, directory_path }) => {
                failed("open", directory_path, io_error)
            }
            TantivyError::IoError(io_error)
                if matches!(io_error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                damaged(Path::new(""), io_error.to_string())
            }
            TantivyError::IoError(io_error) => failed("use", Path::new(""), io_error),
            _ => NotesError::Index { path: folder.clone(), source: error },
        }
    }
}

impl NotesError {
    /// Damage of a whole file.
    pub(super) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset: 0, what: what.into() }
    }

    /// Whether the index can be built again from the notes to remedy the error.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }
}
