//! Tokenizers: of an engine's model, or from a file.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use refrain::{SpecialTokens, TokenId};

use crate::border::compute;
use crate::errors::Failure;
use crate::resident::Resident;

/// Where the tokenizer lives.
#[derive(Clone)]
pub(crate) enum Holder {
    Engine(refrain::Engine),
    File(Arc<refrain::Tokenizer>),
}

impl Holder {
    pub(crate) fn tokenizer(&self) -> &refrain::Tokenizer {
        match self {
            Holder::Engine(engine) => engine.tokenizer(),
            Holder::File(tokenizer) => tokenizer,
        }
    }
}

/// A model's tokenizer: text to token ids and back. Shared by threads.
#[pyclass(frozen, module = "refrain")]
pub(crate) struct Tokenizer(pub(crate) Resident<Holder>);

impl Tokenizer {
    pub(crate) fn of(engine: &refrain::Engine) -> Self {
        Self(Resident::new(Holder::Engine(engine.clone())))
    }
}

#[pymethods]
impl Tokenizer {
    /// Reads a ``tokenizer.json``. No model is needed.
    ///
    /// Raises:
    ///     OSError: the file cannot be read, or is not UTF-8.
    ///     TokenizerError: its content is not a tokenizer that Refrain supports.
    #[staticmethod]
    fn from_file(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let tokenizer = compute(py, || {
            let text = std::fs::read_to_string(&path).map_err(|error| Failure::Raised(error.into()))?;
            refrain::Tokenizer::from_json(&text, &path.display().to_string()).map_err(Failure::Tokenizer)
        })?;
        Ok(Self(Resident::new(Holder::File(Arc::new(tokenizer)))))
    }

    /// The token ids of a text.
    ///
    /// Args:
    ///     text: the text.
    ///     special: whether text such as ``<|im_end|>`` becomes the control token. Only for text that the program itself has composed:
    ///         text from users, files and the web could forge the end of a turn.
    ///
    /// Raises:
    ///     TokenizerError: the text is too long.
    #[pyo3(signature = (text, *, special = false))]
    fn encode(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<Vec<u32>> {
        let tokenizer = self.0.get()?.tokenizer();
        let special = if special { SpecialTokens::Parse } else { SpecialTokens::AsText };
        let ids = compute(py, || tokenizer.encode(text, special).map_err(Failure::Tokenizer))?;
        Ok(ids.into_iter().map(|id| id.0).collect())
    }

    /// The token ids of a prompt whose continuation fits between two texts, for models with control tokens for gaps.
    ///
    /// Generate with :attr:`infill_ends` as stop tokens.
    ///
    /// Raises:
    ///     TokenizerError: a text is too long, or the vocabulary has no such tokens.
    fn encode_infill(&self, py: Python<'_>, before: &str, after: &str) -> PyResult<Vec<u32>> {
        let tokenizer = self.0.get()?.tokenizer();
        let ids = compute(py, || tokenizer.encode_infill(before, after).map_err(Failure::Tokenizer))?;
        Ok(ids.into_iter().map(|id| id.0).collect())
    }

    /// The tokens with which a model ends a gap, beside :attr:`eos`; empty if it fills none.
    #[getter]
    fn infill_ends(&self) -> PyResult<Vec<u32>> {
        Ok(self.0.get()?.tokenizer().infill_ends().iter().map(|id| id.0).collect())
    }

    /// The text of token ids. Ids outside the vocabulary have no text; incomplete characters become U+FFFD.
    fn decode(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<String> {
        let tokenizer = self.0.get()?.tokenizer();
        let ids: Vec<TokenId> = ids.into_iter().map(TokenId).collect();
        compute(py, || Ok(tokenizer.decode(&ids)))
    }

    /// Number of tokens; ids lie below it.
    #[getter]
    fn vocab_size(&self) -> PyResult<usize> {
        Ok(self.0.get()?.tokenizer().vocab_size())
    }

    /// The tokens that end an output.
    #[getter]
    fn eos(&self) -> PyResult<Vec<u32>> {
        Ok(self.0.get()?.tokenizer().eos().iter().map(|id| id.0).collect())
    }

    /// The token that begins a text, if the model has one.
    #[getter]
    fn bos(&self) -> PyResult<Option<u32>> {
        Ok(self.0.get()?.tokenizer().bos().map(|id| id.0))
    }

    /// A hash of the vocabulary: tokenizers with equal fingerprints give equal ids.
    #[getter]
    fn fingerprint(&self) -> PyResult<u64> {
        Ok(self.0.get()?.tokenizer().fingerprint())
    }

    fn __len__(&self) -> PyResult<usize> {
        self.vocab_size()
    }

    fn __repr__(&self) -> PyResult<String> {
        let tokenizer = self.0.get()?.tokenizer();
        Ok(format!(
            "Tokenizer(vocab_size={}, fingerprint={:#018x})",
            tokenizer.vocab_size(),
            tokenizer.fingerprint()
        ))
    }
}
