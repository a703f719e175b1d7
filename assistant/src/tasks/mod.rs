//! The tasks. Each searches and lays out its prompt when it is called, and computes when its job is driven.

mod answer;
mod chat;
mod edit;
mod prefetch;
mod provenance;
mod reply;
mod summarize;
mod ui;

use std::path::PathBuf;

use refrain::internals::draft::PassagesSource;
use refrain::{DraftSource, SpecialTokens, TokenId};
use refrain_index::Search;

pub use answer::{Answer, AnswerRequest};
pub use chat::{ChatAnswer, ChatRequest, Conversation, ConversationId};
pub use edit::{Edit, EditRequest};
pub use prefetch::{Prefetch, Prefetched};
pub use provenance::Provenance;
pub use reply::{Length, Reply, ReplyRequest};
pub use summarize::{SummarizeRequest, Summary};
pub use ui::{Command, Direction, Element, Role, Screen, ScreenError, UiCommand, UiRequest};

use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::passage::Passage;

/// What a search found: the passages to show, and the token ids of these and further ones, for drafts.
pub(crate) struct Found {
    pub(crate) passages: Vec<Passage>,
    pub(crate) tokens: Vec<Vec<TokenId>>,
}

impl Assistant {
    /// Searches the notes.
    pub(crate) fn search(&self, text: &str, n_shown: usize, folders: &[PathBuf]) -> Result<Found, TaskError> {
        let index = self.notes().ok_or(TaskError::NoNotes)?;
        let mut search = Search::new(text, n_shown.max(self.options().n_draft_passages));
        search.folders = folders.to_vec();
        let hits = index.search(&search)?;
        let passages: Vec<_> = hits.iter().map(|hit| hit.passage.clone()).collect();
        let tokens = index.tokens(self.engine().tokenizer(), &passages)?;
        Ok(Found { passages: hits.into_iter().take(n_shown).map(Passage::from).collect(), tokens })
    }

    /// Token ids of a text, for drafts.
    pub(crate) fn tokens(&self, text: &str) -> Result<Vec<TokenId>, TaskError> {
        Ok(self.engine().tokenizer().encode(text, SpecialTokens::AsText)?)
    }
}

/// A draft source of these texts, if there are any.
pub(crate) fn draft_source(texts: &[Vec<TokenId>]) -> Option<Box<dyn DraftSource>> {
    let is_some = texts.iter().any(|text| !text.is_empty());
    is_some.then(|| Box::new(PassagesSource::new(texts.iter().map(Vec::as_slice))) as Box<dyn DraftSource>)
}
