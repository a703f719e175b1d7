//! The options of `refrain train`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    #[command(subcommand)]
    pub(crate) command: TrainCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TrainCommand {
    /// Train a predictor that prunes drafts (--pruning): a low-rank map from a hidden state half-way through
    /// the layers to the model's next token.
    Predictor(TrainPredictorArgs),
    /// Distil a small draft model (--draft) from the model's predictions on your text.
    Draft(TrainDraftArgs),
    /// Train a draft head (--draft): one layer that drafts from the model's hidden states, as a head for multi-token prediction or
    /// as an EAGLE-3 head.
    Head(TrainHeadArgs),
}

/// The training text.
#[derive(Debug, Args)]
pub(crate) struct TextArgs {
    /// Text files. A `.jsonl` file has rows of `prompt` and `response`; only responses are learnt.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) text: Vec<PathBuf>,
    /// Tokens per passage.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(8..=32_768))]
    pub(crate) passage: u32,
    /// Maximum number of positions; the hidden state of each is held in memory. Of a longer text, passages from all its parts are taken.
    #[arg(long, value_name = "N", default_value_t = 40_000)]
    pub(crate) positions: usize,
    /// Optimiser steps.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub(crate) steps: usize,
    /// Seed of the initial weights and of the order of passages.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Threads of the forward pass [default: the physical performance cores].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct TrainPredictorArgs {
    /// The model: a GGUF file, a Hugging Face folder, or a packed file. Float matrices are quantised to q8_0,
    /// as in `run`.
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) text: TextArgs,
    /// The predictor file. An existing predictor is replaced.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// The layer before which drafts are pruned [default: the middle one].
    #[arg(long, value_name = "N")]
    pub(crate) layer: Option<usize>,
    /// Rank of the map.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) rank: u32,
    /// Number of frequent tokens that can be shadow candidates.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) shadow_pool: u32,
}

#[derive(Debug, Args)]
pub(crate) struct TrainDraftArgs {
    /// The target model: a Hugging Face folder or a GGUF file.
    pub(crate) target: PathBuf,
    #[command(flatten)]
    pub(crate) text: TextArgs,
    /// The draft model: an empty or new folder, or a .gguf file if the target is one.
    #[arg(long, value_name = "DIR|FILE.gguf")]
    pub(crate) out: PathBuf,
    /// The training loss.
    #[arg(long, value_enum, default_value_t = LossArg::Kl)]
    pub(crate) loss: LossArg,
    /// Number of layers.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) layers: usize,
    /// Width of the residual stream, a multiple of 32.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) hidden: usize,
    /// Number of query heads, of 32 dimensions each.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) heads: usize,
    /// Number of key and value heads; it divides the number of query heads.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) kv_heads: usize,
    /// Width of the feed-forward layer, a multiple of 32.
    #[arg(long, value_name = "N", default_value_t = 320)]
    pub(crate) ffn: usize,
    /// Passages per optimiser step.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) passages: u32,
}

#[derive(Debug, Args)]
pub(crate) struct TrainHeadArgs {
    /// The target model, of the Llama family with tied embeddings; for a head for multi-token prediction, a GGUF file.
    pub(crate) target: PathBuf,
    #[command(flatten)]
    pub(crate) text: TextArgs,
    /// The head: a file in the layout of llama.cpp (block `nextn`), or an empty or new folder for an EAGLE-3 head.
    #[arg(long, value_name = "FILE.gguf|DIR")]
    pub(crate) out: PathBuf,
    /// Its layout: `mtp` reads the model's final hidden states, `eagle3` those before three layers, and has its own output matrix.
    #[arg(long, value_enum, default_value_t = HeadArg::Mtp)]
    pub(crate) layout: HeadArg,
    /// With --layout eagle3: tokens that the head drafts, those that the model predicts most often in the text [default: 32000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..))]
    pub(crate) vocabulary: Option<u32>,
    /// Passages per optimiser step.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) passages: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeadArg {
    /// A head for multi-token prediction.
    Mtp,
    /// An EAGLE-3 head.
    Eagle3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LossArg {
    /// The divergence from the target's distribution.
    Kl,
    /// The cross-entropy of the text's next token.
    Plain,
}
