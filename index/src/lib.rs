//! Passages of the user's notes: read from files, split, and found again by what a request asks.
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
//! In reading order: [`read_documents`] collects the text of files and folders, [`split`] cuts a document into
//! [`Passage`]s of bounded length, [`PassageIndex`] ranks them for a request.
//!
//! This crate knows text and positions in files; it knows no model and no tokenizer, and the library `refrain` does not
//! depend on it, so that an app with its own search compiles none of it.

mod document;
mod passage;
mod read;
mod search;
mod stop_words;

pub use document::Document;
pub use passage::{PASSAGE_WORDS_MAX, Passage, split};
pub use read::{Documents, ReadError, ReadLimits, SkipReason, Skipped, read_documents};
pub use search::{Hit, IndexError, PassageIndex};
