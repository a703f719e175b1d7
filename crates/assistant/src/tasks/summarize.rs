//! Summaries of texts and notes. A text that does not fit the context is summarised in parts, and the summaries of the parts are
//! summarised.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use refrain::{Stats, TextKind};
use refrain_index::notes::absolute;
use refrain_index::{Document, NotesError, split_sections};
use xxhash_rust::xxh3::xxh3_64;

use crate::assistant::Assistant;
use crate::edit::{DiffEvent, LiveDiff};
use crate::error::TaskError;
use crate::job::{Job, JobEvent, Next, Prompt, Report, Step, TextEvent, Written, is_cut};
use crate::layout::{Layout, note_paths};
use crate::options::JobOptions;
use crate::passage::{LeftOut, LeftOutReason, Passage, Source, joined};
use crate::store::{Kept, StoredSummary, micros};

/// What to summarise.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SummarizeRequest {
    pub(super) subject: Subject,
    /// The user's wish, such as `In two sentences.`; may be empty.
    pub request: String,
}

#[derive(Debug, Clone)]
pub(super) enum Subject {
    Texts { texts: Vec<Passage>, id: Option<String> },
    Notes(Vec<PathBuf>),
    Query(String),
}

impl SummarizeRequest {
    /// A text with a title, which may be empty. It is compared with an earlier summary ([`Summary::previous`]) if it has a note
    /// ([`of_note`](Self::of_note)) or an id ([`with_id`](Self::with_id)).
    pub fn text(title: impl Into<String>, text: impl Into<String>) -> Self {
        Self::texts([Passage::new(title, text)])
    }

    /// Texts of any length, each with its title. They are compared with an earlier summary if each has a note
    /// ([`Passage::of_note`]), or if they have an id together.
    pub fn texts(texts: impl IntoIterator<Item = Passage>) -> Self {
        Self::of(Subject::Texts { texts: texts.into_iter().collect(), id: None })
    }

    /// Names the note of the given text: [`Forget::Note`](crate::Forget::Note) then finds the summary, and the summary is compared
    /// with the last summary of this note. No effect on summaries of the index.
    ///
    /// # Errors
    /// [`NotesError::Path`]: the path is empty, or there is no current folder.
    pub fn of_note(mut self, path: impl AsRef<Path>) -> Result<Self, NotesError> {
        let path = absolute(path.as_ref())?;
        if let Subject::Texts { texts, .. } = &mut self.subject {
            texts.iter_mut().for_each(|text| text.source = Some(Source::of_note(path.clone())));
        }
        Ok(self)
    }

    /// Names given texts that are of no note: they are compared with the last summary of texts with the same titles and id. No
    /// effect on summaries of the index.
    #[must_use]
    pub fn with_id(mut self, name: impl Into<String>) -> Self {
        if let Subject::Texts { id, .. } = &mut self.subject {
            *id = Some(name.into());
        }
        self
    }

    /// Notes of the index: files, or folders with everything below them.
    pub fn notes<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Self {
        Self::of(Subject::Notes(paths.into_iter().map(Into::into).collect()))
    }

    /// The passages of the notes that match a text best: as many as [`AssistantOptions::n_passages`](crate::AssistantOptions).
    pub fn query(text: impl Into<String>) -> Self {
        Self::of(Subject::Query(text.into()))
    }

    fn of(subject: Subject) -> Self {
        Self { subject, request: String::new() }
    }

    /// The hash under which the summary is stored: of the kind of subject, its names, and the request. `None` for texts that
    /// nothing names.
    fn key(&self) -> Option<u64> {
        let of_path = |path: &Path| path.as_os_str().as_encoded_bytes().to_vec();
        let (kind, names): (u8, Vec<Vec<u8>>) = match &self.subject {
            Subject::Texts { texts, id } => {
                let notes = texts.iter().map(|text| text.source.as_ref().map(|source| of_path(&source.path)));
                match (notes.collect::<Option<Vec<_>>>(), id) {
                    (Some(notes), _) => (3, notes),
                    (None, Some(id)) => {
                        let titles = texts.iter().map(|text| text.title.clone().into_bytes());
                        (0, titles.chain([id.clone().into_bytes()]).collect())
                    }
                    (None, None) => return None,
                }
            }
            Subject::Notes(paths) => (1, paths.iter().map(|path| of_path(path)).collect()),
            Subject::Query(text) => (2, vec![text.clone().into_bytes()]),
        };
        let mut bytes = vec![kind];
        for name in names.iter().map(Vec::as_slice).chain([self.request.as_bytes()]) {
            bytes.extend_from_slice(&(name.len() as u64).to_le_bytes());
            bytes.extend_from_slice(name);
        }
        Some(xxh3_64(&bytes))
    }
}

/// A summary.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Summary {
    /// The summary.
    pub text: String,
    /// The reasoning before it; empty for most models.
    pub reasoning: String,
    /// What was summarised, in order; the last prompt showed the summaries of the parts if there is more than one part.
    pub passages: Vec<Passage>,
    /// The summaries of the parts; empty if everything fitted one prompt.
    pub parts: Vec<String>,
    /// The stored summary of the same subject and request that was made before, if there is one. It drafted this one.
    pub previous: Option<String>,
    /// The changes from the previous summary to this one, as the events [`JobEvent::Edit`] showed them; empty without a
    /// previous one.
    pub changes: Vec<DiffEvent>,
    /// How it came about.
    pub report: Report,
}

impl Assistant {
    /// Summarises a text, notes, or the passages that match a query.
    ///
    /// What does not fit one prompt is divided into parts, each part is summarised ([`JobEvent::Part`]), and then the summaries
    /// of the parts are, again in parts if necessary. At most [`AssistantOptions::n_parts_max`](crate::AssistantOptions) parts
    /// are read; [`Report::left_out`] names the rest. With a store, the summary is kept, and drafts the next summary of the same
    /// subject. Answers of parts are kept when the last part has ended.
    ///
    /// # Errors
    /// [`TaskError::NoNotes`], [`TaskError::NoSuchNote`]; [`TaskError::Nothing`]: there is no text;
    /// [`TaskError::RequestTooLong`], [`TaskError::NoRoom`]; the notes cannot be read.
    pub fn summarize(
        &self,
        request: SummarizeRequest,
        options: JobOptions,
    ) -> Result<Job<Summary>, TaskError> {
        let n_forgotten = self.n_forgotten();
        let subject = request.key();
        let passages = self.passages_of(&request.subject)?;
        if passages.is_empty() {
            return Err(TaskError::Nothing { verb: "summarize" });
        }
        let keeps = options.keep && self.options().history;
        let previous = self.store().zip(subject).filter(|_| keeps).and_then(|(store, subject)| {
            store.ledger().summary(self.namespace(), subject).map(|summary| summary.text.clone())
        });
        let kept = self.kept(&options, &Layout::default(), n_forgotten);
        let (cancel, priority) = (options.cancel.clone(), options.priority);
        let mut summarizing = Summarizing {
            assistant: self.clone(),
            request: request.request,
            subject,
            kept,
            options,
            passages,
            parts: VecDeque::new(),
            n_parts: 0,
            summaries: Vec::new(),
            titles: VecDeque::new(),
            is_last: false,
            is_of_text: true,
            all_parts: Vec::new(),
            diff: previous.as_deref().map(LiveDiff::new),
            changes: Vec::new(),
            previous,
            left_out: Vec::new(),
            stats: Vec::new(),
            n_cut: 0,
            seed: None,
            not_kept: None,
        };
        summarizing.divide(summarizing.passages.clone(), usize::MAX)?;
        match summarizing.next()? {
            Next::Generate(prompt, step) => Ok(Job::new(self, cancel, priority, *prompt, step)),
            Next::Done(_) => Err(TaskError::Nothing { verb: "summarize" }),
        }
    }

    /// The first prompt of a summary.
    pub(super) fn summary_layout(
        &self,
        request: &SummarizeRequest,
        options: &JobOptions,
    ) -> Result<Layout, TaskError> {
        let passages = self.passages_of(&request.subject)?;
        if passages.is_empty() {
            return Err(TaskError::Nothing { verb: "summarize" });
        }
        let room = self.context_len() - self.answer_tokens(options);
        self.lay_out(&self.prompts().summarize, &[], &passages, &request.request, room)
    }

    pub(super) fn passages_of(&self, subject: &Subject) -> Result<Vec<Passage>, TaskError> {
        match subject {
            Subject::Texts { texts, .. } => Ok(texts.iter().flat_map(sections).collect()),
            Subject::Notes(paths) => {
                let index = self.notes().ok_or(TaskError::NoNotes)?;
                let hidden = self.hidden()?;
                let mut passages = Vec::new();
                for path in paths {
                    let mut of_path = index.passages_of(path)?;
                    of_path.retain(|passage| !hidden.iter().any(|hidden| hidden.hides(&passage.path)));
                    if of_path.is_empty() {
                        return Err(TaskError::NoSuchNote { path: path.clone() });
                    }
                    passages.extend(of_path);
                }
                Ok(joined(passages))
            }
            Subject::Query(text) => Ok(self.search(text, self.options().n_passages, &[], &[])?.passages),
        }
    }
}

/// The sections of a text: one per heading. A text that begins without a heading has its own title there.
fn sections(text: &Passage) -> Vec<Passage> {
    let mut document = Document::new(Path::new(""), &text.text);
    // There is no file whose name could be the title of a text without a heading of the first level.
    if document.title.is_empty() {
        document.title.clone_from(&text.title);
    }
    let has_heading = document.begins_with_heading();
    let of_section = |section: refrain_index::Passage| Passage {
        title: section.title,
        text: section.text,
        source: text.source.clone(),
    };
    let mut sections: Vec<Passage> = split_sections(&document).into_iter().map(of_section).collect();
    if !has_heading && let Some(first) = sections.first_mut() {
        first.title.clone_from(&text.title);
    }
    sections
}

/// A summary in the making: a level of parts, or the last prompt.
struct Summarizing {
    assistant: Assistant,
    request: String,
    subject: Option<u64>,
    /// What the last summary is made from: the notes of all parts that were read.
    kept: Option<Kept>,
    options: JobOptions,
    passages: Vec<Passage>,
    /// The prompts of this level that are not summarised yet, of `n_parts`.
    parts: VecDeque<Layout>,
    n_parts: usize,
    /// The summaries of this level so far.
    summaries: Vec<Passage>,
    /// The titles of its parts that are not summarised yet.
    titles: VecDeque<String>,
    /// Whether the running prompt is the last one.
    is_last: bool,
    /// Whether the parts are of the text itself, not of summaries.
    is_of_text: bool,
    all_parts: Vec<String>,
    previous: Option<String>,
    /// The difference of the last output to the previous summary.
    diff: Option<LiveDiff>,
    changes: Vec<DiffEvent>,
    left_out: Vec<LeftOut>,
    stats: Vec<Stats>,
    n_cut: usize,
    seed: Option<u64>,
    not_kept: Option<String>,
}

impl Summarizing {
    /// Divides passages into the prompts of a level. A level must have fewer parts than the one before it, or the text would
    /// never become shorter: what is beyond is left out.
    fn divide(&mut self, mut passages: Vec<Passage>, n_parts_before: usize) -> Result<(), TaskError> {
        let Self { assistant, request, options, .. } = self;
        let room = assistant.context_len() - assistant.answer_tokens(options);
        let is_first = n_parts_before == usize::MAX;
        let n_max = if is_first { assistant.options().n_parts_max.max(1) } else { n_parts_before / 2 };
        let reason = if is_first { LeftOutReason::Parts } else { LeftOutReason::Context };
        let template = &assistant.prompts().summarize;
        while !passages.is_empty() {
            let layout = assistant.lay_out(template, &[], &passages, request, room)?;
            passages.clone_from(&layout.rest);
            let left_out = layout.left_out.clone();
            self.titles.push_back(layout.shown.first().map(|shown| shown.title.clone()).unwrap_or_default());
            self.parts.push_back(layout);
            if self.parts.len() >= n_max.max(1) {
                self.left_out.extend(left_out.into_iter().map(|left_out| LeftOut { reason, ..left_out }));
                break;
            }
        }
        self.n_parts = self.parts.len();
        self.is_last = self.n_parts == 1;
        Ok(())
    }

    /// The prompt of the next part.
    fn next(mut self) -> Result<Next<Summary>, TaskError> {
        if self.parts.is_empty() {
            self.is_of_text = false;
            let (summaries, n_parts) = (std::mem::take(&mut self.summaries), self.n_parts);
            self.divide(summaries, n_parts)?;
        }
        let Some(layout) = self.parts.pop_front() else {
            return Err(TaskError::Nothing { verb: "summarize" });
        };
        let mut generate = if self.is_last {
            let previous = self.previous.as_deref().map(|text| self.assistant.tokens(text)).transpose()?;
            self.assistant.last_generate_options(&mut self.options, previous.as_slice())
        } else {
            self.assistant.generate_options(&self.options)
        };
        if let Some(seed) = self.seed {
            generate.sampling.seed = Some(seed);
        }
        // A summary of summaries is made from all notes, though its prompt shows no passage of them.
        let is_of_text = self.is_of_text;
        let kept = self.kept.as_mut().map(|all| {
            let of_part = note_paths(&layout.shown);
            all.notes.extend(of_part.iter().cloned());
            let first = |note: &PathBuf| (note.clone(), layout.first_start);
            match is_of_text {
                true => Kept { notes: of_part, starts: layout.starts, ..all.clone() },
                false => Kept { starts: all.notes.iter().map(first).collect(), ..all.clone() },
            }
        });
        let prompt = Prompt::new("summarize", layout.turns, generate, kept);
        Ok(Next::Generate(Box::new(prompt), Box::new(self)))
    }

    fn note(&mut self, changes: Vec<DiffEvent>, events: &mut VecDeque<JobEvent<Summary>>) {
        events.extend(changes.iter().cloned().map(JobEvent::Edit));
        self.changes.extend(changes);
    }

    /// Keeps the summary for the next one of the same subject.
    fn store(&self, text: &str) -> Option<String> {
        let (kept, store) = self.kept.as_ref().zip(self.assistant.store())?;
        let subject = self.subject.filter(|_| self.assistant.options().history)?;
        let summary = StoredSummary {
            namespace: self.assistant.namespace().to_owned(),
            subject,
            at: micros(SystemTime::now()),
            made: kept.made(),
            text: text.to_owned(),
        };
        let _keeping = store.keeping();
        let is_current = kept.n_forgotten == self.assistant.n_forgotten();
        let kept = is_current.then(|| store.keep_summary(summary, kept))?;
        kept.err().map(|error| error.to_string())
    }
}

impl Step<Summary> for Summarizing {
    fn is_last(&self) -> bool {
        self.is_last
    }

    fn text(&mut self, event: TextEvent, events: &mut VecDeque<JobEvent<Summary>>) {
        if !self.is_last {
            return;
        }
        let changes = match &mut self.diff {
            Some(diff) if event.kind == TextKind::Answer => diff.push(&event.text),
            _ => Vec::new(),
        };
        events.push_back(JobEvent::Text(event));
        self.note(changes, events);
    }

    fn written(
        mut self: Box<Self>,
        written: Written,
        events: &mut VecDeque<JobEvent<Summary>>,
    ) -> Result<Next<Summary>, TaskError> {
        let Written { text, reasoning, finish, seed, stats, not_kept, .. } = written;
        self.stats.push(stats);
        self.n_cut += usize::from(is_cut(finish));
        self.seed = self.seed.or(seed);
        self.not_kept = self.not_kept.take().or(not_kept);
        if !self.is_last {
            let index = self.n_parts - self.parts.len() - 1;
            let title = self.titles.pop_front().unwrap_or_default();
            events.push_back(JobEvent::Part { index, n_parts: self.n_parts, text: text.clone() });
            self.all_parts.push(text.clone());
            // An empty summary has nothing to show in the next prompt.
            if !text.trim().is_empty() {
                self.summaries.push(Passage::new(title, text));
            }
            return self.next();
        }
        if let Some(diff) = self.diff.take() {
            self.note(diff.finish(), events);
        }
        self.not_kept = self.not_kept.take().or_else(|| self.store(&text));
        let Self {
            passages,
            all_parts: parts,
            previous,
            changes,
            left_out,
            stats,
            n_cut,
            seed,
            not_kept,
            ..
        } = *self;
        let report = Report { finish, n_cut, seed, stats, left_out, not_kept };
        Ok(Next::Done(Summary { text, reasoning, passages, parts, previous, changes, report }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_have_the_title_of_their_text() {
        let titles = |text: &str| -> Vec<String> {
            sections(&Passage::new("Trip", text)).into_iter().map(|section| section.title).collect()
        };
        assert_eq!(titles("One.\n\n## Notes\n\nTwo."), ["Trip", "Trip: Notes"]);
        assert_eq!(titles("# Oslo\n\nOne.\n\n## Notes\n\nTwo."), ["Oslo", "Oslo: Notes"]);
    }
}
