//! Deletion across notes, answers, summaries and prefixes.
//!
//! What is to be deleted is written to the ledger first. A crash or an error later leaves it there, and the next
//! [`Builder::build`](crate::Builder::build) with the store finishes it. Jobs that were started before keep nothing.
//!
//! The index of notes comes last: whatever is wrong with it, the store is emptied, and an assistant opens. Until the index can be
//! changed, searches leave out the notes that are to be deleted from it.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use refrain_index::notes::{DOCUMENTS, NotesOptions, NotesWriter, Request, absolute};
use refrain_index::{NotesError, NotesIndex, PrefixOptions, RecordId};

use crate::assistant::Assistant;
use crate::error::ForgetError;
use crate::store::{
    ConversationId, Entry, Forgetting, Store, StoreError, conversation_label, micros, names_with_index,
    note_label,
};

/// What is to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forget {
    /// A note, or a folder with every note below it: the text in the index of notes, every answer, summary and prefix whose prompt
    /// showed the note, and texts that edits have replaced, under all names that lead to the note. The note itself is the app's.
    Note(PathBuf),
    /// A conversation: its answers, prefixes and typed lines. (The turns of an open [`Conversation`](crate::Conversation) are the app's.)
    Conversation(ConversationId),
    /// Every answer, summary, replaced text and typed line of before a time, and every prefix that was not used since. A prefix that a later
    /// prompt reused stays, with the questions in it. Entries with a time in the future are deleted too, because the clock was wrong
    /// and their age is unknown. So the present time deletes everything that was made so far. Notes stay in the index.
    Before(SystemTime),
    /// All answers, summaries, prefixes, replaced texts and typed lines, and all notes of the index. Updates do not read the notes until they are
    /// added again.
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
    /// Until then, searches of assistants leave the notes out.
    pub is_notes_pending: bool,
}

/// Deletes what assistants have kept in these folders, a store and an index of notes, as [`Assistant::forget_all`] does, without a model.
/// No assistant may have the store open meanwhile. A deletion that was interrupted is finished first. `key` is the folders' key
/// ([`Builder::key`](crate::Builder::key)).
///
/// A folder without a store or index has nothing to delete, and none is created in it.
///
/// # Errors
/// [`ForgetError`], also [`StoreError::InUse`], and [`NotesError::Foreign`] if the folder is not that of an index. What was deleted
/// before stays deleted; after [`ForgetError::Unfinished`], the other deletions are done. Before anything is deleted
/// [`StoreError::Key`] and [`NotesError::Key`].
pub fn forget(
    store: Option<&Path>,
    notes: Option<&Path>,
    key: Option<&[u8; 32]>,
    what: impl IntoIterator<Item = Forget>,
) -> Result<Forgotten, ForgetError> {
    let store = store.filter(|folder| Store::is_in(folder));
    // Opening it is no reason to remove prefixes that an app's larger bound has room for.
    let prefixes = PrefixOptions { max_bytes: u64::MAX, key: key.copied(), ..PrefixOptions::default() };
    let store = store.map(|folder| Store::open(folder, None, prefixes)).transpose()?;
    if let Some(store) = &store {
        finish_forgetting(store)?;
    }
    let index = match notes.map(|folder| NotesIndex::open_with_key(folder, key)) {
        Some(Err(NotesError::NoIndex { .. })) | None => None,
        // A writer builds it again, and deletes.
        Some(Err(error)) if error.is_damage() => None,
        Some(index) => Some(index?),
    };
    let what = resolve(what, notes, index.as_ref(), key)?;
    match &store {
        Some(store) => begin(store, &what),
        None => forget_without_store(&what, key),
    }
}

impl Assistant {
    /// Deletes kept data, in all namespaces and for all models. After the return, no file of the store has a byte of the deleted data,
    /// and no file of the index has a byte of a forgotten note (the disk may hold freed blocks), except as
    /// [`Forgotten::is_notes_pending`] says. Answers in memory, of assistants without a store, are all deleted.
    ///
    /// If a crash came between an answer and its entry in the ledger, the answer's origin is unknown, and the answer is deleted with any
    /// note or conversation.
    ///
    /// # Errors
    /// [`ForgetError`]; what was deleted before stays deleted.
    pub fn forget(&self, what: Forget) -> Result<Forgotten, ForgetError> {
        self.forget_all([what])
    }

    /// As [`forget`](Self::forget), of several: all are noted in the store before the first is carried out, so none is lost by a crash.
    ///
    /// # Errors
    /// As [`forget`](Self::forget); the others are carried out all the same.
    pub fn forget_all(&self, what: impl IntoIterator<Item = Forget>) -> Result<Forgotten, ForgetError> {
        let what = resolve(what, self.notes_folder(), self.notes(), self.key())?;
        self.start_forgetting();
        let forgotten = match self.store() {
            Some(store) => {
                let deleting = store.deleting();
                let forgotten = finish_held(store).and_then(|_| begin(store, &what));
                // Jobs that began meanwhile may have read what is gone now.
                self.start_forgetting();
                drop(deleting);
                forgotten
            }
            None => {
                let forgotten = forget_without_store(&what, self.key());
                self.start_forgetting();
                forgotten
            }
        };
        let forgotten = forgotten?;
        if let Some(notes) = self.notes() {
            if forgotten.is_notes_pending {
                self.hide(what.iter().flat_map(paths_in_index).cloned().collect());
            }
            notes.refresh()?;
        }
        Ok(forgotten)
    }

    /// Finishes what a crash has interrupted.
    pub(crate) fn finish_forgetting(&self) -> Result<(), ForgetError> {
        let Some(store) = self.store() else { return Ok(()) };
        if finish_forgetting(store)?
            && let Some(notes) = self.notes()
        {
            notes.refresh()?;
        }
        Ok(())
    }

    /// The files and folders of deletions that the store has noted and that are not finished.
    pub(crate) fn unfinished(&self) -> Vec<PathBuf> {
        let unfinished = |store: &Store| {
            let ledger = store.ledger();
            ledger.forgetting().iter().flat_map(paths_in_index).cloned().collect()
        };
        self.store().map(unfinished).unwrap_or_default()
    }
}

/// What is to be deleted, with everything that it is found by.
fn resolve(
    what: impl IntoIterator<Item = Forget>,
    folder: Option<&Path>,
    notes: Option<&NotesIndex>,
    key: Option<&[u8; 32]>,
) -> Result<Vec<Forgetting>, ForgetError> {
    // Refuses the folder of something else, and an index of a newer version, before anything is noted or deleted.
    let roots = folder.map(|folder| NotesIndex::roots_in(folder, key)).transpose()?.flatten();
    let index = folder.filter(|_| roots.is_some()).map(absolute).transpose()?;
    let (mut paths, mut others) = (Vec::new(), Vec::new());
    for what in what {
        match what {
            Forget::Note(path) => paths.push(absolute(&path)?),
            Forget::Conversation(id) => others.push(Forgetting::Conversation(id.0)),
            Forget::Before(time) => {
                others.push(Forgetting::Before { time: micros(time), now: micros(SystemTime::now()) });
            }
            Forget::Everything => others.push(Forgetting::Everything {
                index: index.clone(),
                roots: roots.clone().unwrap_or_default(),
            }),
        }
    }
    if !paths.is_empty() {
        let names = names_with_index(&paths, notes)?;
        others.insert(0, Forgetting::Notes { paths, names, index });
    }
    Ok(others)
}

/// Notes what is to be deleted, and deletes it.
fn begin(store: &Store, what: &[Forgetting]) -> Result<Forgotten, ForgetError> {
    let mut ledger = store.ledger();
    let new = what.iter().filter(|what| !ledger.forgetting().contains(what));
    let new = new.map(|what| Entry::Forget { what: what.clone() }).collect();
    ledger.append(new)?;
    drop(ledger);
    sum(what.iter().map(|what| carry_out(store, what))).map_err(ForgetError::noted)
}

fn forget_without_store(what: &[Forgetting], key: Option<&[u8; 32]>) -> Result<Forgotten, ForgetError> {
    let parts = what.iter().filter_map(in_index);
    let pending = |part: &Forgetting| forget_notes(part, key);
    sum(parts.map(|part| Ok(Forgotten { is_notes_pending: pending(&part)?, ..Forgotten::default() })))
}

/// Carries out all, also behind an error, and returns the first error.
fn sum(all: impl Iterator<Item = Result<Forgotten, ForgetError>>) -> Result<Forgotten, ForgetError> {
    let (mut sum, mut failed) = (Forgotten::default(), None);
    for next in all {
        match next {
            Ok(next) => {
                sum.n_answers += next.n_answers;
                sum.n_summaries += next.n_summaries;
                sum.n_prefix_blocks += next.n_prefix_blocks;
                sum.is_notes_pending |= next.is_notes_pending;
            }
            Err(error) => drop(failed.get_or_insert(error)),
        }
    }
    failed.map_or(Ok(sum), Err)
}

/// Finishes what a crash or an error has interrupted. What cannot be deleted from an index stays noted. Returns whether there was
/// something.
fn finish_forgetting(store: &Store) -> Result<bool, ForgetError> {
    let _deleting = store.deleting();
    finish_held(store)
}

/// As [`finish_forgetting`], for the holder of [`Store::deleting`].
fn finish_held(store: &Store) -> Result<bool, ForgetError> {
    let begun = store.ledger().forgetting().to_vec();
    for what in &begun {
        match carry_out(store, what) {
            // Of another index than the one that is to be changed now, perhaps.
            Ok(_) | Err(ForgetError::Notes(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(!begun.is_empty())
}

fn carry_out(store: &Store, what: &Forgetting) -> Result<Forgotten, ForgetError> {
    let mut forgotten = Forgotten::default();
    let part = in_index(what);
    if part.as_ref() != Some(what) {
        forgotten.n_answers = forget_answers(store, what)?;
        forgotten.n_prefix_blocks = forget_prefixes(store, what)?;
        store.copies().forget(what)?;
        store.typed().forget(what)?;
        forgotten.n_summaries = store.ledger().finish_forgetting(what, part.clone())?;
    }
    if let Some(part) = part {
        forgotten.is_notes_pending = forget_notes(&part, store.key())?;
        store.ledger().finish_forgetting(&part, None)?;
    }
    Ok(forgotten)
}

/// What a deletion removes from an index of notes.
fn in_index(what: &Forgetting) -> Option<Forgetting> {
    let (index, is_all) = match what {
        Forgetting::Notes { index, .. } => (index.as_ref()?, false),
        Forgetting::Everything { index, .. } => (index.as_ref()?, true),
        Forgetting::Index { index, is_all, .. } => (index, *is_all),
        Forgetting::Conversation(_) | Forgetting::Before { .. } => return None,
    };
    Some(Forgetting::Index { index: index.clone(), paths: paths_in_index(what).to_vec(), is_all })
}

/// The files and folders that a deletion removes from the index of notes.
fn paths_in_index(what: &Forgetting) -> &[PathBuf] {
    match what {
        Forgetting::Notes { paths, .. } | Forgetting::Index { paths, .. } => paths,
        Forgetting::Everything { roots, .. } => roots,
        Forgetting::Conversation(_) | Forgetting::Before { .. } => &[],
    }
}

/// Deletes a part from the index that was there when the deletion began. Returns whether that was left to another writer.
fn forget_notes(part: &Forgetting, key: Option<&[u8; 32]>) -> Result<bool, NotesError> {
    let Forgetting::Index { index: folder, paths, is_all } = part else { return Ok(false) };
    let mut paths = paths.clone();
    match NotesIndex::roots_in(folder, key)? {
        Some(roots) if *is_all => paths.extend(roots),
        Some(_) => {}
        // It was deleted since. On a disk that is not there, it waits.
        None if folder.parent().is_none_or(Path::is_dir) => return Ok(false),
        None => return Err(NotesError::NoIndex { path: folder.clone() }),
    }
    let has_list = !paths.is_empty();
    if *is_all {
        paths.push(DOCUMENTS.into());
    }
    let lock_wait = Duration::from_millis(100);
    let options = NotesOptions { lock_wait, key: key.copied(), ..NotesOptions::default() };
    match NotesWriter::open_or_hand_in(folder, options, &Request::Forget(paths.clone()))? {
        Some(mut writer) => {
            if *is_all {
                // Requests of other processes may have added some.
                paths.extend(writer.roots().map(Path::to_owned));
            }
            paths.sort_unstable();
            paths.dedup();
            writer.forget(&paths)?;
            writer.maintain()?;
            writer.leave()?;
            Ok(false)
        }
        // The other writer has the list of what it reads; here it is not known.
        None if *is_all && !has_list => Err(NotesError::InUse { path: folder.clone() }),
        None => Ok(true),
    }
}

/// Deletes answers of every model from the history.
fn forget_answers(store: &Store, what: &Forgetting) -> Result<usize, StoreError> {
    let ledger = store.ledger();
    let mut n_answers = 0;
    for history in store.histories()? {
        if let Forgetting::Everything { .. } = what {
            n_answers += history.clear()?;
            continue;
        }
        let model = history.key().to_string();
        let records = history.list().into_iter().map(|info| info.record);
        let going: Vec<RecordId> =
            records.filter(|record| ledger.is_forgotten(what, &model, record.0)).collect();
        n_answers += history.forget_all(&going)?;
        // What damaged files contain is not known.
        history.remove_aside()?;
    }
    Ok(n_answers)
}

fn forget_prefixes(store: &Store, what: &Forgetting) -> Result<usize, StoreError> {
    let (ledger, prefixes) = (store.ledger(), store.prefixes());
    let labels: Vec<String> = match what {
        Forgetting::Notes { names, .. } => ledger.notes_named(names).into_iter().map(note_label).collect(),
        Forgetting::Conversation(id) => vec![conversation_label(*id)],
        Forgetting::Before { time, .. } => {
            return Ok(prefixes.forget_before(SystemTime::UNIX_EPOCH + Duration::from_micros(*time))?);
        }
        Forgetting::Everything { .. } => return Ok(prefixes.clear()?),
        Forgetting::Index { .. } => return Ok(0),
    };
    let mut n_blocks = 0;
    for namespace in ledger.namespaces() {
        n_blocks += prefixes.forget_all(namespace, &labels)?;
    }
    Ok(n_blocks)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::ControlFlow;

    use refrain::{Engine, EngineOptions};

    use super::*;
    use crate::{AnswerRequest, AssistantOptions, JobOptions, KeptPrompts};

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
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/target.gguf");
        let engine =
            Engine::open(model, EngineOptions { n_threads: Some(1), ..EngineOptions::default() }).unwrap();
        // The assistant that finishes it may have no index of notes.
        let cases = (0..5).flat_map(|n_steps| [(n_steps, false), (n_steps, true)]);
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
                let mut options = AssistantOptions::default();
                options.answer_tokens = Some(40);
                options.keeps_prompts = KeptPrompts::All;
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
                false => Forgetting::Notes {
                    names: names_with_index(std::slice::from_ref(&note), None).unwrap(),
                    paths: vec![note.clone()],
                    index: of,
                },
                true => Forgetting::Everything { index: of, roots: vec![notes.clone()] },
            };
            let kept = assistant.store().unwrap();
            kept.ledger().append(vec![Entry::Forget { what: what.clone() }]).unwrap();
            for step in 0..n_steps {
                match step {
                    0 => drop(forget_answers(kept, &what).unwrap()),
                    1 => drop(forget_prefixes(kept, &what).unwrap()),
                    2 => drop(kept.ledger().finish_forgetting(&what, in_index(&what)).unwrap()),
                    _ => drop(forget_notes(&in_index(&what).unwrap(), None).unwrap()),
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
