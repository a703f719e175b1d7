//! The assistant: tasks over an engine, notes and a store.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use refrain_assistant as assistant;
use refrain_assistant::{
    ConversationId, EditPart, JobEvent, JobOptions, Prefetch, Screen, TaskError, UiActions,
};
use refrain_index::NoteFilter as LibraryFilter;
use refrain_index::notes::ModelEmbedder;

use crate::engine::{Engine, EngineInner};
use crate::error::{ErrorKind, FfiError};
use crate::events::{Event, JobResult, Place, Stage, TextKind, Turn};
use crate::guard::{Guarded, Made};
use crate::job::{Job, Queue};
use crate::options::{GenerateOptions, Priority, Units, key};
use crate::results;
use crate::session::Reserved;
use crate::tasks::{
    AskRequest, AssistantOptions, ChatRequest, EditRequest, Forget, Forgotten, NoteFilter, Passage,
    ReplyRequest, SummarizeRequest, TaskRequest, UiRequest,
};

/// The tasks of a notes or assistant app: answers from notes, summaries, replies, edits, commands for screens, conversations. Shared by
/// threads; its jobs take turns.
#[cfg_attr(feature = "uniffi", derive(uniffi::Object))]
pub struct Assistant(Arc<Guarded<AssistantInner>>);

struct AssistantInner {
    assistant: assistant::Assistant,
    engine: Arc<EngineInner>,
    /// One session of the engine's memory limit.
    _memory: Reserved,
}

impl Made for AssistantInner {
    fn release_memory(&self) {
        self.assistant.release_memory();
    }
}

/// A conversation of an assistant. One job of it runs at a time. Its turns are in memory: an app stores [`id`](Self::id) and
/// [`turns`](Self::turns) to continue it later.
#[cfg_attr(feature = "uniffi", derive(uniffi::Object))]
pub struct Conversation(Arc<Guarded<ConversationInner>>);

struct ConversationInner {
    conversation: assistant::Conversation,
    engine: Arc<EngineInner>,
}

impl Made for ConversationInner {
    fn release_memory(&self) {
        self.conversation.release_memory();
    }
}

impl Assistant {
    /// Closes the assistant; its conversations and jobs go on. Allowed twice.
    ///
    /// # Errors
    /// [`Forked`](ErrorKind::Forked), [`Reentrant`](ErrorKind::Reentrant).
    pub fn close(&self) -> Result<(), FfiError> {
        self.0.close()
    }
}

impl Conversation {
    /// Closes the conversation; its job goes on. Allowed twice.
    ///
    /// # Errors
    /// [`Forked`](ErrorKind::Forked), [`Reentrant`](ErrorKind::Reentrant).
    pub fn close(&self) -> Result<(), FfiError> {
        self.0.close()
    }
}

#[cfg_attr(feature = "uniffi", uniffi::export)]
impl Engine {
    /// Makes an assistant, and opens its index and store. It takes as long as opening the embedding model.
    ///
    /// # Errors
    /// [`InUse`](ErrorKind::InUse): another process or assistant has the store. [`NotFound`](ErrorKind::NotFound): there is no index.
    /// [`Mismatch`](ErrorKind::Mismatch): another key. [`OutOfMemory`](ErrorKind::OutOfMemory): the engine's memory limit has no room for
    /// one session. [`InvalidArgument`](ErrorKind::InvalidArgument): an option is outside its range.
    pub fn assistant(&self, options: AssistantOptions) -> Result<Arc<Assistant>, FfiError> {
        let engine = self.inner()?;
        crate::guard::call(|| {
            let session = options.session.clone().unwrap_or_default();
            let memory = engine.reserve(&session)?;
            let mut of_library = assistant::AssistantOptions::default();
            of_library.session = session.for_library();
            of_library.history = session.history.unwrap_or(true);
            of_library.system = session.system;
            of_library.answer_tokens = options.max_tokens.map(|n| n as usize);
            if let Some(n_passages) = options.n_passages {
                of_library.n_passages = n_passages as usize;
                of_library.n_draft_passages = of_library.n_draft_passages.max(n_passages as usize);
            }
            if let Some(coverage_min) = options.coverage_min {
                of_library.coverage_min = coverage_min;
            }
            let mut builder = assistant::Assistant::builder(engine.engine().clone()).options(of_library);
            if let Some(namespace) = session.namespace {
                builder = builder.namespace(namespace);
            }
            if let Some(key) = key(options.key.as_deref())? {
                builder = builder.key(key);
            }
            if let Some(folder) = options.notes {
                builder = builder.notes(folder);
            }
            if let Some(folder) = options.store {
                builder = builder.store(folder);
            }
            if let Some(path) = options.embedder {
                builder =
                    builder.embedder(Arc::new(ModelEmbedder::open(path, refrain::EngineOptions::default())?));
            }
            let assistant = builder.build()?;
            let inner = AssistantInner { assistant, engine: Arc::clone(&engine), _memory: memory };
            let inner = Arc::new(Guarded::new(inner));
            let child: Weak<Guarded<AssistantInner>> = Arc::downgrade(&inner);
            engine.registry().add(child);
            Ok(Arc::new(Assistant(inner)))
        })
    }
}

#[cfg_attr(feature = "uniffi", uniffi::export)]
impl Assistant {
    /// Starts a task. The search and the layout of the prompt run on this thread: call it on a thread that may wait.
    ///
    /// # Errors
    /// [`NotInNotes`](ErrorKind::NotInNotes): no passage covers enough of the question; the message names the nearest.
    /// [`Nothing`](ErrorKind::Nothing): there is no text. [`ContextFull`](ErrorKind::ContextFull): request or text do not fit the context.
    /// [`WrongState`](ErrorKind::WrongState): there are no notes, or no store for a prefetch.
    /// [`InvalidArgument`](ErrorKind::InvalidArgument): the request, an option, a screen or an action is refused. Those of objects.
    pub fn start(&self, request: TaskRequest, options: GenerateOptions) -> Result<Arc<Job>, FfiError> {
        self.0.call(|inner| {
            let units = inner.engine.units();
            if let (TaskRequest::Ui(_), Some(_)) = (&request, &options.json_schema) {
                return Err(FfiError::argument(
                    "json_schema",
                    "cannot be given for a command, which has a grammar",
                ));
            }
            let job = job_options(&inner.engine, &options)?;
            let of = &inner.assistant;
            let start = Start { engine: &inner.engine, sentences: options.sentences };
            match request {
                TaskRequest::Ask(request) => {
                    start.job(of.ask(ask(request)?, job)?, None, move |done| results::bubble(done, units))
                }
                TaskRequest::Summarize(request) => {
                    let job = of.summarize(summarize(request)?, job)?;
                    start.job(job, None, move |done| results::summary(done, units))
                }
                TaskRequest::Reply(request) => {
                    let job = of.reply(reply(request)?, job)?;
                    start.job(job, None, move |done| results::bubble(done.into(), units))
                }
                TaskRequest::Edit(request) => {
                    let old = request.text.clone();
                    let job = of.edit(edit(request, units)?, job)?;
                    let of_result = old.clone();
                    start.job(job, Some(old), move |done| results::edit(done, &of_result, units))
                }
                TaskRequest::Ui(request) => {
                    let (task, screen) = ui(request)?;
                    start.job(of.ui_command(&task, screen, job)?, None, results::command)
                }
                TaskRequest::PrefetchAsk(request) => start.prefetch(of, Prefetch::Ask(ask(request)?), job),
                TaskRequest::PrefetchSummarize(request) => {
                    start.prefetch(of, Prefetch::Summarize(summarize(request)?), job)
                }
                TaskRequest::PrefetchReply(request) => {
                    start.prefetch(of, Prefetch::Reply(reply(request)?), job)
                }
            }
        })
    }

    /// A conversation, new or continued. Of a new one, `id` is `None` and `turns` is empty.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument): the id is not one that [`Conversation::id`] gave. Those of objects.
    pub fn conversation(&self, id: Option<String>, turns: Vec<Turn>) -> Result<Arc<Conversation>, FfiError> {
        self.0.call(|inner| {
            let id = match id {
                Some(id) => conversation_id(&id)?,
                None => ConversationId(crate::options::random()),
            };
            let conversation = inner.assistant.open_conversation(id, turns.into_iter().map(turn));
            let engine = Arc::clone(&inner.engine);
            let made = Arc::new(Guarded::new(ConversationInner { conversation, engine }));
            let child: Weak<Guarded<ConversationInner>> = Arc::downgrade(&made);
            inner.engine.registry().add(child);
            Ok(Arc::new(Conversation(made)))
        })
    }

    /// Deletes what was kept. When it returns, no file has a byte of it.
    ///
    /// # Errors
    /// Not everything was deleted: the next start of an assistant finishes it. Those of objects.
    pub fn forget(&self, what: Forget) -> Result<Forgotten, FfiError> {
        self.0.call(|inner| {
            let what = match what {
                Forget::Note { path } => assistant::Forget::Note(path.into()),
                Forget::Conversation { id } => assistant::Forget::Conversation(conversation_id(&id)?),
                Forget::Before { time } => assistant::Forget::Before(time_of(time)?),
                Forget::Everything => assistant::Forget::Everything,
            };
            let done = inner.assistant.forget(what)?;
            Ok(Forgotten {
                answers: done.n_answers as u64,
                summaries: done.n_summaries as u64,
                prompt_blocks: done.n_prefix_blocks as u64,
                is_notes_pending: done.is_notes_pending,
            })
        })
    }

    /// Reads the index of notes again, as writers have left it.
    ///
    /// # Errors
    /// The index cannot be read. Those of objects.
    pub fn refresh_notes(&self) -> Result<(), FfiError> {
        self.0.call(|inner| Ok(inner.assistant.notes().map_or(Ok(()), |notes| notes.refresh())?))
    }
}

#[cfg_attr(feature = "uniffi", uniffi::export)]
impl Conversation {
    /// Answers a turn of the user. The conversation has both turns when the job is done. If it no longer fits the context, its oldest
    /// turns are left out (`dropped` of the result).
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy): another job of it runs. [`ContextFull`](ErrorKind::ContextFull): the turn alone does not fit. Those of objects.
    pub fn say(&self, request: ChatRequest, options: GenerateOptions) -> Result<Arc<Job>, FfiError> {
        self.0.call(|inner| {
            let units = inner.engine.units();
            let mut chat = assistant::ChatRequest::new(request.text);
            chat.n_passages = request.n_passages.unwrap_or(0) as usize;
            chat.filter = filter(request.filter)?;
            chat.passages = request.passages.map(passages).transpose()?;
            let job = inner.conversation.say(chat, job_options(&inner.engine, &options)?)?;
            Start { engine: &inner.engine, sentences: options.sentences }.job(job, None, move |done| {
                let dropped = done.dropped.iter().map(results::turn).collect();
                JobResult { dropped, ..results::bubble(done.into(), units) }
            })
        })
    }

    /// The id, under which [`Assistant::forget`] deletes what was kept of it: 16 hexadecimal digits.
    ///
    /// # Errors
    /// Those of objects.
    pub fn id(&self) -> Result<String, FfiError> {
        self.0.call(|inner| Ok(format!("{:016x}", inner.conversation.id().0)))
    }

    /// The turns of finished jobs.
    ///
    /// # Errors
    /// Those of objects.
    pub fn turns(&self) -> Result<Vec<Turn>, FfiError> {
        self.0.call(|inner| Ok(inner.conversation.turns().iter().map(results::turn).collect()))
    }
}

/// How jobs of the assistant start.
struct Start<'a> {
    engine: &'a EngineInner,
    sentences: bool,
}

impl Start<'_> {
    /// Starts a job whose result becomes a record by `finish`. `edited` is the text that an edit changes.
    fn job<T: Send + 'static>(
        &self,
        mut job: assistant::Job<T>,
        edited: Option<String>,
        finish: impl FnOnce(T) -> JobResult + Send + 'static,
    ) -> Result<Arc<Job>, FfiError> {
        if self.sentences {
            job.announce_sentences();
        }
        let (cancel, units) = (job.cancel_token(), self.engine.units());
        let work = move |queue: &Queue| {
            let mut live = Live { old: edited.unwrap_or_default(), new: String::new(), at: 0, units };
            for event in job {
                match event? {
                    JobEvent::Done(done) => return Ok(finish(done)),
                    event => live.push(event, queue),
                }
            }
            Err(FfiError::new(ErrorKind::WrongState, "the job has ended"))
        };
        Job::start(Some(self.engine.registry()), cancel, work)
    }

    fn prefetch(
        &self,
        of: &assistant::Assistant,
        request: Prefetch,
        options: JobOptions,
    ) -> Result<Arc<Job>, FfiError> {
        let finish = |done: assistant::Prefetched| JobResult {
            kept_tokens: Some(done.n_kept as u64),
            ..JobResult::default()
        };
        self.job(of.prefetch(request, options)?, None, finish)
    }
}

/// The events of a job as records.
struct Live {
    /// The text that is edited.
    old: String,
    /// The answer so far.
    new: String,
    /// The end of the newest change in it.
    at: u64,
    units: Units,
}

impl Live {
    fn push<T>(&mut self, event: JobEvent<T>, queue: &Queue) {
        match event {
            JobEvent::Searched(searched) => queue.push(Event::Searched {
                words: searched.words.iter().map(|word| word.text.clone()).collect(),
                coverage: searched.coverage,
                nearest: searched.nearest_titles(),
            }),
            JobEvent::Prefill { done, total } => queue.progress(Stage::Prefill, done as u64, total as u64),
            JobEvent::Text(event) => {
                let kind = TextKind::from(event.kind);
                if kind == TextKind::Answer {
                    self.new.push_str(&event.text);
                }
                let drafted_by = match &event.origin {
                    refrain::Origin::Draft(name) => Some(name.to_string()),
                    _ => None,
                };
                queue.push(Event::Text { text: event.text, kind, drafted_by });
            }
            JobEvent::Sentence(ready) => queue.push(results::sentence_ready(ready, &self.new, self.units)),
            JobEvent::Estimate(estimate) => queue.push(Event::Estimate {
                ms: u64::try_from(estimate.time.as_millis()).unwrap_or(u64::MAX),
                prompts: estimate.n_prompts as u64,
            }),
            JobEvent::Window { index, n_windows, old, new, .. } => queue.push(Event::Window {
                index: index as u64,
                count: n_windows as u64,
                old: self.units.place(&self.old, &old),
                new: self.units.place(&self.new, &new),
            }),
            JobEvent::Part { index, n_parts, text } => {
                queue.push(Event::Part { index: index as u64, count: n_parts as u64, text });
            }
            // (The older text of a summary is known at its end.)
            JobEvent::Edit(change) if !self.old.is_empty() => {
                let mut change = results::change(&change, &self.old, &self.new, self.units);
                match change.kind {
                    crate::ChangeKind::Delete => change.new = Place { start: self.at, end: self.at },
                    _ => self.at = change.new.end,
                }
                queue.push(Event::Edit { change });
            }
            _ => {}
        }
    }
}

fn job_options(engine: &EngineInner, options: &GenerateOptions) -> Result<JobOptions, FfiError> {
    let mut job = JobOptions::default();
    job.priority = match options.priority {
        Some(Priority::Foreground) => assistant::Priority::Foreground,
        Some(Priority::Background) => assistant::Priority::Background,
        _ => assistant::Priority::Interactive,
    };
    job.sampling = options.sampling(&refrain::Sampling::default())?;
    job.answer_tokens = options.max_tokens.map(|n| n as usize);
    job.stop.clone_from(&options.stop);
    job.keep = options.keep.unwrap_or(true);
    if let Some(schema) = &options.json_schema {
        let constrained = engine.grammar(schema)?.constrain(refrain::GenerateOptions::default());
        (job.processors, job.sources) = (constrained.processors, constrained.sources);
    }
    Ok(job)
}

/// The conditions of a search.
pub(crate) fn filter(given: Option<NoteFilter>) -> Result<LibraryFilter, FfiError> {
    let NoteFilter { kinds, folders, since, until, tags } = given.unwrap_or_default();
    let kinds = kinds.iter().map(|name| kind(name)).collect::<Result<_, _>>()?;
    let folders = folders.into_iter().map(PathBuf::from).collect();
    Ok(LibraryFilter { kinds, folders, from: since, until, tags })
}

/// A kind of source by its name.
pub(crate) fn kind(name: &str) -> Result<refrain_index::SourceKind, FfiError> {
    name.parse().map_err(|_| FfiError::argument("kinds", format!("has the unknown name {name:?}")))
}

fn passages(given: Vec<Passage>) -> Result<Vec<assistant::Passage>, FfiError> {
    given.into_iter().map(passage).collect()
}

fn passage(given: Passage) -> Result<assistant::Passage, FfiError> {
    let passage = assistant::Passage::new(given.title, given.text);
    Ok(match given.note {
        Some(path) => passage.of_note(path)?,
        None => passage,
    })
}

fn ask(given: AskRequest) -> Result<assistant::AnswerRequest, FfiError> {
    let mut request = assistant::AnswerRequest::new(given.question);
    request.filter = filter(given.filter)?;
    request.n_passages = given.n_passages.map(|n| n as usize);
    request.passages = given.passages.map(passages).transpose()?;
    request.earlier = given.earlier;
    request.coverage_min = given.coverage_min;
    Ok(request)
}

fn summarize(given: SummarizeRequest) -> Result<assistant::SummarizeRequest, FfiError> {
    let mut request = match (given.texts.is_empty(), given.notes.is_empty(), given.query) {
        (false, true, None) => assistant::SummarizeRequest::texts(passages(given.texts)?),
        (true, false, None) => assistant::SummarizeRequest::notes(given.notes),
        (true, true, Some(query)) => assistant::SummarizeRequest::query(query),
        _ => {
            return Err(FfiError::argument(
                "texts",
                "is not given alone: give one of texts, notes and query",
            ));
        }
    };
    if let Some(id) = given.id {
        request = request.with_id(id);
    }
    request.request = given.request;
    request.filter = filter(given.filter)?;
    Ok(request)
}

fn reply(given: ReplyRequest) -> Result<assistant::ReplyRequest, FfiError> {
    let mut request = assistant::ReplyRequest::of(passage(given.message)?);
    request.earlier = passages(given.earlier)?;
    request.request = given.request;
    request.tone = given.tone;
    request.length = given.length.map(Into::into);
    request.passages = passages(given.passages)?;
    request.n_passages = given.n_passages.unwrap_or(0) as usize;
    request.filter = filter(given.filter)?;
    Ok(request)
}

fn edit(given: EditRequest, units: Units) -> Result<assistant::EditRequest, FfiError> {
    let part = match (given.selection, given.lines.as_deref(), given.section) {
        (None, None, None) => EditPart::Whole,
        (Some(Place { start, end }), None, None) => {
            EditPart::Bytes(units.byte(&given.text, start)..units.byte(&given.text, end))
        }
        (None, Some(&[first, last]), None) => EditPart::Lines { first: first as usize, last: last as usize },
        (None, Some(lines), None) => {
            return Err(FfiError::argument("lines", format!("has {} numbers, not 2", lines.len())));
        }
        (None, None, Some(section)) => EditPart::Section(section),
        _ => {
            let problem = "is not given alone: give one of selection, lines and section";
            return Err(FfiError::argument("selection", problem));
        }
    };
    let mut request = assistant::EditRequest::new(given.text, given.instruction);
    request.part = part;
    Ok(match given.note {
        Some(path) => request.of_note(path)?,
        None => request,
    })
}

fn ui(given: UiRequest) -> Result<(assistant::UiTask, Screen), FfiError> {
    let read = |source: &str| Screen::read(source).map_err(TaskError::from);
    let mut task = assistant::UiTask::new(given.goal);
    if let Some(n_screens) = given.n_screens {
        task.n_screens = n_screens as usize;
    }
    if let Some(actions) = given.actions {
        task.actions = UiActions::from_json(&actions).map_err(TaskError::from)?;
    }
    for step in given.steps {
        task.push(step.screen.as_deref().map(read).transpose()?, step.command);
    }
    Ok((task, read(&given.screen)?))
}

fn turn(given: Turn) -> assistant::Turn {
    let mut turn = assistant::Turn::new(refrain::Message::new(given.role.into(), given.content));
    turn.notes = given.notes.into_iter().map(PathBuf::from).collect();
    (turn.asked, turn.keep) = (given.asked, given.keep);
    turn
}

fn conversation_id(id: &str) -> Result<ConversationId, FfiError> {
    let refused = || FfiError::argument("id", format!("is {id:?}, not 16 hexadecimal digits"));
    match id.len() {
        16 if id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(id, 16).map(ConversationId).map_err(|_| refused())
        }
        _ => Err(refused()),
    }
}

/// A time in seconds since 1970.
fn time_of(seconds: i64) -> Result<SystemTime, FfiError> {
    let since = u64::try_from(seconds).ok().map(Duration::from_secs);
    let time = since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
    time.ok_or_else(|| FfiError::argument("time", format!("is {seconds}, not seconds since 1970")))
}
