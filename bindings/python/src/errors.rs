//! Errors of the engine as exceptions of `refrain.errors`.

use std::error::Error;
use std::io;
use std::path::Path;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use refrain::internals::error::SessionProblem;
use refrain::{ErrorKind, GenerateError, LoadError, SessionError, TokenizerError};
use refrain_assistant::{BuildError, FileError, ForgetError, TaskError, TemplateError};
use refrain_index::notes::ModelEmbedderError;
use refrain_index::{HistoryError, NotesError};

/// The [`Facts`] of an error.
macro_rules! facts {
    ($error:expr) => {
        Facts {
            kind: $error.kind(),
            field: $error.field(),
            value: $error.value(),
            limit: $error.limit(),
            problem: $error.detail(),
            text: $error.to_string(),
        }
    };
}
/// Why a method failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The value belongs to another process, of which this one is a fork.
    Forked {
        process: u32,
    },
    /// A generation of the session is running.
    Busy,
    /// An option is none of the names that it may be.
    Choice {
        option: &'static str,
        given: String,
        choices: Vec<&'static str>,
    },
    /// A number is outside its range.
    Range {
        option: &'static str,
        given: usize,
        min: usize,
        max: usize,
    },
    /// A token is not in the vocabulary.
    Token {
        token: u32,
        vocab_size: usize,
    },
    /// Rows of logits that are none: which row, and what is wrong with it.
    Logits {
        row: Option<usize>,
        problem: &'static str,
    },
    /// A draft source's `propose` uses the generation or the sequence that waits for it.
    Reentered,
    /// A draft source has raised.
    Source {
        name: String,
        cause: PyErr,
    },
    /// A draft source's probability is none.
    Probability {
        given: f32,
    },
    /// Two draft sources have one name.
    DuplicateSource {
        name: String,
    },
    /// The sequence has ended.
    SequenceEnded,
    /// A store needs a fingerprint.
    NoFingerprint,
    /// A store has outputs of other tokenizers only.
    Fingerprint {
        expected: u64,
        found: u64,
    },
    Store(HistoryError),
    Notes(NotesError),
    File(Box<FileError>),
    /// The template of a task's prompt.
    Template(String, TemplateError),
    Embedder(ModelEmbedderError),
    Build(Box<BuildError>),
    Forget(Box<ForgetError>),
    Task(Box<TaskError>),
    /// The result of a job was taken before.
    JobEnded,
    /// Logits of this many bytes cannot be allocated.
    Memory {
        bytes: u64,
    },
    Load(LoadError),
    Session(SessionError),
    Generate(GenerateError),
    Tokenizer(TokenizerError),
    /// Already an exception: one that a handler of a signal has raised, or of a file.
    Raised(PyErr),
    /// The engine has panicked.
    Panic {
        message: String,
    },
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        // Failures become exceptions where a method returns, so the thread is attached already.
        Python::attach(|py| exception(py, failure).unwrap_or_else(|error| error))
    }
}

fn exception(py: Python<'_>, failure: Failure) -> PyResult<PyErr> {
    let details = PyDict::new(py);
    let (class, message, error): (&str, String, Option<&dyn Error>) = match &failure {
        Failure::Forked { process } => {
            let message = "this object belongs to the parent process, whose threads a fork does not copy; start the child with \
                           multiprocessing's `spawn`, or make an engine in it";
            details.set_item("process", process)?;
            ("ForkedError", message.to_owned(), None)
        }
        Failure::Busy => {
            let message = "a generation of this session is running; take all its events, or call its close()";
            ("SessionBusyError", message.to_owned(), None)
        }
        Failure::Choice { option, given, choices } => {
            details.set_item("option", option)?;
            details.set_item("given", given)?;
            let message = match &choices[..] {
                [description] => format!("{option} is {given}, not {description}"),
                names => format!("{option} is {given:?}, none of {}", names.join(", ")),
            };
            ("OptionError", message, None)
        }
        Failure::Memory { bytes } => {
            details.set_item("bytes", bytes)?;
            ("AllocationError", format!("logits of {bytes} bytes could not be allocated"), None)
        }
        Failure::Range { option, given, min, max } => {
            details.set_item("option", option)?;
            details.set_item("given", given)?;
            ("OptionError", format!("{option} is {given}, outside {min}..={max}"), None)
        }
        Failure::Token { token, vocab_size } => {
            details.set_item("token", token)?;
            details.set_item("vocab_size", vocab_size)?;
            let message = format!("token {token} is outside the vocabulary of {vocab_size} tokens");
            ("TokenOutOfRangeError", message, None)
        }
        Failure::Logits { row, problem } => {
            details.set_item("row", row)?;
            let message = match row {
                Some(row) => format!("row {row} of the logits {problem}"),
                None => format!("the logits {problem}"),
            };
            ("LogitsError", message, None)
        }
        Failure::Reentered => {
            let message = "propose of a draft source uses the generation or sequence that waits for it; it gets its tokens";
            ("SessionBusyError", message.to_owned(), None)
        }
        Failure::Source { name, cause } => {
            details.set_item("source", name)?;
            let message = format!("the draft source {name:?} has failed, and is asked no more: {cause}");
            ("SourceError", message, None)
        }
        Failure::Probability { given } => {
            details.set_item("option", "probability")?;
            details.set_item("given", given)?;
            ("OptionError", format!("probability is {given}, outside 0..=1"), None)
        }
        Failure::DuplicateSource { name } => {
            details.set_item("option", "sources")?;
            details.set_item("given", name)?;
            ("OptionError", format!("sources has the name {name:?} that another source has too"), None)
        }
        Failure::SequenceEnded => {
            ("SequenceEndedError", "the sequence has ended; start another one".to_owned(), None)
        }
        Failure::NoFingerprint => {
            details.set_item("option", "fingerprint")?;
            details.set_item("given", py.None())?;
            let message = "a store needs the fingerprint of the tokenizer, or the tokenizer itself";
            ("OptionError", message.to_owned(), None)
        }
        Failure::Fingerprint { expected, found } => {
            details.set_item("expected", expected)?;
            details.set_item("found", found)?;
            let message = format!(
                "the store has outputs of the tokenizer {found:#018x}, and none of {expected:#018x}; give another folder"
            );
            ("FingerprintError", message, None)
        }
        Failure::Store(error) => ("StoreError", error.to_string(), Some(error)),
        Failure::Notes(error) => ("NotesError", error.to_string(), Some(error)),
        Failure::File(error) => ("NotesError", error.to_string(), Some(error)),
        Failure::Template(task, error) => {
            details.set_item("option", "prompts")?;
            details.set_item("given", task)?;
            ("OptionError", format!("the template of {task}: {error}"), Some(error))
        }
        Failure::Embedder(error) => ("AssistantError", error.to_string(), Some(error)),
        Failure::Build(error) => (build_class(error, &details)?, error.to_string(), Some(error)),
        Failure::Forget(error) => (forget_class(error), error.to_string(), Some(error)),
        Failure::Task(error) => (task_class(error, &details)?, error.to_string(), Some(error)),
        Failure::JobEnded => ("AssistantError", "the result of the job was taken before".to_owned(), None),
        Failure::Panic { message } => ("InternalError", format!("a bug of Refrain: {message}"), None),
        Failure::Raised(raised) => return Ok(raised.clone_ref(py)),
        Failure::Load(error) => {
            if let (ErrorKind::InvalidArgument, Some("n_threads")) = (error.kind(), error.field()) {
                details.set_item("option", "threads")?;
                set_number(&details, "given", error.value())?;
                details.set_item("max", error.limit())?;
                ("OptionError", error.to_string(), None)
            } else {
                details.set_item("file", error.file().map(Path::to_string_lossy))?;
                details.set_item("field", error.field())?;
                details.set_item("offset", error.offset())?;
                details.set_item("limit", error.limit())?;
                ("LoadError", error.to_string(), Some(error))
            }
        }
        Failure::Session(error) => {
            (facts!(error).class("SessionError", &details)?, facts!(error).message(), Some(error))
        }
        Failure::Generate(error) => {
            (facts!(error).class("GenerateError", &details)?, facts!(error).message(), Some(error))
        }
        Failure::Tokenizer(error) => (tokenizer_class(error), error.to_string(), Some(error)),
    };
    let value = py.import("refrain.errors")?.getattr(class)?.call1((message,))?;
    for (name, detail) in details {
        value.setattr(name.extract::<&str>()?, detail)?;
    }
    let raised = PyErr::from_value(value);
    if let Failure::Source { cause, .. } = &failure {
        raised.set_cause(py, Some(cause.clone_ref(py)));
    }
    if let Some(cause) = error.and_then(system_error) {
        raised.set_cause(py, Some(PyErr::from(cause)));
    }
    Ok(raised)
}

/// An error of a session or a generation, as far as its class and details depend on it.
struct Facts<'a> {
    kind: ErrorKind,
    field: Option<&'a str>,
    value: Option<f64>,
    limit: Option<u64>,
    problem: Option<&'a SessionProblem>,
    text: String,
}

impl Facts<'_> {
    /// The message, with the keyword of the option.
    fn message(self) -> String {
        match self.field {
            Some(option) => self.text.replacen(option, keyword(option), 1),
            None => self.text,
        }
    }

    /// The class; `base` if there is none for this error.
    fn class(self, base: &'static str, details: &Bound<'_, PyDict>) -> PyResult<&'static str> {
        Ok(match (self.kind, self.field) {
            (ErrorKind::ContextFull, _) => {
                set_number(details, "n_tokens", self.value)?;
                details.set_item("context_len", self.limit)?;
                "ContextOverflowError"
            }
            (_, Some("chat_template")) => "ChatTemplateError",
            (ErrorKind::OverLimit, Some("text")) => "TokenizerError",
            (ErrorKind::InvalidArgument, Some("prompt")) => "EmptyPromptError",
            (ErrorKind::InvalidArgument, Some("token" | "logit_bias")) if self.limit.is_some() => {
                set_number(details, "token", self.value)?;
                details.set_item("vocab_size", self.limit)?;
                "TokenOutOfRangeError"
            }
            (ErrorKind::InvalidArgument, Some(option)) => {
                match (self.problem, self.value) {
                    (Some(SessionProblem::DuplicateSource { name }), _) => {
                        details.set_item("given", name.as_str())?;
                    }
                    (_, None) => return Ok(base),
                    (_, given) => set_number(details, "given", given)?,
                }
                details.set_item("option", keyword(option))?;
                details.set_item("max", self.limit)?;
                "OptionError"
            }
            (ErrorKind::OutOfMemory, _) => {
                set_number(details, "bytes", self.value)?;
                "AllocationError"
            }
            (ErrorKind::WrongState, Some("draft_model")) => "NoDraftModelError",
            (ErrorKind::WrongState, None) if base == "SessionError" => "MixedSessionError",
            _ => base,
        })
    }
}

/// The keyword of an option of a session.
fn keyword(option: &str) -> &str {
    if option == "policy.rows" { "draft_rows" } else { option }
}

/// Adds a number to the details; counts are integers.
fn set_number(details: &Bound<'_, PyDict>, name: &str, number: Option<f64>) -> PyResult<()> {
    match number {
        Some(number) if number.fract() == 0.0 && number.abs() < 9e18 => details.set_item(name, number as i64),
        number => details.set_item(name, number),
    }
}

fn build_class(error: &BuildError, details: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    Ok(match error {
        BuildError::Notes(_) => "NotesError",
        BuildError::Store(_) => "StoreError",
        BuildError::Forget(error) => forget_class(error),
        BuildError::Namespace { bytes, max } => {
            details.set_item("option", "namespace")?;
            details.set_item("given", bytes)?;
            details.set_item("max", max)?;
            "OptionError"
        }
        _ => "AssistantError",
    })
}

fn forget_class(error: &ForgetError) -> &'static str {
    match error {
        ForgetError::Notes(_) => "NotesError",
        _ => "StoreError",
    }
}

fn task_class(error: &TaskError, details: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    Ok(match error {
        TaskError::Cancelled => "JobCancelledError",
        TaskError::Nothing { .. } => "NothingError",
        TaskError::NotInNotes { searched } => {
            details.set_item("nearest", PyTuple::new(details.py(), searched.nearest_titles())?)?;
            "NothingError"
        }
        TaskError::RequestTooLong { n_tokens, room } | TaskError::TextTooLong { n_tokens, room } => {
            details.set_item("n_tokens", n_tokens)?;
            details.set_item("room", room)?;
            "NoRoomError"
        }
        TaskError::NoRoom { room } => {
            details.set_item("room", room)?;
            "NoRoomError"
        }
        TaskError::NoChatTemplate => "ChatTemplateError",
        TaskError::Busy => "SessionBusyError",
        TaskError::Notes(_) => "NotesError",
        TaskError::Store(_) | TaskError::History(_) => "StoreError",
        TaskError::Session(error) => facts!(error).class("SessionError", details)?,
        TaskError::Generate(error) => facts!(error).class("GenerateError", details)?,
        TaskError::Tokenizer(error) => tokenizer_class(error),
        _ => "AssistantError",
    })
}

fn tokenizer_class(error: &TokenizerError) -> &'static str {
    match error.field() {
        Some("chat_template") => "ChatTemplateError",
        _ => "TokenizerError",
    }
}

/// The system's error at the end of a chain of causes.
fn system_error(error: &(dyn Error + 'static)) -> Option<io::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            // (`io::Error` cannot be cloned.)
            return Some(match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(error.kind(), error.to_string()),
            });
        }
        cause = error.source();
    }
    None
}
