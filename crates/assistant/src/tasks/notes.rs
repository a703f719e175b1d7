//! The notes themselves: searches, the list of files, the text of a note. Notes that wait to be deleted are in none of them.

use std::path::{Path, PathBuf};

use refrain_index::notes::NoteFile;
use refrain_index::{NoteHit, Search};

use super::summarize::SummarizeRequest;
use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::passage::Passage;

impl Assistant {
    /// The passages of the notes that match a search best, best first: by words, and also by meaning if the assistant has an embedder
    /// ([`Builder::embedder`](crate::Builder::embedder)), which replaces that of the search. Notes that wait to be deleted are left out.
    ///
    /// # Errors
    /// [`TaskError::NoNotes`]; the notes cannot be read.
    pub fn search_notes<'a>(&'a self, mut search: Search<'a>) -> Result<Vec<NoteHit>, TaskError> {
        let index = self.notes().ok_or(TaskError::NoNotes)?;
        let hidden = self.hidden()?;
        let wanted = search.limit;
        search.embedder = self.embedder();
        let mut hits = loop {
            let mut hits = index.search(&search)?;
            let is_all = hits.len() < search.limit;
            hits.retain(|hit| !hidden.iter().any(|hidden| hidden.hides(&hit.passage.path)));
            if hits.len() >= wanted || is_all {
                break hits;
            }
            // Hidden notes have taken places.
            search.limit = search.limit.saturating_mul(4);
        };
        hits.truncate(wanted);
        Ok(hits)
    }

    /// The files of the index and its documents without files, by path, without those that wait to be deleted.
    ///
    /// # Errors
    /// [`TaskError::NoNotes`]; the index cannot be read.
    pub fn note_files(&self) -> Result<Vec<NoteFile>, TaskError> {
        let index = self.notes().ok_or(TaskError::NoNotes)?;
        let hidden = self.hidden()?;
        let mut files = index.files()?;
        files.retain(|file| !hidden.iter().any(|hidden| hidden.hides(&file.path)));
        Ok(files)
    }

    /// The text of a note as the index has it, in sections: passages under one heading are joined, and words that passages share are
    /// there once. Nothing is read from the note's file. Of a folder, the text of all notes below it.
    ///
    /// # Errors
    /// [`TaskError::NoNotes`]; [`TaskError::NoSuchNote`]: the index has no such note, or it waits to be deleted; the index cannot be read.
    pub fn note(&self, path: &Path) -> Result<Vec<Passage>, TaskError> {
        self.passages_of(&SummarizeRequest::notes([PathBuf::from(path)]))
    }
}
