//! The options of a model and of the engine that runs it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use refrain::checkpoint::PackedAccess;
use refrain::device::IsaKind;
use refrain::{EngineOptions, KvType, Quantize};

use super::size::bytes;
use super::streaming::StreamingArgs;

/// A model, and how it is run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// The model; without it, the demonstration inside this program.
    ///
    /// A GGUF file, a Hugging Face folder, or a packed file. In `refrain` also the name of a pulled model.
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// How it is loaded and computed.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// How a model is loaded and computed.
#[derive(Debug, Clone, Args)]
pub struct ComputeArgs {
    /// Quantisation of float matrices while loading.
    ///
    /// Matrices that are quantised in the file, and packed files, are not changed.
    #[arg(long, value_enum, default_value_t = QuantizeArg::Q8_0)]
    pub quantize: QuantizeArg,
    /// Map a packed file in place of reading it. Never changes the output.
    ///
    /// It opens at once; a disk error ends the program.
    #[arg(long)]
    pub map: bool,
    /// Threads [default: the physical performance cores].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Instruction set of the kernels [default: the widest of this CPU].
    ///
    /// Never changes the output.
    #[arg(long, value_name = "ISA", value_parser = isa)]
    pub isa: Option<IsaKind>,
    /// Static graphs: maximum bytes of weights in memory.
    ///
    /// Too few are an error. The default is as many as needed.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub graph_memory: Option<u64>,
    /// The layers that stay in memory.
    #[command(flatten)]
    pub streaming: StreamingArgs,
}

impl ComputeArgs {
    /// The options of the engine.
    pub fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            n_threads: self.threads,
            isa: self.isa,
            quantize: self.quantize.quantize(),
            packed_access: if self.map { PackedAccess::Map } else { PackedAccess::Read },
            graph_memory_max: self.graph_memory,
            streaming: self.streaming.stream_options(),
            ..EngineOptions::default()
        }
    }
}

/// The quantisation of float matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum QuantizeArg {
    /// 8.5 bits per weight.
    #[value(name = "q8_0")]
    Q8_0,
    /// 4.5 bits per weight.
    #[value(name = "q4_0")]
    Q4_0,
    /// As in the file.
    None,
}

/// An instruction set by its name.
pub fn isa(name: &str) -> Result<IsaKind, String> {
    let names: Vec<&str> = IsaKind::ALL.iter().map(|isa| isa.name()).collect();
    let found = IsaKind::ALL.iter().copied().find(|isa| isa.name() == name);
    found.ok_or_else(|| format!("possible values: {}", names.join(", ")))
}

impl QuantizeArg {
    /// The option of the engine.
    pub fn quantize(self) -> Quantize {
        match self {
            Self::Q8_0 => Quantize::Q8_0,
            Self::Q4_0 => Quantize::Q4_0,
            Self::None => Quantize::Keep,
        }
    }
}

/// The element type of a KV cache.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum KvArg {
    /// 2 bytes per element.
    F16,
    /// 4 bytes per element.
    F32,
    /// About half the memory of f16; the output may differ from it.
    #[value(name = "q8_0")]
    Q8,
    /// About 0.3 of the memory of f16; the output differs from it.
    #[value(name = "q4_0")]
    Q4,
}

impl KvArg {
    /// The option of a session.
    pub fn kv_type(self) -> KvType {
        match self {
            Self::F16 => KvType::F16,
            Self::F32 => KvType::F32,
            Self::Q8 => KvType::Q8_0,
            Self::Q4 => KvType::Q4_0,
        }
    }
}
