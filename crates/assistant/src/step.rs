//! The links of a job's chain: a prompt, what takes its output, and the events on the way.

use std::collections::VecDeque;
use std::ops::Range;

use refrain::{
    ErrorKind, FinishReason, GenerateError, GenerateOptions, Message, Origin, Session, SpecialTokens, Stats,
    TextKind,
};

use crate::assistant::Assistant;
use crate::edit::{DiffEvent, EditDoubt};
use crate::error::TaskError;
use crate::estimate::Estimate;
use crate::passage::LeftOut;
use crate::provenance::SentenceReady;
use crate::searched::Searched;
use crate::store::Kept;
use crate::template::plain_text;

/// An event of a job whose result is a `T`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "events are taken one by one, and the large one ends them")]
pub enum JobEvent<T> {
    /// The notes were searched: the first event of such a job.
    Searched(Searched),
    /// A chunk of the prompt was computed.
    Prefill {
        /// Prompt tokens that are computed, restored ones included.
        done: usize,
        /// Prompt tokens to be computed.
        total: usize,
    },
    /// A piece of the output. The pieces of kind [`TextKind::Answer`] together are the text of the result.
    Text(TextEvent),
    /// A sentence of the answer is complete, for reading it aloud; after [`Job::announce_sentences`](crate::Job::announce_sentences).
    Sentence(SentenceReady),
    /// What a task of several prompts has to do still: before the first one, and again after each.
    Estimate(Estimate),
    /// A window of a long text was edited. Who cancels the job later may keep what is done: the new text up to `new.end`, then the old
    /// text from `old.end` on.
    Window {
        /// The number of the window, from 0.
        index: usize,
        /// Windows of the text.
        n_windows: usize,
        /// Its place in the old text.
        old: Range<usize>,
        /// What became of it: its place in the new text.
        new: Range<usize>,
        /// Why it should not replace the old one without asking.
        doubts: Vec<EditDoubt>,
    },
    /// A part of a long text was summarised.
    Part {
        /// The number of the part, from 0.
        index: usize,
        /// Parts on its level.
        n_parts: usize,
        /// Its summary.
        text: String,
    },
    /// A part of the difference between an older text and the output. An edit compares with the text that is edited, a summary
    /// with the previous summary.
    Edit(DiffEvent),
    /// The result; nothing follows.
    Done(T),
}

/// A piece of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TextEvent {
    /// The text; never empty, complete characters only.
    pub text: String,
    /// Answer, or the reasoning before it.
    pub kind: TextKind,
    /// The source that drafted its last token, or the target.
    pub origin: Origin,
}

/// How an output came about; a part of every result.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// Why the last generation ended.
    pub finish: FinishReason,
    /// Generations that ended at a limit of tokens, not at their own end. If it is not 0, the text or the summary of a part is cut.
    pub n_cut: usize,
    /// The seed, given or drawn: with it in [`Sampling`](refrain::Sampling), the job repeats its text. `None` at temperature 0.
    pub seed: Option<u64>,
    /// The statistics of each generation, in order.
    pub stats: Vec<Stats>,
    /// What the model was not shown.
    pub left_out: Vec<LeftOut>,
    /// Why the answer was not kept in the store, though it should be.
    pub not_kept: Option<String>,
}

impl Report {
    /// Output tokens and verification steps of all generations.
    pub fn tokens_and_steps(&self) -> (usize, usize) {
        self.stats.iter().fold((0, 0), |(tokens, steps), stats| (tokens + stats.tokens, steps + stats.steps))
    }
}

/// What follows a generation, or begins a job.
pub(crate) enum Next<T> {
    Generate(Box<Prompt>, Box<dyn Step<T>>),
    /// Generations that do not depend on each other.
    Together(Box<dyn Parts<T>>),
    Done(T),
}

/// The end of a generation: what to do with its output.
pub(crate) trait Step<T>: Send {
    /// A piece of the output.
    fn text(&mut self, event: TextEvent, events: &mut VecDeque<JobEvent<T>>) {
        events.push_back(JobEvent::Text(event));
    }

    /// Whether the output has the form that its task needs; nothing is kept otherwise.
    fn accepts(&self, _text: &str) -> Result<(), TaskError> {
        Ok(())
    }

    /// Whether the job ends with this generation: its answers are kept then.
    fn is_last(&self) -> bool {
        true
    }

    /// The whole output.
    fn written(
        self: Box<Self>,
        written: Written,
        events: &mut VecDeque<JobEvent<T>>,
    ) -> Result<Next<T>, TaskError>;

    /// A chunk of the prompt was prefilled, and others follow.
    fn prefilled(&mut self, _session: &Session) -> Result<(), TaskError> {
        Ok(())
    }

    /// The generation has ended early. The session may have a part of the output.
    fn stopped(self: Box<Self>, _session: Session) {}
}

/// The prompt of a generation.
pub(crate) struct Prompt {
    /// The turns.
    pub(crate) messages: Vec<Message>,
    /// Turns of a prompt that may come instead: the state of recurrent layers is remembered where the two part.
    pub(crate) alternative: Option<Vec<Message>>,
    /// The task, for the namespace of its history.
    pub(crate) task: &'static str,
    /// A session that has all turns but the last, or the text to continue; `None`: a new one.
    pub(crate) session: Option<Session>,
    /// `None`: the prompt is prefilled only.
    pub(crate) generate: Option<GenerateOptions>,
    /// What the store notes about the answer; `None`: the answer is not kept.
    pub(crate) kept: Option<Kept>,
}

impl Prompt {
    /// A prompt of a new session, with an answer.
    pub(crate) fn new(
        task: &'static str,
        messages: Vec<Message>,
        generate: GenerateOptions,
        kept: Option<Kept>,
    ) -> Self {
        Self { messages, alternative: None, task, session: None, generate: Some(generate), kept }
    }
}

/// An output.
pub(crate) struct Written {
    pub(crate) session: Session,
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) finish: FinishReason,
    pub(crate) seed: Option<u64>,
    pub(crate) stats: Stats,
    pub(crate) not_kept: Option<String>,
}

impl Written {
    /// The report of a job with one generation.
    pub(crate) fn report(&self, left_out: Vec<LeftOut>) -> Report {
        Report {
            finish: self.finish,
            n_cut: usize::from(is_cut(self.finish)),
            seed: self.seed,
            stats: vec![self.stats.clone()],
            left_out,
            not_kept: self.not_kept.clone(),
        }
    }
}

/// Whether a generation ended at a limit of tokens.
pub(crate) fn is_cut(finish: FinishReason) -> bool {
    matches!(finish, FinishReason::MaxTokens | FinishReason::ContextFull)
}

/// Generations that do not depend on each other, and what follows them.
pub(crate) trait Parts<T>: Send {
    /// The next prompt, with its number; `None`: there are no more.
    fn next(&mut self, events: &mut VecDeque<JobEvent<T>>) -> Result<Option<(usize, Prompt)>, TaskError>;

    /// The output of a prompt. They come in any order.
    fn written(
        &mut self,
        number: usize,
        written: Written,
        events: &mut VecDeque<JobEvent<T>>,
    ) -> Result<(), TaskError>;

    /// What follows the last output.
    fn end(self: Box<Self>, events: &mut VecDeque<JobEvent<T>>) -> Result<Next<T>, TaskError>;
}

/// Adds turns to a session, as text if the model has no template for them.
pub(crate) fn append(
    assistant: &Assistant,
    session: &mut Session,
    turns: Vec<Message>,
) -> Result<(), TaskError> {
    if turns.is_empty() {
        return Ok(());
    }
    if assistant.has_chat_template() {
        turns.into_iter().try_for_each(|turn| session.append_message(turn))?;
    } else {
        session.append_text(&plain_text(&turns), SpecialTokens::AsText)?;
    }
    Ok(())
}

pub(crate) fn failed(error: GenerateError) -> TaskError {
    match error.kind() {
        ErrorKind::Cancelled => TaskError::Cancelled,
        _ => TaskError::Generate(error),
    }
}
