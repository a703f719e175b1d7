//! The threads that read and divide files.
//!
//! A pool of its own: the global one of `rayon` panics where the system refuses its threads.

use std::sync::OnceLock;

use rayon::ThreadPool;
use rayon::prelude::*;
use refrain::internals::kernels::has_room;

/// Address space of a thread's stack and of its first allocations.
const THREAD_BYTES: usize = 4 << 20;

/// Calls `f` for each item, on all cores, or on this thread if the system gives no others.
pub(super) fn map<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Send + Sync) -> Vec<R> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let pool = POOL.get_or_init(|| {
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        let builder = rayon::ThreadPoolBuilder::new().num_threads(n_threads);
        has_room(n_threads.saturating_mul(THREAD_BYTES))
            .then(|| builder.thread_name(|i| format!("refrain-notes-{i}")).build().ok())
            .flatten()
    });
    match pool {
        Some(pool) => pool.install(|| items.par_iter().map(f).collect()),
        None => items.iter().map(f).collect(),
    }
}
