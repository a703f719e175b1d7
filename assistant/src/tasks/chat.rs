//! Conversations of several turns, over notes if wanted.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use refrain::{Message, Role, Session};

use super::{Found, Provenance, draft_source};
use crate::assistant::{Assistant, note_hashes};
use crate::error::TaskError;
use crate::job::{Job, JobEvent, Next, Prompt, Report, Step, Written};
use crate::layout::Layout;
use crate::options::JobOptions;
use crate::passage::{LeftOut, Passage, Source};
use crate::store::Kept;
use crate::template::Template;

/// The id of a conversation, under which [`Assistant::forget`] deletes what was kept of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConversationId(pub u64);

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

#[derive(Default)]
struct State {
    /// System turn included.
    turns: Vec<Message>,
    /// A session with exactly these turns, if there is one.
    session: Option<Session>,
    is_busy: bool,
    /// The passages that earlier turns show.
    shown: Vec<Source>,
    /// The notes that the turns were made from, and where each begins in the prompt.
    notes: Vec<u64>,
    starts: Vec<(u64, usize)>,
    /// Deletions before the first turn: after a later one, the conversation is no longer kept.
    n_forgotten: u64,
}

/// A user's turn.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ChatRequest {
    /// The user's words.
    pub text: String,
    /// Number of passages of the notes to show, by a search for the words. Passages that an earlier turn shows are not shown
    /// again. Default 0.
    pub n_passages: usize,
}

impl ChatRequest {
    /// A turn without notes.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), n_passages: 0 }
    }
}

crate::options::setters!(ChatRequest { with_n_passages: n_passages: usize });

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
    /// Where the text comes from, among these passages.
    pub provenance: Provenance,
    /// The oldest turns, which were left out of the conversation because it no longer fitted the context.
    pub dropped: Vec<Message>,
    /// How it came about.
    pub report: Report,
}

impl Assistant {
    /// A new conversation, with a random id.
    pub fn conversation(&self) -> Conversation {
        self.open_conversation(ConversationId(RandomState::new().build_hasher().finish()), Vec::new())
    }

    /// A conversation with earlier turns. A system turn, if there is one, is the first turn; a conversation without turns begins
    /// with that of the options.
    pub fn open_conversation(&self, id: ConversationId, turns: Vec<Message>) -> Conversation {
        let state = State { turns, n_forgotten: self.n_forgotten(), ..State::default() };
        Conversation { assistant: self.clone(), id, state: Arc::new(Mutex::new(state)) }
    }
}

impl Conversation {
    /// The id.
    pub fn id(&self) -> ConversationId {
        self.id
    }

    /// The turns so far, those of finished jobs.
    pub fn turns(&self) -> Vec<Message> {
        self.lock().turns.clone()
    }

    /// Answers a turn of the user. The conversation gets both turns when the job is done; a job that is dropped, cancelled or
    /// failed leaves it as before.
    ///
    /// If the conversation does not fit the context any more, its oldest turns are left out ([`ChatAnswer::dropped`]).
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
        let ChatRequest { text, n_passages } = request;
        let Found { mut passages, tokens } = match n_passages {
            0 => Found { passages: Vec::new(), tokens: Vec::new() },
            n => assistant.search(&text, n, &[])?,
        };
        passages.retain(|passage| !state.shows(passage));
        let (dropped, layout) = self.lay_out_turn(&state.turns, &passages, &text, &options)?;
        // The turns that stay. What is left out may have shown notes: where they begin is then unknown, so they count from the
        // start.
        let n_system = n_system(&state.turns);
        let turns = [&state.turns[..n_system], &state.turns[n_system + dropped.len()..]].concat();
        let session = state.session.take().filter(|_| dropped.is_empty());
        let mut notes = state.notes.clone();
        notes.extend(note_hashes(&layout.shown));
        let start = |&(note, start): &(u64, usize)| (note, if dropped.is_empty() { start } else { 0 });
        let mut starts: Vec<(u64, usize)> = state.starts.iter().map(start).collect();
        starts.extend(layout.starts.iter().filter(|(note, _)| !state.notes.contains(note)));
        let kept = options.keep.then(|| Kept {
            notes: notes.clone(),
            conversation: Some(self.id.0),
            starts: starts.clone(),
            n_forgotten: state.n_forgotten,
        });
        let mut generate = assistant.generate_options(&options);
        generate.sources =
            draft_source(&tokens).into_iter().chain(std::mem::take(&mut options.sources)).collect();
        generate.processors = std::mem::take(&mut options.processors);
        let n_turns = turns.len();
        let messages = match session {
            Some(_) => layout.turns,
            None => [turns, layout.turns].concat(),
        };
        state.is_busy = true;
        drop(state);
        let prompt = Prompt { messages, task: "chat", session, generate: Some(generate), kept };
        let seat = Seat { conversation: self.clone(), n_turns };
        let (shown, left_out) = (layout.shown, layout.left_out);
        let step = Chatting { seat, shown, left_out, dropped, notes, starts };
        Ok(Job::new(assistant, options.cancel, options.priority, prompt, step))
    }

    /// The user's turn behind as many of the turns as fit, and the turns that are left out.
    fn lay_out_turn(
        &self,
        turns: &[Message],
        passages: &[Passage],
        text: &str,
        options: &JobOptions,
    ) -> Result<(Vec<Message>, Layout), TaskError> {
        let assistant = &self.assistant;
        let room = assistant.context_len() - assistant.answer_tokens(options);
        let words = Template::words();
        let template = if passages.is_empty() { &words } else { &assistant.prompts().answer };
        let (system, mut rest) = turns.split_at(n_system(turns));
        let mut dropped = Vec::new();
        loop {
            let before = [system, rest].concat();
            match assistant.lay_out(template, &before, passages, text, room) {
                Err(TaskError::RequestTooLong { .. } | TaskError::NoRoom { .. }) if !rest.is_empty() => {
                    // Up to the next turn of the user.
                    let next = rest.iter().skip(1).position(|turn| turn.role == Role::User);
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

/// The number of system turns at the beginning.
fn n_system(turns: &[Message]) -> usize {
    turns.iter().take_while(|turn| matches!(turn.role, Role::System | Role::Developer)).count()
}

impl State {
    fn shows(&self, passage: &Passage) -> bool {
        let is_same =
            |source: &Source, shown: &Source| (&source.path, &source.place) == (&shown.path, &shown.place);
        passage.source.as_ref().is_some_and(|source| self.shown.iter().any(|shown| is_same(source, shown)))
    }
}

/// The place of a running job in its conversation. Dropping it, also by unwinding, lets the next job run.
struct Seat {
    conversation: Conversation,
    /// Turns before the job.
    n_turns: usize,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.conversation.lock().is_busy = false;
    }
}

struct Chatting {
    seat: Seat,
    shown: Vec<Passage>,
    left_out: Vec<LeftOut>,
    dropped: Vec<Message>,
    notes: Vec<u64>,
    starts: Vec<(u64, usize)>,
}

impl Step<ChatAnswer> for Chatting {
    fn written(
        self: Box<Self>,
        written: Written,
        _events: &mut VecDeque<JobEvent<ChatAnswer>>,
    ) -> Result<Next<ChatAnswer>, TaskError> {
        let Self { seat, shown, left_out, dropped, notes, starts } = *self;
        let report = written.report(left_out);
        let Written { session, text, reasoning, .. } = written;
        let mut state = seat.conversation.lock();
        state.turns = session.turns().to_vec();
        state.session = Some(session);
        // The shown part of a passage that was cut has another place, so the passage may be shown again.
        if !dropped.is_empty() {
            state.shown.clear();
        }
        state.shown.extend(shown.iter().filter_map(|passage| passage.source.clone()));
        (state.notes, state.starts) = (notes, starts);
        drop(state);
        let provenance = Provenance::of(&text, &shown);
        Ok(Next::Done(ChatAnswer { text, reasoning, passages: shown, provenance, dropped, report }))
    }

    fn stopped(self: Box<Self>, mut session: Session) {
        // A job that was stopped before its first turn was added has a session without turns.
        while session.turns().len() > self.seat.n_turns {
            session.pop_turn();
        }
        let n_turns = self.seat.n_turns;
        if n_turns > 0 && session.turns().len() == n_turns && self.dropped.is_empty() {
            self.seat.conversation.lock().session = Some(session);
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
