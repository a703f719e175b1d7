//! Edits of a text by an instruction, with the changes as they are written.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use refrain::{Origin, TextKind, TokenId};
use refrain_index::NotesError;
use refrain_index::notes::absolute;

use crate::assistant::Assistant;
use crate::edit::{DiffEvent, EditDoubt, LiveDiff, doubts};
use crate::error::TaskError;
use crate::job::{Job, JobEvent, Next, Prompt, Report, Step, TextEvent, Written};
use crate::options::JobOptions;
use crate::passage::{Passage, Source};

/// Tokens that an edited text may have besides those of the old one, unless the job says otherwise: a quarter more, and a sentence.
const MORE_TOKENS: usize = 32;

/// The shortest repetition that DRY penalises in an edit, in tokens, where the sampling options leave the prompt's alone. A text may have
/// equal lines that the edit changes in the same way; 32 tokens are several of them.
const LOOP_TOKENS_MIN: usize = 32;

/// A text to be edited.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EditRequest {
    /// The text.
    pub text: String,
    /// What is to be changed.
    pub instruction: String,
    /// The note that the text is of, as an absolute path.
    pub note: Option<PathBuf>,
}

impl EditRequest {
    /// A text and what is to be changed in it.
    pub fn new(text: impl Into<String>, instruction: impl Into<String>) -> Self {
        Self { text: text.into(), instruction: instruction.into(), note: None }
    }

    /// Names the note of the text, so that [`Forget::Note`](crate::Forget::Note) finds answers made from the text.
    ///
    /// # Errors
    /// [`NotesError::Path`]: the path is empty, or there is no current folder.
    pub fn of_note(mut self, path: impl AsRef<Path>) -> Result<Self, NotesError> {
        self.note = Some(absolute(path.as_ref())?);
        Ok(self)
    }
}

/// An edited text.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Edit {
    /// The new text. White space at the ends of the old one is kept.
    pub text: String,
    /// The reasoning before it; empty for most models.
    pub reasoning: String,
    /// The changes from the old text to the new one: the events of the job, in order.
    pub changes: Vec<DiffEvent>,
    /// Why the new text should not replace the old one without asking; empty for most edits.
    pub doubts: Vec<EditDoubt>,
    /// How it came about.
    pub report: Report,
}

impl Assistant {
    /// Edits a text. The changes come as [`JobEvent::Edit`] while the new text is written. The old text drafts the new one, from the prompt.
    ///
    /// The text is shown whole, and the output has room for a text that is a quarter longer, unless
    /// [`JobOptions::answer_tokens`] says otherwise.
    ///
    /// # Errors
    /// [`TaskError::Nothing`]: the text is empty; [`TaskError::TextTooLong`]: text and output do not fit the context.
    pub fn edit(&self, request: EditRequest, mut options: JobOptions) -> Result<Job<Edit>, TaskError> {
        let n_forgotten = self.n_forgotten();
        let EditRequest { text, instruction, note } = request;
        let core = text.trim();
        if core.is_empty() {
            return Err(TaskError::Nothing { verb: "edit" });
        }
        let n_tokens = self.count(core)?;
        let n_output = options.answer_tokens.or(self.options().answer_tokens);
        let n_output = n_output.unwrap_or(n_tokens + n_tokens / 4 + MORE_TOKENS);
        let room = self.context_len().saturating_sub(n_output);
        let mut passage = Passage::new("", core);
        passage.source = note.map(Source::of_note);
        let passages = [passage];
        let layout = self.lay_out_whole(&self.prompts().edit, &passages, &instruction, room)?;
        let kept = self.kept(&options, &layout, n_forgotten);
        let mut generate = self.last_generate_options(&mut options, &[]);
        generate.max_tokens = n_output;
        let dry = &mut generate.sampling.dry;
        if dry.output_only {
            dry.allowed_length = dry.allowed_length.max(LOOP_TOKENS_MIN);
        }
        let prompt = Prompt::new("edit", layout.turns, generate, kept);
        let step = Editing::new(self, &text, instruction);
        Ok(Job::new(self, options.cancel, options.priority, prompt, Box::new(step)))
    }
}

struct Editing {
    assistant: Assistant,
    instruction: String,
    diff: LiveDiff,
    /// White space before the text, until the first text is written, and behind it.
    lead: String,
    trail: String,
    changes: Vec<DiffEvent>,
}

impl Editing {
    fn new(assistant: &Assistant, text: &str, instruction: String) -> Self {
        let (core, start) = (text.trim(), text.len() - text.trim_start().len());
        let (lead, trail) = (text[..start].to_owned(), text[start + core.len()..].to_owned());
        let (diff, changes) = (LiveDiff::new(text), Vec::new());
        Self { assistant: assistant.clone(), instruction, diff, lead, trail, changes }
    }

    /// Why the new text may be another than what was asked for.
    fn doubts(&self, old: &str, new: &str) -> Vec<EditDoubt> {
        let tokenizer = self.assistant.engine().tokenizer();
        let ids = (0..tokenizer.vocab_size() as u32).map(TokenId);
        let controls = ids.filter(|&id| tokenizer.is_special(id)).filter_map(|id| tokenizer.token_bytes(id));
        let controls = controls.filter_map(|text| std::str::from_utf8(text).ok());
        // Shorter ones, and words, are text of notes too.
        let controls = controls.filter(|text| text.len() >= 3 && !text.chars().all(char::is_alphanumeric));
        let sentences = self.assistant.prompts().edit.sentences();
        doubts((old, new), &self.changes, &self.instruction, controls.chain(sentences))
    }

    fn note(&mut self, changes: Vec<DiffEvent>, events: &mut VecDeque<JobEvent<Edit>>) {
        events.extend(changes.iter().cloned().map(JobEvent::Edit));
        self.changes.extend(changes);
    }
}

impl Step<Edit> for Editing {
    fn text(&mut self, event: TextEvent, events: &mut VecDeque<JobEvent<Edit>>) {
        if event.kind == TextKind::Answer {
            let text = std::mem::take(&mut self.lead) + &event.text;
            let changes = self.diff.push(&text);
            events.push_back(JobEvent::Text(TextEvent { text, ..event }));
            self.note(changes, events);
        } else {
            events.push_back(JobEvent::Text(event));
        }
    }

    fn written(
        mut self: Box<Self>,
        written: Written,
        events: &mut VecDeque<JobEvent<Edit>>,
    ) -> Result<Next<Edit>, TaskError> {
        let end = std::mem::take(&mut self.lead) + &self.trail;
        let mut changes = self.diff.push(&end);
        let (old, text) = (self.diff.old_text().to_owned(), self.diff.new_text().to_owned());
        changes.extend(std::mem::replace(&mut self.diff, LiveDiff::new("")).finish());
        if !end.is_empty() {
            let origin = Origin::Target;
            events.push_back(JobEvent::Text(TextEvent { text: end, kind: TextKind::Answer, origin }));
        }
        self.note(changes, events);
        let doubts = self.doubts(&old, &text);
        let report = written.report(Vec::new());
        Ok(Next::Done(Edit { text, reasoning: written.reasoning, changes: self.changes, doubts, report }))
    }
}
