//! The engine, and its outputs on disk as a draft source of its sessions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PySequence;
use refrain::checkpoint::Checkpoint;
use refrain::device::MemoryEstimate;
use refrain::drafting::DraftModelOptions;
use refrain::drafting::{DraftPolicy, DraftRows};
use refrain::{EngineOptions, SessionOptions, TokenId};
use refrain_index::history::{HistoryKey, HistoryLog, HistoryOptions};

use crate::border::compute;
use crate::errors::Failure;
use crate::options;
use crate::python_source;
use crate::resident::Resident;
use crate::session::Session;
use crate::tokenizer::Tokenizer;

/// A loaded model with its tokenizer, threads and measured costs.
///
/// An engine is shared: its sessions may run in different threads, and their passes take turns. It belongs to the process that made
/// it; a forked child gets a :class:`~refrain.errors.ForkedError`.
///
/// Args:
///     path: a GGUF file, a Hugging Face folder, or a packed file.
///     threads: threads of a pass, the caller's included. ``None``: one per physical performance core that the process may use.
///     quantize: block format of the weights in memory: ``"keep"``, ``"f32"``, ``"q8_0"`` or ``"q4_0"``. The only argument that changes
///         the output.
///     draft_model: a smaller model of the same vocabulary, which drafts where text does not; ``"mtp"``: the head for multi-token prediction
///         in the model's own file. A folder may hold an EAGLE-3 head for the model.
///     measure_time: seconds for measuring step costs while loading. 0 measures nothing; steps correct the costs later.
///     history_tokens_max: the bound on tokens of earlier outputs per namespace, which later outputs draft from.
///
/// Raises:
///     LoadError: the model cannot be loaded. If the system refused a file, ``__cause__`` is its :class:`OSError`.
///     OptionError: an argument is outside its range.
#[pyclass(frozen, module = "refrain")]
pub(crate) struct Engine {
    engine: Resident<refrain::Engine>,
    path: PathBuf,
}

/// Where the outputs are from which a session drafts.
enum KeptIn<'py> {
    /// In the engine's memory, or nowhere.
    Memory(bool),
    Disk(Bound<'py, History>),
}

impl<'py> FromPyObject<'_, 'py> for KeptIn<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match (object.cast::<History>(), object.extract()) {
            (Ok(history), _) => Ok(Self::Disk(history.to_owned())),
            (_, Ok(is_on)) => Ok(Self::Memory(is_on)),
            _ => Err(options::wrong_type("True, False or a History", &object)),
        }
    }
}

impl Engine {
    pub(crate) fn engine(&self) -> Result<&refrain::Engine, Failure> {
        self.engine.get()
    }
}

/// The draft model of the model at `path`; `mtp` names the head in its own file.
fn open_draft_model(draft_path: &Path, path: &Path) -> Result<Checkpoint, Failure> {
    let opened = match draft_path.as_os_str() == "mtp" {
        true => Checkpoint::open_mtp(path),
        false => Checkpoint::open(draft_path),
    };
    opened.map_err(Failure::Load)
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (path, *, threads = None, quantize = "keep", draft_model = None, measure_time = None, history_tokens_max = None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        threads: Option<usize>,
        quantize: &str,
        draft_model: Option<PathBuf>,
        measure_time: Option<f64>,
        history_tokens_max: Option<u32>,
    ) -> PyResult<Self> {
        let measure_time =
            measure_time.map(Duration::try_from_secs_f64).transpose().map_err(|_| Failure::Choice {
                option: "measure_time",
                given: measure_time.unwrap_or_default().to_string(),
                choices: vec!["a number of seconds from 0"],
            })?;
        let options = EngineOptions {
            n_threads: threads,
            quantize: options::quantize(quantize)?,
            measure_time,
            history_tokens_max,
            ..EngineOptions::default()
        };
        let engine = compute(py, || {
            let engine = refrain::Engine::open(&path, options).map_err(Failure::Load)?;
            if let Some(draft_path) = draft_model {
                let draft_model = open_draft_model(&draft_path, &path)?;
                engine
                    .set_draft_model(&draft_model, DraftModelOptions::default(), |_, _| {})
                    .map_err(Failure::Load)?;
            }
            Ok(engine)
        })?;
        Ok(Self { engine: Resident::new(engine), path })
    }

    /// The memory that a model and its sessions take, before it is loaded: only the header of its file is read.
    ///
    /// Args:
    ///     path, quantize, draft_model: as for the engine.
    ///     context_len, kv_type: as for :meth:`session`.
    ///     n_sessions: sessions at a time.
    ///
    /// Raises:
    ///     LoadError: the file is damaged, or cannot be loaded with these arguments.
    ///     OptionError: an argument is outside its range.
    #[staticmethod]
    #[pyo3(signature = (path, *, quantize = "keep", draft_model = None, context_len = None, kv_type = "f16", n_sessions = 1))]
    fn estimate_memory(
        py: Python<'_>,
        path: PathBuf,
        quantize: &str,
        draft_model: Option<PathBuf>,
        context_len: Option<usize>,
        kv_type: &str,
        n_sessions: usize,
    ) -> PyResult<Py<PyAny>> {
        let options = EngineOptions { quantize: options::quantize(quantize)?, ..EngineOptions::default() };
        let kv_type = options::kv_type(kv_type)?;
        let session = SessionOptions { context_len, kv_type, ..SessionOptions::default() };
        let memory = compute(py, || {
            let checkpoint = Checkpoint::open(&path).map_err(Failure::Load)?;
            let memory = MemoryEstimate::new(&checkpoint, &options, &session, n_sessions);
            let memory = memory.map_err(Failure::Load)?;
            let Some(draft_path) = draft_model else { return Ok(memory) };
            let draft_model = open_draft_model(&draft_path, &path)?;
            Ok(memory.with_draft_model(&draft_model, &DraftModelOptions::default(), &session, n_sessions))
        })?;
        let mut values = serde_json::to_value(memory).unwrap_or_default();
        values["total_bytes"] = memory.total_bytes().into();
        values["fits"] = memory.fits().into();
        Ok(py.import("refrain._events")?.getattr("memory_estimate")?.call1((values.to_string(),))?.unbind())
    }

    /// Starts a session: one conversation, or one plain text.
    ///
    /// Args:
    ///     context_len: maximum tokens of prompt and output together. ``None``: the model's trained length, at most 4,096.
    ///     kv_type: element type of the KV cache: ``"f16"``, ``"f32"``, ``"q8_0"`` or ``"q4_0"``. Changes the output.
    ///     drafting: ``"auto"``; ``"draft_model"``: the draft model alone proposes tokens; ``"off"``: plain decoding. The output is the same.
    ///     history: whether the session drafts from earlier outputs of its namespace, and adds its own, in the engine's memory. Or a
    ///         :class:`History`: the session drafts from its outputs, in its namespace, and the program adds to it.
    ///     namespace: an app, a user or a task. A session never drafts from another namespace.
    ///     draft_rows: so many of the likeliest drafts in each step, at any cost. ``None``: as many as pay.
    ///     verify_rows_max: maximum rows of a verification batch, the root included, 1 to 64.
    ///     prefill_chunk: prompt tokens per pass.
    ///     sources: draft sources written in Python, each a :class:`~refrain.DraftSource`. The output is the same.
    ///
    /// Raises:
    ///     OptionError: an argument is outside its range, or two sources have one name.
    ///     AllocationError: there is no memory for the KV cache.
    ///     NoDraftModelError: ``drafting="draft_model"`` without a draft model.
    ///     FingerprintError: the history is of another tokenizer.
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
    #[pyo3(signature = (*, context_len = None, kv_type = "f16", drafting = "auto", history = KeptIn::Memory(true), namespace = "default", draft_rows = None, verify_rows_max = 32, prefill_chunk = 256, sources = Vec::new()))]
    fn session(
        &self,
        py: Python<'_>,
        context_len: Option<usize>,
        kv_type: &str,
        drafting: &str,
        history: KeptIn<'_>,
        namespace: &str,
        draft_rows: Option<usize>,
        verify_rows_max: usize,
        prefill_chunk: usize,
        sources: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Session> {
        let engine = self.engine.get()?;
        let (in_memory, on_disk) = match &history {
            KeptIn::Memory(is_on) => (*is_on, None),
            KeptIn::Disk(history) => (false, Some(history.get().of(engine)?)),
        };
        let options = SessionOptions {
            context_len,
            kv_type: options::kv_type(kv_type)?,
            drafting: options::drafting(drafting)?,
            history: in_memory,
            namespace: namespace.to_owned(),
            policy: DraftPolicy {
                rows: draft_rows.map_or(DraftRows::Auto, DraftRows::Fixed),
                ..DraftPolicy::default()
            },
            verify_rows_max,
            prefill_chunk,
            ..SessionOptions::default()
        };
        let sources = python_source::sources(sources, engine.tokenizer().vocab_size())?;
        let session = compute(py, || {
            let mut session = engine.session(options).map_err(Failure::Session)?;
            if let Some(kept) = on_disk {
                session.add_source(Box::new(kept.log.source(&kept.namespace))).map_err(Failure::Session)?;
            }
            for source in sources {
                session.add_source(Box::new(source)).map_err(Failure::Session)?;
            }
            Ok(session)
        })?;
        Ok(Session::new(session, engine))
    }

    /// The model's tokenizer.
    #[getter]
    fn tokenizer(&self) -> PyResult<Tokenizer> {
        Ok(Tokenizer::of(self.engine.get()?))
    }

    /// The name of the model's architecture, such as ``"llama"``.
    #[getter]
    fn architecture(&self) -> PyResult<String> {
        Ok(self.engine.get()?.config().architecture.name().to_owned())
    }

    /// Number of layers.
    #[getter]
    fn n_layers(&self) -> PyResult<usize> {
        Ok(self.engine.get()?.config().n_layers())
    }

    /// The longest context that the model was trained for, in tokens.
    #[getter]
    fn context_len(&self) -> PyResult<usize> {
        Ok(self.engine.get()?.config().context_len)
    }

    /// Threads of a pass, the caller's included.
    #[getter]
    fn threads(&self) -> PyResult<usize> {
        Ok(self.engine.get()?.device().n_threads())
    }

    /// Bytes of the weights, including those of a mapped file.
    #[getter]
    fn memory_bytes(&self) -> PyResult<u64> {
        Ok(self.engine.get()?.memory_usage())
    }

    /// Forgets the earlier outputs of a namespace, or of all namespaces.
    #[pyo3(signature = (namespace = None))]
    fn forget_history(&self, py: Python<'_>, namespace: Option<&str>) -> PyResult<()> {
        let history = self.engine.get()?.history();
        compute(py, || {
            match namespace {
                Some(namespace) => history.forget(namespace),
                None => history.clear(),
            }
            Ok(())
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        let engine = self.engine.get()?;
        let config = engine.config();
        let (isa, threads) = (engine.device().isa(), engine.device().n_threads());
        Ok(format!(
            "Engine({:?}, {}, {} layers, {} tokens, {threads} threads, {isa:?})",
            self.path.display().to_string(),
            config.architecture.name(),
            config.n_layers(),
            config.vocab_size,
        ))
    }
}

/// Outputs of an engine's model in a folder, from which later sessions draft. Without it, an engine keeps outputs in memory.
///
/// Several processes may open one folder, such as all workers of a host and the program ``refrain`` (its option ``--history``): one writes,
/// the others hand in. What hosts of a fleet share is read too.
///
/// Args:
///     engine: the engine whose outputs are kept. Those of other models in the folder are left alone.
///     folder: the folder. It is made if it does not exist.
///     namespace: an app, a user or a task. A session never drafts from another namespace.
///     key: 32 bytes that encrypt the outputs from the beginning. The app keeps them.
///
/// Raises:
///     StoreError: the folder cannot be opened.
#[pyclass(frozen, module = "refrain")]
pub(crate) struct History(Resident<Kept>);

pub(crate) struct Kept {
    pub(crate) log: HistoryLog,
    pub(crate) namespace: String,
    key: HistoryKey,
    vocab_size: usize,
}

impl History {
    /// The outputs, for a session of `engine`.
    ///
    /// # Errors
    /// They belong to another process, or are of another model.
    pub(crate) fn of(&self, engine: &refrain::Engine) -> Result<&Kept, Failure> {
        let kept = self.0.get()?;
        let expected = HistoryKey::of(engine);
        match kept.key == expected {
            true => Ok(kept),
            false if kept.key.tokenizer != expected.tokenizer => {
                Err(Failure::Fingerprint { expected: expected.tokenizer, found: kept.key.tokenizer })
            }
            false => Err(Failure::Choice {
                option: "history",
                given: "outputs of another model".to_owned(),
                choices: vec!["those of this engine's model"],
            }),
        }
    }
}

/// Token ids, or an object with tokens such as a `Completion`.
struct Output(Vec<u32>);

impl<'py> FromPyObject<'_, 'py> for Output {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let ids = match object.getattr_opt("tokens")? {
            Some(tokens) => tokens.try_iter()?.map(|token| token?.getattr("id")?.extract()).collect(),
            None if object.cast::<PySequence>().is_err() => {
                Err(options::wrong_type("a Completion or token ids", &object))
            }
            None => object.extract(),
        };
        ids.map(Self)
    }
}

#[pymethods]
impl History {
    #[new]
    #[pyo3(signature = (engine, folder, *, namespace = "default", key = None))]
    fn new(
        py: Python<'_>,
        engine: &Engine,
        folder: PathBuf,
        namespace: &str,
        key: Option<&[u8]>,
    ) -> PyResult<Self> {
        let engine = engine.engine()?;
        let options = HistoryOptions { key: options::key(key)?, ..HistoryOptions::default() };
        let (key, log) = compute(py, || {
            let key = HistoryKey::of(engine);
            let log = HistoryLog::open(&folder, key, options).map_err(Failure::Store)?;
            Ok((key, log))
        })?;
        let vocab_size = engine.tokenizer().vocab_size();
        Ok(Self(Resident::new(Kept { log, namespace: namespace.to_owned(), key, vocab_size })))
    }

    /// Keeps an output: a :class:`Completion`, or token ids. It is on disk when the call returns, in whichever process.
    ///
    /// Raises:
    ///     StoreError: it could not be kept, for example on a full or read-only disk. Sessions draft from what is there.
    ///     TokenOutOfRangeError: an id is not in the vocabulary. Nothing was kept.
    fn append(&self, py: Python<'_>, output: Output) -> PyResult<()> {
        let kept = self.0.get()?;
        let Output(ids) = output;
        if let Some(&token) = ids.iter().find(|&&id| id as usize >= kept.vocab_size) {
            return Err(Failure::Token { token, vocab_size: kept.vocab_size }.into());
        }
        let ids: Vec<TokenId> = ids.into_iter().map(TokenId).collect();
        compute(py, || match ids.is_empty() {
            true => Ok(()),
            false => kept.log.append(&kept.namespace, &ids).map(drop).map_err(Failure::Store),
        })
    }

    /// Reads the outputs of other processes, makes the store durable and merges its parts. To be called after an output or two.
    ///
    /// Raises:
    ///     StoreError: the folder cannot be read or written.
    fn maintain(&self, py: Python<'_>) -> PyResult<()> {
        let kept = self.0.get()?;
        compute(py, || kept.log.maintain().map_err(Failure::Store))
    }

    /// Forgets the outputs of the namespace, in every file.
    ///
    /// Raises:
    ///     StoreError: another process writes the store, or the folder cannot be written.
    fn forget(&self, py: Python<'_>) -> PyResult<()> {
        let kept = self.0.get()?;
        compute(py, || kept.log.forget_namespace(&kept.namespace).map(drop).map_err(Failure::Store))
    }

    /// The namespace.
    #[getter]
    fn namespace(&self) -> PyResult<&str> {
        Ok(&self.0.get()?.namespace)
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("History(namespace={:?})", self.0.get()?.namespace))
    }
}
