//! A whole run: every file through every engine.

use std::path::Path;
use std::process::Command;

use refrain_bench::pressure::peak_bytes;

use crate::agreement::{self, Agreement};
use crate::cells::{self, CONTEXT_MEMORY, Cell, Kind, N_SLOTS};
use crate::engines::{Engine, KvKind, Refrain, RefrainModel, Result};
use crate::machine::Machine;
use crate::random::Random;
use crate::results::{CellResults, FileResults, Memory, Results};
use crate::weights::Weights;

#[cfg(feature = "llama")]
use crate::engines::{FlashAttention, LlamaModels};

/// Rows of the largest pass that is rolled back.
#[cfg(feature = "llama")]
const ROWS_MAX: u32 = 64;

/// The options of a run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Threads of each engine.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Turns of each engine per cell.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub alternations: u16,
    /// Only these kinds of cells.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Kind>,
    /// Leaves llama.cpp out.
    #[arg(long)]
    pub alone: bool,
    /// Leaves the peak of memory out.
    #[arg(long)]
    pub no_memory: bool,
    /// The instruction set of Refrain; the best one if it is not given. For a comparison, llama.cpp must be compiled for the same.
    #[arg(long)]
    pub isa: Option<String>,
    /// The type of the KV cache. llama.cpp needs flash attention for q8_0.
    #[arg(long, default_value = "f16")]
    pub kv: KvKind,
    /// Lets llama.cpp write its messages to stderr (they name the repacked buffers).
    #[arg(long)]
    pub llama_logs: bool,
}

/// An engine whose memory is measured in a separate process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum MemoryOf {
    Refrain,
    /// llama.cpp with its default loading: mapped.
    Llama,
    /// llama.cpp with reading instead of mapping.
    LlamaNoMmap,
}

/// Runs everything. Tables come from the result; progress goes to stderr.
pub fn run(files: &[impl AsRef<Path>], options: &Options) -> Result<Results> {
    let mut machine = Machine::measure(usize::from(options.threads));
    let compared = Compared::start(options)?;
    let mut results = Vec::with_capacity(files.len());
    for path in files {
        results.push(run_file(path.as_ref(), &compared, options)?);
        machine.measure_reads_again();
    }
    Ok(Results {
        machine,
        versions: compared.versions(),
        kv: options.kv,
        alternations: usize::from(options.alternations),
        files: results,
    })
}

/// The engines that Refrain is compared with.
struct Compared {
    #[cfg(feature = "llama")]
    llama: Option<LlamaModels>,
}

impl Compared {
    #[cfg(feature = "llama")]
    fn start(options: &Options) -> Result<Self> {
        let n_threads = usize::from(options.threads);
        let llama = (!options.alone).then(|| LlamaModels::start(n_threads, options.llama_logs));
        Ok(Self { llama: llama.transpose()? })
    }

    #[cfg(not(feature = "llama"))]
    fn start(_: &Options) -> Result<Self> {
        Ok(Self {})
    }

    fn versions(&self) -> Vec<(String, String)> {
        let mut versions = vec![("refrain".to_owned(), locked_version("refrain").to_owned())];
        versions.extend(self.llama_versions());
        versions
    }

    #[cfg(feature = "llama")]
    fn llama_versions(&self) -> Vec<(String, String)> {
        let Some(_) = self.llama else { return Vec::new() };
        let crate_name = "llama-cpp-sys-2";
        vec![
            (crate_name.to_owned(), locked_version(crate_name).to_owned()),
            ("llama.cpp's features".to_owned(), crate::engines::system_info()),
        ]
    }

    #[cfg(not(feature = "llama"))]
    fn llama_versions(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// The version of a package in the lock file of this build.
fn locked_version(name: &str) -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let entry = lock.split("[[package]]").find(|entry| entry.contains(&format!("name = \"{name}\"\n")));
    let version = entry.and_then(|entry| entry.split_once("version = \"")?.1.split_once('"'));
    version.map_or("unknown", |(version, _)| version)
}

fn run_file(path: &Path, compared: &Compared, options: &Options) -> Result<FileResults> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let weights = Weights::of_file(path)?;
    let text = Random::new(1).tokens(N_SLOTS, weights.vocab_size);
    eprintln!("{name}: loading");
    let refrain = RefrainModel::load(path, usize::from(options.threads), options.isa.as_deref())?;
    eprintln!("{name}: refrain runs on {}", refrain.isa());
    // Declared before the sequences that borrow it.
    #[cfg(feature = "llama")]
    let llama = compared.llama.as_ref().map(|llama| llama.load(path, true)).transpose()?;
    let mut engines: Vec<Box<dyn Engine + '_>> = vec![Box::new(Refrain::new(&refrain, N_SLOTS, options.kv)?)];
    #[cfg(feature = "llama")]
    if let (Some(backend), Some(model)) = (&compared.llama, &llama) {
        for rollback in backend.rollbacks(model, ROWS_MAX)? {
            for flash_attention in [FlashAttention::Off, FlashAttention::On] {
                if options.kv != KvKind::Q8_0 || flash_attention == FlashAttention::On {
                    let sequence = backend.sequence(model, N_SLOTS, flash_attention, options.kv, rollback)?;
                    engines.push(Box::new(sequence));
                }
            }
        }
    }
    #[cfg(not(feature = "llama"))]
    let _ = compared;
    let (first, others) = engines.split_first_mut().expect("Refrain is the first");
    let agreements: Result<Vec<Agreement>> =
        others.iter_mut().map(|other| agreement::check(first.as_mut(), other.as_mut(), &text)).collect();
    let agreements = agreements?;
    for agreement in &agreements {
        eprintln!("{name}: refrain and {}: cosine of the logits {:.5}", agreement.with, agreement.cosine_min);
    }
    let cells = run_cells(&name, &mut engines, &text, options)?;
    drop(engines);
    let memory = if options.no_memory { Vec::new() } else { memory(path, options)? };
    Ok(FileResults { name, weights, agreements, cells, memory })
}

fn run_cells(
    name: &str,
    engines: &mut [Box<dyn Engine + '_>],
    text: &[u32],
    options: &Options,
) -> Result<Vec<CellResults>> {
    let all = [Kind::Decode, Kind::Verify, Kind::Prefill];
    let kinds = if options.only.is_empty() { &all[..] } else { &options.only };
    let mut results = Vec::new();
    let mut held = 0;
    for cell in Cell::of_kinds(kinds) {
        for engine in engines.iter_mut() {
            cells::fill(engine.as_mut(), text, held, cell.context())?;
        }
        held = cell.context();
        // The rows continue the context.
        let tokens = &text[held..];
        let times = cells::measure(cell, engines, tokens, usize::from(options.alternations))?;
        let medians: Vec<String> = times
            .iter()
            .map(|times| format!("{} {:.2} (least {:.2})", times.engine, times.median_ms(), times.min_ms()))
            .collect();
        eprintln!("{name}: {cell:?}: {} ms", medians.join(", "));
        results.push(CellResults { cell, times });
    }
    Ok(results)
}

/// Each engine in a separate process, because a peak of memory cannot be reset.
fn memory(path: &Path, options: &Options) -> Result<Vec<Memory>> {
    let mut wanted = vec![("refrain", "refrain")];
    if cfg!(feature = "llama") && !options.alone {
        wanted.extend([("llama", "llama.cpp"), ("llama-no-mmap", "llama.cpp without mmap")]);
    }
    let measure = |(argument, engine): (&str, &'static str)| -> Result<Memory> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["memory", argument]).arg(path).args(["--threads", &options.threads.to_string()]);
        let output = command.output()?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{engine} in a process of its own: {}", message.trim()).into());
        }
        Ok(Memory { engine, peak_bytes: String::from_utf8(output.stdout)?.trim().parse()? })
    };
    wanted.into_iter().map(measure).collect()
}

/// Loads a file, fills a context of [`CONTEXT_MEMORY`] tokens, and returns this process's peak of resident memory.
pub fn peak_memory(engine: MemoryOf, path: &Path, n_threads: usize) -> Result<u64> {
    let text = Random::new(1).tokens(CONTEXT_MEMORY, Weights::of_file(path)?.vocab_size);
    match engine {
        MemoryOf::Refrain => {
            let model = RefrainModel::load(path, n_threads, None)?;
            Refrain::new(&model, CONTEXT_MEMORY, KvKind::F16)?.prefill(&text)?;
        }
        #[cfg(feature = "llama")]
        MemoryOf::Llama | MemoryOf::LlamaNoMmap => {
            let llama = LlamaModels::start(n_threads, false)?;
            let model = llama.load(path, engine == MemoryOf::Llama)?;
            let rollback = llama.rollbacks(&model, ROWS_MAX)?[0];
            let sequence = llama.sequence(&model, CONTEXT_MEMORY, FlashAttention::On, KvKind::F16, rollback);
            sequence?.prefill(&text)?;
        }
        #[cfg(not(feature = "llama"))]
        MemoryOf::Llama | MemoryOf::LlamaNoMmap => return Err("built without llama.cpp".into()),
    }
    peak_bytes().ok_or_else(|| "the system does not tell the peak of memory".into())
}
