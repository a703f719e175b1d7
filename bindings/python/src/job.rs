//! A running task of the assistant.

use std::collections::VecDeque;
use std::sync::Arc;

use pyo3::prelude::*;
use refrain::{Origin, TextKind};
use refrain_assistant::{Estimate, JobEvent, TaskError};
use serde_json::Value;

use crate::border::{compute, guarded};
use crate::errors::Failure;
use crate::held::Held;
use crate::resident::Resident;
use crate::results::{self, change_in_characters, object, place};
use crate::signals::Signals;
use crate::steps::{Stepped, Steps, Taken};
use crate::token::kind_name;

/// A running task: an iterator of its events that ends with the result.
///
/// Made by the methods of :class:`Assistant` and :class:`Conversation`. Nothing is computed until an event is taken, without the
/// interpreter's lock, and at most one pass of the model at a time. Events are :class:`Searched`, :class:`Prefill`, :class:`Text`, :class:`SentenceReady`
/// (after :meth:`announce_sentences`), :class:`Estimate`, :class:`Part`, :class:`Window` and :class:`Change`; the last one is the result. ``async for`` computes in a thread of its own. ``with`` closes the job at the end of the block.
///
/// A job that is closed, cancelled or failed keeps no answer, and leaves its conversation as before.
#[pyclass(frozen, generic, module = "refrain.assistant")]
pub(crate) struct Job(Resident<Arc<Working>>);

/// A job, which the thread of an `async for` has too.
struct Working {
    work: Held<Work>,
    cancel: refrain::CancelToken,
}

struct Work {
    /// `None`: the last event was computed, or the job was closed.
    task: Option<Box<dyn Task>>,
    /// Computed events that were not taken.
    events: VecDeque<Result<Item, Failure>>,
}

/// A job without the type of its result.
trait Task: Send {
    fn next(&mut self) -> Option<Result<Item, TaskError>>;

    /// Steps of the running generation whose tokens were all taken.
    fn n_steps(&self) -> Option<usize>;

    fn announce_sentences(&mut self);
}

/// An event on its way to Python.
enum Item {
    Searched(Value),
    Prefill(usize, usize),
    Text {
        text: String,
        kind: TextKind,
        origin: Origin,
    },
    /// A complete sentence, and its place in characters.
    Sentence {
        index: usize,
        place: [usize; 2],
        text: String,
    },
    Part {
        index: usize,
        n_parts: usize,
        text: String,
    },
    Estimate(Estimate),
    /// A window of a long text was edited; places in characters.
    Window(Value),
    /// A part of the difference to the text that is edited, in characters.
    Change(Value),
    /// The result, and the class that it becomes.
    Done(&'static str, Value),
}

type Write<T> = fn(T, &str) -> Value;

struct Typed<T> {
    job: refrain_assistant::Job<T>,
    class: &'static str,
    /// The result as JSON, given the text that an edit changes.
    write: Write<T>,
    /// That text, and the new one so far.
    texts: Option<(String, String)>,
    /// The answer so far, if its sentences are announced.
    said: Option<String>,
}

impl<T: Send + 'static> Task for Typed<T> {
    fn next(&mut self) -> Option<Result<Item, TaskError>> {
        loop {
            let event = match self.job.next()? {
                Ok(event) => event,
                Err(error) => return Some(Err(error)),
            };
            return Some(Ok(match event {
                JobEvent::Searched(searched) => Item::Searched(results::searched(&searched)),
                JobEvent::Prefill { done, total } => Item::Prefill(done, total),
                JobEvent::Text(event) => {
                    if let Some((_, new)) = self.texts.as_mut().filter(|_| event.kind == TextKind::Answer) {
                        new.push_str(&event.text);
                    }
                    if let Some(said) = self.said.as_mut().filter(|_| event.kind == TextKind::Answer) {
                        said.push_str(&event.text);
                    }
                    Item::Text { text: event.text, kind: event.kind, origin: event.origin }
                }
                JobEvent::Sentence(ready) => {
                    let said = self.said.as_deref().unwrap_or_default();
                    Item::Sentence { index: ready.index, place: place(said, &ready.place), text: ready.text }
                }
                JobEvent::Part { index, n_parts, text } => Item::Part { index, n_parts, text },
                JobEvent::Estimate(estimate) => Item::Estimate(estimate),
                JobEvent::Window { index, n_windows, old, new, .. } => {
                    let (old_text, new_text) = self.texts.as_ref().map_or(("", ""), |(old, new)| (old, new));
                    Item::Window(serde_json::json!({
                        "index": index, "n_windows": n_windows, "old": place(old_text, &old), "new": place(new_text, &new),
                    }))
                }
                JobEvent::Edit(change) => match &self.texts {
                    Some((old, new)) => Item::Change(change_in_characters(&change, old, new)),
                    // The older text of a summary is known at its end.
                    None => continue,
                },
                JobEvent::Done(result) => {
                    let old = self.texts.as_ref().map_or("", |(old, _)| old);
                    Item::Done(self.class, (self.write)(result, old))
                }
                _ => continue,
            }));
        }
    }

    fn n_steps(&self) -> Option<usize> {
        self.job.stats().map(|stats| stats.steps)
    }

    fn announce_sentences(&mut self) {
        self.job.announce_sentences();
        self.said.get_or_insert_default();
    }
}

impl Job {
    /// A job whose result becomes the class of `refrain.assistant` with this name, from the JSON that `write` makes. `edited` is the text
    /// that an edit changes.
    pub(crate) fn new<T: Send + 'static>(
        job: refrain_assistant::Job<T>,
        class: &'static str,
        write: Write<T>,
        edited: Option<String>,
    ) -> Self {
        let cancel = job.cancel_token();
        let texts = edited.map(|old| (old, String::new()));
        let task: Box<dyn Task> = Box::new(Typed { job, class, write, texts, said: None });
        let work = Held::new(Work { task: Some(task), events: VecDeque::new() });
        Self(Resident::new(Arc::new(Working { work, cancel })))
    }
}

impl Work {
    /// Computes until events of the next pass are there.
    fn advance(&mut self) {
        while self.events.is_empty()
            && let Some(task) = &mut self.task
        {
            let n_steps = task.n_steps();
            loop {
                let next =
                    guarded(|| task.next().transpose().map_err(|error| Failure::Task(Box::new(error))));
                let is_last = !matches!(&next, Ok(Some(item)) if !matches!(item, Item::Done(..)));
                self.events.extend(next.transpose());
                if is_last {
                    self.task = None;
                    return;
                }
                // (The tokens of one pass come together. Between generations there are no steps.)
                let now = task.n_steps();
                if now.is_none() || now != n_steps {
                    break;
                }
            }
        }
    }

    /// The next event, computed here if it must be.
    fn take(&mut self) -> Result<Option<Item>, Failure> {
        self.advance();
        self.events.pop_front().transpose()
    }
}

impl Stepped for Working {
    fn step(&self, computed: &dyn Fn()) -> bool {
        // (Only a draft source within its own pass is refused the lock.)
        let mut work = self.work.lock();
        if let Ok(work) = &mut work {
            work.advance();
        }
        computed();
        true
    }

    fn try_take(&self, py: Python<'_>) -> PyResult<Taken> {
        let Some(mut work) = self.work.try_lock() else { return Ok(Taken::Busy) };
        match work.events.pop_front().transpose()? {
            Some(item) => {
                let needs_pass = work.events.is_empty() && work.task.is_some();
                Ok(Taken::Event(event_object(py, item)?, needs_pass))
            }
            None if work.task.is_some() => Ok(Taken::Pending),
            None => Ok(Taken::Ended),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // In a forked process there is nothing to end.
        let Ok(working) = self.0.get() else { return };
        let close = || {
            working.cancel.cancel();
            if let Ok(mut work) = working.work.lock() {
                work.task = None;
            }
        };
        // Python drops objects with its lock held.
        if Python::try_attach(|py| py.detach(close)).is_none() {
            close();
        }
    }
}

#[pymethods]
impl Job {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let working = self.0.get()?;
        let item = compute(py, || working.work.lock()?.take())?;
        item.map(|item| event_object(py, item)).transpose()
    }

    fn __aiter__(slf: Py<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(py.import("refrain._events")?.getattr("AsyncEvents")?.call1((slf,))?.unbind())
    }

    /// Passes for an event loop, all in a thread: a job may wait for the turns of others.
    fn _steps(&self, _in_loop_us: u64, turn_us: u64) -> PyResult<Steps> {
        Steps::start(Arc::clone(self.0.get()?) as Arc<dyn Stepped>, 0, turn_us)
    }

    /// The result, with the interpreter's lock released throughout.
    ///
    /// Raises:
    ///     AssistantError: the job failed, or its result was taken before.
    ///     KeyboardInterrupt: the job is closed.
    fn run(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let working = self.0.get()?;
        let result = compute(py, || {
            let mut signals = Signals::new(&working.cancel);
            loop {
                signals.look();
                match working.work.lock()?.take() {
                    Ok(Some(Item::Done(class, value))) => return Ok(Item::Done(class, value)),
                    Ok(Some(_)) => {}
                    // A handler that raised has cancelled the job.
                    last => {
                        signals.finish().map_err(Failure::Raised)?;
                        return last.and(Err(Failure::JobEnded));
                    }
                }
            }
        })?;
        event_object(py, result)
    }

    /// Makes each complete sentence of the answer an event, :class:`SentenceReady`, for reading it aloud. To be called before the first
    /// event is taken.
    fn announce_sentences(&self, py: Python<'_>) -> PyResult<()> {
        let working = self.0.get()?;
        compute(py, || {
            if let Some(task) = &mut working.work.lock()?.task {
                task.announce_sentences();
            }
            Ok(())
        })
    }

    /// Stops the job before its next layer, from any thread. Its next event raises :class:`~refrain.errors.JobCancelledError`.
    fn cancel(&self) -> PyResult<()> {
        self.0.get()?.cancel.cancel();
        Ok(())
    }

    /// Ends the job without taking its other events. Waits for a pass that another thread is computing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let working = self.0.get()?;
        compute(py, || {
            working.work.check()?;
            working.cancel.cancel();
            let mut work = working.work.lock()?;
            work.task = None;
            work.events.clear();
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

    /// Whether the last event was taken, or the job was closed.
    #[getter]
    fn is_ended(&self, py: Python<'_>) -> PyResult<bool> {
        let working = self.0.get()?;
        compute(py, || {
            let work = working.work.lock()?;
            Ok(work.task.is_none() && work.events.is_empty())
        })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Job({})", if self.is_ended(py)? { "ended" } else { "running" }))
    }
}

/// An event as the object of `refrain.assistant` that stands for it.
fn event_object(py: Python<'_>, item: Item) -> PyResult<Py<PyAny>> {
    let module = py.import("refrain.assistant")?;
    let object = match item {
        Item::Prefill(done, total) => module.getattr("Prefill")?.call1((done, total))?,
        Item::Text { text, kind, origin } => {
            let origin = match &origin {
                Origin::Target => None,
                Origin::Draft(name) => Some(name.as_str()),
            };
            module.getattr("Text")?.call1((text, kind_name(kind), origin))?
        }
        Item::Sentence { index, place: [start, end], text } => {
            module.getattr("SentenceReady")?.call1((index, (start, end), text))?
        }
        Item::Part { index, n_parts, text } => module.getattr("Part")?.call1((index, n_parts, text))?,
        Item::Estimate(Estimate { n_prompts, read_tokens, written_tokens, time, .. }) => {
            let values = (n_prompts, read_tokens, written_tokens, time.as_secs_f64());
            module.getattr("Estimate")?.call1(values)?
        }
        Item::Window(value) => return object(py, "Window", &value),
        Item::Searched(value) => return object(py, "Searched", &value),
        Item::Change(value) => return object(py, "Change", &value),
        Item::Done(class, value) => return object(py, class, &value),
    };
    Ok(object.unbind())
}
