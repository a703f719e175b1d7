//! Deletion across notes, answers, summaries and prefixes.
//!
//! What is to be deleted is written to the ledger first. A crash or an error later leaves it there, and the next
//! [`Builder::build`](crate::Builder::build) with the store finishes it. Jobs that were started before keep nothing.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use refrain_index::history::{HistoryKey, HistoryLog, HistoryOptions};
use refrain_index::notes::{NotesOptions, NotesWriter, Request};
use refrain_index::{NotesError, RecordId};
use thiserror::Error;

use crate::assistant::Assistant;
use crate::store::{Entry, Forgetting, Store, StoreError, conversation_label, micros, note_hash, note_label};
use crate::tasks::ConversationId;

/// What is to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forget {
    /// A note: its text in the index of notes, and every answer, summary and prefix that was made from it. The note itself is the
    /// app's.
    Note(PathBuf),
    /// A conversation: its answers and prefixes. (The turns of an open [`Conversation`](crate::Conversation) are the app's.)
    Conversation(ConversationId),
    /// Every answer and summary that was made before a time, and every prefix that was kept before it or was not used since.
    /// Notes stay in the index.
    Before(SystemTime),
    /// All answers, summaries and prefixes, and all notes of the index. Updates read the notes no more until they are added
    /// again.
    Everything,
}

/// What was deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forgotten {
    /// Answers.
    pub n_answers: usize,
    /// Summaries.
    pub n_summaries: usize,
    /// Blocks of prefixes.
    pub n_prefix_blocks: usize,
    /// Another writer has the index of notes open: it deletes the text of the notes when it next updates or maintains the index.
    pub is_notes_pending: bool,
}

/// Not everything was deleted. With a store, the rest is deleted when it is next opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ForgetError {
    /// The index of notes cannot be changed.
    #[error(transparent)]
    Notes(#[from] NotesError),
    /// The store cannot be changed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The path of a note is not absolute and cannot be made so.
    #[error("`{}` is not a path", path.display())]
    Path {
        /// The path.
        path: PathBuf,
    },
}

impl Assistant {
    /// Deletes what was kept, in all namespaces and for all models. After the return, no file of the store has a byte of it, and none
    /// of the index of notes has a byte of a forgotten note (the disk may hold freed blocks). Answers in memory, of assistants
    /// without a store, are all deleted.
    ///
    /// An answer of which the store does not know what it was made from, because a crash came in between, is deleted with any note
    /// or conversation.
    ///
    /// # Errors
    /// [`ForgetError`]; what was deleted before stays deleted.
    pub fn forget(&self, what: Forget) -> Result<Forgotten, ForgetError> {
        let what = match what {
            Forget::Note(path) => {
                // As the index of notes names it.
                let path = std::path::absolute(&path).map_err(|_| ForgetError::Path { path })?;
                Forgetting::Note { hash: note_hash(&path), path }
            }
            Forget::Conversation(id) => Forgetting::Conversation(id.0),
            Forget::Before(time) => Forgetting::Before(micros(time)),
            Forget::Everything => Forgetting::Everything,
        };
        self.start_forgetting();
        self.engine().history().clear();
        let Some(store) = self.store() else {
            let is_notes_pending = self.forget_notes(&what)?;
            return Ok(Forgotten { is_notes_pending, ..Forgotten::default() });
        };
        let _deleting = store.deleting();
        store.ledger().append(Entry::Forget { what: what.clone() })?;
        self.carry_out(store, &what)
    }

    /// Finishes what a crash has interrupted.
    pub(crate) fn finish_forgetting(&self) -> Result<(), ForgetError> {
        let Some(store) = self.store() else { return Ok(()) };
        let _deleting = store.deleting();
        let begun = store.ledger().forgetting().to_vec();
        for what in &begun {
            self.carry_out(store, what)?;
        }
        Ok(())
    }

    fn carry_out(&self, store: &Store, what: &Forgetting) -> Result<Forgotten, ForgetError> {
        let is_notes_pending = self.forget_notes(what)?;
        let n_answers = forget_answers(store, what)?;
        let n_prefix_blocks = forget_prefixes(store, what)?;
        let n_summaries = store.ledger().finish_forgetting(what)?;
        Ok(Forgotten { n_answers, n_summaries, n_prefix_blocks, is_notes_pending })
    }

    /// Returns whether the deletion was left to another writer.
    fn forget_notes(&self, what: &Forgetting) -> Result<bool, NotesError> {
        let Some((folder, index)) = self.notes_folder().zip(self.notes()) else { return Ok(false) };
        let paths = match what {
            Forgetting::Note { path, .. } => vec![path.clone()],
            Forgetting::Everything => index.status()?.roots,
            Forgetting::Conversation(_) | Forgetting::Before(_) => return Ok(false),
        };
        if paths.is_empty() {
            return Ok(false);
        }
        let options = NotesOptions { lock_wait: Duration::from_millis(100), ..NotesOptions::default() };
        let is_pending = match NotesWriter::open_or_hand_in(folder, options, &Request::Forget(paths.clone()))?
        {
            Some(mut writer) => {
                writer.forget(&paths)?;
                false
            }
            None => true,
        };
        index.refresh()?;
        Ok(is_pending)
    }
}

/// Deletes answers of every model from the history.
fn forget_answers(store: &Store, what: &Forgetting) -> Result<usize, StoreError> {
    let folder = store.history_folder();
    let mut n_answers = 0;
    for key in HistoryLog::keys(&folder)? {
        let own = store.history().key() == key;
        let opened = if own { None } else { Some(open(&folder, key)?) };
        let log = opened.as_ref().unwrap_or(store.history());
        let model = key.to_string();
        let (mut going, mut namespaces) = (Vec::new(), std::collections::BTreeSet::new());
        for info in log.list() {
            let RecordId(record) = info.record;
            let goes = match store.ledger().answer(&model, record) {
                Some((notes, conversation)) => what.takes(record, notes, conversation),
                None => !matches!(what, Forgetting::Before(time) if record >= *time),
            };
            if goes {
                going.push(info.record);
            }
            namespaces.insert(info.namespace);
        }
        n_answers += going.len();
        match what {
            Forgetting::Everything => {
                for namespace in &namespaces {
                    log.forget_namespace(namespace)?;
                }
            }
            _ => going.into_iter().try_for_each(|record| log.forget(record))?,
        }
    }
    Ok(n_answers)
}

fn open(folder: &Path, key: HistoryKey) -> Result<HistoryLog, StoreError> {
    Ok(HistoryLog::open(folder, key, HistoryOptions::default())?)
}

fn forget_prefixes(store: &Store, what: &Forgetting) -> Result<usize, StoreError> {
    let prefixes = store.prefixes();
    let label = match what {
        Forgetting::Note { hash, .. } => note_label(*hash),
        Forgetting::Conversation(id) => conversation_label(*id),
        Forgetting::Before(time) => {
            return Ok(prefixes.forget_before(SystemTime::UNIX_EPOCH + Duration::from_micros(*time))?);
        }
        Forgetting::Everything => return Ok(prefixes.clear()?),
    };
    let namespaces = store.ledger().namespaces().clone();
    let mut n_blocks = 0;
    for namespace in &namespaces {
        n_blocks += prefixes.forget(namespace, &label)?;
    }
    Ok(n_blocks)
}
