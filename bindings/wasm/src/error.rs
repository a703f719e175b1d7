//! The one error of the face, with the codes of the other bindings.

use std::fmt;

use refrain::ErrorKind;
use serde::Serialize;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ErrorInfo {
    /// The stable number of the kind.
    pub code: u32,
    /// Its stable name.
    pub kind: &'static str,
    /// What happened, with the numbers, in English. Not stable.
    pub message: String,
    /// The name of the model.
    pub file: Option<String>,
    /// The field of the model, the missing part, or the option.
    pub field: Option<String>,
    /// Where, in bytes from the start of the model or of the JSON.
    pub offset: Option<u64>,
    /// The number that is refused.
    pub value: Option<f64>,
    /// The largest allowed value.
    pub limit: Option<u64>,
}

impl ErrorInfo {
    /// An error of a kind of the library.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        // The kinds of the library come first, in its order.
        let code = ErrorKind::ALL.iter().zip(1..).find(|(of, _)| **of == kind).map_or(1, |(_, code)| code);
        Self::of(code, kind.code(), message)
    }

    fn of(code: u32, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, kind, message, file: None, field: None, offset: None, value: None, limit: None }
    }

    /// A generation runs in the session.
    pub(crate) fn busy() -> Box<Self> {
        Box::new(Self::of(33, "busy", "a generation runs in this session"))
    }

    /// Text that is not the JSON that a call takes.
    pub(crate) fn not_json(text: &str, error: &serde_json::Error) -> Box<Self> {
        // Line and column count from 1; column 0 is the line's start.
        let before: usize =
            text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let offset = (before + error.column().saturating_sub(1)).min(text.len());
        Box::new(Self { offset: Some(offset as u64), ..Self::of(46, "not_json", error.to_string()) })
    }

    /// An option that is refused.
    pub(crate) fn option(field: &str, message: impl Into<String>) -> Box<Self> {
        let field = Some(field.to_owned());
        Box::new(Self { field, ..Self::new(ErrorKind::InvalidArgument, message) })
    }
}

impl fmt::Display for ErrorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ErrorInfo {}

macro_rules! of_library {
    ($($error:ty),*) => {
        $(
            impl From<$error> for Box<ErrorInfo> {
                fn from(error: $error) -> Self {
                    Box::new(ErrorInfo {
                        file: error.file().map(|file| file.display().to_string()),
                        field: error.field().map(str::to_owned),
                        offset: error.offset(),
                        value: error.value(),
                        limit: error.limit(),
                        ..ErrorInfo::new(error.kind(), error.to_string())
                    })
                }
            }
        )*
    };
}

of_library!(refrain::LoadError, refrain::SessionError, refrain::GenerateError);
