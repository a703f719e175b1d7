//! The store: what an assistant keeps on disk.
//!
//! ```text
//! FOLDER/
//!   .lock         locked by the process that has the store open
//!   history/      answers, as token ids (refrain_index::history)
//!   ledger        what each answer was made from, summaries, and a deletion that has begun
//! ```

mod ledger;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use refrain::TokenId;
use refrain_index::history::{HistoryError, HistoryKey, HistoryLog, HistoryOptions};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

pub(crate) use ledger::{Entry, Ledger, StoredSummary};

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
    /// Another process, or another assistant of this one, has the store open.
    #[error("`{}` is in use", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The ledger is longer than any valid one.
    #[error("`{}`: {bytes} bytes exceed the limit of {max}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The ledger was written by a newer program.
    #[error("`{}`: the ledger is of a newer version", path.display())]
    Version {
        /// The file.
        path: PathBuf,
    },
    /// The history failed.
    #[error(transparent)]
    History(#[from] HistoryError),
}

/// Makes a [`StoreError::Io`] of an action on a path.
pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { action, path, source }
}

/// What an answer was made from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Hashes of the paths of the notes that the prompt showed, or that answers in it were made from.
    pub(crate) notes: Vec<u64>,
    /// The conversation.
    pub(crate) conversation: Option<u64>,
    /// Deletions before the job was started.
    pub(crate) n_forgotten: u64,
}

/// The hash under which a note is noted: the ledger has no paths.
pub(crate) fn note_hash(path: &Path) -> u64 {
    xxh3_64(path.as_os_str().as_encoded_bytes())
}

pub(crate) struct Store {
    folder: PathBuf,
    history: HistoryLog,
    ledger: Mutex<Ledger>,
    /// Released on drop.
    _lock: File,
}

impl Store {
    pub(crate) fn open(folder: &Path, key: HistoryKey) -> Result<Self, StoreError> {
        fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        let path = folder.join(".lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(io_error("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse { path: folder.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
        }
        let ledger = Mutex::new(Ledger::open(&folder.join("ledger"))?);
        let history = HistoryLog::open(&folder.join("history"), key, HistoryOptions::default())?;
        Ok(Self { folder: folder.to_owned(), history, ledger, _lock: lock })
    }

    pub(crate) fn history(&self) -> &HistoryLog {
        &self.history
    }

    pub(crate) fn history_folder(&self) -> PathBuf {
        self.folder.join("history")
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an answer, then notes what it was made from. After a crash in between the ledger lacks the answer, and the next
    /// deletion of anything deletes it too.
    pub(crate) fn keep(
        &self,
        namespace: &str,
        tokens: &[TokenId],
        kept: Kept,
        n_forgotten: impl FnOnce() -> u64,
    ) -> Result<(), StoreError> {
        // A deletion that begins meanwhile must find both or none.
        let mut ledger = self.ledger();
        if kept.n_forgotten != n_forgotten() {
            return Ok(());
        }
        let record = self.history.append(namespace, tokens)?;
        let Kept { notes, conversation, .. } = kept;
        let model = self.history.key().to_string();
        ledger.append(Entry::Answer { model, record: record.0, notes, conversation })?;
        drop(ledger);
        Ok(self.history.maintain()?)
    }

    /// Keeps the newest summary of a subject, unless a deletion has begun since its job was started.
    pub(crate) fn keep_summary(
        &self,
        summary: StoredSummary,
        n_forgotten_before: u64,
        n_forgotten: impl FnOnce() -> u64,
    ) -> Result<(), StoreError> {
        let mut ledger = self.ledger();
        if n_forgotten_before != n_forgotten() {
            return Ok(());
        }
        ledger.append(Entry::Summary(summary))
    }
}

/// The time, in µs since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
