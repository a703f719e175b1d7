//! Draft models and predictors by name, and the reuse of rejected drafts.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use refrain::drafting::ReuseConfig;

/// A predictor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PruningArg {
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

/// A draft model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DraftModelArg {
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

/// The reuse of rejected drafts. Never changes the output.
#[derive(Debug, Args)]
pub struct ReuseArgs {
    /// Reuse: minimum probability of each token of a rejected draft.
    #[arg(long, value_name = "P", default_value_t = ReuseConfig::default().threshold)]
    pub reuse_threshold: f32,
    /// Reuse: number of steps for which a rejected draft is kept.
    #[arg(long, value_name = "N", default_value_t = ReuseConfig::default().lifetime)]
    pub reuse_steps: u32,
    /// Reuse: maximum number of kept tokens.
    #[arg(long, value_name = "N", default_value_t = ReuseConfig::default().tokens_max)]
    pub reuse_tokens: u32,
}

impl ReuseArgs {
    /// The options of a session.
    pub fn config(&self) -> ReuseConfig {
        ReuseConfig {
            threshold: self.reuse_threshold,
            lifetime: self.reuse_steps,
            tokens_max: self.reuse_tokens,
        }
    }
}
