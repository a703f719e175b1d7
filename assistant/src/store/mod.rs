//! The store: what an assistant keeps on disk.
//!
//! ```text
//! FOLDER/
//!   .lock         locked by the process that has the store open
//!   history/      answers, as token ids (refrain_index::history)
//!   prefixes/     keys and values of prompts (refrain_index::prefixes)
//!   ledger        what each answer was made from, summaries, and a deletion that has begun
//! ```

mod ledger;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::SystemTime;

use refrain::{Session, TokenId};
use refrain_index::history::{HistoryError, HistoryKey, HistoryLog, HistoryOptions};
use refrain_index::prefixes::{Label, PrefixError, PrefixOptions, PrefixStore};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

pub(crate) use ledger::{Entry, Forgetting, Ledger, StoredSummary};

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
    /// The store of prefixes failed.
    #[error(transparent)]
    Prefixes(#[from] PrefixError),
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
    /// Where the text of each note begins in the prompt, by the hash of its path.
    pub(crate) starts: Vec<(u64, usize)>,
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
    prefixes: PrefixStore,
    ledger: Mutex<Ledger>,
    /// Held for writing while something is deleted, for reading while something is kept.
    deleting: RwLock<()>,
    /// Released on drop.
    _lock: File,
}

impl Store {
    /// Opens a store, or creates it. A deletion that has begun is left to the caller.
    pub(crate) fn open(
        folder: &Path,
        key: HistoryKey,
        history: HistoryOptions,
        prefixes: PrefixOptions,
    ) -> Result<Self, StoreError> {
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
        let history = HistoryLog::open(&folder.join("history"), key, history)?;
        let prefixes = PrefixStore::open(&folder.join("prefixes"), prefixes)?;
        let deleting = RwLock::new(());
        Ok(Self { folder: folder.to_owned(), history, prefixes, ledger, deleting, _lock: lock })
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

    pub(crate) fn prefixes(&self) -> &PrefixStore {
        &self.prefixes
    }

    /// Waits for a running deletion. Nothing is deleted while the guard lives.
    pub(crate) fn keeping(&self) -> RwLockReadGuard<'_, ()> {
        self.deleting.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for what is being kept.
    pub(crate) fn deleting(&self) -> RwLockWriteGuard<'_, ()> {
        self.deleting.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an answer, then notes what it was made from. After a crash in between the ledger lacks the answer, and the next
    /// deletion of a note or a conversation deletes it too.
    pub(crate) fn keep_answer(
        &self,
        namespace: &str,
        tokens: &[TokenId],
        kept: &Kept,
    ) -> Result<(), StoreError> {
        let record = self.history.append(namespace, tokens)?;
        let model = self.history.key().to_string();
        let (notes, conversation) = (kept.notes.clone(), kept.conversation);
        self.ledger().append(Entry::Answer { model, record: record.0, notes, conversation })?;
        Ok(self.history.maintain()?)
    }

    /// Keeps keys and values of the first tokens of a session. The namespace is noted first, so that a deletion finds it.
    pub(crate) fn keep_prefix(
        &self,
        session: &Session,
        namespace: &str,
        labels: &[Label],
        up_to: usize,
    ) -> Result<usize, StoreError> {
        self.ledger().note_namespace(namespace)?;
        Ok(self.prefixes.keep(session, namespace, labels, up_to)?)
    }
}

/// The label of a note's tokens in the prefixes.
pub(crate) fn note_label(hash: u64) -> String {
    format!("note:{hash:016x}")
}

/// The label of a conversation's tokens in the prefixes.
pub(crate) fn conversation_label(id: u64) -> String {
    format!("conversation:{id:016x}")
}

/// A time, in µs since 1970.
pub(crate) fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
