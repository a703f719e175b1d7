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

use clap::{Parser, Subcommand};
use files::{Mix, Shape};
use machine::Machine;
#[cfg(feature = "llama")]
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
    /// Decodes random tokens with llama.cpp on a mapped file, without repacked copies, and prints their seconds: for a file larger than
    /// memory.
    #[cfg(feature = "llama")]
    Mapped {
        file: PathBuf,
        #[arg(long, default_value_t = 16)]
        tokens: usize,
        #[arg(long, default_value_t = 2)]
        threads: usize,
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
        Command::Mapped { file, tokens, threads } => {
            let llama = engines::LlamaModels::start(threads, false)?;
            let tokens = Random::new(1).tokens(tokens, weights::Weights::of_file(&file)?.vocab_size);
            let seconds = engines::decode_mapped(&llama, &file, &tokens)?;
            println!("{}", serde_json::to_string(&seconds)?);
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
