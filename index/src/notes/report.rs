//! Reports of the stored notes: what an update did, what was skipped, what the index contains.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use super::kind::SourceKind;
use super::request::FailedRequest;

/// A file or folder that an update skipped, as a whole or in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedSource {
    /// The file or folder.
    pub path: PathBuf,
    /// The reason.
    pub reason: SkipReason,
}

/// The reason why a file or folder was skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SkipReason {
    /// Its name starts with a dot.
    #[error("hidden")]
    Hidden,
    /// Its extension is not one of a source, or it is no file.
    #[error("not a source")]
    NotASource,
    /// A link leads outside of the files and folders that the user named, and
    /// [`NotesOptions::follows_links`](super::NotesOptions::follows_links) is not set.
    #[error("a link out of the folders of the index (`index update --follow-links` follows it)")]
    OutsideLink,
    /// It is neither UTF-8 text nor UTF-16 with a byte order mark.
    #[error("neither UTF-8 text nor UTF-16 with a byte order mark at byte {offset}")]
    NotText {
        /// The first offset that is not text.
        offset: u64,
    },
    /// It is encrypted.
    #[error("encrypted")]
    Encrypted,
    /// It has no text, for example only images of text.
    #[error("it has no text; images of text are not read")]
    NoText,
    /// It exceeds the maximum length of a file.
    #[error("{bytes} bytes exceed the limit of {limit}")]
    TooLong {
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The number of files has reached its limit.
    #[error("behind the limit of {limit} files")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// It was already read under another name.
    #[error("already read under another name")]
    AlreadyRead,
    /// The file does not follow its format.
    #[error("{what} at byte {offset}")]
    Broken {
        /// The kind of fault.
        what: &'static str,
        /// The offset.
        offset: u64,
    },
    /// It has more of something than is read.
    #[error("more than {limit} {what} at byte {offset}")]
    Limit {
        /// What is counted.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// The offset of the first item that is not read, or of the part that contains it.
        offset: u64,
    },
    /// The file is in the index without some damaged parts. An update that does not read the file does not repeat it.
    #[error("read without {n} damaged or excessive parts; the first: {first}")]
    Partly {
        /// Number of parts.
        n: usize,
        /// The reason of the first one.
        first: Box<Self>,
    },
    /// It was removed or renamed during the update.
    #[error("it disappeared during the update")]
    Vanished,
    /// Its name cannot be stored on this system.
    #[error("its name is not Unicode")]
    Name,
    /// It is a broken link, or permission to read it is missing.
    #[error("cannot be read: {0}")]
    Unreadable(io::ErrorKind),
}

impl SkipReason {
    /// The reason for an error of opening or reading.
    pub(super) fn of_io(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Vanished,
            kind => Self::Unreadable(kind),
        }
    }

    /// Whether the reason is worth a notice: other files among notes are expected.
    pub fn is_notable(&self) -> bool {
        !matches!(self, Self::Hidden | Self::NotASource | Self::AlreadyRead)
    }
}

/// The result of an update or of forgetting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpdateReport {
    /// Number of files that are new in the index.
    pub n_added: usize,
    /// Number of files whose contents had changed.
    pub n_changed: usize,
    /// Number of files that were the same.
    pub n_unchanged: usize,
    /// Number of files that were read to compare their contents.
    pub n_read: usize,
    /// Number of files whose passages were removed.
    pub n_removed: usize,
    /// Number of passages written.
    pub n_passages: usize,
    /// Skipped files and folders, and partly skipped files ([`SkipReason::Partly`]).
    pub skipped: Vec<SkippedSource>,
    /// Forgotten paths without text in the index. Later updates do not read them either.
    pub unknown: Vec<PathBuf>,
    /// Requests of other processes that could not be carried out.
    pub failed: Vec<FailedRequest>,
    /// Whether the caller ended the update before all files were read.
    pub is_incomplete: bool,
}

impl UpdateReport {
    /// Whether the index has changed.
    pub fn is_change(&self) -> bool {
        self.n_added + self.n_changed + self.n_removed > 0
    }

    /// The number of skipped files that are no source, by the ending of their names in lower case (empty without one), the most frequent
    /// first.
    pub fn skipped_by_ending(&self) -> Vec<(String, usize)> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for skipped in self.skipped.iter().filter(|skipped| skipped.reason == SkipReason::NotASource) {
            let ending = skipped.path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
            *counts.entry(ending).or_default() += 1;
        }
        let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
        counts.sort_by_key(|&(_, n)| Reverse(n));
        counts
    }

    /// Whether the index has changed, or something is worth a notice.
    pub fn is_notable(&self) -> bool {
        let is_skipped = self.skipped.iter().any(|skipped| skipped.reason.is_notable());
        self.is_change() || is_skipped || !self.unknown.is_empty() || !self.failed.is_empty()
    }

    /// Adds what requests of other processes did.
    pub(super) fn add_requests(&mut self, mut carried_out: Self) {
        self.n_removed += carried_out.n_removed;
        self.unknown.append(&mut carried_out.unknown);
        self.failed.append(&mut carried_out.failed);
    }
}

/// A repair that a writer made when it opened the index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Notice {
    /// The index was damaged or of another version. It is empty until the next update reads all notes again.
    #[error("the index is built again from the notes: {reason}")]
    Rebuilt {
        /// The damage.
        reason: String,
        /// The damaged inverted index under its new name; `None` if there was none. It has text of the notes, so the next
        /// complete update, [`forget`](super::NotesWriter::forget) or [`purge`](super::NotesWriter::purge) removes it.
        aside: Option<PathBuf>,
    },
    /// The list of folders or its copy was damaged. The other one was taken, if it was whole.
    #[error("the list of folders was damaged and is kept as `{}`: {n_roots} folders are left", aside.display())]
    Roots {
        /// The damaged file under its new name.
        aside: PathBuf,
        /// Number of folders known.
        n_roots: usize,
    },
    /// A deletion that a crash had interrupted was finished.
    #[error("an interrupted deletion was finished")]
    FinishedDeletion,
    /// Stored token ids or vectors were damaged and are made again.
    #[error("`{}` was damaged and is made again", path.display())]
    Derived {
        /// The file.
        path: PathBuf,
    },
}

/// A file of the index, or a document without a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoteFile {
    /// The file, as an absolute path; of a document without a file, the path that stands for its id
    /// ([`document_path`](super::document_path)).
    pub path: PathBuf,
    /// Its length when it was read, in bytes.
    pub bytes: u64,
    /// Its last change before it was read, in seconds since 1970, UTC; of a document without a file, the time at which it was put.
    pub modified: i64,
    /// Number of its passages, at least 1.
    pub n_passages: usize,
}

/// The contents of an index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NotesStatus {
    /// The folders and files that updates read.
    pub roots: Vec<PathBuf>,
    /// Number of forgotten files, which updates do not read.
    pub n_forgotten: usize,
    /// Number of files with passages.
    pub n_files: usize,
    /// Number of documents without files.
    pub n_documents: usize,
    /// Number of passages.
    pub n_passages: usize,
    /// Number of passages by kind of source.
    pub by_kind: Vec<(SourceKind, usize)>,
    /// Number of removed or replaced passages whose text is still on the disk until the next purge.
    pub n_unpurged: usize,
    /// Number of segments of the inverted index.
    pub n_segments: usize,
    /// Length of all files in the folder, in bytes.
    pub bytes: u64,
    /// Fingerprints of the tokenizers with stored token ids.
    pub tokenizers: Vec<u64>,
    /// Identities of the embedders with stored vectors.
    pub embedders: Vec<u64>,
    /// Number of requests that wait for the writer.
    pub n_requests: usize,
    /// The last requests of other processes that the writer could not carry out. Adding or forgetting their paths removes
    /// them; one without a path goes with the next of these.
    pub failed: Vec<FailedRequest>,
}
