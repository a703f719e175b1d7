//! The program `refrain-fleet`: shares the answers of a history with other hosts, through a store of objects.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "`terminal` owns the screen")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use refrain_fleet::{Fleet, FleetError, FleetOptions, Transfer};
use refrain_index::{HistoryError, HistoryLog, HistoryOptions};
use refrain_program::args::bytes;
use refrain_program::failure::{Exit, Failure};
use refrain_program::start;
use refrain_program::terminal::{AnswerStream, note, visible};

/// Shares the answers in a folder of a history with other hosts, through a folder or a store of objects. No program that
/// drafts waits for it.
#[derive(Debug, Parser)]
#[command(name = "refrain-fleet", version, arg_required_else_help = true, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Share this host's answers with other hosts: makes its part of a store of objects equal to its history.
    /// Answers that were forgotten here are deleted there. No program that drafts waits for it.
    Publish(PublishArgs),
    /// Copy other hosts' answers from a store of objects, to draft from them. Copies whose answers were deleted are
    /// removed.
    Pull(PullArgs),
    /// Delete a namespace in a store of objects, of every host and every model in the folder. Each host forgets its own
    /// answers up to now when it next publishes or pulls.
    Unpublish(UnpublishArgs),
}

/// A store that hosts share.
#[derive(Debug, Args)]
struct StoreArgs {
    /// A folder that all hosts can reach, or `s3://BUCKET/FOLDER`. The variables AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT and AWS_ALLOW_HTTP set up the latter.
    store: String,
    /// The name of this host. No other host may have it.
    #[arg(long, value_name = "NAME")]
    host: String,
    /// Maximum time, in seconds. What is done by then is kept, and the next call goes on from there.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    budget: u32,
    /// The folder of the history.
    #[arg(long, value_name = "DIR")]
    history: PathBuf,
}

#[derive(Debug, Args)]
struct PublishArgs {
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Args)]
struct PullArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Namespaces to pull, besides those that were pulled before [default: those with answers here]. May be repeated.
    #[arg(long, value_name = "NAME")]
    namespace: Vec<String>,
    /// Maximum size of copies, for each model. Above it, the newest are kept.
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = bytes)]
    cache: u64,
}

#[derive(Debug, Args)]
struct UnpublishArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The namespace. May be repeated.
    #[arg(long, value_name = "NAME", required = true)]
    namespace: Vec<String>,
}

fn main() -> ExitCode {
    start::run(|| match &start::parse::<Cli>(std::env::args_os())?.command {
        Command::Publish(args) => publish(args),
        Command::Pull(args) => pull(args),
        Command::Unpublish(args) => unpublish(args),
    })
}

/// The histories of all models.
fn histories(args: &StoreArgs) -> Result<Vec<HistoryLog>, Failure> {
    let open = |of_model| HistoryLog::open(&args.history, of_model, HistoryOptions::default());
    let keys = HistoryLog::keys(&args.history);
    keys.and_then(|keys| keys.into_iter().map(open).collect()).map_err(|error| match error {
        HistoryError::Key { .. } => Failure::input(error, "encrypted answers are not shared"),
        error => error.into(),
    })
}

/// A part of a model's identity that distinguishes models.
fn short(log: &HistoryLog) -> String {
    format!("{:08x}", (log.key().model >> 96) as u32)
}

fn fleet(args: &StoreArgs, cache_bytes: Option<u64>) -> Result<Fleet, Failure> {
    let mut options = FleetOptions::new(&args.host);
    options.budget = Duration::from_secs(args.budget.into());
    options.cache_bytes = cache_bytes.unwrap_or(options.cache_bytes);
    Fleet::connect(&args.store, std::env::vars_os().filter_map(text), options).map_err(failed)
}

/// A variable whose name and value are text.
fn text((name, value): (OsString, OsString)) -> Option<(String, String)> {
    Some((name.into_string().ok()?, value.into_string().ok()?))
}

fn publish(args: &PublishArgs) -> Result<Exit, Failure> {
    let fleet = fleet(&args.store, None)?;
    let mut is_complete = true;
    for log in histories(&args.store)? {
        is_complete &= told(&log, "published", &fleet.publish(&log))?;
        log.maintain()?;
    }
    Ok(if is_complete { Exit::Done } else { Exit::Failed })
}

fn pull(args: &PullArgs) -> Result<Exit, Failure> {
    let fleet = fleet(&args.store, Some(args.cache))?;
    let mut is_complete = true;
    for log in histories(&args.store)? {
        let here = log.stats().namespaces.into_iter().map(|namespace| namespace.namespace);
        let namespaces = if args.namespace.is_empty() { here.collect() } else { args.namespace.clone() };
        let namespaces: Vec<&str> = namespaces.iter().map(String::as_str).collect();
        is_complete &= told(&log, "pulled", &fleet.pull(&log, &namespaces))?;
        log.maintain()?;
    }
    Ok(if is_complete { Exit::Done } else { Exit::Failed })
}

fn unpublish(args: &UnpublishArgs) -> Result<Exit, Failure> {
    let fleet = fleet(&args.store, None)?;
    let mut out = AnswerStream::stdout();
    for log in histories(&args.store)? {
        for namespace in &args.namespace {
            let n_removed = fleet.delete(log.key(), namespace).map_err(failed)?;
            out.line(&format!("{}  {}: {n_removed} segments deleted", short(&log), visible(namespace)))?;
        }
    }
    Ok(Exit::Done)
}

/// Says what was moved, and notes what was not. Whether everything was moved.
fn told(log: &HistoryLog, verb: &str, done: &Transfer) -> Result<bool, Failure> {
    AnswerStream::stdout().line(&format!(
        "{}  {verb} {} segments, {:.1} MB; {} were there, {} removed",
        short(log),
        done.n_moved,
        done.moved_bytes as f64 / 1e6,
        done.n_kept,
        done.n_removed,
    ))?;
    done.failed.iter().for_each(|failed| note(&visible(&failed.to_string())));
    Ok(done.failed.is_empty())
}

/// The failure of a call to the store.
fn failed(error: FleetError) -> Failure {
    match error {
        FleetError::HostName { .. } => Failure::usage(error, "choose another name with --host"),
        FleetError::History(error) => error.into(),
        _ => Failure::input(error, "name a folder, or s3://BUCKET/FOLDER with the variables of AWS"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
