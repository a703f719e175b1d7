//! The time of parallel sections when one worker is slower than the others, beside the ideal: all work divided by the
//! sum of the speeds.
//!
//! ```sh
//! cargo bench --bench unequal                 # one row per way of being slow
//! cargo bench --bench unequal -- third        # those whose name contains the word
//! ```
//!
//! - *a third*: the last worker does three times the work for each item, as on a slow core.
//! - *a third, the caller*: the same of the calling thread.
//! - *neighbours* (Linux): two busy threads are pinned to the core of the last worker, which is pinned there too and has
//!   a third of its time. *not pinned*: the same neighbours, and the system may move the worker.
//!
//! An item is a fixed amount of arithmetic. A section has 64 items, or 512 small ones, and takes hundreds of µs: the work
//! of a matrix product of a 1.5B model. Sections follow each other as in a step. Times are means over all sections of a
//! round, in µs, of the median round; the ideal is measured on one thread before each round.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use refrain::internals::kernels::Pool;

const ROUNDS: usize = 9;

/// Slow in which way.
#[derive(Clone, Copy, PartialEq)]
enum Slow {
    Nobody,
    Worker,
    Caller,
    Neighbours { pinned: bool },
}

fn main() {
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{n_threads} threads");
    println!("| slow | items | item µs | ideal µs | section µs | ratio |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    let word = std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default();
    for (n_items, n_steps) in [(64, 4000), (512, 500)] {
        for (name, slow) in [
            ("nobody (not a third)", Slow::Nobody),
            ("a third", Slow::Worker),
            ("a third, the caller", Slow::Caller),
            ("neighbours", Slow::Neighbours { pinned: true }),
            ("neighbours, not pinned", Slow::Neighbours { pinned: false }),
        ] {
            if !name.contains(&word) {
                continue;
            }
            let mut rounds: Vec<[f64; 3]> =
                (0..ROUNDS).map(|_| round(n_threads, n_items, n_steps, slow)).collect();
            rounds.sort_by(|a, b| (a[2] / a[1]).total_cmp(&(b[2] / b[1])));
            let [item, ideal, section] = rounds[ROUNDS / 2];
            println!(
                "| {name} | {n_items} | {item:.1} | {ideal:.1} | {section:.1} | {:.2} |",
                section / ideal
            );
        }
    }
}

/// Microseconds of an item, of the ideal section, and of a section.
fn round(n_threads: usize, n_items: usize, n_steps: u64, slow: Slow) -> [f64; 3] {
    // The time of an item while nothing else runs here.
    let start = Instant::now();
    (0..2_000).for_each(|_| work(n_steps));
    let item = start.elapsed().as_secs_f64() * 1e6 / 2_000.0;
    let fast = (n_threads - 1) as f64;
    let speeds = if slow == Slow::Nobody { fast + 1.0 } else { fast + 1.0 / 3.0 };
    let ideal = n_items as f64 * item / speeds;

    let pool = Pool::new(n_threads);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let last = n_threads - 1;
    let section = std::thread::scope(|scope| {
        if let Slow::Neighbours { pinned } = slow {
            for _ in 0..2 {
                scope.spawn(|| {
                    pin(last);
                    while !stop.load(Relaxed) {
                        work(1000);
                    }
                });
            }
            if pinned {
                pin(0);
                // Each worker pins itself, in a section that waits for all of them.
                let here = AtomicU64::new(0);
                pool.run(n_threads, &|worker, range| {
                    pin(worker);
                    here.fetch_add(range.len() as u64, Relaxed);
                    let start = Instant::now();
                    while here.load(Relaxed) < n_threads as u64 && start.elapsed().as_millis() < 50 {}
                });
            }
        }
        let run = || {
            pool.run(n_items, &|worker, range| {
                let is_slow = match slow {
                    Slow::Worker => worker == last,
                    Slow::Caller => worker == 0,
                    Slow::Nobody | Slow::Neighbours { .. } => false,
                };
                done.fetch_add(range.len() as u64, Relaxed);
                range.for_each(|_| work(if is_slow { 3 * n_steps } else { n_steps }));
            });
        };
        // As long as speeds need to be measured.
        (0..100).for_each(|_| run());
        let n_sections = (200_000.0 / ideal).max(100.0) as u32;
        let start = Instant::now();
        (0..n_sections).for_each(|_| run());
        let section = start.elapsed().as_secs_f64() * 1e6 / f64::from(n_sections);
        assert_eq!(done.load(Relaxed), n_items as u64 * (100 + u64::from(n_sections)), "every item once");
        stop.store(true, Relaxed);
        section
    });
    unpin(n_threads);
    [item, ideal, section]
}

fn work(n_steps: u64) {
    let mut x = black_box(n_steps);
    for _ in 0..n_steps {
        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

#[cfg(target_os = "linux")]
fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("the core exists");
}

#[cfg(target_os = "linux")]
fn unpin(n_cpus: usize) {
    let mut set = rustix::thread::CpuSet::new();
    (0..n_cpus).for_each(|cpu| set.set(cpu));
    rustix::thread::sched_setaffinity(None, &set).expect("the cores exist");
}

#[cfg(not(target_os = "linux"))]
fn pin(_cpu: usize) {}

#[cfg(not(target_os = "linux"))]
fn unpin(_n_cpus: usize) {}
