//! Ends calls of the parser that take too long: one thread for all parsers, which sleeps while none runs.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use llguidance::CancellationHandle;

use crate::limits::MASK_TIME_MAX;

#[derive(Default)]
struct Watch {
    running: Mutex<Running>,
    has_begun: Condvar,
}

/// Time is counted in steps of this length, so that the time of a process that is stopped does not count.
pub(crate) const TICK: Duration = Duration::from_millis(250);

struct Running<H = CancellationHandle> {
    n_calls: u64,
    /// Steps of time while calls ran.
    n_ticks: u32,
    /// Each with the step at which it ends.
    calls: BTreeMap<u64, (u32, H)>,
}

impl<H> Default for Running<H> {
    fn default() -> Self {
        Self { n_calls: 0, n_ticks: 0, calls: BTreeMap::new() }
    }
}

impl<H> Running<H> {
    fn begin(&mut self, handle: H) -> u64 {
        let n_steps = MASK_TIME_MAX.div_duration_f64(TICK).ceil() as u32;
        self.n_calls += 1;
        // The first step may have begun long ago.
        self.calls.insert(self.n_calls, (self.n_ticks.wrapping_add(n_steps + 1), handle));
        self.n_calls
    }

    /// A step has ended: the calls that are overdue.
    fn tick(&mut self) -> Vec<H> {
        self.n_ticks = self.n_ticks.wrapping_add(1);
        let mut overdue = Vec::new();
        // Calls have the same time, so the oldest one ends first.
        while self.calls.first_key_value().is_some_and(|(_, (end, _))| *end == self.n_ticks) {
            overdue.extend(self.calls.pop_first().map(|(_, (_, handle))| handle));
        }
        overdue
    }
}

/// A call that is watched until this is dropped.
pub(crate) struct Watched(u64);

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels the calls that are overdue, for ever.
    fn run(&self) {
        let mut running = self.lock();
        loop {
            if running.calls.is_empty() {
                running = self.has_begun.wait(running).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.has_begun.wait_timeout(running, TICK);
            let timeout;
            (running, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                running.tick().iter().for_each(CancellationHandle::cancel);
            }
        }
    }
}

fn watch() -> &'static Watch {
    static WATCH: OnceLock<&'static Watch> = OnceLock::new();
    WATCH.get_or_init(|| {
        let watch: &'static Watch = Box::leak(Box::default());
        // Without this thread, the limits of work remain.
        let thread = thread::Builder::new().name("refrain-grammar-watch".to_owned());
        let _ = thread.spawn(|| watch.run());
        watch
    })
}

impl Watched {
    /// A call begins that `handle` can cancel.
    pub(crate) fn begin(handle: &CancellationHandle) -> Self {
        let watch = watch();
        let mut running = watch.lock();
        let was_idle = running.calls.is_empty();
        let call = running.begin(handle.clone());
        drop(running);
        if was_idle {
            watch.has_begun.notify_one();
        }
        Self(call)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        watch().lock().calls.remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_end_after_so_many_steps() {
        let mut running = Running::default();
        let n_steps = (MASK_TIME_MAX.as_millis() / TICK.as_millis()) as usize;
        let ended = running.begin("ended");
        running.begin("a");
        running.calls.remove(&ended);
        assert!(running.tick().is_empty());
        running.begin("b");
        assert!((0..n_steps - 1).all(|_| running.tick().is_empty()));
        assert_eq!(running.tick(), ["a"]);
        assert_eq!(running.tick(), ["b"]);
        assert!(running.calls.is_empty());
    }
}
