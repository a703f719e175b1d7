//! The options that choose the draft sources.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use refrain::drafting::PruningConfig;
use refrain::{Drafting, SessionOptions};
use refrain_bench::Strategy;

use crate::failure::Failure;

#[derive(Debug, Args)]
#[command(next_help_heading = "Session")]
pub(crate) struct DraftArgs {
    /// Drafting: `auto` (from text, whenever it saves time), `off` (plain decoding), or the path of an
    /// additional draft model with the same vocabulary, or of an EAGLE-3 head for the model; `fixture` is the draft model for the model inside
    /// this program. `mtp` is the head for multi-token prediction in the model's own file, and `mtp:PATH` that in another
    /// file. `self:PATH` drafts with the first layers of a streamed model itself, those before the layer of the predictor at PATH, while
    /// the others are read; `self` is the predictor inside this program. Never changes the output.
    #[arg(long, value_name = "auto|off|fixture|mtp|mtp:PATH|self|self:PATH|PATH", default_value = "auto")]
    pub(crate) draft: DraftArg,
    /// The drafting strategy: refrain; one half of it (retrieval, draft-model); plain; or a published rule
    /// for comparison: pld, pld-2, sam, sam-recycle, sam-only, sam-length, suffix, recycle, and with a draft
    /// model chain:N, specinfer, opt-tree, opt-tree-0.05, eagle-2, edgellm, best-first. Never changes the output.
    #[arg(long, value_name = "NAME", default_value_t = Strategy::Refrain, value_parser = parse_strategy)]
    pub(crate) strategy: Strategy,
    /// Prune verification batches half-way through the layers by this predictor: a file written by `refrain
    /// train predictor`, or `fixture` for the model inside this program. Never changes the output.
    #[arg(long, value_name = "fixture|PATH")]
    pub(crate) pruning: Option<PruningArg>,
    /// With --pruning: minimum predicted probability of a kept node.
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

impl From<OsString> for PruningArg {
    fn from(name: OsString) -> Self {
        if name == "fixture" { Self::Fixture } else { Self::Path(name.into()) }
    }
}

/// The value of `--draft`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DraftArg {
    /// Drafting from text.
    Auto,
    /// Plain decoding.
    Off,
    /// Drafting from text and with a model.
    Model(DraftModelArg),
}

/// A draft model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DraftModelArg {
    /// The one inside this program.
    Fixture,
    /// A checkpoint.
    Path(PathBuf),
    /// The head for multi-token prediction in a file, or in that of the model.
    Mtp(Option<PathBuf>),
    /// The first layers of the streamed model itself, with this predictor as an exit behind them.
    OwnLayers(PruningArg),
}

impl From<OsString> for DraftModelArg {
    fn from(name: OsString) -> Self {
        match name.to_str() {
            Some("fixture") => Self::Fixture,
            Some("mtp") => Self::Mtp(None),
            Some(text) if text.starts_with("mtp:") => Self::Mtp(Some(text["mtp:".len()..].into())),
            Some("self") => Self::OwnLayers(PruningArg::Fixture),
            Some(text) if text.starts_with("self:") => {
                Self::OwnLayers(OsString::from(&text["self:".len()..]).into())
            }
            _ => Self::Path(name.into()),
        }
    }
}

impl From<OsString> for DraftArg {
    fn from(name: OsString) -> Self {
        match name.to_str() {
            Some("auto") => Self::Auto,
            Some("off") => Self::Off,
            _ => Self::Model(name.into()),
        }
    }
}

/// Rejects the controls, which need the response in advance, and rules that need a trace; only a replay has them.
fn parse_strategy(name: &str) -> Result<Strategy, String> {
    match name.parse::<Strategy>() {
        Ok(strategy) if strategy.is_control() || strategy.needs_trace() => {
            Err(format!("`{name}` is for `refrain bench`"))
        }
        Ok(strategy) => Ok(strategy),
        Err(unknown) => Err(unknown.to_string()),
    }
}

impl DraftArgs {
    /// The requested draft model, if any.
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

    /// `options` with the requested draft sources.
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
