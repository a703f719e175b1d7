//! On-device retrieval: passages of the user's notes for a request, drafts from the responses of earlier runs
//! ([`history`]), and computed prefixes of prompts ([`prefixes`]).
//!
//! ```
//! use refrain_index::{Document, PassageIndex, split};
//!
//! let note = Document::new("kitchen.md", "# Kitchen\n\nThe tap drips. Ada Voss repairs it on 3 May.");
//! let index = PassageIndex::build(split(&note))?;
//! let hits = index.search("Who is repairing the tap?", 3)?;
//! assert_eq!(hits[0].passage.title, "Kitchen");
//! # Ok::<(), refrain_index::IndexError>(())
//! ```
//!
//! In reading order: [`read_documents`] collects the text of files and folders, [`split`] divides a document into
//! [`Passage`]s of bounded length, [`PassageIndex`] ranks them for a request.
//!
//! [`notes`] keeps such an index on disk, for more notes than fit a request, more formats, and several processes.
//!
//! The search uses text and positions in files; the history uses token ids and bytes. Neither uses a model, except that an
//! app may give one for vectors ([`notes::ModelEmbedder`]). The library `refrain` does not depend on this crate, so an app
//! with its own search compiles none of it. Without the feature `notes`, which is on by default, this crate is the history
//! and the prefixes alone.

#[cfg(feature = "notes")]
mod bounds;
#[cfg(feature = "internals")]
mod check;
mod disk_file;
#[cfg(feature = "notes")]
mod document;
mod facts;
#[cfg(feature = "notes")]
mod front_matter;
pub mod history;
#[cfg(feature = "notes")]
mod markdown;
#[cfg(feature = "notes")]
pub mod notes;
#[cfg(feature = "notes")]
mod passage;
pub mod prefixes;
#[cfg(feature = "notes")]
mod read;
mod seal;
#[cfg(feature = "notes")]
mod search;
#[cfg(feature = "notes")]
mod stop_words;

#[cfg(feature = "notes")]
pub use document::{Document, Outline, OutlineHeading};
pub use history::{
    HistoryError, HistoryKey, HistoryLog, HistoryLogSource, HistoryOptions, RecordId, SyncPolicy,
};
#[cfg(feature = "notes")]
pub use notes::{
    Locator, NoteFilter, NoteHit, NotePassage, NotesError, NotesIndex, NotesOptions, NotesWriter, Search,
    SearchedWord, SourceKind,
};
#[cfg(feature = "notes")]
pub use passage::{PASSAGE_WORDS_MAX, Passage, split, split_sections};
pub use prefixes::{Label, PrefixError, PrefixOptions, PrefixStore};
#[cfg(feature = "notes")]
pub use read::{Documents, ReadError, ReadLimits, SkipReason, Skipped, read_documents};
pub use seal::KeyProblem;
#[cfg(feature = "notes")]
pub use search::{Hit, IndexError, PassageIndex};

/// Encryption of files, and private folders, for this project's own crates. Anything here may change in any release.
#[doc(hidden)]
pub mod internals {
    pub use refrain_files::replace::create_private_folder;

    #[cfg(feature = "internals")]
    pub use crate::check::check_note;
    pub use crate::seal::{PART_BYTES, Seal, place};
}
