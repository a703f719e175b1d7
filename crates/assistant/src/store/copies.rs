//! Copies of texts that edits have replaced, so that an edit can be undone.
//!
//! ```text
//! FOLDER/undo/TIME-HASH.copy    a line of JSON: what the note is found by, and the hash of the new text; then the old text
//! ```
//!
//! TIME is in microseconds, HASH that of the note's path. With a key, the whole file is one sealed part. A deletion removes the copies of a note with its answers.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use refrain_files::replace::{create_private_folder, private_options};
use refrain_index::internals::{Seal, place};
use refrain_index::notes::absolute;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::entry::{Forgetting, micros};
use super::error::{StoreError, io_error};
use super::names::{note_hash, places};

const FOLDER: &str = "undo";
const ENDING: &str = ".copy";

/// Copies that are kept, of all notes together.
const COPIES_MAX: usize = 64;

/// Bytes of all copies; the newest one is kept at any length.
const BYTES_MAX: u64 = 64 << 20;

/// The texts that edits have replaced, in the folder of a store. At most 64 copies and 64 MiB: beyond that, the oldest copies are
/// deleted. Only their owner can read the copies. [`Forget`](crate::Forget) deletes them with the other kept data of a note.
#[derive(Debug, Clone)]
pub struct EditCopies {
    folder: PathBuf,
    seal: Seal,
}

/// A text that an edit has replaced.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EditCopy {
    /// The old text.
    pub text: String,
    header: Header,
    path: PathBuf,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Header {
    /// Hashes of the note and of its places.
    names: Vec<u64>,
    /// The hash of the text that came instead.
    new: u64,
}

impl EditCopy {
    /// Whether `text` is what the edit has written.
    pub fn is_before(&self, text: &str) -> bool {
        xxh3_64(text.as_bytes()) == self.header.new
    }
}

impl EditCopies {
    /// The copies in the folder of a store, which need not exist and may be in use; `key` is that of the store
    /// ([`Builder::key`](crate::Builder::key)). Copies of another key are not found.
    pub fn in_store(folder: impl AsRef<Path>, key: Option<&[u8; 32]>) -> Self {
        let seal = Seal::new(key, "refrain assistant 2026-11: replaced texts");
        Self { folder: folder.as_ref().join(FOLDER), seal }
    }

    /// Keeps the text `old` of a note before it is replaced by `new`.
    ///
    /// # Errors
    /// [`StoreError::Key`]: the key is not that of the store. [`StoreError::Io`]. There is no copy then, and older ones may be gone.
    pub fn keep(&self, note: &Path, old: &str, new: &str) -> Result<(), StoreError> {
        let note = absolute(note).unwrap_or_else(|_| note.to_owned());
        super::ledger::check_first_line(&self.folder.with_file_name(super::LEDGER), &self.seal)?;
        create_private_folder(&self.folder).map_err(io_error("create", &self.folder))?;
        let hash = note_hash(&note);
        let names = places(&note).into_iter().chain([hash]).collect();
        let header = Header { names, new: xxh3_64(new.as_bytes()) };
        let header = serde_json::to_string(&header).expect("numbers have a JSON form");
        let copy = format!("{header}\n{old}");
        self.bound(copy.len() as u64)?;
        let (mut time, mut file) = (micros(SystemTime::now()), None);
        while file.is_none() {
            let name = format!("{time:016x}-{hash:016x}{ENDING}");
            let path = self.folder.join(&name);
            match private_options().write(true).create_new(true).open(&path) {
                Ok(created) => file = Some((created, path, name)),
                // Another edit of this note within a microsecond.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => time += 1,
                Err(error) => return Err(io_error("create", &path)(error)),
            }
        }
        let (mut file, path, name) = file.expect("the loop ends with a file");
        let mut part = Vec::new();
        let closed = self.seal.close(&place("copy", name.as_bytes()), copy.as_bytes(), &mut part);
        let written = closed.and_then(|()| file.write_all(&part)).and_then(|()| file.sync_all());
        written.map_err(|error| {
            let _ = fs::remove_file(&path);
            io_error("write", &path)(error)
        })
    }

    /// The newest copy of a note's text. One that cannot be read as a copy is passed over.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn newest(&self, note: &Path) -> Result<Option<EditCopy>, StoreError> {
        let note = absolute(note).unwrap_or_else(|_| note.to_owned());
        let ending = format!("-{:016x}{ENDING}", note_hash(&note));
        let of_note = |name: &&Listed| name.name.ends_with(&ending);
        for listed in self.list()?.iter().rev().filter(of_note) {
            let path = self.folder.join(&listed.name);
            let file = fs::read(&path).map_err(io_error("read", &path))?;
            if let Some((header, text)) = self.open(&listed.name, &file) {
                return Ok(Some(EditCopy { text, header, path }));
            }
        }
        Ok(None)
    }

    /// Deletes a copy, after its text was brought back.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn remove(&self, copy: EditCopy) -> Result<(), StoreError> {
        fs::remove_file(&copy.path).map_err(io_error("remove", &copy.path))
    }

    /// The number of copies.
    pub(super) fn len(&self) -> Result<usize, StoreError> {
        Ok(self.list()?.len())
    }

    /// Deletes the copies that a deletion finds.
    pub(crate) fn forget(&self, what: &Forgetting) -> Result<(), StoreError> {
        for listed in self.list()? {
            let path = self.folder.join(&listed.name);
            let goes = match what {
                Forgetting::Everything { .. } => true,
                Forgetting::Before { time, now } => listed.time < *time || listed.time > *now,
                // What cannot be read may be of any note.
                Forgetting::Notes { names, .. } => {
                    let file = fs::read(&path).map_err(io_error("read", &path))?;
                    self.open(&listed.name, &file).is_none_or(|(header, _)| {
                        header.names.iter().any(|name| names.binary_search(name).is_ok())
                    })
                }
                Forgetting::Conversation(_) | Forgetting::Index { .. } => false,
            };
            if goes {
                fs::remove_file(&path).map_err(io_error("remove", &path))?;
            }
        }
        Ok(())
    }

    /// The header and the text of a copy; `None` if the file is none, or one of another key.
    fn open(&self, name: &str, file: &[u8]) -> Option<(Header, String)> {
        let copy = String::from_utf8(self.seal.open(&place("copy", name.as_bytes()), file)?).ok()?;
        let (header, text) = copy.split_once('\n')?;
        Some((serde_json::from_str(header).ok()?, text.to_owned()))
    }

    /// Makes room for a copy of so many bytes.
    fn bound(&self, bytes: u64) -> Result<(), StoreError> {
        let (mut n_copies, mut sum) = (1, bytes);
        for listed in self.list()?.iter().rev() {
            (n_copies, sum) = (n_copies + 1, sum.saturating_add(listed.bytes));
            if n_copies > COPIES_MAX || sum > BYTES_MAX {
                let path = self.folder.join(&listed.name);
                fs::remove_file(&path).map_err(io_error("remove", &path))?;
            }
        }
        Ok(())
    }

    /// All copies, oldest first.
    fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error("list", &self.folder)(error)),
        };
        let mut listed = Vec::new();
        for entry in entries {
            let entry = entry.map_err(io_error("list", &self.folder))?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let time = name
                .strip_suffix(ENDING)
                .and_then(|name| u64::from_str_radix(name.split('-').next()?, 16).ok());
            if let Some(time) = time {
                let bytes = entry.metadata().map_or(0, |file| file.len());
                listed.push(Listed { name, time, bytes });
            }
        }
        listed.sort_by(|a, b| (a.time, &a.name).cmp(&(b.time, &b.name)));
        Ok(listed)
    }
}

struct Listed {
    name: String,
    time: u64,
    bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::names::names_of;

    #[test]
    fn the_newest_copy_of_a_note_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let copies = EditCopies::in_store(folder.path(), None);
        let (a, b) = (folder.path().join("a.md"), folder.path().join("b.md"));
        assert!(copies.newest(&a).unwrap().is_none());
        copies.keep(&a, "one\n\n{two}", "three").unwrap();
        copies.keep(&a, "three", "four").unwrap();
        copies.keep(&b, "other", "text").unwrap();
        let newest = copies.newest(&a).unwrap().unwrap();
        assert_eq!(newest.text, "three");
        assert!(newest.is_before("four") && !newest.is_before("three"));
        copies.remove(newest).unwrap();
        assert_eq!(copies.newest(&a).unwrap().unwrap().text, "one\n\n{two}");
        assert_eq!(copies.newest(&b).unwrap().unwrap().text, "other");
        fs::write(folder.path().join("undo").join("ffffffffffffffff-0.copy"), [0xff]).unwrap();
        assert!(copies.newest(&a).unwrap().is_some(), "what is no copy is passed over");
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_copies() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        EditCopies::in_store(folder.path(), None).keep(Path::new("/a"), "old", "new").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let undo = folder.path().join("undo");
        assert_eq!(mode(&undo), 0o700);
        fs::read_dir(&undo).unwrap().for_each(|copy| assert_eq!(mode(&copy.unwrap().path()), 0o600));
    }

    #[test]
    fn copies_of_a_store_with_a_key_are_sealed() {
        let folder = tempfile::tempdir().unwrap();
        let copies = EditCopies::in_store(folder.path(), Some(&[7; 32]));
        copies.keep(Path::new("/a"), "a secret", "new").unwrap();
        let file = fs::read_dir(folder.path().join("undo")).unwrap().next().unwrap().unwrap().path();
        let bytes = fs::read(file).unwrap();
        assert!(
            !bytes.windows(6).any(|part| part == b"secret") && !bytes.windows(5).any(|part| part == b"names")
        );
        assert_eq!(copies.newest(Path::new("/a")).unwrap().unwrap().text, "a secret");
        for other in [None, Some(&[8; 32])] {
            assert!(EditCopies::in_store(folder.path(), other).newest(Path::new("/a")).unwrap().is_none());
        }
    }

    #[test]
    fn the_oldest_copies_go_when_there_are_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let copies = EditCopies::in_store(folder.path(), None);
        for n in 0..COPIES_MAX + 3 {
            copies.keep(Path::new(&format!("/{n}")), "old", "new").unwrap();
        }
        assert_eq!(copies.list().unwrap().len(), COPIES_MAX);
        assert!(copies.newest(Path::new("/2")).unwrap().is_none());
        assert!(copies.newest(Path::new("/3")).unwrap().is_some());
        let large = "x".repeat(BYTES_MAX as usize);
        copies.keep(Path::new("/large"), &large, "new").unwrap();
        assert_eq!(copies.list().unwrap().len(), 1);
        assert_eq!(copies.newest(Path::new("/large")).unwrap().unwrap().text.len(), large.len());
    }

    #[test]
    fn a_deletion_finds_the_copies_of_a_note_and_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let copies = EditCopies::in_store(folder.path(), None);
        let notes = folder.path().join("notes");
        let (a, b) = (notes.join("a.md"), folder.path().join("b.md"));
        let fill = || [&a, &b].map(|note| copies.keep(note, "old", "new").unwrap());
        let notes_of = |paths: &[PathBuf]| Forgetting::Notes {
            paths: paths.to_vec(),
            names: names_of(paths),
            index: None,
        };
        let n_left = |what: Forgetting| {
            copies.forget(&what).unwrap();
            [&a, &b].map(|note| copies.newest(note).unwrap().is_some())
        };
        fill();
        assert_eq!(n_left(Forgetting::Conversation(1)), [true, true]);
        assert_eq!(n_left(notes_of(std::slice::from_ref(&a))), [false, true]);
        fill();
        assert_eq!(n_left(notes_of(std::slice::from_ref(&notes))), [false, true]);
        fill();
        let now = micros(SystemTime::now());
        assert_eq!(n_left(Forgetting::Before { time: 1, now: now + 1_000_000 }), [true, true]);
        assert_eq!(n_left(Forgetting::Before { time: now + 1, now: now + 2 }), [false, false]);
        fill();
        assert_eq!(n_left(Forgetting::Everything { index: None, roots: Vec::new() }), [false, false]);
    }
}
