//! The command line. What an option means stands here; its range is checked by the library that uses it.

mod bench;
mod draft;
mod engine;
mod files;
mod history;
mod policy;
mod sampling;
mod session;
mod streaming;
mod train;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use refrain::{Checkpoint, EngineOptions, ModelConfig, Task};

use crate::load::draft_model_options;

pub(crate) use bench::{
    AblateArgs, BenchArgs, BenchCommand, BenchGraphsArgs, BenchPressureArgs, BenchPruningArgs,
    BenchStreamArgs, HalfArg, ReplayArgs, RowsArgs, TuneArgs,
};
pub(crate) use draft::{DraftModelArg, PruningArg, needs_draft_model};
pub(crate) use engine::{ComputeArgs, ModelArgs};
pub(crate) use files::{GraphsArgs, InspectArgs, PackArgs, ProfileArgs, ScoreArgs, ScoreInput, WeightsArg};
pub(crate) use history::{FolderArgs, ForgetArgs, HistoryArgs, HistoryCommand, HistoryCommandArgs};
pub(crate) use sampling::SamplingArgs;
pub(crate) use session::SessionArgs;
pub(crate) use train::TrainArgs;
#[cfg(feature = "train")]
pub(crate) use train::{LossArg, TextArgs, TrainCommand, TrainDraftArgs, TrainPredictorArgs};

/// Generates text on this device from your own notes, by drafting from them: several times faster, bit for bit the same.
#[derive(Debug, Parser)]
#[command(name = "refrain", version, arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// When to colour the output.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one request and end.
    Run(Box<RunArgs>),
    /// Talk over several turns; earlier answers draft later ones.
    Chat(Box<ChatArgs>),
    /// Show what a model file or folder holds, and what of it cannot be used.
    Inspect(InspectArgs),
    /// How likely a model finds a text: log-probability per token, and perplexity.
    Score(ScoreArgs),
    /// Measure what verification batches cost on this machine, and keep it beside the model.
    Profile(ProfileArgs),
    /// Pack a model into a file that loads by mapping: at once, whatever its size.
    Pack(PackArgs),
    /// Show or forget the answers that are kept to draft later ones.
    History(HistoryCommandArgs),
    /// Cut a model into static graphs, for backends with fixed batch lengths and little memory.
    Graphs(GraphsArgs),
    /// Measure drafting on recorded text.
    Bench(BenchArgs),
    /// Train what helps a model, on your own text: a predictor that prunes drafts, or a small model that drafts.
    Train(TrainArgs),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    Always,
    Never,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The request. `-`, or nothing where input is piped: read from standard input.
    pub(crate) prompt: Option<String>,
    /// Read the request from a file (`-`: standard input). With a task and a PROMPT: text to work on, as --context is.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Give the prompt to the model as it is, without its chat template.
    #[arg(long, conflicts_with_all = ["task", "context", "system"])]
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

/// What is asked for, and of what.
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    /// What to do: summarize, answer, ui or reply. With --context alone: answer.
    #[arg(long, value_name = "TASK")]
    pub(crate) task: Option<Task>,
    /// Notes to work from: .md and .txt files, and folders of them. May be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) context: Vec<PathBuf>,
    /// Passages of the notes that the prompt may show.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) passages: usize,
    /// Instructions that stand before the conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
}

/// How text is generated: shared by run and chat.
#[derive(Debug, Args)]
pub(crate) struct CommonArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
    #[command(flatten)]
    pub(crate) history: HistoryArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Statistics after an answer: `text` on standard error, `json` as the last line of standard output.
    #[arg(long, value_enum, default_value_t = StatsFormat::Text)]
    pub(crate) stats: StatsFormat,
}

impl CommonArgs {
    /// The options of the engine for a model of this configuration: a memory budget leaves room for the session, and for a draft model.
    pub(crate) fn engine_options(&self, config: &ModelConfig, draft: Option<&Checkpoint>) -> EngineOptions {
        let mut options = self.model.engine_options();
        if let Some(streaming) = &mut options.streaming {
            let session = self.session.session_options("");
            let draft_bytes = |draft: &Checkpoint| {
                let rule_bytes = self.session.drafts.strategy.rule_bytes(draft.config(), &session);
                draft_model_options(&self.model.compute)
                    .memory_bytes(draft, &session)
                    .saturating_add(rule_bytes)
            };
            streaming.reserved_bytes =
                session.memory_bytes(config).saturating_add(draft.map_or(0, draft_bytes));
        }
        options
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatsFormat {
    Text,
    Json,
    Off,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use refrain::{GenerateOptions, SessionOptions};

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let Command::Run(args) = Cli::parse_from(["refrain", "run", "hello"]).command else { unreachable!() };
        let (options, defaults) = (args.common.sampling.generate_options(), GenerateOptions::default());
        assert_eq!(options.sampling, defaults.sampling);
        assert_eq!(options.max_tokens, defaults.max_tokens);
        let session = args.common.session.session_options(&SessionOptions::default().namespace);
        assert_eq!(format!("{session:?}"), format!("{:?}", SessionOptions::default()));
    }
}
