//! Threads of measurements and replays.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The results of `work` for each of `items`, in their order. The work is done on this thread and on up to `n_threads` − 1
/// others; fewer, if the system refuses them. Threads take items from the front.
pub(crate) fn map<T: Sync, R: Send>(n_threads: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let take_items = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            let result = work(item);
            done.lock().expect("no thread panics while it holds the lock").push((index, result));
        }
    };
    std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, take_items).ok();
        let others: Vec<_> = (1..n_threads.max(1)).map_while(start).collect();
        take_items();
        others.into_iter().for_each(|thread| thread.join().expect("the work does not panic"));
    });
    let mut done = done.into_inner().expect("no thread panics while it holds the lock");
    done.sort_unstable_by_key(|&(index, _)| index);
    done.into_iter().map(|(_, result)| result).collect()
}
