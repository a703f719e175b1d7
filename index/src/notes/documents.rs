//! The list of documents without files: texts that an app puts under ids, such as the rows of its database.
//!
//! The catalogue has it, so a transaction is one commit: after a crash all of its changes are there, or none. Each transaction
//! has a number, and each document that of the transaction that has put it, so that a copy elsewhere can follow. The numbers of an
//! index begin at random: after it was emptied or built again, a number of before is one that it does not know.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};

use super::codec::{Decoder, Encoder};
use super::kind::SourceKind;
#[cfg(test)]
use super::paths::path_of_id;
use super::paths::{self, document_id};
use super::report::NoteFile;

/// Maximum number of removed documents whose ids are known.
const REMOVED_MAX: usize = 1 << 16;

/// What the index should know of a document beside its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// The title. `None`: that in the text's front matter, else its first heading, else the id.
    pub title: Option<String>,
    /// Seconds since 1970, UTC. `None`: the date in the text's front matter, else the time at which it is put.
    pub date: Option<i64>,
    /// Tags, beside those in the text (`#tag`, front matter).
    pub tags: Vec<String>,
    /// The kind, for filters. The text is read as Markdown in any case. Default: [`SourceKind::Note`].
    pub kind: SourceKind,
}

impl Default for Metadata {
    fn default() -> Self {
        Self { title: None, date: None, tags: Vec::new(), kind: SourceKind::Note }
    }
}

/// A document of the index. The index keeps its passages ([`NotesIndex::passages_of`](super::NotesIndex::passages_of)), not its text as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoteDocument {
    /// The id.
    pub id: Vec<u8>,
    /// Length of its text, in bytes.
    pub bytes: u64,
    /// Number of its passages.
    pub n_passages: usize,
    /// The number of the transaction that has put it.
    pub change: u64,
}

/// The documents that were put and removed since a transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DocumentChanges {
    /// The number of the last transaction: the next call continues behind it.
    pub change: u64,
    /// The documents that were put and are there, by number and id.
    pub put: Vec<NoteDocument>,
    /// The ids of documents that were removed and are not there, by number and id.
    pub removed: Vec<Vec<u8>>,
    /// Whether these are the changes since the given number. If the index does not know the number, or not all removals since, `put` has
    /// every document and `removed` none: a copy begins anew.
    pub is_complete: bool,
}

/// The documents in the catalogue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Documents {
    /// By path.
    pub(super) entries: BTreeMap<PathBuf, Entry>,
    /// Removed ones, with the number of the transaction.
    pub(super) removed: BTreeMap<PathBuf, u64>,
    /// The number since which all removals are known.
    removed_since: u64,
    /// The number of the last transaction.
    pub(super) change: u64,
    /// What the app stored with it.
    pub(super) cursor: Option<Vec<u8>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The number of its passages in the inverted index.
    pub(super) file: u64,
    pub(super) change: u64,
    /// XXH3 of the text and what is known of it; 0 if it should be put again.
    pub(super) hash: u128,
    pub(super) bytes: u64,
    pub(super) n_passages: u32,
    /// Seconds since 1970.
    pub(super) put_at: i64,
}

impl Documents {
    /// None yet.
    pub(super) fn new() -> Self {
        let random = std::hash::RandomState::new().build_hasher().finish();
        // A number of JSON is exact up to 2⁵³.
        let change = (1 | random >> 36) << 24;
        Self { removed_since: change, change, ..Self::default() }
    }

    pub(super) fn encode(&self, encoder: &mut Encoder) {
        let bytes = |path: &Path| paths::to_bytes(path).unwrap_or_default().to_vec();
        encoder.u64(self.change);
        encoder.u64(self.removed_since);
        encoder.u32(self.cursor.is_some().into());
        encoder.bytes(self.cursor.as_deref().unwrap_or_default());
        encoder.u32(self.entries.len() as u32);
        for (path, entry) in &self.entries {
            encoder.bytes(&bytes(path));
            encoder.u64(entry.file);
            encoder.u64(entry.change);
            encoder.u128(entry.hash);
            encoder.u64(entry.bytes);
            encoder.u32(entry.n_passages);
            encoder.i64(entry.put_at);
        }
        encoder.u32(self.removed.len() as u32);
        for (path, change) in &self.removed {
            encoder.bytes(&bytes(path));
            encoder.u64(*change);
        }
    }

    pub(super) fn decode(decoder: &mut Decoder<'_>) -> Option<Self> {
        let (change, removed_since) = (decoder.u64()?, decoder.u64()?);
        let has_cursor = decoder.u32()? != 0;
        let cursor = Some(decoder.bytes()?.to_vec()).filter(|_| has_cursor);
        let mut documents = Self { change, removed_since, cursor, ..Self::default() };
        for _ in 0..decoder.u32()? {
            let path = paths::from_bytes(decoder.bytes()?)?;
            let (file, change, hash) = (decoder.u64()?, decoder.u64()?, decoder.u128()?);
            let (bytes, n_passages, put_at) = (decoder.u64()?, decoder.u32()?, decoder.i64()?);
            documents.entries.insert(path, Entry { file, change, hash, bytes, n_passages, put_at });
        }
        for _ in 0..decoder.u32()? {
            documents.removed.insert(paths::from_bytes(decoder.bytes()?)?, decoder.u64()?);
        }
        Some(documents)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// As files, by path.
    pub(super) fn as_files(&self) -> impl Iterator<Item = NoteFile> {
        self.entries.iter().map(|(path, entry)| NoteFile {
            path: path.clone(),
            bytes: entry.bytes,
            modified: entry.put_at,
            n_passages: entry.n_passages as usize,
        })
    }

    pub(super) fn below<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = (&'a PathBuf, &'a Entry)> {
        // Paths are ordered by components, so those below `path` follow each other.
        self.entries.range(path.to_owned()..).take_while(move |(entry, _)| entry.starts_with(path))
    }

    /// Lets the app put all of them again: they were read with other settings.
    pub(super) fn outdate(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.hash = 0);
        self.cursor = None;
    }

    pub(super) fn document(&self, path: &Path) -> Option<NoteDocument> {
        let entry = self.entries.get(path)?;
        Some(NoteDocument {
            id: document_id(path)?,
            bytes: entry.bytes,
            n_passages: entry.n_passages as usize,
            change: entry.change,
        })
    }

    pub(super) fn since(&self, number: u64) -> DocumentChanges {
        let is_complete = (self.removed_since..=self.change).contains(&number);
        let since = if is_complete { number } else { 0 };
        let entries = self.entries.iter().filter(|(_, entry)| entry.change > since);
        let mut put: Vec<NoteDocument> = entries.filter_map(|(path, _)| self.document(path)).collect();
        put.sort_by(|a, b| (a.change, &a.id).cmp(&(b.change, &b.id)));
        let removed = self.removed.iter().filter(|&(_, &change)| is_complete && change > since);
        let mut removed: Vec<_> =
            removed.filter_map(|(path, change)| Some((*change, document_id(path)?))).collect();
        removed.sort_unstable();
        let removed = removed.into_iter().map(|(_, id)| id).collect();
        DocumentChanges { change: self.change, put, removed, is_complete }
    }

    /// Forgets the oldest removals beyond the limit.
    pub(super) fn bound_removed(&mut self) {
        if self.removed.len() <= REMOVED_MAX {
            return;
        }
        let mut changes: Vec<u64> = self.removed.values().copied().collect();
        changes.sort_unstable();
        // A quarter at a time, because each time looks at all.
        self.removed_since = changes[changes.len() - REMOVED_MAX * 3 / 4 - 1];
        self.removed.retain(|_, change| *change > self.removed_since);
    }

    /// Forgets the ids that were removed at and below a path.
    pub(super) fn forget_ids(&mut self, path: &Path) {
        let n = self.removed.len();
        self.removed.retain(|removed, _| !removed.starts_with(path));
        if self.removed.len() < n {
            self.removed_since = self.change;
        }
    }

    #[cfg(test)]
    pub(super) fn sample() -> Self {
        let mut documents = Self { cursor: Some(b"7".to_vec()), ..Self::new() };
        let (change, hash) = (documents.change, u128::MAX);
        let entry = Entry { file: 9, change, hash, bytes: 3, n_passages: 1, put_at: -1 };
        documents.entries.insert(path_of_id(b"a/\xff"), entry);
        documents.removed.insert(path_of_id(b"b"), documents.change);
        documents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removals_beyond_the_limit_are_forgotten_oldest_first() {
        let mut documents = Documents::new();
        let first = documents.change;
        for n in 0..=REMOVED_MAX as u64 {
            documents.change += 1;
            documents.removed.insert(path_of_id(&n.to_le_bytes()), documents.change);
            documents.bound_removed();
        }
        assert_eq!(documents.removed.len(), REMOVED_MAX * 3 / 4);
        let old = documents.since(first);
        assert!(!old.is_complete && old.removed.is_empty());
        let known = documents.since(documents.removed_since);
        assert!(known.is_complete && known.removed.len() == REMOVED_MAX * 3 / 4);
        assert!(!documents.since(0).is_complete && !documents.since(documents.change + 1).is_complete);
    }
}
