//! Summaries of texts and notes. A text that does not fit the context is summarised in parts, and the summaries of the parts are
//! summarised.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use refrain::{Stats, TextKind};
use refrain_index::{Document, split};
use xxhash_rust::xxh3::xxh3_64;

use super::draft_source;
use crate::assistant::Assistant;
use crate::edit::{DiffEvent, LiveDiff};
use crate::error::TaskError;
use crate::job::{Job, JobEvent, Next, Prompt, Report, Step, TextEvent, Written};
use crate::layout::Layout;
use crate::options::JobOptions;
use crate::passage::{LeftOut, LeftOutReason, Passage, joined};
use crate::store::{Entry, Kept, StoredSummary, micros};

/// What to summarise.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SummarizeRequest {
    subject: Subject,
    /// The user's wish, such as `In two sentences.`; may be empty.
    pub request: String,
}

#[derive(Debug, Clone)]
enum Subject {
    Text { title: String, text: String },
    Notes(Vec<PathBuf>),
    Query(String),
}

impl SummarizeRequest {
    /// A text. Its title, which may be empty, names it for [`Summary::previous`].
    pub fn text(title: impl Into<String>, text: impl Into<String>) -> Self {
        Self::of(Subject::Text { title: title.into(), text: text.into() })
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

    /// The hash under which the summary is stored: of the kind of subject, its name, and the request.
    fn key(&self) -> u64 {
        let (kind, names): (u8, Vec<Vec<u8>>) = match &self.subject {
            Subject::Text { title, .. } => (0, vec![title.clone().into_bytes()]),
            Subject::Notes(paths) => {
                let bytes = |path: &PathBuf| path.as_os_str().as_encoded_bytes().to_vec();
                (1, paths.iter().map(bytes).collect())
            }
            Subject::Query(text) => (2, vec![text.clone().into_bytes()]),
        };
        let mut bytes = vec![kind];
        for name in names.iter().map(Vec::as_slice).chain([self.request.as_bytes()]) {
            bytes.extend_from_slice(&(name.len() as u64).to_le_bytes());
            bytes.extend_from_slice(name);
        }
        xxh3_64(&bytes)
    }
}

crate::options::setters!(SummarizeRequest { with_request: request: String });

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
    /// subject.
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
        let previous = self.store().filter(|_| options.keep && self.options().history).and_then(|store| {
            store.ledger().summary(self.namespace(), subject).map(|summary| summary.text.clone())
        });
        let kept = self.kept(&options, &Layout { shown: passages.clone(), ..Layout::default() }, n_forgotten);
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
            all_parts: Vec::new(),
            diff: previous.as_deref().map(LiveDiff::new),
            changes: Vec::new(),
            previous,
            left_out: Vec::new(),
            stats: Vec::new(),
            seed: None,
            not_kept: None,
        };
        summarizing.divide(summarizing.passages.clone(), usize::MAX)?;
        match summarizing.next()? {
            Next::Generate(prompt, step) => Ok(Job::from_parts(self, cancel, priority, *prompt, step)),
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

    fn passages_of(&self, subject: &Subject) -> Result<Vec<Passage>, TaskError> {
        match subject {
            Subject::Text { title, text } => Ok(sections(title, text)),
            Subject::Notes(paths) => {
                let index = self.notes().ok_or(TaskError::NoNotes)?;
                let mut passages = Vec::new();
                for path in paths {
                    let of_path = index.passages_of(path)?;
                    if of_path.is_empty() {
                        return Err(TaskError::NoSuchNote { path: path.clone() });
                    }
                    passages.extend(of_path);
                }
                Ok(joined(passages))
            }
            Subject::Query(text) => Ok(self.search(text, self.options().n_passages, &[])?.passages),
        }
    }
}

/// The sections of a text: one per heading. A text that begins without a heading has the given title there.
pub(crate) fn sections(title: &str, text: &str) -> Vec<Passage> {
    let document = Document::new(Path::new("text"), text);
    let has_heading = text.trim_start().starts_with('#');
    let mut sections: Vec<Passage> = Vec::new();
    for passage in split(&document) {
        match sections.last_mut() {
            Some(last) if last.title == passage.title => {
                last.text.push_str("\n\n");
                last.text.push_str(&passage.text);
            }
            _ => sections.push(Passage::new(passage.title, passage.text)),
        }
    }
    if !has_heading && let Some(first) = sections.first_mut() {
        first.title = title.to_owned();
    }
    sections
}

/// A summary in the making: a level of parts, or the last prompt.
struct Summarizing {
    assistant: Assistant,
    request: String,
    subject: u64,
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
    all_parts: Vec<String>,
    previous: Option<String>,
    /// The difference of the last output to the previous summary.
    diff: Option<LiveDiff>,
    changes: Vec<DiffEvent>,
    left_out: Vec<LeftOut>,
    stats: Vec<Stats>,
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
            let (summaries, n_parts) = (std::mem::take(&mut self.summaries), self.n_parts);
            self.divide(summaries, n_parts)?;
        }
        let Some(layout) = self.parts.pop_front() else {
            return Err(TaskError::Nothing { verb: "summarize" });
        };
        let mut generate = self.assistant.generate_options(&self.options);
        if let Some(seed) = self.seed {
            generate.sampling.seed = Some(seed);
        }
        if self.is_last {
            let previous = self.previous.as_deref().map(|text| self.assistant.tokens(text)).transpose()?;
            generate.sources = draft_source(previous.as_slice()).into_iter().collect();
            generate.sources.append(&mut self.options.sources);
            generate.processors = std::mem::take(&mut self.options.processors);
        }
        // A summary of summaries is made from all notes, though its prompt shows no passage of them.
        let is_of_text = self.all_parts.is_empty();
        let kept = self.kept.clone().map(|kept| Kept {
            starts: if is_of_text {
                layout.starts
            } else {
                kept.notes.iter().map(|&note| (note, 0)).collect()
            },
            ..kept
        });
        let generate = Some(generate);
        let prompt = Prompt { messages: layout.turns, task: "summarize", session: None, generate, kept };
        Ok(Next::Generate(Box::new(prompt), Box::new(self)))
    }

    fn note(&mut self, changes: Vec<DiffEvent>, events: &mut VecDeque<JobEvent<Summary>>) {
        events.extend(changes.iter().cloned().map(JobEvent::Edit));
        self.changes.extend(changes);
    }

    /// Keeps the summary for the next one of the same subject.
    fn store(&self, text: &str) -> Option<String> {
        let (kept, store) = self.kept.as_ref().zip(self.assistant.store())?;
        if !self.assistant.options().history {
            return None;
        }
        let summary = StoredSummary {
            namespace: self.assistant.namespace().to_owned(),
            subject: self.subject,
            at: micros(SystemTime::now()),
            notes: kept.notes.clone(),
            text: text.to_owned(),
        };
        let _keeping = store.keeping();
        let is_current = kept.n_forgotten == self.assistant.n_forgotten();
        let kept = is_current.then(|| store.ledger().append(Entry::Summary(summary)))?;
        kept.err().map(|error| error.to_string())
    }
}

impl Step<Summary> for Summarizing {
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
        let Self { passages, all_parts: parts, previous, changes, left_out, stats, seed, not_kept, .. } =
            *self;
        let report = Report { finish, seed, stats, left_out, not_kept };
        Ok(Next::Done(Summary { text, reasoning, passages, parts, previous, changes, report }))
    }
}
