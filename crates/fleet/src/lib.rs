//! Shares the frozen segments of a [history](refrain_index::history) between hosts, through a store of objects: a folder,
//! or a server that speaks the protocol of S3.
//!
//! ```no_run
//! use refrain_fleet::{Fleet, FleetOptions};
//! use refrain_index::{HistoryKey, HistoryLog, HistoryOptions};
//!
//! # let key = HistoryKey { tokenizer: 1, model: 2 };
//! let history = HistoryLog::open("history".as_ref(), key, HistoryOptions::default())?;
//! let fleet = Fleet::connect("s3://bucket/refrain", std::env::vars(), FleetOptions::new("host-17"))?;
//! // When there is time, in a thread that generates nothing:
//! history.refresh()?;
//! let published = fleet.publish(&history);
//! let pulled = fleet.pull(&history, &["mail"]);
//! for failed in published.failed.iter().chain(&pulled.failed) {
//!     eprintln!("{failed}");
//! }
//! history.maintain()?; // drafts from what was pulled
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! No process that drafts waits for the store. [`publish`](Fleet::publish) and [`pull`](Fleet::pull) move whole files
//! between the history's folder and the store, within a [time limit](FleetOptions::budget); a worker opens what lies in its
//! folder. So the two calls may run in another process, once per host (`refrain-fleet publish` and `pull`), and a store
//! that fails, lies or is slow costs drafts and nothing else: what could not be moved is [reported](Transfer::failed).
//!
//! # In the store
//!
//! ```text
//! KEY/namespaces/NAMESPACE/HOST/SEGMENT   a segment of HOST; its name has number, length and checksum
//! KEY/hosts/HOST/NAMESPACE                empty: HOST has segments of this namespace
//! KEY/deleted/NAMESPACE                   the id up to which responses are deleted
//! ```
//!
//! Segments are immutable. The listing of a namespace is its manifest: a host reads it in one request per 1,000 objects, and
//! each name says what the object must contain, so no second file can disagree with it. `publish` makes the host's objects
//! equal to its history: it uploads new segments, then deletes those that a merge has replaced or whose responses were
//! forgotten. Copies on other hosts are removed by their next `pull`.
//!
//! # Deletion
//!
//! - A response that was [forgotten](refrain_index::HistoryLog::forget) on its host leaves the store at the host's next
//!   `publish`, and each other host at its next `pull`.
//! - [`delete`](Fleet::delete) removes a namespace of all hosts from the store, and leaves the time of the deletion. At its next
//!   `publish` or `pull`, each host forgets its own responses up to that time and removes its copies; later responses are shared again. A
//!   `publish` that runs at the same time notices the deletion before it ends.
//! - A store that keeps versions of deleted objects, or backups, keeps the responses. Switch that off.
//!
//! # Trust
//!
//! Who can write to the store can offer drafts to every host, and waste time with them. No draft changes an output. Who can
//! read the store can read the responses: they are not encrypted.

mod error;
mod fleet;
mod options;
mod transfer;

pub use error::FleetError;
pub use fleet::Fleet;
pub use options::FleetOptions;
pub use transfer::Transfer;
