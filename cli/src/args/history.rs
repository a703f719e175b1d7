//! The options of the history that lasts.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Whether answers are kept, and where: shared by run and chat.
#[derive(Debug, Args)]
#[command(next_help_heading = "History")]
pub(crate) struct HistoryArgs {
    /// Keep answers in this folder, and draft from those of earlier runs of the model [default: `refrain/history` in the
    /// user's data folder]. Never changes the output.
    #[arg(long, value_name = "DIR", conflicts_with = "no_history")]
    pub(crate) history: Option<PathBuf>,
    /// Keep no answers on the disk, and draft from none of earlier runs.
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
    /// Show the answers that are kept: number, time, tokens, namespace, model.
    List(FolderArgs),
    /// Show how much is kept, by model and namespace.
    Stats(FolderArgs),
    /// Remove answers from the disk.
    Forget(ForgetArgs),
    /// Remove what is damaged, and nothing else. Damaged files do no harm: they are left out and set aside.
    Repair(FolderArgs),
}

#[derive(Debug, Args)]
pub(crate) struct FolderArgs {
    /// The folder [default: `refrain/history` in the user's data folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) history: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    /// Numbers of answers, as `list` shows them.
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
