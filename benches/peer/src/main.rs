//! Refrain beside llama.cpp: the same GGUF file through both in one process, alternating.

mod agreement;
mod cells;
mod engines;
mod files;
#[cfg(feature = "llama")]
mod logits;
mod machine;
mod random;
#[cfg(feature = "llama")]
mod replay;
mod report;
mod results;
mod run;
#[cfg(feature = "llama")]
mod text;
mod weights;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use engines::{Engine, Logits};
use files::{Mix, Shape};
use machine::Machine;
use random::Random;
use refrain::internals::model::gguf::GgufFile;
use run::{MemoryOf, Options};

/// Refrain beside llama.cpp on the same GGUF files.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Writes a model file of a true shape with random weights.
    Make {
        /// For example qwen2.5-0.5b; another name prints all of them.
        #[arg(value_parser = Shape::parse)]
        shape: Shape,
        mix: Mix,
        out: PathBuf,
        /// The same seed gives the same file.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Writes only this many of the layers.
        #[arg(long)]
        layers: Option<u64>,
        /// Takes its tokenizer, and so its vocabulary, from this GGUF file.
        #[arg(long)]
        tokenizer_of: Option<PathBuf>,
    },
    /// Measures files with both engines and prints tables.
    Run {
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        options: Options,
        /// Writes every turn's time too.
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// Compares both engines on real text, with a published model: tokens, logits and perplexity.
    #[cfg(feature = "llama")]
    Text(text::Options),
    /// Compares both engines' logits on small models, one line for each file.
    #[cfg(feature = "llama")]
    Logits(logits::Options),
    /// Replays recorded responses: Refrain with its drafts beside llama.cpp with its own.
    #[cfg(feature = "llama")]
    Replay(replay::Options),
    /// Runs random tokens through llama.cpp on a mapped file, without repacked copies, and prints the seconds of each pass when it
    /// is done: for a file larger than memory.
    #[cfg(feature = "llama")]
    Mapped {
        file: PathBuf,
        #[command(flatten)]
        passes: Passes,
    },
    /// Runs the same passes through Refrain, which streams a packed file.
    Streamed {
        file: PathBuf,
        #[command(flatten)]
        passes: Passes,
        /// Memory of the process, in MiB.
        #[arg(long, default_value_t = 4096)]
        memory: u64,
    },
    /// Prints the peak of resident memory of one engine, in bytes, at a context of 2048 tokens.
    Memory {
        engine: MemoryOf,
        file: PathBuf,
        #[arg(long, default_value_t = 2)]
        threads: usize,
    },
    /// Measures the machine's limits alone.
    Machine {
        #[arg(long, default_value_t = 2)]
        threads: usize,
    },
}

/// Passes behind each other, all with the logits of all their rows.
#[derive(clap::Args)]
struct Passes {
    /// Rows of each pass.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1, 1, 4, 8, 32])]
    rows: Vec<usize>,
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

impl Passes {
    /// Rows of all passes, and of the longest.
    fn lengths(&self) -> (usize, usize) {
        (self.rows.iter().sum(), self.rows.iter().copied().max().unwrap_or(0))
    }

    /// Prints rows and seconds of each pass. The tokens are the same for every engine.
    fn run(
        &self,
        vocab_size: usize,
        mut pass: impl FnMut(&[u32]) -> engines::Result<()>,
    ) -> engines::Result<()> {
        let mut random = Random::new(1);
        for &n_rows in &self.rows {
            let tokens = random.tokens(n_rows, vocab_size);
            let start = Instant::now();
            pass(&tokens)?;
            println!("{n_rows} rows: {:.3} s", start.elapsed().as_secs_f64());
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    match execute(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> engines::Result<()> {
    match command {
        Command::Make { shape, mix, out, seed, layers, tokenizer_of } => {
            let n_layers = layers.unwrap_or(shape.n_layers);
            if !(1..=shape.n_layers).contains(&n_layers) {
                return Err(format!("--layers {n_layers}: {} has {}", shape.name, shape.n_layers).into());
            }
            let shape = Shape { n_layers, ..shape };
            let tokenizer_of = tokenizer_of.map(|path| GgufFile::open(&path)).transpose()?;
            let n_bytes = files::write(&shape, tokenizer_of.as_ref(), mix, seed, &out)?;
            println!("{}: {:.1} MB", out.display(), n_bytes as f64 / 1e6);
        }
        Command::Run { files, options, json } => {
            let results = run::run(&files, &options)?;
            if let Some(path) = json {
                std::fs::write(path, serde_json::to_vec_pretty(&results)?)?;
            }
            print!("{}", report::markdown(&results));
        }
        #[cfg(feature = "llama")]
        Command::Text(options) => println!("{}", serde_json::to_string_pretty(&text::compare(&options)?)?),
        #[cfg(feature = "llama")]
        Command::Logits(options) => print!("{}", logits::compare_files(&options)?),
        #[cfg(feature = "llama")]
        Command::Replay(options) => {
            let result = replay::replay(&options)?;
            if let Some(path) = &options.json {
                std::fs::write(path, serde_json::to_vec_pretty(&result)?)?;
            }
            print!("{}", result.markdown());
        }
        #[cfg(feature = "llama")]
        Command::Mapped { file, passes } => {
            let (n_tokens, n_rows_max) = passes.lengths();
            let llama = engines::LlamaModels::start(passes.threads, false)?;
            let vocab_size = weights::Weights::of_file(&file)?.vocab_size;
            let mut mapped = engines::Mapped::load(&llama, &file, n_tokens, n_rows_max)?;
            passes.run(vocab_size, |tokens| mapped.pass(tokens))?;
        }
        Command::Streamed { file, passes, memory } => {
            let (n_tokens, _) = passes.lengths();
            let loaded = engines::RefrainModel::stream(&file, passes.threads, memory << 20)?;
            let mut refrain = engines::Refrain::new(&loaded, n_tokens, engines::KvKind::F16)?;
            passes.run(loaded.vocab_size(), |tokens| {
                refrain.verify(tokens, Logits::All)?;
                refrain.keep(tokens.len())
            })?;
        }
        Command::Memory { engine, file, threads } => {
            println!("{}", run::peak_memory(engine, &file, threads)?)
        }
        Command::Machine { threads } => {
            println!("{}", serde_json::to_string_pretty(&Machine::measure(threads))?)
        }
    }
    Ok(())
}
