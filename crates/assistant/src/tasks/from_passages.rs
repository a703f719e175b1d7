//! Answers from passages: what a search found, the prompt that shows it, and the end of its generation.

use std::collections::VecDeque;

use refrain::{Session, SpecialTokens, TokenId};
use refrain_index::{NoteFilter, Search};

use super::provenance::Provenance;
use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::job::Job;
use crate::layout::Layout;
use crate::options::JobOptions;
use crate::passage::{LeftOut, Passage};
use crate::searched::Searched;
use crate::step::{JobEvent, Next, Prompt, Report, Step, Written};

/// An answer, from notes or in the user's own words.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Answer {
    /// The answer.
    pub text: String,
    /// The reasoning before it; empty for most models.
    pub reasoning: String,
    /// The passages that the model was shown, in their order.
    pub passages: Vec<Passage>,
    /// What the notes were searched for; `None` if the passages were given.
    pub searched: Option<Searched>,
    /// Where the text comes from.
    pub provenance: Provenance,
    /// How it came about.
    pub report: Report,
}

/// What a search found: the passages to show, and the token ids of these and further ones, for drafts.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) passages: Vec<Passage>,
    pub(crate) tokens: Vec<Vec<TokenId>>,
    /// `None`: nothing was searched.
    pub(crate) searched: Option<Searched>,
}

impl Found {
    /// Takes the passages back if none covers at least `min` of the request.
    pub(crate) fn checked(mut self, min: f32) -> Self {
        if let Some(searched) = self.searched.as_mut().filter(|searched| searched.coverage < min) {
            searched.is_too_far = true;
            searched.nearest = std::mem::take(&mut self.passages);
            self.tokens.clear();
        }
        self
    }
}

/// A prompt of passages, token ids for drafts, and what was searched for.
pub(super) struct Prepared {
    pub(crate) layout: Layout,
    pub(crate) tokens: Vec<Vec<TokenId>>,
    pub(crate) searched: Option<Searched>,
}

impl Prepared {
    /// A prompt without a search.
    pub(super) fn of(layout: Layout) -> Self {
        Self { layout, tokens: Vec::new(), searched: None }
    }
}

impl Assistant {
    /// Searches the notes, except those that another process is to delete from the index. `earlier` are earlier requests of the
    /// conversation, newest first.
    pub(crate) fn search(
        &self,
        text: &str,
        n_shown: usize,
        filter: &NoteFilter,
        earlier: &[String],
    ) -> Result<Found, TaskError> {
        let index = self.notes().ok_or(TaskError::NoNotes)?;
        let mut search = Search::new(text, n_shown.max(self.options().n_draft_passages));
        search.filter = filter.clone();
        search.earlier = earlier.iter().map(String::as_str).collect();
        let words = index.searched_words(&search);
        let hits = self.search_notes(search)?;
        let coverage = hits.iter().take(n_shown).map(|hit| hit.coverage).fold(0.0, f32::max);
        // Of the meaning, only an embedder knows what is near.
        let is_near = self.embedder().is_some_and(|embedder| {
            let similarities = hits.iter().take(n_shown).filter_map(|hit| hit.similarity);
            embedder.similarity_min().is_none_or(|min| similarities.fold(f32::MIN, f32::max) >= min)
        });
        let coverage = if is_near { 1.0 } else { coverage };
        let searched = Searched { words, coverage, nearest: Vec::new(), is_too_far: hits.is_empty() };
        let passages: Vec<_> = hits.iter().map(|hit| hit.passage.clone()).collect();
        let tokens = index.tokens(self.engine().tokenizer(), &passages)?;
        let passages = hits.into_iter().take(n_shown).map(Passage::from).collect();
        Ok(Found { passages, tokens, searched: Some(searched) })
    }

    /// Token ids of a text, for drafts.
    pub(crate) fn tokens(&self, text: &str) -> Result<Vec<TokenId>, TaskError> {
        Ok(self.engine().tokenizer().encode(text, SpecialTokens::AsText)?)
    }

    /// A job of one generation from passages, which also drafts from these token ids. A `session` has a text that the layout
    /// does not have.
    pub(super) fn job_from_passages<T: 'static>(
        &self,
        task: &'static str,
        session: Option<Session>,
        Prepared { layout, tokens, searched }: Prepared,
        mut options: JobOptions,
        n_forgotten: u64,
        result: fn(Answer) -> T,
    ) -> Job<T> {
        let kept = self.kept(&options, &layout, n_forgotten);
        let generate = self.last_generate_options(&mut options, &tokens);
        let prompt = Prompt { session, ..Prompt::new(task, layout.turns, generate, kept) };
        let step =
            Showing { shown: layout.shown, left_out: layout.left_out, searched: searched.clone(), result };
        let job = Job::new(self, options.cancel, options.priority, prompt, Box::new(step));
        searched.into_iter().fold(job, Job::after_search)
    }
}

/// The end of a generation from passages.
struct Showing<T> {
    shown: Vec<Passage>,
    left_out: Vec<LeftOut>,
    searched: Option<Searched>,
    result: fn(Answer) -> T,
}

impl<T> Step<T> for Showing<T> {
    fn written(
        self: Box<Self>,
        written: Written,
        _events: &mut VecDeque<JobEvent<T>>,
    ) -> Result<Next<T>, TaskError> {
        let Self { shown: passages, left_out, searched, result } = *self;
        let report = written.report(left_out);
        let Written { text, reasoning, .. } = written;
        let provenance = Provenance::of(&text, &passages);
        Ok(Next::Done(result(Answer { text, reasoning, passages, searched, provenance, report })))
    }
}
