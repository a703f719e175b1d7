//! History that lasts: the responses of earlier runs in a folder, and drafts from them.
//!
//! ```no_run
//! use refrain::{Engine, EngineOptions, SessionOptions};
//! use refrain_index::{HistoryKey, HistoryLog, HistoryOptions};
//!
//! let engine = Engine::open("model.gguf".as_ref(), EngineOptions::default())?;
//! let history = HistoryLog::open("history".as_ref(), HistoryKey::of(&engine), HistoryOptions::default())?;
//! // The log takes the place of the history in memory.
//! let mut session = engine.session(SessionOptions { history: false, ..SessionOptions::default() })?;
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
//!   TOKENIZER-MODEL/            one HistoryKey: token ids and answers of another model mean nothing here
//!     .lock                     locked by the process that writes
//!     .inbox/                   responses that other processes have handed in, a file each
//!     NAMESPACE/                an app, a user, a task
//!       log-N                   the newest responses, appended
//!       segment-N               older responses, frozen with the order of their prefixes
//!       damaged.…               a damaged file that was set aside
//! ```
//!
//! Numbers rise within a namespace, and a file names the numbers that it *replaces*. So every change of several files is
//! one rename: whatever is replaced by a file that is there is left over, and removed when the folder is opened. A file
//! is written under another name, synced, and renamed; only a log is written to afterwards, at its end.
//!
//! # Processes
//!
//! Any number of processes read a folder at the same time. The first one to open it takes the system's lock of `.lock`, and
//! writes; the lock ends with the process, however that ends. The others *hand in*: [`HistoryLog::append`] writes the response
//! durably to a file of its own in `.inbox`, and the writer takes it into its log when it opens the folder or
//! [maintains](HistoryLog::maintain) it. Where nobody writes any more, the next process to open or
//! [refresh](HistoryLog::refresh) the folder becomes the writer. A process that cannot write the folder reads it, and
//! its appends are refused ([`HistoryLog::access`]).
//!
//! A reader has what the folder held when it last read it, with its own responses. The writer may freeze, merge and forget
//! meanwhile: on Unix the reader's open files keep their contents after they are removed. On Windows files are opened so that
//! they can be removed while they are open; on file systems that keep the name until the last reader has closed the file, a
//! process that opens the folder meanwhile leaves the file out, as one that cannot be read. A response that the writer forgets
//! can be drafted by a reader until its next [`HistoryLog::refresh`] or [`HistoryLog::maintain`].
//!
//! # What is promised
//!
//! - [`HistoryLog::append`] returns when the response is as safe as the [`SyncPolicy`] says, in the log or handed in. What a
//!   crash leaves of a later one is cut off by the next writer.
//! - Every byte is covered by a checksum that is compared before the byte is used. What is damaged is left out, with its file,
//!   place and reason ([`HistoryLog::left_out`]), and everything else is used. In the pages of a segment damage is found when a
//!   draft or a merge first needs the page (or by [`HistoryLog::verify`]); that segment drafts no more until
//!   [`HistoryLog::maintain`] has written its sound responses anew.
//! - Nothing damaged is deleted unasked: the writer sets such files aside under another name. [`HistoryLog::repair`] removes them.
//! - What was [forgotten](HistoryLog::forget) is in no file that the store can read, nor in one of its namespace that was set
//!   aside (the disk may still hold freed blocks).
//! - Memory: the tokens of each namespace's log (and their automaton, once it drafts), the tables of its segments (about a
//!   byte per 6 tokens), and [`HistoryOptions::cache_bytes`] for everything else. Segments are read page by page. `.inbox` holds
//!   512 responses at most.

mod cache;
mod disk;
mod error;
#[cfg(test)]
mod faults;
mod inbox;
mod key;
mod log;
mod namespace;
mod options;
mod report;
mod search;
mod segment;
mod sort;
mod source;
mod store;
#[cfg(test)]
mod testing;
mod upkeep;

pub use error::HistoryError;
pub use key::{HistoryKey, NAMESPACE_BYTES_MAX, RecordId};
pub use options::{HistoryOptions, SyncPolicy};
pub use report::{HistoryStats, LeftOut, LeftOutReason, NamespaceStats, RecordInfo};
pub use source::HistoryLogSource;
pub use store::{Access, HistoryLog};
