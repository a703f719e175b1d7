//! The options of `model`.

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};

use super::files::{GraphsArgs, InspectArgs, PackArgs, ProfileArgs, ScoreArgs};

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// OWNER/NAME, OWNER/NAME:FILE or OWNER/NAME@REVISION:FILE. FILE is a file of the repository, a quantisation such as Q4_0, a pattern
    /// with `*` and `?`, or `safetensors`; it may be omitted if there is one GGUF file, or none.
    #[arg(value_name = "OWNER/NAME[:FILE]")]
    pub(crate) name: String,
    /// The hub's address [default: the variable HF_ENDPOINT, or the public hub].
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Take the token from the keyring: the entry with the service `refrain`, through `secret-tool` or on macOS `security`. Without it the
    /// token is that of HF_TOKEN, or of the file that the hub's own tools keep.
    #[arg(long)]
    pub(crate) keyring: bool,
    /// Attempts that bring nothing before the download is given up.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = RangedU64ValueParser::<usize>::new().range(1..=100))]
    pub(crate) attempts: usize,
    /// Seconds without an answer, or with less than 4 kB, that end an attempt.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = RangedU64ValueParser::<u64>::new().range(1..=3600))]
    pub(crate) stall_time: u64,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ModelCommandArgs {
    #[command(subcommand)]
    pub(crate) command: ModelCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Download a model from a hub, verify it, and keep it under its name.
    Pull(PullArgs),
    /// List the pulled models with their sizes, and unfinished downloads.
    List(ModelsListArgs),
    /// Remove pulled models. Files that were not pulled are left.
    Rm(ModelsRmArgs),
    /// Show the contents of a model file or folder, and the parts that are not supported.
    Inspect(InspectArgs),
    /// Pack a model into a file that is loaded by mapping, in milliseconds at any size.
    Pack(PackArgs),
    /// Measure the cost of verification batches on this machine, and store it beside the model.
    Profile(ProfileArgs),
    /// Compute the log-probability of each token of a text, and the perplexity.
    Score(ScoreArgs),
    /// Split a model into static graphs, for backends with fixed batch lengths and little memory.
    Graphs(GraphsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ModelsListArgs {
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsRmArgs {
    /// OWNER/NAME removes everything that was pulled from this repository, OWNER/NAME:FILE one model.
    #[arg(value_name = "OWNER/NAME[:FILE]", required = true)]
    pub(crate) names: Vec<String>,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}
