//! What went wrong, in one line that says what to do, and the exit code.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::error::ErrorKind;
use refrain::internals::model::graphs::{GraphsError, LayersProblem};
use refrain::internals::model::streamed::StreamedError;
use refrain::internals::model::weights::WeightsError;
use refrain::{
    EngineError, ForwardError, GenerateError, PredictorError, ProfileError, SamplingError, SessionError,
};
use refrain_index::{HistoryError, IndexError, ReadError};

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// What was asked for was done.
    Done = 0,
    /// Something failed at run time.
    Failed = 1,
    /// The command line asks for something that does not exist.
    Usage = 2,
    /// A model, note or prompt cannot be used.
    Input = 3,
    /// Ctrl-C: 128 + SIGINT, as shells count it.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error as the user sees it; without a message, an end that needs no words.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    /// Something outside, such as a file, cannot be used.
    pub(crate) fn input(problem: impl Display, advice: &str) -> Self {
        Self::new(Exit::Input, format!("{problem} ({advice})"))
    }

    pub(crate) fn usage(problem: impl Display, advice: &str) -> Self {
        Self::new(Exit::Usage, format!("{problem} ({advice})"))
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// The message on one line, whatever a parser's own message was.
    pub(crate) fn line(&self) -> String {
        self.message.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Prints the error and gives its exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            print_error(&self.line());
        }
        self.exit.into()
    }
}

/// Prints a one-line error. Where standard error is gone there is nobody left to tell.
pub(crate) fn print_error(line: &str) {
    let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    let _ = writeln!(anstream::stderr(), "{red}error:{red:#} {}", crate::terminal::visible(line));
}

/// Prints help and version as asked for, and everything else that clap finds as one line.
pub(crate) fn report_usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            Exit::Done.into()
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Exit::Usage.into()
        }
        _ => {
            let rendered = error.to_string();
            let problem = rendered.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
            Failure::usage(problem, "see `refrain --help` and `refrain COMMAND --help`").report()
        }
    }
}

impl From<io::Error> for Failure {
    /// Standard output failed. A reader that has seen enough (`refrain … | head -1`) is no error.
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

/// For files that can be opened and not be read.
const DISK_ADVICE: &str = "check the disk; `refrain inspect --verify` reads all of a packed file";

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Weights(WeightsError::Graphs(GraphsError::MemoryLimit { .. })) => {
                Self::usage(error, "give more with --graph-memory, or leave it out")
            }
            EngineError::Weights(WeightsError::Streamed(ref streamed)) => {
                let advice = match streamed {
                    StreamedError::NotPacked { .. } | StreamedError::InMemory { .. } => {
                        "`refrain pack MODEL model.refrain` packs it, then name that file"
                    }
                    StreamedError::Widened { .. } => "widen the model that it was packed from, in memory",
                    StreamedError::MemoryLimit { .. } => {
                        "give more with --memory, or a shorter context with --ctx"
                    }
                    _ => return Self::input(error, DISK_ADVICE),
                };
                Self::usage(error, advice)
            }
            EngineError::Graphs(_) => Self::input(error, "`refrain graphs` writes the folder again"),
            EngineError::Forward(_) => Self::input(error, DISK_ADVICE),
            EngineError::DraftVocabulary { .. } => {
                Self::input(error, "name a smaller model of the target's family")
            }
            EngineError::Load(_)
            | EngineError::Weights(_)
            | EngineError::Tokenizer(_)
            | EngineError::DraftGraphs { .. } => {
                Self::input(error, "`refrain inspect` shows what the model holds")
            }
            EngineError::Isa { .. } => Self::usage(error, "leave out --isa"),
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
                Self::usage(error, "leave out --pruning, or name the model that the graphs were made of")
            }
            PredictorError::Memory { .. } => Self::new(Exit::Failed, error.to_string()),
            _ => Self::input(error, "`refrain train predictor` makes one for a model"),
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
            SessionError::LossyDraftModel => Self::usage(error, "leave out --lossy-top-p"),
            SessionError::ContextOverflow { .. } => Self::input(error, "--ctx N sets the context"),
            SessionError::TokenOutOfRange { .. } => Self::input(error, "use token ids of this model"),
            SessionError::Tokenizer(_) => Self::input(error, "--raw goes without the chat template"),
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
                    Self::input(error, "`refrain graphs` writes the folder again")
                }
                _ => Self::input(error, DISK_ADVICE),
            },
            GenerateError::EmptyPrompt => Self::usage(error, "give a PROMPT, --file, or pipe one in"),
            GenerateError::StopLength { .. } => Self::usage(error, "choose another --stop"),
            GenerateError::Sampling(SamplingError::NoCandidate { .. }) => {
                Self::new(Exit::Failed, format!("{error} (loosen --logit-bias)"))
            }
            GenerateError::Sampling(_) => Self::usage(error, "choose a value in the range"),
            _ => Self::new(Exit::Failed, error.to_string()),
        }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let advice = match error {
            ReadError::Io { .. } => "check the path and its permissions",
            ReadError::NotText { .. } => "notes are text files in UTF-8",
            ReadError::FileTooLong { .. } => "split the file",
            _ => "name fewer files or a smaller folder",
        };
        Self::input(error, advice)
    }
}

impl From<IndexError> for Failure {
    fn from(error: IndexError) -> Self {
        Self::new(Exit::Failed, error.to_string())
    }
}

impl From<HistoryError> for Failure {
    fn from(error: HistoryError) -> Self {
        let advice = match error {
            HistoryError::InUse { .. } => {
                "one process at a time forgets and repairs: wait for the other to end"
            }
            HistoryError::Damaged { .. } => {
                "`refrain history repair` drops what is damaged, and nothing else"
            }
            HistoryError::ReadOnly { .. } => "check the permissions of the folder",
            HistoryError::NoSuchRecord { .. } => "`refrain history list` shows them",
            _ => "name another folder with --history",
        };
        Self::input(error, advice)
    }
}
