//! The options of `model`.

use std::time::Duration;

use clap::{Args, Subcommand};
use refrain_program::args::number;

use super::files::{GraphsArgs, InspectArgs, PackArgs, ProfileArgs, ScoreArgs};

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// OWNER/NAME, OWNER/NAME:FILE or OWNER/NAME@REVISION:FILE.
    ///
    /// FILE is a file of the repository, a quantisation such as Q4_0, a pattern with `*` and `?`, or `safetensors`; it may be omitted if
    /// there is one GGUF file, or none. The variable HF_ENDPOINT names another hub than the public one.
    #[arg(value_name = "OWNER/NAME[:FILE]")]
    pub(crate) name: String,
    /// Take the token from the keyring: the entry with the service `refrain`.
    ///
    /// Through `secret-tool`, or on macOS `security`. Without it the token is that of HF_TOKEN, or of the file that the hub's own tools
    /// keep.
    #[arg(long)]
    pub(crate) keyring: bool,
    /// Attempts in vain before the download ends, and the seconds that end one.
    ///
    /// An attempt is in vain if it brings nothing. One with less than 4 kB in these seconds ends.
    #[arg(long, value_name = "N[,SECONDS]", default_value = "6,30", value_parser = attempts)]
    pub(crate) attempts: Attempts,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How often a download is tried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempts {
    /// Attempts that bring nothing, 1..=100.
    pub(crate) n: usize,
    /// The time that ends an attempt, 1..=3600 s.
    pub(crate) stall_time: Duration,
}

fn attempts(text: &str) -> Result<Attempts, String> {
    let (n, seconds) = text.split_once(',').unwrap_or((text, "30"));
    match (number(n)?, number(seconds)?) {
        (n @ 1..=100, seconds @ 1..=3600) => Ok(Attempts { n, stall_time: Duration::from_secs(seconds) }),
        _ => Err("give 1 to 100 attempts of 1 to 3600 seconds".to_owned()),
    }
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
    /// List models with their sizes, what each is for, and about how fast it would write here.
    Suggest(ModelSuggestArgs),
    /// List the pulled models with their sizes, unfinished downloads, and the models of Ollama, LM Studio and the hub's own tools.
    List(ModelsListArgs),
    /// Show the models that servers on this device have in memory, and until when.
    Ps(ModelPsArgs),
    /// Remove pulled models. Files that were not pulled are left.
    Rm(ModelsRmArgs),
    /// Show the contents of a model file or folder, and the parts that are not supported.
    Inspect(InspectArgs),
    /// Pack a model into a file that is read without conversion, mapped or streamed.
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
pub(crate) struct ModelSuggestArgs {
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ModelPsArgs {
    /// HOST:PORT or unix:PATH of a server.
    ///
    /// The default is where `refrain serve` and Ollama listen. The variable REFRAIN_TOKEN has the token of a server that wants one.
    #[arg(value_name = "ADDRESS")]
    pub(crate) addresses: Vec<String>,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsRmArgs {
    /// OWNER/NAME for everything of this repository, OWNER/NAME:FILE for one model.
    #[arg(value_name = "OWNER/NAME[:FILE]", required = true)]
    pub(crate) names: Vec<String>,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}
