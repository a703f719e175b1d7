//! The store: what an assistant keeps on disk.
//!
//! ```text
//! FOLDER/
//!   .lock         locked by the process that has the store open
//!   history/      answers, as token ids (refrain_index::history)
//!   prefixes/     keys and values of prompts (refrain_index::prefixes)
//!   undo/         texts that edits have replaced
//!   typed         lines that a user has typed in conversations
//!   ledger        what each answer was made from, summaries, and a deletion that has begun
//! ```
//!
//! One key encrypts all of them, or none is encrypted; with a key there is no `typed`.

mod copies;
mod entry;
mod error;
mod ledger;
mod names;
mod status;
mod stored_path;
mod typed;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use refrain::{Session, TokenId};
use refrain_files::replace::{create_private_folder, private_options, tighten};
use refrain_index::RecordId;
use refrain_index::history::{HistoryKey, HistoryLog, HistoryOptions};
use refrain_index::internals::Seal;
use refrain_index::prefixes::{Label, PrefixError, PrefixOptions, PrefixStore};

pub use copies::{EditCopies, EditCopy};
pub(crate) use entry::{Entry, Forgetting, Made, StoredPart, StoredSummary, micros};
pub use error::StoreError;
pub(crate) use error::io_error;
pub(crate) use ledger::Ledger;
use ledger::{Bounds, Found};
pub(crate) use names::{Hidden, names_with_index, note_hash};
pub use status::{KindStatus, MadeFrom, StoreStatus, StoredKind, store_status};
pub use typed::{ConversationId, TypedLines};

/// The names of the files in a store.
const LOCK: &str = ".lock";
const LEDGER: &str = "ledger";

/// What an answer was made from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The notes that the prompt showed, or that answers in it were made from.
    pub(crate) notes: BTreeSet<PathBuf>,
    /// The conversation.
    pub(crate) conversation: Option<u64>,
    /// Where the text of each note begins in the prompt.
    pub(crate) starts: Vec<(PathBuf, usize)>,
    /// The tokens of the prompt for which `starts` holds, if it is not the one that is kept: an earlier one of the conversation.
    pub(crate) measured_in: Option<Arc<[TokenId]>>,
    /// Deletions before the job was started.
    pub(crate) n_forgotten: u64,
}

impl Kept {
    pub(crate) fn made(&self) -> Made {
        Made::from(&self.notes, self.conversation)
    }

    /// The labels of the tokens of a prompt. A deletion removes what follows the first token of a label.
    fn labels(&self, tokens: &[TokenId]) -> Vec<Label> {
        let start_max = self.measured_in.as_ref().map_or(usize::MAX, |earlier| n_common(earlier, tokens));
        let from = |start: usize, name: String| Label { tokens: start.min(start_max)..usize::MAX, name };
        let conversation = self.conversation.map(|id| from(0, conversation_label(id)));
        let notes = self.starts.iter().map(|(note, start)| from(*start, note_label(note_hash(note))));
        notes.chain(conversation).collect()
    }
}

/// The number of tokens with which both begin. Templates may move or drop earlier turns' text when another turn follows; a text
/// that began behind these tokens may begin anywhere behind them now.
pub(crate) fn n_common(earlier: &[TokenId], tokens: &[TokenId]) -> usize {
    earlier.iter().zip(tokens).take_while(|(a, b)| a == b).count()
}

pub(crate) struct Store {
    folder: PathBuf,
    /// The history of the model; `None` without a model.
    history: Option<HistoryLog>,
    /// The options of the histories of all models.
    histories: HistoryOptions,
    prefixes: PrefixStore,
    ledger: Mutex<Ledger>,
    /// Held for writing while something is deleted, for reading while something is kept.
    deleting: RwLock<()>,
    /// Released on drop.
    _lock: Lock,
}

impl Store {
    /// Opens a store, or creates it; without a key, to delete from it. A deletion that has begun is left to the caller.
    ///
    /// A store of an older version is emptied. If a line of the ledger is damaged, or all are gone, all prefixes are deleted: the
    /// line may have named some of them.
    pub(crate) fn open(
        folder: &Path,
        key: Option<HistoryKey>,
        prefixes: PrefixOptions,
    ) -> Result<Self, StoreError> {
        create_private_folder(folder).map_err(io_error("create", folder))?;
        tighten(folder, |name| [LOCK, "history", "prefixes", "undo", LEDGER, typed::FILE].contains(&name));
        let lock = Lock::take(folder)?;
        let histories = folder.join("history");
        // The ledger is written before both.
        let is_expected = has_entries(&histories) || has_entries(&folder.join("prefixes"));
        let (mut ledger, found) = {
            let seal = Seal::new(prefixes.key.as_ref(), "refrain assistant 2026-11: ledger");
            let bounds = Bounds::of(&seal);
            Ledger::open(&folder.join(LEDGER), seal, bounds, is_expected)?
        };
        // One key for all.
        let options = HistoryOptions { key: prefixes.key, ..HistoryOptions::default() };
        let prefixes = PrefixStore::open(&folder.join("prefixes"), prefixes)?;
        if found == Found::Older {
            match fs::remove_dir_all(&histories) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error("remove", &histories)(error));
                }
                _ => {}
            }
        }
        if found != Found::Whole {
            prefixes.clear()?;
            // Last: until then, the next opening does the same again.
            ledger.rewrite()?;
        }
        let history = key.map(|key| HistoryLog::open(&histories, key, options.clone()));
        let store = Self {
            folder: folder.to_owned(),
            history: history.transpose()?,
            histories: options,
            prefixes,
            ledger: Mutex::new(ledger),
            deleting: RwLock::new(()),
            _lock: lock,
        };
        // A failure keeps the store from growing, not from being read.
        let _ = store.compact();
        Ok(store)
    }

    /// Whether a folder has a store.
    pub(crate) fn is_in(folder: &Path) -> bool {
        // A store whose ledger is gone has answers and prefixes all the same.
        [LEDGER, "history", "prefixes", "undo", typed::FILE]
            .iter()
            .any(|name| folder.join(name).symlink_metadata().is_ok())
    }

    /// The texts that edits have replaced.
    pub(crate) fn copies(&self) -> EditCopies {
        EditCopies::in_store(&self.folder, self.key())
    }

    /// The lines that were typed in conversations.
    pub(crate) fn typed(&self) -> TypedLines {
        TypedLines::in_store(&self.folder)
    }

    /// The history of the model.
    pub(crate) fn history(&self) -> Option<&HistoryLog> {
        self.history.as_ref()
    }

    /// The histories of all models.
    pub(crate) fn histories(&self) -> Result<Vec<HistoryLog>, StoreError> {
        let folder = self.folder.join("history");
        let of_key = |key| match &self.history {
            Some(own) if own.key() == key => Ok(own.clone()),
            _ => Ok(HistoryLog::open(&folder, key, self.histories.clone())?),
        };
        HistoryLog::keys(&folder)?.into_iter().map(of_key).collect()
    }

    /// The key of the store.
    pub(crate) fn key(&self) -> Option<&[u8; 32]> {
        self.histories.key.as_ref()
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
        let Some(history) = &self.history else { return Ok(()) };
        // Held for both, so that no compaction finds the answer without its entry.
        let mut ledger = self.ledger();
        let record = history.append(namespace, tokens)?;
        let mut entries = ledger.new_notes(&kept.notes);
        let (model, record) = (history.key().to_string(), record.0);
        entries.push(Entry::Answer { model, record, made: kept.made() });
        ledger.append(entries)?;
        drop(ledger);
        history.maintain()?;
        self.compact()
    }

    /// Keeps a summary for the next one of its subject.
    pub(crate) fn keep_summary(&self, summary: StoredSummary, kept: &Kept) -> Result<(), StoreError> {
        let mut ledger = self.ledger();
        let mut entries = ledger.new_notes(&kept.notes);
        entries.push(Entry::Summary(summary));
        ledger.append(entries)?;
        drop(ledger);
        self.compact()
    }

    /// Keeps the summary of a part, for a summary that goes on after a stop.
    pub(crate) fn keep_part(&self, part: StoredPart, kept: &Kept) -> Result<(), StoreError> {
        let mut ledger = self.ledger();
        let mut entries = ledger.new_notes(&kept.notes);
        entries.push(Entry::Part(part));
        ledger.append(entries)?;
        drop(ledger);
        self.compact()
    }

    /// Keeps keys and values of the first tokens of a session, as far as `keep` does. The namespace and the notes are noted first, so that
    /// a deletion finds them.
    pub(crate) fn keep_prefix(
        &self,
        session: &Session,
        namespace: &str,
        kept: &Kept,
        up_to: usize,
        keep: KeepPrefix,
    ) -> Result<usize, StoreError> {
        // Held until the prefix is kept: a compaction may drop what only prefixes need, and clears them then.
        let mut ledger = self.ledger();
        let mut entries = ledger.new_notes(kept.starts.iter().map(|(note, _)| note));
        entries.extend(ledger.new_namespace(namespace));
        ledger.append(entries)?;
        let n_kept = keep(&self.prefixes, session, namespace, &kept.labels(session.tokens()), up_to)?;
        drop(ledger);
        self.compact()?;
        Ok(n_kept)
    }

    /// Makes a full ledger shorter. What it will not name any more is deleted first: after a crash it names more than there is.
    fn compact(&self) -> Result<(), StoreError> {
        let mut ledger = self.ledger();
        if !ledger.is_full() {
            return Ok(());
        }
        let histories: BTreeMap<String, HistoryLog> =
            self.histories()?.into_iter().map(|history| (history.key().to_string(), history)).collect();
        let records = |history: &HistoryLog| history.list().into_iter().map(|info| info.record.0).collect();
        let live: BTreeMap<String, BTreeSet<u64>> =
            histories.iter().map(|(model, history)| (model.clone(), records(history))).collect();
        let compaction = ledger.plan(&live);
        for (model, records) in &compaction.dropped {
            let records: Vec<RecordId> = records.iter().copied().map(RecordId).collect();
            histories[model].forget_all(&records)?;
        }
        if compaction.clears_prefixes {
            self.prefixes.clear()?;
        }
        ledger.compact(&compaction)
    }
}

/// How a prefix is kept: as a whole, or as far as it is repeated.
pub(crate) type KeepPrefix = fn(&PrefixStore, &Session, &str, &[Label], usize) -> Result<usize, PrefixError>;

/// Whether a folder has something in it. One that cannot be listed may have.
fn has_entries(folder: &Path) -> bool {
    match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// The lock of a store's folder.
struct Lock {
    /// The folder without links, noted for other assistants of this process.
    folder: PathBuf,
    /// Released on drop.
    _file: File,
}

/// The stores that this process has open.
static OPEN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

impl Lock {
    fn take(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(LOCK);
        let options = private_options().create(true).truncate(false).write(true).open(&path);
        let file = options.map_err(io_error("open", &path))?;
        let plain = folder.canonicalize().map_err(io_error("read", folder))?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let by_this_process = open.contains(&plain);
                return Err(StoreError::InUse { path: folder.to_owned(), by_this_process });
            }
            Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
        }
        open.insert(plain.clone());
        Ok(Self { folder: plain, _file: file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.folder);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path) -> Result<Store, StoreError> {
        Store::open(folder, None, PrefixOptions::default())
    }

    #[test]
    fn a_label_begins_before_everything_that_has_moved() {
        let ids = |ids: &[u32]| ids.iter().copied().map(TokenId).collect::<Vec<_>>();
        let starts = vec![("/a".into(), 4), ("/b".into(), 1)];
        let mut kept = Kept { starts, conversation: Some(1), ..Kept::default() };
        let starts_in = |kept: &Kept| -> Vec<usize> {
            kept.labels(&ids(&[1, 2, 9, 3, 4, 5])).iter().map(|label| label.tokens.start).collect()
        };
        assert_eq!(starts_in(&kept), [4, 1, 0]);
        // The template has moved two tokens away from the beginning: the text of the first note was at 4.
        kept.measured_in = Some(ids(&[1, 2, 7, 8, 9, 3, 4, 5]).into());
        assert_eq!(starts_in(&kept), [2, 1, 0]);
    }

    #[test]
    fn a_store_without_its_ledger_is_one_and_loses_its_prefixes() {
        let folder = tempfile::tempdir().unwrap();
        let key = HistoryKey { tokenizer: 1, model: 2 };
        let store = Store::open(folder.path(), Some(key), PrefixOptions::default()).unwrap();
        store.keep_answer("a", &[TokenId(1); 4], &Kept::default()).unwrap();
        drop(store);
        let other = folder.path().join("prefixes").join(format!("v9-{:032x}", 1));
        for text in [None, Some(""), Some("refrain-led")] {
            fs::create_dir_all(&other).unwrap();
            match text {
                None => fs::remove_file(folder.path().join("ledger")).unwrap(),
                Some(text) => fs::write(folder.path().join("ledger"), text).unwrap(),
            }
            assert!(Store::is_in(folder.path()), "{text:?}");
            let (_, found) =
                Ledger::open(&folder.path().join("ledger"), Seal::default(), Bounds::default(), true)
                    .unwrap();
            assert_eq!(found, Found::Damaged, "{text:?}");
            let store = open(folder.path()).unwrap();
            let history = &store.histories().unwrap()[0];
            let record = history.list()[0].record.0;
            assert!(store.ledger().is_forgotten(
                &Forgetting::Conversation(1),
                &history.key().to_string(),
                record
            ));
            drop(store);
            // Written again.
            let (_, found) =
                Ledger::open(&folder.path().join("ledger"), Seal::default(), Bounds::default(), true)
                    .unwrap();
            assert_eq!(found, Found::Whole, "{text:?}");
        }
    }

    #[test]
    fn a_store_has_one_owner_who_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path()).unwrap();
        let second = open(folder.path()).err();
        assert!(matches!(second, Some(StoreError::InUse { by_this_process: true, .. })), "{second:?}");
        assert!(second.unwrap().to_string().ends_with("in use by another assistant of this process"));
        drop(store);
        open(folder.path()).unwrap();
    }

    #[test]
    fn a_store_of_an_older_version_is_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let old = folder.path().join("history/0000000000000001-00000000000000000000000000000002");
        fs::create_dir_all(&old).unwrap();
        fs::write(old.join("log-1"), "an answer").unwrap();
        fs::write(folder.path().join("ledger"), "refrain-ledger 1\n").unwrap();
        drop(open(folder.path()).unwrap());
        assert!(!old.exists());
        assert!(fs::read_to_string(folder.path().join("ledger")).unwrap().starts_with("refrain-ledger 2\n"));
    }

    #[test]
    fn answers_beyond_the_ledger_go_from_the_history() {
        let folder = tempfile::tempdir().unwrap();
        let key = HistoryKey { tokenizer: 1, model: 2 };
        let store = || {
            let store = Store::open(folder.path(), Some(key), PrefixOptions::default()).unwrap();
            store.ledger().set_bounds(Bounds { bytes_max: 4000, kept_bytes_max: 2000 });
            store
        };
        let n_records = |store: &Store| store.history().unwrap().list().len();
        let first = store();
        let keep = |store: &Store, n: u32| {
            let notes = [PathBuf::from(format!("/n/{n}.md"))].into();
            let kept = Kept { notes, ..Kept::default() };
            store.keep_answer("a", &[TokenId(n); 4], &kept).unwrap();
        };
        (0..60).for_each(|n| keep(&first, n));
        let ledger_bytes = || fs::metadata(folder.path().join("ledger")).unwrap().len();
        assert!(ledger_bytes() <= 4500 && (3..30).contains(&n_records(&first)), "{}", n_records(&first));
        drop(first);
        // Another model's answers count too.
        let other = HistoryKey { tokenizer: 1, model: 3 };
        let store = Store::open(folder.path(), Some(other), PrefixOptions::default()).unwrap();
        store.ledger().set_bounds(Bounds { bytes_max: 4000, kept_bytes_max: 2000 });
        (60..100).for_each(|n| keep(&store, n));
        let n_all: usize = store.histories().unwrap().iter().map(|history| history.list().len()).sum();
        assert!(ledger_bytes() <= 4500 && n_all < 30, "{n_all}");
    }
}
