//! Threads of measurements and replays.

/// Runs `work` on this thread and on up to `n_threads` − 1 others; fewer, if the system refuses them. `work` takes its share
/// from a common list.
pub(crate) fn run(n_threads: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, &work).ok();
        let others: Vec<_> = (1..n_threads.max(1)).map_while(start).collect();
        work();
        others.into_iter().for_each(|thread| thread.join().expect("the work does not panic"));
    });
}
