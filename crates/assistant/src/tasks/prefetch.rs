//! Computing prompts before they are asked.

use std::collections::VecDeque;

use super::{AnswerRequest, ReplyRequest, SummarizeRequest};
use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::job::{Job, JobEvent, Next, Prompt, Step, Written};
use crate::options::{JobOptions, Priority};
use crate::store::Kept;

/// A request that will probably come.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Prefetch {
    /// A question. If its words are not known yet, give the passages and an empty question: the prompt up to the question is
    /// shared with every question about them, and of models with recurrent layers, the state before the question is kept.
    Answer(AnswerRequest),
    /// A summary. Of a text that needs several prompts, the first one is computed.
    Summarize(SummarizeRequest),
    /// A reply.
    Reply(ReplyRequest),
}

/// A prompt that was computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prefetched {
    /// Its tokens.
    pub n_tokens: usize,
    /// Tokens from the first on whose keys and values are in the store now.
    pub n_kept: usize,
}

impl Assistant {
    /// Computes the prompt of a request and keeps its keys and values in the store: when the request comes, its prompt is restored
    /// as far as it is the same. Runs in the background, whatever the priority in the options is; [`JobEvent::Prefill`] is its
    /// progress. A job that is cancelled or dropped keeps nothing.
    ///
    /// # Errors
    /// [`TaskError::NoStore`], and the errors of the task.
    pub fn prefetch(&self, request: Prefetch, options: JobOptions) -> Result<Job<Prefetched>, TaskError> {
        if self.store().is_none() {
            return Err(TaskError::NoStore);
        }
        let n_forgotten = self.n_forgotten();
        let mut alternative = None;
        let (layout, task) = match request {
            Prefetch::Answer(request) => {
                if request.question.is_empty() && request.passages.is_some() {
                    let other = AnswerRequest { question: "?".to_owned(), ..request.clone() };
                    alternative = Some(self.answer_layout(other, &options)?.layout.turns);
                }
                (self.answer_layout(request, &options)?.layout, "answer")
            }
            Prefetch::Summarize(request) => (self.summary_layout(&request, &options)?, "summarize"),
            Prefetch::Reply(request) => (self.reply_layout(request, &options)?.layout, "reply"),
        };
        let Some(kept) = self.kept(&options, &layout, n_forgotten) else { return Err(TaskError::NoStore) };
        let step = Prefetching { assistant: self.clone(), kept };
        let messages = layout.turns;
        let prompt = Prompt { messages, alternative, task, session: None, generate: None, kept: None };
        Ok(Job::new(self, options.cancel, Priority::Background, prompt, Box::new(step)))
    }
}

struct Prefetching {
    assistant: Assistant,
    kept: Kept,
}

impl Step<Prefetched> for Prefetching {
    fn written(
        self: Box<Self>,
        written: Written,
        _events: &mut VecDeque<JobEvent<Prefetched>>,
    ) -> Result<Next<Prefetched>, TaskError> {
        let n_kept = self.assistant.keep_prompt(&written.session, &self.kept)?;
        Ok(Next::Done(Prefetched { n_tokens: written.session.tokens().len(), n_kept }))
    }
}
