//! A session: one conversation, or one plain text, with its KV cache.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use refrain::{CancelToken, Event as Decoded, Origin, OwnedGeneration, SpecialTokens, TokenId};
use serde::{Deserialize, Serialize};

use crate::engine::EngineInner;
use crate::error::{ErrorKind, FfiError};
use crate::events::{Event, JobResult, Stage, TextKind};
use crate::guard::{Guarded, Made, lock};
use crate::history::HistoryInner;
use crate::job::{Job, Queue};
use crate::options::{GenerateOptions, Message, Role};

/// One conversation, or one plain text, made by [`Engine::session`](crate::Engine::session).
///
/// It serves one call or job at a time. While a job runs, the other methods are the error [`Busy`](ErrorKind::Busy); after a job was
/// cancelled or closed, they wait until it has ended, which takes at most a layer of the model.
#[cfg_attr(feature = "uniffi", derive(uniffi::Object))]
pub struct Session(Arc<Guarded<Home>>);

/// Counts and sizes of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "uniffi", derive(uniffi::Record))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionInfo {
    /// Tokens of prompt and output.
    pub tokens: u64,
    /// Those whose keys and values are computed.
    pub cached_tokens: u64,
    /// Maximum tokens.
    pub context_len: u64,
    /// Bytes of the KV cache and the draft sources.
    pub memory_bytes: u64,
}

/// Where a session lives between jobs.
pub(crate) struct Home {
    engine: Arc<EngineInner>,
    place: Mutex<Place>,
    returned: Condvar,
    history: Option<Arc<HistoryInner>>,
    /// Given back to the engine's memory limit when the session is gone.
    _memory: Reserved,
}

enum Place {
    Here(Box<refrain::Session>),
    /// A job has it.
    Away(CancelToken),
    Gone {
        is_poisoned: bool,
    },
}

/// Bytes of an engine's memory limit.
pub(crate) struct Reserved {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Reserved {
    /// Takes bytes of a limit.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`], with all bytes as the value.
    pub(crate) fn take(used: &Arc<AtomicU64>, limit: Option<u64>, bytes: u64) -> Result<Self, FfiError> {
        let limit = limit.unwrap_or(u64::MAX);
        let take = |used: u64| used.checked_add(bytes).filter(|&all| all <= limit);
        match used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(Self { used: Arc::clone(used), bytes }),
            Err(used) => {
                let all = used.saturating_add(bytes);
                Err(FfiError::over(ErrorKind::OutOfMemory, "memory_limit_bytes", all, limit))
            }
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Home {
    /// The session, locked. Waits for a job that was cancelled.
    fn session(&self) -> Result<MutexGuard<'_, Place>, FfiError> {
        let mut place = lock(&self.place);
        loop {
            match &*place {
                Place::Here(_) => return Ok(place),
                Place::Away(cancel) if cancel.is_cancelled() => {
                    place = self.returned.wait(place).unwrap_or_else(PoisonError::into_inner);
                }
                Place::Away(_) => {
                    return Err(FfiError::new(ErrorKind::Busy, "a job of this session is running"));
                }
                Place::Gone { is_poisoned: true } => {
                    let message = "a job of this session has panicked, and has closed it";
                    return Err(FfiError::new(ErrorKind::Poisoned, message));
                }
                Place::Gone { is_poisoned: false } => {
                    return Err(FfiError::new(ErrorKind::Closed, "this session is closed"));
                }
            }
        }
    }

    /// Calls `work` with the session.
    fn with<T>(
        &self,
        work: impl FnOnce(&mut refrain::Session) -> Result<T, FfiError>,
    ) -> Result<T, FfiError> {
        let mut place = self.session()?;
        match &mut *place {
            Place::Here(session) => work(session),
            _ => unreachable!("the session is here"),
        }
    }

    /// Takes the session for a job with this token.
    fn leave(self: &Arc<Self>, cancel: &CancelToken) -> Result<Visit, FfiError> {
        let mut place = self.session()?;
        match std::mem::replace(&mut *place, Place::Away(cancel.clone())) {
            Place::Here(session) => {
                Ok(Visit { home: Arc::clone(self), guest: Some(Guest::Session(session)) })
            }
            _ => unreachable!("the session is here"),
        }
    }

    fn put(&self, new: Place) {
        let mut place = lock(&self.place);
        // (One that was closed meanwhile stays so.)
        let old = if matches!(&*place, Place::Away(_)) { std::mem::replace(&mut *place, new) } else { new };
        drop(place);
        self.returned.notify_all();
        drop(old);
    }
}

/// A session that a job has. It goes home when this is dropped, except while a panic unwinds.
struct Visit {
    home: Arc<Home>,
    guest: Option<Guest>,
}

enum Guest {
    Session(Box<refrain::Session>),
    Generation(Box<OwnedGeneration>),
}

impl Visit {
    fn session(&mut self) -> &mut refrain::Session {
        match &mut self.guest {
            Some(Guest::Session(session)) => session,
            _ => unreachable!("the session has no generation"),
        }
    }

    fn generation(&mut self) -> &mut OwnedGeneration {
        match &mut self.guest {
            Some(Guest::Generation(generation)) => generation,
            _ => unreachable!("the generation is running"),
        }
    }

    /// Starts a generation.
    ///
    /// # Errors
    /// As [`OwnedGeneration::new`].
    fn generate(&mut self, options: refrain::GenerateOptions) -> Result<(), FfiError> {
        let Some(Guest::Session(session)) = self.guest.take() else {
            unreachable!("the session has no generation")
        };
        match OwnedGeneration::new(*session, options) {
            Ok(generation) => {
                self.guest = Some(Guest::Generation(Box::new(generation)));
                Ok(())
            }
            Err(refused) => {
                self.guest = Some(Guest::Session(refused.session));
                Err(refused.error.into())
            }
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let is_poisoned = std::thread::panicking();
        self.home.put(match self.guest.take() {
            Some(Guest::Session(session)) if !is_poisoned => Place::Here(session),
            Some(Guest::Generation(generation)) if !is_poisoned => {
                Place::Here(Box::new(generation.into_session()))
            }
            // (Without a guest, `OwnedGeneration::new` has panicked.)
            _ => Place::Gone { is_poisoned: true },
        });
    }
}

impl Made for Home {
    fn closing(&self) {
        let mut place = lock(&self.place);
        if let Place::Away(cancel) = &*place {
            cancel.cancel();
        }
        let old = match &*place {
            Place::Gone { .. } => return,
            _ => std::mem::replace(&mut *place, Place::Gone { is_poisoned: false }),
        };
        drop(place);
        self.returned.notify_all();
        drop(old);
    }

    fn release_memory(&self) {
        if let Place::Here(session) = &mut *lock(&self.place) {
            session.release_memory();
        }
    }
}

impl Session {
    /// A session of an engine.
    pub(crate) fn new(
        engine: &Arc<EngineInner>,
        session: refrain::Session,
        history: Option<Arc<HistoryInner>>,
        memory: Reserved,
    ) -> Arc<Self> {
        let home = Arc::new(Guarded::new(Home {
            engine: Arc::clone(engine),
            place: Mutex::new(Place::Here(Box::new(session))),
            returned: Condvar::new(),
            history,
            _memory: memory,
        }));
        let child: Weak<Guarded<Home>> = Arc::downgrade(&home);
        engine.registry().add(child);
        Arc::new(Self(home))
    }

    /// Closes the session and frees its memory; cancels its job. Allowed twice.
    ///
    /// # Errors
    /// [`Forked`](ErrorKind::Forked), [`Reentrant`](ErrorKind::Reentrant).
    pub fn close(&self) -> Result<(), FfiError> {
        self.0.close()
    }
}

#[cfg_attr(feature = "uniffi", uniffi::export)]
impl Session {
    /// Adds a turn. The model's chat template makes tokens of it when the next answer is generated.
    ///
    /// # Errors
    /// [`WrongState`](ErrorKind::WrongState): the session holds plain text. [`Busy`](ErrorKind::Busy) and others of objects.
    pub fn append(&self, role: Role, content: String) -> Result<(), FfiError> {
        self.0.call(|home| home.with(|session| Ok(session.append_turn(role.into(), content)?)))
    }

    /// Adds plain text, without a chat template. It cannot forge control tokens.
    ///
    /// # Errors
    /// [`ContextFull`](ErrorKind::ContextFull): it does not fit, and the session is unchanged. [`WrongState`](ErrorKind::WrongState): the
    /// session holds turns.
    pub fn append_text(&self, text: String) -> Result<(), FfiError> {
        self.0.call(|home| home.with(|session| Ok(session.append_text(&text, SpecialTokens::AsText)?)))
    }

    /// Takes back the newest turn; `None` if there is none.
    ///
    /// # Errors
    /// Those of objects.
    pub fn pop(&self) -> Result<Option<Message>, FfiError> {
        self.0.call(|home| home.with(|session| Ok(session.pop_turn().map(message))))
    }

    /// The turns.
    ///
    /// # Errors
    /// Those of objects.
    pub fn messages(&self) -> Result<Vec<Message>, FfiError> {
        self.0.call(|home| home.with(|session| Ok(session.turns().iter().cloned().map(message).collect())))
    }

    /// Counts and sizes.
    ///
    /// # Errors
    /// Those of objects.
    pub fn info(&self) -> Result<SessionInfo, FfiError> {
        self.0.call(|home| {
            home.with(|session| {
                Ok(SessionInfo {
                    tokens: session.tokens().len() as u64,
                    cached_tokens: session.state().n_cached_tokens() as u64,
                    context_len: session.context_len() as u64,
                    memory_bytes: session.memory_usage(),
                })
            })
        })
    }

    /// Starts an answer to the turns, or the continuation of the text. When the job has ended, the session has the output; of a job
    /// that was cancelled, the part that was computed.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument): an option is outside its range, the schema is refused, or there is no prompt.
    /// [`ContextFull`](ErrorKind::ContextFull), or an error of the chat template: the newest turn is removed, so that a shorter one can
    /// take its place. [`Busy`](ErrorKind::Busy) and others of objects.
    pub fn generate(&self, options: GenerateOptions) -> Result<Arc<Job>, FfiError> {
        self.0.call(|home| generate(home, options))
    }

    /// Computes the prompt now, while the user types. Its job has progress and an empty result.
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy) and others of objects. What [`generate`](Self::generate) refuses is the job's error.
    pub fn prefill(&self) -> Result<Arc<Job>, FfiError> {
        self.0.call(|home| {
            let cancel = CancelToken::new();
            let mut visit = home.leave(&cancel)?;
            let work = move |queue: &Queue| {
                let progress = |done, total| queue.progress(Stage::Prefill, done, total);
                visit.session().prefill(queue.cancel_token(), progress)?;
                Ok(JobResult::default())
            };
            Job::start(Some(home.engine.registry()), cancel, work)
        })
    }
}

fn message(message: refrain::Message) -> Message {
    Message { role: message.role.into(), content: message.content }
}

fn generate(home: &Arc<Home>, options: GenerateOptions) -> Result<Arc<Job>, FfiError> {
    let mut generate = refrain::GenerateOptions::default();
    generate.cancel = CancelToken::new();
    if let Some(max_tokens) = options.max_tokens {
        generate.max_tokens = max_tokens as usize;
    }
    if let Some(sampling) = options.sampling(&refrain::Sampling::default())? {
        generate.sampling = sampling;
    }
    generate.stop = options.stop;
    if let Some(schema) = &options.json_schema {
        generate = home.engine.grammar(schema)?.constrain(generate);
    }
    let mut sentences = Sentences::new(options.sentences, home.engine.units())?;
    let cancel = generate.cancel.clone();
    let mut visit = home.leave(&cancel)?;
    visit.generate(generate)?;
    let work = move |queue: &Queue| {
        let mut output = Vec::new();
        let mut result = decode(visit.generation(), queue, &mut sentences, &mut output)?;
        if let Some(history) = &visit.home.history {
            result.not_kept = history.append(&output).err().map(|error| error.to_string());
        }
        Ok(result)
    };
    Job::start(Some(home.engine.registry()), cancel, work)
}

/// Runs a generation to its end.
fn decode(
    generation: &mut OwnedGeneration,
    queue: &Queue,
    sentences: &mut Sentences,
    output: &mut Vec<TokenId>,
) -> Result<JobResult, FfiError> {
    generation.prefill(|done, total| queue.progress(Stage::Prefill, done, total))?;
    let mut result = JobResult::default();
    let mut push =
        |result: &mut JobResult, kind: refrain::TextKind, text: String, drafted_by: Option<&str>| {
            if text.is_empty() {
                return Vec::new();
            }
            let kind = TextKind::from(kind);
            let mut ready = Vec::new();
            match kind {
                TextKind::Answer => {
                    result.text.push_str(&text);
                    ready = sentences.push(&text, &result.text);
                }
                TextKind::Reasoning => result.reasoning.push_str(&text),
            }
            queue.push(Event::Text { text, kind, drafted_by: drafted_by.map(str::to_owned) });
            ready
        };
    loop {
        match generation.next() {
            Some(Ok(Decoded::Token(token))) => {
                output.push(token.id);
                let drafted_by = match &token.origin {
                    Origin::Draft(name) => Some(name.as_str()),
                    Origin::Target => None,
                };
                for (kind, text) in token.segments {
                    push(&mut result, kind, text, drafted_by).into_iter().for_each(|ready| queue.push(ready));
                }
            }
            Some(Ok(Decoded::Done(summary))) => {
                if summary.finish == refrain::FinishReason::Cancelled {
                    return Err(FfiError::cancelled());
                }
                for (kind, text) in summary.segments {
                    push(&mut result, kind, text, None).into_iter().for_each(|ready| queue.push(ready));
                }
                sentences.finish(&result.text).into_iter().for_each(|ready| queue.push(ready));
                result.is_cut = matches!(
                    summary.finish,
                    refrain::FinishReason::MaxTokens | refrain::FinishReason::ContextFull
                );
                result.finish = Some(summary.finish.into());
                result.seed = summary.seed;
                result.stats.add(&summary.stats);
                return Ok(result);
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
            None => return Err(FfiError::new(ErrorKind::WrongState, "the generation has ended")),
        }
    }
}

/// The sentences of an answer, if they are wanted.
#[cfg(feature = "notes")]
struct Sentences {
    live: Option<refrain_assistant::provenance::LiveSentences>,
    units: crate::Units,
}

#[cfg(feature = "notes")]
impl Sentences {
    fn new(wanted: bool, units: crate::Units) -> Result<Self, FfiError> {
        Ok(Self { live: wanted.then(Default::default), units })
    }

    /// The events behind a piece of the answer, which is its end.
    fn push(&mut self, piece: &str, answer: &str) -> Vec<Event> {
        let ready = self.live.as_mut().map(|live| live.push(piece)).unwrap_or_default();
        ready.into_iter().map(|ready| crate::results::sentence_ready(ready, answer, self.units)).collect()
    }

    fn finish(&mut self, answer: &str) -> Vec<Event> {
        let ready = self.live.take().map(|live| live.finish()).unwrap_or_default();
        ready.into_iter().map(|ready| crate::results::sentence_ready(ready, answer, self.units)).collect()
    }
}

#[cfg(not(feature = "notes"))]
struct Sentences;

#[cfg(not(feature = "notes"))]
impl Sentences {
    fn new(wanted: bool, _units: crate::Units) -> Result<Self, FfiError> {
        match wanted {
            false => Ok(Self),
            true => {
                let message = "sentences need a library with notes";
                Err(FfiError::new(ErrorKind::Unsupported, message).with_field("sentences"))
            }
        }
    }

    fn push(&mut self, _piece: &str, _answer: &str) -> Vec<Event> {
        Vec::new()
    }

    fn finish(&mut self, _answer: &str) -> Vec<Event> {
        Vec::new()
    }
}
