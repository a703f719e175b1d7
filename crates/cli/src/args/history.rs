//! The options of the history store.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The history options of run and chat.
#[derive(Debug, Args)]
#[command(next_help_heading = "History")]
pub(crate) struct HistoryArgs {
    /// Store answers in this folder, and draft from the stored answers of the same model [default:
    /// `refrain/history` in the user's data folder]. Never changes the output.
    #[arg(long, value_name = "DIR", conflicts_with = "no_history")]
    pub(crate) history: Option<PathBuf>,
    /// Do not store answers, and do not draft from stored ones.
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
    /// Share this host's answers with other hosts: makes its part of a store of objects equal to its history.
    /// Answers that were forgotten here are deleted there. No program that drafts waits for it.
    Publish(PublishArgs),
    /// Copy other hosts' answers from a store of objects, to draft from them. Copies whose answers were deleted are
    /// removed.
    Pull(PullHistoryArgs),
    /// Delete a namespace in a store of objects, of every host and every model in the folder. Each host forgets its own
    /// answers up to now when it next publishes or pulls.
    Unpublish(UnpublishArgs),
    /// Remove damaged parts, and nothing else. Damaged files do no harm: they are left out and set aside.
    Repair(FolderArgs),
}

#[derive(Debug, Args)]
pub(crate) struct FolderArgs {
    /// The folder [default: `refrain/history` in the user's data folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) history: Option<PathBuf>,
}

/// A store that hosts share.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// A folder that all hosts can reach, or `s3://BUCKET/FOLDER`. The variables AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT and AWS_ALLOW_HTTP set up the latter.
    pub(crate) store: String,
    /// The name of this host. No other host may have it.
    #[arg(long, value_name = "NAME")]
    pub(crate) host: String,
    /// Maximum time, in seconds. What is done by then is kept, and the next call goes on from there.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) budget: u32,
    #[command(flatten)]
    pub(crate) folder: FolderArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PullHistoryArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Namespaces to pull, besides those that were pulled before [default: those with answers here]. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Vec<String>,
    /// Maximum megabytes of copies, for each model. Above it, the newest are kept.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) cache_mb: u32,
}

#[derive(Debug, Args)]
pub(crate) struct UnpublishArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The namespace. May be repeated.
    #[arg(long, value_name = "NAME", required = true)]
    pub(crate) namespace: Vec<String>,
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
