//! Failures of what the program `refrain` links beside the engine: notes, tasks, grammars, the server.

use refrain_assistant::{BuildError, ForgetError, StoreError, TaskError};
use refrain_grammar::{GrammarError, VocabularyError};
use refrain_index::{IndexError, NotesError, ReadError};
use refrain_serve::{ModelsError, ServeError};

use super::{Exit, Failure};
use crate::key::KEY_ADVICE;

/// Advice for grammars that cannot be used.
pub const GRAMMAR_ADVICE: &str = "docs/embed/grammar.md lists what is supported";

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let advice = match error {
            ReadError::Io { .. } => "check the path and its permissions",
            ReadError::NotText { .. } => "notes are text files in UTF-8, or in UTF-16 with a byte order mark",
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

impl From<NotesError> for Failure {
    fn from(error: NotesError) -> Self {
        let advice = match error {
            NotesError::NoIndex { .. } => "`refrain index add PATH` makes one",
            NotesError::Damaged { .. } => "`refrain index update` builds it again",
            NotesError::InUse { .. } | NotesError::InboxFull { .. } => "wait for the other process to end",
            NotesError::Key { .. } => KEY_ADVICE,
            NotesError::Watch { .. } => "raise the system's limit on watches, or run `refrain index update`",
            NotesError::Version { .. } => "use the newer program, or another folder with --index",
            NotesError::OutOfRange { .. } => return Self::usage(error, "choose a value in the range"),
            NotesError::Embedder(_) | NotesError::Stopped { .. } | NotesError::Index { .. } => {
                return Self::new(Exit::Failed, error.to_string());
            }
            NotesError::Tokenizer(_) => "name another --model",
            _ => "check the path, its permissions and the disk; --index names another folder",
        };
        Self::input(error, advice)
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Notes(error) => error.into(),
            BuildError::Store(error @ StoreError::Key { .. }) => Self::input(error, KEY_ADVICE),
            error => Self::new(Exit::Failed, format!("{error} (--store none goes on without a store)")),
        }
    }
}

impl From<TaskError> for Failure {
    fn from(error: TaskError) -> Self {
        match error {
            TaskError::Cancelled => Self::new(Exit::Interrupted, ""),
            TaskError::Notes(error) => error.into(),
            TaskError::Session(error) => error.into(),
            TaskError::Generate(error) => error.into(),
            TaskError::RequestTooLong { .. } | TaskError::TextTooLong { .. } | TaskError::NoRoom { .. } => {
                Self::input(error, "raise --ctx, lower --max-tokens, or give less text")
            }
            TaskError::TextTooLarge { .. } => Self::input(error, "name a part with --within"),
            TaskError::Part(_) => Self::input(error, "--within names lines, such as 12-20, or a heading"),
            TaskError::Nothing { .. } => {
                Self::input(error, "no text, or no passage has a word of the request")
            }
            TaskError::NotInNotes { .. } => Self::input(error, "other words may find it"),
            TaskError::NoSuchNote { .. } => Self::input(error, "`refrain index add PATH` adds it"),
            TaskError::Incomplete { .. } => Self::new(Exit::Failed, format!("{error} (raise --max-tokens)")),
            error => Self::new(Exit::Failed, error.to_string()),
        }
    }
}

impl From<ForgetError> for Failure {
    fn from(error: ForgetError) -> Self {
        match error {
            ForgetError::Notes(error) => error.into(),
            ForgetError::Store(error @ StoreError::InUse { .. }) => {
                Self::input(error, "nothing is deleted: wait for the other process to end")
            }
            ForgetError::Store(error @ StoreError::Key { .. }) => Self::input(error, KEY_ADVICE),
            ForgetError::Unfinished { source } => Self::new(
                Exit::Failed,
                format!("{source} (the rest is noted: the next command with the store tries again)"),
            ),
            error => Self::new(Exit::Failed, format!("{error} (not everything is deleted: try again)")),
        }
    }
}

impl From<GrammarError> for Failure {
    fn from(error: GrammarError) -> Self {
        Self::input(error, GRAMMAR_ADVICE)
    }
}

impl From<VocabularyError> for Failure {
    fn from(error: VocabularyError) -> Self {
        Self::input(error, "grammars need a model with an end token")
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::TokenRequired { .. } => Self::usage(error, "give one with --token or REFRAIN_TOKEN"),
            ServeError::Bind { .. } | ServeError::Socket { .. } => {
                Self::new(Exit::Failed, format!("{error} (choose another --listen)"))
            }
            ServeError::SocketInUse { .. } | ServeError::NotASocket { .. } => Self::new(
                Exit::Failed,
                format!("{error} (stop it or move it away, or choose another --listen)"),
            ),
            ServeError::Runtime(_) | ServeError::Handshake | ServeError::Announce { .. } => {
                Self::new(Exit::Failed, error.to_string())
            }
            error => Self::usage(error, "see `refrain serve --help`"),
        }
    }
}

impl From<ModelsError> for Failure {
    fn from(error: ModelsError) -> Self {
        match error {
            ModelsError::Load { .. } => Self::usage(error, "raise models= of --limits"),
            error => Self::usage(error, "name the first model with --name"),
        }
    }
}
