//! The shape of the errors that an app sees: a kind with a stable code, and the file, field, offset, value and limit concerned.
//!
//! A layer's error enum has a variant per reason, with the message. It implements [`Fault`], which names kind and place. The public error
//! types are [opaque](crate::opaque_error): apps read the accessors, and variants can change with any release.

use std::error::Error;
use std::io;
use std::path::Path;

/// What an error means for an app.
///
/// Other languages and logs use the [code](ErrorKind::code), which stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The system failed: a disk, a permission, a thread. The source is its error, if there is one.
    Io,
    /// A file, or a part of a model, does not exist.
    NotFound,
    /// A file has another format than its name or place says, or contradicts its format.
    Damaged,
    /// Valid, but not implemented, or not in this combination.
    Unsupported,
    /// A number exceeds a limit of Refrain, of the model or of a given budget.
    OverLimit,
    /// The system gives too little memory. The value is the number of bytes, if known.
    OutOfMemory,
    /// Two things do not belong together, such as a target and a draft model with another vocabulary.
    Mismatch,
    /// An argument or an option of the caller is outside its range. Nothing has changed.
    InvalidArgument,
    /// The tokens do not fit the context.
    ContextFull,
    /// The caller cancelled.
    Cancelled,
    /// The call is not possible in this state, such as turns for a session of plain text.
    WrongState,
    /// A logits processor of the app failed. The source is its own error.
    Processor,
    /// No token can be chosen: options and processors forbid every one, or a logit is infinite.
    NoToken,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: &'static [Self] = &[
        Self::Io,
        Self::NotFound,
        Self::Damaged,
        Self::Unsupported,
        Self::OverLimit,
        Self::OutOfMemory,
        Self::Mismatch,
        Self::InvalidArgument,
        Self::ContextFull,
        Self::Cancelled,
        Self::WrongState,
        Self::Processor,
        Self::NoToken,
    ];

    /// The stable name, in lower case.
    pub fn code(self) -> &'static str {
        match self {
            Self::Io => "io",
            Self::NotFound => "not_found",
            Self::Damaged => "damaged",
            Self::Unsupported => "unsupported",
            Self::OverLimit => "over_limit",
            Self::OutOfMemory => "out_of_memory",
            Self::Mismatch => "mismatch",
            Self::InvalidArgument => "invalid_argument",
            Self::ContextFull => "context_full",
            Self::Cancelled => "cancelled",
            Self::WrongState => "wrong_state",
            Self::Processor => "processor",
            Self::NoToken => "no_token",
        }
    }
}

/// The kind of an error, and what it concerns as far as the error says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Facts<'a> {
    /// The kind.
    pub kind: ErrorKind,
    /// The file or folder.
    pub file: Option<&'a Path>,
    /// The field, tensor, section, part or option.
    pub field: Option<&'a str>,
    /// In bytes from the start of the file, or of its data.
    pub offset: Option<u64>,
    /// The number that is refused.
    pub value: Option<f64>,
    /// The largest allowed value, or the number of tokens of the vocabulary for a token id.
    pub limit: Option<u64>,
}

impl<'a> Facts<'a> {
    /// The kind alone.
    pub fn new(kind: ErrorKind) -> Self {
        Self { kind, file: None, field: None, offset: None, value: None, limit: None }
    }

    /// The kind of a system's error.
    pub fn io(kind: io::ErrorKind) -> Self {
        Self::new(match kind {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
            io::ErrorKind::UnexpectedEof => ErrorKind::Damaged,
            _ => ErrorKind::Io,
        })
    }

    /// Names the file.
    pub fn file(self, file: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        Self { file: Some(file.as_ref()), ..self }
    }

    /// Names the field.
    pub fn field(self, field: &'a str) -> Self {
        Self { field: Some(field), ..self }
    }

    /// Names the offset.
    pub fn at(self, offset: impl TryInto<u64>) -> Self {
        Self { offset: offset.try_into().ok(), ..self }
    }

    /// Names the refused number.
    pub fn value(self, value: impl TryInto<u64>) -> Self {
        Self { value: value.try_into().ok().map(|value| value as f64), ..self }
    }

    /// Names the limit.
    pub fn limit(self, limit: impl TryInto<u64>) -> Self {
        Self { limit: limit.try_into().ok(), ..self }
    }

    /// Names a number and the limit that it exceeds.
    pub fn over(self, value: impl TryInto<u64>, limit: impl TryInto<u64>) -> Self {
        self.value(value).limit(limit)
    }
}

/// The error of a layer, with a variant per reason.
pub trait Fault: Error + Send + Sync + 'static {
    /// The kind of the error, and what it concerns.
    fn facts(&self) -> Facts<'_>;

    /// The error of the layer, if this one hides it.
    fn hidden(&self) -> Option<&(dyn Error + 'static)> {
        None
    }
}

/// Writes a public error type: a box of a [`Fault`], with its accessors. Message, source and debug output are those of the fault.
#[macro_export]
macro_rules! opaque_error {
    ($(#[$meta:meta])* $name:ident($fault:ty)) => {
        $(#[$meta])*
        pub struct $name(Box<$fault>);

        impl $name {
            /// What the error means for an app.
            pub fn kind(&self) -> $crate::ErrorKind {
                $crate::Fault::facts(&*self.0).kind
            }

            /// The file or folder.
            pub fn file(&self) -> Option<&std::path::Path> {
                $crate::Fault::facts(&*self.0).file
            }

            /// The field of the file, the tensor, the missing part, or the option.
            pub fn field(&self) -> Option<&str> {
                $crate::Fault::facts(&*self.0).field
            }

            /// Where, in bytes from the start of the file; of a tensor's bytes, from the start of the data.
            pub fn offset(&self) -> Option<u64> {
                $crate::Fault::facts(&*self.0).offset
            }

            /// The number that is refused.
            pub fn value(&self) -> Option<f64> {
                $crate::Fault::facts(&*self.0).value
            }

            /// The largest allowed value; for a token id, the number of tokens of the vocabulary.
            pub fn limit(&self) -> Option<u64> {
                $crate::Fault::facts(&*self.0).limit
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl std::error::Error for $name {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                self.0.source()
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_are_stable_and_unique() {
        let codes: Vec<&str> = ErrorKind::ALL.iter().map(|kind| kind.code()).collect();
        let expected = [
            "io",
            "not_found",
            "damaged",
            "unsupported",
            "over_limit",
            "out_of_memory",
            "mismatch",
            "invalid_argument",
            "context_full",
            "cancelled",
            "wrong_state",
            "processor",
            "no_token",
        ];
        assert_eq!(codes, expected);
        assert_eq!(codes.iter().collect::<HashSet<_>>().len(), codes.len());
    }
}
