//! Events of a job, its result, and those who listen.

use serde::{Deserialize, Serialize};

use crate::error::ErrorInfo;
use crate::options::Role;

/// An event of a job. [`Done`](Self::Done) or [`Failed`](Self::Failed) is the last one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "uniffi", derive(uniffi::Enum))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Event {
    /// Work before the first text. Of several that were not taken, the newest one stays.
    Progress {
        /// What is done.
        stage: Stage,
        /// Bytes, tokens or files that are done.
        done: u64,
        /// All of them.
        total: u64,
    },
    /// The notes were searched.
    Searched {
        /// The words, those of the request first.
        words: Vec<String>,
        /// The largest share of the request that a passage covers, 0 to 1.
        coverage: f32,
        /// The titles of passages that are near, and not shown, because none covers enough.
        nearest: Vec<String>,
    },
    /// A piece of the output: whole characters, never empty. Pieces that came together are one if their kind and origin are the same.
    Text {
        /// The text.
        text: String,
        /// Answer or reasoning.
        kind: TextKind,
        /// The draft source that proposed it; `None`: decoded by the model alone. Drafts never change the text.
        drafted_by: Option<String>,
    },
    /// A sentence of the answer is complete.
    Sentence {
        /// Its number, from 0.
        index: u64,
        /// Its place in the answer, with citations.
        place: Place,
        /// Its words, without citations.
        text: String,
    },
    /// A part of the difference between the text that is edited and the new one.
    Edit {
        /// The change.
        change: Change,
    },
    /// A window of a long text was edited. Who cancels later may keep the new text up to `new.end`, and the old one from `old.end` on.
    Window {
        /// Its number, from 0.
        index: u64,
        /// All of them.
        count: u64,
        /// Its place in the old text.
        old: Place,
        /// What became of it: its place in the new text.
        new: Place,
    },
    /// A part of a long text was summarised.
    Part {
        /// Its number, from 0.
        index: u64,
        /// All of them.
        count: u64,
        /// Its summary.
        text: String,
    },
    /// How long a task of several prompts takes still.
    Estimate {
        /// Milliseconds.
        ms: u64,
        /// Prompts.
        prompts: u64,
    },
    /// The result; nothing follows.
    Done {
        /// The result.
        result: Box<JobResult>,
    },
    /// The job failed or was cancelled; nothing follows.
    Failed {
        /// Why.
        error: Box<ErrorInfo>,
    },
}

impl Event {
    /// Whether it is the last one.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Done { .. } | Self::Failed { .. })
    }
}

/// What a job does before its first text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "uniffi", derive(uniffi::Enum))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Stage {
    /// Reads a model; counts bytes.
    Load,
    /// Computes a prompt; counts tokens.
    Prefill,
    /// Reads notes; counts files.
    Index,
}

/// The kind of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "uniffi", derive(uniffi::Enum))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum TextKind {
    /// The answer.
    Answer,
    /// The reasoning before it.
    Reasoning,
}

impl From<refrain::TextKind> for TextKind {
    fn from(kind: refrain::TextKind) -> Self {
        match kind {
            refrain::TextKind::Reasoning => Self::Reasoning,
            _ => Self::Answer,
        }
    }
}

/// Why an output ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "uniffi", derive(uniffi::Enum))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum FinishReason {
    /// The model ended it.
    EndToken,
    /// A stop text.
    Stop,
    /// The maximum of tokens.
    MaxTokens,
    /// The context is full.
    ContextFull,
}

impl From<refrain::FinishReason> for FinishReason {
    fn from(finish: refrain::FinishReason) -> Self {
        match finish {
            refrain::FinishReason::Stop => Self::Stop,
            refrain::FinishReason::MaxTokens => Self::MaxTokens,
            refrain::FinishReason::ContextFull => Self::ContextFull,
            // (A cancelled job has no result.)
            _ => Self::EndToken,
        }
    }
}

/// A place in a text, in the engine's [`Units`](crate::Units).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Place {
    /// The first unit.
    pub start: u64,
    /// The unit behind the last one.
    pub end: u64,
}

/// What happens to a text in a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "uniffi", derive(uniffi::Enum))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ChangeKind {
    /// It stays.
    Keep,
    /// It is new.
    Insert,
    /// It is left out.
    Delete,
}

/// A part of the difference between two texts. Changes come in the order of the new text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// What happens.
    pub kind: ChangeKind,
    /// The place in the old text; of an insertion, the empty place before which it stands.
    pub old: Place,
    /// The place in the new text; of a deletion, an empty place.
    pub new: Place,
}

/// The result of a job. Fields that a task does not have are empty.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobResult {
    /// The answer, summary, reply or command, or the whole edited text.
    pub text: String,
    /// The reasoning before it.
    pub reasoning: String,
    /// Why the output ended; `None` of jobs without an output.
    pub finish: Option<FinishReason>,
    /// Whether an output of the job ended at a limit of tokens.
    pub is_cut: bool,
    /// The seed, given or drawn. `None` at temperature 0.
    pub seed: Option<u64>,
    /// Counts and times, of all generations of the job together.
    pub stats: JobStats,
    /// The passages that the model was shown, by the numbers that the text cites.
    pub sources: Vec<Source>,
    /// The parts of the text that are copied from a source.
    pub copied: Vec<CopiedSpan>,
    /// The sentences, with support and citations.
    pub sentences: Vec<Sentence>,
    /// What the model was not shown, though it was found or given.
    pub left_out: Vec<LeftOut>,
    /// The changes of an edit, or of a summary since the last one.
    pub changes: Vec<Change>,
    /// Why an edit should not replace the old text without asking.
    pub doubts: Vec<String>,
    /// The summaries of the parts of a long text.
    pub parts: Vec<String>,
    /// The summary that was made of the same subject before.
    pub previous: Option<String>,
    /// The command for a screen.
    pub command: Option<UiCommand>,
    /// The turns of a conversation that were left out, because it no longer fits the context.
    pub dropped: Vec<Turn>,
    /// What an update of notes has done.
    pub update: Option<UpdateReport>,
    /// Prompt tokens that a prefetch has kept.
    pub kept_tokens: Option<u64>,
    /// Why the answer was not kept, though it should be.
    pub not_kept: Option<String>,
}

/// Counts and times.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobStats {
    /// Tokens of the prompts.
    pub prompt_tokens: u64,
    /// Those that were computed already.
    pub cached_tokens: u64,
    /// Output tokens.
    pub tokens: u64,
    /// Passes of the model for them.
    pub steps: u64,
    /// Microseconds for the prompts.
    pub prefill_us: f64,
    /// Microseconds for the output.
    pub decode_us: f64,
    /// Microseconds that drafts have saved, about; negative: lost.
    pub saved_us: f64,
}

impl JobStats {
    pub(crate) fn add(&mut self, stats: &refrain::Stats) {
        self.prompt_tokens += stats.prompt_tokens as u64;
        self.cached_tokens += stats.cached_tokens as u64;
        self.tokens += stats.tokens as u64;
        self.steps += stats.steps as u64;
        self.prefill_us += stats.time_us.prefill;
        self.decode_us += stats.time_us.decode();
        self.saved_us += stats.saved_us;
    }
}

/// A passage that the model was shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Source {
    /// The number that the text cites, from 1.
    pub number: u32,
    /// The title; may be empty.
    pub title: String,
    /// The note; `None` for the app's own text.
    pub path: Option<String>,
    /// The id of the document, if it has no file.
    pub document: Option<String>,
    /// The line or page, such as `line 12`.
    pub locator: Option<String>,
    /// The passage, as it was shown.
    pub text: String,
    /// Whether a citation names it and holds.
    pub is_cited: bool,
    /// The sentences that it supports, by their index.
    pub supports: Vec<u32>,
}

/// A part of the text that stands in a source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CopiedSpan {
    /// Its place in the text.
    pub place: Place,
    /// The number of the source.
    pub source: u32,
    /// Its place in the source's text.
    pub source_place: Place,
}

/// A sentence of the text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sentence {
    /// Its place in the text, with citations.
    pub place: Place,
    /// The number of the source that supports it.
    pub source: Option<u32>,
    /// Whether it claims something that no source supports: an app marks it.
    pub is_unsupported: bool,
    /// Its citations.
    pub citations: Vec<Citation>,
}

/// A citation in the text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Citation {
    /// Its place in the text.
    pub place: Place,
    /// The number that it names.
    pub number: u32,
    /// Whether the source of this number supports the sentence; `None`: the sentence is too short to be checked.
    pub holds: Option<bool>,
}

/// Text that the model was not shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeftOut {
    /// The title of its passage.
    pub title: String,
    /// The note.
    pub path: Option<String>,
    /// Its tokens, about.
    pub tokens: u64,
}

/// A command for a screen.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UiCommand {
    /// `tap`, `long_press`, `type`, `swipe`, `scroll`, `back`, `key`, `open`, `wait`, `ask`, `done`, `none` or `own`.
    pub kind: String,
    /// The id of the element.
    pub element: Option<String>,
    /// The text to type, or the question.
    pub text: Option<String>,
    /// `up`, `down`, `left` or `right`.
    pub direction: Option<String>,
    /// The key, the app, or the app's own action.
    pub name: Option<String>,
    /// The arguments of the app's own action, as a JSON object.
    pub arguments: Option<String>,
}

/// A turn of a conversation, as an app stores it to continue later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Turn {
    /// The author.
    pub role: Role,
    /// The text.
    pub content: String,
    /// The notes that it shows, so that deletions find it.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = []))]
    pub notes: Vec<String>,
    /// The user's words, if the text has more.
    #[serde(default)]
    #[cfg_attr(feature = "uniffi", uniffi(default = None))]
    pub asked: Option<String>,
    /// Whether the conversation may be kept with it. Default: yes.
    #[serde(default = "yes")]
    #[cfg_attr(feature = "uniffi", uniffi(default = true))]
    pub keep: bool,
}

fn yes() -> bool {
    true
}

/// What an update of notes, or forgetting, has done.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UpdateReport {
    /// Files that are new in the index.
    pub added: u64,
    /// Files whose contents had changed.
    pub changed: u64,
    /// Files that were the same.
    pub unchanged: u64,
    /// Files whose passages were removed.
    pub removed: u64,
    /// Passages written.
    pub passages: u64,
    /// Files and folders that were skipped and should not be, with the reason.
    pub skipped: Vec<Skipped>,
    /// Whether the job was cancelled before all files were read. The next update goes on.
    pub is_incomplete: bool,
}

/// A file or folder that was skipped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Skipped {
    /// The file or folder.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// Who receives the events of a job in batches.
///
/// It is called on a thread of the library, one call at a time, and never again after the batch with the last event. Within a call,
/// every method of the library but `cancel` is the error [`Reentrant`](crate::ErrorKind::Reentrant). If it throws, the job is cancelled.
#[cfg_attr(feature = "uniffi", uniffi::export(rust, foreign))]
pub trait EventListener: Send + Sync {
    /// Takes the events since the last call; never none. Returns whether the job goes on: `false` cancels it. Its last event comes in
    /// either case.
    fn on_events(&self, events: Vec<Event>) -> bool;
}
