//! The commands that work on a model file: inspect, pack, graphs, score, profile.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::engine::{ComputeArgs, KvArg, QuantizeArg};

#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// A GGUF file, a Hugging Face folder, or a packed file. Without it: the small model inside this program.
    pub(crate) model: Option<PathBuf>,
    /// Where the profile goes, with a plot of it beside [default: beside the model, where `run` and `chat` look for it].
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Tokens before the batch, besides 0; at most what the model was trained for, less a batch.
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
    /// A GGUF file, a safetensors file, a Hugging Face folder, or a packed file. Without it: the model inside this program.
    pub(crate) path: Option<PathBuf>,
    /// Read all of a packed file and compare it with its checksums. (Loading verifies the header only.)
    #[arg(long)]
    pub(crate) verify: bool,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// A GGUF file or a Hugging Face folder.
    pub(crate) model: PathBuf,
    /// The packed file; `.refrain` by custom. A packed file of that name is replaced.
    pub(crate) out: PathBuf,
    /// What float matrices become; matrices that are quantised in the file stay as they are.
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
    /// The folder of graphs, which must not be there yet.
    pub(crate) out: PathBuf,
    /// Blocks of layers; one graph of each is in memory at a time.
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub(crate) blocks: usize,
    /// Rows of the prefill graphs.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) prefill: usize,
    /// Rows of the verify graphs.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(crate) verify: usize,
    /// Do not measure loads and calls; whoever opens the folder does then.
    #[arg(long)]
    pub(crate) no_times: bool,
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
    /// Also write the logits of every position: f32 `[tokens, vocab]`, named `logits`.
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
    /// The text of a file (`-`: standard input).
    #[arg(long, value_name = "TEXT")]
    pub(crate) file: Option<PathBuf>,
    /// The text itself.
    #[arg(long, value_name = "T")]
    pub(crate) text: Option<String>,
    /// Token ids, taken as they are.
    #[arg(long, value_name = "1,2,3", value_delimiter = ',')]
    pub(crate) tokens: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WeightsArg {
    F32,
}
