//! Transactions: documents without files that are put and removed together, and what readers see of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use refrain_files::catch_quietly;
use xxhash_rust::xxh3::xxh3_128;

use super::codec::Encoder;
use super::documents::{DocumentChanges, Entry, Metadata, NoteDocument};
use super::error::{NotesError, index_error};
use super::formats::tags_of;
use super::index::NotesIndex;
use super::ingest::{FileContents, document_contents};
use super::passage::NotePassage;
use super::paths::{document_id, document_path, path_of_id};
use super::report::SkipReason;
use super::stamp::since_1970;
use super::writer::NotesWriter;

/// Maximum length of the texts, titles, tags and ids of a transaction, in bytes. They are in memory until the transaction is committed.
pub const TRANSACTION_BYTES_MAX: u64 = 32 << 20;

/// What a change takes in memory beside its text.
const CHANGE_BYTES: u64 = 256;

/// Maximum length of what an app stores with a transaction, in bytes.
pub const CURSOR_BYTES_MAX: usize = 4096;

/// Maximum length of a title, in bytes. A passage has its start.
const TITLE_BYTES_MAX: u64 = 4096;

/// A change of a transaction.
enum Change {
    Put { contents: FileContents, hash: u128, bytes: u64, put_at: i64 },
    Remove,
}

/// Puts and removals that become visible together, or not at all: also if the process is killed. Dropped without
/// [`commit`](Self::commit), it changes nothing.
///
/// ```
/// use refrain_index::notes::{Metadata, NotesIndex, NotesOptions, NotesWriter, Search};
///
/// # let place = tempfile::tempdir()?;
/// # let folder = place.path().join("index");
/// let mut writer = NotesWriter::open(&folder, NotesOptions::default())?;
/// let mut transaction = writer.transaction();
/// let metadata = Metadata { tags: vec!["house".into()], ..Metadata::default() };
/// transaction.put(b"row-42", "# Kitchen\n\nThe tap drips.", &metadata)?;
/// transaction.remove(b"row-7")?;
/// // What the app has to know to go on here, such as the number of its last change.
/// transaction.set_cursor(Some(b"1042"))?;
/// transaction.commit()?;
///
/// let hits = NotesIndex::open(&folder)?.search(&Search::new("Which tap drips?", 3))?;
/// assert_eq!(hits[0].passage.document_id().as_deref(), Some(&b"row-42"[..]));
/// assert_eq!(writer.cursor(), Some(&b"1042"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a transaction that is not committed changes nothing"]
pub struct Transaction<'a> {
    writer: &'a mut NotesWriter,
    /// By path, with the bytes that each counts.
    changes: BTreeMap<PathBuf, (Change, u64)>,
    n_bytes: u64,
    cursor: Option<Option<Vec<u8>>>,
}

impl NotesWriter {
    /// Starts a transaction of documents without files.
    pub fn transaction(&mut self) -> Transaction<'_> {
        Transaction { writer: self, changes: BTreeMap::new(), n_bytes: 0, cursor: None }
    }

    /// Puts a text under an id: a transaction of one document. Several are much faster in one transaction.
    ///
    /// # Errors
    /// As [`Transaction::put`] and [`Transaction::commit`].
    pub fn put(&mut self, id: &[u8], text: &str, metadata: &Metadata) -> Result<(), NotesError> {
        let mut transaction = self.transaction();
        transaction.put(id, text, metadata)?;
        transaction.commit().map(drop)
    }

    /// Removes the document with an id, and its text from every file of the folder. Returns whether there was one.
    ///
    /// # Errors
    /// As [`Transaction::commit`] and [`purge`](Self::purge).
    pub fn remove(&mut self, id: &[u8]) -> Result<bool, NotesError> {
        let mut transaction = self.transaction();
        let was_there = transaction.remove(id)?;
        transaction.commit()?;
        self.purge()?;
        Ok(was_there)
    }

    /// What the app stored with a transaction ([`Transaction::set_cursor`]). `None` also after the index was built again, or is to read
    /// its documents with other languages: the app puts all of its documents again.
    pub fn cursor(&self) -> Option<&[u8]> {
        self.catalogue.documents.cursor.as_deref()
    }

    /// The document with an id.
    pub fn document(&self, id: &[u8]) -> Option<NoteDocument> {
        self.catalogue.documents.document(&path_of_id(id))
    }

    /// As [`NotesIndex::documents_since`].
    pub fn documents_since(&self, change: u64) -> DocumentChanges {
        self.catalogue.documents.since(change)
    }

    /// Removes the documents at and below a path with the next commit, and leaves not even their ids. Returns their number; `None` if the
    /// index had nothing of the path.
    pub(super) fn forget_documents(&mut self, path: &Path) -> Option<usize> {
        let below: Vec<PathBuf> =
            self.catalogue.documents.below(path).map(|(path, _)| path.clone()).collect();
        let had_ids = self.catalogue.documents.removed.keys().any(|removed| removed.starts_with(path));
        if below.is_empty() && !had_ids {
            return None;
        }
        self.catalogue.documents.change += 1;
        let change = self.catalogue.documents.change;
        below.iter().for_each(|path| self.remove_document(path, change));
        self.catalogue.documents.forget_ids(path);
        if path.components().count() == 1 {
            // All of them: the app puts them again, or nothing.
            self.catalogue.documents.cursor = None;
        }
        Some(below.len())
    }

    fn remove_document(&mut self, path: &Path, change: u64) {
        let documents = &mut self.catalogue.documents;
        if let Some(entry) = documents.entries.remove(path) {
            documents.removed.insert(path.to_owned(), change);
            self.writer.delete_term(self.store.fields.of_file(entry.file));
        }
    }
}

impl Transaction<'_> {
    /// Puts a text under an id: any bytes, at most [`ID_BYTES_MAX`](super::ID_BYTES_MAX). It takes the place of an earlier text of the id. A
    /// text that the index has already, with the same metadata, changes nothing.
    ///
    /// # Errors
    /// [`NotesError::OutOfRange`]: the length of the id or of the title. [`NotesError::Document`]: the text is longer than
    /// [`NotesOptions::file_bytes_max`](super::NotesOptions::file_bytes_max), or has a byte 0. [`NotesError::TransactionFull`]: commit, and begin
    /// another one. The transaction is as before.
    pub fn put(&mut self, id: &[u8], text: &str, metadata: &Metadata) -> Result<(), NotesError> {
        self.writer.check_running()?;
        let path = document_path(id)?;
        let refused = |reason| NotesError::Document { path: path.clone(), reason };
        let limit = self.writer.sources.settings.file_bytes_max;
        let bytes = text.len() as u64;
        if bytes > limit {
            return Err(refused(SkipReason::TooLong { bytes, limit }));
        }
        let Metadata { title, date, tags, kind } = metadata;
        let given = title.as_ref().map_or(0, String::len) as u64;
        if given > TITLE_BYTES_MAX {
            return Err(NotesError::OutOfRange { option: "title", given, min: 0, max: TITLE_BYTES_MAX });
        }
        let room = self.room(&path, bytes + given + tags.iter().map(|tag| tag.len() as u64).sum::<u64>())?;
        let tags = tags_of(tags);
        let mut hashed = Encoder::default();
        hashed.u128(xxh3_128(text.as_bytes()));
        hashed.u64(title.is_some().into());
        hashed.bytes(title.as_deref().unwrap_or_default().as_bytes());
        hashed.u64(date.is_some().into());
        hashed.i64(date.unwrap_or_default());
        hashed.u64(kind.code().into());
        tags.iter().for_each(|tag| hashed.bytes(tag.as_bytes()));
        // 0 stands for a document that should be put again.
        let hash = xxh3_128(&hashed.0).max(1);
        if self.writer.catalogue.documents.entries.get(&path).is_some_and(|entry| entry.hash == hash) {
            // An earlier change of the transaction has no effect.
            self.drop_change(&path);
            return Ok(());
        }
        let put_at = since_1970(SystemTime::now()).div_euclid(1_000_000_000);
        let contents = catch_quietly(|| {
            let (n_overlap, languages) = (self.writer.options.n_overlap_words, &self.writer.languages);
            document_contents(&path, id, text, metadata, &tags, put_at, n_overlap, languages)
        });
        let panicked = SkipReason::Broken { what: "the parser panicked", offset: 0 };
        let contents = contents.unwrap_or(Err(panicked)).map_err(refused)?;
        self.change(path, Change::Put { contents, hash, bytes, put_at }, room);
        Ok(())
    }

    /// Removes the document with an id. Returns whether there is one, or one that this transaction has put.
    ///
    /// The text is on the disk until [`NotesWriter::maintain`], [`NotesWriter::purge`] or [`NotesWriter::update`], and the id is told by
    /// [`NotesIndex::documents_since`]. [`NotesWriter::forget`] with the path of the document ([`document_path`]) leaves neither.
    ///
    /// # Errors
    /// [`NotesError::OutOfRange`]: the length of the id. [`NotesError::TransactionFull`].
    pub fn remove(&mut self, id: &[u8]) -> Result<bool, NotesError> {
        self.writer.check_running()?;
        let path = document_path(id)?;
        let is_stored = self.writer.catalogue.documents.entries.contains_key(&path);
        let was_put = matches!(self.changes.get(&path), Some((Change::Put { .. }, _)));
        let is_removed = matches!(self.changes.get(&path), Some((Change::Remove, _)));
        match is_stored {
            true if !is_removed => {
                let room = self.room(&path, 0)?;
                self.change(path, Change::Remove, room);
            }
            true => return Ok(false),
            false => self.drop_change(&path),
        }
        Ok(is_stored || was_put)
    }

    /// Stores at most [`CURSOR_BYTES_MAX`] bytes of the app with the transaction, in one step with its changes ([`NotesWriter::cursor`]): for example the
    /// number of the app's last change that the index has.
    ///
    /// # Errors
    /// [`NotesError::OutOfRange`].
    pub fn set_cursor(&mut self, cursor: Option<&[u8]>) -> Result<(), NotesError> {
        let (given, max) = (cursor.map_or(0, <[u8]>::len) as u64, CURSOR_BYTES_MAX as u64);
        if given > max {
            return Err(NotesError::OutOfRange { option: "cursor", given, min: 0, max });
        }
        self.cursor = Some(cursor.map(<[u8]>::to_vec));
        Ok(())
    }

    /// The number of documents that the transaction changes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether the transaction changes no document.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Makes the changes visible and durable, in one step. Returns the number of the last transaction that has changed something.
    ///
    /// # Errors
    /// The folder cannot be written. The writer has stopped; the next one finds all of the changes or none.
    pub fn commit(self) -> Result<u64, NotesError> {
        let Self { writer, changes, cursor, .. } = self;
        writer.check_running()?;
        let documents = &mut writer.catalogue.documents;
        let is_new = cursor.as_ref().is_some_and(|cursor| *cursor != documents.cursor);
        if changes.is_empty() && !is_new {
            return Ok(documents.change);
        }
        if let Some(cursor) = cursor {
            documents.cursor = cursor;
        }
        if !changes.is_empty() {
            documents.change += 1;
        }
        let change = documents.change;
        let taken =
            changes.into_iter().try_for_each(|(path, (what, _))| writer.take_change(path, what, change));
        // What is not committed is in the memory of the writer.
        taken.inspect_err(|_| writer.stop())?;
        writer.catalogue.documents.bound_removed();
        writer.commit()?;
        writer.merge_small()?;
        Ok(change)
    }

    /// The bytes that a change of a path counts, if they have room.
    fn room(&self, path: &Path, bytes: u64) -> Result<u64, NotesError> {
        let bytes = bytes + path.as_os_str().len() as u64 + CHANGE_BYTES;
        let before = self.changes.get(path).map_or(0, |(_, bytes)| *bytes);
        let sum = self.n_bytes - before + bytes;
        match sum > TRANSACTION_BYTES_MAX {
            true => Err(NotesError::TransactionFull { bytes: sum, max: TRANSACTION_BYTES_MAX }),
            false => Ok(bytes),
        }
    }

    fn change(&mut self, path: PathBuf, change: Change, bytes: u64) {
        let before = self.changes.insert(path, (change, bytes));
        self.n_bytes = self.n_bytes + bytes - before.map_or(0, |(_, bytes)| bytes);
    }

    fn drop_change(&mut self, path: &Path) {
        self.n_bytes -= self.changes.remove(path).map_or(0, |(_, bytes)| bytes);
    }
}

impl NotesWriter {
    /// Takes a change into the next commit.
    fn take_change(&mut self, path: PathBuf, what: Change, change: u64) -> Result<(), NotesError> {
        self.remove_document(&path, change);
        let Change::Put { contents, hash, bytes, put_at } = what else { return Ok(()) };
        let FileContents { passages, names, .. } = contents;
        let file = self.catalogue.new_file();
        for passage in &passages {
            let document = self.store.fields.document(passage, file, &names);
            self.writer.add_document(document).map_err(index_error(&self.store.words))?;
        }
        let documents = &mut self.catalogue.documents;
        documents.removed.remove(&path);
        let n_passages = passages.len() as u32;
        documents.entries.insert(path, Entry { file, change, hash, bytes, n_passages, put_at });
        Ok(())
    }
}

impl NotesIndex {
    /// The document with an id, after the last commit of any process. Reads the list of files and documents anew.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn document(&self, id: &[u8]) -> Result<Option<NoteDocument>, NotesError> {
        Ok(self.catalogue()?.documents.document(&path_of_id(id)))
    }

    /// The documents that were put or removed since the transaction with a number, after the last commit of any process; 0: all documents. A copy
    /// elsewhere follows the index by passing [`DocumentChanges::change`] to the next call. Reads the list of files and documents anew.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn documents_since(&self, change: u64) -> Result<DocumentChanges, NotesError> {
        Ok(self.catalogue()?.documents.since(change))
    }

    /// As [`NotesWriter::cursor`], after the last commit of any process.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn cursor(&self) -> Result<Option<Vec<u8>>, NotesError> {
        let catalogue = self.catalogue()?;
        // A writer with other languages drops the cursor with its next commit.
        let is_current = catalogue.languages == self.sources()?.settings.languages;
        Ok(catalogue.documents.cursor.filter(|_| is_current))
    }
}

impl NotePassage {
    /// The id of its document, if it is of a document without a file.
    pub fn document_id(&self) -> Option<Vec<u8>> {
        document_id(&self.path)
    }
}
