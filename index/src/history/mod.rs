//! A persistent history: the responses of earlier runs in a folder, and drafts from them.
//!
//! ```no_run
//! use refrain::{Engine, EngineOptions, SessionOptions};
//! use refrain_index::{HistoryKey, HistoryLog, HistoryOptions};
//!
//! let engine = Engine::open("model.gguf", EngineOptions::default())?;
//! let history = HistoryLog::open("history".as_ref(), HistoryKey::of(&engine), HistoryOptions::default())?;
//! // The log takes the place of the history in memory.
//! let mut options = SessionOptions::default();
//! options.history = false;
//! let mut session = engine.session(options)?;
//! session.add_source(Box::new(history.source("mail")))?;
//! // … generate, and when the response is finished:
//! let response: Vec<refrain::TokenId> = Vec::new();
//! history.append("mail", &response)?;
//! history.maintain()?; // when there is time
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # In the folder
//!
//! ```text
//! FOLDER/
//!   TOKENIZER-MODEL/            one HistoryKey: token ids and answers are valid for one model only
//!     .lock                     locked by the process that writes
//!     .key                      of an encrypted history: tells a wrong key
//!     .inbox/                   responses that other processes have handed in, a file each
//!     .fleet/NAMESPACE/         copies of other hosts' segments, which are searched and never changed
//!     NAMESPACE/                an app, a user, a task
//!       log-N                   the newest responses, appended
//!       segment-N               older responses, frozen with the order of their prefixes
//!       echo                    the lists of echo, if a session uses it
//!       damaged.…               a damaged file that was set aside
//! ```
//!
//! Numbers ascend within a namespace, and a file contains the numbers of the files that it *replaces*. So every
//! change of several files is one rename. A replaced file that still exists is a leftover, and the writer removes it
//! when it opens the folder. A file is written under another name, synced, and renamed. Afterwards, only logs are
//! written, at their end. The lists of echo have no number: their file is replaced as a whole.
//!
//! # Processes
//!
//! Any number of processes can read a folder at the same time. The first process to open it takes the system's lock
//! of `.lock` and writes. The system releases the lock when the process ends for any reason. The other processes
//! *hand in*: [`HistoryLog::append`] writes the response durably to a file of its own in `.inbox`, and the writer
//! moves it to its log at its next open or [`HistoryLog::maintain`]. After the writer has ended, the next process to
//! open or [refresh](HistoryLog::refresh) the folder becomes the writer. A process without permission to write reads
//! the folder, and its appends are refused. [`HistoryLog::access`] returns the role of this process.
//!
//! A reader has the contents of the folder at the time of its last read, and its own responses. So a process drafts from the
//! responses of another process after its own next [`maintain`](HistoryLog::maintain) or open: also before the writer
//! has moved a response to the log, and also if there is no writer. If a worker calls `maintain` after each response, the delay of
//! sharing is one response. The writer may freeze, merge and forget meanwhile:
//!
//! - On Unix, open files of a reader keep their contents after the writer has removed them.
//! - On Windows, all files are opened so that they can be removed while they are open. Some file systems keep the
//!   name until the last reader has closed the file. A process that opens the folder meanwhile reports that file as
//!   unreadable.
//! - A reader may draft a forgotten response until its next [`HistoryLog::refresh`] or [`HistoryLog::maintain`].
//!
//! # Guarantees
//!
//! - [`HistoryLog::append`] returns when the response is in the log or handed in, as durably as the
//!   [`SyncPolicy`] states. The next writer cuts off an append that was interrupted by a crash.
//! - A checksum covers every byte and is verified before the byte is used. Damaged parts, and files and
//!   namespaces that cannot be read, are left out; the rest of the folder is used. [`HistoryLog::left_out`]
//!   lists each with its file, offset and reason. Damage in a page of a segment is found when a draft or a
//!   merge first reads the page (or by [`HistoryLog::verify`]). The segment then provides no drafts until
//!   [`HistoryLog::maintain`] has written its undamaged responses to a new segment.
//! - The writer sets damaged files aside under another name. Only [`HistoryLog::repair`] and forgetting remove them.
//! - A [forgotten](HistoryLog::forget) response is in no readable file of the store, and in no file of its namespace
//!   that was set aside. (The disk may still hold freed blocks.) The [lists of echo](HistoryLog::echo) derive from
//!   responses and prompts, so all lists of its namespace are dropped with it.
//! - Memory: the tokens of each namespace's log (and their automaton, after the first draft), the tables of its
//!   segments (about a byte per 6 tokens), its lists of echo if they are used (90 bytes each), and
//!   [`HistoryOptions::cache_bytes`] for everything else. Segments are read page by page.
//! - `.inbox` contains at most 512 responses.

mod access;
mod cache;
mod changes;
mod context;
pub(crate) mod disk;
mod echo;
mod error;
#[cfg(test)]
mod faults;
/// The same tests with a key.
#[cfg(test)]
#[path = "faults.rs"]
#[allow(clippy::duplicate_mod, reason = "its name tells whether the disk is encrypted")]
mod faults_with_key;
mod files;
mod fleet;
mod inbox;
mod key;
mod log;
mod namespace;
mod options;
mod pulled;
mod report;
mod search;
mod segment;
mod sort;
mod source;
mod store;
#[cfg(test)]
pub(crate) mod testing;
mod upkeep;

pub use access::Access;
pub use error::HistoryError;
pub use fleet::{Export, ExportedSegment, IncomingSegment};
pub use key::{HistoryKey, NAMESPACE_BYTES_MAX, RecordId};
pub use options::{HistoryOptions, SyncPolicy};
pub use report::{HistoryStats, LeftOut, LeftOutReason, NamespaceStats, RecordInfo};
pub use segment::SegmentName;
pub use source::HistoryLogSource;
pub use store::HistoryLog;
