//! Conversations of several turns, over notes if wanted.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use refrain::{Message, Role, Session, TokenId};
use refrain_index::NoteFilter;
use refrain_index::notes::absolute;

use super::from_passages::Found;
use super::provenance::Provenance;
use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::job::Job;
use crate::layout::{Layout, note_paths};
use crate::options::JobOptions;
use crate::passage::{LeftOut, Passage};
use crate::resume::Waiting;
use crate::searched::Searched;
use crate::step::{JobEvent, Next, Prompt, Report, Step, Written};
use crate::store::{ConversationId, Kept, n_common};
use crate::template::Template;

/// A conversation. Clones share it. One job of it runs at a time.
///
/// Its turns are in memory: an app that continues it later stores its id and turns
/// ([`Assistant::open_conversation`]).
#[derive(Clone)]
pub struct Conversation {
    assistant: Assistant,
    id: ConversationId,
    state: Arc<Mutex<State>>,
}

/// A turn of a conversation, as an app stores it to [continue](Assistant::open_conversation) the conversation later.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Turn {
    /// Author and text.
    pub message: Message,
    /// The notes that the turn shows, and those of the prompt that led to it, so that [`Forget::Note`](crate::Forget::Note) finds the
    /// kept answers of later turns. If the conversation has left turns out, the oldest remaining turn has the notes of these turns too.
    pub notes: Vec<PathBuf>,
    /// The user's words, if the message has more: passages and the words of a template. Later turns search for them too.
    pub asked: Option<String>,
    /// Whether the conversation may be kept with this turn in it ([`JobOptions::keep`]). Default `true`.
    pub keep: bool,
}

impl Turn {
    /// A turn without notes.
    pub fn new(message: Message) -> Self {
        Self { message, notes: Vec::new(), asked: None, keep: true }
    }
}

impl From<Message> for Turn {
    fn from(message: Message) -> Self {
        Self::new(message)
    }
}

#[derive(Default)]
struct State {
    /// System turn included.
    turns: Vec<Turn>,
    /// A session with exactly these turns, if there is one, and whether it drafts from kept answers.
    session: Option<(Session, bool)>,
    is_busy: bool,
    /// The passages of notes that earlier turns show.
    shown: Vec<Passage>,
    /// Where notes of the turns begin in the prompt; those that are missing may begin anywhere.
    starts: Vec<(PathBuf, usize)>,
    /// The tokens of the prompt in which they begin there, and of its answer.
    tokens: Option<Arc<[TokenId]>>,
    /// Deletions before the first turn: after a later one, the conversation is no longer kept.
    n_forgotten: u64,
}

/// A user's turn.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ChatRequest {
    /// The user's words.
    pub text: String,
    /// Number of passages of the notes to show, by a search for the words and, with less weight, for those of earlier turns
    /// ([`Search::earlier`](refrain_index::Search::earlier)). Passages that an earlier turn shows are not shown again, and none is shown
    /// if all cover too little ([`AssistantOptions::coverage_min`](crate::AssistantOptions::coverage_min)). Default 0.
    pub n_passages: usize,
    /// The notes to search. Default: all.
    pub filter: NoteFilter,
    /// Passages to show in place of a search, best first.
    pub passages: Option<Vec<Passage>>,
}

impl ChatRequest {
    /// A turn without notes.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), n_passages: 0, filter: NoteFilter::default(), passages: None }
    }
}

/// An answer in a conversation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ChatAnswer {
    /// The answer.
    pub text: String,
    /// The reasoning before it; empty for most models.
    pub reasoning: String,
    /// The passages that this turn shows.
    pub passages: Vec<Passage>,
    /// What the notes were searched for; `None` if they were not.
    pub searched: Option<Searched>,
    /// Where the text comes from, among these passages.
    pub provenance: Provenance,
    /// The oldest turns, which were left out of the conversation because it no longer fitted the context.
    pub dropped: Vec<Turn>,
    /// How it came about.
    pub report: Report,
}

impl Assistant {
    /// A new conversation, with a random id.
    pub fn conversation(&self) -> Conversation {
        self.open_conversation(ConversationId(RandomState::new().build_hasher().finish()), Vec::<Turn>::new())
    }

    /// A conversation with earlier turns, such as [`Conversation::turns`] gave. A system turn, if there is one, is the first turn; a
    /// conversation without turns begins with that of the options. Turns with relative paths of notes count from the current
    /// folder.
    pub fn open_conversation<T: Into<Turn>>(
        &self,
        id: ConversationId,
        turns: impl IntoIterator<Item = T>,
    ) -> Conversation {
        let mut turns: Vec<Turn> = turns.into_iter().map(Into::into).collect();
        for note in turns.iter_mut().flat_map(|turn| &mut turn.notes) {
            // A path that cannot be stored is no note of an index, and is found as it is given.
            *note = absolute(note).unwrap_or_else(|_| std::mem::take(note));
        }
        let state = State { turns, n_forgotten: self.n_forgotten(), ..State::default() };
        let state = Arc::new(Mutex::new(state));
        let waiting: Arc<dyn Waiting> = Arc::clone(&state) as Arc<dyn Waiting>;
        self.waiting().add(Arc::downgrade(&waiting));
        Conversation { assistant: self.clone(), id, state }
    }
}

impl Waiting for Mutex<State> {
    fn release_memory(&self) {
        let mut state = self.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((session, _)) = &mut state.session {
            session.release_memory();
        }
    }
}

impl Conversation {
    /// The id.
    pub fn id(&self) -> ConversationId {
        self.id
    }

    /// The turns so far, those of finished jobs.
    pub fn turns(&self) -> Vec<Turn> {
        self.lock().turns.clone()
    }

    /// As [`Assistant::release_memory`], for this conversation alone.
    pub fn release_memory(&self) {
        self.state.release_memory();
    }

    /// Answers a turn of the user. The conversation gets both turns when the job is done; a job that is dropped, cancelled or
    /// failed leaves it as before.
    ///
    /// If the conversation does not fit the context any more, its oldest turns are left out ([`ChatAnswer::dropped`]).
    ///
    /// After a turn with [`JobOptions::keep`] off, nothing of the conversation is kept any more: its text is in the prompts of
    /// later turns, or was when their answers were made.
    ///
    /// # Errors
    /// [`TaskError::Busy`]: another job of the conversation runs; [`TaskError::NoNotes`]: passages are wanted and there are no
    /// notes; [`TaskError::RequestTooLong`], [`TaskError::NoRoom`]: the turn alone does not fit;
    /// [`TaskError::NoChatTemplate`].
    pub fn say(&self, request: ChatRequest, mut options: JobOptions) -> Result<Job<ChatAnswer>, TaskError> {
        let assistant = &self.assistant;
        if !assistant.has_chat_template() {
            return Err(TaskError::NoChatTemplate);
        }
        let mut state = self.lock();
        if state.is_busy {
            return Err(TaskError::Busy);
        }
        if state.turns.is_empty() {
            // Nothing of it is older.
            state.n_forgotten = assistant.n_forgotten();
        }
        let ChatRequest { text, n_passages, filter, passages } = request;
        let Found { mut passages, tokens, searched } = match (passages, n_passages) {
            (Some(passages), _) => Found { passages, ..Found::default() },
            (None, 0) => Found::default(),
            (None, n) => {
                let found = assistant.search(&text, n, &filter, &asked(&state.turns))?;
                found.checked(assistant.options().coverage_min)
            }
        };
        passages.retain(|passage| !state.shows(passage));
        let (dropped, layout) = self.lay_out_turn(&state.turns, &passages, &text, &options)?;
        let n_system = n_system(&state.turns);
        let mut turns = [&state.turns[..n_system], &state.turns[n_system + dropped.len()..]].concat();
        let mut notes: BTreeSet<PathBuf> = note_paths(&layout.shown);
        let mut keep = options.keep;
        // Answers that stay may have text of the turns that are left out.
        let carried: BTreeSet<PathBuf> = dropped.iter().flat_map(|turn| turn.notes.clone()).collect();
        let carries_privacy = dropped.iter().any(|turn| !turn.keep);
        match turns.get_mut(n_system) {
            Some(oldest) => {
                let all: BTreeSet<PathBuf> = oldest.notes.drain(..).chain(carried).collect();
                oldest.notes = all.into_iter().collect();
                oldest.keep &= !carries_privacy;
            }
            None => {
                notes.extend(carried);
                keep &= !carries_privacy;
            }
        }
        let is_kept = keep && turns.iter().all(|turn| turn.keep);
        let before: BTreeSet<PathBuf> = turns.iter().flat_map(|turn| turn.notes.clone()).collect();
        let all: BTreeSet<PathBuf> = before.union(&notes).cloned().collect();
        // A note whose place is unknown counts from the start: of an earlier process, or behind turns that are left out.
        let start_of = |note: &PathBuf| {
            let known = match before.contains(note) {
                true if dropped.is_empty() => &state.starts[..],
                true => &[],
                false => &layout.starts,
            };
            known.iter().find(|(other, _)| other == note).map_or(0, |&(_, start)| start)
        };
        let starts: Vec<(PathBuf, usize)> = all.iter().map(|note| (note.clone(), start_of(note))).collect();
        let kept = is_kept.then(|| Kept {
            notes: all,
            conversation: Some(self.id.0),
            starts: starts.clone(),
            measured_in: state.tokens.clone(),
            n_forgotten: state.n_forgotten,
        });
        // A session that drafts from kept answers is not for a turn that does not, and the other way round.
        let session = state.session.take().filter(|(_, keeps)| dropped.is_empty() && *keeps == is_kept);
        let generate = assistant.last_generate_options(&mut options, &tokens);
        let messages = match session {
            Some(_) => layout.turns,
            None => turns.iter().map(|turn| turn.message.clone()).chain(layout.turns).collect(),
        };
        state.is_busy = true;
        drop(state);
        let session = session.map(|(session, _)| session);
        let prompt = Prompt { session, ..Prompt::new("chat", messages, generate, kept) };
        let seat = Seat(self.clone());
        let (shown, left_out) = (layout.shown, layout.left_out);
        let notes = notes.into_iter().collect();
        let asked = (!shown.is_empty()).then_some(text);
        let known = searched.clone();
        let step =
            Chatting { seat, turns, shown, left_out, dropped, asked, searched, notes, starts, keep, is_kept };
        let job = Job::new(assistant, options.cancel, options.priority, prompt, Box::new(step));
        Ok(known.into_iter().fold(job, Job::after_search))
    }

    /// The user's turn behind as many of the turns as fit, and the turns that are left out.
    fn lay_out_turn(
        &self,
        turns: &[Turn],
        passages: &[Passage],
        text: &str,
        options: &JobOptions,
    ) -> Result<(Vec<Turn>, Layout), TaskError> {
        let assistant = &self.assistant;
        let room = assistant.context_len() - assistant.answer_tokens(options);
        let words = Template::words();
        let template = if passages.is_empty() { &words } else { &assistant.prompts().answer };
        let (system, mut rest) = turns.split_at(n_system(turns));
        let mut dropped = Vec::new();
        loop {
            let before: Vec<Message> = system.iter().chain(rest).map(|turn| turn.message.clone()).collect();
            match assistant.lay_out(template, &before, passages, text, room) {
                Err(TaskError::RequestTooLong { .. } | TaskError::NoRoom { .. }) if !rest.is_empty() => {
                    // Up to the next turn of the user.
                    let next = rest.iter().skip(1).position(|turn| turn.message.role == Role::User);
                    let (oldest, newer) = rest.split_at(next.map_or(rest.len(), |next| next + 1));
                    dropped.extend_from_slice(oldest);
                    rest = newer;
                }
                layout => return Ok((dropped, layout?)),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The user's words in earlier turns, newest first.
fn asked(turns: &[Turn]) -> Vec<String> {
    let of_user = turns.iter().rev().filter(|turn| turn.message.role == Role::User);
    of_user.map(|turn| turn.asked.clone().unwrap_or_else(|| turn.message.content.clone())).collect()
}

/// The number of system turns at the beginning.
fn n_system(turns: &[Turn]) -> usize {
    turns.iter().take_while(|turn| matches!(turn.message.role, Role::System | Role::Developer)).count()
}

impl State {
    fn shows(&self, passage: &Passage) -> bool {
        let path = |passage: &Passage| passage.source.as_ref().map(|source| source.path.clone());
        let is_same = |shown: &Passage| shown.text == passage.text && path(shown) == path(passage);
        passage.source.is_some() && self.shown.iter().any(is_same)
    }
}

/// The place of a running job in its conversation. Dropping it, also by unwinding, lets the next job run.
struct Seat(Conversation);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.lock().is_busy = false;
    }
}

struct Chatting {
    seat: Seat,
    /// The turns before the job's that stay.
    turns: Vec<Turn>,
    shown: Vec<Passage>,
    left_out: Vec<LeftOut>,
    dropped: Vec<Turn>,
    /// The user's words, if the message has passages.
    asked: Option<String>,
    searched: Option<Searched>,
    /// The notes of the job's turns, and where all notes of the conversation begin in the prompt.
    notes: Vec<PathBuf>,
    starts: Vec<(PathBuf, usize)>,
    /// Whether the job's turns may be kept.
    keep: bool,
    /// Whether the conversation is.
    is_kept: bool,
}

impl Step<ChatAnswer> for Chatting {
    fn written(
        self: Box<Self>,
        written: Written,
        _events: &mut VecDeque<JobEvent<ChatAnswer>>,
    ) -> Result<Next<ChatAnswer>, TaskError> {
        let Self { seat, mut turns, shown, left_out, dropped, asked, searched, notes, starts, keep, is_kept } =
            *self;
        let report = written.report(left_out);
        let Written { session, text, reasoning, .. } = written;
        let new = session.turns().iter().skip(turns.len());
        turns.extend(
            new.cloned()
                .map(|message| {
                    let asked = asked.clone().filter(|_| message.role == Role::User);
                    Turn { message, notes: notes.clone(), asked, keep }
                })
                .collect::<Vec<_>>(),
        );
        let mut state = seat.0.lock();
        state.turns = turns;
        let start_max =
            state.tokens.as_ref().map_or(usize::MAX, |earlier| n_common(earlier, session.tokens()));
        state.starts = starts.into_iter().map(|(note, start)| (note, start.min(start_max))).collect();
        state.tokens = Some(session.tokens().into());
        state.session = Some((session, is_kept));
        // The shown part of a passage that was cut is another text, so the passage may be shown again.
        if !dropped.is_empty() {
            state.shown.clear();
        }
        state.shown.extend(shown.iter().cloned());
        drop(state);
        let provenance = Provenance::of(&text, &shown);
        Ok(Next::Done(ChatAnswer { text, reasoning, passages: shown, searched, provenance, dropped, report }))
    }

    fn stopped(self: Box<Self>, mut session: Session) {
        // A job that was stopped before its first turn was added has a session without turns.
        let n_turns = self.turns.len();
        while session.turns().len() > n_turns {
            session.pop_turn();
        }
        if n_turns > 0 && session.turns().len() == n_turns && self.dropped.is_empty() {
            self.seat.0.lock().session = Some((session, self.is_kept));
        }
    }
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Conversation")
            .field("id", &self.id)
            .field("n_turns", &state.turns.len())
            .field("is_busy", &state.is_busy)
            .finish_non_exhaustive()
    }
}
