//! The tasks of the assistant, and deletion. `forget_kill` and `background_kill` are programs of their own, because a process that has just been
//! started briefly holds copies of the locks of other tests' stores.

mod answer;
mod background;
mod bubble;
mod chat;
mod forget;
mod jobs;
mod key;
mod long;
mod loops;
mod namespaces;
mod prefetch;
mod reply_and_edit;
mod resume;
mod summarize;
#[path = "../support/mod.rs"]
mod support;
mod ui;
