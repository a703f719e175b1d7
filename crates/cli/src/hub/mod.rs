//! Models from a hub: which files, their download, and the folder that keeps them.
//!
//! A pull asks the hub for the files of one commit ([`listing`]), chooses those of one model ([`choose`]), and downloads each into a
//! `.part` file that a later pull resumes ([`transfer`]). A file gets its name after its hash has been compared. [`store`] is the folder
//! with the record of what was pulled. Everything that a hub sends is bounded, and its names are checked ([`name`]).

mod choose;
mod client;
mod listing;
mod name;
mod stop;
mod store;
mod token;
mod transfer;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use refrain_program::args::bytes_text;
use thiserror::Error;

pub(crate) use choose::{ChooseError, Unit, UnitKind, incomplete, pick, units};
pub(crate) use client::{Client, ClientOptions};
pub(crate) use listing::{Listed, Listing, list};
use name::NameError;
pub(crate) use name::{ModelName, Repo};
pub(crate) use store::{FileRecord, Lock, Pulled, Store, free_bytes};
pub(crate) use token::Token;
pub(crate) use transfer::{Event, has_hash, part_bytes, transfer};

/// A model cannot be pulled, listed or removed.
#[derive(Debug, Error)]
pub(crate) enum HubError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Choose(#[from] ChooseError),
    /// The hub lists a file under an unusable name.
    #[error("the hub lists a file of the model that cannot be stored: {0}")]
    FileName(#[source] NameError),
    #[error("the hub's address `{given}` cannot be used: {problem}")]
    Endpoint { given: String, problem: &'static str },
    #[error("the token has other characters than visible ASCII, or more than {max} bytes")]
    TokenBytes { max: usize },
    #[error("the keyring gives no token: {problem}")]
    Keyring { problem: String },
    #[error("this system's trusted certificates cannot be read: {problem}")]
    Certificates { problem: String },
    #[error("{what}: {problem}")]
    Connection { what: String, problem: String },
    #[error("{what}: nothing, or less than {min_bytes} bytes, came within {} s", time.as_secs())]
    Stalled { what: String, min_bytes: u64, time: Duration },
    #[error("{what}: the connection ended at byte {at} of {expected}")]
    Ended { what: String, at: u64, expected: u64 },
    #[error("{what}: the hub answers with status {status}")]
    Status { what: String, status: u16, retry_after: Option<Duration> },
    #[error("{what}: the hub redirects more than {max} times")]
    Redirects { what: String, max: usize },
    #[error("{what}: the hub redirects to {problem}")]
    Redirect { what: String, problem: &'static str },
    #[error("{what}: the answer is encoded as `{encoding}`, which was not asked for")]
    Encoded { what: String, encoding: String },
    #[error("{what}: the answer has more than {max} bytes")]
    TooLong { what: String, max: u64 },
    #[error("{what}: the answer is not as expected: {problem}")]
    Answer { what: String, problem: String },
    #[error("`{file}` has {given} bytes, and the hub lists {expected}")]
    SizeDiffers { file: String, expected: u64, given: u64 },
    #[error("`{file}`: bytes {given} were sent instead of those from {expected}")]
    WrongRange { file: String, expected: u64, given: String },
    #[error("`{file}` was changed at the hub during the download")]
    Changed { file: String },
    #[error("`{file}` has the hash {given}, and the hub lists {expected}; the bytes are discarded")]
    HashDiffers { file: String, expected: String, given: String },
    #[error("`{}` exists and was not pulled", path.display())]
    NotPulled { path: PathBuf },
    #[error("`{}` belongs to `{given}`", path.display())]
    OtherRepo { path: PathBuf, given: String },
    #[error("{needed} are needed in `{}`, and {free} are free", folder.display(), needed = bytes_text(*needed), free = bytes_text(*free))]
    Space { folder: PathBuf, needed: u64, free: u64 },
    #[error("the record `{}` cannot be used: {problem}", path.display())]
    Record { path: PathBuf, problem: String },
    #[error("no model `{name}` was pulled into `{}`", folder.display())]
    Unknown { name: String, folder: PathBuf },
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl HubError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// Whether the same request may succeed a moment later.
    fn is_transient(&self) -> bool {
        match self {
            Self::Connection { .. }
            | Self::Stalled { .. }
            | Self::Ended { .. }
            | Self::WrongRange { .. }
            | Self::Changed { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 416 | 425 | 429 | 500 | 502..=504),
            _ => false,
        }
    }
}
