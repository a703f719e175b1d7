//! The options of the assistant: of the tasks ask, summarize, reply, edit, ui, and of run and chat.

use std::path::PathBuf;

use clap::Args;
use refrain_program::args::ModelArgs;

use super::index::IndexFilterArgs;
use super::sampling::SamplingArgs;
use super::session::SessionArgs;

/// The options of the tasks.
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    /// One JSON object in place of the text.
    ///
    /// It has the result, what the result was made from, what was left out, and the statistics.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) assist: AssistArgs,
}

/// The options of all of them.
#[derive(Debug, Clone, Args)]
pub(crate) struct AssistArgs {
    /// The system turn: instructions before the request.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Where answers and computed prompts are kept; `none` keeps nothing.
    ///
    /// Later answers draft from them and restore the prompts. The default is `refrain/assistant` in the user's data folder. Never changes
    /// the output.
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    /// The question. A text on standard input is answered from, in place of the index.
    pub(crate) question: String,
    /// Answer from these files and folders alone.
    ///
    /// If the index reads all of them, it is compared with them and searched; otherwise they are read for this answer. May be repeated.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["notes", "within"])]
    pub(crate) context: Vec<PathBuf>,
    /// The index of notes.
    ///
    /// The default is `refrain/notes` in the user's data folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) notes: Option<PathBuf>,
    /// Maximum number of passages in the prompt.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = super::at_least_one())]
    pub(crate) passages: usize,
    /// Do not let the answer cite the passages as [1].
    #[arg(long)]
    pub(crate) no_citations: bool,
    #[command(flatten)]
    pub(crate) filter: IndexFilterArgs,
    #[command(flatten)]
    pub(crate) task: TaskArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SummarizeArgs {
    /// Files of text; `-`, or no PATH with piped input, reads standard input. With --notes: files and folders of the index.
    pub(crate) paths: Vec<PathBuf>,
    /// Summarise what the notes of the index say about this.
    #[arg(long, value_name = "TEXT", conflicts_with = "paths")]
    pub(crate) query: Option<String>,
    /// A wish, such as "In two sentences."
    #[arg(long, value_name = "TEXT")]
    pub(crate) request: Option<String>,
    /// The index of notes; =DIR names another folder than the user's.
    #[arg(long, value_name = "DIR", require_equals = true)]
    pub(crate) notes: Option<Option<PathBuf>>,
    /// Show the changes since the last summary of the same files or query.
    #[arg(long, conflicts_with = "json")]
    pub(crate) changes: bool,
    #[command(flatten)]
    pub(crate) filter: IndexFilterArgs,
    #[command(flatten)]
    pub(crate) task: TaskArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReplyArgs {
    /// The message to reply to, as a file; `-`, or no FILE with piped input, reads standard input.
    ///
    /// Mail, chats and documents are read as an index reads them. Of a mailbox, the last message is replied to, and the others are the thread.
    pub(crate) message: Option<PathBuf>,
    /// An earlier message of the thread, newest first. May be repeated.
    #[arg(long, value_name = "FILE")]
    pub(crate) earlier: Vec<PathBuf>,
    /// What the reply says, and how, such as "Accept. In one sentence."
    #[arg(long, value_name = "TEXT")]
    pub(crate) request: Option<String>,
    /// Show passages of the index of notes too; =DIR names another folder.
    #[arg(long, value_name = "DIR", require_equals = true)]
    pub(crate) notes: Option<Option<PathBuf>>,
    /// With --notes: maximum number of passages.
    #[arg(long, value_name = "N", default_value_t = 2, requires = "notes", value_parser = super::at_least_one())]
    pub(crate) passages: usize,
    #[command(flatten)]
    pub(crate) filter: IndexFilterArgs,
    #[command(flatten)]
    pub(crate) task: TaskArgs,
}

#[derive(Debug, Args)]
pub(crate) struct EditArgs {
    /// The text, as a file; `-` reads standard input.
    ///
    /// A text that does not fit the context is edited in windows, one after the other.
    ///
    /// May be left out with piped input: `pbpaste | refrain edit "Fix the typos."`
    pub(crate) file: PathBuf,
    /// What is to be changed.
    pub(crate) instruction: Option<String>,
    /// Change these lines alone, such as 12-20, or the section under this heading.
    ///
    /// The section has the heading and the sections below it. "## Hotel" is a heading of the second level, "# 12" no line.
    #[arg(long, value_name = "LINES|HEADING")]
    pub(crate) within: Option<String>,
    /// Show the changes while they are made, in place of the new text.
    #[arg(long, conflicts_with_all = ["json", "in_place"])]
    pub(crate) changes: bool,
    /// Show the changes, ask, and replace the file by the new text.
    ///
    /// After Ctrl-C, it asks whether the windows of a long text that are done replace theirs. The old text is kept in the store (64 texts at most).
    #[arg(long)]
    pub(crate) in_place: bool,
    /// With --in-place: replace the file without a question.
    #[arg(long, requires = "in_place")]
    pub(crate) yes: bool,
    /// Replace the file also by a text that is doubted.
    ///
    /// One that drops most of the words, or has the instruction or a part of the prompt in it. With --undo: also if the file was changed
    /// since.
    #[arg(long)]
    pub(crate) force: bool,
    /// Bring back the text that the last --in-place has replaced.
    #[arg(long, conflicts_with_all = ["instruction", "in_place", "changes", "json", "within"])]
    pub(crate) undo: bool,
    #[command(flatten)]
    pub(crate) task: TaskArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UiArgs {
    /// The screen, as a file. `-` reads standard input.
    ///
    /// Accessibility XML (UI Automator, Appium, WinAppDriver), the elements of browser-use or AndroidWorld, an ARIA snapshot of
    /// Playwright, the description of an app by XCUITest, or a line per element such as `4 button "Sign in"`. Its ids are kept.
    pub(crate) screen: PathBuf,
    /// What the user wants.
    pub(crate) goal: String,
    /// An earlier screen of the task, as a file or `none`, and the command on it, such as `tap 4 "Sign in"`.
    ///
    /// May be repeated, oldest first.
    #[arg(long, value_names = ["SCREEN", "COMMAND"], num_args = 2)]
    pub(crate) earlier: Vec<String>,
    /// What the agent may do, as JSON in a file.
    ///
    /// An object of `commands`, `keys`, `apps` and `actions`. An action has `name`, `description` and `parameters`, a JSON Schema in
    /// which `"x-element": true` stands for the id of an element.
    #[arg(long, value_name = "FILE")]
    pub(crate) actions: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) task: TaskArgs,
}
