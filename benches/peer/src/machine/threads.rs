//! Work on several threads at once.

/// Runs `work` on `n_threads` threads that start together, and returns the seconds until the end of the last one.
pub(super) fn on_threads(n_threads: usize, work: &(dyn Fn(usize) + Sync)) -> f64 {
    let start = std::sync::Barrier::new(n_threads);
    let run = |thread_idx| {
        start.wait();
        let begin = std::time::Instant::now();
        work(thread_idx);
        (begin, std::time::Instant::now())
    };
    let spans: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads).map(|i| scope.spawn(move || run(i))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a measuring thread ends")).collect()
    });
    let begin = spans.iter().map(|span| span.0).min().expect("at least one thread");
    let end = spans.iter().map(|span| span.1).max().expect("at least one thread");
    (end - begin).as_secs_f64()
}
