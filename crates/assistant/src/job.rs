//! A job: a task as an iterator of events.
//!
//! A task is a chain of generations. Each has a prompt and a [`Step`], which takes the output and gives either the prompt of the
//! next generation or the result. The job runs the chain pass by pass; every pass is a turn of the [gate](crate::gate).

use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use refrain::internals::error::GenerateProblem;
use refrain::{
    CancelToken, Event, FinishReason, GenerateOptions, Origin, OwnedGeneration, Session, Stats, Summary,
    TextKind, TokenId,
};

use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::options::Priority;
use crate::provenance::LiveSentences;
use crate::searched::Searched;
use crate::step::{JobEvent, Next, Prompt, Step, TextEvent, Written, append, failed};
use crate::store::{Kept, StoreError};
use crate::together::Group;

/// A running task: an iterator of events that ends after [`JobEvent::Done`] or an error.
///
/// Nothing is computed until an event is requested, and then at most one pass of the model per event. A job owns what it needs:
/// it may be stored and moved to a thread. Jobs of one assistant take turns, whichever threads they run on.
///
/// A job that is dropped, cancelled or failed keeps no answer, and leaves a conversation as before. (A summary in parts keeps its
/// finished parts and their computed prompts, under the names of their notes: the next one goes on from them.) If a draft source or
/// processor of the app panics, the panic unwinds from `next`, and the job has ended; the assistant stays usable.
pub struct Job<T> {
    assistant: Assistant,
    cancel: CancelToken,
    priority: Priority,
    state: State<T>,
    events: VecDeque<JobEvent<T>>,
    /// Answers that are kept if the job ends well.
    answers: Vec<(Vec<TokenId>, Kept)>,
    /// The sentences of the answer, if they are announced.
    sentences: Option<LiveSentences>,
}

/// What a job does next. It is taken while it runs, so a panic ends the job.
enum State<T> {
    Start(Next<T>),
    Prefill(Box<Prefilling<T>>),
    Decode(Box<Decoding<T>>),
    Together(Box<Group<T>>),
    Ended,
}

struct Prefilling<T> {
    session: Session,
    generate: Option<GenerateOptions>,
    step: Box<dyn Step<T>>,
    about: About,
    /// Prompt tokens that were in the KV cache before the first chunk.
    n_cached: Option<usize>,
    time_us: f64,
}

/// What a generation keeps.
struct About {
    task: &'static str,
    kept: Option<Kept>,
}

struct Decoding<T> {
    generation: OwnedGeneration,
    step: Box<dyn Step<T>>,
    about: About,
    /// Tokens in the KV cache before the prefill, and prefilled ones.
    n_cached: usize,
    n_prefilled: usize,
    prefill_us: f64,
    text: String,
    reasoning: String,
    tokens: Vec<TokenId>,
    /// Whether the next event needs a pass: no token of the last step is left.
    needs_pass: bool,
}

impl<T> Job<T> {
    pub(crate) fn new(
        assistant: &Assistant,
        cancel: CancelToken,
        priority: Priority,
        prompt: Prompt,
        step: Box<dyn Step<T>>,
    ) -> Self {
        Self::begin(assistant, cancel, priority, Next::Generate(Box::new(prompt), step), VecDeque::new())
    }

    /// A job whose first events are known.
    pub(crate) fn begin(
        assistant: &Assistant,
        cancel: CancelToken,
        priority: Priority,
        next: Next<T>,
        events: VecDeque<JobEvent<T>>,
    ) -> Self {
        let (state, answers) = (State::Start(next), Vec::new());
        Self { assistant: assistant.clone(), cancel, priority, state, events, answers, sentences: None }
    }

    /// From now on, each sentence of the answer is an event of its own ([`JobEvent::Sentence`]) behind the text that completes it; the
    /// last ones come before the result. To be called before the first event is taken: sentences count from there.
    pub fn announce_sentences(&mut self) {
        self.sentences.get_or_insert_default();
    }

    /// The event, and behind a text the sentences that it completes.
    fn with_sentences(&mut self, event: JobEvent<T>) -> JobEvent<T> {
        match event {
            JobEvent::Text(event) if event.kind == TextKind::Answer => {
                let ready = self.sentences.as_mut().map(|live| live.push(&event.text)).unwrap_or_default();
                ready.into_iter().rev().for_each(|ready| self.events.push_front(JobEvent::Sentence(ready)));
                JobEvent::Text(event)
            }
            JobEvent::Done(_) => {
                self.events.push_front(event);
                let ready = self.sentences.take().map(LiveSentences::finish).unwrap_or_default();
                ready.into_iter().rev().for_each(|ready| self.events.push_front(JobEvent::Sentence(ready)));
                self.events.pop_front().expect("the result is there")
            }
            event => event,
        }
    }

    /// The job, whose first event says what was searched for.
    pub(crate) fn after_search(mut self, searched: Searched) -> Self {
        self.events.push_back(JobEvent::Searched(searched));
        self
    }

    /// A token that cancels this job only, from any thread: its last event is then [`TaskError::Cancelled`], before the next
    /// layer of a running pass.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// The statistics of the running generation, as far as its events were taken; `None` between generations.
    pub fn stats(&self) -> Option<&Stats> {
        match &self.state {
            State::Decode(decoding) => Some(decoding.generation.stats()),
            State::Start(_) | State::Prefill(_) | State::Together(_) | State::Ended => None,
        }
    }

    /// Runs the job to its end and returns the result.
    ///
    /// # Errors
    /// As the iterator's items.
    pub fn run(self) -> Result<T, TaskError> {
        self.run_with(|_| {})
    }

    /// As [`run`](Self::run), and shows every event.
    ///
    /// # Errors
    /// As the iterator's items.
    pub fn run_with(mut self, mut on_event: impl FnMut(&JobEvent<T>)) -> Result<T, TaskError> {
        for event in &mut self {
            let event = event?;
            on_event(&event);
            if let JobEvent::Done(result) = event {
                return Ok(result);
            }
        }
        // The result was taken before, or a panic has ended the job.
        Err(TaskError::Generate(GenerateProblem::Ended.into()))
    }

    /// Makes one pass, or what is between two of them.
    fn advance(&mut self) -> Result<(), TaskError> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Ended => {}
            State::Start(Next::Done(result)) => self.events.push_back(JobEvent::Done(result)),
            State::Start(Next::Generate(prompt, step)) => self.start(*prompt, step)?,
            State::Start(Next::Together(parts)) => self.state = State::Together(Box::new(Group::new(parts))),
            State::Together(mut group) => {
                let (cancel, answers) = (&self.cancel, &mut self.answers);
                match group.advance(&self.assistant, (cancel, self.priority), answers, &mut self.events)? {
                    false => self.state = State::Together(group),
                    true => self.state = State::Start(group.end(&mut self.events)?),
                }
            }
            State::Prefill(prefilling) => self.prefill(prefilling)?,
            State::Decode(decoding) => self.decode(decoding)?,
        }
        Ok(())
    }

    fn start(&mut self, prompt: Prompt, step: Box<dyn Step<T>>) -> Result<(), TaskError> {
        let Prompt { messages, alternative, task, session, generate, kept } = prompt;
        let assistant = &self.assistant;
        // Its keys and values were given back while it waited.
        let was_released = session
            .as_ref()
            .is_some_and(|session| session.state().n_cached_tokens() == 0 && !session.turns().is_empty());
        let mut session = match session {
            Some(session) => session,
            None => assistant.session(task, kept.is_some())?,
        };
        let mut other = Vec::new();
        if let Some(turns) = alternative {
            let n_turns = turns.len();
            append(assistant, &mut session, turns)?;
            other = session.state_mut().encode()?.to_vec();
            if assistant.has_chat_template() {
                (0..n_turns).for_each(|_| drop(session.pop_turn()));
            } else {
                session.truncate(session.tokens().len() - other.len())?;
            }
        }
        append(assistant, &mut session, messages)?;
        // Encoded here, so that the KV cache has what it shares with the prompt and no more.
        let tokens = session.state_mut().encode()?;
        let parting = tokens.iter().zip(&other).take_while(|(a, b)| a == b).count();
        if !was_released || assistant.prompt_costs().prefers_reading() {
            assistant.restore(&mut session);
        }
        if !other.is_empty() {
            session.state_mut().remember(parting);
        }
        let about = About { task, kept };
        let prefilling = Prefilling { session, generate, step, about, n_cached: None, time_us: 0.0 };
        self.state = State::Prefill(Box::new(prefilling));
        Ok(())
    }

    fn prefill(&mut self, mut prefilling: Box<Prefilling<T>>) -> Result<(), TaskError> {
        let assistant = self.assistant.clone();
        let Some(turn) = assistant.gate().enter(self.priority, &self.cancel) else {
            prefilling.step.stopped(prefilling.session);
            return Err(TaskError::Cancelled);
        };
        let since = Instant::now();
        let n_before = prefilling.session.state().n_cached_tokens();
        let chunk = match self.priority {
            // Whatever comes meanwhile waits for a chunk only.
            Priority::Background => prefilling.session.prefill_chunk(&self.cancel),
            Priority::Interactive | Priority::Foreground => {
                prefilling.session.prefill_pass(&self.cancel, |_, _| {})
            }
        };
        drop(turn);
        let time = since.elapsed();
        prefilling.time_us += time.as_secs_f64() * 1e6;
        let (done, total) = match chunk {
            Ok(progress) => progress,
            Err(error) => {
                prefilling.step.stopped(prefilling.session);
                return Err(failed(error));
            }
        };
        let n_cached = *prefilling.n_cached.get_or_insert(n_before.min(done));
        if done > n_cached {
            self.events.push_back(JobEvent::Prefill { done, total });
        }
        self.assistant.prompt_costs().note_computed(done.saturating_sub(n_before), time);
        if done < total {
            if let Err(error) = prefilling.step.prefilled(&prefilling.session) {
                prefilling.step.stopped(prefilling.session);
                return Err(error);
            }
            self.state = State::Prefill(prefilling);
            return Ok(());
        }
        let Prefilling { session, generate, step, about, time_us, .. } = *prefilling;
        let Some(generate) = generate else {
            return self.written(
                step,
                Written {
                    session,
                    text: String::new(),
                    reasoning: String::new(),
                    finish: FinishReason::Stop,
                    seed: None,
                    stats: Stats::default(),
                    not_kept: None,
                },
            );
        };
        match OwnedGeneration::new(session, generate) {
            Ok(generation) => {
                self.state = State::Decode(Box::new(Decoding {
                    generation,
                    step,
                    about,
                    n_cached,
                    n_prefilled: total - n_cached,
                    prefill_us: time_us,
                    text: String::new(),
                    reasoning: String::new(),
                    tokens: Vec::new(),
                    needs_pass: true,
                }));
                Ok(())
            }
            Err(refused) => {
                step.stopped(*refused.session);
                Err(failed(refused.error))
            }
        }
    }

    fn decode(&mut self, mut decoding: Box<Decoding<T>>) -> Result<(), TaskError> {
        let assistant = self.assistant.clone();
        // Tokens of the last step that were not taken yet need no turn.
        let turn = decoding.needs_pass.then(|| assistant.gate().enter(self.priority, &self.cancel)).flatten();
        if self.cancel.is_cancelled() {
            decoding.step.stopped(decoding.generation.into_session());
            return Err(TaskError::Cancelled);
        }
        let n_steps = decoding.generation.stats().steps;
        let event = decoding.generation.next();
        drop(turn);
        match event {
            Some(Ok(Event::Token(token))) => {
                decoding.tokens.push(token.id);
                // A step is counted when its last token is taken.
                decoding.needs_pass = decoding.generation.stats().steps > n_steps;
                let Decoding { step, text, reasoning, .. } = &mut *decoding;
                for (kind, piece) in token.segments {
                    push(&mut **step, [text, reasoning], kind, piece, &token.origin, &mut self.events);
                }
                self.state = State::Decode(decoding);
                Ok(())
            }
            Some(Ok(Event::Done(summary))) if summary.finish == FinishReason::Cancelled => {
                decoding.step.stopped(decoding.generation.into_session());
                Err(TaskError::Cancelled)
            }
            Some(Ok(Event::Done(summary))) => self.end(*decoding, summary),
            Some(Ok(_)) => {
                self.state = State::Decode(decoding);
                Ok(())
            }
            Some(Err(error)) => {
                decoding.step.stopped(decoding.generation.into_session());
                Err(failed(error))
            }
            None => Err(TaskError::Generate(GenerateProblem::Ended.into())),
        }
    }

    fn end(&mut self, decoding: Decoding<T>, summary: Summary) -> Result<(), TaskError> {
        let Decoding { generation, mut step, about, mut text, mut reasoning, tokens, .. } = decoding;
        let Summary { finish, segments, seed, mut stats, .. } = summary;
        for (kind, piece) in segments {
            let texts = [&mut text, &mut reasoning];
            push(&mut *step, texts, kind, piece, &Origin::Target, &mut self.events);
        }
        (stats.cached_tokens, stats.prefilled_tokens) = (decoding.n_cached, decoding.n_prefilled);
        stats.time_us.prefill += decoding.prefill_us;
        let session = generation.into_session();
        step.accepts(&text)?;
        self.assistant.observe(&stats);
        let mut keeping = Ok(());
        if let Some(kept) = about.kept {
            keeping = self.assistant.keep_prompt_of(&session, tokens.len(), &kept);
            self.answers.push((tokens, kept));
        }
        if step.is_last() {
            keeping = keeping.and(self.assistant.keep_answers(about.task, &self.answers));
        }
        let not_kept = keeping.err().map(|error: StoreError| error.to_string());
        self.written(step, Written { session, text, reasoning, finish, seed, stats, not_kept })
    }

    fn written(&mut self, step: Box<dyn Step<T>>, written: Written) -> Result<(), TaskError> {
        self.state = State::Start(step.written(written, &mut self.events)?);
        Ok(())
    }
}

/// Adds a piece of text to the answer or the reasoning, and passes it on.
fn push<T>(
    step: &mut dyn Step<T>,
    [answer, reasoning]: [&mut String; 2],
    kind: TextKind,
    text: String,
    origin: &Origin,
    events: &mut VecDeque<JobEvent<T>>,
) {
    if text.is_empty() {
        return;
    }
    match kind {
        TextKind::Answer => answer.push_str(&text),
        _ => reasoning.push_str(&text),
    }
    step.text(TextEvent { text, kind, origin: origin.clone() }, events);
}

impl<T> Iterator for Job<T> {
    type Item = Result<JobEvent<T>, TaskError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(Ok(if self.sentences.is_some() { self.with_sentences(event) } else { event }));
            }
            if matches!(self.state, State::Ended) {
                return None;
            }
            if let Err(error) = self.advance() {
                self.events.clear();
                return Some(Err(error));
            }
        }
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Prefill(prefilling) => prefilling.step.stopped(prefilling.session),
            State::Decode(decoding) => decoding.step.stopped(decoding.generation.into_session()),
            State::Start(_) | State::Together(_) | State::Ended => {}
        }
    }
}

impl<T> fmt::Debug for Job<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Start(_) => "start",
            State::Prefill(_) => "prefill",
            State::Decode(_) => "decode",
            State::Together(_) => "together",
            State::Ended => "ended",
        };
        f.debug_struct("Job").field("priority", &self.priority).field("state", &state).finish_non_exhaustive()
    }
}
