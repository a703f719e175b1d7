//! What the tests of stored notes share: folders of notes, updates, and a search through every byte of an index.

#![allow(dead_code, reason = "every test file uses some of it")]

pub(crate) mod made;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::prefixes_support::files;
use refrain_index::notes::{NoteHit, NotesIndex, NotesOptions, NotesWriter, Search, UpdateReport};

/// A folder with notes beside a folder for the index.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("notes")).expect("a folder");
        Self { folder }
    }

    pub(crate) fn index(&self) -> PathBuf {
        self.folder.path().join("index")
    }

    pub(crate) fn notes(&self) -> PathBuf {
        self.folder.path().join("notes")
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.notes().join(name);
        fs::create_dir_all(path.parent().expect("in a folder")).expect("a folder");
        fs::write(&path, text).expect("written");
        path
    }

    /// A writer that reads the notes of this place.
    pub(crate) fn writer(&self) -> NotesWriter {
        let mut writer = NotesWriter::open(&self.index(), options()).expect("opens");
        writer.add(&[self.notes()]).expect("exists");
        writer
    }

    pub(crate) fn reader(&self) -> NotesIndex {
        NotesIndex::open(&self.index()).expect("opens")
    }

    /// An index of the notes written so far.
    pub(crate) fn indexed(&self) -> NotesIndex {
        update(&mut self.writer());
        self.reader()
    }

    /// The files in the index whose bytes contain `text`.
    pub(crate) fn files_with(&self, text: &str) -> Vec<PathBuf> {
        files_with(&self.index(), text.as_bytes())
    }
}

/// Two writers in one process must not wait long for each other.
pub(crate) fn options() -> NotesOptions {
    NotesOptions { lock_wait: Duration::ZERO, ..NotesOptions::default() }
}

pub(crate) fn update(writer: &mut NotesWriter) -> UpdateReport {
    writer.update(&mut |_, _| ControlFlow::Continue(())).expect("updates")
}

pub(crate) fn search(index: &NotesIndex, text: &str) -> Vec<NoteHit> {
    index.search(&Search::new(text, 10)).expect("searches")
}

/// The names of the files that a search finds, best first.
pub(crate) fn found(index: &NotesIndex, text: &str) -> Vec<String> {
    names(&search(index, text))
}

pub(crate) fn names(hits: &[NoteHit]) -> Vec<String> {
    let name = |hit: &NoteHit| hit.passage.path.file_name().expect("a name").to_string_lossy().into_owned();
    hits.iter().map(name).collect()
}

/// The files in a folder that contain bytes. A file that a writer deletes meanwhile contains nothing.
pub(crate) fn files_with(folder: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    assert!(folder.is_dir(), "{}", folder.display());
    let mut found = files(folder);
    found.retain(|_, content| content.windows(bytes.len()).any(|window| window == bytes));
    found.into_keys().collect()
}
