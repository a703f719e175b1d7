//! The options that choose the draft sources.

use std::ffi::OsString;

use clap::Args;
use refrain::Drafting;
use refrain_program::args::{DraftModelArg, PruningArg};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Session")]
pub(crate) struct DraftArgs {
    /// Drafting: `auto`, `off` (plain decoding), or a draft model.
    ///
    /// `auto` drafts from text, whenever it saves time. A draft model is a model with the same vocabulary, or an EAGLE-3 head for the model; `fixture` is the draft model for the model inside
    /// this program. `mtp` is the head for multi-token prediction in the model's own file, and `mtp:PATH` that in another
    /// file. `self:PATH` drafts with the first layers of a streamed model itself, those before the layer of the predictor at PATH, while
    /// the others are read; `self` is the predictor inside this program. Never changes the output.
    #[arg(long, value_name = "HOW", default_value = "auto", hide_default_value = true)]
    pub(crate) draft: DraftArg,
    /// Prune verification batches half-way through the layers by this predictor.
    ///
    /// A file written by `refrain-train predictor`, or `fixture` for the model inside this program. Never changes the output.
    #[arg(long, value_name = "fixture|PATH")]
    pub(crate) pruning: Option<PruningArg>,
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

impl From<OsString> for DraftArg {
    fn from(name: OsString) -> Self {
        match name.to_str() {
            Some("auto") => Self::Auto,
            Some("off") => Self::Off,
            _ => Self::Model(name.into()),
        }
    }
}

impl DraftArgs {
    /// The requested draft model, if any.
    pub(crate) fn model(&self) -> Option<&DraftModelArg> {
        match &self.draft {
            DraftArg::Model(model) => Some(model),
            DraftArg::Auto | DraftArg::Off => None,
        }
    }

    /// Whether anything drafts.
    pub(super) fn drafting(&self) -> Drafting {
        match &self.draft {
            DraftArg::Off => Drafting::Off,
            DraftArg::Auto | DraftArg::Model(_) => Drafting::Auto,
        }
    }
}
