//! Errors as the program prints them: one line with the problem and advice, and an exit code.

#[cfg(feature = "app")]
mod app;
#[cfg(feature = "history")]
mod history;

#[cfg(feature = "app")]
pub use app::GRAMMAR_ADVICE;

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::error::ErrorKind;
use refrain::device::ProfileError;
use refrain::drafting::PredictorError;
use refrain::error::{ForwardError, SamplingError, SelfDraftError};
use refrain::internals::model::graphs::{GraphsError, LayersProblem};
use refrain::internals::model::streamed::StreamedError;
use refrain::internals::model::weights::WeightsError;
use refrain::internals::schedule::TimesError;
use refrain::{EngineError, GenerateError, LoadError, SessionError, TokenizerError};
use refrain_files::replace::ReplaceError;

/// The exit code of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Done = 0,
    /// A failure at run time.
    Failed = 1,
    /// An unusable command line.
    Usage = 2,
    /// An unusable model, note or prompt.
    Input = 3,
    /// Ctrl-C: 128 + SIGINT, as in shells.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A printed error. An empty message ends the program silently.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    /// A failure with this exit code.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// A file or another input cannot be used.
    pub fn input(problem: impl Display, advice: &str) -> Self {
        Self::new(Exit::Input, format!("{problem} ({advice})"))
    }

    /// The command line cannot be used.
    pub fn usage(problem: impl Display, advice: &str) -> Self {
        Self::new(Exit::Usage, format!("{problem} ({advice})"))
    }

    /// Its exit code.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// The message on one line, even if a parser's own message has several.
    pub fn line(&self) -> String {
        self.message.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Prints the error and gives its exit code.
    pub fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            print_error(&self.line());
        }
        self.exit.into()
    }
}

/// Prints a one-line error. A failure to write it is ignored.
pub fn print_error(line: &str) {
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    crate::terminal::write_error_lines(&format!("{red}error:{red:#} {}", crate::terminal::visible(line)));
}

/// The name of the running program, as its user gives it.
fn program() -> String {
    let path = std::env::args_os().next().map(std::path::PathBuf::from).unwrap_or_default();
    path.file_stem().map_or_else(|| "refrain".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// An error of the command line, on one line. Help and version are printed in full, and the failure has no message.
pub fn usage(error: &clap::Error) -> Failure {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            Failure::new(Exit::Done, "")
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Failure::new(Exit::Usage, "")
        }
        _ => {
            let rendered = error.to_string();
            let problem = rendered.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
            let name = program();
            Failure::usage(problem, &format!("see `{name} --help` and `{name} COMMAND --help`"))
        }
    }
}

impl From<io::Error> for Failure {
    /// Standard output failed. A closed pipe (`refrain … | head -1`) is no error.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Exit::Done, ""),
            _ => Self::new(
                Exit::Failed,
                format!("cannot write the output: {error} (check the disk or the pipe)"),
            ),
        }
    }
}

/// Advice for files that open but cannot be read.
const DISK_ADVICE: &str = "check the disk; `refrain model inspect --verify` verifies a packed file";

impl From<ReplaceError> for Failure {
    fn from(error: ReplaceError) -> Self {
        Self::new(Exit::Failed, format!("{error} (check the folder and the disk)"))
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Weights(WeightsError::Graphs(GraphsError::MemoryLimit { .. })) => {
                Self::usage(error, "raise --graph-memory, or omit it")
            }
            EngineError::Weights(WeightsError::Streamed(ref streamed)) => {
                let advice = match streamed {
                    StreamedError::NotPacked { .. } | StreamedError::InMemory { .. } => {
                        "pack it with `refrain model pack MODEL model.refrain` and name that file"
                    }
                    StreamedError::Widened { .. } => "use the model that it was packed from, in memory",
                    StreamedError::MemoryLimit { .. } => "raise --memory, or lower --ctx",
                    StreamedError::Options(_) => "raise --flash-bandwidth, or omit it",
                    _ => return Self::input(error, DISK_ADVICE),
                };
                Self::usage(error, advice)
            }
            EngineError::Graphs(_) => {
                Self::input(error, "write the folder again with `refrain model graphs`")
            }
            EngineError::Forward(_) => Self::input(error, DISK_ADVICE),
            EngineError::DraftVocabulary { .. } => {
                Self::input(error, "name a draft model with the target's vocabulary")
            }
            EngineError::HeadWidth { .. } | EngineError::HeadLayer { .. } => {
                Self::input(error, "name the head that belongs to the model")
            }
            EngineError::Tokenizer(TokenizerError::NoPreTokenizer { .. }) => Self::input(
                error,
                "the model's publisher knows its name: give it with --pre-tokenizer; llama.cpp takes `default`",
            ),
            EngineError::Load(LoadError::NoMtp { .. }) => Self::input(
                error,
                "name the file that the model was packed from, or one with its head: --draft mtp:FILE",
            ),
            EngineError::Load(_)
            | EngineError::Weights(_)
            | EngineError::Tokenizer(_)
            | EngineError::DraftGraphs { .. }
            | EngineError::NoTaps { .. } => {
                Self::input(error, "`refrain model inspect` shows the model's contents")
            }
            EngineError::Isa { .. } => Self::usage(error, "omit --isa"),
            EngineError::Threads { .. } => Self::usage(error, "choose another --threads"),
            _ => Self::new(Exit::Failed, error.to_string()),
        }
    }
}

impl From<PredictorError> for Failure {
    fn from(error: PredictorError) -> Self {
        match error {
            PredictorError::Replace { .. } => Self::input(error, "name another file with --out"),
            PredictorError::StaticGraphs => {
                Self::usage(error, "omit --pruning, or name the model that the graphs were made from")
            }
            PredictorError::Memory { .. } => Self::new(Exit::Failed, error.to_string()),
            _ => Self::input(error, "train a predictor for this model with `refrain-train predictor`"),
        }
    }
}

impl From<SelfDraftError> for Failure {
    fn from(error: SelfDraftError) -> Self {
        match error {
            SelfDraftError::Predictor(error) => error.into(),
            SelfDraftError::NotStreamed => Self::usage(error, "stream it with --memory or --pinned-layers"),
            SelfDraftError::NotPinned { .. } => {
                Self::usage(error, "raise --memory or --pinned-layers, or name a predictor of fewer layers")
            }
            SelfDraftError::Unsupported { .. } => Self::usage(error, "choose another --draft"),
            SelfDraftError::Forward(_) => Self::input(error, DISK_ADVICE),
            _ => Self::new(Exit::Failed, error.to_string()),
        }
    }
}

impl From<ProfileError> for Failure {
    fn from(error: ProfileError) -> Self {
        match error {
            ProfileError::Io { .. } | ProfileError::Replace { .. } => {
                Self::input(error, "name another file with --out")
            }
            _ => Self::new(Exit::Failed, error.to_string()),
        }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::OutOfRange { .. }
            | SessionError::NumberOutOfRange { .. }
            | SessionError::ReuseThreshold { .. }
            | SessionError::PruningShare { .. }
            | SessionError::VerifyLens => Self::usage(error, "choose a value in the range"),
            SessionError::ContextOverflow { .. } => Self::input(error, "--ctx N sets the context"),
            SessionError::TokenOutOfRange { .. } => Self::input(error, "use token ids of this model"),
            SessionError::Tokenizer(_) => {
                Self::input(error, "`refrain run --raw` does not use the chat template")
            }
            _ => Self::new(Exit::Failed, error.to_string()),
        }
    }
}

impl From<GenerateError> for Failure {
    fn from(error: GenerateError) -> Self {
        match error {
            GenerateError::Session(error) => error.into(),
            GenerateError::Forward(ForwardError::Cancelled) => Self::new(Exit::Interrupted, ""),
            GenerateError::Forward(ForwardError::Layers(error)) => match error.problem {
                LayersProblem::Checksum { .. } => {
                    Self::input(error, "write the folder again with `refrain model graphs`")
                }
                _ => Self::input(error, DISK_ADVICE),
            },
            GenerateError::EmptyPrompt => Self::usage(error, "give a PROMPT, or pipe one in"),
            GenerateError::StopLength { .. } => Self::usage(error, "choose another --stop"),
            GenerateError::Sampling(SamplingError::NoCandidate { .. }) => {
                Self::new(Exit::Failed, format!("{error} (relax --logit-bias)"))
            }
            GenerateError::Sampling(SamplingError::InfiniteLogit { .. }) => Self::new(
                Exit::Failed,
                format!("{error} (the model computes no usable logits: try --kv f32)"),
            ),
            GenerateError::Sampling(_) => Self::usage(error, "choose a value in the range"),
            _ => Self::new(Exit::Failed, error.to_string()),
        }
    }
}

impl From<GraphsError> for Failure {
    fn from(error: GraphsError) -> Self {
        EngineError::Graphs(error).into()
    }
}

impl From<TimesError> for Failure {
    fn from(error: TimesError) -> Self {
        Self::input(error, "name a file of graph times, such as a folder's times.json")
    }
}
