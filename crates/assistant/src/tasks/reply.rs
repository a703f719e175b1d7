//! Replies to messages.

use refrain_index::NoteFilter;

use super::from_passages::{Answer, Found, Prepared};
use super::provenance::Provenance;
use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::job::Job;
use crate::options::JobOptions;
use crate::passage::Passage;
use crate::step::Report;

/// A message to be answered.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReplyRequest {
    /// The message: its title, such as `Mail from Ada`, and its text.
    pub message: Passage,
    /// Earlier messages of the thread, newest first.
    pub earlier: Vec<Passage>,
    /// The user's wish, such as `Accept, but on Tuesday.`; may be empty.
    pub request: String,
    /// The tone in the language of the prompt, such as `friendly`.
    pub tone: Option<String>,
    /// The length.
    pub length: Option<Length>,
    /// Passages that help, best first, such as those of the app's own search.
    pub passages: Vec<Passage>,
    /// Number of passages of the notes to show behind them, by a search for the message and the wish. Default 0.
    pub n_passages: usize,
    /// The notes to search. Default: all.
    pub filter: NoteFilter,
}

impl ReplyRequest {
    /// A message without a thread.
    pub fn new(title: impl Into<String>, text: impl Into<String>) -> Self {
        Self::of(Passage::new(title, text))
    }

    /// A message without a thread, which may be of a note ([`Passage::of_note`]).
    pub fn of(message: Passage) -> Self {
        Self {
            message,
            earlier: Vec::new(),
            request: String::new(),
            tone: None,
            length: None,
            passages: Vec::new(),
            n_passages: 0,
            filter: NoteFilter::default(),
        }
    }

    /// The newest message of a thread, from its messages in their order, such as those of a mailbox ([`Passage::read`]). `None` without a
    /// message.
    pub fn of_thread(messages: impl IntoIterator<Item = Passage>) -> Option<Self> {
        let mut messages: Vec<Passage> = messages.into_iter().collect();
        let message = messages.pop()?;
        messages.reverse();
        Some(Self { earlier: messages, ..Self::of(message) })
    }

    /// The wish, with tone and length.
    fn wish(&self) -> String {
        let tone = self.tone.as_ref().map(|tone| format!("Tone: {tone}."));
        let length = self.length.map(|length| format!("Length: {}.", length.words()));
        let parts = [Some(self.request.trim().to_owned()), tone, length];
        let parts: Vec<String> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        parts.join(" ")
    }
}

/// The length of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// One or two sentences.
    Short,
    /// A paragraph.
    Medium,
    /// Several paragraphs.
    Long,
}

impl Length {
    fn words(self) -> &'static str {
        match self {
            Self::Short => "one or two sentences",
            Self::Medium => "a paragraph",
            Self::Long => "several paragraphs",
        }
    }
}

/// A reply.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Reply {
    /// The reply.
    pub text: String,
    /// The reasoning before it; empty for most models.
    pub reasoning: String,
    /// What the model was shown: the message, earlier ones, passages of the notes.
    pub passages: Vec<Passage>,
    /// Where the text comes from.
    pub provenance: Provenance,
    /// How it came about.
    pub report: Report,
}

impl Assistant {
    /// Writes a reply to a message. The prompt shows the message, then earlier messages, then passages; what does not
    /// fit is left out from the end.
    ///
    /// # Errors
    /// [`TaskError::Nothing`]: the message is empty; [`TaskError::NoNotes`]: passages are wanted and there are no notes;
    /// [`TaskError::RequestTooLong`], [`TaskError::NoRoom`]; the notes cannot be read.
    pub fn reply(&self, request: ReplyRequest, options: JobOptions) -> Result<Job<Reply>, TaskError> {
        let n_forgotten = self.n_forgotten();
        let prepared = self.reply_layout(request, &options)?;
        Ok(self.job_from_passages("reply", None, prepared, options, n_forgotten, |done| {
            let Answer { text, reasoning, passages, provenance, report, .. } = done;
            Reply { text, reasoning, passages, provenance, report }
        }))
    }

    /// The prompt of a reply.
    pub(super) fn reply_layout(
        &self,
        request: ReplyRequest,
        options: &JobOptions,
    ) -> Result<Prepared, TaskError> {
        let wish = request.wish();
        let ReplyRequest { message, earlier, passages: helpful, n_passages, filter, .. } = request;
        if message.text.trim().is_empty() {
            return Err(TaskError::Nothing { verb: "reply to" });
        }
        let found = match n_passages {
            0 => Found::default(),
            n => self.search(&format!("{wish}\n{}", message.text), n, &filter, &[])?,
        };
        let helpful = helpful.into_iter().chain(found.passages);
        let passages: Vec<Passage> = [message].into_iter().chain(earlier).chain(helpful).collect();
        let room = self.context_len() - self.answer_tokens(options);
        let layout = self.lay_out(&self.prompts().reply, &[], &passages, &wish, room)?;
        Ok(Prepared { layout, tokens: found.tokens, searched: found.searched })
    }
}
