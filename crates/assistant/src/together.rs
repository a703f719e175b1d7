//! Generations of one job that do not depend on each other: the parts of a summary.
//!
//! Their prompts are read one after the other, chunk by chunk; then their steps share passes where the measured costs say so
//! ([`step_together`]). When one ends, the next one begins. Each pass is a turn of the gate, as with a generation alone, and each output has
//! the same bits as alone.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use refrain::internals::error::GenerateProblem;
use refrain::internals::kernels::has_room;
use refrain::{
    CancelToken, Event, FinishReason, GenerateOptions, OwnedGeneration, Session, Summary, TextKind, TokenId,
    step_together,
};

use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::options::Priority;
use crate::step::{JobEvent, Next, Parts, Prompt, Written, append, failed};
use crate::store::{Kept, StoreError};

/// Memory that sessions beside the first may take in any case. Else they take at most as much as the weights.
const SESSIONS_BYTES: u64 = 256 << 20;

/// The time of so many tokens is measured together: a step has only some.
const MEASURED_TOKENS: usize = 32;

/// An output that is kept if the job ends well.
type Answer = (Vec<TokenId>, Kept);

/// See the module.
pub(crate) struct Group<T> {
    parts: Box<dyn Parts<T>>,
    members: Vec<Member>,
    /// Whether all prompts have been started.
    is_all: bool,
    /// Maximum number of members; `None` before the first.
    n_max: Option<usize>,
    /// By number.
    answers: BTreeMap<usize, Answer>,
    /// The time of the newest steps, and their tokens.
    stepped: (f64, usize),
}

/// A generation.
struct Member {
    number: usize,
    kept: Option<Kept>,
    work: Work,
    /// Tokens in the KV cache before the prefill; `None` before its first chunk.
    n_cached: Option<usize>,
    n_prompt: usize,
    prefill_us: f64,
    text: String,
    reasoning: String,
    tokens: Vec<TokenId>,
}

enum Work {
    Prefill(Box<Session>, Box<GenerateOptions>),
    Decode(Box<OwnedGeneration>),
    /// Between the two, and at the end.
    Moving,
}

impl<T> Group<T> {
    pub(crate) fn new(parts: Box<dyn Parts<T>>) -> Self {
        Self {
            parts,
            members: Vec::new(),
            is_all: false,
            n_max: None,
            answers: BTreeMap::new(),
            stepped: (0.0, 0),
        }
    }

    /// Makes one pass, or what is between two of them. Returns whether all generations have ended.
    pub(crate) fn advance(
        &mut self,
        assistant: &Assistant,
        (cancel, priority): (&CancelToken, Priority),
        answers: &mut Vec<Answer>,
        events: &mut VecDeque<JobEvent<T>>,
    ) -> Result<bool, TaskError> {
        if cancel.is_cancelled() {
            return Err(TaskError::Cancelled);
        }
        if !self.is_all && self.has_place(assistant) {
            match self.parts.next(events)? {
                Some((number, prompt)) => self.members.push(Member::start(assistant, number, prompt)?),
                None => self.is_all = true,
            }
            return Ok(false);
        }
        if self.members.is_empty() {
            answers.extend(std::mem::take(&mut self.answers).into_values());
            return Ok(true);
        }
        let turn = assistant.gate().enter(priority, cancel).ok_or(TaskError::Cancelled)?;
        let since = Instant::now();
        let reading = self.members.iter_mut().find(|member| matches!(member.work, Work::Prefill(..)));
        if let Some(member) = reading {
            let read = member.read(cancel, priority)?;
            drop(turn);
            member.prefill_us += since.elapsed().as_secs_f64() * 1e6;
            if let Some((done, total)) = read {
                events.push_back(JobEvent::Prefill { done, total });
            }
            return member.begin(assistant).map(|()| false);
        }
        let mut generations: Vec<&mut OwnedGeneration> = Vec::new();
        for member in &mut self.members {
            if let Work::Decode(generation) = &mut member.work {
                generations.push(generation);
            }
        }
        step_together(&mut generations);
        drop(turn);
        let us = since.elapsed().as_secs_f64() * 1e6;
        let (mut n_tokens, mut ended) = (0, Vec::new());
        for (at, member) in self.members.iter_mut().enumerate() {
            let n_before = member.tokens.len();
            if let Some(summary) = member.take()? {
                ended.push((at, summary));
            }
            n_tokens += member.tokens.len() - n_before;
        }
        self.stepped = (self.stepped.0 + us, self.stepped.1 + n_tokens);
        if self.stepped.1 >= MEASURED_TOKENS {
            let (us, n_tokens) = std::mem::take(&mut self.stepped);
            assistant.observe_together(us, n_tokens);
        }
        // From the last place on, so that the others stay.
        for (at, summary) in ended.into_iter().rev() {
            let member = self.members.remove(at);
            let (number, kept) = (member.number, member.kept.clone());
            let (written, tokens) = member.end(assistant, summary)?;
            if let Some(kept) = kept {
                self.answers.insert(number, (tokens, kept));
            }
            self.parts.written(number, written, events)?;
        }
        Ok(false)
    }

    /// What follows the last generation.
    pub(crate) fn end(self, events: &mut VecDeque<JobEvent<T>>) -> Result<Next<T>, TaskError> {
        self.parts.end(events)
    }

    /// Whether another generation may begin.
    fn has_place(&mut self, assistant: &Assistant) -> bool {
        let Some(first) = self.members.first() else { return true };
        let bytes = match &first.work {
            Work::Prefill(session, _) => session.memory_usage(),
            _ => 0,
        };
        let n_max = *self.n_max.get_or_insert_with(|| {
            let bytes_max = assistant.engine().memory_usage().max(SESSIONS_BYTES);
            let n_by_memory = 1 + bytes_max / bytes.max(1);
            assistant.n_together().min(usize::try_from(n_by_memory).unwrap_or(usize::MAX))
        });
        self.members.len() < n_max && has_room(usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}

impl Member {
    fn start(assistant: &Assistant, number: usize, prompt: Prompt) -> Result<Self, TaskError> {
        let Prompt { messages, task, generate, kept, .. } = prompt;
        let mut session = assistant.session(task, kept.is_some())?;
        append(assistant, &mut session, messages)?;
        session.state_mut().encode()?;
        assistant.restore(&mut session);
        Ok(Self {
            number,
            kept,
            work: Work::Prefill(Box::new(session), Box::new(generate.unwrap_or_default())),
            n_cached: None,
            n_prompt: 0,
            prefill_us: 0.0,
            text: String::new(),
            reasoning: String::new(),
            tokens: Vec::new(),
        })
    }

    /// Reads a chunk of the prompt. Returns what was read of it so far.
    fn read(
        &mut self,
        cancel: &CancelToken,
        priority: Priority,
    ) -> Result<Option<(usize, usize)>, TaskError> {
        let Work::Prefill(session, _) = &mut self.work else { return Ok(None) };
        let n_before = session.state().n_cached_tokens();
        let read = match priority {
            Priority::Background => session.prefill_chunk(cancel),
            Priority::Interactive | Priority::Foreground => session.prefill_pass(cancel, |_, _| {}),
        };
        let (done, total) = read.map_err(failed)?;
        let n_cached = *self.n_cached.get_or_insert(n_before.min(done));
        self.n_prompt = total;
        Ok((done > n_cached).then_some((done, total)))
    }

    /// Begins the output, if the prompt was read.
    fn begin(&mut self, assistant: &Assistant) -> Result<(), TaskError> {
        let Work::Prefill(session, _) = &self.work else { return Ok(()) };
        if session.state().n_cached_tokens() < self.n_prompt {
            return Ok(());
        }
        let Work::Prefill(session, generate) = std::mem::replace(&mut self.work, Work::Moving) else {
            return Ok(());
        };
        assistant.observe_reading(self.prefill_us, self.n_prompt - self.n_cached.unwrap_or(0));
        let generation =
            OwnedGeneration::new(*session, *generate).map_err(|refused| failed(refused.error))?;
        self.work = Work::Decode(Box::new(generation));
        Ok(())
    }

    /// Takes the events of the newest step. Returns the summary at the end of the output.
    fn take(&mut self) -> Result<Option<Summary>, TaskError> {
        let Work::Decode(generation) = &mut self.work else { return Ok(None) };
        while !generation.awaits_pass() {
            match generation.next() {
                Some(Ok(Event::Token(token))) => {
                    self.tokens.push(token.id);
                    for (kind, piece) in token.segments {
                        match kind {
                            TextKind::Answer => self.text.push_str(&piece),
                            _ => self.reasoning.push_str(&piece),
                        }
                    }
                }
                Some(Ok(Event::Done(summary))) if summary.finish == FinishReason::Cancelled => {
                    return Err(TaskError::Cancelled);
                }
                Some(Ok(Event::Done(summary))) => return Ok(Some(summary)),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(failed(error)),
                None => return Err(TaskError::Generate(GenerateProblem::Ended.into())),
            }
        }
        Ok(None)
    }

    /// The output, and its tokens.
    fn end(self, assistant: &Assistant, summary: Summary) -> Result<(Written, Vec<TokenId>), TaskError> {
        let Self { kept, work, n_cached, n_prompt, prefill_us, mut text, mut reasoning, tokens, .. } = self;
        let Work::Decode(generation) = work else {
            return Err(TaskError::Generate(GenerateProblem::Ended.into()));
        };
        let Summary { finish, segments, seed, mut stats, .. } = summary;
        for (kind, piece) in segments {
            match kind {
                TextKind::Answer => text.push_str(&piece),
                _ => reasoning.push_str(&piece),
            }
        }
        let n_cached = n_cached.unwrap_or(0);
        (stats.cached_tokens, stats.prefilled_tokens) = (n_cached, n_prompt - n_cached);
        stats.time_us.prefill += prefill_us;
        let session = generation.into_session();
        let keeping = match &kept {
            Some(kept) => assistant.keep_prompt_of(&session, tokens.len(), kept),
            None => Ok(()),
        };
        let not_kept = keeping.err().map(|error: StoreError| error.to_string());
        Ok((Written { session, text, reasoning, finish, seed, stats, not_kept }, tokens))
    }
}
