//! The codes that functions return.

use refrain_ffi::ErrorKind;

/// What a function returns. The numbers never change, and none is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// It has worked.
    Ok = 0,
    /// The system failed: a disk, a permission, a thread.
    Io = 1,
    /// A file, or a part of a model, does not exist.
    NotFound = 2,
    /// A file has another format than its name or place says, or contradicts its format.
    Damaged = 3,
    /// Valid, but not implemented, or not in this combination.
    Unsupported = 4,
    /// A number exceeds a limit of Refrain, of the model or of a given budget.
    OverLimit = 5,
    /// The system or the engine's memory limit gives too little memory.
    OutOfMemory = 6,
    /// Two things do not belong together, such as a model and a draft model with another vocabulary.
    Mismatch = 7,
    /// An argument or an option is outside its range. Nothing has changed.
    InvalidArgument = 8,
    /// The tokens do not fit the context.
    ContextFull = 9,
    /// The job was cancelled.
    Cancelled = 10,
    /// The call is not possible in this state, such as a task about notes without notes.
    WrongState = 11,
    /// The mask of a grammar, or an embedding model, failed.
    Processor = 12,
    /// No token can be chosen: options and grammar forbid every one.
    NoToken = 13,
    /// The object was closed.
    Closed = 32,
    /// Another thread or job uses the object.
    Busy = 33,
    /// A listener calls the library from within a call of it.
    Reentrant = 34,
    /// The object belongs to another process, of which this one is a fork.
    Forked = 35,
    /// A bug of Refrain. The object is closed.
    Panicked = 36,
    /// An earlier call has panicked, and has closed the object.
    Poisoned = 37,
    /// A listener has thrown. The job is cancelled.
    Listener = 38,
    /// The handle is 0.
    NullHandle = 40,
    /// The handle was freed.
    StaleHandle = 41,
    /// The handle was made by another copy of the library, or by nobody.
    ForeignHandle = 42,
    /// The handle is of an object of another type.
    WrongHandle = 43,
    /// A pointer is NULL that must not be.
    NullPointer = 44,
    /// A text is not UTF-8.
    NotUtf8 = 45,
    /// A text is not the JSON that the call takes.
    NotJson = 46,
    /// No passage of the notes covers enough of the question.
    NotInNotes = 64,
    /// There is nothing to work on: no text, or no passage.
    Nothing = 65,
    /// Another process or object uses the folder.
    InUse = 66,
}

impl Code {
    /// All codes but `Ok`, by number.
    const FAILURES: [Self; 30] = [
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
        Self::Closed,
        Self::Busy,
        Self::Reentrant,
        Self::Forked,
        Self::Panicked,
        Self::Poisoned,
        Self::Listener,
        Self::NullHandle,
        Self::StaleHandle,
        Self::ForeignHandle,
        Self::WrongHandle,
        Self::NullPointer,
        Self::NotUtf8,
        Self::NotJson,
        Self::NotInNotes,
        Self::Nothing,
        Self::InUse,
    ];

    /// The code of a kind.
    pub(crate) fn of(kind: ErrorKind) -> Self {
        let is_it = |code: &&Self| **code as u32 == kind.code();
        Self::FAILURES.iter().find(is_it).copied().unwrap_or(Self::Io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_every_language() {
        let ours: Vec<u32> = Code::FAILURES.iter().map(|&code| code as u32).collect();
        let kinds: Vec<u32> = ErrorKind::ALL.iter().map(|kind| kind.code()).collect();
        assert_eq!(ours, kinds);
        for (code, kind) in Code::FAILURES.iter().zip(ErrorKind::ALL) {
            assert_eq!(format!("{code:?}"), format!("{kind:?}"));
        }
    }
}
