//! The options of the history store.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::forget::PrefixesCommandArgs;

/// The history options of run and chat.
#[derive(Debug, Args)]
#[command(next_help_heading = "History")]
pub(crate) struct HistoryArgs {
    /// Store answers in this folder, and draft from the stored answers of the same model [default:
    /// `refrain/history` in the user's data folder]. Never changes the output.
    #[arg(long, value_name = "DIR", conflicts_with = "no_history")]
    pub(crate) history: Option<PathBuf>,
    /// Store no answers, and draft from no stored ones.
    #[arg(long)]
    pub(crate) no_history: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryCommandArgs {
    #[command(subcommand)]
    pub(crate) command: HistoryCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HistoryCommand {
    /// List the stored answers: number, time, tokens, namespace, model.
    List(FolderArgs),
    /// Show the size of the history by model and namespace.
    Stats(FolderArgs),
    /// Delete answers.
    Forget(ForgetArgs),
    /// Remove damaged parts, and nothing else. Damaged files do no harm: they are left out and set aside.
    Repair(FolderArgs),
    /// Show or delete the computed prompts that `run` and `chat` keep with --prefixes.
    Prefixes(PrefixesCommandArgs),
}

#[derive(Debug, Args)]
pub(crate) struct FolderArgs {
    /// The folder [default: `refrain/history` in the user's data folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) history: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    /// Numbers of the answers, from `list`.
    #[arg(required_unless_present_any = ["namespace", "all"])]
    pub(crate) records: Vec<u64>,
    /// All answers of a namespace (`run`, `chat`, or a task), of every model. May be repeated.
    #[arg(long, value_name = "NAME", conflicts_with = "records")]
    pub(crate) namespace: Vec<String>,
    /// All answers of every model.
    #[arg(long, conflicts_with_all = ["records", "namespace"])]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
}
