//! The history on disk.

use std::path::{Path, PathBuf};

use refrain_index::history::{HistoryError, HistoryLog, HistoryOptions};

use crate::failure::Failure;
use crate::place::data_folder;

/// `refrain/history` in the user's data folder; `None` if the user has none.
pub fn default_folder() -> Option<PathBuf> {
    data_folder("history")
}

/// The folder of a history [default: the user's].
///
/// # Errors
/// There is no default folder.
pub fn folder(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let folder = named.map(Path::to_owned).or_else(default_folder);
    folder.ok_or_else(|| Failure::usage("there is no default folder", "name one with --history"))
}

/// The histories of all models in a folder.
///
/// # Errors
/// A history cannot be opened.
pub fn open_all(folder: &Path, key: Option<[u8; 32]>) -> Result<Vec<HistoryLog>, HistoryError> {
    let options = HistoryOptions { key, ..HistoryOptions::default() };
    let keys = HistoryLog::keys(folder)?.into_iter();
    keys.map(|of_model| HistoryLog::open(folder, of_model, options.clone())).collect()
}

/// A part of a model's identity that distinguishes models.
pub fn short(log: &HistoryLog) -> String {
    format!("{:08x}", (log.key().model >> 96) as u32)
}
