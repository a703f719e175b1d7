//! The options of a session: what drafts, and how long the text may be.

use clap::{Args, ValueEnum};
use refrain::{Calibration, ReuseConfig, SessionOptions};

use super::draft::DraftArgs;
use super::engine::KvArg;
use super::policy::PolicyArgs;

#[derive(Debug, Args)]
#[command(next_help_heading = "Session")]
pub(crate) struct SessionArgs {
    #[command(flatten)]
    pub(crate) drafts: DraftArgs,
    /// Whether what the model would say after each token of the text drafts too, and how much of its vocabulary is looked at.
    /// Never changes the output.
    #[arg(long, value_enum, default_value_t = CalibrationArg::Auto)]
    pub(crate) calibration: CalibrationArg,
    /// Do not draft again what the model still finds likely of rejected drafts. Never changes the output.
    #[arg(long)]
    pub(crate) no_reuse: bool,
    #[command(flatten)]
    pub(crate) reuse_args: ReuseArgs,
    /// Tokens of prompt and output together [default: what the model was trained for, at most 4096].
    #[arg(long, value_name = "N")]
    pub(crate) ctx: Option<usize>,
    /// Element type of the KV cache.
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    pub(crate) kv: KvArg,
    /// Rows of a verification batch at most. Never changes the output.
    #[arg(long, value_name = "N", conflicts_with = "verify_len")]
    pub(crate) verify_rows: Option<usize>,
    /// Pad every verification batch to this many rows, as a static-shape backend needs. Never changes the output.
    #[arg(long, value_name = "N")]
    pub(crate) verify_len: Option<usize>,
    /// Prompt tokens per forward pass. Never changes the output.
    #[arg(long, value_name = "N")]
    pub(crate) prefill_chunk: Option<usize>,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

impl SessionArgs {
    /// Rows of a verification batch at most.
    pub(crate) fn verify_rows_max(&self) -> usize {
        self.verify_len.or(self.verify_rows).unwrap_or(SessionOptions::default().verify_rows_max)
    }

    /// Prompt tokens of a pass.
    pub(crate) fn prefill_chunk(&self) -> usize {
        self.prefill_chunk.unwrap_or(SessionOptions::default().prefill_chunk)
    }

    pub(crate) fn session_options(&self, namespace: &str) -> SessionOptions {
        let defaults = SessionOptions::default();
        self.drafts.apply(SessionOptions {
            context_len: self.ctx,
            kv_type: self.kv.kv_type(),
            calibration: self.calibration.calibration(),
            reuse: (!self.no_reuse).then(|| self.reuse_args.config()),
            namespace: namespace.to_owned(),
            verify_rows_max: self.verify_rows_max(),
            verify_lens: self.verify_len.into_iter().collect(),
            prefill_chunk: self.prefill_chunk(),
            policy: self.policy.policy(),
            acceptance: self.policy.acceptance(),
            ..defaults
        })
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum CalibrationArg {
    /// In context, and reuse with it, unless the model is so fast that looking costs more than it saves.
    Auto,
    /// It does not.
    Off,
    /// After each token of the answer only, which costs nothing while the prompt is read.
    Output,
    /// The tokens of the prompt and the most frequent ones.
    InContext,
    /// All of it: what the papers do, and many times slower.
    Full,
}

impl CalibrationArg {
    fn calibration(self) -> Calibration {
        match self {
            Self::Auto => Calibration::Auto,
            Self::Off => Calibration::Off,
            Self::Output => Calibration::Output,
            Self::InContext => Calibration::InContext,
            Self::Full => Calibration::Full,
        }
    }
}

/// What is kept of rejected drafts, and for how long. Never changes the output.
#[derive(Debug, Args)]
pub(crate) struct ReuseArgs {
    /// Probability that the model must give each token of a rejected draft to draft it again.
    #[arg(long, value_name = "P", default_value_t = ReuseConfig::default().threshold)]
    pub(crate) reuse_threshold: f32,
    /// Steps in which it may be drafted again.
    #[arg(long, value_name = "N", default_value_t = ReuseConfig::default().lifetime)]
    pub(crate) reuse_steps: u32,
    /// Tokens kept at most.
    #[arg(long, value_name = "N", default_value_t = ReuseConfig::default().tokens_max)]
    pub(crate) reuse_tokens: u32,
}

impl ReuseArgs {
    pub(crate) fn config(&self) -> ReuseConfig {
        ReuseConfig {
            threshold: self.reuse_threshold,
            lifetime: self.reuse_steps,
            tokens_max: self.reuse_tokens,
        }
    }
}
