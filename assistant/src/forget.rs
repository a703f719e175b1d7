//! Deletion across notes, answers, summaries and prefixes.
//!
//! What is to be deleted is written to the ledger first. A crash or an error later leaves it there, and the next
//! [`Builder::build`](crate::Builder::build) with the store finishes it. Jobs that were started before keep nothing.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use refrain_index::history::{HistoryKey, HistoryLog, HistoryOptions};
use refrain_index::notes::{NotesOptions, NotesWriter, Request, absolute};
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
    /// The index of notes cannot be changed, or the path of a note is none.
    #[error(transparent)]
    Notes(#[from] NotesError),
    /// The store cannot be changed.
    #[error(transparent)]
    Store(#[from] StoreError),
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
        let index = self.notes_folder().map(absolute).transpose()?;
        let what = match what {
            Forget::Note(path) => {
                let path = absolute(&path)?;
                Forgetting::Note { hash: note_hash(&path), path, index }
            }
            Forget::Conversation(id) => Forgetting::Conversation(id.0),
            Forget::Before(time) => Forgetting::Before(micros(time)),
            Forget::Everything => {
                let roots = self.notes().map(|notes| notes.status()).transpose()?;
                Forgetting::Everything { index, roots: roots.map(|status| status.roots).unwrap_or_default() }
            }
        };
        self.start_forgetting();
        let Some(store) = self.store() else {
            let is_notes_pending = self.forget_notes(&what)?;
            self.start_forgetting();
            return Ok(Forgotten { is_notes_pending, ..Forgotten::default() });
        };
        let _deleting = store.deleting();
        store.ledger().append(Entry::Forget { what: what.clone() })?;
        let forgotten = self.carry_out(store, &what);
        // Jobs that began meanwhile may have read what is gone now.
        self.start_forgetting();
        forgotten
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

    /// Deletes from the index that the assistant had when the deletion began. Returns whether that was left to another writer.
    fn forget_notes(&self, what: &Forgetting) -> Result<bool, NotesError> {
        let (folder, paths) = match what {
            Forgetting::Note { path, index: Some(index), .. } => (index, vec![path.clone()]),
            Forgetting::Everything { index: Some(index), roots } => (index, roots.clone()),
            _ => return Ok(false),
        };
        // The index may have been deleted since. One without paths is opened, too: that finishes an interrupted removal.
        if !folder.is_dir() {
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
        if let Some(notes) = self.notes() {
            notes.refresh()?;
        }
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
            Forgetting::Everything { .. } => {
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
        Forgetting::Everything { .. } => return Ok(prefixes.clear()?),
    };
    let namespaces = store.ledger().namespaces().clone();
    let mut n_blocks = 0;
    for namespace in &namespaces {
        n_blocks += prefixes.forget(namespace, &label)?;
    }
    Ok(n_blocks)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::ControlFlow;

    use refrain::{Engine, EngineOptions};

    use super::*;
    use crate::{AnswerRequest, AssistantOptions, JobOptions};

    const SECRET: &str = "Qulittus";

    /// The files in a folder that contain the secret, as text or as token ids.
    fn files_with_secret(folder: &Path, engine: &Engine) -> Vec<PathBuf> {
        // A name begins with another token after a space, and a model may divide it in its own way: the end of it will do.
        let tokens = engine.tokenizer().encode(SECRET, refrain::SpecialTokens::AsText).unwrap();
        let ids: Vec<u8> =
            tokens[tokens.len() - 2..].iter().flat_map(|token| token.0.to_le_bytes()).collect();
        let forms = [SECRET.as_bytes().to_vec(), ids];
        let mut found = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let bytes = fs::read(&path).unwrap();
                if forms.iter().any(|form| bytes.windows(form.len()).any(|w| w == *form)) {
                    found.push(path);
                }
            }
        }
        found
    }

    #[test]
    fn a_deletion_that_ends_after_any_step_is_finished_at_the_next_start() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/target.gguf");
        let engine = Engine::open(model, EngineOptions::default().with_n_threads(1)).unwrap();
        // The assistant that finishes it may have no index of notes.
        let cases = (0..4).flat_map(|n_steps| [(n_steps, false), (n_steps, true)]);
        for ((n_steps, is_all), has_notes) in cases.flat_map(|case| [(case, true), (case, false)]) {
            let folder = tempfile::tempdir().unwrap();
            let (notes, index, store) =
                (folder.path().join("notes"), folder.path().join("index"), folder.path().join("store"));
            fs::create_dir(&notes).unwrap();
            let note = notes.join("car.md");
            fs::write(&note, "# Car\n\nQulittus Works takes care of the repair of the car.\n").unwrap();
            let mut writer = NotesWriter::open(&index, NotesOptions::default()).unwrap();
            writer.add(&[&notes]).unwrap();
            writer.update(&mut |_, _| ControlFlow::Continue(())).unwrap();
            drop(writer);
            let build = |has_notes: bool| {
                let options = AssistantOptions::default().with_answer_tokens(40_usize);
                let builder = Assistant::builder(engine.clone()).store(&store).options(options);
                let builder = if has_notes { builder.notes(&index) } else { builder };
                builder.build().unwrap()
            };
            let assistant = build(true);
            let request = AnswerRequest::new("Who takes care of the repair of the car?");
            let answer = assistant.answer(request, JobOptions::default()).unwrap().run().unwrap();
            assert!(answer.text.contains(SECRET), "{}", answer.text);
            let found = files_with_secret(&store, &engine);
            assert!(found.len() >= 2, "{found:?}");

            let of = Some(index.clone());
            let what = match is_all {
                false => Forgetting::Note { hash: note_hash(&note), path: note.clone(), index: of },
                true => Forgetting::Everything { index: of, roots: vec![notes.clone()] },
            };
            let kept = assistant.store().unwrap();
            kept.ledger().append(Entry::Forget { what: what.clone() }).unwrap();
            for step in 0..n_steps {
                match step {
                    0 => drop(assistant.forget_notes(&what).unwrap()),
                    1 => drop(forget_answers(kept, &what).unwrap()),
                    _ => drop(forget_prefixes(kept, &what).unwrap()),
                }
            }
            drop(assistant);
            let assistant = build(has_notes);
            assert_eq!(assistant.store().unwrap().ledger().forgetting(), []);
            for folder in [&store, &index] {
                let found = files_with_secret(folder, &engine);
                assert!(found.is_empty(), "{found:?} after {n_steps} steps");
            }
            assert_eq!(refrain_index::NotesIndex::open(&index).unwrap().n_passages(), 0);
        }
    }
}
