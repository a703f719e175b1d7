//! Ends calls of the parser that take too long: one thread for all parsers, which sleeps while none runs.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use llguidance::CancellationHandle;

use crate::limits::MASK_TIME_MAX;

#[derive(Default)]
struct Watch {
    running: Mutex<Running>,
    has_begun: Condvar,
}

#[derive(Default)]
struct Running {
    n_calls: u64,
    calls: BTreeMap<u64, (Instant, CancellationHandle)>,
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
            // Calls have the same time, so the oldest one ends first.
            let oldest = running.calls.first_key_value().map(|(_, (end, _))| *end);
            let now = Instant::now();
            match oldest {
                None => running = self.has_begun.wait(running).unwrap_or_else(PoisonError::into_inner),
                Some(end) if end <= now => {
                    if let Some((_, (_, handle))) = running.calls.pop_first() {
                        handle.cancel();
                    }
                }
                Some(end) => {
                    let waited = self.has_begun.wait_timeout(running, end - now);
                    (running, _) = waited.unwrap_or_else(PoisonError::into_inner);
                }
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
        running.n_calls += 1;
        let call = running.n_calls;
        let was_idle = running.calls.is_empty();
        running.calls.insert(call, (Instant::now() + MASK_TIME_MAX, handle.clone()));
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
