//! Answers to questions from notes.

use std::convert::identity;

use refrain::TokenId;
use refrain_index::NoteFilter;

use super::{Found, Provenance};
use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::job::{Job, Report};
use crate::layout::Layout;
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
}

impl AnswerRequest {
    /// A question about all notes.
    pub fn new(question: impl Into<String>) -> Self {
        Self { question: question.into(), ..Self::default() }
    }
}

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
    /// Where the text comes from.
    pub provenance: Provenance,
    /// How it came about.
    pub report: Report,
}

impl Assistant {
    /// Answers a question from the passages that match it best.
    ///
    /// The prompt is that of [`Prompts::answer`](crate::Prompts::answer). The model cites passages as `[n]` if the template
    /// numbers them (`{cited_passages}`).
    ///
    /// # Errors
    /// [`TaskError::NoNotes`]; [`TaskError::Nothing`]: no passage shares a word with the question;
    /// [`TaskError::RequestTooLong`], [`TaskError::NoRoom`]; the notes cannot be read.
    pub fn answer(&self, request: AnswerRequest, options: JobOptions) -> Result<Job<Answer>, TaskError> {
        let n_forgotten = self.n_forgotten();
        let layout = self.answer_layout(&self.prompts().answer, request, &options)?;
        Ok(self.job_from_passages("answer", None, layout, options, n_forgotten, identity))
    }

    /// The prompt of an answer, and token ids for drafts.
    pub(super) fn answer_layout(
        &self,
        template: &Template,
        request: AnswerRequest,
        options: &JobOptions,
    ) -> Result<(Layout, Vec<Vec<TokenId>>), TaskError> {
        let AnswerRequest { question, filter, n_passages, passages } = request;
        let Found { passages, tokens } = match passages {
            Some(passages) => Found { passages, tokens: Vec::new() },
            None => self.search(&question, n_passages.unwrap_or(self.options().n_passages), &filter)?,
        };
        if passages.is_empty() {
            return Err(TaskError::Nothing { verb: "answer from" });
        }
        let room = self.context_len() - self.answer_tokens(options);
        Ok((self.lay_out(template, &[], &passages, &question, room)?, tokens))
    }
}
