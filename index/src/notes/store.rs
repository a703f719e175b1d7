//! The inverted index and its catalogue on disk: opened together, verified, and cleaned of leftovers.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use refrain_files::replace;
use tantivy::directory::error::OpenReadError;
use tantivy::index::SegmentMeta;
use tantivy::{Index, TantivyError};

use super::catalogue::Catalogue;
use super::derived::DerivedKind;
use super::directory::{MANAGED, PlainDirectory};
use super::error::{NotesError, index_error, io_error};
use super::files::{self, Folder};
use super::inbox;
use super::schema::{Fields, schema, tokenizers};
use super::sources;
use crate::disk_file::if_there;
use crate::history::disk::PARTIAL;
use crate::seal::KEY_FILE;

/// The folder of the inverted index.
const WORDS: &str = "words";
/// tantivy's list of segments.
const META: &str = "meta.json";

/// The file whose lock the writer holds.
pub(super) const LOCK: &str = ".lock";

/// Prefix of the names of damaged files that were set aside.
pub(super) const ASIDE: &str = "damaged.";

/// An opened inverted index.
#[derive(Clone)]
pub(super) struct Store {
    /// The folder of the inverted index.
    pub(super) words: PathBuf,
    pub(super) index: Index,
    pub(super) fields: Fields,
}

impl Store {
    /// Opens the index of a folder; `None` if there is none.
    pub(super) fn open(folder: &Folder) -> Result<Option<Self>, NotesError> {
        let words = folder.join(WORDS);
        let (schema, fields) = schema();
        let mut index = match Index::open(PlainDirectory::new(folder.inside(WORDS))) {
            Err(TantivyError::OpenReadError(OpenReadError::FileDoesNotExist(_))) if is_empty(&words)? => {
                return Ok(None);
            }
            opened => opened.map_err(index_error(&words))?,
        };
        if index.schema() != schema {
            return Err(NotesError::damaged(&words, "the fields are those of another version"));
        }
        index.set_tokenizers(tokenizers());
        Ok(Some(Self { words, index, fields }))
    }

    /// Whether a folder has no inverted index, neither a whole nor a damaged one, and none that was set aside.
    pub(super) fn is_none(folder: &Path) -> Result<bool, NotesError> {
        let aside = folder.join(format!("{ASIDE}{WORDS}"));
        Ok(is_empty(&folder.join(WORDS))? && aside.symlink_metadata().is_err())
    }

    /// Creates an empty index.
    pub(super) fn create(folder: &Folder) -> Result<Self, NotesError> {
        let words = folder.join(WORDS);
        files::create_folder(&words)?;
        let (schema, fields) = schema();
        let mut index = Index::builder()
            .schema(schema)
            .tokenizers(tokenizers())
            .open_or_create(PlainDirectory::new(folder.inside(WORDS)))
            .map_err(index_error(&words))?;
        index.set_tokenizers(tokenizers());
        Ok(Self { words, index, fields })
    }

    /// The number of the catalogue that the last commit names; 0 before the first commit.
    pub(super) fn catalogue_number(&self) -> Result<u64, NotesError> {
        let metas = self.index.load_metas().map_err(index_error(&self.words))?;
        match metas.payload {
            None if metas.segments.is_empty() => Ok(0),
            payload => payload
                .and_then(|payload| Catalogue::parse(&payload))
                .ok_or_else(|| NotesError::damaged(&self.words, "the commit names no catalogue")),
        }
    }

    /// What every commit changes. `None` if it cannot be read.
    pub(super) fn commit_bytes(folder: &Path) -> Option<Vec<u8>> {
        std::fs::read(folder.join(WORDS).join(META)).ok()
    }

    pub(super) fn segments(&self) -> Result<Vec<SegmentMeta>, NotesError> {
        self.index.searchable_segment_metas().map_err(index_error(&self.words))
    }

    /// Compares the checksums of the files of all segments, except those in `known`, and notes them there. Reads about 1 GB
    /// per second from the system's cache.
    pub(super) fn verify(&self, known: &mut HashSet<PathBuf>) -> Result<(), NotesError> {
        let names = self.segment_files()?;
        for name in names.iter().filter(|name| !known.contains(*name)) {
            let path = self.words.join(name);
            // The list has optional files too. A missing one that is needed is noticed when its segment is opened.
            let metadata = if_there(std::fs::metadata(&path)).map_err(io_error("read", &path))?;
            let Some(metadata) = metadata else { continue };
            // tantivy takes for granted that a file has a length and a magic number at its end.
            if metadata.len() < 8 || !self.is_sound(name)? {
                return Err(NotesError::damaged(&path, "wrong checksum"));
            }
        }
        *known = names;
        Ok(())
    }

    /// A file that a writer has removed since the list was read is an error of the kind of damage, after which a reader
    /// reads the list again.
    fn is_sound(&self, name: &Path) -> Result<bool, NotesError> {
        let compared = self.index.directory().validate_checksum(name);
        compared.map_err(|error| index_error(&self.words)(TantivyError::OpenReadError(error)))
    }

    /// Names of the files that the segments of the last commit may have.
    fn segment_files(&self) -> Result<HashSet<PathBuf>, NotesError> {
        let metas = self.index.load_metas().map_err(index_error(&self.words))?;
        Ok(metas.list_segment_files())
    }

    /// Removes files of the inverted index that no commit names: leftovers of a crash, which may have text.
    pub(super) fn remove_leftovers(&self) -> Result<(), NotesError> {
        files::remove_unfinished(&self.words)?;
        let mut kept: HashSet<PathBuf> = [META, MANAGED].map(PathBuf::from).into();
        kept.extend(self.segment_files()?);
        for name in files::names(&self.words)? {
            if is_of_index(&name) && !kept.contains(Path::new(&name)) {
                files::remove(&self.words.join(&name))?;
            }
        }
        files::sync_folder(&self.words)
    }

    /// Renames the inverted index, in one step, so that nothing reads it, and removes every catalogue. Returns the new name
    /// if there was an index.
    pub(super) fn set_aside(folder: &Path) -> Result<Option<PathBuf>, NotesError> {
        let (words, aside) = (folder.join(WORDS), folder.join(format!("{ASIDE}{WORDS}")));
        Self::remove_aside(folder)?;
        let renamed = if_there(std::fs::rename(&words, &aside)).map_err(io_error("set aside", &words))?;
        remove_catalogues(folder, |_| true)?;
        Ok(renamed.map(|()| aside))
    }

    /// Removes an index that was set aside, with its text.
    pub(super) fn remove_aside(folder: &Path) -> Result<(), NotesError> {
        let aside = folder.join(format!("{ASIDE}{WORDS}"));
        if_there(std::fs::remove_dir_all(&aside)).map(drop).map_err(io_error("remove", &aside))
    }
}

/// Refuses a folder with files of somebody else: a wrong path must not cost the user a file. Hidden files are no reason.
///
/// # Errors
/// [`NotesError::Foreign`], [`NotesError::Io`].
pub(super) fn check_own(folder: &Path) -> Result<(), NotesError> {
    let words = folder.join(WORDS);
    for (path, is_own) in [(folder, &is_own as &dyn Fn(&str) -> bool), (&words, &is_of_index)] {
        let names = files::names(path)?;
        if let Some(name) = names.iter().find(|name| !name.starts_with('.') && !is_own(name)) {
            return Err(NotesError::Foreign { path: path.to_owned(), name: name.clone() });
        }
    }
    Ok(())
}

/// Whether an entry in the folder of an index has the name of one of its own, apart from hidden ones.
fn is_own(name: &str) -> bool {
    let name = name.strip_suffix(PARTIAL).unwrap_or(name);
    let name = name.strip_prefix(ASIDE).unwrap_or(name);
    name == WORDS || is_replaced(name)
}

/// Takes the permissions of others from the files of an index.
pub(super) fn tighten(folder: &Path) {
    replace::tighten(folder, |name| is_own(name) || [LOCK, KEY_FILE, inbox::NAME].contains(&name));
}

/// Whether a file in the folder of an index has the name of one that is replaced as a whole.
fn is_replaced(name: &str) -> bool {
    [sources::NAME, sources::COPY].contains(&name)
        || Catalogue::parse(name).is_some()
        || DerivedKind::parse(name).is_some()
}

/// Whether a file has a name that tantivy gives: lists, locks, and segments with a number of 32 hexadecimal digits.
fn is_of_index(name: &str) -> bool {
    let is_segment = |name: &str| {
        let number = name.split('.').next().unwrap_or_default();
        number.len() == 32 && number.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let name = name.strip_suffix(PARTIAL).unwrap_or(name);
    [META, MANAGED].contains(&name) || name.starts_with(".tantivy-") || is_segment(name)
}

/// Removes catalogues and unfinished files.
pub(super) fn remove_catalogues(folder: &Path, is_old: impl Fn(u64) -> bool) -> Result<(), NotesError> {
    files::remove_unfinished(folder)?;
    for name in files::names(folder)? {
        if Catalogue::parse(&name).is_some_and(&is_old) {
            files::remove(&folder.join(&name))?;
        }
    }
    Ok(())
}

/// Whether the folder has no file of an index.
fn is_empty(words: &Path) -> Result<bool, NotesError> {
    Ok(files::names(words)?.iter().all(|name| name.starts_with('.') || name.ends_with(".partial")))
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::notes::{NotesIndex, NotesOptions, NotesWriter, Notice, Search};
    use crate::seal::Seal;

    /// The words of a request are cut as those of this version: an index of other ones would not be found.
    #[test]
    fn an_index_of_other_words_is_built_again() {
        let place = tempfile::tempdir().unwrap();
        let (notes, folder) = (place.path().join("a.md"), place.path().join("index"));
        std::fs::write(&notes, "The tap drips.").unwrap();
        let update = |writer: &mut NotesWriter| writer.update(&mut |_, _| ControlFlow::Continue(())).unwrap();
        let mut writer = NotesWriter::open(&folder, NotesOptions::default()).unwrap();
        writer.add(&[notes]).unwrap();
        update(&mut writer);
        drop(writer);
        let meta = folder.join(WORDS).join(META);
        let text = String::from_utf8(files::read(&Seal::new(None, ""), &meta).unwrap()).unwrap();
        assert!(text.contains("words-2"));
        files::replace(&Seal::new(None, ""), &meta, text.replace("words-2", "words-1").as_bytes(), false)
            .unwrap();
        let error = NotesIndex::open(&folder).map(drop).unwrap_err();
        assert!(error.is_damage() && error.to_string().contains("another version"), "{error}");
        let mut writer = NotesWriter::open(&folder, NotesOptions::default()).unwrap();
        assert!(writer.notices().iter().any(|notice| matches!(notice, Notice::Rebuilt { .. })));
        update(&mut writer);
        assert_eq!(NotesIndex::open(&folder).unwrap().search(&Search::new("taps", 3)).unwrap().len(), 1);
    }
}
