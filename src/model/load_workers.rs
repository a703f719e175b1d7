//! The threads that read, convert and pack weights.
//!
//! Threads of `rayon`, for the time of loading only: a step's sections need workers that spin and own a part of the
//! work ([`Pool`](crate::kernels::Pool)), while parts of a tensor take milliseconds and differ in cost. Parts start in
//! the order of the file, so that reading from a disk stays sequential.

use std::sync::{Mutex, PoisonError};

use rayon::iter::{ParallelBridge, ParallelIterator};

use crate::kernels::FloatEnv;
use crate::kernels::has_room;

/// Threads, and one `S` of scratch for each.
pub(in crate::model) struct LoadWorkers<S> {
    /// `None`: the calling thread does everything.
    threads: Option<rayon::ThreadPool>,
    scratch: Vec<Mutex<S>>,
}

impl<S: Default + Send> LoadWorkers<S> {
    /// `n_threads` threads. If the system does not give them, the calling thread works alone.
    pub(in crate::model) fn new(n_threads: usize) -> Self {
        let build = || {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(n_threads);
            builder.thread_name(|i| format!("refrain-load-{i}")).build().ok()
        };
        let has_room = has_room(n_threads.saturating_mul(4 << 20));
        let threads = if n_threads > 1 && has_room { build() } else { None };
        let n_threads = threads.as_ref().map_or(1, rayon::ThreadPool::current_num_threads);
        Self { threads, scratch: (0..n_threads).map(|_| Mutex::default()).collect() }
    }

    pub(in crate::model) fn n_threads(&self) -> usize {
        self.scratch.len()
    }

    /// Calls `work` for each item, in the default floating-point environment. Stops at an error and returns one.
    pub(in crate::model) fn for_each<T: Send, E: Send>(
        &self,
        items: impl Iterator<Item = T> + Send,
        work: impl Fn(&mut S, T) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let with_scratch = |thread: usize, item| {
            let _env = FloatEnv::ieee();
            // Only this thread locks it.
            work(&mut self.scratch[thread].lock().unwrap_or_else(PoisonError::into_inner), item)
        };
        match &self.threads {
            None => items.into_iter().try_for_each(|item| with_scratch(0, item)),
            Some(threads) => threads.install(|| {
                let thread = || rayon::current_thread_index().unwrap_or(0);
                items.par_bridge().try_for_each(|item| with_scratch(thread(), item))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[test]
    fn every_item_is_worked_on_once_whatever_the_threads() {
        for n_threads in [1, 2, 5] {
            let workers = LoadWorkers::<usize>::new(n_threads);
            assert_eq!(workers.n_threads(), n_threads);
            for n_items in [0, 1, 2, 100] {
                let seen: Vec<_> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
                let done: Result<(), ()> = workers.for_each(0..n_items, |scratch, i| {
                    *scratch += 1;
                    seen[i].fetch_add(1, Relaxed);
                    Ok(())
                });
                assert!(done.is_ok() && seen.iter().all(|n| n.load(Relaxed) == 1), "{n_threads} {n_items}");
            }
        }
    }

    #[test]
    fn an_error_ends_the_work() {
        for n_threads in [1, 3] {
            let workers = LoadWorkers::<()>::new(n_threads);
            let failed = workers.for_each(0..1000, |_, i| if i == 7 { Err(i) } else { Ok(()) });
            assert_eq!(failed, Err(7));
            // Another run still works.
            assert_eq!(workers.for_each(0..10, |_, _| Ok::<(), usize>(())), Ok(()));
        }
    }
}
