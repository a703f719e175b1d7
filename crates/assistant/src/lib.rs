//! The tasks of an assistant app on the engine [`refrain`]: answers from notes, summaries, commands for screens, replies, edits and
//! conversations.
//!
//! An [`Assistant`] is built from an engine; notes, a store and prompts are optional. A task searches, lays out its prompt and returns a
//! [`Job`], an iterator of [`JobEvent`]s that computes when its events are taken:
//!
//! ```
//! use refrain::{Engine, EngineOptions};
//! use refrain_assistant::{AnswerRequest, Assistant, JobEvent, JobOptions, Passage};
//!
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
//! let engine = Engine::open(model, EngineOptions::default())?;
//! let assistant = Assistant::builder(engine).build()?;
//!
//! // An app with an index of notes searches in it instead: `Assistant::builder(engine).notes("index")`.
//! let note = Passage::new("Car repair", "Qulittus Works takes care of the repair of the car.");
//! let mut request = AnswerRequest::new("Who takes care of the repair of the car?");
//! request.passages = Some(vec![note]);
//! for event in assistant.answer(request, JobOptions::default())? {
//!     match event? {
//!         JobEvent::Text(text) => print!("{}", text.text),
//!         JobEvent::Done(answer) => assert!(answer.text.contains("Qulittus Works")),
//!         _ => {}
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//!
//! - The text of a job equals plain decoding of its prompt, bit for bit, whatever else runs (with the same mask, for
//!   [`ui_command`](Assistant::ui_command)). A seed repeats a sampled text.
//! - Jobs take turns ([`Priority`]). If a job is dropped, is cancelled, fails or panics, it keeps no answer, and other jobs continue.
//! - Text of notes, messages and screens cannot forge control tokens.
//! - [`Report::left_out`] names everything that a prompt does not show, though it was found or given.
//! - Drafts, kept answers, summaries and prefixes of one namespace never reach another ([`Assistant::in_namespace`]).
//! - After [`Assistant::forget`], or [`forget()`] without a model, no file has a byte of the data that the deletion found
//!   (`docs/use/deletion.md` names the data that it does not find). The next start finishes an interrupted deletion.
//!
//! The guides are `docs/embed/assistant.md`, `docs/use/privacy.md` and `docs/use/deletion.md`.

pub mod edit;
pub mod provenance;

mod assistant;
mod background;
mod error;
mod estimate;
mod facts;
mod fit;
mod forget;
mod gate;
mod job;
mod layout;
mod options;
mod passage;
mod pieces;
mod rates;
mod resume;
mod screen;
mod searched;
mod step;
mod store;
mod stream;
mod tasks;
mod template;
mod together;

pub use assistant::{Assistant, Builder, NAMESPACE_BYTES_MAX};
pub use background::{Background, BackgroundPlan, BackgroundRun, BackgroundTask, Conditions, Pause};
pub use edit::part::{EditPart, EditPartError};
pub use error::{BuildError, ForgetError, TaskError};
pub use estimate::Estimate;
pub use fit::{CountTokens, Fitted, fit};
pub use forget::{Forget, Forgotten, forget};
pub use gate::{Gate, GateTurn};
pub use job::Job;
pub use options::{AssistantOptions, JobOptions, KeptPrompts, Priority};
pub use passage::{FileError, LeftOut, LeftOutReason, Passage, Source};
pub use screen::{
    ActionError, Command, Direction, Element, Role, Screen, ScreenError, ScreenForm, UiAction, UiActions,
    UiVerb,
};
pub use searched::Searched;
pub use step::{JobEvent, Report, TextEvent};
pub use store::{
    ConversationId, EditCopies, EditCopy, KindStatus, MadeFrom, StoreError, StoreStatus, StoredKind,
    TypedLines, store_status,
};
pub use stream::JobStream;
pub use tasks::{
    Answer, AnswerRequest, Bubble, BubbleSource, ChatAnswer, ChatRequest, Conversation, Edit, EditRequest,
    Length, Prefetch, Prefetched, Provenance, Reply, ReplyRequest, SummarizeRequest, Summary, Turn,
    UiCommand, UiStep, UiTask, WriteRequest,
};
pub use template::{Prompts, Template, TemplateError};
