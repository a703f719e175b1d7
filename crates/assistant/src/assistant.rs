//! The assistant: an engine with notes, a store and prompts, shared by its jobs.

use std::fmt;
use std::mem::take;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use refrain::drafting::DraftSource;
use refrain::internals::draft::PassagesSource;
use refrain::{
    Drafting, Engine, GenerateOptions, HistoryStore, Message, Role, Session, SessionOptions, SpecialTokens,
    TokenId,
};
use refrain_grammar::Vocabulary;
use refrain_index::notes::Embedder;
use refrain_index::prefixes::{PrefixOptions, PrefixStore};
use refrain_index::{NotesError, NotesIndex, history};

use crate::error::{BuildError, TaskError};
use crate::gate::Gate;
use crate::options::{AssistantOptions, JobOptions, KeptPrompts};
use crate::rates::Rates;
use crate::resume::{PromptCosts, WaitingRoom};
use crate::store::{Hidden, KeepPrefix, Kept, Store, StoreError, names_with_index};
use crate::template::{Prompts, plain_text};

/// The tasks of an assistant app on one engine. Cheap to clone, and shared by threads; each task returns a
/// [`Job`](crate::Job).
///
/// Assistants that are built separately on one engine work, but only jobs of one assistant and its clones take fair turns, unless they share
/// a gate ([`Builder::gate`]).
#[derive(Clone)]
pub struct Assistant {
    shared: Arc<Shared>,
    namespace: Arc<str>,
    drafts: bool,
    jobs: Arc<OfJobs>,
}

/// What the jobs of an assistant do, as far as clones may differ.
#[derive(Clone)]
struct OfJobs {
    prompts: Prompts,
    options: AssistantOptions,
}

struct Shared {
    engine: Engine,
    gate: Arc<Gate>,
    notes: Option<Notes>,
    store: Option<Store>,
    key: Option<[u8; 32]>,
    /// Answers, if there is no store.
    memory: Arc<HistoryStore>,
    /// Deletions so far. An answer is not kept if one has begun since its job was started.
    n_forgotten: AtomicU64,
    /// For grammars; built at the first use.
    vocabulary: OnceLock<Vocabulary>,
    /// The conversations.
    waiting: WaitingRoom,
    prompt_costs: PromptCosts,
    /// How long this assistant's tokens have taken.
    rates: Mutex<Rates>,
}

struct Notes {
    index: NotesIndex,
    folder: PathBuf,
    /// For searches by meaning.
    embedder: Option<Arc<dyn Embedder>>,
    /// The notes that are yet to be deleted from the index.
    hidden: Mutex<Vec<Hidden>>,
}

/// Builds an [`Assistant`]. Everything but the engine is optional.
#[must_use]
pub struct Builder {
    engine: Engine,
    notes: Option<PathBuf>,
    embedder: Option<Arc<dyn Embedder>>,
    store: Option<PathBuf>,
    namespace: String,
    prompts: Prompts,
    options: AssistantOptions,
    gate: Arc<Gate>,
    key: Option<[u8; 32]>,
}

impl Builder {
    /// The folder of an index of notes ([`refrain_index::notes`]), for answers, summaries and replies from notes.
    pub fn notes(mut self, folder: impl Into<PathBuf>) -> Self {
        self.notes = Some(folder.into());
        self
    }

    /// The embedder whose vectors the index has ([`NotesWriter::embed`](refrain_index::notes::NotesWriter::embed)): the notes are then searched by words and
    /// by meaning. Without [`notes`](Self::notes) it is not used. A search embeds its text on the caller's thread, beside the turns of jobs.
    pub fn embedder(mut self, embedder: Arc<dyn Embedder>) -> Self {
        self.embedder = Some(embedder);
        self
    }

    /// A folder where the assistant keeps answers and summaries, and drafts later answers and summaries from them. The folder is
    /// created if it does not exist. One process at a time uses it. Without a store, answers are kept in memory.
    pub fn store(mut self, folder: impl Into<PathBuf>) -> Self {
        self.store = Some(folder.into());
        self
    }

    /// The key that encrypts and authenticates the files of the store and of the index of notes. The app stores the key (key store,
    /// keychain). Store and index must be new, or begun with this key: the key cannot be added or changed later.
    /// `docs/use/privacy.md` lists what stays visible.
    pub fn key(mut self, key: [u8; 32]) -> Self {
        self.key = Some(key);
        self
    }

    /// The namespace, such as an account of the app. Default: `default`. See [`Assistant::in_namespace`].
    pub fn namespace(mut self, name: impl Into<String>) -> Self {
        self.namespace = name.into();
        self
    }

    /// The templates of the prompts.
    pub fn prompts(mut self, prompts: Prompts) -> Self {
        self.prompts = prompts;
        self
    }

    /// The options.
    pub fn options(mut self, options: AssistantOptions) -> Self {
        self.options = options;
        self
    }

    /// The gate that grants turns, for several assistants or other generations on one device. Default: a gate of its own.
    pub fn gate(mut self, gate: Arc<Gate>) -> Self {
        self.gate = gate;
        self
    }

    /// Opens index and store. A [`forget`](Assistant::forget) that a crash has interrupted is finished.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn build(self) -> Result<Assistant, BuildError> {
        let Self { engine, notes, embedder, store, namespace, prompts, options, gate, key } = self;
        check_namespace(&namespace)?;
        let notes = match notes {
            None => None,
            Some(folder) => {
                let index = NotesIndex::open_with_key(&folder, key.as_ref())?;
                Some(Notes { index, folder, embedder, hidden: Mutex::default() })
            }
        };
        let model = history::HistoryKey::of(&engine);
        let store = store.map(|folder| {
            let max_bytes = options.prefix_bytes_max;
            let prefixes = PrefixOptions { max_bytes, key, ..PrefixOptions::default() };
            Store::open(&folder, Some(model), prefixes)
        });
        let store = store.transpose()?;
        let (n_forgotten, vocabulary) = (AtomicU64::new(0), OnceLock::new());
        let memory = Arc::new(HistoryStore::new());
        let (waiting, prompt_costs) = (WaitingRoom::default(), PromptCosts::default());
        let rates = Mutex::default();
        let shared = Shared {
            engine,
            gate,
            notes,
            store,
            key,
            memory,
            n_forgotten,
            vocabulary,
            waiting,
            prompt_costs,
            rates,
        };
        let (shared, jobs) = (Arc::new(shared), Arc::new(OfJobs { prompts, options }));
        let assistant = Assistant { shared, namespace: namespace.into(), drafts: true, jobs };
        assistant.finish_forgetting()?;
        Ok(assistant)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("notes", &self.notes)
            .field("store", &self.store)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// Maximum length of a namespace's name, in bytes: the history's names have the task behind it.
pub const NAMESPACE_BYTES_MAX: usize = history::NAMESPACE_BYTES_MAX - 16;

fn check_namespace(name: &str) -> Result<(), BuildError> {
    match name.len() {
        1..=NAMESPACE_BYTES_MAX => Ok(()),
        bytes => Err(BuildError::Namespace { bytes, max: NAMESPACE_BYTES_MAX }),
    }
}

impl Assistant {
    /// Starts to build an assistant.
    pub fn builder(engine: Engine) -> Builder {
        Builder {
            engine,
            notes: None,
            embedder: None,
            store: None,
            namespace: "default".to_owned(),
            prompts: Prompts::default(),
            options: AssistantOptions::default(),
            gate: Arc::default(),
            key: None,
        }
    }

    /// The same assistant for another namespace: drafts, kept answers, summaries and prefixes of one namespace never reach
    /// another one.
    ///
    /// # Errors
    /// [`BuildError::Namespace`]: the name is empty or longer than [`NAMESPACE_BYTES_MAX`].
    pub fn in_namespace(&self, name: &str) -> Result<Self, BuildError> {
        check_namespace(name)?;
        Ok(Self { namespace: name.into(), ..self.clone() })
    }

    /// The same assistant, whose jobs decode without drafts: the same texts, in more time. For comparisons.
    ///
    /// A [`Conversation`](crate::Conversation) keeps the session of its first turn, with or without drafts, also for later turns.
    #[must_use]
    pub fn without_drafts(&self) -> Self {
        Self { drafts: false, ..self.clone() }
    }

    /// The same assistant, with the same notes and store, whose jobs have other options. [`AssistantOptions::prefix_bytes_max`] has no effect.
    #[must_use]
    pub fn with_options(&self, options: AssistantOptions) -> Self {
        let jobs = OfJobs { options, ..OfJobs::clone(&self.jobs) };
        Self { jobs: Arc::new(jobs), ..self.clone() }
    }

    /// The same assistant, with the same notes and store, whose jobs have other prompts.
    #[must_use]
    pub fn with_prompts(&self, prompts: Prompts) -> Self {
        let jobs = OfJobs { prompts, ..OfJobs::clone(&self.jobs) };
        Self { jobs: Arc::new(jobs), ..self.clone() }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// The index of notes. Its [`refresh`](NotesIndex::refresh) shows what writers have changed.
    pub fn notes(&self) -> Option<&NotesIndex> {
        self.shared.notes.as_ref().map(|notes| &notes.index)
    }

    pub(crate) fn embedder(&self) -> Option<&dyn Embedder> {
        self.shared.notes.as_ref()?.embedder.as_deref()
    }

    /// Whether answers are kept in a store.
    pub fn has_store(&self) -> bool {
        self.store().is_some()
    }

    /// Bytes of computed prompts that the store has evicted since it was opened, the longest unused first, to stay below
    /// [`AssistantOptions::prefix_bytes_max`].
    pub fn evicted_bytes(&self) -> u64 {
        self.store().map_or(0, |store| store.prefixes().evicted_bytes())
    }

    /// Lets all conversations that wait answer the newest report of memory pressure
    /// ([`Device::set_memory_pressure`](refrain::device::Device::set_memory_pressure)): they release buffers, and if it is critical, their
    /// keys and values. A conversation that goes on reads them from the store, if they are kept there, or computes them, whichever was
    /// cheaper so far. Its texts are the same. Conversations with a running job answer at its next step by themselves.
    pub fn release_memory(&self) {
        self.shared.waiting.release_memory();
    }

    pub(crate) fn waiting(&self) -> &WaitingRoom {
        &self.shared.waiting
    }

    pub(crate) fn prompt_costs(&self) -> &PromptCosts {
        &self.shared.prompt_costs
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) fn key(&self) -> Option<&[u8; 32]> {
        self.shared.key.as_ref()
    }

    pub(crate) fn notes_folder(&self) -> Option<&Path> {
        self.shared.notes.as_ref().map(|notes| &*notes.folder)
    }

    /// Leaves out notes that another process is to delete from the index.
    pub(crate) fn hide(&self, paths: Vec<PathBuf>) {
        let Some(notes) = &self.shared.notes else { return };
        let mut hidden = notes.hidden.lock().unwrap_or_else(PoisonError::into_inner);
        // If the names cannot be read, the next search tries again.
        hidden.extend(paths.into_iter().map(|path| Hidden { path, names: Vec::new() }));
    }

    /// The notes that searches leave out: those that wait to be deleted, by another process or because the index cannot be
    /// changed. When they are deleted, the index is
    /// read again.
    pub(crate) fn hidden(&self) -> Result<Vec<Hidden>, NotesError> {
        let Some(Notes { index, hidden, .. }) = &self.shared.notes else { return Ok(Vec::new()) };
        let mut hidden = hidden.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waiting = index.waiting_to_be_forgotten()?;
        waiting.extend(self.unfinished());
        if hidden.iter().any(|hidden| !waiting.contains(&hidden.path)) {
            index.refresh()?;
        }
        hidden.retain(|hidden| waiting.contains(&hidden.path) && !hidden.names.is_empty());
        for path in waiting {
            if hidden.iter().all(|hidden| hidden.path != path) {
                let names = names_with_index(std::slice::from_ref(&path), Some(index))?;
                hidden.push(Hidden { path, names });
            }
        }
        Ok(hidden.clone())
    }

    /// The gate of its jobs' turns.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.shared.gate
    }

    pub(crate) fn store(&self) -> Option<&Store> {
        self.shared.store.as_ref()
    }

    pub(crate) fn prompts(&self) -> &Prompts {
        &self.jobs.prompts
    }

    pub(crate) fn options(&self) -> &AssistantOptions {
        &self.jobs.options
    }

    pub(crate) fn rates(&self) -> MutexGuard<'_, Rates> {
        self.shared.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_chat_template(&self) -> bool {
        self.engine().tokenizer().has_chat_template()
    }

    /// The vocabulary for grammars.
    pub(crate) fn vocabulary(&self) -> Result<&Vocabulary, TaskError> {
        match self.shared.vocabulary.get() {
            Some(vocabulary) => Ok(vocabulary),
            None => {
                let vocabulary = Vocabulary::of_engine(self.engine())?;
                Ok(self.shared.vocabulary.get_or_init(|| vocabulary))
            }
        }
    }

    /// The namespace of a task's history. A task's name has no dot, so two namespaces of the assistant never share one.
    pub(crate) fn history_namespace(&self, task: &str) -> String {
        format!("{}.{task}", self.namespace)
    }

    /// A session that drafts from the kept answers of a task if `keeps` is true.
    pub(crate) fn session(&self, task: &str, keeps: bool) -> Result<Session, TaskError> {
        // The engine's own history would also get the answers of jobs that are dropped.
        let mut options = SessionOptions { history: false, ..self.options().session.clone() };
        if !self.drafts {
            options.drafting = Drafting::Off;
        }
        let drafting = options.drafting;
        let mut session = self.engine().session(options)?;
        if keeps && self.options().history && drafting == Drafting::Auto {
            let namespace = self.history_namespace(task);
            session.add_source(match self.store().and_then(Store::history) {
                Some(history) => Box::new(history.source(&namespace)),
                None => Box::new(self.shared.memory.source(&namespace)),
            })?;
        }
        Ok(session)
    }

    pub(crate) fn n_forgotten(&self) -> u64 {
        self.shared.n_forgotten.load(Ordering::SeqCst)
    }

    /// Jobs that have started before keep nothing from now on. Answers in memory are removed.
    pub(crate) fn start_forgetting(&self) {
        self.shared.n_forgotten.fetch_add(1, Ordering::SeqCst);
        self.shared.memory.clear();
    }

    /// Restores keys and values of the session's prompt. What cannot be restored is computed.
    pub(crate) fn restore(&self, session: &mut Session) {
        if let Some(store) = self.store() {
            let since = Instant::now();
            // An error costs time alone; an error of the session comes again when it is prefilled.
            let n_restored = store.prefixes().restore(session, &self.namespace).unwrap_or(0);
            self.prompt_costs().note_read(n_restored, since.elapsed());
        }
    }

    /// Keeps the answers of a task that has ended well, unless a deletion has begun since its job was started.
    pub(crate) fn keep_answers(
        &self,
        task: &str,
        answers: &[(Vec<TokenId>, Kept)],
    ) -> Result<(), StoreError> {
        if !self.options().history {
            return Ok(());
        }
        let namespace = self.history_namespace(task);
        let _keeping = self.store().map(Store::keeping);
        for (tokens, kept) in answers.iter().filter(|(tokens, _)| !tokens.is_empty()) {
            match self.store() {
                Some(store) if kept.n_forgotten == self.n_forgotten() => {
                    store.keep_answer(&namespace, tokens, kept)?;
                }
                Some(_) => {}
                None => self.shared.memory.append(&namespace, tokens),
            }
            // Looked at behind the append: a deletion meanwhile has cleared the memory before.
            if self.store().is_none() && kept.n_forgotten != self.n_forgotten() {
                self.shared.memory.forget(&namespace);
            }
        }
        Ok(())
    }

    /// Keeps the keys and values of a prompt; of a conversation, also those of the answer, which has `n_output` tokens.
    pub(crate) fn keep_prompt_of(
        &self,
        session: &Session,
        n_output: usize,
        kept: &Kept,
    ) -> Result<(), StoreError> {
        let n_prompt = session.tokens().len().saturating_sub(n_output);
        let up_to = if kept.conversation.is_some() { usize::MAX } else { n_prompt };
        let keep = match self.options().keeps_prompts {
            KeptPrompts::None => return Ok(()),
            KeptPrompts::Repeated if kept.conversation.is_none() => PrefixStore::keep_repeated,
            _ => PrefixStore::keep,
        };
        self.keep_prefix(session, kept, up_to, keep).map(drop)
    }

    /// Keeps the keys and values of a prompt that was prefetched. Returns the number of tokens that are kept now.
    pub(crate) fn keep_prompt(&self, session: &Session, kept: &Kept) -> Result<usize, StoreError> {
        self.keep_prefix(session, kept, usize::MAX, PrefixStore::keep)
    }

    fn keep_prefix(
        &self,
        session: &Session,
        kept: &Kept,
        up_to: usize,
        keep: KeepPrefix,
    ) -> Result<usize, StoreError> {
        let Some(store) = self.store() else { return Ok(0) };
        let _keeping = store.keeping();
        if kept.n_forgotten != self.n_forgotten() {
            return Ok(0);
        }
        store.keep_prefix(session, &self.namespace, kept, up_to, keep)
    }

    /// Options of a generation, for a job.
    pub(crate) fn generate_options(&self, job: &JobOptions) -> GenerateOptions {
        let sampling = job.sampling.as_ref().unwrap_or(&self.options().sampling);
        GenerateOptions {
            max_tokens: self.answer_tokens(job),
            sampling: sampling.clone(),
            stop: job.stop.clone(),
            ignore_eos: job.ignore_eos,
            cancel: job.cancel.clone(),
            ..GenerateOptions::default()
        }
    }

    /// Options of a generation with the sources and processors of the app, and drafts from texts.
    pub(crate) fn last_generate_options(
        &self,
        job: &mut JobOptions,
        texts: &[Vec<TokenId>],
    ) -> GenerateOptions {
        let mut generate = self.generate_options(job);
        generate.sources = draft_source(texts).into_iter().chain(take(&mut job.sources)).collect();
        generate.processors = take(&mut job.processors);
        generate
    }

    pub(crate) fn context_len(&self) -> usize {
        self.options().session.context_len_for(self.engine().config())
    }

    /// Tokens reserved for the output.
    pub(crate) fn answer_tokens(&self, job: &JobOptions) -> usize {
        let context_len = self.context_len();
        match job.answer_tokens.or(self.options().answer_tokens) {
            Some(given) => given.min(context_len / 2),
            None => 512.min(context_len / 4),
        }
    }

    /// The system turn, if there is one, and the user's.
    pub(crate) fn turns(&self, message: String) -> Vec<Message> {
        let system = self.options().system.as_ref().map(|system| Message::new(Role::System, system.as_str()));
        system.into_iter().chain([Message::new(Role::User, message)]).collect()
    }

    /// Tokens of a prompt with these turns, template included.
    pub(crate) fn count_turns(&self, messages: &[Message]) -> Result<usize, TaskError> {
        Ok(self.encode_turns(messages)?.len())
    }

    /// The tokens of a prompt with these turns.
    pub(crate) fn encode_turns(&self, messages: &[Message]) -> Result<Vec<TokenId>, TaskError> {
        let tokenizer = self.engine().tokenizer();
        if self.has_chat_template() {
            return Ok(tokenizer.encode_chat(messages, &Default::default(), true)?);
        }
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let tokens = tokenizer.encode(&plain_text(messages), SpecialTokens::AsText)?;
        Ok(bos.into_iter().chain(tokens).collect())
    }

    pub(crate) fn count(&self, text: &str) -> Result<usize, TaskError> {
        Ok(self.engine().tokenizer().encode(text, SpecialTokens::AsText)?.len())
    }
}

impl fmt::Debug for Assistant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Assistant")
            .field("namespace", &self.namespace)
            .field("has_notes", &self.notes().is_some())
            .field("has_store", &self.store().is_some())
            .field("options", self.options())
            .finish_non_exhaustive()
    }
}

/// A draft source of these texts, if there are any.
fn draft_source(texts: &[Vec<TokenId>]) -> Option<Box<dyn DraftSource>> {
    let is_some = texts.iter().any(|text| !text.is_empty());
    is_some.then(|| Box::new(PassagesSource::new(texts.iter().map(Vec::as_slice))) as Box<dyn DraftSource>)
}
