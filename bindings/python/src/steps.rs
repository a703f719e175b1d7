//! Steps of a generation for an event loop.
//!
//! A thread of its own computes them without the interpreter's lock, and wakes the loop through a pipe. Two threads that wake one another
//! take tens of microseconds, whatever they say; a step of a small model takes hardly more. So steps that are shorter than that are
//! computed in the loop itself, a few at a time.

use std::io::{PipeReader, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyStopAsyncIteration;
use pyo3::prelude::*;

use crate::errors::Failure;
use crate::resident::Resident;

/// How long the thread waits awake for the next step.
const SPIN: Duration = Duration::from_micros(100);

/// What an event loop drives: one step after the other.
pub(crate) trait Stepped: Send + Sync + 'static {
    /// Computes until the next event needs no pass, and takes none. Does nothing if it needs none already, or if there is none. Calls
    /// `computed` before another thread can take the event. Returns whether there was a pass.
    fn step(&self, computed: &dyn Fn()) -> bool;

    /// Takes the next event if it needs neither a pass nor waiting. The interpreter's lock is held.
    fn try_take(&self, py: Python<'_>) -> PyResult<Taken>;
}

/// What there was to take.
pub(crate) enum Taken {
    /// An event, and whether the one behind it needs a pass.
    Event(Py<PyAny>, bool),
    /// A pass comes before the next event.
    Pending,
    /// Another thread computes, or reads.
    Busy,
    /// The last event was taken before.
    Ended,
}

/// The thread of one `async for`, and the pipe by which it wakes the loop. The thread ends with this object.
#[pyclass(frozen, module = "refrain", name = "_Steps")]
pub(crate) struct Steps(Resident<Ends>);

/// The loop's ends.
struct Ends {
    steps: Arc<Timed>,
    asks: Sender<()>,
    wakes: PipeReader,
    /// Steps of at most so many microseconds are computed in the loop, and so many together before it runs again.
    in_loop_us: u64,
    turn_us: u64,
    /// Microseconds of the steps that were computed in the loop since it ran.
    spent_us: AtomicU64,
}

/// What both threads have.
struct Timed {
    stepped: Arc<dyn Stepped>,
    /// Whether the thread has been asked for a step that is not computed yet.
    is_asked: AtomicBool,
    /// Microseconds of the newest step. A first one computes the prompt, so before it there is no short one.
    newest_us: AtomicU64,
}

impl Timed {
    /// Computes a step. Returns its microseconds.
    fn step(&self) -> u64 {
        let since = Instant::now();
        // An event that is taken at once asks for the next step: it must not find this one's mark.
        let has_computed = self.stepped.step(&|| self.is_asked.store(false, Ordering::Release));
        let us = since.elapsed().as_micros() as u64;
        if has_computed {
            self.newest_us.store(us, Ordering::Relaxed);
        }
        us
    }
}

/// Waits until the thread is asked for a step. Returns `false` if it never will be.
fn is_awaited(asked: &Receiver<()>) -> bool {
    // The loop, which was woken just now, mostly asks at once. Sleeping and being woken take longer than that.
    let since = Instant::now();
    while since.elapsed() < SPIN {
        match asked.try_recv() {
            Ok(()) => return true,
            Err(TryRecvError::Disconnected) => return false,
            // (On a single processor the loop needs it.)
            Err(TryRecvError::Empty) => thread::yield_now(),
        }
    }
    asked.recv().is_ok()
}

impl Steps {
    /// Starts the thread. Steps of at most `in_loop_us` microseconds are computed in the loop, and `turn_us` of them together before it
    /// runs again.
    ///
    /// # Errors
    /// The system has no thread or no pipe left.
    pub(crate) fn start(stepped: Arc<dyn Stepped>, in_loop_us: u64, turn_us: u64) -> PyResult<Self> {
        let (asks, asked) = channel::<()>();
        let (wakes, mut wake) = pipe()?;
        let (is_asked, newest_us) = (AtomicBool::new(false), AtomicU64::new(u64::MAX));
        let steps = Arc::new(Timed { stepped, is_asked, newest_us });
        let theirs = Arc::clone(&steps);
        thread::Builder::new().name("refrain-steps".to_owned()).spawn(move || {
            while is_awaited(&asked) {
                theirs.step();
                if wake.write_all(&[0]).is_err() {
                    break; // The loop's end is closed.
                }
            }
        })?;
        let spent_us = AtomicU64::new(0);
        Ok(Self(Resident::new(Ends { steps, asks, wakes, in_loop_us, turn_us, spent_us })))
    }
}

impl Ends {
    fn ask(&self) {
        if !self.steps.is_asked.swap(true, Ordering::AcqRel) {
            // (The thread ends after this sender.)
            let _ = self.asks.send(());
        }
    }

    /// Whether the next step is probably short.
    fn is_short(&self) -> bool {
        self.steps.newest_us.load(Ordering::Relaxed) <= self.in_loop_us
    }
}

#[pymethods]
impl Steps {
    /// The end of the pipe for ``loop.add_reader``: readable after each step of the thread.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.0.get()?.wakes.as_raw_fd())
    }

    /// The next event. ``None`` if it is not computed yet: the pipe will be readable, or it is the loop's :meth:`turn`. The thread begins the
    /// next step as soon as the last event of this one is taken.
    ///
    /// Raises:
    ///     StopAsyncIteration: the last event was taken before.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let ends = self.0.get()?;
        loop {
            match ends.steps.stepped.try_take(py)? {
                Taken::Event(event, needs_pass) => {
                    if needs_pass && !ends.is_short() {
                        ends.ask();
                    }
                    return Ok(Some(event));
                }
                Taken::Pending if ends.is_short() => {
                    if ends.spent_us.load(Ordering::Relaxed) >= ends.turn_us {
                        return Ok(None);
                    }
                    let us = py.detach(|| ends.steps.step());
                    ends.spent_us.fetch_add(us, Ordering::Relaxed);
                }
                Taken::Pending | Taken::Busy => {
                    ends.ask();
                    return Ok(None);
                }
                Taken::Ended => return Err(PyStopAsyncIteration::new_err(())),
            }
        }
    }

    /// Whether the loop has to run before the next steps are computed in it. Called right before it does.
    fn turn(&self) -> PyResult<bool> {
        let ends = self.0.get()?;
        Ok(ends.spent_us.swap(0, Ordering::Relaxed) >= ends.turn_us)
    }

    /// Empties the pipe, which is readable.
    fn woken(&self) -> PyResult<()> {
        // More than a few steps are never ahead of the loop.
        let mut bytes = [0; 16];
        (&self.0.get()?.wakes).read(&mut bytes).map_err(|error| Failure::Raised(error.into()))?;
        Ok(())
    }
}
