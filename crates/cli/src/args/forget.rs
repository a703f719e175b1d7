//! The options of `forget` and `prefixes`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::index::date;

#[derive(Debug, Args)]
pub(crate) struct ForgetKeptArgs {
    /// Notes: files, or folders with everything below them. The files stay. Their text goes from the index of notes too.
    #[arg(value_name = "NOTE", required_unless_present_any = ["conversation", "before", "all"])]
    pub(crate) paths: Vec<PathBuf>,
    /// A conversation, by the number that an app has given it. May be repeated.
    #[arg(long, value_name = "ID")]
    pub(crate) conversation: Vec<u64>,
    /// Everything that was made before this date (`2024-05-01`, `2024-05-01T12:30`; UTC), or whose date is in the future, whatever
    /// it was made from. Computed prompts go if they were not used since. Notes stay in the index.
    #[arg(long, value_name = "DATE", value_parser = date, conflicts_with_all = ["paths", "conversation"])]
    pub(crate) before: Option<i64>,
    /// Everything, and all notes of the index. With --store and without --notes, the index is left as it is.
    #[arg(long, conflicts_with_all = ["paths", "conversation", "before"])]
    pub(crate) all: bool,
    /// One JSON object with the numbers of deleted answers, summaries and blocks of computed prompts.
    #[arg(long)]
    pub(crate) json: bool,
    /// The folder of kept answers and computed prompts [default: `refrain/assistant` in the user's data folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// The index of notes [default: `refrain/notes` in the user's data folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) notes: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PrefixesCommandArgs {
    #[command(subcommand)]
    pub(crate) command: PrefixesCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PrefixesCommand {
    /// Show the size of the kept prompts, and files that are not used.
    Status(PrefixesFolderArgs),
    /// Delete the prompts that show files, with everything behind them.
    Forget(PrefixesForgetArgs),
    /// Delete all kept prompts.
    Clear(PrefixesFolderArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PrefixesFolderArgs {
    /// The folder [default: `refrain/prefixes` in the user's cache folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) prefixes: Option<PathBuf>,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PrefixesForgetArgs {
    /// Files of --context, --notes or --file, or folders with everything below them.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) folder: PrefixesFolderArgs,
}
