//! Threads that help with many small computations of a drafter.
//!
//! They wait between calls: starting a thread takes longer than a proposal. Items are taken one by one, so a helper whose core is busy
//! elsewhere holds nobody up for longer than its item.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;

type Job = Arc<dyn Fn() + Send + Sync>;

/// Helpers of one owner, started by the first call that needs them. They end with their owner.
#[derive(Default)]
pub(crate) struct Helpers(OnceLock<Vec<mpsc::Sender<Job>>>);

/// The most threads of a call, the caller's included: more would wait for memory.
const THREADS_MAX: usize = 8;

/// Results so far, with the indices of their items.
struct Done<R> {
    results: Mutex<Vec<(usize, R)>>,
    is_complete: Condvar,
}

impl Helpers {
    /// Calls `work`, which must not panic, for each item, in up to one thread for every `n_each` items. Returns the results in order.
    pub(crate) fn map<T, R>(
        &self,
        items: Vec<T>,
        n_each: usize,
        work: impl Fn(&T) -> R + Send + Sync + 'static,
    ) -> Vec<R>
    where
        T: Send + Sync + 'static,
        R: Send + 'static,
    {
        let n_items = items.len();
        let n_helpers = (n_items / n_each).saturating_sub(1);
        if n_helpers == 0 {
            return items.iter().map(work).collect();
        }
        let done =
            Arc::new(Done { results: Mutex::new(Vec::with_capacity(n_items)), is_complete: Condvar::new() });
        let (next, theirs) = (AtomicUsize::new(0), Arc::clone(&done));
        let job: Job = Arc::new(move || {
            let mut results = Vec::new();
            while let Some((index, item)) = next_of(&items, &next) {
                results.push((index, work(item)));
            }
            let mut all = lock(&theirs.results);
            all.append(&mut results);
            if all.len() == items.len() {
                theirs.is_complete.notify_all();
            }
        });
        for helper in self.0.get_or_init(start).iter().take(n_helpers) {
            // A helper that is gone does not help.
            let _ = helper.send(Arc::clone(&job));
        }
        job();
        let is_open = |results: &mut Vec<(usize, R)>| results.len() < n_items;
        let all = done.is_complete.wait_while(lock(&done.results), is_open);
        let mut results = std::mem::take(&mut *all.unwrap_or_else(PoisonError::into_inner));
        results.sort_unstable_by_key(|&(index, _)| index);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

fn next_of<'a, T>(items: &'a [T], next: &AtomicUsize) -> Option<(usize, &'a T)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    items.get(index).map(|item| (index, item))
}

fn start() -> Vec<mpsc::Sender<Job>> {
    let n_threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let helper = |_| {
        let (sender, jobs) = mpsc::channel::<Job>();
        let started = thread::Builder::new().name("refrain-drafts".to_owned());
        started.spawn(move || jobs.iter().for_each(|job| job())).ok().map(|_| sender)
    };
    // Where no thread can be started, the callers work alone.
    (1..n_threads).filter_map(helper).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
