//! Computing prompts before they are asked.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use refrain::Session;

use super::answer::AnswerRequest;
use super::reply::ReplyRequest;
use super::summarize::SummarizeRequest;
use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::job::Job;
use crate::options::{JobOptions, Priority};
use crate::step::{JobEvent, Next, Prompt, Step, Written};
use crate::store::Kept;

/// A request that will probably come.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Prefetch {
    /// A question. If its words are not known yet, give the passages and an empty question: the prompt up to the question is
    /// shared with every question about them, and of models with recurrent layers, the state before the question is kept.
    Answer(AnswerRequest),
    /// The same for [`Assistant::ask`], whose prompt is another one.
    Ask(AnswerRequest),
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
    /// progress. What a long prompt has computed is kept from time to time, so that a process that is killed goes on from there; a job
    /// that is cancelled or dropped keeps nothing more.
    ///
    /// # Errors
    /// [`TaskError::NoStore`], and the errors of the task.
    pub fn prefetch(&self, request: Prefetch, options: JobOptions) -> Result<Job<Prefetched>, TaskError> {
        if self.store().is_none() {
            return Err(TaskError::NoStore);
        }
        let n_forgotten = self.n_forgotten();
        let mut alternative = None;
        let template = match request {
            Prefetch::Ask(_) => &self.prompts().cited_answer,
            _ => &self.prompts().answer,
        };
        let (layout, task) = match request {
            Prefetch::Answer(request) | Prefetch::Ask(request) => {
                if request.question.is_empty() && request.passages.is_some() {
                    let other = AnswerRequest { question: "?".to_owned(), ..request.clone() };
                    alternative = Some(self.answer_layout(template, other, &options)?.layout.turns);
                }
                (self.answer_layout(template, request, &options)?.layout, "answer")
            }
            Prefetch::Summarize(request) => (self.summary_layout(&request, &options)?, "summarize"),
            Prefetch::Reply(request) => (self.reply_layout(request, &options)?.layout, "reply"),
        };
        let Some(kept) = self.kept(&options, &layout, n_forgotten) else { return Err(TaskError::NoStore) };
        let step = Prefetching { assistant: self.clone(), kept, n_chunks: 0, since: None };
        let messages = layout.turns;
        let prompt = Prompt { messages, alternative, task, session: None, generate: None, kept: None };
        Ok(Job::new(self, options.cancel, Priority::Background, prompt, Box::new(step)))
    }
}

/// Chunks after which a prefetched prompt is kept so far, and the time: what a kill loses at most.
const KEEP_CHUNKS: usize = 4;
const KEEP_TIME: Duration = Duration::from_secs(5);

struct Prefetching {
    assistant: Assistant,
    kept: Kept,
    /// Chunks since the prompt was kept so far, and when the first of them ended.
    n_chunks: usize,
    since: Option<Instant>,
}

impl Step<Prefetched> for Prefetching {
    fn prefilled(&mut self, session: &Session) -> Result<(), TaskError> {
        self.n_chunks += 1;
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.n_chunks >= KEEP_CHUNKS || since.elapsed() >= KEEP_TIME {
            self.assistant.keep_prompt(session, &self.kept)?;
            (self.n_chunks, self.since) = (0, None);
        }
        Ok(())
    }

    fn written(
        self: Box<Self>,
        written: Written,
        _events: &mut VecDeque<JobEvent<Prefetched>>,
    ) -> Result<Next<Prefetched>, TaskError> {
        let n_kept = self.assistant.keep_prompt(&written.session, &self.kept)?;
        Ok(Next::Done(Prefetched { n_tokens: written.session.tokens().len(), n_kept }))
    }
}
