//! Answers to questions from notes.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;

use super::{Found, draft_source};
use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::job::{Job, JobEvent, Next, Prompt, Report, Step, Written};
use crate::options::JobOptions;
use crate::passage::{LeftOut, Passage};

/// A question about notes.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct AnswerRequest {
    /// The question.
    pub question: String,
    /// Files, or folders with everything below them, to search; empty: all notes.
    pub folders: Vec<PathBuf>,
    /// Passages to show in place of a search, best first.
    pub passages: Option<Vec<Passage>>,
}

impl AnswerRequest {
    /// A question about all notes.
    pub fn new(question: impl Into<String>) -> Self {
        Self { question: question.into(), ..Self::default() }
    }
}

crate::options::setters!(AnswerRequest {
    with_folders: folders: Vec<PathBuf>,
    with_passages: passages: Option<Vec<Passage>>,
});

/// An answer from notes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Answer {
    /// The answer.
    pub text: String,
    /// The reasoning before it; empty for most models.
    pub reasoning: String,
    /// The passages that the model was shown, in their order.
    pub passages: Vec<Passage>,
    /// The marks `[n]` in the text that name a passage, in order of the text.
    pub citations: Vec<Citation>,
    /// How it came about.
    pub report: Report,
}

/// A mark in an answer that names a passage.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Citation {
    /// The bytes of the mark in the text.
    pub place: Range<usize>,
    /// The passage, as an index into [`Answer::passages`].
    pub passage: usize,
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
    pub fn answer(&self, request: AnswerRequest, mut options: JobOptions) -> Result<Job<Answer>, TaskError> {
        let AnswerRequest { question, folders, passages } = request;
        let Found { passages, tokens } = match passages {
            Some(passages) => Found { passages, tokens: Vec::new() },
            None => self.search(&question, self.options().n_passages, &folders)?,
        };
        if passages.is_empty() {
            return Err(TaskError::Nothing { verb: "answer from" });
        }
        let room = self.context_len() - self.answer_tokens(&options);
        let layout = self.lay_out(&self.prompts().answer, &[], &passages, &question, room)?;
        let kept = self.kept(&options, &layout.shown);
        let mut generate = self.generate_options(&options);
        generate.sources =
            draft_source(&tokens).into_iter().chain(std::mem::take(&mut options.sources)).collect();
        generate.processors = std::mem::take(&mut options.processors);
        let prompt =
            Prompt { messages: layout.turns, task: "answer", session: None, generate: Some(generate), kept };
        let step = Answering { shown: layout.shown, left_out: layout.left_out };
        Ok(Job::new(self, options.cancel, options.priority, prompt, step))
    }
}

struct Answering {
    shown: Vec<Passage>,
    left_out: Vec<LeftOut>,
}

impl Step<Answer> for Answering {
    fn written(
        self: Box<Self>,
        written: Written,
        _events: &mut VecDeque<JobEvent<Answer>>,
    ) -> Result<Next<Answer>, TaskError> {
        let report = written.report(self.left_out);
        let Written { text, reasoning, .. } = written;
        let citations = citations(&text, self.shown.len());
        Ok(Next::Done(Answer { text, reasoning, passages: self.shown, citations, report }))
    }
}

/// The marks `[n]` of a text with `n` in 1..=`n_passages`.
fn citations(text: &str, n_passages: usize) -> Vec<Citation> {
    let marks = text.match_indices('[').filter_map(|(start, _)| {
        let inside = &text[start + 1..];
        let end = inside.find(']')?;
        let digits = &inside[..end];
        let is_number = !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number: usize = is_number.then(|| digits.parse().ok())??;
        (1..=n_passages)
            .contains(&number)
            .then(|| Citation { place: start..start + end + 2, passage: number - 1 })
    });
    marks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_shown_passages_are_citations() {
        let found = |text| {
            citations(text, 3)
                .into_iter()
                .map(|Citation { place, passage }| (place, passage))
                .collect::<Vec<_>>()
        };
        assert_eq!(found("Ada [2], Ben [3][1]."), [(4..7, 1), (13..16, 2), (16..19, 0)]);
        assert_eq!(found("[4] [0] [01] [+1] [] [a] [1 [99999999999999999999999]"), []);
    }
}
