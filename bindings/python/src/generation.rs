//! A running generation.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use refrain::{Event, FinishReason, OwnedGeneration, Stats, Summary};

use crate::border::{compute, guarded};
use crate::errors::Failure;
use crate::held::Held;
use crate::resident::Resident;
use crate::session::Home;
use crate::signals::Signals;
use crate::token::{event_object, segments_tuple};

/// A running generation: an iterator of :class:`Token` that ends with a :class:`Summary`.
///
/// Made by :meth:`Session.generate`. It computes without the interpreter's lock, at most one step ahead of the events that were taken.
/// ``async for`` computes in the event loop's executor. ``with`` closes it at the end of the block::
///
///     with session.generate() as generation:
///         for event in generation:
///             print(event.text, end="")
///
/// Ctrl-C raises :class:`KeyboardInterrupt` between two events, or during the prompt's passes; the session keeps the tokens that were
/// taken.
#[pyclass(frozen, module = "refrain")]
pub(crate) struct Generation {
    state: Resident<Held<State>>,
    cancel: refrain::CancelToken,
    home: Resident<Arc<Home>>,
}

enum State {
    /// Boxed: the other state is small.
    Running(Box<OwnedGeneration>),
    /// The session has gone home.
    Ended { text: String, stats: Box<Stats> },
}

impl Generation {
    pub(crate) fn new(generation: OwnedGeneration, home: Arc<Home>) -> Self {
        let cancel = generation.cancel_token();
        let state = Resident::new(Held::new(State::Running(Box::new(generation))));
        Self { state, cancel, home: Resident::new(home) }
    }

    /// The next event, computed here if it must be. Called without the interpreter's lock.
    fn compute(&self) -> Result<Option<Event>, Failure> {
        let (state, home) = (self.state.get()?, self.home.get()?);
        let mut state = state.lock()?;
        let State::Running(generation) = &mut *state else { return Ok(None) };
        let mut signals = Signals::new(&self.cancel);
        // Does nothing after the first call.
        let prefilled = generation.prefill(|_, _| signals.look());
        let prefilled = match signals.finish() {
            Err(raised) => Err(Failure::Raised(raised)),
            // A cancelled generation ends with its summary.
            Ok(()) if self.cancel.is_cancelled() => Ok(()),
            Ok(()) => prefilled.map_err(Failure::Generate),
        };
        if let Err(failure) = prefilled {
            end(&mut state, home);
            return Err(failure);
        }
        take(&mut state, home)
    }

    /// The next event if it needs no pass and no waiting, as most tokens of an accepted draft. The interpreter's lock may be held: a
    /// session that is away is locked by nobody who waits for it.
    fn ready(&self) -> Result<Option<Event>, Failure> {
        let (state, home) = (self.state.get()?, self.home.get()?);
        match state.try_lock() {
            Some(mut state) if matches!(&*state, State::Running(generation) if !generation.awaits_pass()) => {
                guarded(|| take(&mut state, home))
            }
            _ => Ok(None),
        }
    }

    /// Calls `read` with the text so far and the statistics, without the interpreter's lock.
    fn read<T: Send>(&self, py: Python<'_>, read: impl FnOnce(&str, &Stats) -> T + Send) -> PyResult<T> {
        let state = self.state.get()?;
        compute(py, || {
            Ok(match &*state.lock()? {
                State::Running(generation) => read(generation.text(), generation.stats()),
                State::Ended { text, stats } => read(text, stats),
            })
        })
    }
}

/// Takes the next event. After the last one, or an error, the session goes home.
fn take(state: &mut State, home: &Home) -> Result<Option<Event>, Failure> {
    let State::Running(generation) = state else { return Ok(None) };
    let event = generation.next().transpose().map_err(Failure::Generate);
    if !matches!(event, Ok(Some(Event::Token(_)))) {
        end(state, home);
    }
    event
}

/// Ends the generation and sends its session home.
fn end(state: &mut State, home: &Home) {
    if let State::Running(generation) = state {
        let ended =
            State::Ended { text: generation.text().to_owned(), stats: Box::new(generation.stats().clone()) };
        if let State::Running(generation) = std::mem::replace(state, ended) {
            home.put_back(generation.into_session());
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        // In a forked process there is nothing to end.
        let (Ok(state), Ok(home)) = (self.state.get(), self.home.get()) else { return };
        // (The thread that drops the object does not hold its state.)
        let close = || {
            if let Ok(mut state) = state.lock() {
                end(&mut state, home);
            }
        };
        // Python drops objects with its lock held.
        if Python::try_attach(|py| py.detach(close)).is_none() {
            close();
        }
    }
}

#[pymethods]
impl Generation {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let event = match self.ready()? {
            Some(event) => Some(event),
            None => compute(py, || self.compute())?,
        };
        event.map(|event| event_object(py, event)).transpose()
    }

    /// The next event if it needs no pass; otherwise ``None``, as after the last event.
    fn _ready(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.ready()?.map(|event| event_object(py, event)).transpose()
    }

    /// Computes until the next event needs no pass, and takes none. Returns whether there is one.
    fn _step(&self, py: Python<'_>) -> PyResult<bool> {
        let state = self.state.get()?;
        compute(py, || match &mut *state.lock()? {
            State::Running(generation) => {
                refrain::step_together(&mut [&mut **generation]);
                Ok(true)
            }
            State::Ended { .. } => Ok(false),
        })
    }

    fn __aiter__(slf: Py<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(py.import("refrain._events")?.getattr("AsyncEvents")?.call1((slf,))?.unbind())
    }

    /// The rest of the output at once, with the interpreter's lock released throughout.
    ///
    /// Returns:
    ///     A :class:`Completion`: tokens, text, reason of the end and statistics.
    ///
    /// Raises:
    ///     GenerateError: a pass failed, or no token could be chosen. The session keeps the tokens so far.
    ///     KeyboardInterrupt: the generation is closed.
    fn run(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let tokens = PyList::empty(py);
        let (events, last) = compute(py, || {
            let mut signals = Signals::new(&self.cancel);
            let mut tokens = Vec::new();
            loop {
                signals.look();
                match self.compute() {
                    Ok(Some(Event::Token(token))) => tokens.push(token),
                    // A handler that raised has cancelled the generation, which has ended by now.
                    last => {
                        signals.finish().map_err(Failure::Raised)?;
                        return last.map(|last| (tokens, last));
                    }
                }
            }
        })?;
        for token in events {
            tokens.append(event_object(py, Event::Token(token))?)?;
        }
        let summary = match last {
            Some(Event::Done(summary)) => Some(summary_object(py, &summary)?),
            _ => None,
        };
        let text = self.read(py, |text, _| text.to_owned())?;
        Ok(py.import("refrain._events")?.getattr("completion")?.call1((tokens, text, summary))?.unbind())
    }

    /// Stops the generation before its next layer, from any thread. The next event is the summary.
    fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Ends the generation without taking its other events. Waits for a step that another thread is computing, and does nothing after
    /// the last event. The session can then be used again.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let (state, home) = (self.state.get()?, self.home.get()?);
        compute(py, || {
            state.check()?;
            // A step of another thread stops early.
            self.cancel.cancel();
            end(&mut *state.lock()?, home);
            Ok(())
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    /// The text of the tokens that were taken.
    #[getter]
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        self.read(py, |text, _| text.to_owned())
    }

    /// The statistics of the tokens that were taken.
    #[getter]
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let stats = self.read(py, |_, stats| stats.clone())?;
        stats_object(py, &stats)
    }

    /// Whether the generation has ended and its session is free.
    #[getter]
    fn is_ended(&self, py: Python<'_>) -> PyResult<bool> {
        let state = self.state.get()?;
        compute(py, || Ok(matches!(&*state.lock()?, State::Ended { .. })))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let n_tokens = self.read(py, |_, stats| stats.tokens)?;
        let state = if self.is_ended(py)? { "ended" } else { "running" };
        Ok(format!("Generation({state}, {n_tokens} tokens)"))
    }
}

/// A `refrain.Stats`.
fn stats_object(py: Python<'_>, stats: &Stats) -> PyResult<Py<PyAny>> {
    let json = serde_json::to_string(stats).expect("statistics are numbers and names");
    Ok(py.import("refrain._events")?.getattr("stats")?.call1((json,))?.unbind())
}

/// A `refrain.Summary`.
pub(crate) fn summary_object(py: Python<'_>, summary: &Summary) -> PyResult<Py<PyAny>> {
    let finish = match summary.finish {
        FinishReason::EndToken => "end_token",
        FinishReason::Stop => "stop",
        FinishReason::MaxTokens => "max_tokens",
        FinishReason::ContextFull => "context_full",
        _ => "cancelled",
    };
    let fields = PyDict::new(py);
    fields.set_item("finish", finish)?;
    fields.set_item("text", &summary.text)?;
    fields.set_item("segments", segments_tuple(py, &summary.segments)?)?;
    fields.set_item("seed", summary.seed)?;
    fields.set_item("stats", stats_object(py, &summary.stats)?)?;
    Ok(py.import("refrain._events")?.getattr("Summary")?.call((), Some(&fields))?.unbind())
}
