//! Work that nobody waits for, as the scheduler of a phone wants it: a list of tasks that runs in slices of time, while the rules of a
//! plan allow it, and goes on after the process was killed.
//!
//! Nothing here asks the system: the app gives the conditions as values. Nothing is written besides the results: an index is committed
//! from time to time, a prompt is kept from time to time while it is computed, and a summary when it is complete. So an app that was killed
//! gives the same list again, and what is done costs a look.

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use refrain::device::{MemoryPressure, ThermalState};
use refrain_index::notes::{NotesOptions, NotesWriter};

use crate::assistant::Assistant;
use crate::error::TaskError;
use crate::job::Job;
use crate::options::{JobOptions, Priority};
use crate::step::JobEvent;
use crate::tasks::{Prefetch, SummarizeRequest};

/// The rules of background work.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct BackgroundPlan {
    /// Time of one [run](Background::run). Default: 30 seconds, what a phone grants a refresh.
    pub budget: Duration,
    /// Whether it waits until nobody uses the device. Default `true`.
    pub needs_idle: bool,
    /// Whether it waits for a charger. Default `true`.
    pub needs_charging: bool,
    /// The hottest state in which it runs. Default: [`Fair`](ThermalState::Fair).
    pub thermal_max: ThermalState,
    /// The highest memory pressure under which it runs. Default: [`Normal`](MemoryPressure::Normal).
    pub pressure_max: MemoryPressure,
    /// Memory that the system must have left, in bytes, if the app reports it. Default 0.
    pub available_bytes_min: u64,
}

impl Default for BackgroundPlan {
    fn default() -> Self {
        Self {
            budget: Duration::from_secs(30),
            needs_idle: true,
            needs_charging: true,
            thermal_max: ThermalState::Fair,
            pressure_max: MemoryPressure::Normal,
            available_bytes_min: 0,
        }
    }
}

/// The device as the app's system reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conditions {
    /// Whether nobody uses the device. Default `true`.
    pub is_idle: bool,
    /// Whether it is on a charger. Default `true`.
    pub is_charging: bool,
    /// Its heat. Default: nominal.
    pub thermal: ThermalState,
    /// The pressure on its memory. Default: normal.
    pub pressure: MemoryPressure,
    /// Memory that is left, in bytes; `None`: unknown.
    pub available_bytes: Option<u64>,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            is_idle: true,
            is_charging: true,
            thermal: ThermalState::default(),
            pressure: MemoryPressure::default(),
            available_bytes: None,
        }
    }
}

/// The rule that keeps background work from running now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pause {
    /// Somebody uses the device.
    InUse,
    /// It is not on a charger.
    NotCharging,
    /// It is too hot.
    Heat,
    /// The pressure on its memory is too high, or too little is left. What the work held in memory was given back.
    Memory,
}

impl BackgroundPlan {
    /// The first rule that these conditions break, if there is one.
    pub fn pause(&self, conditions: &Conditions) -> Option<Pause> {
        let is_short = conditions.available_bytes.is_some_and(|bytes| bytes < self.available_bytes_min);
        match () {
            () if conditions.pressure > self.pressure_max || is_short => Some(Pause::Memory),
            () if conditions.thermal > self.thermal_max => Some(Pause::Heat),
            () if self.needs_charging && !conditions.is_charging => Some(Pause::NotCharging),
            () if self.needs_idle && !conditions.is_idle => Some(Pause::InUse),
            () => None,
        }
    }
}

/// A task that nobody waits for.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum BackgroundTask {
    /// Brings the index of the assistant's notes up to date, with vectors if the assistant has an embedder.
    Index,
    /// Computes the prompt of a request and keeps it ([`Assistant::prefetch`]).
    Prefetch(Prefetch),
    /// Makes a summary and keeps it ([`Assistant::summarize`]), unless the store has one of the same text and wish.
    Summarize(SummarizeRequest),
}

/// Background work of an assistant: tasks in their order. See [`BackgroundPlan`].
///
/// ```no_run
/// use refrain_assistant::{Assistant, Background, BackgroundPlan, BackgroundTask, Conditions, SummarizeRequest};
///
/// # fn conditions() -> Conditions { Conditions::default() }
/// # fn wake(assistant: Assistant) {
/// let mut work = Background::new(&assistant, BackgroundPlan::default());
/// work.add(BackgroundTask::Index);
/// for file in assistant.note_files().unwrap_or_default() {
///     work.add(BackgroundTask::Summarize(SummarizeRequest::notes([file.path])));
/// }
/// let ran = work.run(conditions);
/// if ran.n_left > 0 {
///     // The app's scheduler wakes the app again; a killed app gives the same tasks again.
/// }
/// # }
/// ```
pub struct Background {
    assistant: Assistant,
    plan: BackgroundPlan,
    n_added: usize,
    waiting: VecDeque<(usize, BackgroundTask)>,
    running: Option<Running>,
}

/// What one run has done.
#[derive(Debug)]
#[non_exhaustive]
pub struct BackgroundRun {
    /// The tasks that are done, by the number that [`Background::add`] gave.
    pub done: Vec<usize>,
    /// Those of them that were done before, for example before the process was killed.
    pub already: Vec<usize>,
    /// The tasks that failed, and why. They are not tried again.
    pub failed: Vec<(usize, TaskError)>,
    /// Tasks that are left, the one that has begun included.
    pub n_left: usize,
    /// The rule that ended the run; `None`: no task is left, or the time is over.
    pub pause: Option<Pause>,
    /// The time it took. It may exceed the budget by one pass of the model, or one batch of files.
    pub time: Duration,
}

/// A task that has begun. It is kept between runs.
struct Running {
    number: usize,
    task: BackgroundTask,
    steps: Box<dyn Steps>,
}

/// A task in steps.
trait Steps: Send {
    /// Makes a step: a pass of the model at most. `left`: the time that is left.
    fn step(&mut self, left: Duration) -> Result<Step, TaskError>;
}

enum Step {
    GoesOn,
    Done,
    /// Nothing was to do.
    WasDone,
}

impl Background {
    /// No work yet.
    pub fn new(assistant: &Assistant, plan: BackgroundPlan) -> Self {
        let (waiting, running) = (VecDeque::new(), None);
        Self { assistant: assistant.clone(), plan, n_added: 0, waiting, running }
    }

    /// Adds a task behind the others, and returns its number, from 0.
    pub fn add(&mut self, task: BackgroundTask) -> usize {
        let number = self.n_added;
        self.n_added += 1;
        self.waiting.push_back((number, task));
        number
    }

    /// Tasks that are left.
    pub fn n_left(&self) -> usize {
        self.waiting.len() + usize::from(self.running.is_some())
    }

    /// Works until no task is left, the time is over, or a rule is broken. `conditions` is asked before every step, which is a pass of the
    /// model at most; no step begins for which the time that is left is shorter than the last one took. At least one step is made if the
    /// rules allow it, so that work goes on with any budget.
    ///
    /// Jobs of the assistant go before its background work, so a run may wait for them.
    pub fn run(&mut self, conditions: impl FnMut() -> Conditions) -> BackgroundRun {
        let start = Instant::now();
        self.run_by(conditions, || start.elapsed())
    }

    /// As [`run`](Self::run) with this clock, which may go back.
    fn run_by(
        &mut self,
        mut conditions: impl FnMut() -> Conditions,
        mut clock: impl FnMut() -> Duration,
    ) -> BackgroundRun {
        let (mut done, mut already, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let (mut last, mut time) = (clock(), Duration::ZERO);
        let mut step_time: Option<Duration> = None;
        let mut pause = None;
        while self.n_left() > 0 {
            pause = self.plan.pause(&conditions());
            if pause.is_some() {
                break;
            }
            let left = self.plan.budget.saturating_sub(time);
            if step_time.is_some_and(|step_time| left < step_time || left.is_zero()) {
                break;
            }
            match self.step(left) {
                Ok(None) => {}
                Ok(Some((number, was_done))) => {
                    done.push(number);
                    already.extend(was_done.then_some(number));
                }
                Err((number, error)) => failed.push((number, error)),
            }
            let now = clock();
            // A clock that goes back gives no time.
            let took = now.saturating_sub(last);
            (last, time) = (now, time.saturating_add(took));
            // Events between two passes take no time: the next pass may come behind any of them.
            step_time = Some(step_time.unwrap_or_default().mul_f32(0.95).max(took));
        }
        if pause == Some(Pause::Memory) {
            self.release_memory();
        }
        BackgroundRun { done, already, failed, n_left: self.n_left(), pause, time }
    }

    /// Gives the memory of a task that has begun back. It begins again with what is kept of it.
    pub fn release_memory(&mut self) {
        if let Some(Running { number, task, .. }) = self.running.take() {
            self.waiting.push_front((number, task));
        }
    }

    /// A step of the task that runs, or of the next one. A number: the task is done, and whether it was before.
    fn step(&mut self, left: Duration) -> Result<Option<(usize, bool)>, (usize, TaskError)> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => {
                let Some((number, task)) = self.waiting.pop_front() else { return Ok(None) };
                match self.start(&task) {
                    Ok(Some(steps)) => Running { number, task, steps },
                    Ok(None) => return Ok(Some((number, true))),
                    Err(error) => return Err((number, error)),
                }
            }
        };
        match running.steps.step(left).map_err(|error| (running.number, error))? {
            Step::Done => Ok(Some((running.number, false))),
            Step::WasDone => Ok(Some((running.number, true))),
            Step::GoesOn => {
                self.running = Some(running);
                Ok(None)
            }
        }
    }

    /// `None`: there is nothing to do.
    fn start(&self, task: &BackgroundTask) -> Result<Option<Box<dyn Steps>>, TaskError> {
        let assistant = &self.assistant;
        let options = || JobOptions { priority: Priority::Background, ..JobOptions::default() };
        Ok(Some(match task {
            BackgroundTask::Index => Box::new(Indexing { assistant: assistant.clone(), has_begun: false }),
            BackgroundTask::Prefetch(request) => {
                let job = assistant.prefetch(request.clone(), options())?;
                Box::new(Computing { job, has_computed: false, counts_prefill: true })
            }
            BackgroundTask::Summarize(request) => {
                if assistant.store().is_none() {
                    return Err(TaskError::NoStore);
                }
                if assistant.has_summary(request)? {
                    return Ok(None);
                }
                let job = assistant.summarize(request.clone(), options())?;
                Box::new(Computing { job, has_computed: true, counts_prefill: false })
            }
        }))
    }
}

/// A job in the background.
struct Computing<T> {
    job: Job<T>,
    /// Whether anything was computed that was not kept before.
    has_computed: bool,
    /// Whether a chunk of the prompt counts: the newest token is computed in any case.
    counts_prefill: bool,
}

impl<T: Send> Steps for Computing<T> {
    fn step(&mut self, _left: Duration) -> Result<Step, TaskError> {
        match self.job.next().transpose()? {
            Some(JobEvent::Done(_)) | None if self.has_computed => Ok(Step::Done),
            Some(JobEvent::Done(_)) | None => Ok(Step::WasDone),
            Some(JobEvent::Prefill { .. }) if self.counts_prefill => {
                self.has_computed = true;
                Ok(Step::GoesOn)
            }
            Some(_) => Ok(Step::GoesOn),
        }
    }
}

/// An update of the index of notes. Each step reads files until the time is over; what was read is committed.
struct Indexing {
    assistant: Assistant,
    /// Whether a step has changed the index.
    has_begun: bool,
}

impl Steps for Indexing {
    fn step(&mut self, left: Duration) -> Result<Step, TaskError> {
        let Self { assistant, has_begun } = self;
        let folder = assistant.notes_folder().ok_or(TaskError::NoNotes)?;
        let options = NotesOptions { key: assistant.key().copied(), ..NotesOptions::default() };
        let mut writer = NotesWriter::open(folder, options)?;
        let start = Instant::now();
        // The first batch is read with any budget.
        let within = || {
            let mut n_asked = 0;
            move || {
                n_asked += 1;
                n_asked <= 1 || start.elapsed() < left
            }
        };
        let flow = |goes_on: bool| if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let mut goes_on = within();
        let report = writer.update(&mut |_, _| flow(goes_on()))?;
        *has_begun |= report.is_change();
        let mut is_complete = !report.is_incomplete;
        if let Some(embedder) = assistant.embedder().filter(|_| is_complete) {
            let mut goes_on = within();
            let mut has_all = true;
            let n_embedded = writer.embed(embedder, &mut |done, all| {
                has_all = goes_on() || done == all;
                flow(has_all)
            })?;
            *has_begun |= n_embedded > 0;
            is_complete = has_all;
        }
        writer.leave()?;
        if let Some(notes) = assistant.notes() {
            notes.refresh()?;
        }
        Ok(match (is_complete, *has_begun) {
            (false, _) => Step::GoesOn,
            (true, true) => Step::Done,
            (true, false) => Step::WasDone,
        })
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background")
            .field("plan", &self.plan)
            .field("n_left", &self.n_left())
            .field("is_running", &self.running.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use refrain::{Engine, EngineOptions};

    use super::*;
    use crate::passage::Passage;

    /// With a text that a summary is made of, again and again.
    fn work(budget: Duration) -> (tempfile::TempDir, Background) {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
        let engine =
            Engine::open(model, EngineOptions { n_threads: Some(1), ..EngineOptions::default() }).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let assistant = Assistant::builder(engine).store(folder.path()).build().unwrap();
        let mut work = Background::new(&assistant, BackgroundPlan { budget, ..BackgroundPlan::default() });
        for _ in 0..3 {
            let text = Passage::new("Trip", "The trip to Aniarda costs 820 euros.");
            work.add(BackgroundTask::Summarize(SummarizeRequest::texts([text])));
        }
        (folder, work)
    }

    #[test]
    fn a_clock_that_goes_back_or_stands_still_hangs_nothing() {
        for back in [Duration::from_secs(3600), Duration::ZERO] {
            let (_folder, mut work) = work(Duration::from_millis(1));
            let mut now = Duration::from_secs(1 << 40);
            let run = work.run_by(Conditions::default, || {
                now -= back;
                now
            });
            assert_eq!((run.done.len(), run.n_left, run.time), (3, 0, Duration::ZERO));
        }
    }

    #[test]
    fn work_moves_to_the_thread_of_a_scheduler() {
        fn is_send<T: Send>(_: &T) {}
        let (_folder, work) = work(Duration::ZERO);
        is_send(&work);
    }

    #[test]
    fn no_step_begins_for_which_the_time_is_too_short() {
        let second = Duration::from_secs(1);
        let (_folder, mut work) = work(5 * second);
        let mut clock = |step: Duration| {
            let (mut now, mut n_steps) = (Duration::ZERO, 0);
            let run = work.run_by(
                || {
                    n_steps += 1;
                    Conditions::default()
                },
                || {
                    now += step;
                    now
                },
            );
            (run.time, n_steps)
        };
        assert_eq!(clock(second), (5 * second, 6), "the last question comes before the end is seen");
        assert_eq!(clock(2 * second), (4 * second, 3), "a third step would take too long");
        // A clock that jumps ahead ends the run.
        assert_eq!(clock(100 * second), (100 * second, 2));
        assert_eq!(clock(Duration::MAX / 4), (Duration::MAX / 4, 2));
    }
}
