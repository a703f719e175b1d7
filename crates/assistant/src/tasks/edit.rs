//! Edits of a text by an instruction, with the changes as they are written.
//!
//! A text that fits the context is one window. A longer one is divided into [windows](crate::edit), which are edited one after the other.
//! The prompt of each shows, as an earlier turn, the last paragraphs of the window before it and what became of them, so that the style
//! and the names go on across the seam. What lies between the windows and outside of them is never shown to the model and stays as it is.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};

use refrain::{FinishReason, Message, Origin, PromptPassage, Role, Stats, TextKind, TokenId};
use refrain_index::notes::absolute;
use refrain_index::{NotesError, Outline};

use crate::assistant::Assistant;
use crate::edit::{DiffEvent, EditDoubt, LiveDiff, Opening, Window, doubts, windows};
use crate::error::{EditPartError, TaskError};
use crate::estimate::Work;
use crate::job::{Job, JobEvent, Next, Prompt, Report, Step, TextEvent, Written, is_cut};
use crate::layout::Layout;
use crate::options::JobOptions;
use crate::passage::{Passage, Source};

/// Tokens that an edited text may have besides those of the old one, unless the job says otherwise: a quarter more, and a sentence.
const MORE_TOKENS: usize = 32;

/// The shortest repetition that DRY penalises in an edit, in tokens, where the sampling options leave the prompt's alone. A text may have
/// equal lines that the edit changes in the same way; 32 tokens are several of them.
const LOOP_TOKENS_MIN: usize = 32;

/// The share of the context for the paragraphs before a window, with their own instruction and what became of them.
const BEFORE_SHARE: usize = 6;

/// A window has at least as many tokens: less is no text to edit.
const WINDOW_TOKENS_MIN: usize = 16;

/// Tokens that a prompt may have more than its parts have separately.
const JOINT_TOKENS: usize = 16;

/// A text to be edited.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EditRequest {
    /// The text.
    pub text: String,
    /// What is to be changed.
    pub instruction: String,
    /// The part that may be changed. The model sees no other part.
    pub part: EditPart,
    /// The note that the text is of, as an absolute path.
    pub note: Option<PathBuf>,
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum EditPart {
    /// All of it.
    #[default]
    Whole,
    /// A selection, in bytes.
    Bytes(Range<usize>),
    /// Lines, counted from 1.
    Lines {
        /// The first line.
        first: usize,
        /// The last line.
        last: usize,
    },
    /// The section under the heading with these words, such as `Hotel`: the heading and what stands below it, up to the next heading of
    /// its level or above. `## Hotel` is a heading of the second level alone.
    Section(String),
}

impl EditPart {
    /// Its place in a text, in bytes.
    ///
    /// # Errors
    /// [`EditPartError`].
    pub fn place_in(&self, text: &str) -> Result<Range<usize>, EditPartError> {
        match self {
            Self::Whole => Ok(0..text.len()),
            Self::Bytes(range) => {
                let Range { start, end } = *range;
                if start > end || end > text.len() {
                    return Err(EditPartError::Bytes { start, end, len: text.len() });
                }
                match [start, end].into_iter().find(|&offset| !text.is_char_boundary(offset)) {
                    Some(offset) => Err(EditPartError::InsideCharacter { offset }),
                    None => Ok(start..end),
                }
            }
            Self::Lines { first, last } => {
                let (first, last) = (*first, *last);
                let (mut place, mut at, mut n_lines) = (None, 0, 0);
                for line in text.split_inclusive('\n') {
                    n_lines += 1;
                    if n_lines == first {
                        place = Some(at..at);
                    }
                    at += line.len();
                    if let Some(place) = place.as_mut().filter(|_| n_lines <= last) {
                        place.end = at;
                    }
                }
                let place = place.filter(|_| first <= last && last <= n_lines);
                place.ok_or(EditPartError::Lines { first, last, n_lines })
            }
            Self::Section(title) => section(text, title),
        }
    }
}

/// The place of the section with a title.
fn section(text: &str, given: &str) -> Result<Range<usize>, EditPartError> {
    let outline = Outline::of(text);
    let marks = given.trim_start();
    let level = marks.len() - marks.trim_start_matches('#').len();
    let wanted = marks.trim_start_matches('#').split_whitespace().collect::<Vec<_>>().join(" ");
    let is_of_level = |n: &usize| level == 0 || outline.headings[*n].level == level;
    let all = || (0..outline.headings.len()).filter(is_of_level);
    let exact: Vec<usize> = all().filter(|&n| outline.headings[n].title == wanted).collect();
    let lower = wanted.to_lowercase();
    let found = match exact.is_empty() {
        true => all().filter(|&n| outline.headings[n].title.to_lowercase() == lower).collect(),
        false => exact,
    };
    let line = |n: usize| text[..outline.headings[n].lines.start].matches('\n').count() + 1;
    match found[..] {
        [] => Err(EditPartError::NoSection { title: wanted }),
        [only] => Ok(outline.section(only, text.len())),
        [first, second, ..] => {
            Err(EditPartError::SectionTwice { title: wanted, first: line(first), second: line(second) })
        }
    }
}

impl EditRequest {
    /// Maximum length of the part that is edited, in bytes: that of a note.
    pub const BYTES_MAX: usize = 4 << 20;

    /// A text and what is to be changed in it.
    pub fn new(text: impl Into<String>, instruction: impl Into<String>) -> Self {
        Self { text: text.into(), instruction: instruction.into(), part: EditPart::Whole, note: None }
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
    /// The new text, with what was not to be changed. White space at the ends of the old part is kept.
    pub text: String,
    /// The reasoning before it; empty for most models.
    pub reasoning: String,
    /// The changes from the old text to the new one: the events of the job, in order.
    pub changes: Vec<DiffEvent>,
    /// The part of the old text that was edited, in bytes.
    pub old_part: Range<usize>,
    /// What became of it: its place in the new text.
    pub new_part: Range<usize>,
    /// What the model wrote around the text and does not belong to it: announcements ("Here is …"), and fences around all. One for each
    /// window that has some.
    pub around: Vec<String>,
    /// Why the new text should not replace the old one without asking; empty for most edits.
    pub doubts: Vec<EditDoubt>,
    /// How it came about.
    pub report: Report,
}

impl Assistant {
    /// Edits a text, or a part of it. The changes come as [`JobEvent::Edit`] while the new text is written. The old text drafts the new one,
    /// from the prompt.
    ///
    /// If the part fits the context, it is shown whole, and the output has room for a text that is a quarter longer, unless
    /// [`JobOptions::answer_tokens`] says otherwise. A longer one is edited in windows that end between sections or paragraphs
    /// ([`JobEvent::Window`]); front matter then stays as it is. An instruction about the text as a whole ("sort it") does not work there.
    /// If the output of a window ends at a limit of tokens, the job ends with it, and the rest of the text is as before.
    ///
    /// # Errors
    /// [`TaskError::Part`]: there is no such part; [`TaskError::Nothing`]: it is empty; [`TaskError::TextTooLarge`];
    /// [`TaskError::RequestTooLong`], [`TaskError::NoRoom`]: the context has no room for the instruction, or for a window beside it.
    pub fn edit(&self, request: EditRequest, options: JobOptions) -> Result<Job<Edit>, TaskError> {
        let (cancel, priority) = (options.cancel.clone(), options.priority);
        let (next, events) = self.begin_edit(request, options)?;
        Ok(Job::begin(self, cancel, priority, next, events))
    }

    /// The first prompt of an edit, and the events before it.
    fn begin_edit(
        &self,
        request: EditRequest,
        options: JobOptions,
    ) -> Result<(Next<Edit>, VecDeque<JobEvent<Edit>>), TaskError> {
        let n_forgotten = self.n_forgotten();
        let EditRequest { text, instruction, part, note } = request;
        let mut place = part.place_in(&text)?;
        let core = text[place.clone()].trim();
        if core.is_empty() {
            return Err(TaskError::Nothing { verb: "edit" });
        }
        if place.len() > EditRequest::BYTES_MAX {
            return Err(TaskError::TextTooLarge { bytes: place.len(), max: EditRequest::BYTES_MAX });
        }
        let mut editing = Editing::new(self, text, instruction, note, options, n_forgotten);
        let n_tokens = self.count(&editing.shown(&place))?;
        let n_whole = self.count_turns(&editing.turns(None, &editing.shown(&place)))?;
        if n_whole <= self.context_len().saturating_sub(editing.n_output(n_tokens)) {
            editing.windows.push_back(Window { place: place.clone(), n_tokens });
        } else {
            let outline = Outline::of(&editing.old);
            place.start = place.start.max(outline.start.min(place.end));
            let headings: Vec<usize> = outline.headings.iter().map(|heading| heading.lines.start).collect();
            let tokens_max = editing.window_tokens_max()?;
            let found =
                windows(&editing.old, place.clone(), &headings, tokens_max, &|text: &str| self.count(text))?;
            editing.windows = found.ok_or(TaskError::NoRoom { room: tokens_max })?.into();
            if editing.windows.iter().all(|window| window.n_tokens == 0) {
                return Err(TaskError::Nothing { verb: "edit" });
            }
        }
        editing.n_windows = editing.windows.len();
        editing.part = place;
        let mut events = VecDeque::new();
        if editing.n_windows > 1 {
            editing.n_around = self.count_turns(&editing.turns(None, "x"))?;
            editing.estimate(&mut events);
        }
        editing.keep(editing.part.start, &mut events);
        Ok((Box::new(editing).next()?, events))
    }
}

/// An edit in the making.
struct Editing {
    assistant: Assistant,
    instruction: String,
    note: Option<PathBuf>,
    options: JobOptions,
    n_forgotten: u64,
    /// The old text, and the part of it that is edited.
    old: String,
    part: Range<usize>,
    /// Whether all lines of the old text end with `\r\n`: models write `\n`.
    is_crlf: bool,
    /// The windows that are not edited yet, of `n_windows`.
    windows: VecDeque<Window>,
    n_windows: usize,
    /// Tokens of a prompt around its text.
    n_around: usize,
    /// The window that is being edited.
    running: Option<Running>,
    /// The last paragraphs of the window before, and what became of them.
    before: Option<(String, String)>,
    /// The new text so far.
    new: String,
    reasoning: String,
    changes: Vec<DiffEvent>,
    around: Vec<String>,
    doubts: Vec<EditDoubt>,
    /// Texts that prompts have and notes do not.
    markers: Vec<String>,
    stats: Vec<Stats>,
    n_cut: usize,
    seed: Option<u64>,
    not_kept: Option<String>,
}

/// A window that is being edited.
struct Running {
    place: Range<usize>,
    /// Where it begins in the new text.
    new_start: usize,
    opening: Opening,
    diff: LiveDiff,
    /// The changes of its text alone.
    changes: Vec<DiffEvent>,
    /// White space before the text, until the first text is written, and behind it.
    lead: String,
    trail: String,
}

impl Editing {
    fn new(
        assistant: &Assistant,
        old: String,
        instruction: String,
        note: Option<PathBuf>,
        options: JobOptions,
        n_forgotten: u64,
    ) -> Self {
        let n_ends = old.matches('\n').count();
        let is_crlf = n_ends > 0 && old.matches("\r\n").count() == n_ends;
        let seed = options.sampling.as_ref().and_then(|sampling| sampling.seed);
        Self {
            assistant: assistant.clone(),
            instruction,
            note,
            options,
            n_forgotten,
            old,
            part: 0..0,
            is_crlf,
            windows: VecDeque::new(),
            n_windows: 0,
            n_around: 0,
            running: None,
            before: None,
            new: String::new(),
            reasoning: String::new(),
            changes: Vec::new(),
            around: Vec::new(),
            doubts: Vec::new(),
            markers: Vec::new(),
            stats: Vec::new(),
            n_cut: 0,
            seed,
            not_kept: None,
        }
    }

    /// A place of the old text as prompts show it.
    fn shown(&self, place: &Range<usize>) -> String {
        let text = self.old[place.clone()].trim();
        if self.is_crlf { text.replace("\r\n", "\n") } else { text.to_owned() }
    }

    /// Tokens that the output for a text of `n_tokens` may have.
    fn n_output(&self, n_tokens: usize) -> usize {
        let given = self.options.answer_tokens.or(self.assistant.options().answer_tokens);
        given.unwrap_or(n_tokens + n_tokens / 4 + MORE_TOKENS)
    }

    /// The turns of a prompt. `before` is a text with what became of it.
    fn turns(&self, before: Option<(&str, &str)>, text: &str) -> Vec<Message> {
        let message = |text: &str| {
            self.assistant.prompts().edit.render(&[PromptPassage::new("", text)], &self.instruction)
        };
        match before {
            None => self.assistant.turns(message(text)),
            Some((old, new)) => {
                let mut turns = self.assistant.turns(message(old));
                turns.push(Message::new(Role::Assistant, new));
                turns.push(Message::new(Role::User, message(text)));
                turns
            }
        }
    }

    /// The tokens that a window may have, so that its prompt with what comes before and its output fit.
    fn window_tokens_max(&self) -> Result<usize, TaskError> {
        let context_len = self.assistant.context_len();
        let n_bare = self.assistant.count_turns(&self.turns(None, "x"))? + JOINT_TOKENS;
        let room = context_len.saturating_sub(context_len / BEFORE_SHARE);
        let given = self.options.answer_tokens.or(self.assistant.options().answer_tokens);
        let room_beside = room.saturating_sub(given.unwrap_or(MORE_TOKENS));
        if n_bare + WINDOW_TOKENS_MIN > room_beside {
            return Err(TaskError::RequestTooLong { n_tokens: n_bare, room: room_beside });
        }
        let rest = room_beside - n_bare;
        let tokens_max = match given {
            None => rest * 4 / 9,
            Some(given) => rest.min(given.saturating_sub(MORE_TOKENS) * 4 / 5),
        };
        match tokens_max {
            0..WINDOW_TOKENS_MIN => Err(TaskError::NoRoom { room: tokens_max }),
            _ => Ok(tokens_max),
        }
    }

    /// Tells what the windows that are left take.
    fn estimate(&self, events: &mut VecDeque<JobEvent<Edit>>) {
        let n_before = self.assistant.context_len() / BEFORE_SHARE / 2;
        let of_window = |window: &Window| (window.n_tokens + self.n_around + n_before, window.n_tokens);
        let work = Work::of(self.windows.iter().map(of_window));
        events.push_back(JobEvent::Estimate(self.assistant.estimate(work, 1)));
    }

    /// Keeps the old text up to `to` as it is.
    fn keep(&mut self, to: usize, events: &mut VecDeque<JobEvent<Edit>>) {
        let from = self.old_done();
        if from < to {
            let text = self.old[from..to].to_owned();
            let new = self.new.len()..self.new.len() + text.len();
            self.new.push_str(&text);
            events.push_back(JobEvent::Text(TextEvent {
                text,
                kind: TextKind::Answer,
                origin: Origin::Target,
            }));
            self.note(vec![DiffEvent::Keep { old: from..to, new }], events);
        }
    }

    /// The end of the old text that the changes describe.
    fn old_done(&self) -> usize {
        let end = |change: &DiffEvent| match change {
            DiffEvent::Keep { old, .. } | DiffEvent::Delete { old } => old.end,
            DiffEvent::Insert { at, .. } => *at,
        };
        self.changes.last().map_or(0, end)
    }

    fn note(&mut self, changes: Vec<DiffEvent>, events: &mut VecDeque<JobEvent<Edit>>) {
        events.extend(changes.iter().cloned().map(JobEvent::Edit));
        self.changes.extend(changes);
    }

    /// Writes text of the running window.
    fn write(&mut self, text: String, origin: Origin, events: &mut VecDeque<JobEvent<Edit>>) {
        let Some(running) = self.running.as_mut().filter(|_| !text.is_empty()) else { return };
        let text = std::mem::take(&mut running.lead) + &text;
        let changes = running.diff.push(&text);
        running.changes.extend_from_slice(&changes);
        let changes = moved(changes, running.place.start, running.new_start);
        self.new.push_str(&text);
        events.push_back(JobEvent::Text(TextEvent { text, kind: TextKind::Answer, origin }));
        self.note(changes, events);
    }

    /// As the old text has its line ends.
    fn with_line_ends(&self, text: String) -> String {
        match self.is_crlf {
            true => text.replace('\r', "").replace('\n', "\r\n"),
            false => text,
        }
    }

    /// The prompt of the next window, or the end.
    fn next(mut self: Box<Self>) -> Result<Next<Edit>, TaskError> {
        let Some(Window { place, n_tokens }) = self.windows.pop_front() else {
            return Err(TaskError::Nothing { verb: "edit" });
        };
        let shown = self.shown(&place);
        let n_output = self.n_output(n_tokens);
        let room = self.assistant.context_len().saturating_sub(n_output);
        let before = self.before.take();
        let before = before.as_ref().map(|(old, new)| (old.as_str(), new.as_str()));
        let mut turns = self.turns(before, &shown);
        let mut n_prompt = self.assistant.count_turns(&turns)?;
        let mut shows_before = before.is_some();
        if n_prompt > room && shows_before {
            turns = self.turns(None, &shown);
            n_prompt = self.assistant.count_turns(&turns)?;
            shows_before = false;
        }
        if n_prompt > room {
            return Err(TaskError::TextTooLong { n_tokens: n_prompt, room });
        }
        let mut passage = Passage::new("", &*shown);
        passage.source = self.note.clone().map(Source::of_note);
        let layout = if shows_before {
            // The text of the note begins with what comes before.
            let starts = self.note.iter().map(|note| (note.clone(), 0)).collect();
            Layout { turns, shown: vec![passage], starts, ..Layout::default() }
        } else {
            let template = &self.assistant.prompts().edit;
            self.assistant.lay_out_whole(template, &[passage], &self.instruction, room)?
        };
        let kept = self.assistant.kept(&self.options, &layout, self.n_forgotten);
        let mut generate = match self.windows.is_empty() {
            true => self.assistant.last_generate_options(&mut self.options, &[]),
            false => self.assistant.generate_options(&self.options),
        };
        generate.max_tokens = n_output;
        let sampling = &mut generate.sampling;
        sampling.seed = self.seed.or(sampling.seed);
        if sampling.dry.output_only {
            sampling.dry.allowed_length = sampling.dry.allowed_length.max(LOOP_TOKENS_MIN);
        }
        let text = &self.old[place.clone()];
        let start = text.len() - text.trim_start().len();
        let end = start + text.trim().len();
        self.running = Some(Running {
            opening: Opening::new(&shown, &self.instruction),
            diff: LiveDiff::new(text),
            lead: text[..start].to_owned(),
            trail: text[end..].to_owned(),
            place,
            new_start: self.new.len(),
            changes: Vec::new(),
        });
        let prompt = Prompt::new("edit", layout.turns, generate, kept);
        Ok(Next::Generate(Box::new(prompt), self))
    }

    /// Why the new text of a window may be another than what was asked for.
    fn doubts_of(
        &mut self,
        window: &Range<usize>,
        new_start: usize,
        changes: &[DiffEvent],
    ) -> Vec<EditDoubt> {
        if self.markers.is_empty() {
            let tokenizer = self.assistant.engine().tokenizer();
            let ids = (0..tokenizer.vocab_size() as u32).map(TokenId);
            let controls =
                ids.filter(|&id| tokenizer.is_special(id)).filter_map(|id| tokenizer.token_bytes(id));
            let controls = controls.filter_map(|text| std::str::from_utf8(text).ok());
            // Shorter ones, and words, are text of notes too.
            let controls =
                controls.filter(|text| text.len() >= 3 && !text.chars().all(char::is_alphanumeric));
            let sentences = self.assistant.prompts().edit.sentences();
            self.markers = controls.chain(sentences).map(str::to_owned).collect();
        }
        let (old, new) = (&self.old[window.clone()], &self.new[new_start..]);
        let markers = self.markers.iter().map(String::as_str);
        let found = doubts((old, new), changes, &self.instruction, markers);
        found.into_iter().map(|doubt| doubt.moved(new_start)).collect()
    }

    fn done(&mut self, finish: FinishReason) -> Edit {
        let report = Report {
            finish,
            n_cut: self.n_cut,
            seed: self.seed,
            stats: std::mem::take(&mut self.stats),
            left_out: Vec::new(),
            not_kept: self.not_kept.take(),
        };
        Edit {
            new_part: self.part.start..self.new.len() - (self.old.len() - self.part.end),
            old_part: self.part.clone(),
            text: std::mem::take(&mut self.new),
            reasoning: std::mem::take(&mut self.reasoning),
            changes: std::mem::take(&mut self.changes),
            around: std::mem::take(&mut self.around),
            doubts: std::mem::take(&mut self.doubts),
            report,
        }
    }
}

/// Changes of a window as changes of the whole text.
fn moved(mut changes: Vec<DiffEvent>, old_start: usize, new_start: usize) -> Vec<DiffEvent> {
    let shift = |range: &mut Range<usize>, by: usize| *range = range.start + by..range.end + by;
    for change in &mut changes {
        match change {
            DiffEvent::Keep { old, new } => {
                shift(old, old_start);
                shift(new, new_start);
            }
            DiffEvent::Insert { new, at } => {
                shift(new, new_start);
                *at += old_start;
            }
            DiffEvent::Delete { old } => shift(old, old_start),
        }
    }
    changes
}

/// The last paragraphs of both texts that fit, for the next window. `None` if the texts have not as many paragraphs: which belong together
/// is not known then.
fn last_paragraphs(
    old: &str,
    new: &str,
    mut fits: impl FnMut(&str, &str) -> Result<bool, TaskError>,
) -> Result<Option<(String, String)>, TaskError> {
    let starts = |text: &str| -> Vec<usize> {
        let ends = text.match_indices("\n\n").map(|(at, ends)| at + ends.len());
        let is_start = |at: &usize| !text[*at..].starts_with('\n');
        [0].into_iter().chain(ends.filter(is_start)).collect()
    };
    let (old_starts, new_starts) = (starts(old), starts(new));
    if old_starts.len() != new_starts.len() || new.trim().is_empty() {
        return Ok(None);
    }
    let mut found = None;
    for (old_start, new_start) in old_starts.into_iter().zip(new_starts).rev() {
        let (old, new) = (old[old_start..].trim(), new[new_start..].trim());
        if !fits(old, new)? {
            break;
        }
        found = Some((old.to_owned(), new.to_owned()));
    }
    Ok(found)
}

impl Step<Edit> for Editing {
    fn text(&mut self, event: TextEvent, events: &mut VecDeque<JobEvent<Edit>>) {
        if event.kind != TextKind::Answer {
            self.reasoning.push_str(&event.text);
            events.push_back(JobEvent::Text(event));
        } else if let Some(running) = &mut self.running {
            let text = running.opening.push(&event.text);
            let text = self.with_line_ends(text);
            self.write(text, event.origin, events);
        }
    }

    fn is_last(&self) -> bool {
        self.windows.is_empty()
    }

    fn written(
        mut self: Box<Self>,
        written: Written,
        events: &mut VecDeque<JobEvent<Edit>>,
    ) -> Result<Next<Edit>, TaskError> {
        let Written { finish, seed, stats, not_kept, .. } = written;
        let is_whole = self.n_windows == 1;
        self.stats.push(stats);
        self.seed = self.seed.or(seed);
        self.not_kept = self.not_kept.take().or(not_kept);
        if let Some(running) = &mut self.running {
            let rest = running.opening.finish();
            let trail = running.trail.clone();
            let text = self.with_line_ends(rest) + &trail;
            self.write(text, Origin::Target, events);
        }
        let Some(mut running) = self.running.take() else { return self.next() };
        // Nothing was written, not even the white space around the text.
        let lead = std::mem::take(&mut running.lead);
        let mut changes = running.diff.push(&lead);
        changes.extend(running.diff.finish());
        self.new.push_str(&lead);
        if !lead.is_empty() {
            let origin = Origin::Target;
            events.push_back(JobEvent::Text(TextEvent { text: lead, kind: TextKind::Answer, origin }));
        }
        running.changes.extend_from_slice(&changes);
        let (place, new_start) = (running.place, running.new_start);
        self.note(moved(changes, place.start, new_start), events);
        let around = running.opening.left_out();
        if !around.is_empty() {
            self.around.push(around.to_owned());
        }
        let doubts = self.doubts_of(&place, new_start, &running.changes);
        self.doubts.extend_from_slice(&doubts);
        if !is_whole {
            let index = self.n_windows - self.windows.len() - 1;
            let new = new_start..self.new.len();
            let n_windows = self.n_windows;
            events.push_back(JobEvent::Window { index, n_windows, old: place.clone(), new, doubts });
        }
        if is_cut(finish) {
            self.n_cut += 1;
            self.windows.clear();
        } else if !self.windows.is_empty() {
            let n_max = self.assistant.context_len() / BEFORE_SHARE;
            let new = self.new[new_start..].trim().replace("\r\n", "\n");
            self.before = last_paragraphs(&self.shown(&place), &new, |old, new| {
                // With the turns around them.
                let n_tokens = self.assistant.count_turns(&self.turns(Some((old, new)), "x"))?;
                Ok(n_tokens <= self.n_around + n_max)
            })?;
            self.estimate(events);
        }
        if self.windows.is_empty() {
            self.keep(self.old.len(), events);
            return Ok(Next::Done(self.done(finish)));
        }
        self.next()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use proptest::prelude::*;
    use refrain::internals::draft::CostProfile;
    use refrain::{Engine, EngineOptions};

    use super::*;
    use crate::AssistantOptions;

    /// An assistant whose sessions have this context.
    fn assistant(context_len: usize) -> Assistant {
        static ENGINE: OnceLock<Engine> = OnceLock::new();
        let open = || {
            let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/target.gguf");
            let cost_profile = Some(CostProfile::free_rows(100.0));
            let options = EngineOptions { n_threads: Some(1), cost_profile, ..EngineOptions::default() };
            Engine::open(model, options).unwrap()
        };
        let mut options = AssistantOptions::default();
        options.session.context_len = Some(context_len);
        Assistant::builder(ENGINE.get_or_init(open).clone()).options(options).build().unwrap()
    }

    /// What an edit shows and returns if a model answers its prompts with what `model` makes of their texts.
    struct Run {
        edit: Edit,
        /// The turns of each prompt.
        prompts: Vec<Vec<Message>>,
        events: Vec<JobEvent<Edit>>,
    }

    fn run(assistant: &Assistant, request: EditRequest, mut model: impl FnMut(&str) -> String) -> Run {
        let instruction = request.instruction.clone();
        let (mut next, mut events) = assistant.begin_edit(request, JobOptions::default()).unwrap();
        let mut prompts = Vec::new();
        loop {
            match next {
                Next::Done(edit) => return Run { edit, prompts, events: events.into() },
                Next::Together(_) => unreachable!("windows depend on each other"),
                Next::Generate(prompt, mut step) => {
                    let message = prompt.messages.last().unwrap().content.clone();
                    let end = format!("\n\nRequest: {}", instruction.trim());
                    let text =
                        message.strip_prefix("Edit the text.\n\n").and_then(|text| text.strip_suffix(&end));
                    let n_prompt = assistant.count_turns(&prompt.messages).unwrap();
                    let n_output = prompt.generate.as_ref().unwrap().max_tokens;
                    assert!(n_prompt + n_output <= assistant.context_len(), "{n_prompt} and {n_output}");
                    prompts.push(prompt.messages);
                    let written = model(text.unwrap());
                    for piece in written.split_inclusive([' ', '\n']) {
                        let text = piece.to_owned();
                        let event = TextEvent { text, kind: TextKind::Answer, origin: Origin::Target };
                        step.text(event, &mut events);
                    }
                    let written = Written {
                        session: assistant.session("edit", false).unwrap(),
                        text: written,
                        reasoning: String::new(),
                        finish: FinishReason::EndToken,
                        seed: None,
                        stats: Stats::default(),
                        not_kept: None,
                    };
                    next = step.written(written, &mut events).unwrap();
                }
            }
        }
    }

    /// Checks that the events tell the result.
    fn check(old: &str, run: &Run) {
        let Run { edit, events, .. } = run;
        let (mut streamed, mut changes, mut windows) = (String::new(), Vec::new(), Vec::new());
        for event in events {
            match event {
                JobEvent::Text(text) => streamed.push_str(&text.text),
                JobEvent::Edit(change) => changes.push(change.clone()),
                JobEvent::Window { old, new, .. } => windows.push((old.clone(), new.clone())),
                _ => {}
            }
        }
        assert_eq!((&streamed, &changes), (&edit.text, &edit.changes));
        let (mut text, mut at) = (String::new(), 0);
        for change in &changes {
            match change {
                DiffEvent::Keep { old: kept, new } => {
                    assert_eq!((kept.start, new.start), (at, text.len()));
                    text.push_str(&old[kept.clone()]);
                    at = kept.end;
                }
                DiffEvent::Insert { new, .. } => {
                    assert_eq!(new.start, text.len());
                    text.push_str(&edit.text[new.clone()]);
                }
                DiffEvent::Delete { old } => {
                    assert_eq!(old.start, at);
                    at = old.end;
                }
            }
        }
        assert_eq!((at, &text), (old.len(), &edit.text));
        assert_eq!(old[..edit.old_part.start], edit.text[..edit.new_part.start]);
        assert_eq!(old[edit.old_part.end..], edit.text[edit.new_part.end..]);
        for pair in windows.windows(2) {
            assert_eq!((pair[0].0.end, pair[0].1.end), (pair[1].0.start, pair[1].1.start));
        }
        if let (Some(first), Some(last)) = (windows.first(), windows.last()) {
            assert_eq!((first.0.start, last.0.end), (edit.old_part.start, edit.old_part.end));
            assert_eq!((first.1.start, last.1.end), (edit.new_part.start, edit.new_part.end));
            let n = windows.len();
            assert!(n > 1 && matches!(&events[0], JobEvent::Estimate(estimate) if estimate.n_prompts == n));
        }
    }

    fn long_note(ends: &str) -> String {
        let paragraph = |n: usize| {
            format!(
                "## Day {n}\n\nOn day {n} the train leaves at {n} and the tap drips.\n\nAda Voss comes at {n}.\n\n"
            )
        };
        let body: String = (0..40).map(paragraph).collect();
        format!("---\ntitle: Days\n---\n\n{}\n", body.trim_end()).replace('\n', ends)
    }

    #[test]
    fn a_long_note_is_edited_in_windows() {
        for ends in ["\n", "\r\n"] {
            let (old, assistant) = (long_note(ends), assistant(768));
            let request = || EditRequest::new(&*old, "Say bus.");
            let copied = run(&assistant, request(), str::to_owned);
            check(&old, &copied);
            assert_eq!(copied.edit.text, old, "byte for byte");
            assert!(copied.prompts.len() >= 5 && copied.edit.doubts.is_empty(), "{}", copied.prompts.len());
            assert!(copied.edit.changes.iter().all(|change| matches!(change, DiffEvent::Keep { .. })));
            let changed = run(&assistant, request(), |text| text.replace("train", "bus"));
            check(&old, &changed);
            assert_eq!(changed.edit.text, old.replace("train", "bus"));
            // The prompt of a window shows the end of the one before, and what became of it.
            assert_eq!(changed.prompts[0].len(), 1);
            let [before, answer, window] = &changed.prompts[1][..] else {
                panic!("{:?}", changed.prompts[1])
            };
            assert_eq!((before.role, answer.role, window.role), (Role::User, Role::Assistant, Role::User));
            assert!(before.content.contains("Ada Voss") && !answer.content.contains("Request"));
            assert!(copied.prompts.iter().flatten().all(|turn| !turn.content.contains("title: Days")));
        }
    }

    #[test]
    fn a_window_is_edited_as_a_text_of_its_own() {
        let (old, assistant) = (long_note("\n"), assistant(512));
        let whole = run(&assistant, EditRequest::new(&*old, "Say bus."), str::to_owned);
        let JobEvent::Window { old: place, .. } =
            whole.events.iter().find(|event| matches!(event, JobEvent::Window { .. })).unwrap()
        else {
            unreachable!()
        };
        let alone = run(&assistant, EditRequest::new(&old[place.clone()], "Say bus."), str::to_owned);
        assert_eq!(alone.prompts, whole.prompts[..1]);
    }

    #[test]
    fn selections_lines_and_sections_alone_are_edited() {
        let (old, assistant) = (long_note("\n"), assistant(512));
        let upper = |part: EditPart| {
            let mut request = EditRequest::new(&*old, "In capitals.");
            request.part = part;
            let run = run(&assistant, request, str::to_uppercase);
            check(&old, &run);
            assert_eq!(run.prompts.len(), 1);
            let place = run.edit.old_part.clone();
            assert_eq!(run.edit.text[run.edit.new_part.clone()], old[place.clone()].to_uppercase());
            old[place].to_owned()
        };
        let start = old.find("Ada").unwrap();
        assert_eq!(upper(EditPart::Bytes(start..start + 8)), "Ada Voss");
        assert_eq!(upper(EditPart::Lines { first: 5, last: 5 }), "## Day 0\n");
        let section =
            "## Day 7\n\nOn day 7 the train leaves at 7 and the tap drips.\n\nAda Voss comes at 7.\n\n";
        for title in ["Day 7", "## Day 7", "day  7"] {
            assert_eq!(upper(EditPart::Section(title.to_owned())), section);
        }
        let last = upper(EditPart::Section("Day 39".to_owned()));
        assert!(last.ends_with("comes at 39.\n"));
    }

    #[test]
    fn parts_that_are_not_there_are_refused() {
        use EditPartError::*;
        let text = "# Ä\n\nx\n\n## B\n\ny\n\n## B\n\n# C";
        let len = text.len();
        let place = |part: EditPart| part.place_in(text);
        assert_eq!(place(EditPart::Bytes(0..99)), Err(Bytes { start: 0, end: 99, len }));
        #[allow(clippy::reversed_empty_ranges, reason = "an app may give it")]
        let reversed = 5..2;
        assert_eq!(place(EditPart::Bytes(reversed)), Err(Bytes { start: 5, end: 2, len }));
        assert_eq!(place(EditPart::Bytes(3..5)), Err(InsideCharacter { offset: 3 }));
        let lines = |first, last| place(EditPart::Lines { first, last });
        assert_eq!(lines(1, 11).map(|place| place.end), Ok(len));
        for (first, last) in [(0, 1), (2, 1), (3, 12), (12, 12)] {
            assert_eq!(lines(first, last), Err(Lines { first, last, n_lines: 11 }));
        }
        let section = |title: &str| place(EditPart::Section(title.to_owned()));
        assert_eq!(section("# B"), Err(NoSection { title: "B".to_owned() }));
        assert_eq!(section("B"), Err(SectionTwice { title: "B".to_owned(), first: 5, second: 9 }));
        assert_eq!(section("c"), Ok(len - 3..len));

        let assistant = assistant(512);
        let refused = |text: &str, part: EditPart, instruction: &str| {
            let mut request = EditRequest::new(text, instruction);
            request.part = part;
            assistant.edit(request, JobOptions::default()).unwrap_err()
        };
        assert!(matches!(refused("", EditPart::Whole, "x"), TaskError::Nothing { .. }));
        assert!(matches!(refused("a \n b", EditPart::Bytes(1..3), "x"), TaskError::Nothing { .. }));
        assert!(matches!(
            refused("a", EditPart::Section("a".into()), "x"),
            TaskError::Part(NoSection { .. })
        ));
        let line = "x".repeat(50_000_000);
        let max = EditRequest::BYTES_MAX;
        let error = refused(&line, EditPart::Whole, "x");
        assert!(matches!(error, TaskError::TextTooLarge { bytes: 50_000_000, max: given } if given == max));
        let long = "Explain it well. ".repeat(200);
        assert!(matches!(refused(&long, EditPart::Whole, &long), TaskError::RequestTooLong { .. }));
        let front = format!("---\ntitle: {}\n---\n", "word ".repeat(2000));
        assert!(
            matches!(refused(&front, EditPart::Whole, "x"), TaskError::Nothing { .. }),
            "front matter alone"
        );
    }

    #[test]
    fn a_heading_alone_and_a_long_line_are_edited() {
        let assistant = assistant(512);
        let heading = run(&assistant, EditRequest::new("# Trip\n", "In capitals."), str::to_uppercase);
        assert_eq!(heading.edit.text, "# TRIP\n");
        for unit in ["word and ", "語", "a."] {
            let line = unit.repeat(2000);
            let copied = run(&assistant, EditRequest::new(&*line, "Fix it."), str::to_owned);
            check(&line, &copied);
            assert!(copied.edit.text == line && copied.prompts.len() > 1);
        }
    }

    #[test]
    fn what_is_written_around_a_window_does_not_reach_the_note() {
        let (old, assistant) = (long_note("\n"), assistant(768));
        let chatty =
            |text: &str| format!("Here is the edited text:\n\n```\n{}\n```\n", text.replace("train", "bus"));
        let run = run(&assistant, EditRequest::new(&*old, "Say bus."), chatty);
        check(&old, &run);
        assert_eq!(run.edit.text, old.replace("train", "bus"));
        assert_eq!(run.edit.around.len(), run.prompts.len());
        assert!(run.prompts.iter().flatten().all(|turn| !turn.content.contains("Here is")));
    }

    #[test]
    fn a_window_that_loses_its_words_is_doubted() {
        let (old, assistant) = (long_note("\n"), assistant(768));
        let mut n = 0;
        let run = run(&assistant, EditRequest::new(&*old, "Fix it."), |text| {
            n += 1;
            if n == 2 { "I cannot do that, sorry about it.".to_owned() } else { text.to_owned() }
        });
        check(&old, &run);
        assert!(matches!(run.edit.doubts[..], [EditDoubt::DropsMost { .. }]), "{:?}", run.edit.doubts);
        let of_windows: Vec<usize> = run
            .events
            .iter()
            .filter_map(|event| match event {
                JobEvent::Window { doubts, .. } => Some(doubts.len()),
                _ => None,
            })
            .collect();
        assert_eq!((of_windows[1], of_windows.iter().sum::<usize>()), (1, 1));
        // In the prompt of the next one, which text became of which is not known.
        assert_eq!(run.prompts[2].len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn windows_join_to_the_text(
            text in "(# [a-c]{1,3}|([a-c]{1,6} ){1,12}|[a-cé]{1,9}\\.|- x|\n|\n\n|\n\n\n|  ){20,120}",
            is_crlf: bool,
            shift in 0usize..3,
        ) {
            let text = if is_crlf { text.replace('\n', "\r\n") } else { text };
            prop_assume!(!text.trim().is_empty());
            let assistant = assistant(256);
            let copied = run(&assistant, EditRequest::new(&*text, "Fix it."), |text| format!("{}{text}\n", " ".repeat(shift)));
            check(&text, &copied);
            prop_assert_eq!(&copied.edit.text, &text);
            let changed = run(&assistant, EditRequest::new(&*text, "Fix it."), |text| text.replace('a', "z"));
            check(&text, &changed);
            let start = changed.edit.old_part.start;
            prop_assert_eq!(&changed.edit.text, &(text[..start].to_owned() + &text[start..].replace('a', "z")));
        }
    }
}
