//! Outputs of an engine on disk, as a draft source of its sessions.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PySequence;
use refrain::TokenId;
use refrain_index::history::{HistoryKey, HistoryLog, HistoryOptions};

use crate::border::compute;
use crate::engine::Engine;
use crate::errors::Failure;
use crate::options;
use crate::resident::Resident;

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
