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
//!     .lock                     held by the process that has it open; a second one is refused at once
//!     NAMESPACE/                an app, a user, a task
//!       log-N                   the newest responses, appended
//!       segment-N               older responses, frozen with the order of their prefixes
//! ```
//!
//! Numbers rise within a namespace, and a file names the numbers that it *replaces*. So every change of several files is
//! one rename: whatever is replaced by a file that is there is left over, and removed when the folder is opened. A file
//! is written under another name, synced, and renamed; only a log is written to afterwards, at its end.
//!
//! # What is promised
//!
//! - [`HistoryLog::append`] returns when the response is as safe as the [`SyncPolicy`] says. What a crash leaves of a
//!   later one is cut off when the folder is opened again, and reported ([`HistoryLog::recovered`]).
//! - Every byte is covered by a checksum that is compared before the byte is used. Damage is an error that names the file
//!   and the place; in the pages of a segment it is found when a draft or a merge first needs the page (or by
//!   [`HistoryLog::verify`]), and that segment drafts no more until [`HistoryLog::repair`].
//! - What was [forgotten](HistoryLog::forget) is in no file of the store any more (the disk may still hold freed blocks).
//! - Memory: the tokens of each namespace's log (and their automaton, once it drafts), the tables of its segments (about a
//!   byte per 6 tokens), and [`HistoryOptions::cache_bytes`] for everything else. Segments are read page by page.

mod cache;
mod disk;
mod error;
#[cfg(test)]
mod faults;
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
pub use report::{HistoryStats, NamespaceStats, RecordInfo, Recovered};
pub use source::HistoryLogSource;
pub use store::HistoryLog;
