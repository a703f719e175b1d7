//! The options of a session: draft sources, context, batches.

use clap::{Args, ValueEnum};
use refrain::SessionOptions;
use refrain::drafting::{Calibration, EchoConfig};
use refrain::state::WindowCache;
use refrain_program::args::{KvArg, ReuseArgs};

use super::draft::DraftArgs;
use super::policy::PolicyArgs;

#[derive(Debug, Args)]
#[command(next_help_heading = "Session")]
pub(crate) struct SessionArgs {
    #[command(flatten)]
    pub(crate) drafts: DraftArgs,
    /// Calibration: draft also from the target's own predictions after the tokens of prompt and output. Never changes the
    /// output.
    #[arg(long, value_enum, default_value_t = CalibrationArg::Auto)]
    pub(crate) calibration: CalibrationArg,
    #[command(flatten)]
    pub(crate) echo_args: EchoArgs,
    /// Calibration and echo: do not reuse rejected draft tokens that the predictions find likely. Never changes the output.
    #[arg(long)]
    pub(crate) no_reuse: bool,
    #[command(flatten)]
    pub(crate) reuse_args: ReuseArgs,
    /// Context: tokens of prompt and output together.
    ///
    /// The default is the context that the model was trained for, as far as memory allows.
    #[arg(long, value_name = "N")]
    pub(crate) ctx: Option<usize>,
    /// Element type of the KV cache.
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    pub(crate) kv: KvArg,
    /// Which keys and values layers with a window keep. Never changes the output.
    #[arg(long, value_enum, default_value_t = WindowCacheArg::Full)]
    pub(crate) window_cache: WindowCacheArg,
    /// Maximum rows of a verification batch. Never changes the output.
    #[arg(long, value_name = "N", conflicts_with = "verify_len")]
    pub(crate) verify_rows: Option<usize>,
    /// Pad every verification batch to N rows, as backends with static shapes require. Never changes the output.
    #[arg(long, value_name = "N")]
    pub(crate) verify_len: Option<usize>,
    /// Prompt tokens per prefill pass. Never changes the output.
    #[arg(long, value_name = "N")]
    pub(crate) prefill_chunk: Option<usize>,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

impl SessionArgs {
    /// Maximum rows of a verification batch.
    pub(crate) fn verify_rows_max(&self) -> usize {
        self.verify_len.or(self.verify_rows).unwrap_or(SessionOptions::default().verify_rows_max)
    }

    /// Prompt tokens per prefill pass.
    pub(crate) fn prefill_chunk(&self) -> usize {
        self.prefill_chunk.unwrap_or(SessionOptions::default().prefill_chunk)
    }

    pub(crate) fn session_options(&self, namespace: &str) -> SessionOptions {
        let defaults = SessionOptions::default();
        self.drafts.apply(SessionOptions {
            context_len: self.ctx,
            kv_type: self.kv.kv_type(),
            window_cache: self.window_cache.window_cache(),
            calibration: self.calibration.calibration(),
            echo: self.echo_args.config(),
            reuse: (!self.no_reuse).then(|| self.reuse_args.config()),
            namespace: namespace.to_owned(),
            verify_rows_max: self.verify_rows_max(),
            verify_lens: self.verify_len.into_iter().collect(),
            prefill_chunk: self.prefill_chunk(),
            policy: self.policy.policy(),
            ..defaults
        })
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum CalibrationArg {
    /// By the time of a step: `--echo` from 10 ms on, `in-context` from 0.5 ms on, otherwise `off`.
    Auto,
    /// None, unless --echo.
    Off,
    /// Over the tokens of the context and the most frequent tokens of the vocabulary.
    InContext,
    /// Over the whole vocabulary, as in the papers; many times slower.
    Full,
}

impl CalibrationArg {
    fn calibration(self) -> Calibration {
        match self {
            Self::Auto => Calibration::Auto,
            Self::Off => Calibration::Off,
            Self::InContext => Calibration::InContext,
            Self::Full => Calibration::Full,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum WindowCacheArg {
    /// Those of all tokens.
    Full,
    /// Those of the window and of the newest 768 tokens before it: less memory for long contexts. If more tokens change, as when
    /// a chat goes back by several turns, the whole text is computed again. Prompts are not kept (`--prefixes`, `serve`).
    Bounded,
}

impl WindowCacheArg {
    fn window_cache(self) -> WindowCache {
        match self {
            Self::Full => WindowCache::Full,
            Self::Bounded => WindowCache::Bounded,
        }
    }
}

/// Echo. Never changes the output.
#[derive(Debug, Args)]
pub(crate) struct EchoArgs {
    /// Echo: calibration that also keeps the target's predictions after rejected draft tokens, and those of earlier runs. The
    /// history keeps them. Never changes the output.
    #[arg(long)]
    pub(crate) echo: bool,
    /// Echo: maximum rejected rows read per step.
    #[arg(long, value_name = "N", default_value_t = EchoConfig::default().rejected_rows)]
    pub(crate) echo_rows: u32,
    /// Echo: maximum kept predictions.
    #[arg(long, value_name = "N", default_value_t = EchoConfig::default().lists_max)]
    pub(crate) echo_lists: u32,
}

impl EchoArgs {
    pub(crate) fn config(&self) -> Option<EchoConfig> {
        let config = EchoConfig { rejected_rows: self.echo_rows, lists_max: self.echo_lists };
        self.echo.then_some(config)
    }
}
