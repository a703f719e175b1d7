//! What a store holds, by kind and by note.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use refrain_index::prefixes::PrefixOptions;

use super::{LEDGER, Store, StoreError, note_hash, typed};

/// Folders below that of a store.
const DEPTH_MAX: usize = 8;

/// A kind of what a store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StoredKind {
    /// Answers, as token ids.
    Answers,
    /// What answers were made from, and the newest summary of each subject.
    Summaries,
    /// Keys and values of prompts. They can be computed again, and are evicted first.
    Prefixes,
    /// Texts that edits have replaced.
    Replaced,
    /// Lines that were typed in conversations.
    Typed,
}

impl StoredKind {
    /// All kinds, with the file or folder that has them.
    const ALL: [(Self, &'static str); 5] = [
        (Self::Answers, "history"),
        (Self::Summaries, LEDGER),
        (Self::Prefixes, "prefixes"),
        (Self::Replaced, "undo"),
        (Self::Typed, typed::FILE),
    ];
}

/// What a store holds of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KindStatus {
    /// The kind.
    pub kind: StoredKind,
    /// Length of its files, in bytes.
    pub bytes: u64,
    /// Number of answers, summaries, tokens of prefixes, texts, lines; `None` if another process has the store open.
    pub n: Option<usize>,
    /// The time of the oldest one; of prefixes and texts that of the file whose last use is the longest ago. Of lines `None`.
    pub oldest: Option<SystemTime>,
}

/// What was made from a note.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MadeFrom {
    /// The note, if it is one of the given ones: a store has hashes of paths alone.
    pub note: Option<PathBuf>,
    /// Answers and summaries that were made from it.
    pub n: usize,
}

/// What a store holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStatus {
    /// Every kind.
    pub kinds: Vec<KindStatus>,
    /// By note, those with the most answers and summaries first; empty if another process has the store open.
    pub by_note: Vec<MadeFrom>,
    /// Whether another process has the store open.
    pub is_in_use: bool,
}

/// What the store in a folder holds, without a model. `notes` are the paths of notes that may have been shown, such as those of an index.
///
/// A folder without a store has nothing, and none is created in it.
///
/// # Errors
/// [`StoreError::Key`]; a file or folder cannot be read.
pub fn store_status(
    folder: &Path,
    key: Option<&[u8; 32]>,
    notes: impl IntoIterator<Item = PathBuf>,
) -> Result<StoreStatus, StoreError> {
    let mut kinds: Vec<KindStatus> = StoredKind::ALL
        .into_iter()
        .map(|(kind, name)| {
            let (bytes, oldest) = size(&folder.join(name), DEPTH_MAX);
            let oldest = oldest.filter(|_| matches!(kind, StoredKind::Prefixes | StoredKind::Replaced));
            KindStatus { kind, bytes, n: Some(0), oldest }
        })
        .collect();
    // Without a ledger, opening the store would begin one, and delete the prefixes.
    if folder.join(LEDGER).symlink_metadata().is_err() {
        if Store::is_in(folder) {
            kinds.iter_mut().for_each(|kind| kind.n = None);
        }
        return Ok(StoreStatus { kinds, by_note: Vec::new(), is_in_use: false });
    }
    // Looking is no reason to evict.
    let prefixes = PrefixOptions { max_bytes: u64::MAX, key: key.copied(), ..PrefixOptions::default() };
    let store = match Store::open(folder, None, prefixes) {
        Err(StoreError::InUse { .. }) => {
            kinds.iter_mut().for_each(|kind| kind.n = None);
            return Ok(StoreStatus { kinds, by_note: Vec::new(), is_in_use: true });
        }
        store => store?,
    };
    let answers: Vec<u64> =
        store.histories()?.iter().flat_map(|history| history.list()).map(|info| info.record.0).collect();
    let ledger = store.ledger();
    for kind in &mut kinds {
        let (n, oldest) = match kind.kind {
            StoredKind::Answers => (answers.len(), answers.iter().min().map(|&at| time(at))),
            StoredKind::Summaries => (ledger.n_summaries(), ledger.oldest_summary().map(time)),
            StoredKind::Prefixes => (store.prefixes().status()?.n_tokens, kind.oldest),
            StoredKind::Replaced => (store.copies().len()?, kind.oldest),
            StoredKind::Typed => (store.typed().read().len(), None),
        };
        (kind.n, kind.oldest) = (Some(n), oldest.filter(|_| n > 0));
    }
    let names: BTreeMap<u64, PathBuf> = notes.into_iter().map(|path| (note_hash(&path), path)).collect();
    let made = ledger.n_made_from().into_iter();
    let mut by_note: Vec<MadeFrom> =
        made.map(|(note, n)| MadeFrom { note: names.get(&note).cloned(), n }).collect();
    by_note.sort_by(|a, b| b.n.cmp(&a.n).then_with(|| a.note.cmp(&b.note)));
    drop(ledger);
    Ok(StoreStatus { kinds, by_note, is_in_use: false })
}

fn time(micros: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}

/// Bytes of the files at and below a path, and the oldest time of one. Links are not followed; what cannot be read counts nothing.
fn size(path: &Path, depth: usize) -> (u64, Option<SystemTime>) {
    let Ok(metadata) = path.symlink_metadata() else { return (0, None) };
    if metadata.is_file() {
        return (metadata.len(), metadata.modified().ok().filter(|_| metadata.len() > 0));
    }
    if !metadata.is_dir() || depth == 0 {
        return (0, None);
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(|entry| size(&entry.path(), depth - 1))
        .fold((0, None), |(sum, oldest), (bytes, time)| (sum + bytes, oldest.into_iter().chain(time).min()))
}

#[cfg(test)]
mod tests {
    use refrain::TokenId;
    use refrain_index::history::HistoryKey;

    use super::*;
    use crate::store::Kept;

    #[test]
    fn kinds_and_notes_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let empty = store_status(folder.path(), None, []).unwrap();
        assert!(
            empty.kinds.iter().all(|kind| kind.bytes == 0 && kind.n == Some(0)) && empty.by_note.is_empty()
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "looking creates nothing");

        let key = HistoryKey { tokenizer: 1, model: 2 };
        let store = Store::open(folder.path(), Some(key), PrefixOptions::default()).unwrap();
        let (a, b) = (PathBuf::from("/n/a.md"), PathBuf::from("/n/b.md"));
        for notes in [vec![a.clone()], vec![a.clone(), b]] {
            let kept = Kept { notes: notes.into_iter().collect(), ..Kept::default() };
            store.keep_answer("x", &[TokenId(1); 4], &kept).unwrap();
        }
        store.typed().append(crate::ConversationId(1), "hello").unwrap();
        let held = store_status(folder.path(), None, [a.clone()]).unwrap();
        assert!(held.is_in_use && held.kinds[0].bytes > 0 && held.kinds[0].n.is_none());
        drop(store);
        let status = store_status(folder.path(), None, [a.clone()]).unwrap();
        let n = |kind| status.kinds.iter().find(|status| status.kind == kind).unwrap().n;
        assert_eq!((n(StoredKind::Answers), n(StoredKind::Typed)), (Some(2), Some(1)));
        assert!(status.kinds[0].oldest.is_some_and(|oldest| oldest <= SystemTime::now()));
        let by_note: Vec<_> = status.by_note.iter().map(|made| (made.note.clone(), made.n)).collect();
        assert_eq!(by_note, [(Some(a), 2), (None, 1)]);
    }
}
