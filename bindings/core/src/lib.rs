//! The engine Refrain for other languages: one definition, from which every binding is made.
//!
//! Kotlin and Swift are generated from it (feature `uniffi`), C (`bindings/c`) and Node (`bindings/node`) wrap it and pass its records as
//! JSON. It decides once what no binding decides again:
//!
//! - **Objects** are shared (`Arc`), `Send` and `Sync`. [`Engine`], [`Assistant`], [`Notes`] and [`History`] take calls of any number of
//!   threads. A [`Session`], a [`Conversation`] and the events of a [`Job`] serve one call at a time; a second one is the error
//!   [`Busy`](ErrorKind::Busy), and never waits.
//! - **Ownership.** Every object has `close()`, which may be called twice. Every later call is the error [`Closed`](ErrorKind::Closed).
//!   [`Engine::close`] closes what was made from the engine, and so frees its memory when running passes have ended. An object that is
//!   dropped is closed; what was made from a dropped engine goes on.
//! - **Errors** have one type, [`FfiError`], with stable [codes](ErrorKind).
//! - **Work** (answers, tasks, updates of notes) is a [`Job`] in a thread of its own. Its events are taken in batches, by
//!   [`Job::next_events`] or by an [`EventListener`].
//! - **Panics** inside are caught. The call ends with [`Panicked`](ErrorKind::Panicked), later ones with [`Poisoned`](ErrorKind::Poisoned).
//! - **Processes.** An object belongs to the process that made it: in a forked child each call is the error
//!   [`Forked`](ErrorKind::Forked), and nothing is freed. A process may exit while jobs run. Several copies of the library in one process
//!   share nothing.
//!
//! `bindings/core/README.md` has the rules and codes as tables.

#![cfg_attr(feature = "uniffi", allow(unsafe_code, reason = "the scaffolding that UniFFI generates"))]

#[cfg(feature = "notes")]
mod assistant;
mod engine;
mod error;
mod events;
mod guard;
mod history;
mod job;
#[cfg(feature = "notes")]
mod notes;
mod options;
mod registry;
#[cfg(feature = "notes")]
mod results;
mod session;
#[cfg(feature = "uniffi")]
mod shutdown;
#[cfg(feature = "notes")]
mod tasks;
#[cfg(feature = "notes")]
mod units;

#[cfg(feature = "notes")]
pub use assistant::{Assistant, Conversation};
pub use engine::{
    Engine, EngineInfo, MemoryEstimate, SuspendReport, estimate_memory, library_version,
    memory_pressure_from_android, memory_pressure_from_ios, thermal_state_from_android,
};
pub use error::{ErrorInfo, ErrorKind, FfiError};
pub use events::{
    Change, ChangeKind, Citation, CopiedSpan, Event, EventListener, FinishReason, JobResult, JobStats,
    LeftOut, Place, Sentence, Skipped, Source, Stage, TextKind, Turn, UiCommand, UpdateReport,
};
pub use guard::call;
pub use history::History;
pub use job::Job;
#[cfg(feature = "notes")]
pub use notes::{Notes, document_path};
pub use options::{
    DeviceState, Drafting, EngineOptions, GenerateOptions, HistoryOptions, KvType, MemoryPressure, Message,
    PowerState, Priority, Quantize, Role, SessionOptions, ThermalState, Units,
};
pub use session::{Session, SessionInfo};
#[cfg(feature = "notes")]
pub use tasks::{
    AskRequest, AssistantOptions, ChatRequest, Document, DocumentChanges, DocumentInfo, EditRequest, Forget,
    Forgotten, Hit, Length, NoteFile, NoteFilter, NotesOptions, Passage, PutRequest, ReplyRequest,
    SearchRequest, SummarizeRequest, TaskRequest, UiRequest, UiStep,
};

#[cfg(feature = "uniffi")]
uniffi::setup_scaffolding!("refrain");
