//! The history, the prefixes, and search over notes.

mod history;
mod history_lossless;
mod keys;
mod notes;
mod notes_documents;
mod notes_embedder;
mod notes_encodings;
mod notes_formats;
mod notes_hostile;
#[cfg(unix)]
mod notes_links;
#[path = "../notes_support/mod.rs"]
mod notes_support;
mod notes_words;
mod prefixes;
mod prefixes_recurrent;
#[path = "../prefixes_support/mod.rs"]
mod prefixes_support;
mod questions;
mod sample_notes;
mod words;
