//! What the errors of the index mean for an app: kind, file, field, offset and limit.

use refrain_files::{ErrorKind, Facts, Fault};

use crate::{HistoryError, PrefixError};

impl Fault for HistoryError {
    fn facts(&self) -> Facts<'_> {
        let of = Facts::new;
        match self {
            Self::Io { path, source, .. } => Facts::io(source.kind()).file(path),
            Self::InUse { path } | Self::ReadOnly { path, .. } => of(ErrorKind::WrongState).file(path),
            Self::InboxFull { path, max } => of(ErrorKind::OverLimit).file(path).limit(*max),
            Self::Stopped => of(ErrorKind::WrongState),
            Self::Damaged { path, offset, .. } => of(ErrorKind::Damaged).file(path).at(*offset),
            Self::Misplaced { path } => of(ErrorKind::Mismatch).file(path),
            Self::Version { path, given, known } => {
                of(ErrorKind::Unsupported).file(path).field("version").over(*given, *known)
            }
            Self::TooLarge { path, bytes, max } => of(ErrorKind::OverLimit).file(path).over(*bytes, *max),
            Self::OutOfRange { option, given, max, .. } => {
                of(ErrorKind::InvalidArgument).field(option).over(*given, *max)
            }
            Self::RecordTooLong { n_tokens, max } => of(ErrorKind::OverLimit).over(*n_tokens, *max),
            Self::NamespaceName { bytes, max } => {
                of(ErrorKind::InvalidArgument).field("namespace").over(*bytes, *max)
            }
            Self::Key { path, .. } => of(ErrorKind::Mismatch).file(path).field("key"),
            Self::Encrypted { path } => of(ErrorKind::Unsupported).file(path),
            Self::TooManyNamespaces { max } => of(ErrorKind::OverLimit).field("namespace").limit(*max),
            Self::NoSuchRecord { record } => of(ErrorKind::NotFound).value(*record),
        }
    }
}

impl Fault for PrefixError {
    fn facts(&self) -> Facts<'_> {
        match self {
            Self::Io { path, source, .. } => Facts::io(source.kind()).file(path),
            Self::Busy { path, .. } => Facts::new(ErrorKind::WrongState).file(path),
            Self::Session(error) => of_session(error),
            Self::Random(_) => Facts::new(ErrorKind::Io),
        }
    }
}

fn of_session(error: &refrain::SessionError) -> Facts<'_> {
    let (kind, file, field) = (error.kind(), error.file(), error.field());
    Facts { kind, file, field, offset: error.offset(), value: error.value(), limit: error.limit() }
}

#[cfg(feature = "notes")]
impl Fault for crate::NotesError {
    fn facts(&self) -> Facts<'_> {
        let of = Facts::new;
        match self {
            Self::Io { path, source, .. } => Facts::io(source.kind()).file(path),
            Self::NoIndex { path } => of(ErrorKind::NotFound).file(path),
            Self::Foreign { path, name } => of(ErrorKind::Mismatch).file(path).field(name),
            Self::Damaged { path, offset, .. } => of(ErrorKind::Damaged).file(path).at(*offset),
            Self::Version { path, given, known } => {
                of(ErrorKind::Unsupported).file(path).field("version").over(*given, *known)
            }
            Self::InUse { path } | Self::Stopped { path } => of(ErrorKind::WrongState).file(path),
            Self::InboxFull { path, max } => of(ErrorKind::OverLimit).file(path).limit(*max),
            Self::OutOfRange { option, given, max, .. } => {
                of(ErrorKind::InvalidArgument).field(option).over(*given, *max)
            }
            Self::Path { path, .. } => of(ErrorKind::InvalidArgument).file(path).field("path"),
            Self::Document { path, .. } => of(ErrorKind::InvalidArgument).file(path).field("document"),
            Self::TransactionFull { bytes, max } => of(ErrorKind::OverLimit).over(*bytes, *max),
            Self::Embedder(_) => of(ErrorKind::Processor).field("embedder"),
            Self::Tokenizer(error) => error.facts(),
            Self::Watch { path, .. } | Self::Index { path, .. } => of(ErrorKind::Io).file(path),
            Self::Key { path, .. } => of(ErrorKind::Mismatch).file(path).field("key"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn facts_name_the_file_the_field_and_the_limit() {
        let path = PathBuf::from("store");
        let damaged = HistoryError::Damaged { path: path.clone(), offset: 12, what: "a checksum" };
        let facts = damaged.facts();
        assert_eq!(
            (facts.kind, facts.file, facts.offset),
            (ErrorKind::Damaged, Some(path.as_path()), Some(12))
        );
        let long = HistoryError::NamespaceName { bytes: 300, max: 200 };
        let facts = long.facts();
        assert_eq!((facts.kind, facts.field), (ErrorKind::InvalidArgument, Some("namespace")));
        assert_eq!((facts.value, facts.limit), (Some(300.0), Some(200)));
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        let failed = PrefixError::Io { action: "read", path, source: missing };
        assert_eq!(failed.facts().kind, ErrorKind::NotFound);
    }

    #[cfg(feature = "notes")]
    #[test]
    fn notes_that_cannot_be_used_say_why() {
        use crate::NotesError;

        let path = PathBuf::from("index");
        let none = NotesError::NoIndex { path: path.clone() };
        assert_eq!((none.facts().kind, none.facts().file), (ErrorKind::NotFound, Some(path.as_path())));
        let newer = NotesError::Version { path, given: 9, known: 8 };
        let facts = newer.facts();
        assert_eq!(
            (facts.kind, facts.field, facts.limit),
            (ErrorKind::Unsupported, Some("version"), Some(8))
        );
    }
}
