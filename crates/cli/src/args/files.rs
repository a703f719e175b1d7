//! The commands that work on a model file: inspect, pack, graphs, score, profile.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use refrain_program::args::{ComputeArgs, KvArg, QuantizeArg};

use super::session::SessionArgs;

#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// A GGUF file, a Hugging Face folder, or a packed file. Without it: the small model inside this program.
    pub(crate) model: Option<PathBuf>,
    /// The profile file [default: beside the model, where it is found].
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Context lengths before the batch, besides 0.
    ///
    /// At most the training context minus a batch.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0,1024,4096")]
    pub(crate) contexts: Vec<usize>,
    /// Element type of the KV cache.
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    pub(crate) kv: KvArg,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// A GGUF file, a safetensors file, a Hugging Face folder, or a packed file. Without it: the model inside
    /// this program.
    pub(crate) path: Option<PathBuf>,
    /// Verify the checksums of a packed file, which reads all of it.
    #[arg(long)]
    pub(crate) verify: bool,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    /// How the model would be run: the memory is that of these options.
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// A GGUF file or a Hugging Face folder.
    pub(crate) model: PathBuf,
    /// The packed file, usually named `.refrain`. An existing packed file is replaced.
    pub(crate) out: PathBuf,
    /// Quantisation of float matrices.
    ///
    /// Matrices that are quantised in the file are not changed.
    #[arg(long, value_enum, default_value_t = QuantizeArg::Q8_0)]
    pub(crate) quantize: QuantizeArg,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GraphsArgs {
    /// A GGUF file, a Hugging Face folder, or a packed file.
    pub(crate) model: PathBuf,
    /// The folder of graphs; it must not exist.
    pub(crate) out: PathBuf,
    /// Number of blocks of layers; one graph of each block is in memory at a time.
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub(crate) blocks: usize,
    /// Rows of the prefill graphs.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) prefill: usize,
    /// Rows of the verify graphs.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(crate) verify: usize,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    /// A GGUF file, a Hugging Face folder, or a packed file. Without it: the small model inside this program.
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) input: ScoreInput,
    /// Also write the logits of every position.
    ///
    /// A tensor `logits`, f32 `[tokens, vocab]`.
    #[arg(long, value_name = "OUT.safetensors")]
    pub(crate) logits: Option<PathBuf>,
    /// `f32` widens all weights and the KV cache, for checks against a reference.
    #[arg(long, value_enum, conflicts_with_all = ["quantize", "kv"])]
    pub(crate) weights: Option<WeightsArg>,
    /// Element type of the KV cache.
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    pub(crate) kv: KvArg,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ScoreInput {
    /// Score this text, or with `@FILE` that of a file (`@-`: standard input).
    #[arg(long, value_name = "TEXT|@FILE")]
    pub(crate) text: Option<String>,
    /// Score these token ids.
    #[arg(long, value_name = "1,2,3", value_delimiter = ',')]
    pub(crate) tokens: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WeightsArg {
    /// 4 bytes per weight.
    F32,
}
