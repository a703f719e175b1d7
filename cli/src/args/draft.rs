//! The options that say what drafts.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use refrain::{Drafting, PruningConfig, SessionOptions};
use refrain_bench::Strategy;

use crate::failure::Failure;

#[derive(Debug, Args)]
#[command(next_help_heading = "Session")]
pub(crate) struct DraftArgs {
    /// What drafts besides the text: `auto` (nothing, and drafts wherever it pays), `off` (plain decoding), or the path of a
    /// smaller model with the same vocabulary, which drafts too where that pays; `fixture` is the one for the model inside this
    /// program. Never changes the output.
    #[arg(long, value_name = "auto|off|fixture|PATH", default_value = "auto", value_parser = parse_draft)]
    pub(crate) draft: DraftArg,
    /// What drafts instead: retrieval or draft-model (one half of refrain), plain, or a published rule to compare with: pld, sam,
    /// sam-recycle, sam-only, suffix, recycle, and with a draft model chain:N, specinfer, opt-tree, edgellm. Never changes the
    /// output.
    #[arg(long, value_name = "NAME", default_value_t = Strategy::Refrain, value_parser = parse_strategy)]
    pub(crate) strategy: Strategy,
    /// Prune drafts half-way through the model by what this predictor says of them: a file of `refrain train predictor`, or
    /// `fixture` for the model inside this program. Never changes the output.
    #[arg(long, value_name = "fixture|PATH")]
    pub(crate) pruning: Option<PruningArg>,
    /// With --pruning: drafts that have at least this chance go on.
    #[arg(long, value_name = "P", default_value_t = PruningConfig::default().threshold, requires = "pruning")]
    pub(crate) pruning_threshold: f32,
}

/// A predictor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PruningArg {
    /// The one inside this program.
    Fixture,
    /// A predictor file.
    Path(PathBuf),
}

impl FromStr for PruningArg {
    type Err = Infallible;

    fn from_str(name: &str) -> Result<Self, Infallible> {
        Ok(if name == "fixture" { Self::Fixture } else { Self::Path(name.into()) })
    }
}

/// What `--draft` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DraftArg {
    /// The text.
    Auto,
    /// Nothing.
    Off,
    /// The text and a model.
    Model(DraftModelArg),
}

/// A draft model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DraftModelArg {
    /// The one inside this program.
    Fixture,
    /// A checkpoint.
    Path(PathBuf),
}

impl FromStr for DraftModelArg {
    type Err = Infallible;

    fn from_str(name: &str) -> Result<Self, Infallible> {
        Ok(if name == "fixture" { Self::Fixture } else { Self::Path(name.into()) })
    }
}

fn parse_draft(name: &str) -> Result<DraftArg, Infallible> {
    match name {
        "auto" => Ok(DraftArg::Auto),
        "off" => Ok(DraftArg::Off),
        _ => name.parse().map(DraftArg::Model),
    }
}

/// The controls know the response in advance, which only a replay can.
fn parse_strategy(name: &str) -> Result<Strategy, String> {
    match name.parse() {
        Ok(Strategy::AlwaysRight | Strategy::AlwaysWrong) => Err(format!("`{name}` is for `refrain bench`")),
        Ok(strategy) => Ok(strategy),
        Err(unknown) => Err(unknown.to_string()),
    }
}

impl DraftArgs {
    /// The draft model asked for, if there is one.
    ///
    /// # Errors
    /// The two options contradict each other.
    pub(crate) fn model(&self) -> Result<Option<&DraftModelArg>, Failure> {
        let strategy = self.strategy;
        match &self.draft {
            DraftArg::Model(model) => Ok(Some(model)),
            DraftArg::Off if strategy != Strategy::Refrain && strategy != Strategy::Plain => {
                Err(Failure::usage(format!("--draft off leaves nothing to {strategy}"), "choose one of them"))
            }
            _ if strategy.needs_draft_model() => Err(needs_draft_model(strategy)),
            _ => Ok(None),
        }
    }

    /// `options` with what drafts.
    pub(super) fn apply(&self, options: SessionOptions) -> SessionOptions {
        let drafting = match (&self.draft, self.strategy) {
            (DraftArg::Off, _) => Drafting::Off,
            (_, strategy) => strategy.drafting(),
        };
        let pruning = PruningConfig { threshold: self.pruning_threshold, ..PruningConfig::default() };
        SessionOptions {
            drafting,
            draft_model: self.strategy != Strategy::Retrieval,
            pruning: Some(pruning),
            ..options
        }
    }
}

/// The failure of a strategy without its draft model.
pub(crate) fn needs_draft_model(strategy: Strategy) -> Failure {
    Failure::usage(format!("{strategy} drafts with a model"), "name one with --draft")
}
