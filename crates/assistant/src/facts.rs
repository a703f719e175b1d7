//! What the errors of the assistant mean for an app: kind, file, field, offset and limit.

use refrain_files::{ErrorKind, Facts, Fault};

use crate::error::{ActionError, BuildError, EditPartError, ForgetError, ScreenError, TaskError};
use crate::store::StoreError;

/// The facts of an error with the five accessors of the library's opaque types.
macro_rules! of_opaque {
    ($error:expr) => {
        Facts {
            kind: $error.kind(),
            file: $error.file(),
            field: $error.field(),
            offset: $error.offset(),
            value: $error.value(),
            limit: $error.limit(),
        }
    };
}

impl Fault for TaskError {
    fn facts(&self) -> Facts<'_> {
        let of = Facts::new;
        match self {
            Self::Cancelled => of(ErrorKind::Cancelled),
            Self::NoNotes => of(ErrorKind::WrongState).field("notes"),
            Self::Nothing { .. } => of(ErrorKind::NotFound).field("text"),
            Self::NotInNotes { .. } => of(ErrorKind::NotFound).field("notes"),
            Self::RequestTooLong { n_tokens, room } => {
                of(ErrorKind::ContextFull).field("request").over(*n_tokens, *room)
            }
            Self::TextTooLong { n_tokens, room } => {
                of(ErrorKind::ContextFull).field("text").over(*n_tokens, *room)
            }
            Self::TextTooLarge { bytes, max } => of(ErrorKind::OverLimit).field("text").over(*bytes, *max),
            Self::Part(error) => error.facts(),
            Self::NoRoom { room } => of(ErrorKind::ContextFull).field("passages").limit(*room),
            Self::NoStore => of(ErrorKind::WrongState).field("store"),
            Self::NoChatTemplate => of(ErrorKind::Unsupported).field("chat_template"),
            Self::Store(error) => error.facts(),
            Self::Busy => of(ErrorKind::WrongState).field("conversation"),
            Self::Screen(error) => error.facts(),
            Self::Actions(error) => error.facts(),
            Self::Notes(error) => error.facts(),
            Self::History(error) => error.facts(),
            Self::Tokenizer(error) => error.facts(),
            Self::Session(error) => of_opaque!(error),
            Self::Generate(error) => of_opaque!(error),
            Self::Vocabulary(error) => error.facts(),
            Self::Grammar(error) => error.facts(),
            Self::Incomplete { .. } => of(ErrorKind::OverLimit).field("max_tokens"),
            Self::NoSuchNote { path } => of(ErrorKind::NotFound).file(path),
        }
    }
}

impl Fault for EditPartError {
    fn facts(&self) -> Facts<'_> {
        let of = |field| Facts::new(ErrorKind::InvalidArgument).field(field);
        match self {
            Self::Bytes { end, len, .. } => of("selection").over(*end, *len),
            Self::InsideCharacter { offset } => of("selection").at(*offset),
            Self::Lines { last, n_lines, .. } => of("lines").over(*last, *n_lines),
            Self::NoSection { .. } | Self::SectionTwice { .. } => of("section"),
        }
    }
}

impl Fault for ScreenError {
    fn facts(&self) -> Facts<'_> {
        let of = |kind| Facts::new(kind).field("screen");
        match self {
            Self::TooLong { given, max } | Self::TooManyElements { given, max } => {
                of(ErrorKind::OverLimit).over(*given, *max)
            }
            Self::UnknownForm { .. } => of(ErrorKind::Unsupported),
            _ => of(ErrorKind::InvalidArgument),
        }
    }
}

impl Fault for ActionError {
    fn facts(&self) -> Facts<'_> {
        let of = |kind| Facts::new(kind).field("actions");
        match self {
            Self::TooLong { given, max } | Self::TooMany { given, max, .. } => {
                of(ErrorKind::OverLimit).over(*given, *max)
            }
            Self::Field { pointer, .. } | Self::Name { pointer } => {
                Facts::new(ErrorKind::InvalidArgument).field(pointer)
            }
            _ => of(ErrorKind::InvalidArgument),
        }
    }
}

impl Fault for StoreError {
    fn facts(&self) -> Facts<'_> {
        let of = Facts::new;
        match self {
            Self::Io { path, source, .. } => Facts::io(source.kind()).file(path),
            Self::InUse { path, .. } => of(ErrorKind::WrongState).file(path),
            Self::TooLarge { path, bytes, max } => of(ErrorKind::OverLimit).file(path).over(*bytes, *max),
            Self::Version { path } => of(ErrorKind::Unsupported).file(path).field("version"),
            Self::Key { path, .. } => of(ErrorKind::Mismatch).file(path).field("key"),
            Self::History(error) => error.facts(),
            Self::Prefixes(error) => error.facts(),
        }
    }
}

impl Fault for BuildError {
    fn facts(&self) -> Facts<'_> {
        match self {
            Self::Notes(error) => error.facts(),
            Self::Store(error) => error.facts(),
            Self::Forget(error) => error.facts(),
            Self::Namespace { bytes, max } => {
                Facts::new(ErrorKind::InvalidArgument).field("namespace").over(*bytes, *max)
            }
        }
    }
}

impl Fault for ForgetError {
    fn facts(&self) -> Facts<'_> {
        match self {
            Self::Notes(error) => error.facts(),
            Self::Store(error) => error.facts(),
            Self::Unfinished { source } => source.facts(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_name_the_field_and_the_limit_through_all_layers() {
        let long = TaskError::RequestTooLong { n_tokens: 900, room: 512 };
        let facts = long.facts();
        assert_eq!(
            (facts.kind, facts.field, facts.limit),
            (ErrorKind::ContextFull, Some("request"), Some(512))
        );
        let inside = TaskError::Part(EditPartError::InsideCharacter { offset: 3 });
        let facts = inside.facts();
        assert_eq!(
            (facts.kind, facts.field, facts.offset),
            (ErrorKind::InvalidArgument, Some("selection"), Some(3))
        );
        let store = StoreError::TooLarge { path: "ledger".into(), bytes: 9, max: 8 };
        let unfinished = BuildError::Forget(ForgetError::Unfinished { source: Box::new(store.into()) });
        let facts = unfinished.facts();
        assert_eq!((facts.kind, facts.limit), (ErrorKind::OverLimit, Some(8)));
        assert_eq!(facts.file, Some(std::path::Path::new("ledger")));
    }
}
