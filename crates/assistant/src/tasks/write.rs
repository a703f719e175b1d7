//! Requests in the user's own words, and texts to continue.

use std::convert::identity;

use refrain::SpecialTokens;

use super::from_passages::{Answer, Prepared};
use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::job::Job;
use crate::layout::Layout;
use crate::options::JobOptions;
use crate::passage::Passage;
use crate::template::Template;

/// A request in the user's own words.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WriteRequest {
    /// The request.
    pub request: String,
    /// Texts that the prompt shows before the request, in their order.
    pub passages: Vec<Passage>,
}

impl WriteRequest {
    /// A request without texts.
    pub fn new(request: impl Into<String>) -> Self {
        Self { request: request.into(), passages: Vec::new() }
    }
}

impl Assistant {
    /// Answers a request in the user's own words. The prompt shows the texts that fit, then the request, and no instruction.
    ///
    /// # Errors
    /// [`TaskError::Nothing`]: request and texts are empty; [`TaskError::RequestTooLong`], [`TaskError::NoRoom`].
    pub fn write(&self, request: WriteRequest, options: JobOptions) -> Result<Job<Answer>, TaskError> {
        let n_forgotten = self.n_forgotten();
        let WriteRequest { request, passages } = request;
        if request.trim().is_empty() && passages.is_empty() {
            return Err(TaskError::Nothing { verb: "answer" });
        }
        let room = self.context_len() - self.answer_tokens(&options);
        let layout = self.lay_out(&Template::words_behind_texts(), &[], &passages, &request, room)?;
        Ok(self.job_from_passages("write", None, Prepared::of(layout), options, n_forgotten, identity))
    }

    /// Continues a text, without the system turn and the model's chat template.
    ///
    /// # Errors
    /// [`TaskError::Nothing`]: the text is empty; [`TaskError::Session`]: it does not fit the context.
    pub fn continue_text(&self, text: &str, options: JobOptions) -> Result<Job<Answer>, TaskError> {
        let n_forgotten = self.n_forgotten();
        if text.is_empty() {
            return Err(TaskError::Nothing { verb: "continue" });
        }
        let mut session = self.session("write", options.keep)?;
        session.append_text(text, SpecialTokens::AsText)?;
        let nothing = Prepared::of(Layout::default());
        Ok(self.job_from_passages("write", Some(session), nothing, options, n_forgotten, identity))
    }
}
