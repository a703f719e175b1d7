//! Summaries of texts and notes. A text that does not fit the context is summarised in parts, and the summaries of the parts are
//! summarised.
//!
//! The parts do not depend on each other: several are computed [at the same time](crate::together). With a store, the summary of each
//! finished part is kept under a hash of all that it depends on, so that the next job goes on where this one was stopped.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use refrain::{GenerateOptions, Stats, TextKind};
use refrain_index::history::HistoryKey;
use refrain_index::notes::absolute;
use refrain_index::{Document, NoteFilter, NotesError, split_sections};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

use crate::assistant::Assistant;
use crate::edit::{DiffEvent, LiveDiff};
use crate::error::TaskError;
use crate::estimate::Work;
use crate::job::Job;
use crate::layout::{Layout, note_paths};
use crate::options::JobOptions;
use crate::passage::{LeftOut, LeftOutReason, Passage, Source, joined};
use crate::step::{JobEvent, Next, Parts, Prompt, Report, Step, TextEvent, Written, is_cut};
use crate::store::{Kept, StoredPart, StoredSummary, micros};

/// The length of a part's summary before one was written, as a share of the part.
const SUMMARY_SHARE: usize = 8;

/// What to summarise.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SummarizeRequest {
    pub(super) subject: Subject,
    /// The user's wish, such as `In two sentences.`; may be empty.
    pub request: String,
    /// The notes to search for a [`query`](Self::query). Default: all.
    pub filter: NoteFilter,
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
        Self { subject, request: String::new(), filter: NoteFilter::default() }
    }

    /// The hash under which the summary is stored: of the kind of subject, its names, and the request. `None` for texts that
    /// nothing names.
    fn key(&self) -> Option<u64> {
        let of_path = |path: &Path| path.as_os_str().as_encoded_bytes().to_vec();
        let (kind, names): (u8, Vec<Vec<u8>>) = match &self.subject {
            Subject::Texts { texts, id } => {
                let notes = texts.iter().map(|text| text.source.as_ref().map(|source| of_path(&source.path)));
                match (notes.collect::<Option<Vec<_>>>(), id) {
                    (Some(mut notes), _) => {
                        // A file may have several texts.
                        notes.dedup();
                        (3, notes)
                    }
                    (None, Some(id)) => {
                        let titles = texts.iter().map(|text| text.title.clone().into_bytes());
                        (0, titles.chain([id.clone().into_bytes()]).collect())
                    }
                    (None, None) => return None,
                }
            }
            Subject::Notes(paths) => (1, paths.iter().map(|path| of_path(path)).collect()),
            // Without conditions, as before there were any.
            Subject::Query(text) if self.filter == NoteFilter::default() => {
                (2, vec![text.clone().into_bytes()])
            }
            Subject::Query(text) => {
                (4, vec![text.clone().into_bytes(), format!("{:?}", self.filter).into_bytes()])
            }
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
    /// How many of them were kept by an earlier job, which may have been stopped: they were not computed again.
    pub n_kept_parts: usize,
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
    /// Several parts are summarised at the same time ([`AssistantOptions::n_parts_together`](crate::AssistantOptions)), and
    /// [`JobEvent::Estimate`] says how long all will take, before the first part and after each. With a store, the summaries of finished
    /// parts are kept, if the text has a name: its note or an id. A job that was stopped is continued by the same request, and one about a
    /// changed note computes the changed parts alone. [`Assistant::forget`] deletes them with their notes.
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
        let passages = self.passages_of(&request)?;
        if passages.is_empty() {
            return Err(TaskError::Nothing { verb: "summarize" });
        }
        let keeps = options.keep && self.options().history;
        let previous = self.store().zip(subject).filter(|_| keeps).and_then(|(store, subject)| {
            store.ledger().summary(self.namespace(), subject).map(|summary| summary.text.clone())
        });
        let kept = self.kept(&options, &Layout::default(), n_forgotten);
        let (cancel, priority) = (options.cancel.clone(), options.priority);
        let sampling = options.sampling.as_ref().unwrap_or(&self.options().sampling);
        // All parts have one seed, also those that begin at the same time.
        let draw = || RandomState::new().build_hasher().finish() >> 32;
        let seed = (sampling.temperature != 0.0).then(|| sampling.seed.unwrap_or_else(draw));
        let mut summarizing = Summarizing {
            assistant: self.clone(),
            request: request.request,
            subject,
            kept,
            options,
            passages,
            parts: VecDeque::new(),
            n_parts: 0,
            begun: BTreeMap::new(),
            finished: BTreeMap::new(),
            n_shown: 0,
            read_tokens: 0,
            summaries: Vec::new(),
            titles: VecDeque::new(),
            is_of_text: true,
            all_parts: Vec::new(),
            n_kept_parts: 0,
            written_tokens: (0, 0),
            diff: previous.as_deref().map(LiveDiff::new),
            changes: Vec::new(),
            previous,
            left_out: Vec::new(),
            stats: Vec::new(),
            n_cut: 0,
            seed,
            not_kept: None,
        };
        summarizing.divide(summarizing.passages.clone(), usize::MAX)?;
        let mut events = VecDeque::new();
        summarizing.estimate(&mut events);
        let next = Box::new(summarizing).next()?;
        Ok(Job::begin(self, cancel, priority, next, events))
    }

    /// Whether the store has a summary of the very texts of this subject and wish.
    pub(crate) fn has_summary(&self, request: &SummarizeRequest) -> Result<bool, TaskError> {
        let Some((store, subject)) = self.store().zip(request.key()) else { return Ok(false) };
        let of = Some(hash_of(&self.passages_of(request)?));
        Ok(store.ledger().summary(self.namespace(), subject).is_some_and(|summary| summary.of == of))
    }

    /// The first prompt of a summary.
    pub(super) fn summary_layout(
        &self,
        request: &SummarizeRequest,
        options: &JobOptions,
    ) -> Result<Layout, TaskError> {
        let passages = self.passages_of(request)?;
        if passages.is_empty() {
            return Err(TaskError::Nothing { verb: "summarize" });
        }
        let room = self.context_len() - self.answer_tokens(options);
        self.lay_out(&self.prompts().summarize, &[], &passages, &request.request, room)
    }

    pub(super) fn passages_of(&self, request: &SummarizeRequest) -> Result<Vec<Passage>, TaskError> {
        match &request.subject {
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
            Subject::Query(text) => {
                Ok(self.search(text, self.options().n_passages, &request.filter, &[])?.passages)
            }
        }
    }
}

/// A hash of texts with their titles.
fn hash_of(passages: &[Passage]) -> u64 {
    let mut hash = Xxh3::new();
    for text in passages.iter().flat_map(|passage| [&passage.title, &passage.text]) {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    hash.digest()
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
    /// The prompts of this level that have not begun, of `n_parts`.
    parts: VecDeque<Layout>,
    n_parts: usize,
    /// The parts that are being summarised, by number.
    begun: BTreeMap<usize, Begun>,
    /// Parts that are summarised before one that is not, by number.
    finished: BTreeMap<usize, Finished>,
    /// Parts of this level whose summaries were shown.
    n_shown: usize,
    /// Tokens of the prompts of this level that were not read yet.
    read_tokens: usize,
    /// The summaries of this level so far.
    summaries: Vec<Passage>,
    /// The titles of its parts that are not summarised yet.
    titles: VecDeque<String>,
    /// Whether the parts are of the text itself, not of summaries.
    is_of_text: bool,
    all_parts: Vec<String>,
    n_kept_parts: usize,
    /// Tokens of the outputs so far, and their number.
    written_tokens: (usize, usize),
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

/// A part that is being summarised.
struct Begun {
    /// The hash of all that its summary depends on.
    hash: u128,
    n_tokens: usize,
    kept: Option<Kept>,
}

/// The summary of a part.
struct Finished {
    text: String,
    /// `None`: it was kept by an earlier job.
    stats: Option<Stats>,
    is_cut: bool,
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
        self.read_tokens = self.parts.iter().map(|part| part.n_tokens).sum();
        self.n_shown = 0;
        Ok(())
    }

    /// Whether this level is one prompt, whose output is the summary.
    fn is_last_level(&self) -> bool {
        self.n_parts == 1
    }

    /// Tells what is still to be done, if that is more than a prompt.
    fn estimate(&self, events: &mut VecDeque<JobEvent<Summary>>) {
        if self.is_last_level() && self.is_of_text {
            return;
        }
        let n_left = self.n_parts - self.n_shown;
        let n_max = self.assistant.answer_tokens(&self.options);
        let of_one = match self.written_tokens {
            (_, 0) => (self.read_tokens / self.n_parts.max(1) / SUMMARY_SHARE).max(1),
            (tokens, n) => tokens / n,
        };
        let of_one = of_one.min(n_max);
        let mut work = Work {
            n_prompts: n_left,
            read_tokens: self.read_tokens,
            alone_tokens: 0,
            together_tokens: n_left * of_one,
        };
        if self.is_last_level() {
            (work.alone_tokens, work.together_tokens) = (work.together_tokens, 0);
        } else {
            // The summaries are read once more; a further level between them reads them twice.
            work.n_prompts += 1;
            work.read_tokens += self.n_parts * of_one;
            work.alone_tokens += of_one;
        }
        let n_together = self.assistant.n_together().min(n_left.max(1));
        events.push_back(JobEvent::Estimate(self.assistant.estimate(work, n_together)));
    }

    /// The prompts of this level, or of the next one if all of this one are summarised.
    fn next(mut self: Box<Self>) -> Result<Next<Summary>, TaskError> {
        if self.parts.is_empty() {
            self.is_of_text = false;
            let (summaries, n_parts) = (std::mem::take(&mut self.summaries), self.n_parts);
            self.divide(summaries, n_parts)?;
        }
        if self.parts.is_empty() {
            return Err(TaskError::Nothing { verb: "summarize" });
        }
        if !self.is_last_level() {
            return Ok(Next::Together(self));
        }
        let previous = self.previous.as_deref().map(|text| self.assistant.tokens(text)).transpose()?;
        let generate = self.assistant.last_generate_options(&mut self.options, previous.as_slice());
        let Some(layout) = self.parts.pop_front() else {
            return Err(TaskError::Nothing { verb: "summarize" });
        };
        let prompt = self.prompt(layout, generate);
        Ok(Next::Generate(Box::new(prompt), self))
    }

    /// The prompt of a part.
    fn prompt(&mut self, layout: Layout, mut generate: GenerateOptions) -> Prompt {
        generate.sampling.seed = self.seed;
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
        Prompt::new("summarize", layout.turns, generate, kept)
    }

    /// The hash of all that an output depends on.
    fn hash(&self, layout: &Layout, generate: &GenerateOptions) -> u128 {
        let engine = self.assistant.engine();
        let session = &self.assistant.options().session;
        let turns = layout.turns.iter().map(|turn| (turn.role.name(), turn.content.as_str()));
        let of = (
            env!("CARGO_PKG_VERSION"),
            HistoryKey::of(engine).to_string(),
            (session.kv_type, session.context_len_for(engine.config()), generate.max_tokens),
            (&generate.stop, generate.ignore_eos, &generate.sampling),
            turns.collect::<Vec<_>>(),
        );
        xxh3_128(format!("{of:?}").as_bytes())
    }

    /// The summary that an earlier job has kept.
    fn kept_part(&self, hash: u128) -> Option<Finished> {
        let store = self.assistant.store().filter(|_| self.keeps_parts())?;
        let ledger = store.ledger();
        let part = ledger.part(self.assistant.namespace(), hash)?;
        let text = part.summary.text.clone();
        Some(Finished { text, stats: None, is_cut: part.is_cut, not_kept: None })
    }

    /// Whether parts are kept: of a text without a name, nobody could delete them.
    fn keeps_parts(&self) -> bool {
        self.kept.is_some() && self.subject.is_some() && self.assistant.options().history
    }

    /// Keeps the summary of a part for a job that goes on.
    fn keep_part(&self, Begun { hash, kept, .. }: &Begun, text: &str, is_cut: bool) -> Option<String> {
        let (kept, store) = kept.as_ref().zip(self.assistant.store()).filter(|_| self.keeps_parts())?;
        let summary = StoredSummary {
            namespace: self.assistant.namespace().to_owned(),
            subject: *hash as u64,
            at: micros(SystemTime::now()),
            made: kept.made(),
            of: None,
            text: text.to_owned(),
        };
        let part = StoredPart { check: (hash >> 64) as u64, is_cut, summary };
        let _keeping = store.keeping();
        let is_current = kept.n_forgotten == self.assistant.n_forgotten();
        let kept = is_current.then(|| store.keep_part(part, kept))?;
        kept.err().map(|error| error.to_string())
    }

    /// Shows the summaries of parts in their order, as far as they are there.
    fn show(&mut self, events: &mut VecDeque<JobEvent<Summary>>) {
        while let Some(Finished { text, stats, is_cut, not_kept }) = self.finished.remove(&self.n_shown) {
            let title = self.titles.pop_front().unwrap_or_default();
            if let Some(stats) = stats {
                self.written_tokens.0 += stats.tokens;
                self.written_tokens.1 += 1;
                self.stats.push(stats);
            } else {
                self.n_kept_parts += 1;
            }
            self.n_cut += usize::from(is_cut);
            self.not_kept = self.not_kept.take().or(not_kept);
            let (index, n_parts) = (self.n_shown, self.n_parts);
            events.push_back(JobEvent::Part { index, n_parts, text: text.clone() });
            self.all_parts.push(text.clone());
            // An empty summary has nothing to show in the next prompt.
            if !text.trim().is_empty() {
                self.summaries.push(Passage::new(title, text));
            }
            self.n_shown += 1;
            self.estimate(events);
        }
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
            of: Some(hash_of(&self.passages)),
            text: text.to_owned(),
        };
        let _keeping = store.keeping();
        let is_current = kept.n_forgotten == self.assistant.n_forgotten();
        let kept = is_current.then(|| store.keep_summary(summary, kept))?;
        kept.err().map(|error| error.to_string())
    }
}

impl Parts<Summary> for Summarizing {
    fn next(
        &mut self,
        events: &mut VecDeque<JobEvent<Summary>>,
    ) -> Result<Option<(usize, Prompt)>, TaskError> {
        while let Some(layout) = self.parts.pop_front() {
            let number = self.n_parts - self.parts.len() - 1;
            let mut generate = self.assistant.generate_options(&self.options);
            generate.sampling.seed = self.seed;
            let n_tokens = layout.n_tokens;
            let hash = self.hash(&layout, &generate);
            let prompt = self.prompt(layout, generate);
            let Some(finished) = self.kept_part(hash) else {
                self.begun.insert(number, Begun { hash, n_tokens, kept: prompt.kept.clone() });
                return Ok(Some((number, prompt)));
            };
            self.read_tokens -= n_tokens;
            self.finished.insert(number, finished);
            self.show(events);
        }
        Ok(None)
    }

    fn written(
        &mut self,
        number: usize,
        written: Written,
        events: &mut VecDeque<JobEvent<Summary>>,
    ) -> Result<(), TaskError> {
        let Written { text, finish, stats, mut not_kept, .. } = written;
        let is_cut = is_cut(finish);
        if let Some(begun) = self.begun.remove(&number) {
            self.read_tokens -= begun.n_tokens;
            not_kept = not_kept.or_else(|| self.keep_part(&begun, &text, is_cut));
        }
        self.finished.insert(number, Finished { text, stats: Some(stats), is_cut, not_kept });
        self.show(events);
        Ok(())
    }

    fn end(self: Box<Self>, _events: &mut VecDeque<JobEvent<Summary>>) -> Result<Next<Summary>, TaskError> {
        Summarizing::next(self)
    }
}

impl Step<Summary> for Summarizing {
    fn text(&mut self, event: TextEvent, events: &mut VecDeque<JobEvent<Summary>>) {
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
        if let Some(diff) = self.diff.take() {
            self.note(diff.finish(), events);
        }
        self.not_kept = self.not_kept.take().or_else(|| self.store(&text));
        let Self {
            passages,
            all_parts: parts,
            n_kept_parts,
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
        Ok(Next::Done(Summary { text, reasoning, passages, parts, n_kept_parts, previous, changes, report }))
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
