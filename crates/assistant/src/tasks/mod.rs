//! The tasks. Each searches and lays out its prompt when it is called, and computes when its job is driven.

mod answer;
mod bubble;
mod chat;
mod edit;
mod from_passages;
mod notes;
mod prefetch;
mod provenance;
mod reply;
mod summarize;
mod ui;
mod write;

pub use answer::AnswerRequest;
pub use bubble::{Bubble, BubbleSource};
pub use chat::{ChatAnswer, ChatRequest, Conversation, Turn};
pub use edit::{Edit, EditRequest};
pub use from_passages::Answer;
pub use prefetch::{Prefetch, Prefetched};
pub use provenance::Provenance;
pub use reply::{Length, Reply, ReplyRequest};
pub use summarize::{SummarizeRequest, Summary};
pub use ui::{UiCommand, UiStep, UiTask};
pub use write::WriteRequest;
