//! The tasks of an assistant app on the engine [`refrain`].

pub mod edit;
pub mod provenance;

mod assistant;
mod error;
mod fit;
mod forget;
mod gate;
mod job;
mod layout;
mod options;
mod passage;
mod pieces;
mod store;
mod tasks;
mod template;

pub use assistant::{Assistant, Builder, NAMESPACE_BYTES_MAX};
pub use error::{BuildError, TaskError};
pub use fit::{CountTokens, Fitted, fit};
pub use forget::{Forget, ForgetError, Forgotten};
pub use job::{Job, JobEvent, Report, TextEvent};
pub use options::{AssistantOptions, JobOptions, Priority};
pub use passage::{LeftOut, LeftOutReason, Passage, Source};
pub use store::StoreError;
pub use tasks::{
    Answer, AnswerRequest, ChatAnswer, ChatRequest, Command, Conversation, ConversationId, Direction, Edit,
    EditRequest, Element, Length, Prefetch, Prefetched, Provenance, Reply, ReplyRequest, Role, Screen,
    ScreenError, SummarizeRequest, Summary, UiCommand, UiRequest,
};
pub use template::{Prompts, Template, TemplateError};
