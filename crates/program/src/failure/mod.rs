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
use refrain::internals::error::{
    CheckpointError, EngineProblem, ForwardError, GraphsError, LayersError, LayersProblem, PredictorError,
    ProfileError, SelfDraftError, StreamedError, TokenizerProblem, WeightsError,
};
use refrain::internals::schedule::TimesError;
use refrain::{ErrorKind as Kind, GenerateError, LoadError, SessionError};
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

    fn advised(problem: impl Display, (exit, advice): (Exit, &str)) -> Self {
        match advice {
            "" => Self::new(exit, problem.to_string()),
            _ => Self::new(exit, format!("{problem} ({advice})")),
        }
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
            let mut tips = rendered.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
            let tip =
                tips.find(|tip| tip.contains("similar")).map(|tip| format!("{tip}; ")).unwrap_or_default();
            Failure::usage(problem, &format!("{tip}see `{name} --help` and `{name} COMMAND --help`"))
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
const GRAPHS_ADVICE: &str = "write the folder again with `refrain model graphs`";
const INSPECT_ADVICE: &str = "`refrain model inspect` shows the model's contents";
const OUT_ADVICE: &str = "name another file with --out";
/// The message alone.
const NO_ADVICE: (Exit, &str) = (Exit::Failed, "");

impl From<ReplaceError> for Failure {
    fn from(error: ReplaceError) -> Self {
        Self::new(Exit::Failed, format!("{error} (check the folder and the disk)"))
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        let advised = (error.detail().map(of_engine))
            .or_else(|| error.detail().map(of_weights))
            .or_else(|| error.detail().map(of_checkpoint))
            .or_else(|| error.detail().map(of_tokenizer))
            .or_else(|| error.detail().map(of_predictor))
            .or_else(|| error.detail().map(of_self_draft))
            .or_else(|| error.detail().map(of_profile))
            .or_else(|| error.detail().map(|_: &GraphsError| (Exit::Input, GRAPHS_ADVICE)))
            .or_else(|| error.detail().map(|_: &ForwardError| (Exit::Input, DISK_ADVICE)));
        Self::advised(error, advised.unwrap_or(NO_ADVICE))
    }
}

fn of_engine(error: &EngineProblem) -> (Exit, &'static str) {
    match error {
        EngineProblem::DraftVocabulary { .. } => {
            (Exit::Input, "name a draft model with the target's vocabulary")
        }
        EngineProblem::HeadWidth { .. } | EngineProblem::HeadLayer { .. } => {
            (Exit::Input, "name the head that belongs to the model")
        }
        EngineProblem::DraftGraphs { .. } | EngineProblem::NoTaps { .. } => (Exit::Input, INSPECT_ADVICE),
        EngineProblem::Isa { .. } => (Exit::Usage, "omit --isa"),
        EngineProblem::Threads { .. } => (Exit::Usage, "choose another --threads"),
        _ => NO_ADVICE,
    }
}

fn of_weights(error: &WeightsError) -> (Exit, &'static str) {
    match error {
        WeightsError::Graphs(GraphsError::MemoryLimit { .. }) => {
            (Exit::Usage, "raise --graph-memory, or omit it")
        }
        WeightsError::Streamed(streamed) => match streamed {
            StreamedError::NotPacked { .. } | StreamedError::InMemory { .. } => {
                (Exit::Usage, "pack it with `refrain model pack MODEL model.refrain` and name that file")
            }
            StreamedError::Widened { .. } => {
                (Exit::Usage, "use the model that it was packed from, in memory")
            }
            StreamedError::MemoryLimit { .. } => (Exit::Usage, "raise --memory, or lower --ctx"),
            StreamedError::Options(_) => (Exit::Usage, "raise --flash-bandwidth, or omit it"),
            _ => (Exit::Input, DISK_ADVICE),
        },
        _ => (Exit::Input, INSPECT_ADVICE),
    }
}

fn of_checkpoint(error: &CheckpointError) -> (Exit, &'static str) {
    match error {
        CheckpointError::NoMtp { .. } => (
            Exit::Input,
            "name the file that the model was packed from, or one with its head: --draft mtp:FILE",
        ),
        _ => (Exit::Input, INSPECT_ADVICE),
    }
}

fn of_tokenizer(error: &TokenizerProblem) -> (Exit, &'static str) {
    match error {
        TokenizerProblem::NoPreTokenizer { .. } => (
            Exit::Input,
            "the model's publisher knows its name: give it with --pre-tokenizer; llama.cpp takes `default`",
        ),
        _ => (Exit::Input, INSPECT_ADVICE),
    }
}

fn of_predictor(error: &PredictorError) -> (Exit, &'static str) {
    match error {
        PredictorError::Replace(_) => (Exit::Input, OUT_ADVICE),
        PredictorError::StaticGraphs => {
            (Exit::Usage, "omit --pruning, or name the model that the graphs were made from")
        }
        PredictorError::Memory { .. } => NO_ADVICE,
        _ => (Exit::Input, "train a predictor for this model with `refrain-train predictor`"),
    }
}

fn of_self_draft(error: &SelfDraftError) -> (Exit, &'static str) {
    match error {
        SelfDraftError::Predictor(error) => of_predictor(error),
        SelfDraftError::NotStreamed => (Exit::Usage, "stream it with --memory or --pinned-layers"),
        SelfDraftError::NotPinned { .. } => {
            (Exit::Usage, "raise --memory or --pinned-layers, or name a predictor of fewer layers")
        }
        SelfDraftError::Unsupported { .. } => (Exit::Usage, "choose another --draft"),
        SelfDraftError::Forward(_) => (Exit::Input, DISK_ADVICE),
        _ => NO_ADVICE,
    }
}

fn of_profile(error: &ProfileError) -> (Exit, &'static str) {
    match error {
        ProfileError::Io { .. } | ProfileError::Replace(_) => (Exit::Input, OUT_ADVICE),
        _ => NO_ADVICE,
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        GenerateError::from(error).into()
    }
}

impl From<GenerateError> for Failure {
    fn from(error: GenerateError) -> Self {
        let advice = match (error.kind(), error.field()) {
            (Kind::Cancelled, _) => return Self::new(Exit::Interrupted, ""),
            _ if error.detail::<TokenizerProblem>().is_some() => {
                (Exit::Input, "`refrain run --raw` does not use the chat template")
            }
            (Kind::ContextFull, _) => (Exit::Input, "--ctx N sets the context"),
            (Kind::InvalidArgument, Some("token")) => (Exit::Input, "use token ids of this model"),
            (Kind::InvalidArgument, Some("prompt")) => (Exit::Usage, "give a PROMPT, or pipe one in"),
            (Kind::InvalidArgument, Some("stop")) => (Exit::Usage, "choose another --stop"),
            (Kind::InvalidArgument, _) => (Exit::Usage, "choose a value in the range"),
            (Kind::NoToken, None) => (Exit::Failed, "relax --logit-bias"),
            (Kind::NoToken, Some(_)) => (Exit::Failed, "the model computes no usable logits: try --kv f32"),
            _ => match error.detail() {
                Some(ForwardError::Layers(LayersError {
                    problem: LayersProblem::Checksum { .. }, ..
                })) => (Exit::Input, GRAPHS_ADVICE),
                Some(ForwardError::Layers(_)) => (Exit::Input, DISK_ADVICE),
                _ => NO_ADVICE,
            },
        };
        Self::advised(error, advice)
    }
}

impl From<GraphsError> for Failure {
    fn from(error: GraphsError) -> Self {
        LoadError::from(error).into()
    }
}

impl From<TimesError> for Failure {
    fn from(error: TimesError) -> Self {
        Self::input(error, "name a file of graph times, such as a folder's times.json")
    }
}
