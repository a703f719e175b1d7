//! Answers to questions from notes.

use std::convert::identity;

use refrain_index::NoteFilter;

use super::from_passages::{Answer, Found, Prepared};
use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::job::Job;
use crate::options::JobOptions;
use crate::passage::Passage;
use crate::template::Template;

/// A question about notes.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct AnswerRequest {
    /// The question.
    pub question: String,
    /// The notes to search. Default: all.
    pub filter: NoteFilter,
    /// Maximum number of passages to show; default: [`AssistantOptions::n_passages`](crate::AssistantOptions).
    pub n_passages: Option<usize>,
    /// Passages to show in place of a search, best first.
    pub passages: Option<Vec<Passage>>,
    /// Earlier questions of the conversation, newest first: the search looks for their words too, with less weight
    /// ([`Search::earlier`](refrain_index::Search::earlier)). The prompt does not show them.
    pub earlier: Vec<String>,
    /// As [`AssistantOptions::coverage_min`](crate::AssistantOptions::coverage_min), for this question.
    pub coverage_min: Option<f32>,
}

impl AnswerRequest {
    /// A question about all notes.
    pub fn new(question: impl Into<String>) -> Self {
        Self { question: question.into(), ..Self::default() }
    }
}

impl Assistant {
    /// Answers a question from the passages that match it best.
    ///
    /// The prompt is that of [`Prompts::answer`](crate::Prompts::answer). The model cites passages as `[n]` if the template
    /// numbers them (`{cited_passages}`).
    ///
    /// # Errors
    /// [`TaskError::NoNotes`]; [`TaskError::NotInNotes`]: no passage covers enough of the question; [`TaskError::Nothing`]: no passages
    /// are given; [`TaskError::RequestTooLong`], [`TaskError::NoRoom`]; the notes cannot be read.
    pub fn answer(&self, request: AnswerRequest, options: JobOptions) -> Result<Job<Answer>, TaskError> {
        let n_forgotten = self.n_forgotten();
        let prepared = self.answer_layout(&self.prompts().answer, request, &options)?;
        Ok(self.job_from_passages("answer", None, prepared, options, n_forgotten, identity))
    }

    /// The prompt of an answer.
    pub(super) fn answer_layout(
        &self,
        template: &Template,
        request: AnswerRequest,
        options: &JobOptions,
    ) -> Result<Prepared, TaskError> {
        let AnswerRequest { question, filter, n_passages, passages, earlier, coverage_min } = request;
        let Found { passages, tokens, searched } = match passages {
            Some(passages) => Found { passages, ..Found::default() },
            None => {
                let n_passages = n_passages.unwrap_or(self.options().n_passages);
                let found = self.search(&question, n_passages, &filter, &earlier)?;
                found.checked(coverage_min.unwrap_or(self.options().coverage_min))
            }
        };
        if let Some(searched) = searched.as_ref().filter(|searched| searched.is_not_in_notes()) {
            return Err(TaskError::NotInNotes { searched: Box::new(searched.clone()) });
        }
        if passages.is_empty() {
            return Err(TaskError::Nothing { verb: "answer from" });
        }
        let room = self.context_len() - self.answer_tokens(options);
        let layout = self.lay_out(template, &[], &passages, &question, room)?;
        Ok(Prepared { layout, tokens, searched })
    }
}
