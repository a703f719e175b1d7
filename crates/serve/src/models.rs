//! The models of a server: loaded on demand, unloaded under a budget.

use std::any::Any;
use std::error::Error;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use refrain::internals::tokenizer::TokenizerParts as _;
use refrain::{Engine, Sampling, SessionOptions};
use refrain_assistant::{Assistant, Gate};
use refrain_grammar::Vocabulary;
use refrain_index::notes::ModelEmbedder;

use crate::error::{ApiError, ApiResult, ModelsError};
use crate::time::unix_time;
use crate::work::combine::Combiner;
use crate::work::kept_grammars::Grammars;
use crate::work::tool_format::Told;
use crate::work::warm::Warm;

/// Maximum length of a model's name, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// How long a request waits for the room that models with requests take, and how often it looks. Short answers end within it; a client
/// repeats its request for long ones.
const ROOM_TIME: Duration = Duration::from_secs(2);
const ROOM_POLL: Duration = Duration::from_millis(10);

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ModelKind {
    /// It writes text.
    #[default]
    Text,
    /// It makes vectors of texts.
    Embedding,
}

/// A loaded model with the defaults of its requests.
#[derive(Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// The engine.
    pub engine: Engine,
    /// Sampling of requests that state none. Default: the model's generation defaults, else greedy decoding.
    pub sampling: Sampling,
    /// Options of the requests' sessions.
    pub session: SessionOptions,
    /// The assistant of this engine, for tasks over notes. It should have the gate of [`Models::gate`].
    pub assistant: Option<Assistant>,
    kept: Option<Box<dyn Any + Send + Sync>>,
}

impl Loaded {
    /// A model with default options.
    pub fn new(engine: Engine) -> Self {
        let sampling = Sampling::default().with_model_defaults(engine.generation_defaults());
        let session = SessionOptions { namespace: "serve".to_owned(), ..SessionOptions::default() };
        Self { engine, sampling, session, assistant: None, kept: None }
    }

    /// A value that is dropped when the model has been unloaded: for example, its destructor writes learnt values.
    #[must_use]
    pub fn with_kept(mut self, kept: impl Any + Send + Sync) -> Self {
        self.kept = Some(Box::new(kept));
        self
    }
}

type Measure = dyn Fn() -> usize + Send + Sync;
type Loader = dyn Fn() -> Result<Loaded, Box<dyn Error + Send + Sync>> + Send + Sync;

/// A model that a server offers: its name, and how it is loaded.
pub struct ModelSpec {
    id: String,
    kind: ModelKind,
    load: Box<Loader>,
    memory: Option<Box<Measure>>,
    is_pinned: bool,
}

impl std::fmt::Debug for ModelSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelSpec").field("id", &self.id).field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl ModelSpec {
    /// A model of this name that is loaded at its first request.
    pub fn new(
        id: impl Into<String>,
        load: impl Fn() -> Result<Loaded, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        Self { id: id.into(), kind: ModelKind::Text, load: Box::new(load), memory: None, is_pinned: false }
    }

    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Never evicts the model once it is loaded: for a loader that holds the engine itself, so that unloading would free nothing.
    #[must_use]
    pub fn with_pinned(mut self, is_pinned: bool) -> Self {
        self.is_pinned = is_pinned;
        self
    }

    /// Sets the measure of the bytes that loading takes at its peak. It is asked before each loading, so that other models are unloaded
    /// first. Without it, they are unloaded afterwards.
    #[must_use]
    pub fn with_memory(mut self, memory: impl Fn() -> usize + Send + Sync + 'static) -> Self {
        self.memory = Some(Box::new(memory));
        self
    }

    /// Sets what the model is for.
    #[must_use]
    pub fn with_kind(mut self, kind: ModelKind) -> Self {
        self.kind = kind;
        self
    }
}

/// The models of a server. The first one of a kind answers requests that name none.
pub struct Models {
    entries: Vec<Entry>,
    gate: Arc<Gate>,
    created: u64,
    budget: usize,
    warm_bytes: Arc<AtomicUsize>,
    n_uses: AtomicU64,
    /// One model is loaded at a time.
    loading: Mutex<()>,
}

struct Entry {
    spec: ModelSpec,
    model: Mutex<Option<Arc<Model>>>,
    /// The number of its newest use.
    used: AtomicU64,
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.entries.iter().map(|entry| &entry.spec)).finish()
    }
}

/// A loaded model, as requests use it.
pub(crate) struct Model {
    pub(crate) id: String,
    pub(crate) engine: Engine,
    pub(crate) sampling: Sampling,
    pub(crate) session: SessionOptions,
    pub(crate) assistant: Option<Assistant>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) combiner: Combiner,
    pub(crate) warm: Warm,
    pub(crate) grammars: Grammars,
    /// Found at the first request with tools.
    told: OnceLock<Told>,
    /// Whether its chat template knows levels of reasoning; found at the first request with one.
    pub(crate) knows_effort: OnceLock<bool>,
    vocabulary: OnceLock<Vocabulary>,
    embedder: OnceLock<ModelEmbedder>,
    _kept: Option<Box<dyn Any + Send + Sync>>,
}

impl Models {
    /// A list of models with a gate of its own.
    ///
    /// # Errors
    /// [`ModelsError`]: the list is empty, or a name is unusable.
    pub fn new(specs: impl IntoIterator<Item = ModelSpec>) -> Result<Self, ModelsError> {
        let entries: Vec<Entry> = specs
            .into_iter()
            .map(|spec| Entry { spec, model: Mutex::default(), used: AtomicU64::new(0) })
            .collect();
        if entries.is_empty() {
            return Err(ModelsError::Empty);
        }
        for (index, Entry { spec: ModelSpec { id, .. }, .. }) in entries.iter().enumerate() {
            if !(1..=NAME_BYTES_MAX).contains(&id.len()) {
                return Err(ModelsError::NameLength { given: id.len(), max: NAME_BYTES_MAX });
            }
            if entries[..index].iter().any(|earlier| earlier.spec.id == *id) {
                return Err(ModelsError::Duplicate { id: id.clone() });
            }
        }
        Ok(Self {
            entries,
            gate: Arc::default(),
            created: unix_time(),
            budget: usize::MAX,
            warm_bytes: Arc::default(),
            n_uses: AtomicU64::new(0),
            loading: Mutex::default(),
        })
    }

    /// The gate that grants passes to the requests of all models.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Another gate, which assistants have too.
    #[must_use]
    pub fn with_gate(mut self, gate: Arc<Gate>) -> Self {
        self.gate = gate;
        self
    }

    /// Maximum bytes of all loaded models with their kept prompts, including the model that is being loaded ([`ModelSpec::with_memory`]).
    /// Before a model is loaded, idle models are evicted, least recently used first, until the new model fits. The first model may be
    /// evicted too, unless it is pinned. If busy models leave no room for two seconds, the request gets status 503.
    #[must_use]
    pub fn with_budget(mut self, bytes: usize) -> Self {
        self.budget = bytes;
        self
    }

    /// Loads the model of this name now, instead of at its first request.
    ///
    /// # Errors
    /// [`ModelsError::Unknown`], or [`ModelsError::Load`]: its loader fails, or it has more bytes than the budget.
    pub fn load(&self, id: &str) -> Result<(), ModelsError> {
        let entry = self.entries.iter().find(|entry| entry.spec.id == id);
        let entry = entry.ok_or_else(|| ModelsError::Unknown { id: id.to_owned() })?;
        let failed = |error: ApiError| ModelsError::Load { id: id.to_owned(), reason: error.message };
        self.get(Some(id), entry.spec.kind, Instant::now()).map(drop).map_err(failed)
    }

    /// Unloads all models that no request has.
    pub(crate) fn unload_all(&self) {
        self.unload_until(0);
    }

    pub(crate) fn set_warm_bytes(&self, bytes: usize) {
        self.warm_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Names, in order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = (&str, ModelKind)> {
        self.entries.iter().map(|entry| (&*entry.spec.id, entry.spec.kind))
    }

    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    /// Name, bytes, and bytes of kept prompts of each loaded model.
    pub(crate) fn memory(&self) -> Vec<(String, usize, usize)> {
        // Not cloned: a model that a report holds would not be idle.
        let of = |model: &Model| (model.id.clone(), model.engine.memory_usage() as usize, model.warm.bytes());
        self.entries.iter().filter_map(|entry| entry.lock().as_deref().map(of)).collect()
    }

    /// What is known of each model, in order. None is loaded for it.
    pub(crate) fn shown(&self) -> Vec<Shown<'_>> {
        // Not cloned: a model that a report holds would not be idle.
        let loaded = |entry: &Entry| entry.lock().as_deref().map(ShownLoaded::new);
        let shown = |entry| (entry, loaded(entry));
        let all = self.entries.iter().map(shown);
        all.map(|(Entry { spec, .. }, loaded)| Shown { id: &spec.id, kind: spec.kind, loaded }).collect()
    }

    /// Unloads the model of this name if no request has it and nothing pins it; whether it is loaded no more.
    pub(crate) fn unload(&self, id: &str) -> bool {
        let Some(entry) = self.entries.iter().find(|entry| entry.spec.id == id) else { return false };
        let mut model = entry.lock();
        let is_idle = model.as_ref().is_none_or(|model| Arc::strong_count(model) == 1);
        let unloaded = if is_idle && !entry.spec.is_pinned { model.take() } else { None };
        let is_gone = model.is_none();
        drop(model);
        drop(unloaded);
        is_gone
    }

    /// The entry of this name, or the first one of this kind.
    ///
    /// # Errors
    /// Status 404: there is none. Status 400: it is of another kind.
    fn entry(&self, id: Option<&str>, kind: ModelKind) -> ApiResult<&Entry> {
        let not_found = || {
            let message = match id {
                Some(_) => "the model does not exist; `/v1/models` lists those of this server",
                None if kind == ModelKind::Embedding => "this server has no embedding model",
                None => "this server has no model that writes text",
            };
            ApiError::not_found(message).with_param("model").with_code("model_not_found")
        };
        let entry = self.entries.iter().find(|entry| match id {
            Some(id) => entry.spec.id == id,
            None => entry.spec.kind == kind,
        });
        let entry = entry.ok_or_else(not_found)?;
        if entry.spec.kind != kind {
            let what = match kind {
                ModelKind::Text => "the model makes vectors; it does not write text",
                ModelKind::Embedding => "the model writes text; it is no embedding model",
            };
            return Err(ApiError::field("model", what));
        }
        Ok(entry)
    }

    /// The model, if it is loaded.
    ///
    /// # Errors
    /// As [`get`](Self::get), without loading.
    pub(crate) fn loaded(&self, id: Option<&str>, kind: ModelKind) -> ApiResult<Option<Arc<Model>>> {
        let entry = self.entry(id, kind)?;
        entry.used.store(self.n_uses.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(entry.lock().clone())
    }

    /// The model. Blocks while it is loaded. The request has waited since `start`: those that wait for one another wait for room at the same
    /// time, so a hundred of them do not wait a hundred times as long.
    ///
    /// # Errors
    /// Status 404: there is none. Status 400: it is of another kind. Status 500: it cannot be loaded. Status 503: it has no room.
    pub(crate) fn get(&self, id: Option<&str>, kind: ModelKind, start: Instant) -> ApiResult<Arc<Model>> {
        let entry = self.entry(id, kind)?;
        if let Some(model) = &*entry.lock() {
            return Ok(Arc::clone(model));
        }
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = &*entry.lock() {
            return Ok(Arc::clone(model));
        }
        self.make_room(entry, start)?;
        // The reason may name a file of this device; clients learn only that it failed.
        let loaded =
            (entry.spec.load)().map_err(|_| ApiError::server("the model cannot be loaded").finally())?;
        let Loaded { engine, sampling, session, assistant, kept } = loaded;
        let model = Arc::new(Model {
            id: entry.spec.id.clone(),
            engine,
            sampling,
            session,
            assistant,
            gate: Arc::clone(&self.gate),
            combiner: Combiner::default(),
            warm: Warm::new(Arc::clone(&self.warm_bytes)),
            grammars: Grammars::default(),
            told: OnceLock::new(),
            knows_effort: OnceLock::new(),
            vocabulary: OnceLock::new(),
            embedder: OnceLock::new(),
            _kept: kept,
        });
        *entry.lock() = Some(Arc::clone(&model));
        // The measure was an estimate, or there was none.
        self.unload_until(self.budget);
        Ok(model)
    }

    /// Unloads idle models until the budget has room for this one at the peak of its loading.
    ///
    /// # Errors
    /// Status 503: the models that answer requests leave no room, or the budget is too small for this one alone.
    fn make_room(&self, entry: &Entry, start: Instant) -> ApiResult<()> {
        let Some(memory) = &entry.spec.memory else { return Ok(()) };
        if self.budget == usize::MAX {
            return Ok(());
        }
        let needed = memory();
        if needed > self.budget {
            let message = format!("the model needs {needed} bytes, more than the budget of {}", self.budget);
            return Err(ApiError::no_memory(message).finally());
        }
        while !self.unload_until(self.budget - needed) {
            if start.elapsed() > ROOM_TIME {
                let message = "the models that answer other requests take the memory of this one";
                return Err(ApiError::no_memory(message));
            }
            std::thread::sleep(ROOM_POLL);
        }
        Ok(())
    }

    /// Unloads the longest unused models that no request has, until the loaded ones have at most `bytes_max` bytes; whether they do.
    fn unload_until(&self, bytes_max: usize) -> bool {
        let bytes_of = |model: &Model| model.engine.memory_usage() as usize + model.warm.bytes();
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        entries.sort_by_key(|entry| entry.used.load(Ordering::Relaxed));
        let total =
            || -> usize { entries.iter().filter_map(|entry| entry.lock().as_deref().map(bytes_of)).sum() };
        let mut left = total();
        for entry in entries.iter().filter(|entry| !entry.spec.is_pinned) {
            if left <= bytes_max {
                return true;
            }
            let mut model = entry.lock();
            // Requests take it under this lock, so one that nobody has now is nobody's until it is gone.
            if model.as_ref().is_some_and(|model| Arc::strong_count(model) == 1) {
                let unloaded = model.take();
                drop(model);
                left = left.saturating_sub(unloaded.as_deref().map_or(0, bytes_of));
                // The loader may be asked for it again, after all of it is gone.
                drop(unloaded);
            }
        }
        left <= bytes_max
    }
}

/// A model in a list.
pub(crate) struct Shown<'a> {
    pub(crate) id: &'a str,
    pub(crate) kind: ModelKind,
    pub(crate) loaded: Option<ShownLoaded>,
}

/// What is known of a loaded model.
pub(crate) struct ShownLoaded {
    pub(crate) architecture: &'static str,
    /// Of weights and kept prompts.
    pub(crate) n_bytes: usize,
    pub(crate) context_len: usize,
    pub(crate) hidden_dim: usize,
    pub(crate) n_layers: usize,
    /// Whether its chat template marks reasoning.
    pub(crate) reasons: bool,
}

impl ShownLoaded {
    fn new(model: &Model) -> Self {
        let config = model.engine.config();
        Self {
            architecture: config.architecture(),
            n_bytes: model.engine.memory_usage() as usize + model.warm.bytes(),
            context_len: model.context_len(),
            hidden_dim: config.hidden_dim(),
            n_layers: config.n_layers(),
            reasons: model.engine.tokenizer().reasoning_markers().is_some(),
        }
    }
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Model>>> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Model {
    /// The vocabulary for grammars.
    pub(crate) fn vocabulary(&self) -> ApiResult<&Vocabulary> {
        if let Some(vocabulary) = self.vocabulary.get() {
            return Ok(vocabulary);
        }
        let vocabulary = Vocabulary::of_engine(&self.engine)
            .map_err(|_| ApiError::server("the vocabulary of the model cannot be used with grammars"))?;
        Ok(self.vocabulary.get_or_init(|| vocabulary))
    }

    /// How this model is told about tools, and how it calls them.
    pub(crate) fn told(&self) -> Told {
        *self.told.get_or_init(|| Told::of(self.engine.tokenizer()))
    }

    /// The embedder of an embedding model.
    pub(crate) fn embedder(&self) -> ApiResult<&ModelEmbedder> {
        if let Some(embedder) = self.embedder.get() {
            return Ok(embedder);
        }
        let embedder = ModelEmbedder::new(self.engine.clone())
            .map_err(|_| ApiError::server("the model cannot make vectors"))?;
        // Texts are taken as they are; clients write instructions themselves.
        Ok(self.embedder.get_or_init(|| embedder.with_instruction("")))
    }

    /// Tokens of prompt and output together.
    pub(crate) fn context_len(&self) -> usize {
        self.session.context_len_for(self.engine.config())
    }
}
