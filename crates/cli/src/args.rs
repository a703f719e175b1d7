//! The command line: options and their help texts. The library that uses an option checks its range.

mod assist;
mod draft;
mod files;
mod forget;
mod grammar;
mod history;
mod index;
mod models;
mod policy;
mod sampling;
mod serve;
mod session;
mod tiers;

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use refrain::{GenerateOptions, Sampling, Task};
use refrain_program::args::ModelArgs;
use refrain_program::start::Color;

pub(crate) use assist::{AskArgs, AssistArgs, EditArgs, ReplyArgs, SummarizeArgs, UiArgs};
pub(crate) use files::{GraphsArgs, InspectArgs, PackArgs, ProfileArgs, ScoreArgs, ScoreInput, WeightsArg};
pub(crate) use forget::{ForgetKeptArgs, PrefixesCommand, PrefixesCommandArgs, PrefixesFolderArgs};
pub(crate) use grammar::GrammarArgs;
pub(crate) use history::{FolderArgs, ForgetArgs, HistoryArgs, HistoryCommand, HistoryCommandArgs};
pub(crate) use index::{
    IndexCommand, IndexCommandArgs, IndexFilterArgs, IndexFolderArgs, IndexForgetArgs, IndexReadArgs,
    IndexSearchArgs, IndexStatusArgs,
};
pub(crate) use models::{ModelCommand, ModelCommandArgs, ModelsListArgs, ModelsRmArgs, PullArgs};
pub(crate) use sampling::SamplingArgs;
pub(crate) use serve::{McpArgs, NotesArgs, ServeArgs};
pub(crate) use session::SessionArgs;

/// Runs language models on this device and drafts from your notes, the conversation and earlier answers. The
/// output is that of plain decoding, bit for bit. On recorded requests, models streamed from flash decode 1.8
/// to 4.9 times as fast with a draft model as without drafts, and models in memory 1.2 to 1.5 times; more if
/// the answer copies text.
#[derive(Debug, Parser)]
#[command(
    name = "refrain",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    disable_help_flag = true
)]
pub(crate) struct Cli {
    /// When to colour the output by draft source.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,
    /// The file with defaults of options [default: REFRAIN_CONFIG, or `refrain/config.toml` in the user's folder of settings].
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "no_config")]
    pub(crate) config: Option<PathBuf>,
    /// Ignore the file with defaults, and the variables REFRAIN_….
    #[arg(long, global = true)]
    pub(crate) no_config: bool,
    /// The folder of pulled models, which `--model OWNER/NAME` and others name [default: `refrain/models` in the user's data folder].
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) models: Option<PathBuf>,
    /// The pre-tokenizer of GGUF files that name none (`tokenizer.ggml.pre`), such as llama-bpe, qwen2 or smollm; `inspect` lists them.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) pre_tokenizer: Option<String>,
    /// Encrypt the index of notes, the stored answers, summaries and computed prompts with the key in this file: 32 bytes, or 64
    /// hexadecimal digits. An index or a store that was begun without a key, or with another one, is refused; computed prompts
    /// (--prefixes) of another key are removed.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Show the options of every day.
    #[allow(dead_code, reason = "clap acts on it")]
    #[arg(long, short, global = true, action = ArgAction::HelpShort)]
    help: Option<bool>,
    /// Show all options, by group and at length.
    #[allow(dead_code, reason = "clap acts on it")]
    #[arg(long, global = true, action = ArgAction::HelpLong)]
    help_all: Option<bool>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The definition of the command line.
pub(crate) fn command_line() -> clap::Command {
    tiers::apply(Cli::command())
}

/// What `--help` of `run` and `chat` leaves out.
const MORE: &str = "\
--help-all adds: links and passages of notes; quantisation and KV cache; stores of answers and
prompts; samplers, penalties and seeds; regular expressions and grammars; the parts and the policy
of drafting; kernels; colours and defaults.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one request.
    #[command(after_help = MORE)]
    Run(Box<RunArgs>),
    /// Hold a conversation of several turns. Later answers draft from earlier ones.
    #[command(after_help = MORE)]
    Chat(Box<ChatArgs>),
    /// Answer a question from your notes, and show where the answer comes from.
    Ask(Box<AskArgs>),
    /// Summarise texts or notes.
    Summarize(Box<SummarizeArgs>),
    /// Write a reply to a message.
    Reply(Box<ReplyArgs>),
    /// Rewrite a text by an instruction. The old text drafts the new one.
    Edit(Box<EditArgs>),
    /// Choose the next command on a screen.
    Ui(Box<UiArgs>),
    /// Serve models and notes to other programs on this device, through the OpenAI API and the Model Context Protocol.
    Serve(Box<ServeArgs>),
    /// Answer another program's questions about your notes, through the Model Context Protocol on standard input and output.
    Mcp(Box<McpArgs>),
    /// Download, list, inspect and prepare models.
    Model(ModelCommandArgs),
    /// Keep notes, mail, chats and calendars in an index on disk, and search them.
    Index(IndexCommandArgs),
    /// Show or delete the answers and computed prompts that `run` and `chat` have stored.
    History(HistoryCommandArgs),
    /// Delete what `ask`, `summarize`, `reply`, `edit` and `ui` have kept of notes or conversations, and the notes' text in the index.
    Forget(ForgetKeptArgs),
    /// Show the defaults of options that the file and the environment set; write completions and manual pages.
    Config(ConfigArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ConfigCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print a script that completes this program's command line.
    Completions(CompletionsArgs),
    /// Write a manual page for each command.
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell that reads the script.
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The folder for the pages (`refrain.1`, `refrain-run.1`, …), such as `~/.local/share/man/man1`. It is created.
    pub(crate) folder: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The request; `-`, or none with piped input, reads standard input.
    pub(crate) prompt: Option<String>,
    /// Read the request from a file.
    ///
    /// `-` is standard input. With a task and a PROMPT, the file is the text to work on.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Continue the prompt as plain text, without the chat template.
    #[arg(long, conflicts_with_all = ["task", "context", "notes", "system"])]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// The task, and the text to work on.
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    /// The task: summarize, answer, ui or reply.
    ///
    /// The default with --context or --notes is `answer`.
    #[arg(long, value_name = "TASK")]
    pub(crate) task: Option<Task>,
    /// Notes to use: .md and .txt files, and folders of them.
    ///
    /// Notes that do not fit the context are left out with a notice. May be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) context: Vec<PathBuf>,
    /// In folders of --context, follow links that lead out of the named files and folders.
    #[arg(long, requires = "context")]
    pub(crate) follow_links: bool,
    /// Notes to answer from: the index of `refrain index`.
    ///
    /// The default without =DIR is `refrain/notes` in the user's data folder.
    #[arg(long, value_name = "DIR", require_equals = true, conflicts_with = "context")]
    pub(crate) notes: Option<Option<PathBuf>>,
    /// Maximum number of passages of the notes in the prompt, for tasks that search them.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least_one())]
    pub(crate) passages: usize,
    /// Instructions before the conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
}

/// The generation options of run and chat.
#[derive(Debug, Args)]
pub(crate) struct CommonArgs {
    /// Statistics after each answer: text, json or off.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = StatsFormat::Text, hide_possible_values = true, hide_default_value = true)]
    pub(crate) stats: StatsFormat,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    #[command(flatten)]
    pub(crate) history: HistoryArgs,
    /// Keep computed prompts and answers in this folder, up to 4 GiB, and restore the longest known beginning of a
    /// prompt instead of computing it [default without =DIR: `refrain/prefixes` in the user's cache folder]. Never
    /// changes the output.
    #[arg(long, value_name = "DIR", require_equals = true, help_heading = "History")]
    pub(crate) prefixes: Option<Option<PathBuf>>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// End the answer before this text; may be repeated.
    #[arg(long, value_name = "TEXT", help_heading = "Sampling")]
    pub(crate) stop: Vec<String>,
    /// Continue after the model's end token.
    #[arg(long, help_heading = "Sampling")]
    pub(crate) ignore_eos: bool,
    #[command(flatten)]
    pub(crate) grammar: GrammarArgs,
}

impl CommonArgs {
    /// The options of an answer, with `defaults` for the missing ones.
    pub(crate) fn generate_options(&self, defaults: Sampling) -> GenerateOptions {
        let options = self.sampling.generate_options(defaults);
        GenerateOptions { stop: self.stop.clone(), ignore_eos: self.ignore_eos, ..options }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatsFormat {
    /// On standard error.
    Text,
    /// As the last line of standard output, one JSON object.
    Json,
    /// None.
    Off,
}

/// A number from 1 on.
fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

#[cfg(test)]
mod tests {
    use refrain::SessionOptions;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command_line().debug_assert();
    }

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let Command::Run(args) = Cli::parse_from(["refrain", "run", "hello"]).command else { unreachable!() };
        let options = args.common.generate_options(Sampling::default());
        let defaults = GenerateOptions::default();
        assert_eq!(options.sampling, defaults.sampling);
        assert_eq!(options.max_tokens, defaults.max_tokens);
        let session = args.common.session.session_options(&SessionOptions::default().namespace);
        assert_eq!(format!("{session:?}"), format!("{:?}", SessionOptions::default()));
    }
}
