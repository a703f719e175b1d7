//! Requests of an assistant and of an index of notes, and what searches give.

use serde::{Deserialize, Serialize};

use crate::events::Place;
use crate::options::{SessionOptions, names};

/// Options of an assistant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AssistantOptions {
    /// The folder of an index of notes ([`Notes`](crate::Notes)).
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub notes: Option<String>,
    /// The embedding model whose vectors the index has: notes are then searched by meaning too.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub embedder: Option<String>,
    /// A folder that keeps answers and computed prompts, used by one process at a time. Default: answers are kept in memory.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub store: Option<String>,
    /// 32 bytes that encrypt the store, and with which the index was encrypted. The app keeps them.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub key: Option<Vec<u8>>,
    /// Options of every session, its namespace and system turn included.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub session: Option<SessionOptions>,
    /// Room for the output in tokens. Default: 512, at most a quarter of the context.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub max_tokens: Option<u32>,
    /// Passages that a search shows to the model. Default: 4.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub n_passages: Option<u32>,
    /// The least share of a question that a passage must cover, 0 to 1. Default: 0.3.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub coverage_min: Option<f32>,
}

/// Conditions on passages of notes. A passage meets all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NoteFilter {
    /// Of `note`, `mail`, `chat`, `screen`, `event`, `document`, `data` and `code`; empty: all.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub kinds: Vec<String>,
    /// Files, or folders with everything below them; empty: all.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub folders: Vec<String>,
    /// The earliest date, in seconds since 1970.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub since: Option<i64>,
    /// The latest date, in seconds since 1970.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub until: Option<i64>,
    /// A passage has one of these tags; empty: all.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub tags: Vec<String>,
}

/// A piece of text that is shown to the model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Passage {
    /// A title; may be empty.
    #[cfg_attr(feature = "uniffi", uniffi(default = ""))]
    pub title: String,
    /// The text.
    pub text: String,
    /// The note that it is of, so that deletions find what is made from it.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub note: Option<String>,
}

/// A task of an assistant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
#[cfg_attr(feature = "uniffi", derive(uniffi::Enum))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[allow(clippy::large_enum_variant, reason = "one at a time, on its way to a thread")]
pub enum TaskRequest {
    /// Answers a question from notes, with citations: `text`, `sources`, `copied`, `sentences`, `left_out`.
    Ask(AskRequest),
    /// Summarises texts, notes or what a query finds: `text`, `parts`, `previous`, `changes`, `left_out`.
    Summarize(SummarizeRequest),
    /// Replies to a message: `text`, `sources`, `copied`, `sentences`.
    Reply(ReplyRequest),
    /// Edits a text: `text`, `changes`, `doubts`, and live [`Edit`](crate::Event::Edit) events.
    Edit(EditRequest),
    /// Chooses the next command on a screen: `command`, and `text` as the command is written.
    Ui(UiRequest),
    /// Computes the prompt of a question in the background, and keeps it in the store: `kept_tokens`.
    PrefetchAsk(AskRequest),
    /// The same of a summary.
    PrefetchSummarize(SummarizeRequest),
    /// The same of a reply.
    PrefetchReply(ReplyRequest),
}

/// A question about notes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AskRequest {
    /// The question.
    pub question: String,
    /// The notes to search. Default: all.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub filter: Option<NoteFilter>,
    /// Maximum passages to show. Default: that of the assistant.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub n_passages: Option<u32>,
    /// Passages to show in place of a search, best first.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub passages: Option<Vec<Passage>>,
    /// Earlier questions of the conversation, newest first: the search looks for their words too.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub earlier: Vec<String>,
    /// The least share of the question that a passage must cover. Default: that of the assistant.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub coverage_min: Option<f32>,
}

/// What to summarise: `texts`, `notes` or `query`, one of the three.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SummarizeRequest {
    /// Texts of any length.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub texts: Vec<Passage>,
    /// Files and folders of the index.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub notes: Vec<String>,
    /// The passages that match it best.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub query: Option<String>,
    /// How to summarise, such as `In two sentences.`
    #[cfg_attr(feature = "uniffi", uniffi(default = ""))]
    pub request: String,
    /// Names texts that are of no note, so that the summary is compared with the last one of the same id.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub id: Option<String>,
    /// The notes to search for a query. Default: all.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub filter: Option<NoteFilter>,
}

names! {
    /// The length of a reply.
    Length => refrain_assistant::Length {
        /// One or two sentences.
        Short "short" => refrain_assistant::Length::Short,
        /// A paragraph.
        Medium "medium" => refrain_assistant::Length::Medium,
        /// Several paragraphs.
        Long "long" => refrain_assistant::Length::Long,
    }
}

/// A message to reply to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReplyRequest {
    /// The message.
    pub message: Passage,
    /// Earlier messages of the thread, newest first.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub earlier: Vec<Passage>,
    /// The user's wish, such as `Accept, but on Tuesday.`
    #[cfg_attr(feature = "uniffi", uniffi(default = ""))]
    pub request: String,
    /// The tone, such as `friendly`.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub tone: Option<String>,
    /// The length.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub length: Option<Length>,
    /// Passages that help, best first.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub passages: Vec<Passage>,
    /// Passages of the notes to show behind them. Default: 0.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub n_passages: Option<u32>,
    /// The notes to search. Default: all.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub filter: Option<NoteFilter>,
}

/// A text to edit. `selection`, `lines` and `section` name a part of it; at most one of the three.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EditRequest {
    /// The text.
    pub text: String,
    /// What is to be changed.
    pub instruction: String,
    /// The note that the text is of, so that deletions find what is made from it.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub note: Option<String>,
    /// A place in the text.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub selection: Option<Place>,
    /// The first and the last line, from 1.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub lines: Option<Vec<u32>>,
    /// The words of a heading.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub section: Option<String>,
}

/// A task on a screen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UiRequest {
    /// Accessibility XML, a dump of a known tool, or a line per element such as `4 button "Sign in"`. Its ids are kept.
    pub screen: String,
    /// What the user wants.
    pub goal: String,
    /// The steps before, oldest first.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub steps: Vec<UiStep>,
    /// What the agent may do, as JSON: `commands`, `keys`, `apps`, and the app's own `actions`.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub actions: Option<String>,
    /// The most earlier screens that the prompt shows. Default: 2.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub n_screens: Option<u32>,
}

/// A step of a task on screens.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UiStep {
    /// The screen before it, if it is known.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub screen: Option<String>,
    /// The command, as the result's `text` has it.
    pub command: String,
}

/// A turn of the user in a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChatRequest {
    /// The user's words.
    pub text: String,
    /// Passages of the notes to show. Default: 0.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub n_passages: Option<u32>,
    /// The notes to search. Default: all.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub filter: Option<NoteFilter>,
    /// Passages to show in place of a search, best first.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub passages: Option<Vec<Passage>>,
}

/// What is to be deleted. When the deletion returns, no file has a byte of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Enum))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Forget {
    /// What was made from a note or a folder of notes, and its text in the index. The note itself stays.
    Note {
        /// The note or folder.
        path: String,
    },
    /// A conversation.
    Conversation {
        /// Its id.
        id: String,
    },
    /// All answers from before a time.
    Before {
        /// Seconds since 1970.
        time: i64,
    },
    /// All answers, and all notes of the index.
    Everything,
}

/// What was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Forgotten {
    /// Answers.
    pub answers: u64,
    /// Summaries.
    pub summaries: u64,
    /// Blocks of computed prompts.
    pub prompt_blocks: u64,
    /// Another writer has the index open, and deletes the text of the notes when it next updates the index.
    pub is_notes_pending: bool,
}

/// Options of an index of notes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NotesOptions {
    /// The folder of the index. Writing makes it, readable by its owner only.
    pub folder: String,
    /// Codes of the notes' languages, such as `en`; empty: all, detected for each note. Stored with the index; default: the stored ones.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub languages: Option<Vec<String>>,
    /// An embedding model, whose vectors are stored and searched.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub embedder: Option<String>,
    /// 32 bytes that encrypt the index from its beginning. The app keeps them.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub key: Option<Vec<u8>>,
    /// The units of places in snippets. Default: UTF-8.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub units: Option<crate::Units>,
}

/// A search.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SearchRequest {
    /// Words in any form.
    pub text: String,
    /// Maximum hits. Default: 5.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub limit: Option<u32>,
    /// The notes to search. Default: all.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub filter: Option<NoteFilter>,
    /// Earlier texts of the conversation, newest first: their words count less.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub earlier: Vec<String>,
}

/// A passage that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hit {
    /// The note.
    pub path: String,
    /// The id of the document, if it has no file.
    pub document: Option<String>,
    /// The kind of its source, such as `note`.
    pub kind: String,
    /// The title.
    pub title: String,
    /// The text.
    pub text: String,
    /// The first byte of the file from which the text was read.
    pub file_start: u64,
    /// The byte of the file behind it.
    pub file_end: u64,
    /// The line or page.
    pub locator: Option<String>,
    /// Seconds since 1970.
    pub date: i64,
    /// Tags.
    pub tags: Vec<String>,
    /// Larger is better, within one search.
    pub score: f32,
    /// How much of the request the passage covers by words, 0 to 1.
    pub coverage: f32,
    /// The part that matches best.
    pub snippet: String,
    /// The words of the request in the snippet.
    pub matched: Vec<Place>,
}

/// A document without a file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Document {
    /// The id that the app gives it.
    pub id: String,
    /// The text, read as Markdown.
    pub text: String,
    /// The title. Default: that in the text, else the id.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub title: Option<String>,
    /// Seconds since 1970. Default: the date in the text, else now.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub date: Option<i64>,
    /// Tags, beside those in the text.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub tags: Vec<String>,
    /// The kind, for filters. Default: `note`.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub kind: Option<String>,
}

/// Documents to put and remove in one step: other readers see all of it or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PutRequest {
    /// Each takes the place of an earlier one with its id.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub documents: Vec<Document>,
    /// Ids of documents to remove.
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub remove: Vec<String>,
    /// A text of the app, up to 4,096 bytes, that is stored in the same step.
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub cursor: Option<String>,
}

/// A document in the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DocumentInfo {
    /// The id.
    pub id: String,
    /// Bytes of its text.
    pub bytes: u64,
    /// Its passages.
    pub passages: u64,
    /// The number of the change that has put it.
    pub change: u64,
}

/// What changed among the documents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DocumentChanges {
    /// The number of the last change: the next call continues behind it.
    pub change: u64,
    /// Documents that were put.
    pub put: Vec<DocumentInfo>,
    /// Ids of documents that were removed.
    pub removed: Vec<String>,
    /// Whether these are the changes since the given number. If not, `put` has every document, and a copy begins anew.
    pub is_complete: bool,
}

/// A file of the index, or a document without a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NoteFile {
    /// The file.
    pub path: String,
    /// The id of the document, if it has no file.
    pub document: Option<String>,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its last change, in seconds since 1970.
    pub modified: i64,
    /// Its passages.
    pub passages: u64,
}
