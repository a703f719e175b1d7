//! The errors of building an assistant and of its jobs.

use std::path::PathBuf;

use refrain::{GenerateError, SessionError, TokenizerError};
use refrain_grammar::{GrammarError, VocabularyError};
use refrain_index::{HistoryError, NotesError};
use thiserror::Error;

use crate::edit::part::EditPartError;
use crate::screen::{ActionError, ScreenError};
use crate::searched::Searched;
use crate::store::StoreError;

/// An assistant could not be built.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The index of notes cannot be opened.
    #[error(transparent)]
    Notes(#[from] NotesError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A deletion that was interrupted cannot be finished.
    #[error("an interrupted deletion cannot be finished: {0}")]
    Forget(#[from] ForgetError),
    /// The name of the namespace is empty or too long.
    #[error("a namespace's name has {bytes} bytes, outside 1..={max}")]
    Namespace {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
}

/// A job could not start or go on. The assistant is as before, and other jobs go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The job was cancelled, by its token. The text of its events is all that there is, and nothing was kept.
    #[error("cancelled")]
    Cancelled,
    /// The assistant has no index of notes.
    #[error("the assistant has no notes")]
    NoNotes,
    /// There is nothing to work on: no text, or no passage of the notes matches.
    #[error("there is nothing to {verb}")]
    Nothing {
        /// The task.
        verb: &'static str,
    },
    /// No passage of the notes covers enough of the question
    /// ([`AssistantOptions::coverage_min`](crate::AssistantOptions::coverage_min)), or none has a word of it.
    #[error("not in your notes: no passage covers enough of the question{}", nearest(searched))]
    NotInNotes {
        /// What was searched for, and the nearest passages.
        searched: Box<Searched>,
    },
    /// The request alone does not fit the context.
    #[error("the request has {n_tokens} tokens with its template, and the context has room for {room}")]
    RequestTooLong {
        /// Its tokens, with those of the template and of earlier turns that cannot be left out.
        n_tokens: usize,
        /// Tokens of the context beside the output.
        room: usize,
    },
    /// The text must be whole and does not fit the context.
    #[error("the text has {n_tokens} tokens with its request, and the context has room for {room}")]
    TextTooLong {
        /// Its tokens, with those of request and template.
        n_tokens: usize,
        /// Tokens of the context beside the output.
        room: usize,
    },
    /// The part of a text that is to be edited is too large.
    #[error("the text to edit has {bytes} bytes, more than {max}")]
    TextTooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The text has no such part.
    #[error(transparent)]
    Part(#[from] EditPartError),
    /// Not even the start of one passage fits the context.
    #[error("the context has room for {room} tokens of passages, too few for any")]
    NoRoom {
        /// Tokens of the context beside the output, the template and the request.
        room: usize,
    },
    /// The assistant has no store.
    #[error("the assistant has no store")]
    NoStore,
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoChatTemplate,
    /// The store cannot keep what the job was for.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another job of the conversation is running.
    #[error("the conversation has a running job")]
    Busy,
    /// The screen cannot be read.
    #[error(transparent)]
    Screen(#[from] ScreenError),
    /// The actions of an agent cannot be used.
    #[error(transparent)]
    Actions(#[from] ActionError),
    /// The notes cannot be searched or read.
    #[error(transparent)]
    Notes(#[from] NotesError),
    /// The history cannot be read.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// A text cannot be encoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A session cannot be started.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The generation failed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The vocabulary has no grammar.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// The grammar of a command cannot be compiled.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The output does not have the form that its grammar demands, because it ended early.
    #[error("the output ended before the command was complete: `{text}`")]
    Incomplete {
        /// The output.
        text: String,
    },
    /// A note is not in the index.
    #[error("`{}` is not in the index of notes", path.display())]
    NoSuchNote {
        /// The note.
        path: PathBuf,
    },
}

/// `; the nearest: A, B`
fn nearest(searched: &Searched) -> String {
    match searched.nearest_titles() {
        titles if titles.is_empty() => String::new(),
        titles => format!("; the nearest: {}", titles.join(", ")),
    }
}

/// Not everything was deleted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ForgetError {
    /// The index of notes cannot be changed, or the path of a note is not a path. The deletion is not noted in the store.
    #[error(transparent)]
    Notes(#[from] NotesError),
    /// The store cannot be changed. The deletion is not noted in it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The deletion is noted in the store and partly done. The next deletion, and the next assistant with the store, finish
    /// it. Until then, searches of assistants leave out the notes.
    #[error("{source}")]
    Unfinished {
        /// The error that interrupted the deletion.
        source: Box<ForgetError>,
    },
}

impl ForgetError {
    pub(crate) fn noted(self) -> Self {
        Self::Unfinished { source: Box::new(self) }
    }
}
