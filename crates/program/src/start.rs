//! The start and the end of a program.

use std::ffi::OsString;
use std::process::ExitCode;

use anstream::ColorChoice;
use clap::{Args, Parser, ValueEnum};
use refrain::internals::kernels::{MEMORY_MARGIN, has_room};

use crate::failure::{Exit, Failure, usage};
use crate::{load, terminal};

/// Runs a program, if the system gives it memory: its exit code, after its failure is printed.
pub fn run(program: impl FnOnce() -> Result<Exit, Failure>) -> ExitCode {
    match check_memory().and_then(|()| program()) {
        Ok(exit) => exit.into(),
        Err(failure) => failure.report(),
    }
}

/// The command line of a program without a file of defaults.
///
/// # Errors
/// The command line cannot be used. Help and version are printed and end the program.
pub fn parse<T: Parser>(args: impl IntoIterator<Item = OsString>) -> Result<T, Failure> {
    T::try_parse_from(args).map_err(|error| usage(&error))
}

/// Memory that every command needs. With less, the process would end in the middle of an allocation.
const MEMORY_MIN: usize = 48 << 20;

/// Checks that the system gives memory, before anything allocates some.
fn check_memory() -> Result<(), Failure> {
    if has_room(MEMORY_MIN) {
        return Ok(());
    }
    let needed = (MEMORY_MIN + MEMORY_MARGIN) >> 20;
    let problem = format!("the system gives this program less than {needed} MiB of memory");
    Err(Failure::new(Exit::Failed, format!("{problem} (raise the limit of its address space: `ulimit -v`)")))
}

/// Options of every command of a program that measures or trains.
#[derive(Debug, Args)]
pub struct GlobalArgs {
    /// When to colour the output.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
    /// The pre-tokenizer of GGUF files that name none (`tokenizer.ggml.pre`), such as llama-bpe, qwen2 or smollm.
    #[arg(long, global = true, value_name = "NAME")]
    pub pre_tokenizer: Option<String>,
}

impl GlobalArgs {
    /// Takes effect for the rest of the process.
    pub fn set(self) {
        terminal::set_color(self.color.choice());
        load::set_pre_tokenizer(self.pre_tokenizer);
    }
}

/// The value of `--color`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Even into files and pipes.
    Always,
    /// Plain text.
    Never,
}

impl Color {
    /// The choice of the writers of colours.
    pub fn choice(self) -> ColorChoice {
        match self {
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::Always,
            Self::Never => ColorChoice::Never,
        }
    }
}
