//! The options of stored notes.

use std::time::Duration;

use super::error::NotesError;
use super::language::Language;
use crate::seal::debug_options;

/// Options of a [`NotesWriter`](super::NotesWriter).
#[derive(Clone, PartialEq, Eq)]
pub struct NotesOptions {
    /// Maximum length of a file, in bytes, 1..=2³⁰. Longer files are skipped. The value is stored with the index; `None` (the
    /// default) takes the stored one, at first 8 MiB: a file needs about four times its length of memory while it is read.
    pub file_bytes_max: Option<u64>,
    /// Maximum number of visited files and folders. Default 100,000. Files behind it are not read; those in the index stay
    /// until they are gone.
    pub n_entries_max: usize,
    /// Words that a passage repeats from the passage before it, 0..=60. Default 24: about two sentences, a fifth of a
    /// passage.
    pub n_overlap_words: usize,
    /// The languages of the notes. Empty: all, detected for each note. One: no detection. A short text whose language is
    /// unclear counts as the first one, or as English. The list is stored with the index, and the next update after a change
    /// reads all notes again; `None` (the default) takes the stored one, at first the empty one.
    pub languages: Option<Vec<Language>>,
    /// Whether links are followed that lead out of the files and folders that updates read. Without it, such a link is skipped
    /// ([`SkipReason::OutsideLink`](super::SkipReason::OutsideLink)): in a shared folder, anybody may have placed it. The value
    /// is stored with the index; `None` (the default) takes the stored one, at first `false`.
    pub follows_links: Option<bool>,
    /// Reads every file at every update, even if its size and times are the same. Default `false`.
    pub reads_all: bool,
    /// Time to wait for another process that writes. Default 2 s.
    pub lock_wait: Duration,
    /// Encrypts and authenticates all files of the index. The app stores the key. An index is encrypted from its beginning, or
    /// not at all. What stays visible: the number, sizes, times and names of its files, which tell nothing of the notes' names.
    pub key: Option<[u8; 32]>,
}

debug_options!(NotesOptions: file_bytes_max, n_entries_max, n_overlap_words, languages, follows_links, reads_all, lock_wait);

impl Default for NotesOptions {
    fn default() -> Self {
        Self {
            file_bytes_max: None,
            n_entries_max: 100_000,
            n_overlap_words: 24,
            languages: None,
            follows_links: None,
            reads_all: false,
            lock_wait: Duration::from_secs(2),
            key: None,
        }
    }
}

impl NotesOptions {
    pub(super) fn check(&self) -> Result<(), NotesError> {
        let check = |option, given: u64, min: u64, max: u64| match (min..=max).contains(&given) {
            true => Ok(()),
            false => Err(NotesError::OutOfRange { option, given, min, max }),
        };
        check("file_bytes_max", self.file_bytes_max.unwrap_or(1), 1, 1 << 30)?;
        check("n_entries_max", self.n_entries_max as u64, 1, 1 << 30)?;
        check("n_overlap_words", self.n_overlap_words as u64, 0, 60)
    }
}
