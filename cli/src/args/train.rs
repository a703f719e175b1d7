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
    /// Train a predictor that prunes a model's drafts (--pruning): a small map from what the model has computed half-way to what it will
    /// say, learnt from what it says of your text.
    Predictor(TrainPredictorArgs),
    /// Distil a small model that drafts for a model (--draft), from what the model says of your text.
    Draft(TrainDraftArgs),
}

/// What is learnt from.
#[derive(Debug, Args)]
pub(crate) struct TextArgs {
    /// Text files; a `.jsonl` file has rows of `prompt` and `response`, of which the response is learnt.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) text: Vec<PathBuf>,
    /// Tokens that the model reads in one piece.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(8..=32_768))]
    pub(crate) passage: u32,
    /// Positions that are learnt from at most; a hidden state of each is held in memory.
    #[arg(long, value_name = "N", default_value_t = 40_000)]
    pub(crate) positions: usize,
    /// Optimiser steps.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub(crate) steps: usize,
    /// Seed of the first weights and of the order of the text.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Threads of the model that is asked [default: the physical performance cores].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct TrainPredictorArgs {
    /// The model: a GGUF file, a Hugging Face folder, or a packed file. Without quantisation of its own it is run as `run` runs it.
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) text: TextArgs,
    /// The predictor file. One of that name is replaced.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// The layer before which drafts are pruned [default: the middle one].
    #[arg(long, value_name = "N")]
    pub(crate) layer: Option<usize>,
    /// Rank of the map.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) rank: u32,
    /// Frequent tokens that shadow candidates are taken from.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) shadow_pool: u32,
}

#[derive(Debug, Args)]
pub(crate) struct TrainDraftArgs {
    /// The model that it will draft for: a Hugging Face folder or a GGUF file.
    pub(crate) target: PathBuf,
    #[command(flatten)]
    pub(crate) text: TextArgs,
    /// The draft model: a folder that is empty or not there yet, or a .gguf file where the target is one.
    #[arg(long, value_name = "DIR|FILE.gguf")]
    pub(crate) out: PathBuf,
    /// What it learns to say.
    #[arg(long, value_enum, default_value_t = LossArg::Kl)]
    pub(crate) loss: LossArg,
    /// Layers.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) layers: usize,
    /// Width of the residual stream, a multiple of 32.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) hidden: usize,
    /// Query heads of 32.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) heads: usize,
    /// Key and value heads, of which the query heads are a multiple.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) kv_heads: usize,
    /// Width of the feed-forward part, a multiple of 32.
    #[arg(long, value_name = "N", default_value_t = 320)]
    pub(crate) ffn: usize,
    /// Passages of a step.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) passages: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LossArg {
    /// What the target says: the divergence from its distribution.
    Kl,
    /// What the text says: its next token.
    Plain,
}
