//! The one error of the bindings, and its stable codes.

use std::any::Any;
use std::fmt;

use refrain_files::{Facts, Fault};
use serde::{Deserialize, Serialize};

/// Writes [`ErrorKind`] from one table: code, variant, name in JSON, meaning.
macro_rules! kinds {
    ($($code:tt $kind:ident $name:literal: $meaning:literal;)*) => {
        /// What an error means for an app. Code and name never change, and no code is used again.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "uniffi", derive(uniffi::Enum))]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[non_exhaustive]
        #[repr(u32)]
        pub enum ErrorKind {
            $(
                #[doc = $meaning]
                #[serde(rename = $name)]
                $kind = $code,
            )*
        }

        impl ErrorKind {
            /// All kinds, by code.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];

            /// The name in JSON and in logs.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// What it means, in a sentence.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$kind => $meaning,)*
                }
            }
        }
    };
}

kinds! {
    // The kinds of the library, in its order.
    1 Io "io": "The system failed: a disk, a permission, a thread.";
    2 NotFound "not_found": "A file, or a part of a model, does not exist.";
    3 Damaged "damaged": "A file has another format than its name or place says, or contradicts its format.";
    4 Unsupported "unsupported": "Valid, but not implemented, or not in this combination.";
    5 OverLimit "over_limit": "A number exceeds a limit of Refrain, of the model or of a given budget.";
    6 OutOfMemory "out_of_memory": "The system or the engine's memory limit gives too little memory.";
    7 Mismatch "mismatch": "Two things do not belong together, such as a model and a draft model with another vocabulary.";
    8 InvalidArgument "invalid_argument": "An argument or an option is outside its range. Nothing has changed.";
    9 ContextFull "context_full": "The tokens do not fit the context.";
    10 Cancelled "cancelled": "The job was cancelled.";
    11 WrongState "wrong_state": "The call is not possible in this state, such as a task about notes without notes.";
    12 Processor "processor": "The mask of a grammar, or an embedding model, failed.";
    13 NoToken "no_token": "No token can be chosen: options and grammar forbid every one.";
    // Of objects.
    32 Closed "closed": "The object was closed.";
    33 Busy "busy": "Another thread or job uses the object.";
    34 Reentrant "reentrant": "A listener calls the library from within a call of it. Only `cancel` may be called there.";
    35 Forked "forked": "The object belongs to another process, of which this one is a fork.";
    36 Panicked "panicked": "A bug of Refrain. The object is closed.";
    37 Poisoned "poisoned": "An earlier call has panicked, and has closed the object.";
    38 Listener "listener": "A listener has thrown. The job is cancelled.";
    // Of handles and buffers.
    40 NullHandle "null_handle": "The handle is 0.";
    41 StaleHandle "stale_handle": "The handle was freed.";
    42 ForeignHandle "foreign_handle": "The handle was made by another copy of the library, or by nobody.";
    43 WrongHandle "wrong_handle": "The handle is of an object of another type.";
    44 NullPointer "null_pointer": "A pointer is null that must not be.";
    45 NotUtf8 "not_utf8": "A text is not UTF-8. `offset` is its first wrong byte.";
    46 NotJson "not_json": "A text is not the JSON that the call takes. `offset` is the place.";
    // Of tasks.
    64 NotInNotes "not_in_notes": "No passage of the notes covers enough of the question.";
    65 Nothing "nothing": "There is nothing to work on: no text, or no passage.";
    66 InUse "in_use": "Another process or object uses the folder.";
}

impl ErrorKind {
    /// The number, for C.
    pub fn code(self) -> u32 {
        self as u32
    }
}

impl From<refrain::ErrorKind> for ErrorKind {
    fn from(kind: refrain::ErrorKind) -> Self {
        // (Names are equal. `Io` is also for kinds that come later.)
        Self::ALL.iter().copied().find(|ours| ours.name() == kind.code()).unwrap_or(Self::Io)
    }
}

/// The facts of an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorInfo {
    /// The stable number of the kind.
    pub code: u32,
    /// The kind.
    pub kind: ErrorKind,
    /// What happened, with the numbers, in English. Not stable.
    pub message: String,
    /// The file or folder.
    pub file: Option<String>,
    /// The field of a file, the missing part, or the option.
    pub field: Option<String>,
    /// Where, in bytes from the start of the file or the text.
    pub offset: Option<u64>,
    /// The number that is refused.
    pub value: Option<f64>,
    /// The largest allowed value.
    pub limit: Option<u64>,
}

/// Why a call failed. It is a boxed [`ErrorInfo`] with the form that error types have in generated languages.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Error))]
pub enum FfiError {
    /// The call failed.
    Failed {
        /// Why.
        info: Box<ErrorInfo>,
    },
}

impl FfiError {
    /// An error of a kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        let info = ErrorInfo {
            code: kind.code(),
            kind,
            message,
            file: None,
            field: None,
            offset: None,
            value: None,
            limit: None,
        };
        Self::Failed { info: Box::new(info) }
    }

    /// An argument that is refused.
    pub fn argument(field: impl Into<String>, problem: impl fmt::Display) -> Self {
        let field = field.into();
        Self::new(ErrorKind::InvalidArgument, format!("{field} {problem}")).with_field(field)
    }

    /// A number outside its range.
    pub fn over(kind: ErrorKind, field: impl Into<String>, value: u64, limit: u64) -> Self {
        let field = field.into();
        let message = format!("{field} is {value}, more than {limit}");
        let mut error = Self::new(kind, message).with_field(field);
        let info = error.info_mut();
        (info.value, info.limit) = (Some(value as f64), Some(limit));
        error
    }

    /// Text that is not JSON of the form that a call takes.
    pub fn json(text: &str, error: &serde_json::Error) -> Self {
        // (Line and column count from 1; column 0 is the line's start.)
        let before: usize =
            text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let offset = (before + error.column().saturating_sub(1)).min(text.len());
        let mut failed = Self::new(ErrorKind::NotJson, error.to_string());
        failed.set_offset(offset as u64);
        failed
    }

    /// The error with the name of a field or option.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.info_mut().field = Some(field.into());
        self
    }

    /// Names the place in a file or text.
    pub fn set_offset(&mut self, offset: u64) {
        self.info_mut().offset = Some(offset);
    }

    /// The facts.
    pub fn info(&self) -> &ErrorInfo {
        let Self::Failed { info } = self;
        info
    }

    /// The facts, as an event has them.
    pub fn into_info(self) -> ErrorInfo {
        let Self::Failed { info } = self;
        *info
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.info().kind
    }

    fn info_mut(&mut self) -> &mut ErrorInfo {
        let Self::Failed { info } = self;
        info
    }

    /// The error of a layer of the library.
    pub(crate) fn of(fault: &dyn Fault) -> Self {
        Self::of_facts(fault.facts(), fault.to_string())
    }

    pub(crate) fn of_facts(facts: Facts<'_>, message: String) -> Self {
        let Facts { kind, file, field, offset, value, limit } = facts;
        let kind = ErrorKind::from(kind);
        let info = ErrorInfo {
            code: kind.code(),
            kind,
            message,
            file: file.map(|file| file.to_string_lossy().into_owned()),
            field: field.map(str::to_owned),
            offset,
            value,
            limit,
        };
        Self::Failed { info: Box::new(info) }
    }

    /// The error with another kind, which the library does not tell apart.
    fn with_kind(mut self, kind: ErrorKind) -> Self {
        let info = self.info_mut();
        (info.kind, info.code) = (kind, kind.code());
        self
    }

    /// The error of a panic.
    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or(panic.downcast_ref::<String>().map(String::as_str));
        Self::new(
            ErrorKind::Panicked,
            format!("a bug of Refrain: {}", text.unwrap_or("a panic without a message")),
        )
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(ErrorKind::Cancelled, "cancelled")
    }
}

impl fmt::Display for FfiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.info().message)
    }
}

impl std::error::Error for FfiError {}

/// Errors of the library with the five accessors of its opaque types.
macro_rules! of_opaque {
    ($($error:ty),*) => {
        $(
            impl From<$error> for FfiError {
                fn from(error: $error) -> Self {
                    let facts = Facts {
                        kind: error.kind(),
                        file: error.file(),
                        field: error.field(),
                        offset: error.offset(),
                        value: error.value(),
                        limit: error.limit(),
                    };
                    Self::of_facts(facts, error.to_string())
                }
            }
        )*
    };
}

of_opaque!(refrain::LoadError, refrain::SessionError, refrain::GenerateError, refrain::TokenizerError);

macro_rules! of_faults {
    ($($error:ty),*) => {
        $(
            impl From<$error> for FfiError {
                fn from(error: $error) -> Self {
                    Self::of(&error)
                }
            }
        )*
    };
}

of_faults!(refrain_grammar::GrammarError, refrain_grammar::VocabularyError);

impl From<refrain_index::HistoryError> for FfiError {
    fn from(error: refrain_index::HistoryError) -> Self {
        let failed = Self::of(&error);
        match error {
            refrain_index::HistoryError::InUse { .. } => failed.with_kind(ErrorKind::InUse),
            _ => failed,
        }
    }
}

#[cfg(feature = "notes")]
mod of_notes {
    use refrain_assistant::{BuildError, ForgetError, StoreError, TaskError};
    use refrain_index::NotesError;
    use refrain_index::notes::ModelEmbedderError;

    use super::{ErrorKind, FfiError};

    impl From<NotesError> for FfiError {
        fn from(error: NotesError) -> Self {
            let failed = Self::of(&error);
            match error {
                NotesError::InUse { .. } => failed.with_kind(ErrorKind::InUse),
                _ => failed,
            }
        }
    }

    impl From<StoreError> for FfiError {
        fn from(error: StoreError) -> Self {
            let failed = Self::of(&error);
            match error {
                StoreError::InUse { .. } => failed.with_kind(ErrorKind::InUse),
                _ => failed,
            }
        }
    }

    impl From<BuildError> for FfiError {
        fn from(error: BuildError) -> Self {
            match error {
                BuildError::Notes(error) => error.into(),
                BuildError::Store(error) => error.into(),
                BuildError::Forget(error) => error.into(),
                error => Self::of(&error),
            }
        }
    }

    impl From<ForgetError> for FfiError {
        fn from(error: ForgetError) -> Self {
            match error {
                ForgetError::Notes(error) => error.into(),
                ForgetError::Store(error) => error.into(),
                error => Self::of(&error),
            }
        }
    }

    impl From<TaskError> for FfiError {
        fn from(error: TaskError) -> Self {
            match error {
                TaskError::Notes(error) => error.into(),
                TaskError::Store(error) => error.into(),
                error => {
                    let failed = Self::of(&error);
                    match error {
                        TaskError::NotInNotes { .. } => failed.with_kind(ErrorKind::NotInNotes),
                        TaskError::Nothing { .. } => failed.with_kind(ErrorKind::Nothing),
                        TaskError::Busy => failed.with_kind(ErrorKind::Busy),
                        _ => failed,
                    }
                }
            }
        }
    }

    impl From<ModelEmbedderError> for FfiError {
        fn from(error: ModelEmbedderError) -> Self {
            match error {
                ModelEmbedderError::Load(error) => error.into(),
                ModelEmbedderError::Session(error) => error.into(),
                error => Self::new(ErrorKind::Unsupported, error.to_string()).with_field("embedder"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_are_those_that_apps_know() {
        let known: Vec<(u32, &str)> = ErrorKind::ALL.iter().map(|kind| (kind.code(), kind.name())).collect();
        let expected = [
            (1, "io"),
            (2, "not_found"),
            (3, "damaged"),
            (4, "unsupported"),
            (5, "over_limit"),
            (6, "out_of_memory"),
            (7, "mismatch"),
            (8, "invalid_argument"),
            (9, "context_full"),
            (10, "cancelled"),
            (11, "wrong_state"),
            (12, "processor"),
            (13, "no_token"),
            (32, "closed"),
            (33, "busy"),
            (34, "reentrant"),
            (35, "forked"),
            (36, "panicked"),
            (37, "poisoned"),
            (38, "listener"),
            (40, "null_handle"),
            (41, "stale_handle"),
            (42, "foreign_handle"),
            (43, "wrong_handle"),
            (44, "null_pointer"),
            (45, "not_utf8"),
            (46, "not_json"),
            (64, "not_in_notes"),
            (65, "nothing"),
            (66, "in_use"),
        ];
        assert_eq!(known, expected);
        for (kind, code) in refrain::ErrorKind::ALL.iter().zip(1..) {
            let ours = ErrorKind::from(*kind);
            assert_eq!((ours.code(), ours.name()), (code, kind.code()), "the library's kinds come first");
        }
    }

    #[test]
    fn json_that_is_none_has_its_offset() {
        let text = "{\n \"a\": x}";
        let error = serde_json::from_str::<serde_json::Value>(text).unwrap_err();
        let failed = FfiError::json(text, &error);
        assert_eq!((failed.kind(), failed.info().offset), (ErrorKind::NotJson, Some(8)));
    }

    #[test]
    fn the_readme_lists_the_codes() {
        let readme = include_str!("../README.md");
        for kind in ErrorKind::ALL {
            let row = format!("| {} | `{}` | {} |", kind.code(), kind.name(), kind.meaning());
            assert!(readme.contains(&row), "README.md lacks the row\n{row}");
        }
    }
}
