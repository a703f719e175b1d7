//! A session: its engine's session, or the place of one that a generation has taken.

use std::mem;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyTuple};
use refrain::{GenerateError, OwnedGeneration, SpecialTokens, TokenId};

use crate::border::compute;
use crate::cancel::CancelToken;
use crate::errors::Failure;
use crate::generation::Generation;
use crate::home::{Home, Place};
use crate::options;
use crate::resident::Resident;
use crate::signals::Signals;

/// One conversation, or one plain text: its tokens, KV cache and draft sources.
///
/// Made by :meth:`Engine.session`. Any thread may use it; calls from several threads follow one another. While a generation of it runs,
/// its methods raise :class:`~refrain.errors.SessionBusyError`.
#[pyclass(frozen, module = "refrain")]
pub(crate) struct Session {
    home: Resident<Arc<Home>>,
    engine: Resident<refrain::Engine>,
}

impl Session {
    pub(crate) fn new(session: refrain::Session, engine: &refrain::Engine) -> Self {
        Self { home: Resident::new(Arc::new(Home::new(session))), engine: Resident::new(engine.clone()) }
    }

    /// Calls `work` with the session, without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut refrain::Session) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let home = self.home.get()?;
        compute(py, || match &mut *home.lock() {
            Place::Here(session) => work(session),
            Place::Away => Err(Failure::Busy),
        })
    }

    /// As [`with`](Self::with), for work that a signal's handler may cancel.
    fn with_signals<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(
            &mut refrain::Session,
            &refrain::CancelToken,
            &mut Signals<'_>,
        ) -> Result<T, GenerateError>
        + Send,
    ) -> PyResult<T> {
        self.with(py, |session| {
            let cancel = refrain::CancelToken::new();
            let mut signals = Signals::new(&cancel);
            let result = work(session, &cancel, &mut signals);
            signals.finish().map_err(Failure::Raised)?;
            result.map_err(Failure::Generate)
        })
    }
}

#[pymethods]
impl Session {
    /// Adds a turn. The model's chat template turns it into tokens when the next answer is generated.
    ///
    /// Args:
    ///     role: ``"system"``, ``"developer"``, ``"user"``, ``"assistant"`` or ``"tool"``.
    ///     content: the text. It cannot forge control tokens.
    ///
    /// Raises:
    ///     MixedSessionError: the session holds plain text.
    fn append_turn(&self, py: Python<'_>, role: &str, content: String) -> PyResult<()> {
        let role = options::role(role)?;
        self.with(py, |session| session.append_turn(role, content).map_err(Failure::Session))
    }

    /// Takes back the newest turn. Returns its role and text; ``None`` if there is no turn.
    fn pop_turn(&self, py: Python<'_>) -> PyResult<Option<(&'static str, String)>> {
        self.with(py, |session| Ok(session.pop_turn().map(|turn| (turn.role.name(), turn.content))))
    }

    /// The turns, as pairs of role and text.
    #[getter]
    fn turns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let turns = self.with(py, |session| {
            let turns = session.turns().iter();
            Ok(turns.map(|turn| (turn.role.name(), turn.content.clone())).collect::<Vec<_>>())
        })?;
        PyTuple::new(py, turns)
    }

    /// Adds plain text.
    ///
    /// Args:
    ///     text: the text.
    ///     special: whether control tokens in the text count as such (see :meth:`Tokenizer.encode`).
    ///
    /// Raises:
    ///     MixedSessionError: the session holds turns.
    ///     ContextOverflowError: the text does not fit. The session is unchanged.
    #[pyo3(signature = (text, *, special = false))]
    fn append_text(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<()> {
        let special = if special { SpecialTokens::Parse } else { SpecialTokens::AsText };
        self.with(py, |session| session.append_text(text, special).map_err(Failure::Session))
    }

    /// Adds token ids as plain text.
    ///
    /// Raises:
    ///     TokenOutOfRangeError: an id is not in the vocabulary.
    ///     MixedSessionError: the session holds turns.
    ///     ContextOverflowError: the tokens do not fit. The session is unchanged.
    fn append_tokens(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<()> {
        let tokens: Vec<TokenId> = tokens.into_iter().map(TokenId).collect();
        self.with(py, |session| session.append_tokens(&tokens).map_err(Failure::Session))
    }

    /// The ids of all committed tokens, prompt and output.
    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.with(py, |session| Ok(session.tokens().iter().map(|token| token.0).collect()))
    }

    /// Number of tokens whose keys and values are computed.
    #[getter]
    fn n_cached_tokens(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |session| Ok(session.state().n_cached_tokens()))
    }

    /// The maximum of tokens.
    #[getter]
    fn context_len(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |session| Ok(session.context_len()))
    }

    /// Bytes of the KV cache and of the draft sources.
    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |session| Ok(session.memory_usage()))
    }

    /// Shortens a plain text to its first tokens. Nothing happens if it has no more than these.
    ///
    /// Raises:
    ///     MixedSessionError: the session holds turns.
    fn truncate(&self, py: Python<'_>, n_tokens: usize) -> PyResult<()> {
        self.with(py, |session| session.truncate(n_tokens).map_err(Failure::Session))
    }

    /// A second session in the same state. Both draft and generate independently.
    ///
    /// Raises:
    ///     AllocationError: there is no memory for its KV cache.
    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        let engine = self.engine.get()?;
        let fork = self.with(py, |session| session.fork().map_err(Failure::Session))?;
        Ok(Self::new(fork, engine))
    }

    /// Computes the prompt now, for example while the user types. :meth:`generate` does it otherwise.
    ///
    /// Raises:
    ///     EmptyPromptError, ContextOverflowError, ChatTemplateError: as :meth:`generate`.
    ///     KeyboardInterrupt: finished chunks are kept.
    fn prefill(&self, py: Python<'_>) -> PyResult<()> {
        self.with_signals(py, |session, cancel, signals| session.prefill(cancel, |_, _| signals.look()))
    }

    /// Starts a generation: an iterator of the output's tokens, and of a summary at its end.
    ///
    /// The generation has the session until its last event, its :meth:`~Generation.close`, or its end as an object. The session then
    /// contains exactly the tokens whose events were taken.
    ///
    /// Args:
    ///     max_tokens: maximum output tokens.
    ///     temperature: 0 takes the most likely token; larger values flatten the distribution.
    ///     top_k: keeps the most likely tokens; 0 keeps all.
    ///     top_p: keeps the fewest most likely tokens whose probabilities reach it; 1 keeps all.
    ///     min_p: drops tokens less likely than this times the most likely one; 0 drops none.
    ///     repetition_penalty: divides positive and multiplies negative logits of the newest 64 tokens; 1 is off.
    ///     frequency_penalty: subtracted for each occurrence among the newest 64 tokens; 0 is off.
    ///     presence_penalty: subtracted once from tokens among the newest 64; 0 is off.
    ///     logit_bias: added to the logits of these tokens. Minus infinity forbids a token.
    ///     seed: the key of the random numbers. The same seed gives the same text, with and without drafts. ``None`` draws one, which the
    ///         summary reports. Temperature 0 uses none.
    ///     stop: the output ends before the first occurrence of this string, or of one of these strings.
    ///     stop_tokens: ids that end the output, besides the model's end tokens.
    ///     ignore_eos: whether the output continues after the model's end tokens.
    ///     cancel: stops the generation from any thread.
    ///
    /// Raises:
    ///     OptionError, TokenOutOfRangeError: an argument is outside its range. The session is unchanged.
    ///     EmptyPromptError: there is nothing to continue.
    ///     ContextOverflowError, ChatTemplateError: the turns do not fit, or cannot be encoded. The newest turn is removed, so that a
    ///         shorter one can take its place.
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
    #[pyo3(signature = (*, max_tokens = 512, temperature = 0.0, top_k = 0, top_p = 1.0, min_p = 0.0, repetition_penalty = 1.0,
        frequency_penalty = 0.0, presence_penalty = 0.0, logit_bias = None, seed = None, stop = None, stop_tokens = None,
        ignore_eos = false, cancel = None))]
    fn generate(
        &self,
        py: Python<'_>,
        max_tokens: usize,
        temperature: f32,
        top_k: usize,
        top_p: f32,
        min_p: f32,
        repetition_penalty: f32,
        frequency_penalty: f32,
        presence_penalty: f32,
        logit_bias: Option<std::collections::BTreeMap<u32, f32>>,
        seed: Option<u64>,
        stop: Option<options::Stop>,
        stop_tokens: Option<Vec<u32>>,
        ignore_eos: bool,
        cancel: Option<CancelToken>,
    ) -> PyResult<Generation> {
        let sampling = refrain::Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            logit_bias: logit_bias
                .into_iter()
                .flatten()
                .map(|(token, bias)| (TokenId(token), bias))
                .collect(),
            seed,
            ..refrain::Sampling::default()
        };
        let options = refrain::GenerateOptions {
            max_tokens,
            sampling,
            stop: stop.map_or_else(Vec::new, |stop| stop.0),
            stop_tokens: stop_tokens.into_iter().flatten().map(TokenId).collect(),
            ignore_eos,
            cancel: cancel.unwrap_or_default().0,
            ..refrain::GenerateOptions::default()
        };
        let home = self.home.get()?;
        let generation = compute(py, || {
            let mut place = home.lock();
            match mem::replace(&mut *place, Place::Away) {
                Place::Away => Err(Failure::Busy),
                Place::Here(session) => OwnedGeneration::new(*session, options).map_err(|refused| {
                    *place = Place::Here(refused.session);
                    Failure::Generate(refused.error)
                }),
            }
        })?;
        Ok(Generation::new(generation, Arc::clone(home)))
    }

    /// The log-probability of each token after the first, given the tokens before it, and optionally the logits.
    ///
    /// The tokens are computed from the first; afterwards the KV cache holds them.
    ///
    /// Returns:
    ///     Log-probabilities ``[n_tokens - 1]``, the perplexity, and the logits as the bytes of ``float32[n_tokens, vocab_size]``, empty
    ///     unless asked for. ``refrain.score`` makes an array of them.
    fn _score(&self, py: Python<'_>, wants_logits: bool) -> PyResult<(Vec<f64>, f64, Py<PyByteArray>)> {
        let vocab_size = self.engine.get()?.config().vocab_size;
        let (score, bytes) = self.with(py, |session| {
            let cancel = refrain::CancelToken::new();
            let mut signals = Signals::new(&cancel);
            let mut bytes: Vec<u8> = Vec::new();
            if wants_logits {
                session.state_mut().encode().map_err(Failure::Session)?;
                let n_bytes = session.tokens().len() as u64 * vocab_size as u64 * size_of::<f32>() as u64;
                let reserved = usize::try_from(n_bytes).map(|n| bytes.try_reserve_exact(n));
                reserved.ok().and_then(Result::ok).ok_or(Failure::Memory { bytes: n_bytes })?;
            }
            let mut receive = |row: &[f32]| {
                if wants_logits {
                    bytes.extend(row.iter().flat_map(|logit| logit.to_ne_bytes()));
                }
                signals.look();
            };
            let score = session.score(&cancel, Some(&mut receive));
            signals.finish().map_err(Failure::Raised)?;
            Ok((score.map_err(Failure::Generate)?, bytes))
        })?;
        Ok((score.log_probabilities, score.perplexity, PyByteArray::new(py, &bytes).unbind()))
    }

    /// The final hidden state of the newest token, as the bytes of ``float32[hidden_dim]``.
    fn _last_hidden_state(&self, py: Python<'_>) -> PyResult<Py<PyByteArray>> {
        let state = self.with_signals(py, |session, cancel, _| session.last_hidden_state(cancel))?;
        let bytes: Vec<u8> = state.iter().flat_map(|value| value.to_ne_bytes()).collect();
        Ok(PyByteArray::new(py, &bytes).unbind())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let home = self.home.get()?;
        compute(py, || {
            Ok(match &*home.lock() {
                Place::Away => "Session(a generation is running)".to_owned(),
                Place::Here(session) => format!(
                    "Session({} turns, {} of {} tokens)",
                    session.turns().len(),
                    session.tokens().len(),
                    session.context_len(),
                ),
            })
        })
    }
}
