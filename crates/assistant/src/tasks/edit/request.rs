//! What is edited, and what comes of it.

use std::ops::Range;
use std::path::{Path, PathBuf};

use refrain_index::NotesError;
use refrain_index::notes::absolute;

use crate::edit::part::EditPart;
use crate::edit::{DiffEvent, EditDoubt};
use crate::step::Report;

/// A text to be edited.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EditRequest {
    /// The text.
    pub text: String,
    /// What is to be changed.
    pub instruction: String,
    /// The part that may be changed. The model sees no other part.
    pub part: EditPart,
    /// The note that the text is of, as an absolute path.
    pub note: Option<PathBuf>,
}

impl EditRequest {
    /// Maximum length of the part that is edited, in bytes: that of a note.
    pub const BYTES_MAX: usize = 4 << 20;

    /// A text and what is to be changed in it.
    pub fn new(text: impl Into<String>, instruction: impl Into<String>) -> Self {
        Self { text: text.into(), instruction: instruction.into(), part: EditPart::Whole, note: None }
    }

    /// Names the note of the text, so that [`Forget::Note`](crate::Forget::Note) finds answers made from the text.
    ///
    /// # Errors
    /// [`NotesError::Path`]: the path is empty, or there is no current folder.
    pub fn of_note(mut self, path: impl AsRef<Path>) -> Result<Self, NotesError> {
        self.note = Some(absolute(path.as_ref())?);
        Ok(self)
    }
}

/// An edited text.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Edit {
    /// The new text, with what was not to be changed. White space at the ends of the old part is kept.
    pub text: String,
    /// The reasoning before it; empty for most models.
    pub reasoning: String,
    /// The changes from the old text to the new one: the events of the job, in order.
    pub changes: Vec<DiffEvent>,
    /// The part of the old text that was edited, in bytes.
    pub old_part: Range<usize>,
    /// What became of it: its place in the new text.
    pub new_part: Range<usize>,
    /// What the model wrote around the text and does not belong to it: announcements ("Here is …"), and fences around all. One for each
    /// window that has some.
    pub around: Vec<String>,
    /// Why the new text should not replace the old one without asking; empty for most edits.
    pub doubts: Vec<EditDoubt>,
    /// How it came about.
    pub report: Report,
}
