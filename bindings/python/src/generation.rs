//! A running generation.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use refrain::{Event, OwnedGeneration, Stats, Summary};

use crate::border::{compute, guarded};
use crate::errors::Failure;
use crate::held::Held;
use crate::home::Home;
use crate::resident::Resident;
use crate::results::finish_name;
use crate::signals::Signals;
use crate::steps::{Stepped, Steps, Taken};
use crate::token::{Token, segments_tuple};

/// A running generation: an iterator of :class:`Token` that ends with a :class:`Summary`.
///
/// Made by :meth:`Session.generate`. It computes without the interpreter's lock: ``for`` when an event is taken that is not there yet,
/// ``async for`` in a thread of its own, at most one step ahead, or in the event loop if steps are shorter than 1 ms. ``with`` closes it at the
/// end of the block::
///
///     with session.generate() as generation:
///         for event in generation:
///             print(event.text, end="")
///
/// Ctrl-C raises :class:`KeyboardInterrupt` between two events, or during the prompt's passes; the session keeps the tokens that were
/// taken.
#[pyclass(frozen, module = "refrain")]
pub(crate) struct Generation(Resident<Arc<Decoding>>);

/// A generation, which the thread of an `async for` has too.
struct Decoding {
    state: Held<State>,
    cancel: refrain::CancelToken,
    home: Arc<Home>,
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
        let state = Held::new(State::Running(Box::new(generation)));
        Self(Resident::new(Arc::new(Decoding { state, cancel, home })))
    }

    /// Calls `read` with the text so far and the statistics, without the interpreter's lock.
    fn read<T: Send>(&self, py: Python<'_>, read: impl FnOnce(&str, &Stats) -> T + Send) -> PyResult<T> {
        let decoding = self.0.get()?;
        compute(py, || {
            Ok(match &*decoding.state.lock()? {
                State::Running(generation) => read(generation.text(), generation.stats()),
                State::Ended { text, stats } => read(text, stats),
            })
        })
    }
}

impl Decoding {
    /// The next event, computed here if it must be. Called without the interpreter's lock.
    fn compute(&self) -> Result<Option<Event>, Failure> {
        let mut state = self.state.lock()?;
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
            end(&mut state, &self.home);
            return Err(failure);
        }
        take(&mut state, &self.home)
    }

    /// The next event if it needs no pass and no waiting, as most tokens of an accepted draft. The interpreter's lock may be held: a
    /// session that is away is locked by nobody who waits for it.
    fn ready(&self) -> Result<Option<Event>, Failure> {
        match self.state.try_lock() {
            Some(mut state) if matches!(&*state, State::Running(generation) if !generation.awaits_pass()) => {
                guarded(|| take(&mut state, &self.home))
            }
            _ => Ok(None),
        }
    }
}

impl Stepped for Decoding {
    fn step(&self, computed: &dyn Fn()) -> bool {
        // (Only a draft source within its own step is refused the lock.)
        let Ok(mut state) = self.state.lock() else {
            computed();
            return false;
        };
        let has_computed = match &mut *state {
            State::Running(generation) if generation.awaits_pass() => {
                refrain::step_together(&mut [&mut **generation]);
                true
            }
            _ => false,
        };
        computed();
        has_computed
    }

    fn try_take(&self, py: Python<'_>) -> PyResult<Taken> {
        let Some(mut state) = self.state.try_lock() else { return Ok(Taken::Busy) };
        match &*state {
            State::Ended { .. } => return Ok(Taken::Ended),
            State::Running(generation) if generation.awaits_pass() => return Ok(Taken::Pending),
            State::Running(_) => {}
        }
        let event = guarded(|| take(&mut state, &self.home))?;
        let needs_pass = matches!(&*state, State::Running(generation) if generation.awaits_pass());
        event.map_or(Ok(Taken::Ended), |event| Ok(Taken::Event(event_object(py, event)?, needs_pass)))
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
        let Ok(decoding) = self.0.get() else { return };
        // (The thread that drops the object does not hold its state.)
        let close = || {
            if let Ok(mut state) = decoding.state.lock() {
                end(&mut state, &decoding.home);
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
        let decoding = self.0.get()?;
        let event = match decoding.ready()? {
            Some(event) => Some(event),
            None => compute(py, || decoding.compute())?,
        };
        event.map(|event| event_object(py, event)).transpose()
    }

    /// Steps for an event loop: those of at most `in_loop_us` microseconds in the loop, `turn_us` of them together, others in a thread.
    fn _steps(&self, in_loop_us: u64, turn_us: u64) -> PyResult<Steps> {
        Steps::start(Arc::clone(self.0.get()?) as Arc<dyn Stepped>, in_loop_us, turn_us)
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
        let decoding = self.0.get()?;
        let (events, last) = compute(py, || {
            let mut signals = Signals::new(&decoding.cancel);
            let mut tokens = Vec::new();
            loop {
                signals.look();
                match decoding.compute() {
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
    fn cancel(&self) -> PyResult<()> {
        self.0.get()?.cancel.cancel();
        Ok(())
    }

    /// Ends the generation without taking its other events. Waits for a step that another thread is computing, and does nothing after
    /// the last event. The session can then be used again.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let decoding = self.0.get()?;
        compute(py, || {
            decoding.state.check()?;
            // A step of another thread stops early.
            decoding.cancel.cancel();
            end(&mut *decoding.state.lock()?, &decoding.home);
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
        let decoding = self.0.get()?;
        compute(py, || Ok(matches!(&*decoding.state.lock()?, State::Ended { .. })))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let n_tokens = self.read(py, |_, stats| stats.tokens)?;
        let state = if self.is_ended(py)? { "ended" } else { "running" };
        Ok(format!("Generation({state}, {n_tokens} tokens)"))
    }
}

/// An event as the Python object that stands for it.
fn event_object(py: Python<'_>, event: Event) -> PyResult<Py<PyAny>> {
    match event {
        Event::Token(token) => Ok(Py::new(py, Token(token))?.into_any()),
        Event::Done(summary) => summary_object(py, &summary),
        _ => unreachable!("the engine has two kinds of events"),
    }
}

/// A `refrain.Stats`.
fn stats_object(py: Python<'_>, stats: &Stats) -> PyResult<Py<PyAny>> {
    let json = serde_json::to_string(stats).expect("statistics are numbers and names");
    Ok(py.import("refrain._events")?.getattr("stats")?.call1((json,))?.unbind())
}

/// A `refrain.Summary`.
fn summary_object(py: Python<'_>, summary: &Summary) -> PyResult<Py<PyAny>> {
    let fields = PyDict::new(py);
    fields.set_item("finish", finish_name(summary.finish))?;
    fields.set_item("text", &summary.text)?;
    fields.set_item("segments", segments_tuple(py, &summary.segments)?)?;
    fields.set_item("seed", summary.seed)?;
    fields.set_item("stats", stats_object(py, &summary.stats)?)?;
    Ok(py.import("refrain._events")?.getattr("Summary")?.call((), Some(&fields))?.unbind())
}
