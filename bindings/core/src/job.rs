//! A job: work in a thread of its own, whose events are taken in batches.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use refrain::CancelToken;

use crate::error::{ErrorInfo, ErrorKind, FfiError};
use crate::events::{Event, EventListener, JobResult, Stage};
use crate::guard::{self, Guarded, Made, lock};
use crate::registry::{Child, Registry};

/// How long a reader waits without being woken. Within it, a fast model's tokens gather to one batch, and no token pays for waking a
/// thread (2 to 10 µs); a slower model's token wakes the reader at once. No display shows text more often.
const GATHER: Duration = Duration::from_millis(1);

/// A running answer, task or update. It computes in a thread of its own, whether its events are taken or not, and ends with
/// [`Event::Done`] or [`Event::Failed`].
///
/// Its events are taken by one reader at a time: [`next_events`](Self::next_events), or a listener ([`listen`](Self::listen)). A job that
/// is closed or dropped is cancelled.
#[cfg_attr(feature = "uniffi", derive(uniffi::Object))]
pub struct Job {
    running: Guarded<Running>,
    /// Beside the guard, so that cancelling takes no lock.
    cancel: CancelToken,
    process: u32,
}

/// What the job and its thread share.
pub(crate) struct Running {
    queue: Arc<Queue>,
    /// Whether somebody takes the events.
    is_read: AtomicBool,
}

impl Made for Running {}

/// The events on their way.
pub(crate) struct Queue {
    events: Mutex<Events>,
    arrived: Condvar,
    cancel: CancelToken,
    /// Whether a listener has thrown.
    has_thrown: AtomicBool,
}

#[derive(Default)]
struct Events {
    waiting: VecDeque<Event>,
    /// Whether a reader sleeps until it is woken.
    wants_wake: bool,
    /// Whether the last event was given.
    is_over: bool,
    /// How the work has ended.
    outcome: Option<Result<JobResult, ErrorInfo>>,
}

impl Queue {
    /// Adds an event. Pieces of text with one kind and origin become one; of a progress, the newest stays.
    pub(crate) fn push(&self, event: Event) {
        let mut events = lock(&self.events);
        match (events.waiting.back_mut(), event) {
            (
                Some(Event::Text { text, kind, drafted_by }),
                Event::Text { text: more, kind: of, drafted_by: by },
            ) if *kind == of && *drafted_by == by => text.push_str(&more),
            (
                Some(Event::Progress { stage, done, total }),
                Event::Progress { stage: of, done: now, total: all },
            ) if *stage == of => (*done, *total) = (now, all),
            (_, event) => events.waiting.push_back(event),
        }
        if mem::take(&mut events.wants_wake) {
            drop(events);
            self.arrived.notify_all();
        }
    }

    pub(crate) fn progress(&self, stage: Stage, done: u64, total: u64) {
        self.push(Event::Progress { stage, done, total });
    }

    pub(crate) fn cancel_token(&self) -> &CancelToken {
        &self.cancel
    }

    fn end(&self, outcome: Result<JobResult, FfiError>) {
        let outcome = outcome.map_err(|error| match error.kind() {
            ErrorKind::Cancelled if self.has_thrown.load(Ordering::Relaxed) => {
                FfiError::new(ErrorKind::Listener, "the listener of the job has thrown").into_info()
            }
            _ => error.into_info(),
        });
        let last = match &outcome {
            Ok(result) => Event::Done { result: Box::new(result.clone()) },
            Err(error) => Event::Failed { error: Box::new(error.clone()) },
        };
        {
            let mut events = lock(&self.events);
            events.waiting.push_back(last);
            events.outcome = Some(outcome);
        }
        self.arrived.notify_all();
    }

    /// How the work has ended; waits for it.
    fn outcome(&self) -> Result<JobResult, FfiError> {
        let mut events = lock(&self.events);
        loop {
            match &events.outcome {
                Some(outcome) => {
                    return outcome.clone().map_err(|error| FfiError::Failed { info: Box::new(error) });
                }
                None => events = self.arrived.wait(events).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// The events that are there; waits for the first until the deadline. None after the last event.
    fn take(&self, deadline: Instant) -> Vec<Event> {
        let mut events = lock(&self.events);
        let mut gathers = true;
        while events.waiting.is_empty() && !events.is_over {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let wait = if mem::take(&mut gathers) { left.min(GATHER) } else { left };
            events.wants_wake = wait == left;
            let woken = self.arrived.wait_timeout(events, wait);
            events = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        events.wants_wake = false;
        let taken: Vec<Event> = mem::take(&mut events.waiting).into();
        events.is_over |= taken.last().is_some_and(Event::is_last);
        taken
    }
}

/// The right to take events.
struct Reader<'a>(&'a AtomicBool);

impl<'a> Reader<'a> {
    fn enter(running: &'a Running) -> Result<Self, FfiError> {
        match running.is_read.swap(true, Ordering::Acquire) {
            false => Ok(Self(&running.is_read)),
            true => Err(FfiError::new(
                ErrorKind::Busy,
                "another thread or a listener takes the events of this job",
            )),
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Job {
    /// Starts `work` in a thread. It pushes events to the queue and returns the result.
    ///
    /// # Errors
    /// The system gives no thread. `work` is dropped.
    pub(crate) fn start(
        registry: Option<&Registry>,
        cancel: CancelToken,
        work: impl FnOnce(&Queue) -> Result<JobResult, FfiError> + Send + 'static,
    ) -> Result<Arc<Self>, FfiError> {
        let (events, arrived) = (Mutex::default(), Condvar::new());
        let (of_queue, has_thrown) = (cancel.clone(), AtomicBool::new(false));
        let queue = Arc::new(Queue { events, arrived, cancel: of_queue, has_thrown });
        let of_thread = Arc::clone(&queue);
        let body = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| work(&of_thread)));
            of_thread.end(outcome.unwrap_or_else(|panic| Err(FfiError::panicked(&*panic))));
        };
        spawn("refrain-job", body)?;
        if let Some(registry) = registry {
            let child: Weak<Queue> = Arc::downgrade(&queue);
            registry.add(child);
        }
        let running = Guarded::new(Running { queue, is_read: AtomicBool::new(false) });
        Ok(Arc::new(Self { running, cancel, process: process::id() }))
    }

    /// Closes the job: cancels it, and drops its other events. It does not wait: the thread ends before the model's next layer, or a
    /// note's next file, and then gives back its session. Allowed twice.
    ///
    /// # Errors
    /// [`Forked`](ErrorKind::Forked), [`Reentrant`](ErrorKind::Reentrant).
    pub fn close(&self) -> Result<(), FfiError> {
        self.running.close()?;
        self.cancel.cancel();
        Ok(())
    }
}

#[cfg_attr(feature = "uniffi", uniffi::export)]
impl Job {
    /// The events since the last call. Waits for the first one, for at most so many milliseconds; 0 does not wait. Empty if none came in
    /// time, and after the last event, which is [`Event::Done`] or [`Event::Failed`].
    ///
    /// # Errors
    /// [`Busy`](ErrorKind::Busy): another thread or a listener takes the events. [`Closed`](ErrorKind::Closed),
    /// [`Forked`](ErrorKind::Forked), [`Reentrant`](ErrorKind::Reentrant).
    pub fn next_events(&self, max_wait_ms: u32) -> Result<Vec<Event>, FfiError> {
        self.running.call(|running| {
            let _reader = Reader::enter(running)?;
            Ok(running.queue.take(Instant::now() + Duration::from_millis(max_wait_ms.into())))
        })
    }

    /// Waits for the end of the job, and gives its result; again, if it is called again. It takes no events.
    ///
    /// # Errors
    /// That of [`Event::Failed`], such as [`Cancelled`](ErrorKind::Cancelled). Those of objects.
    pub fn wait(&self) -> Result<JobResult, FfiError> {
        self.running.call(|running| running.queue.outcome())
    }

    /// Gives all further events to a listener, in batches, on a thread of its own. The job then goes on if its object is dropped. If
    /// the listener throws, it is not called again, and the job fails with [`Listener`](ErrorKind::Listener), as [`wait`](Self::wait) and
    /// [`next_events`](Self::next_events) say.
    ///
    /// # Errors
    /// As [`next_events`](Self::next_events); [`WrongState`](ErrorKind::WrongState): the last event was taken, and the listener would never
    /// be called; the system gives no thread.
    pub fn listen(&self, listener: Arc<dyn EventListener>) -> Result<(), FfiError> {
        let running = self.running.get()?;
        let reader = Reader::enter(&running);
        // (Before the other reader's error: its thread may not have ended yet.)
        if lock(&running.queue.events).is_over {
            return Err(FfiError::new(ErrorKind::WrongState, "the last event of this job was taken"));
        }
        // (Held until the listener's thread ends.)
        mem::forget(reader?);
        let of_thread = Arc::clone(&running);
        let body = move || {
            let queue = &of_thread.queue;
            loop {
                let taken = queue.take(Instant::now() + Duration::from_secs(3600));
                if taken.is_empty() {
                    continue;
                }
                let is_last = taken.last().is_some_and(Event::is_last);
                let call = || guard::listening(|| listener.on_events(taken));
                match catch_unwind(AssertUnwindSafe(call)) {
                    Ok(true) => {}
                    Ok(false) => queue.cancel.cancel(),
                    // It is not called again.
                    Err(_) => {
                        queue.has_thrown.store(true, Ordering::Relaxed);
                        queue.cancel.cancel();
                        break;
                    }
                }
                if is_last {
                    break;
                }
            }
            of_thread.is_read.store(false, Ordering::Release);
        };
        spawn("refrain-events", body).inspect_err(|_| running.is_read.store(false, Ordering::Release))
    }

    /// Cancels the job, from any thread, a listener, a finaliser or a signal handler: it takes no lock. The job's last event is
    /// [`Event::Failed`] with [`Cancelled`](ErrorKind::Cancelled), unless it has ended before. Of a session, the text of its events stays.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Whether the last event was taken, or the job was closed.
    ///
    /// # Errors
    /// [`Forked`](ErrorKind::Forked), [`Reentrant`](ErrorKind::Reentrant).
    pub fn is_ended(&self) -> Result<bool, FfiError> {
        match self.running.get() {
            Ok(running) => Ok(lock(&running.queue.events).is_over),
            Err(error) if matches!(error.kind(), ErrorKind::Closed | ErrorKind::Poisoned) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl Child for Queue {
    fn close(&self) {
        self.cancel.cancel();
    }

    fn cancel(&self) -> bool {
        let is_running = self.is_running();
        self.cancel.cancel();
        is_running
    }

    fn is_running(&self) -> bool {
        lock(&self.events).outcome.is_none()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // In a fork there is nothing to stop. A listener goes on without the object.
        if self.process == process::id()
            && self.running.peek().is_none_or(|running| !running.is_read.load(Ordering::Relaxed))
        {
            self.cancel.cancel();
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), FfiError> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
    spawned
        .map(drop)
        .map_err(|error| FfiError::new(ErrorKind::Io, format!("no thread can be started: {error}")))
}
