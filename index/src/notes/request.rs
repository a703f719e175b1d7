//! What a process that cannot write asks of the one that does.

use std::path::PathBuf;

/// A change of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Add files and folders.
    Add(Vec<PathBuf>),
    /// Compare the index with the files.
    Update,
    /// Remove files and folders, and do not read them again.
    Forget(Vec<PathBuf>),
}

/// A request of another process that the writer could not carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRequest {
    /// The request; `None` if its file was damaged, or a newer program has left it.
    pub request: Option<Request>,
    /// The reason.
    pub reason: String,
}
