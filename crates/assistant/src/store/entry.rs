//! What the ledger notes: what something was made from, summaries, and deletions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::names::note_hash;

/// Maximum number of notes in an entry. One made from more goes with any note.
pub(super) const NOTES_MAX: usize = 1024;

/// A line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Entry {
    /// An answer in the history of a model.
    Answer { model: String, record: u64, made: Made },
    /// A summary of a subject.
    Summary(StoredSummary),
    /// The summary of a part of a text.
    Part(StoredPart),
    /// A note by its hash, and what else finds it.
    Note { note: u64, places: Vec<u64> },
    /// A namespace that has prefixes.
    Namespace { name: String },
    /// A deletion that has begun.
    Forget { what: Forgetting },
}

/// What something was made from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Made {
    /// Hashes of notes.
    pub(super) notes: Vec<u64>,
    /// Made from more notes than an entry names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) of_many: bool,
    pub(super) conversation: Option<u64>,
}

impl Made {
    pub(crate) fn from<'a>(notes: impl IntoIterator<Item = &'a PathBuf>, conversation: Option<u64>) -> Self {
        let notes: BTreeSet<u64> = notes.into_iter().map(|path| note_hash(path)).collect();
        let of_many = notes.len() > NOTES_MAX;
        let notes = if of_many { Vec::new() } else { notes.into_iter().collect() };
        Self { notes, of_many, conversation }
    }
}

/// The newest summary of a subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredSummary {
    pub(crate) namespace: String,
    /// The hash of the subject: the notes and the request.
    pub(crate) subject: u64,
    /// When it was made, in µs since 1970.
    pub(crate) at: u64,
    pub(crate) made: Made,
    /// The hash of the texts that it summarises.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<u64>,
    pub(crate) text: String,
}

/// The summary of a part of a text: the output of one prompt, for a summary that goes on after a stop. Its subject is a hash of the prompt,
/// the model and the options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredPart {
    /// The other half of the hash: a part of another prompt would be a wrong text.
    pub(crate) check: u64,
    /// Whether it ended at the limit of tokens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_cut: bool,
    pub(crate) summary: StoredSummary,
}

/// What a deletion deletes, as it is noted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Forgetting {
    /// The notes at and below paths, for the index of notes in this folder, and all [names](super::names::names_of) that find
    /// them.
    Notes {
        #[serde(with = "super::stored_path::many")]
        paths: Vec<PathBuf>,
        names: Vec<u64>,
        #[serde(with = "super::stored_path::option")]
        index: Option<PathBuf>,
    },
    Conversation(u64),
    /// Everything that was made before a time, and everything whose time is after `now`: the clock was wrong, so its age is
    /// unknown. In µs since 1970.
    Before {
        time: u64,
        now: u64,
    },
    /// Everything, with these files and folders of the index of notes in this folder.
    Everything {
        #[serde(with = "super::stored_path::option")]
        index: Option<PathBuf>,
        #[serde(with = "super::stored_path::many")]
        roots: Vec<PathBuf>,
    },
    /// What is left of one of the others if the index could not be changed: these files and folders of it, or all.
    Index {
        #[serde(with = "super::stored_path::one")]
        index: PathBuf,
        #[serde(with = "super::stored_path::many")]
        paths: Vec<PathBuf>,
        is_all: bool,
    },
}

/// Places of notes, by their hashes.
pub(super) type Notes = BTreeMap<u64, Vec<u64>>;

impl Forgetting {
    /// Whether it takes what was made at this time, in µs since 1970, from this.
    pub(super) fn takes(&self, at: u64, made: &Made, notes: &Notes) -> bool {
        match self {
            Self::Notes { names, .. } => {
                made.of_many || made.notes.iter().any(|&note| is_named(note, notes.get(&note), names))
            }
            Self::Conversation(id) => made.conversation == Some(*id),
            Self::Before { .. } | Self::Everything { .. } | Self::Index { .. } => self.takes_unknown(at),
        }
    }

    /// Whether it takes an answer that the ledger does not have.
    pub(crate) fn takes_unknown(&self, at: u64) -> bool {
        match self {
            Self::Before { time, now } => at < *time || at > *now,
            Self::Notes { .. } | Self::Conversation(_) | Self::Everything { .. } => true,
            Self::Index { .. } => false,
        }
    }
}

/// Whether one of the names, which ascend, finds a note. A note without places lost them to damage.
pub(super) fn is_named(note: u64, places: Option<&Vec<u64>>, names: &[u64]) -> bool {
    let is_name = |hash: &u64| names.binary_search(hash).is_ok();
    is_name(&note) || places.is_none_or(|places| places.iter().any(is_name))
}

/// A time, in µs since 1970.
pub(crate) fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
