//! The command line: options and their help texts. The library that uses an option checks its range.

mod assist;
mod draft;
mod drafting;
mod files;
mod forget;
mod grammar;
mod index;
mod models;
mod sampling;
mod serve;
mod session;
mod store;
mod tiers;

use std::path::{Path, PathBuf};

use clap::builder::RangedU64ValueParser;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use refrain_program::start::Color;

pub(crate) use assist::{AskArgs, AssistArgs, EditArgs, ReplyArgs, SummarizeArgs, TaskArgs, UiArgs};
pub(crate) use files::{GraphsArgs, InspectArgs, PackArgs, ProfileArgs, ScoreArgs, ScoreInput, WeightsArg};
pub(crate) use forget::ForgetArgs;
pub(crate) use grammar::GrammarArgs;
pub(crate) use index::{
    IndexCommand, IndexCommandArgs, IndexFolderArgs, IndexForgetArgs, IndexPathsArgs, IndexReadArgs,
    IndexSearchArgs, IndexStatusArgs,
};
pub(crate) use models::{
    Attempts, ModelCommand, ModelCommandArgs, ModelPsArgs, ModelSuggestArgs, ModelsListArgs, ModelsRmArgs,
    PullArgs,
};
pub(crate) use sampling::SamplingArgs;
pub(crate) use serve::{Listen, McpArgs, NotesArgs, ServeArgs};
pub(crate) use session::SessionArgs;
pub(crate) use store::StoreArgs;

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
    /// The file with defaults of options; `none` ignores it and the environment.
    ///
    /// The default is that of REFRAIN_CONFIG, or `refrain/config.toml` in the user's folder of settings. `none` ignores the variables
    /// REFRAIN_… too.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The folder of pulled models, which `--model OWNER/NAME` and others name.
    ///
    /// The default is `refrain/models` in the user's data folder.
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) models: Option<PathBuf>,
    /// The pre-tokenizer of GGUF files that name none (`tokenizer.ggml.pre`).
    ///
    /// Such as llama-bpe, qwen2 or smollm; `model inspect` lists them.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) pre_tokenizer: Option<String>,
    /// Encrypt the index and what is kept of answers with the key in this file.
    ///
    /// 32 bytes, or 64 hexadecimal digits. An index or a store that was begun without a key, or with another one, is refused.
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
--help-all adds: quantisation and KV cache; samplers, penalties and seeds; regular expressions and
grammars; the parts and the policy of drafting; kernels; colours and defaults.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one request in your own words.
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
    /// Serve models and notes to other programs on this device, through the APIs of OpenAI, Ollama and Anthropic, and the Model Context Protocol.
    Serve(Box<ServeArgs>),
    /// Answer another program's questions about your notes, through the Model Context Protocol on standard input and output.
    Mcp(Box<McpArgs>),
    /// Download, list, inspect and prepare models.
    Model(ModelCommandArgs),
    /// Keep notes, documents, mail, chats and calendars in an index on disk, and search them.
    Index(IndexCommandArgs),
    /// Show what the store holds: by kind, by note, and how old it is.
    Store(StoreArgs),
    /// Delete what is kept of notes and conversations: answers, computed prompts, and the notes' text in the index.
    Forget(ForgetArgs),
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
    ///
    /// With a request, a text on standard input is shown before it.
    pub(crate) prompt: Option<String>,
    /// Texts before the request: files that the index reads, and folders
    ///
    /// May be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) context: Vec<PathBuf>,
    /// Continue the prompt as plain text, without the chat template.
    #[arg(long, conflicts_with_all = ["context", "system"])]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) answer: WordsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// Notes to search in each turn: files that the index reads, and folders
    ///
    /// May be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) context: Vec<PathBuf>,
    /// Notes to search in each turn: the index of `refrain index`.
    ///
    /// =DIR names another folder of an index.
    #[arg(long, value_name = "DIR", require_equals = true, conflicts_with = "context")]
    pub(crate) notes: Option<Option<PathBuf>>,
    /// Maximum number of passages of the notes that a turn shows.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least_one())]
    pub(crate) passages: usize,
    #[command(flatten)]
    pub(crate) answer: WordsArgs,
}

/// The options of answers to the user's own words: those of run and chat.
#[derive(Debug, Args)]
pub(crate) struct WordsArgs {
    /// Statistics after each answer: text, json or off.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = StatsFormat::Text, hide_possible_values = true, hide_default_value = true)]
    pub(crate) stats: StatsFormat,
    #[command(flatten)]
    pub(crate) assist: AssistArgs,
    /// End the answer before this text; may be repeated.
    #[arg(long, value_name = "TEXT", help_heading = "Sampling")]
    pub(crate) stop: Vec<String>,
    /// Continue after the model's end token.
    #[arg(long, help_heading = "Sampling")]
    pub(crate) ignore_eos: bool,
    #[command(flatten)]
    pub(crate) grammar: GrammarArgs,
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

/// Whether a folder is `none`: `./none` names one of this name.
pub(crate) fn is_none(folder: &Path) -> bool {
    folder == Path::new("none")
}

/// A number from 1 on.
fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

#[cfg(test)]
mod tests {
    use refrain::{Sampling, SessionOptions};

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command_line().debug_assert();
    }

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let Command::Run(args) = Cli::parse_from(["refrain", "run", "hello"]).command else { unreachable!() };
        let assist = &args.answer.assist;
        assert_eq!(assist.sampling.sampling(Sampling::default()), Sampling::default());
        let session = assist.session.session_options(&SessionOptions::default().namespace);
        assert_eq!(format!("{session:?}"), format!("{:?}", SessionOptions::default()));
    }
}
