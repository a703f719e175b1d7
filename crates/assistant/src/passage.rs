//! Passages as tasks show them to the model, and what was left out of a prompt.

use std::ops::Range;
use std::path::{Path, PathBuf};

use refrain::PromptPassage;
use refrain_index::notes::{FileText, FileTexts, SkipReason, absolute, document_id, read_texts};
use refrain_index::{Locator, NoteHit, NotePassage, NotesError};
use thiserror::Error;

/// A piece of text that is shown to the model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Passage {
    /// A title; may be empty.
    pub title: String,
    /// The text.
    pub text: String,
    /// The note that it was read from, if it was read from a note.
    pub source: Option<Source>,
}

/// Where a passage is in the notes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Source {
    /// The note, as an absolute path; of a document without a file, the path that stands for its id
    /// ([`document_path`](refrain_index::notes::document_path)).
    pub path: PathBuf,
    /// The bytes of the note from which the text was read.
    pub place: Range<u64>,
    /// Whether these bytes are the text itself.
    pub is_verbatim: bool,
    /// The line or page on which it begins, for citations.
    pub locator: Option<Locator>,
    /// The score of the search that found it.
    pub score: Option<f32>,
}

impl Source {
    /// The id of its document, if it is of a document without a file.
    pub fn document_id(&self) -> Option<Vec<u8>> {
        document_id(&self.path)
    }

    /// A place in a note that is unknown.
    pub(crate) fn of_note(path: PathBuf) -> Self {
        Self { path, place: 0..0, is_verbatim: false, locator: None, score: None }
    }

    /// Moves the beginning behind a text that stands there.
    fn skip(&mut self, text: &str) {
        if self.is_verbatim {
            self.place.start += text.len() as u64;
            if let Some(Locator::Line(line)) = &mut self.locator {
                *line += text.matches('\n').count() as u64;
            }
        }
    }
}

/// The texts of a file cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// The path is empty, or there is no current folder.
    #[error(transparent)]
    Path(#[from] NotesError),
    /// The ending is that of no source, or the file is broken or too long.
    #[error("cannot read `{}`: {reason}", path.display())]
    Unread {
        /// The file.
        path: PathBuf,
        /// The reason, with the limit.
        reason: SkipReason,
    },
}

impl Passage {
    /// A passage of the app's own text.
    pub fn new(title: impl Into<String>, text: impl Into<String>) -> Self {
        Self { title: title.into(), text: text.into(), source: None }
    }

    /// Names the note of the text, so that [`Forget::Note`](crate::Forget::Note) finds answers made from the text. The
    /// place in the note stays unknown: it is empty.
    ///
    /// # Errors
    /// [`NotesError::Path`]: the path is empty, or there is no current folder.
    pub fn of_note(mut self, path: impl AsRef<Path>) -> Result<Self, NotesError> {
        self.source = Some(Source::of_note(absolute(path.as_ref())?));
        Ok(self)
    }

    /// The texts of a file as the index reads them, by its ending: messages without their encoding, pages, chapters; of a plain text one.
    /// A mailbox has a passage for each message. Each has its title, its note, its place and its line or page. `bytes` are those of the
    /// file; the second value says why a part of them was left out.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn read(path: impl AsRef<Path>, bytes: &[u8]) -> Result<(Vec<Self>, Option<SkipReason>), FileError> {
        let note = absolute(path.as_ref())?;
        let FileTexts { texts, lost, .. } =
            read_texts(&note, bytes).map_err(|reason| FileError::Unread { path: note.clone(), reason })?;
        let passage = |FileText { title, text, place, is_verbatim, locator, .. }| {
            let source = Source { path: note.clone(), place, is_verbatim, locator, score: None };
            Self { title, text, source: Some(source) }
        };
        Ok((texts.into_iter().map(passage).collect(), lost))
    }

    pub(crate) fn for_prompt(&self) -> PromptPassage<'_> {
        PromptPassage::new(&self.title, &self.text)
    }

    /// The passage as left-out text.
    pub(crate) fn as_left_out(&self, n_tokens: usize, reason: LeftOutReason) -> LeftOut {
        LeftOut { title: self.title.clone(), source: self.source.clone(), n_tokens, reason }
    }

    /// The rest of the text.
    pub(crate) fn after(&self, len: usize) -> Self {
        let mut rest = self.clone();
        rest.source.iter_mut().for_each(|source| source.skip(&self.text[..len]));
        rest.text.drain(..len);
        rest
    }

    /// The start of the text. (The bytes of a text that is not verbatim stay those of the whole.)
    pub(crate) fn cut(&self, len: usize) -> Self {
        let mut start = self.clone();
        start.text.truncate(len);
        if let Some(source) = start.source.as_mut().filter(|source| source.is_verbatim) {
            source.place.end = source.place.start + len as u64;
        }
        start
    }
}

impl From<NotePassage> for Passage {
    fn from(passage: NotePassage) -> Self {
        let NotePassage { path, title, text, place, is_verbatim, locator, .. } = passage;
        Self { title, text, source: Some(Source { path, place, is_verbatim, locator, score: None }) }
    }
}

impl From<NoteHit> for Passage {
    fn from(hit: NoteHit) -> Self {
        let mut passage = Self::from(hit.passage);
        if let Some(source) = &mut passage.source {
            source.score = Some(hit.score);
        }
        passage
    }
}

/// Text that the model was not shown.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LeftOut {
    /// The title of its passage.
    pub title: String,
    /// The note, and the bytes of it that were left out (of the whole passage, if the text is not verbatim).
    pub source: Option<Source>,
    /// Its tokens; estimated for long texts.
    pub n_tokens: usize,
    /// Why.
    pub reason: LeftOutReason,
}

/// Why text was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeftOutReason {
    /// The passage does not fit the context.
    Context,
    /// The start of the passage is shown, and the rest does not fit the context.
    Rest,
    /// The text has more parts than are summarised ([`AssistantOptions::n_parts_max`](crate::AssistantOptions::n_parts_max)).
    Parts,
}

/// The whole text of passages in the order of their notes: passages of one section are joined, and words that a passage repeats
/// from the one before it are shown once.
pub(crate) fn joined(passages: Vec<NotePassage>) -> Vec<Passage> {
    let mut joined: Vec<Passage> = Vec::new();
    for passage in passages {
        let mut passage = Passage::from(passage);
        let last = joined.last_mut();
        let (Some(Passage { text, source: Some(before), title }), Some(source)) = (last, &mut passage.source)
        else {
            joined.push(passage);
            continue;
        };
        if before.path == source.path && before.is_verbatim && source.is_verbatim {
            let n_repeated = before.place.end.saturating_sub(source.place.start) as usize;
            if n_repeated > 0 && passage.text.is_char_boundary(n_repeated) {
                // (A passage that lies inside the one before it vanishes.)
                source.skip(&passage.text[..n_repeated]);
                passage.text.drain(..n_repeated);
            }
        }
        if before.path == source.path && *title == passage.title {
            if !passage.text.trim().is_empty() {
                let is_adjacent = before.place.end == source.place.start;
                text.push_str(if is_adjacent { "" } else { "\n\n" });
                text.push_str(&passage.text);
                // Between the parts of a verbatim text is white space or a heading, which the joined text lacks.
                before.is_verbatim &= is_adjacent && source.is_verbatim;
                before.place.end = before.place.end.max(source.place.end);
            }
        } else if !passage.text.trim().is_empty() {
            joined.push(passage);
        }
    }
    joined
}
