//! The command line of `refrain-train`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use refrain_program::start::GlobalArgs;

/// Trains what drafts beside text for `refrain`: predictors, draft models and draft heads, from a model's predictions on your own
/// text. Models have paths.
#[derive(Debug, Parser)]
#[command(name = "refrain-train", version, arg_required_else_help = true, disable_help_subcommand = true)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) globals: GlobalArgs,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Train a predictor that prunes drafts (--pruning): a low-rank map from a hidden state half-way through
    /// the layers to the model's next token.
    Predictor(PredictorArgs),
    /// Distil a small draft model (--draft) from the model's predictions on your text.
    Draft(DraftArgs),
    /// Train a draft head (--draft): one layer that drafts from the model's hidden states, as a head for multi-token prediction or
    /// as an EAGLE-3 head.
    Head(HeadArgs),
}

/// The training text.
#[derive(Debug, Args)]
pub(super) struct TextArgs {
    /// Text files. A `.jsonl` file has rows of `prompt` and `response`; only responses are learnt.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub(super) text: Vec<PathBuf>,
    /// Tokens per passage.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(8..=32_768))]
    pub(super) passage: u32,
    /// Maximum number of positions; the hidden state of each is held in memory. Of a longer text, passages from all its parts are taken.
    #[arg(long, value_name = "N", default_value_t = 40_000)]
    pub(super) positions: usize,
    /// Optimiser steps.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub(super) steps: usize,
    /// Seed of the initial weights and of the order of passages.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Threads of the forward pass [default: the physical performance cores].
    #[arg(long, value_name = "N")]
    pub(super) threads: Option<usize>,
}

#[derive(Debug, Args)]
pub(super) struct PredictorArgs {
    /// The model: a GGUF file, a Hugging Face folder, or a packed file. Float matrices are quantised to q8_0,
    /// as in `refrain run`.
    pub(super) model: PathBuf,
    #[command(flatten)]
    pub(super) text: TextArgs,
    /// The predictor file. An existing predictor is replaced.
    #[arg(long, value_name = "FILE")]
    pub(super) out: PathBuf,
    /// The layer before which drafts are pruned [default: the middle one].
    #[arg(long, value_name = "N")]
    pub(super) layer: Option<usize>,
    /// Rank of the map.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) rank: u32,
    /// Number of frequent tokens that can be shadow candidates.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(super) shadow_pool: u32,
}

#[derive(Debug, Args)]
pub(super) struct DraftArgs {
    /// The target model: a Hugging Face folder or a GGUF file.
    pub(super) target: PathBuf,
    #[command(flatten)]
    pub(super) text: TextArgs,
    /// The draft model: an empty or new folder, or a .gguf file if the target is one.
    #[arg(long, value_name = "DIR|FILE.gguf")]
    pub(super) out: PathBuf,
    /// The training loss.
    #[arg(long, value_enum, default_value_t = LossArg::Kl)]
    pub(super) loss: LossArg,
    /// Number of layers.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(super) layers: usize,
    /// Width of the residual stream, a multiple of 32.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(super) hidden: usize,
    /// Number of query heads, of 32 dimensions each.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(super) heads: usize,
    /// Number of key and value heads; it divides the number of query heads.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(super) kv_heads: usize,
    /// Width of the feed-forward layer, a multiple of 32.
    #[arg(long, value_name = "N", default_value_t = 320)]
    pub(super) ffn: usize,
    /// Passages per optimiser step.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) passages: u32,
}

#[derive(Debug, Args)]
pub(super) struct HeadArgs {
    /// The target model, of the Llama family with tied embeddings; for a head for multi-token prediction, a GGUF file.
    pub(super) target: PathBuf,
    #[command(flatten)]
    pub(super) text: TextArgs,
    /// The head: a file in the layout of llama.cpp (block `nextn`), or an empty or new folder for an EAGLE-3 head.
    #[arg(long, value_name = "FILE.gguf|DIR")]
    pub(super) out: PathBuf,
    /// Its layout: `mtp` reads the model's final hidden states, `eagle3` those before three layers, and has its own output matrix.
    #[arg(long, value_enum, default_value_t = HeadArg::Mtp)]
    pub(super) layout: HeadArg,
    /// With --layout eagle3: tokens that the head drafts, those that the model predicts most often in the text [default: 32000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..))]
    pub(super) vocabulary: Option<u32>,
    /// Passages per optimiser step.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) passages: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum HeadArg {
    /// A head for multi-token prediction.
    Mtp,
    /// An EAGLE-3 head.
    Eagle3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LossArg {
    /// The divergence from the target's distribution.
    Kl,
    /// The cross-entropy of the text's next token.
    Plain,
}
