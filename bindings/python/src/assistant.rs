//! The assistant: tasks over an engine, notes and a store.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use refrain::{Message, Sampling, SessionOptions, TokenId};
use refrain_assistant::{
    AnswerRequest, AssistantOptions, ChatRequest, ConversationId, EditPart, EditRequest, Forget, JobOptions,
    KeptPrompts, Prefetch, Prompts, ReplyRequest, Screen, SummarizeRequest, Template, Turn, UiActions,
    UiTask,
};
use refrain_index::NoteFilter;

use crate::border::compute;
use crate::cancel::CancelToken;
use crate::embedder::EmbedderModel;
use crate::engine::Engine;
use crate::errors::Failure;
use crate::job::Job;
use crate::notes;
use crate::options;
use crate::python_source;
use crate::resident::Resident;
use crate::results;

/// A `refrain.assistant.Passage`.
#[derive(FromPyObject)]
struct Passage {
    title: String,
    text: String,
    source: Option<Source>,
}

/// A `refrain.assistant.Source`, of which a request needs the path.
#[derive(FromPyObject)]
struct Source {
    path: PathBuf,
}

/// A `refrain.assistant.Turn`.
#[derive(FromPyObject)]
struct GivenTurn {
    role: String,
    content: String,
    notes: Vec<PathBuf>,
    asked: Option<String>,
    keep: bool,
}

fn passage(given: Passage) -> Result<refrain_assistant::Passage, Failure> {
    let passage = refrain_assistant::Passage::new(given.title, given.text);
    match given.source {
        Some(source) => passage.of_note(source.path).map_err(Failure::Notes),
        None => Ok(passage),
    }
}

fn passages(given: Vec<Passage>) -> Result<Vec<refrain_assistant::Passage>, Failure> {
    given.into_iter().map(passage).collect()
}

/// The options of a job from its keywords.
///
/// # Errors
/// A keyword is unknown, or its value is of another type or outside its range.
fn job_options(given: Option<&Bound<'_, PyDict>>, vocab_size: usize) -> PyResult<JobOptions> {
    let mut job = JobOptions::default();
    let mut sampling: Option<Sampling> = None;
    for (name, value) in given.into_iter().flat_map(|given| given.iter()) {
        let name: String = name.extract()?;
        match name.as_str() {
            "priority" => job.priority = options::priority(value.extract()?)?,
            "max_tokens" => job.answer_tokens = value.extract()?,
            "keep" => job.keep = value.extract()?,
            "cancel" => {
                job.cancel = value
                    .extract::<Option<CancelToken>>()?
                    .map_or_else(refrain::CancelToken::new, |token| token.0);
            }
            "sources" => {
                let sources = python_source::sources(value.extract()?, vocab_size)?;
                job.sources = sources.into_iter().map(|source| Box::new(source) as Box<_>).collect();
            }
            _ => sample(sampling.get_or_insert_default(), &name, &value)?,
        }
    }
    job.sampling = sampling;
    Ok(job)
}

/// Sets one option of sampling.
fn sample(sampling: &mut Sampling, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match name {
        "temperature" => sampling.temperature = value.extract()?,
        "top_k" => sampling.top_k = value.extract()?,
        "top_p" => sampling.top_p = value.extract()?,
        "min_p" => sampling.min_p = value.extract()?,
        "repetition_penalty" => sampling.repetition_penalty = value.extract()?,
        "frequency_penalty" => sampling.frequency_penalty = value.extract()?,
        "presence_penalty" => sampling.presence_penalty = value.extract()?,
        "logit_bias" => {
            let biases: Option<BTreeMap<u32, f32>> = value.extract()?;
            let biases = biases.into_iter().flatten();
            sampling.logit_bias = biases.map(|(token, bias)| (TokenId(token), bias)).collect();
        }
        "seed" => sampling.seed = value.extract()?,
        _ => return Err(PyTypeError::new_err(format!("unexpected keyword argument {name:?}"))),
    }
    Ok(())
}

/// The tasks of a notes or assistant app on an engine: answers from notes, summaries, replies, edits, commands for screens, conversations.
///
/// It searches, fits prompts to the context, drafts from what it works on and from earlier answers, and says where its text comes from.
/// Each task returns a :class:`Job`. An assistant is shared by threads; its jobs take turns.
///
/// The tasks take these keywords besides their own: ``priority`` (``"foreground"``, ``"interactive"`` or ``"background"``), ``max_tokens``,
/// ``keep`` (whether the answer is kept), ``cancel`` (a :class:`~refrain.CancelToken`), ``sources`` (draft sources written in Python), and the
/// options of sampling of :meth:`Session.generate`. Without any of the latter, those of the assistant hold.
///
/// Args:
///     engine: the engine.
///     notes: the folder of an index of notes, made by :class:`Notes`.
///     embedder: the engine or the path of the embedding model whose vectors the index has: notes are then searched by meaning too.
///     store: a folder that keeps answers and computed prompts, used by one process at a time. ``None`` keeps answers in memory.
///     namespace: an account of the app. Drafts, kept answers and prompts of one namespace never reach another.
///     prompts: templates by task: ``"answer"``, ``"cited_answer"`` (for :meth:`ask`), ``"summarize"``, ``"ui"``, ``"reply"``, ``"edit"``. Text with the places ``{passages}`` or
///         ``{cited_passages}``, and ``{request}``.
///     system: a system turn before every prompt.
///     max_tokens: room for the output. ``None``: 512, at most a quarter of the context.
///     n_passages: passages that a search shows to the model.
///     n_draft_passages: passages that a search finds for drafts, the shown ones included.
///     n_parts_max: the most parts of a text that is summarised in parts.
///     history: whether answers are kept, and draft later ones.
///     key: 32 bytes that encrypt the store, and with which ``notes`` was encrypted. The app keeps them.
///     keeps_prompts: with a store, the prompts whose keys and values it keeps: ``"repeated"`` (what a second prompt begins with too, and every
///         turn of a conversation), ``"all"`` or ``"none"``.
///     prefix_bytes_max: the most bytes of these.
///     context_len, kv_type, drafting: as in :meth:`Engine.session`.
///     options: how tokens are chosen, as in :meth:`Session.generate`.
///
/// Raises:
///     NotesError: the index cannot be opened.
///     StoreError: the store cannot be opened, for example because another process uses it, or because the key is another one.
///     OptionError: an argument is outside its range, or a template has an unknown, missing or doubled place.
#[pyclass(frozen, module = "refrain.assistant")]
pub(crate) struct Assistant(Resident<refrain_assistant::Assistant>);

impl Assistant {
    /// Starts a job, which searches and lays out its prompt on this thread, without the interpreter's lock.
    fn start<T: Send + 'static>(
        &self,
        py: Python<'_>,
        options: Option<&Bound<'_, PyDict>>,
        task: impl FnOnce(&refrain_assistant::Assistant, JobOptions) -> Result<refrain_assistant::Job<T>, Failure>
        + Send,
    ) -> PyResult<refrain_assistant::Job<T>> {
        let assistant = self.0.get()?;
        let options = job_options(options, assistant.engine().tokenizer().vocab_size())?;
        compute(py, || task(assistant, options))
    }
}

fn failed(error: refrain_assistant::TaskError) -> Failure {
    Failure::Task(Box::new(error))
}

#[pymethods]
impl Assistant {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
    #[pyo3(signature = (engine, *, notes = None, embedder = None, store = None, namespace = "default", prompts = None, system = None,
        max_tokens = None, n_passages = 4, n_draft_passages = 8, n_parts_max = 32, history = true, key = None, keeps_prompts = "repeated",
        prefix_bytes_max = 1 << 30, context_len = None, kv_type = "f16", drafting = "auto", **options))]
    fn new(
        py: Python<'_>,
        engine: &Engine,
        notes: Option<PathBuf>,
        embedder: Option<EmbedderModel>,
        store: Option<PathBuf>,
        namespace: &str,
        prompts: Option<BTreeMap<String, String>>,
        system: Option<String>,
        max_tokens: Option<usize>,
        n_passages: usize,
        n_draft_passages: usize,
        n_parts_max: usize,
        history: bool,
        key: Option<&[u8]>,
        keeps_prompts: &str,
        prefix_bytes_max: u64,
        context_len: Option<usize>,
        kv_type: &str,
        drafting: &str,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut sampling = AssistantOptions::default().sampling;
        for (name, value) in options.iter().flat_map(|options| options.iter()) {
            sample(&mut sampling, name.extract()?, &value)?;
        }
        let session = SessionOptions {
            context_len,
            kv_type: options::kv_type(kv_type)?,
            drafting: options::drafting(drafting)?,
            ..SessionOptions::default()
        };
        let mut options = AssistantOptions::default();
        options.session = session;
        options.sampling = sampling;
        options.answer_tokens = max_tokens;
        options.n_passages = n_passages;
        options.n_draft_passages = n_draft_passages;
        options.n_parts_max = n_parts_max;
        options.system = system;
        options.history = history;
        options.keeps_prompts = match keeps_prompts {
            "repeated" => KeptPrompts::Repeated,
            "all" => KeptPrompts::All,
            "none" => KeptPrompts::None,
            given => {
                let (given, choices) = (given.to_owned(), vec!["repeated", "all", "none"]);
                return Err(Failure::Choice { option: "keeps_prompts", given, choices }.into());
            }
        };
        options.prefix_bytes_max = prefix_bytes_max;
        let mut builder = refrain_assistant::Assistant::builder(engine.engine()?.clone())
            .namespace(namespace)
            .options(options)
            .prompts(templates(prompts.unwrap_or_default())?);
        if let Some(key) = options::key(key)? {
            builder = builder.key(key);
        }
        if let Some(folder) = notes {
            builder = builder.notes(folder);
        }
        if let Some(folder) = store {
            builder = builder.store(folder);
        }
        let embedder = embedder.map(EmbedderModel::source).transpose()?;
        let assistant = compute(py, || {
            if let Some(model) = embedder {
                builder = builder.embedder(Arc::new(model.open()?));
            }
            builder.build().map_err(|error| Failure::Build(Box::new(error)))
        })?;
        Ok(Self(Resident::new(assistant)))
    }

    /// Answers a question from the passages that match it best.
    ///
    /// Args:
    ///     question: the question.
    ///     folders, kinds, since, until, tags: the notes to search, as :meth:`Notes.search`.
    ///     n_passages: the most passages to show.
    ///     passages: passages to show in place of a search, best first.
    ///     earlier: earlier questions of the conversation, newest first: the search looks for their words too, with less weight.
    ///     coverage_min: the least share of the question that a passage must cover, 0 to 1; ``None``: 0.3.
    ///     options: see the class.
    ///
    /// Raises:
    ///     NothingError: no passage of the notes covers enough of the question.
    ///     NoRoomError: question or passages do not fit the context.
    ///     AssistantError: there are no notes.
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
    #[pyo3(signature = (question, *, folders = Vec::new(), kinds = Vec::new(), since = None, until = None, tags = Vec::new(), n_passages = None, passages = None, earlier = Vec::new(), coverage_min = None, **options))]
    fn answer(
        &self,
        py: Python<'_>,
        question: String,
        folders: Vec<PathBuf>,
        kinds: Vec<String>,
        since: Option<i64>,
        until: Option<i64>,
        tags: Vec<String>,
        n_passages: Option<usize>,
        passages: Option<Vec<Passage>>,
        earlier: Vec<String>,
        coverage_min: Option<f32>,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Job> {
        let filter = notes::filter(folders, kinds, since, until, tags)?;
        let request = answer_request(question, filter, n_passages, passages, earlier, coverage_min)?;
        let job = self.start(py, options.as_ref(), |assistant, options| {
            assistant.answer(request, options).map_err(failed)
        })?;
        Ok(Job::new(job, "Answer", results::answer, None))
    }

    /// Answers a question from notes with citations, and gives what a chat bubble shows: text, sources, copied parts, the support of each
    /// sentence, and what was left out. The prompt is the template ``"cited_answer"``.
    ///
    /// Args: as :meth:`answer`.
    ///
    /// Raises: as :meth:`answer`.
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
    #[pyo3(signature = (question, *, folders = Vec::new(), kinds = Vec::new(), since = None, until = None, tags = Vec::new(), n_passages = None, passages = None, earlier = Vec::new(), coverage_min = None, **options))]
    fn ask(
        &self,
        py: Python<'_>,
        question: String,
        folders: Vec<PathBuf>,
        kinds: Vec<String>,
        since: Option<i64>,
        until: Option<i64>,
        tags: Vec<String>,
        n_passages: Option<usize>,
        passages: Option<Vec<Passage>>,
        earlier: Vec<String>,
        coverage_min: Option<f32>,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Job> {
        let filter = notes::filter(folders, kinds, since, until, tags)?;
        let request = answer_request(question, filter, n_passages, passages, earlier, coverage_min)?;
        let job = self.start(py, options.as_ref(), |assistant, options| {
            assistant.ask(request, options).map_err(failed)
        })?;
        Ok(Job::new(job, "Bubble", results::bubble, None))
    }

    /// Summarises texts, notes, or the passages that match a query: one of the three. Texts that do not fit one prompt are summarised in
    /// parts.
    ///
    /// Args:
    ///     texts: texts of any length.
    ///     notes: files and folders of the index.
    ///     query: the passages that match it best.
    ///     request: how to summarise, such as ``"In two sentences."``.
    ///     id: names texts that are of no note, so that the summary is compared with the last one of the same id.
    ///     options: see the class.
    ///
    /// Raises:
    ///     NothingError: there is no text.
    ///     AssistantError: there are no notes, or none of the given ones.
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
    #[pyo3(signature = (texts = None, *, notes = None, query = None, request = "", id = None, **options))]
    fn summarize(
        &self,
        py: Python<'_>,
        texts: Option<Vec<Passage>>,
        notes: Option<Vec<PathBuf>>,
        query: Option<String>,
        request: &str,
        id: Option<String>,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Job> {
        let request = summary_request(texts, notes, query, request, id)?;
        let job = self.start(py, options.as_ref(), |assistant, options| {
            assistant.summarize(request, options).map_err(failed)
        })?;
        Ok(Job::new(job, "Summary", results::summary, None))
    }

    /// The texts of a file as an index reads them: messages, pages, chapters; of plain text one. Of a mailbox, the last message is the
    /// newest, and the others reversed are the thread of :meth:`reply`.
    ///
    /// Args:
    ///     path: the file, whose ending says what it is.
    ///     contents: its bytes.
    ///
    /// Raises:
    ///     NotesError: the file is no source, or is broken.
    #[staticmethod]
    fn read_texts(py: Python<'_>, path: PathBuf, contents: &[u8]) -> PyResult<Py<PyAny>> {
        let read = compute(py, || {
            refrain_assistant::Passage::read(&path, contents).map_err(|error| Failure::File(Box::new(error)))
        })?;
        results::object(py, "FileTexts", &results::file_texts(&read))
    }

    /// Replies to a message.
    ///
    /// Args:
    ///     message: its title, such as ``"Mail from Ada"``, and its text.
    ///     request: the user's wish, such as ``"Accept, but on Tuesday."``.
    ///     earlier: earlier messages of the thread, newest first.
    ///     tone: such as ``"friendly"``.
    ///     length: ``"short"``, ``"medium"`` or ``"long"``.
    ///     passages: passages that help, best first.
    ///     n_passages: passages of the notes to show behind them, by a search.
    ///     options: see the class.
    ///
    /// Raises:
    ///     NoRoomError: the message does not fit the context.
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
    #[pyo3(signature = (message, request = "", *, earlier = Vec::new(), tone = None, length = None, passages = Vec::new(), n_passages = 0,
        **options))]
    fn reply(
        &self,
        py: Python<'_>,
        message: Passage,
        request: &str,
        earlier: Vec<Passage>,
        tone: Option<String>,
        length: Option<&str>,
        passages: Vec<Passage>,
        n_passages: usize,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Job> {
        let request = reply_request(message, request, earlier, tone, length, passages, n_passages)?;
        let job = self.start(py, options.as_ref(), |assistant, options| {
            assistant.reply(request, options).map_err(failed)
        })?;
        Ok(Job::new(job, "Reply", results::reply, None))
    }

    /// Edits a text. Its changes come as events while the new text is written.
    ///
    /// Args:
    ///     text: the text.
    ///     instruction: what is to be changed.
    ///     selection: the start and the end of the part that is edited, in characters.
    ///     lines: its first and last line, counted from 1.
    ///     section: the words of the heading above it. One of the three, or none for the whole text.
    ///     note: the note that the text is of, so that :meth:`forget` finds what is made from it.
    ///     options: see the class.
    ///
    /// A text that does not fit the context is edited in windows, one after the other.
    ///
    /// Raises:
    ///     NothingError: the text is empty.
    ///     NoRoomError: the context has no room for the instruction and a part of the text.
    ///     AssistantError: the text has no such part, or is too large.
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
    #[pyo3(signature = (text, instruction, *, selection = None, lines = None, section = None, note = None, **options))]
    fn edit(
        &self,
        py: Python<'_>,
        text: String,
        instruction: &str,
        selection: Option<(usize, usize)>,
        lines: Option<(usize, usize)>,
        section: Option<String>,
        note: Option<PathBuf>,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Job> {
        let mut request = EditRequest::new(text.clone(), instruction);
        request.part = match (selection, lines, section) {
            (None, None, None) => EditPart::Whole,
            (Some((start, end)), None, None) => {
                // A place behind the end stays one.
                let offset = |n: usize| {
                    let behind = || text.len().saturating_add(n - text.chars().count());
                    text.char_indices().nth(n).map_or_else(behind, |(at, _)| at)
                };
                EditPart::Bytes(offset(start)..offset(end))
            }
            (None, Some((first, last)), None) => EditPart::Lines { first, last },
            (None, None, Some(section)) => EditPart::Section(section),
            _ => return Err(PyTypeError::new_err("give one of selection, lines and section")),
        };
        if let Some(path) = note {
            request = request.of_note(path).map_err(Failure::Notes)?;
        }
        let job = self.start(py, options.as_ref(), |assistant, options| {
            assistant.edit(request, options).map_err(failed)
        })?;
        Ok(Job::new(job, "Edit", results::edit, Some(text)))
    }

    /// Chooses the next command of a task on a screen. A grammar allows only commands that its elements take.
    ///
    /// Args:
    ///     screen: accessibility XML, a dump of browser-use, Playwright, AndroidWorld or XCUITest, or a line per element such as
    ///         ``4 button "Sign in"``. Its ids are kept.
    ///     goal: what the user wants.
    ///     steps: the steps before, oldest first: pairs of a screen (``None`` if it is unknown) and the command on it, as
    ///         :attr:`UiCommand.text`. Of more than 256, the oldest are dropped.
    ///     actions: what the agent may do, as JSON: ``commands``, ``keys``, ``apps``, and the app's own ``actions``.
    ///     n_screens: the most earlier screens that the prompt shows.
    ///     lists_actions: whether the prompt lists the commands.
    ///     options: see the class.
    ///
    /// Raises:
    ///     AssistantError: a screen or the actions cannot be read, or no command is allowed.
    ///     NoRoomError: the screen does not fit the context.
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
    #[pyo3(signature = (screen, goal, *, steps = Vec::new(), actions = None, n_screens = 2, lists_actions = true, **options))]
    fn ui_command(
        &self,
        py: Python<'_>,
        screen: String,
        goal: String,
        steps: Vec<(Option<String>, String)>,
        actions: Option<String>,
        n_screens: usize,
        lists_actions: bool,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Job> {
        let job = self.start(py, options.as_ref(), move |assistant, options| {
            let read = |source: String| Screen::read(&source).map_err(|error| failed(error.into()));
            let mut task = UiTask::new(goal);
            (task.n_screens, task.lists_actions) = (n_screens, lists_actions);
            if let Some(actions) = actions {
                task.actions = UiActions::from_json(&actions).map_err(|error| failed(error.into()))?;
            }
            for (screen, command) in steps {
                task.push(screen.map(read).transpose()?, command);
            }
            assistant.ui_command(&task, read(screen)?, options).map_err(failed)
        })?;
        Ok(Job::new(job, "UiCommand", results::ui_command, None))
    }

    /// Computes the prompt of an answer in the background and keeps it in the store. With passages and an empty question, every question
    /// about them begins with what is kept.
    ///
    /// Args: as :meth:`answer`.
    ///
    /// Raises:
    ///     AssistantError: there is no store; and as :meth:`answer`.
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
    #[pyo3(signature = (question = String::new(), *, folders = Vec::new(), kinds = Vec::new(), since = None, until = None, tags = Vec::new(), n_passages = None, passages = None, **options))]
    fn prefetch_answer(
        &self,
        py: Python<'_>,
        question: String,
        folders: Vec<PathBuf>,
        kinds: Vec<String>,
        since: Option<i64>,
        until: Option<i64>,
        tags: Vec<String>,
        n_passages: Option<usize>,
        passages: Option<Vec<Passage>>,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Job> {
        let filter = notes::filter(folders, kinds, since, until, tags)?;
        let request =
            Prefetch::Answer(answer_request(question, filter, n_passages, passages, Vec::new(), None)?);
        let job = self.start(py, options.as_ref(), |assistant, options| {
            assistant.prefetch(request, options).map_err(failed)
        })?;
        Ok(Job::new(job, "Prefetched", results::prefetched, None))
    }

    /// Computes the prompt of a summary in the background and keeps it in the store.
    ///
    /// Args: as :meth:`summarize`.
    ///
    /// Raises:
    ///     AssistantError: there is no store; and as :meth:`summarize`.
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
    #[pyo3(signature = (texts = None, *, notes = None, query = None, request = "", id = None, **options))]
    fn prefetch_summary(
        &self,
        py: Python<'_>,
        texts: Option<Vec<Passage>>,
        notes: Option<Vec<PathBuf>>,
        query: Option<String>,
        request: &str,
        id: Option<String>,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Job> {
        let request = Prefetch::Summarize(summary_request(texts, notes, query, request, id)?);
        let job = self.start(py, options.as_ref(), |assistant, options| {
            assistant.prefetch(request, options).map_err(failed)
        })?;
        Ok(Job::new(job, "Prefetched", results::prefetched, None))
    }

    /// A conversation.
    ///
    /// Args:
    ///     id: its id; ``None``: a random one.
    ///     turns: earlier turns, as :attr:`Conversation.turns` gave them.
    #[pyo3(signature = (id = None, turns = Vec::new()))]
    fn conversation(&self, id: Option<u64>, turns: Vec<GivenTurn>) -> PyResult<Conversation> {
        let assistant = self.0.get()?;
        let turns = turns.into_iter().map(|turn| -> Result<Turn, Failure> {
            let GivenTurn { role, content, notes, asked, keep } = turn;
            let message = Message::new(options::role(&role)?, content);
            let mut turn = Turn::new(message);
            (turn.notes, turn.asked, turn.keep) = (notes, asked, keep);
            Ok(turn)
        });
        let turns = turns.collect::<Result<Vec<_>, _>>()?;
        let id = id.map_or_else(|| assistant.conversation().id(), ConversationId);
        let conversation = assistant.open_conversation(id, turns);
        let vocab_size = assistant.engine().tokenizer().vocab_size();
        Ok(Conversation { conversation: Resident::new(conversation), vocab_size })
    }

    /// The same assistant for another namespace.
    ///
    /// Raises:
    ///     OptionError: the name is empty or too long.
    fn in_namespace(&self, name: &str) -> PyResult<Self> {
        let named = self.0.get()?.in_namespace(name).map_err(|error| Failure::Build(Box::new(error)))?;
        Ok(Self(Resident::new(named)))
    }

    /// Reads the index of notes again, as writers have left it.
    ///
    /// Raises:
    ///     NotesError: it cannot be read.
    fn refresh_notes(&self, py: Python<'_>) -> PyResult<()> {
        let assistant = self.0.get()?;
        compute(py, || assistant.notes().map_or(Ok(()), |notes| notes.refresh().map_err(Failure::Notes)))
    }

    /// Deletes what was made from a note or a folder of notes, with its text in the index; or from a conversation; or before a time; or
    /// everything: one of the four. When it returns, no file has a byte of it.
    ///
    /// Args:
    ///     note: a note, or a folder with everything below it. The note itself stays.
    ///     conversation: its id.
    ///     before: seconds since 1970, as ``time.time()``.
    ///     everything: all answers, and all notes of the index.
    ///
    /// Raises:
    ///     NotesError, StoreError: not everything was deleted. The next start of an assistant finishes it.
    #[pyo3(signature = (*, note = None, conversation = None, before = None, everything = false))]
    fn forget(
        &self,
        py: Python<'_>,
        note: Option<PathBuf>,
        conversation: Option<u64>,
        before: Option<f64>,
        everything: bool,
    ) -> PyResult<Py<PyAny>> {
        let what = match (note, conversation, before, everything) {
            (Some(path), None, None, false) => Forget::Note(path),
            (None, Some(id), None, false) => Forget::Conversation(ConversationId(id)),
            (None, None, Some(time), false) => Forget::Before(time_of(time)?),
            (None, None, None, true) => Forget::Everything,
            _ => return Err(PyTypeError::new_err("give one of note, conversation, before and everything")),
        };
        let assistant = self.0.get()?;
        let forgotten =
            compute(py, || assistant.forget(what).map_err(|error| Failure::Forget(Box::new(error))))?;
        results::object(py, "Forgotten", &results::forgotten(forgotten))
    }

    /// The namespace.
    #[getter]
    fn namespace(&self) -> PyResult<String> {
        Ok(self.0.get()?.namespace().to_owned())
    }

    fn __repr__(&self) -> PyResult<String> {
        let assistant = self.0.get()?;
        let has = |is: bool, name: &'static str| if is { name } else { "" };
        Ok(format!(
            "Assistant(namespace={:?}{}{})",
            assistant.namespace(),
            has(assistant.notes().is_some(), ", with notes"),
            has(assistant.has_store(), ", with a store"),
        ))
    }
}

/// A time in seconds since 1970.
fn time_of(seconds: f64) -> Result<SystemTime, Failure> {
    let since = Duration::try_from_secs_f64(seconds).ok();
    since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)).ok_or_else(|| Failure::Choice {
        option: "before",
        given: seconds.to_string(),
        choices: vec!["a time in seconds since 1970"],
    })
}

fn templates(given: BTreeMap<String, String>) -> Result<Prompts, Failure> {
    let mut prompts = Prompts::default();
    for (task, text) in given {
        let template = Template::new(&text).map_err(|error| Failure::Template(task.clone(), error))?;
        match task.as_str() {
            "answer" => prompts.answer = template,
            "cited_answer" => prompts.cited_answer = template,
            "summarize" => prompts.summarize = template,
            "ui" => prompts.ui = template,
            "reply" => prompts.reply = template,
            "edit" => prompts.edit = template,
            _ => {
                let choices = vec!["answer", "cited_answer", "summarize", "ui", "reply", "edit"];
                return Err(Failure::Choice { option: "prompts", given: task, choices });
            }
        }
    }
    Ok(prompts)
}

fn answer_request(
    question: String,
    filter: NoteFilter,
    n_passages: Option<usize>,
    given: Option<Vec<Passage>>,
    earlier: Vec<String>,
    coverage_min: Option<f32>,
) -> Result<AnswerRequest, Failure> {
    let given = given.map(passages).transpose()?;
    let mut request = AnswerRequest::new(question);
    (request.filter, request.n_passages, request.passages) = (filter, n_passages, given);
    (request.earlier, request.coverage_min) = (earlier, coverage_min);
    Ok(request)
}

fn summary_request(
    texts: Option<Vec<Passage>>,
    notes: Option<Vec<PathBuf>>,
    query: Option<String>,
    request: &str,
    id: Option<String>,
) -> PyResult<SummarizeRequest> {
    let mut subject = match (texts, notes, query) {
        (Some(texts), None, None) => SummarizeRequest::texts(passages(texts)?),
        (None, Some(notes), None) => SummarizeRequest::notes(notes),
        (None, None, Some(query)) => SummarizeRequest::query(query),
        _ => return Err(PyTypeError::new_err("give one of texts, notes and query")),
    };
    if let Some(id) = id {
        subject = subject.with_id(id);
    }
    subject.request = request.to_owned();
    Ok(subject)
}

#[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
fn reply_request(
    message: Passage,
    request: &str,
    earlier: Vec<Passage>,
    tone: Option<String>,
    length: Option<&str>,
    given: Vec<Passage>,
    n_passages: usize,
) -> Result<ReplyRequest, Failure> {
    let mut reply = ReplyRequest::of(passage(message)?);
    reply.request = request.to_owned();
    reply.earlier = passages(earlier)?;
    reply.tone = tone;
    reply.length = length.map(options::length).transpose()?;
    reply.passages = passages(given)?;
    reply.n_passages = n_passages;
    Ok(reply)
}

/// A conversation of an assistant, made by :meth:`Assistant.conversation`. Its turns are in memory: store :attr:`id` and :attr:`turns` to
/// continue it later.
#[pyclass(frozen, module = "refrain.assistant")]
pub(crate) struct Conversation {
    conversation: Resident<refrain_assistant::Conversation>,
    vocab_size: usize,
}

#[pymethods]
impl Conversation {
    /// Answers a turn of the user. The conversation gets both turns when the job is done. If it does not fit the context any more, its
    /// oldest turns are left out.
    ///
    /// Args:
    ///     text: the user's words.
    ///     n_passages: passages of the notes to show, by a search for the words and, with less weight, for those of earlier turns.
    ///     options: as for the tasks of :class:`Assistant`.
    ///
    /// Raises:
    ///     SessionBusyError: another job of the conversation runs.
    ///     NoRoomError: the turn alone does not fit.
    ///     ChatTemplateError: the model has no chat template.
    #[pyo3(signature = (text, *, n_passages = 0, **options))]
    fn say(
        &self,
        py: Python<'_>,
        text: String,
        n_passages: usize,
        options: Option<Bound<'_, PyDict>>,
    ) -> PyResult<Job> {
        let conversation = self.conversation.get()?;
        let options = job_options(options.as_ref(), self.vocab_size)?;
        let mut request = ChatRequest::new(text);
        request.n_passages = n_passages;
        let job = compute(py, || conversation.say(request, options).map_err(failed))?;
        Ok(Job::new(job, "ChatAnswer", results::chat_answer, None))
    }

    /// The id, under which :meth:`Assistant.forget` deletes what was kept of the conversation.
    #[getter]
    fn id(&self) -> PyResult<u64> {
        Ok(self.conversation.get()?.id().0)
    }

    /// The turns of finished jobs.
    #[getter]
    fn turns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let conversation = self.conversation.get()?;
        let turns = compute(py, || Ok(conversation.turns()))?;
        let turns = turns.iter().map(|turn| results::object(py, "Turn", &results::turn(turn)));
        PyList::new(py, turns.collect::<PyResult<Vec<_>>>()?)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let conversation = self.conversation.get()?;
        let n_turns = compute(py, || Ok(conversation.turns().len()))?;
        Ok(format!("Conversation(id={:#018x}, {n_turns} turns)", conversation.id().0))
    }
}
