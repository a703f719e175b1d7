//! An edit in the making: window after window.
//!
//! The prompt of each window shows, as an earlier turn, the last paragraphs of the window before it and what became of them, so that the
//! style and the names go on across the seam. What lies between the windows and outside of them is never shown to the model and stays as
//! it is.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;

use refrain::{FinishReason, Message, Origin, PromptPassage, Role, Stats, TextKind, TokenId};
use refrain_index::Outline;

use super::request::{Edit, EditRequest};
use crate::assistant::Assistant;
use crate::edit::{DiffEvent, EditDoubt, LiveDiff, Opening, Window, doubts, windows};
use crate::error::TaskError;
use crate::estimate::Work;
use crate::layout::Layout;
use crate::options::JobOptions;
use crate::passage::{Passage, Source};
use crate::step::{JobEvent, Next, Prompt, Report, Step, TextEvent, Written, is_cut};

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

/// An edit in the making.
pub(super) struct Editing {
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
    /// The first prompt of an edit, and the events before it.
    pub(super) fn begin(
        assistant: &Assistant,
        request: EditRequest,
        options: JobOptions,
    ) -> Result<(Next<Edit>, VecDeque<JobEvent<Edit>>), TaskError> {
        let n_forgotten = assistant.n_forgotten();
        let EditRequest { text, instruction, part, note } = request;
        let mut place = part.place_in(&text)?;
        let core = text[place.clone()].trim();
        if core.is_empty() {
            return Err(TaskError::Nothing { verb: "edit" });
        }
        if place.len() > EditRequest::BYTES_MAX {
            return Err(TaskError::TextTooLarge { bytes: place.len(), max: EditRequest::BYTES_MAX });
        }
        let mut editing = Self::new(assistant, text, instruction, note, options, n_forgotten);
        let n_tokens = assistant.count(&editing.shown(&place))?;
        let n_whole = assistant.count_turns(&editing.turns(None, &editing.shown(&place)))?;
        if n_whole <= assistant.context_len().saturating_sub(editing.n_output(n_tokens)) {
            editing.windows.push_back(Window { place: place.clone(), n_tokens });
        } else {
            let outline = Outline::of(&editing.old);
            place.start = place.start.max(outline.start.min(place.end));
            let headings: Vec<usize> = outline.headings.iter().map(|heading| heading.lines.start).collect();
            let tokens_max = editing.window_tokens_max()?;
            let found = windows(&editing.old, place.clone(), &headings, tokens_max, &|text: &str| {
                assistant.count(text)
            })?;
            editing.windows = found.ok_or(TaskError::NoRoom { room: tokens_max })?.into();
            if editing.windows.iter().all(|window| window.n_tokens == 0) {
                return Err(TaskError::Nothing { verb: "edit" });
            }
        }
        editing.n_windows = editing.windows.len();
        editing.part = place;
        let mut events = VecDeque::new();
        if editing.n_windows > 1 {
            editing.n_around = assistant.count_turns(&editing.turns(None, "x"))?;
            editing.estimate(&mut events);
        }
        editing.keep(editing.part.start, &mut events);
        Ok((Box::new(editing).next()?, events))
    }

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
