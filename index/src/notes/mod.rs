//! Notes on disk: an index of the text in folders, kept in agreement with the files, and searched by words and by
//! meaning.
//!
//! ```
//! use std::ops::ControlFlow;
//! use refrain_index::notes::{NotesIndex, NotesOptions, NotesWriter, Search};
//!
//! # let folder = tempfile::tempdir()?;
//! # let (index, notes) = (folder.path().join("index"), folder.path().join("notes"));
//! # std::fs::create_dir(&notes)?;
//! std::fs::write(notes.join("kitchen.md"), "# Kitchen\n\nThe tap drips. Ada Voss repairs it on 3 May.")?;
//!
//! let mut writer = NotesWriter::open(&index, NotesOptions::default())?;
//! writer.add(&[&notes])?;
//! let report = writer.update(&mut |_done, _total| ControlFlow::Continue(()))?;
//! assert_eq!(report.n_added, 1);
//!
//! let hits = NotesIndex::open(&index)?.search(&Search::new("Who is repairing the tap?", 3))?;
//! assert_eq!(hits[0].passage.title, "Kitchen");
//! assert_eq!(hits[0].passage.place, 11..55);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Sources
//!
//! [`SourceKind`] lists the formats, by the extensions of files. A file becomes passages of at most
//! [`PASSAGE_WORDS_MAX`](crate::PASSAGE_WORDS_MAX) words: text under a heading, paragraphs and list items, messages,
//! events, elements of a screen. A passage repeats some words of the one before it
//! ([`NotesOptions::n_overlap_words`]), and has its bytes in the file ([`NotePassage::place`]).
//!
//! Texts without files, such as the rows of a database, are put under ids in [`Transaction`]s. They are searched, cited and
//! forgotten by paths that stand for the ids ([`document_path`]).
//!
//! # In the folder
//!
//! ```text
//! FOLDER/
//!   .lock                 locked by the process that writes
//!   .key                  of an encrypted index: tells a wrong key
//!   .inbox/               requests of other processes, a file each
//!   sources, sources-copy the folders to be read, hashes of forgotten paths, settings
//!   catalogue-N           files with lengths, times and hashes, documents without files; the last commit names N
//!   words/                the inverted index with the texts (tantivy)
//!   tokens-TOKENIZER      token ids of texts
//!   vectors-EMBEDDER      vectors of texts
//! ```
//!
//! Only `sources` cannot be built again from the notes, so it is there twice. Every file has checksums. A damaged index is
//! set aside ([`Notice::Rebuilt`]), and the next [`NotesWriter::update`] reads the notes again. Documents without files are gone then: their
//! app finds no [`NotesWriter::cursor`], and puts them again.
//!
//! # Processes
//!
//! Any number of [`NotesIndex`] read, each the state of a commit. One [`NotesWriter`] changes the folder; the system
//! releases its lock when its process ends for any reason. Another process waits for it briefly
//! ([`NotesOptions::lock_wait`]) or leaves a [`Request`] ([`NotesWriter::open_or_hand_in`]). A writer that ends with
//! [`NotesWriter::close`] leaves no request behind; where a time or a person ends it, [`NotesWriter::leave`] leaves updates only.
//!
//! # Deletion
//!
//! When [`NotesWriter::forget`], [`NotesWriter::update`] or [`NotesWriter::purge`] has returned, no file of the folder has
//! a byte of text that is in no passage any more: segments of the inverted index with removed passages are written again
//! without them, and so are stored token ids and vectors. A crash in between is finished by the next writer when it
//! opens the folder. [`NotesWriter::update_paths`] and [`Transaction::commit`] alone leave replaced text on the disk until one of these calls.

mod catalogue;
mod codec;
mod derive;
mod derived;
mod directory;
mod documents;
mod embedder;
mod error;
mod files;
mod formats;
mod functional;
mod inbox;
mod index;
mod ingest;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals;
mod kind;
mod language;
mod merge;
mod model_embedder;
mod names;
mod options;
mod passage;
mod paths;
mod report;
mod request;
mod schema;
mod search;
mod snapshot;
mod snippet;
mod sources;
mod stamp;
mod store;
mod threads;
mod transaction;
mod update;
mod vectors;
mod walk;
mod watch;
pub(crate) mod words;
mod writer;

pub use documents::{DocumentChanges, Metadata, NoteDocument};
pub use embedder::{DIMENSIONS_MAX, Embedder};
pub use error::NotesError;
pub(crate) use formats::Decoded;
pub use formats::{ScreenElement, ScreenXml, parse_date, read_screen_xml};
pub(crate) use functional::Functional;
pub use index::NotesIndex;
pub use ingest::{FileText, FileTexts, read_texts};
pub use kind::{SourceKind, UnknownKind};
pub use language::Language;
pub use model_embedder::{ModelEmbedder, ModelEmbedderError};
pub use options::NotesOptions;
pub use passage::{Locator, NotePassage};
pub use paths::{DOCUMENTS, ID_BYTES_MAX, absolute, document_id, document_path, is_document, without_links};
pub use report::{NoteFile, NotesStatus, Notice, SkipReason, SkippedSource, UpdateReport};
pub use request::{FailedRequest, Request};
pub use search::{NoteFilter, NoteHit, Search, SearchedWord};
pub(crate) use search::{Wanted, coverage_of};
pub use snippet::{SNIPPET_BYTES_MAX, Snippet};
pub use transaction::{CURSOR_BYTES_MAX, TRANSACTION_BYTES_MAX, Transaction};
pub use writer::{LABEL_BYTES_MAX, NotesWriter, OnProgress, hand_in};
