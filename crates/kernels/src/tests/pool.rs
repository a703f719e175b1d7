//! The pool: every item computed once, panics, nesting, several callers, sleeping and waking.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::Pool;

#[test]
fn every_item_once() {
    for n_threads in 1..=5 {
        let pool = Pool::new(n_threads);
        assert_eq!(pool.n_threads(), n_threads);
        for n_items in (0..12).chain([100, if cfg!(miri) { 201 } else { 1001 }]) {
            let hits: Vec<AtomicUsize> = (0..n_items).map(|_| AtomicUsize::new(0)).collect();
            pool.run(n_items, &|worker, range| {
                assert!(worker < n_threads && !range.is_empty());
                for item in range {
                    hits[item].fetch_add(1, SeqCst);
                }
            });
            assert!(hits.iter().all(|hit| hit.load(SeqCst) == 1), "{n_threads} threads, {n_items} items");
        }
    }
}

#[test]
fn a_worker_that_stands_still_is_not_waited_for() {
    let pool = Pool::new(2);
    // One thread's item ends only when all others are done, whichever threads compute them.
    let done = AtomicUsize::new(0);
    for held in [0, 50, 99] {
        done.store(0, SeqCst);
        pool.run(100, &|_, range| {
            for item in range.clone() {
                let mut waited = 0;
                // Later items of its own chunk cannot be computed by other threads.
                while item == held && done.load(SeqCst) < 100 - range.len() && waited < 2000 {
                    std::thread::sleep(Duration::from_millis(1));
                    waited += 1;
                }
                assert!(waited < 2000, "nobody stole the other {} items", 100 - done.load(SeqCst));
                done.fetch_add(1, SeqCst);
            }
        });
        assert_eq!(done.load(SeqCst), 100);
    }
}

#[test]
fn a_worker_that_delays_sections_rests_and_is_tried_again() {
    let pool = Pool::new(2);
    let came = AtomicBool::new(false);
    // The worker stands still in each chunk, as if another program had its core. The caller waits until it has come.
    let comes = || {
        came.store(false, SeqCst);
        let hits: [AtomicUsize; 8] = Default::default();
        pool.run(8, &|worker, range| {
            let is_first = range.start == 0;
            range.for_each(|item| _ = hits[item].fetch_add(1, SeqCst));
            if worker == 1 {
                came.store(true, SeqCst);
                std::thread::sleep(Duration::from_millis(15));
            }
            let start = Instant::now();
            while is_first && !came.load(SeqCst) && start.elapsed() < Duration::from_millis(50) {
                std::thread::yield_now();
            }
        });
        assert!(hits.iter().all(|hit| hit.load(SeqCst) == 1));
        came.load(SeqCst)
    };
    let sections: Vec<bool> = (0..40).map(|_| comes()).collect();
    let rested = sections.iter().skip_while(|&&comes| !comes).position(|&comes| !comes);
    let rested = rested.expect("the worker is left out");
    assert!(sections[rested..].contains(&true), "{sections:?}");
}

#[test]
fn workers_beyond_the_limit_take_no_part_until_it_is_lifted() {
    let pool = Arc::new(Pool::new(4));
    let n_sections = if cfg!(miri) { 5 } else { 200 };
    let run = |n_threads: usize| {
        pool.limit(n_threads);
        let sections: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..n_sections {
            pool.run(100, &|worker, range| {
                assert!(worker < n_threads.max(1), "worker {worker} of {n_threads}");
                range.for_each(|item| _ = sections[item].fetch_add(1, SeqCst));
            });
        }
        assert!(sections.iter().all(|n| n.load(SeqCst) == n_sections), "{n_threads} threads");
    };
    for n_threads in [4, 2, 3, 1, 0, 4, 1] {
        run(n_threads);
    }
    // From another thread, during sections.
    let other = Arc::clone(&pool);
    let limits = std::thread::spawn(move || {
        (0..n_sections).for_each(|i| {
            other.limit(i % 5);
            std::thread::yield_now();
        });
    });
    for _ in 0..n_sections {
        let n_done = AtomicUsize::new(0);
        pool.run(50, &|_, range| _ = n_done.fetch_add(range.len(), SeqCst));
        assert_eq!(n_done.load(SeqCst), 50);
    }
    limits.join().unwrap();
    pool.limit(1);
    drop(pool); // sleeping workers end too
}

#[test]
fn ranges_begin_at_tiles() {
    for n_threads in [1, 2, 3] {
        let pool = Pool::new(n_threads);
        for (n_items, tile) in [(1, 4), (4, 4), (5, 4), (72, 4), (73, 4), (1000, 7), (3, 1)] {
            let n_done = AtomicUsize::new(0);
            pool.run_tiled(n_items, tile, &|_, range| {
                assert!(range.start.is_multiple_of(tile) && range.end <= n_items);
                n_done.fetch_add(range.len(), SeqCst);
            });
            assert_eq!(n_done.load(SeqCst), n_items);
        }
    }
}

#[test]
fn for_rows_gives_each_row() {
    let pool = Pool::new(3);
    let mut out = vec![0.0; 50];
    pool.for_rows(&mut out, 5, &|row, out| out.fill(row as f32));
    assert!(out.iter().enumerate().all(|(i, x)| *x == (i / 5) as f32));
    pool.for_rows(&mut [], 0, &|_, _| unreachable!());
}

#[test]
fn panics_propagate_and_the_pool_stays_usable() {
    let pool = Pool::new(3);
    for bad in 0..3 {
        // One item per chunk, so a panic of one item prevents no other item.
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(3, &|_, range| assert!(!range.contains(&bad), "item {bad}"))
        }));
        let message = *result.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(message, format!("item {bad}"));
        let sum = AtomicUsize::new(0);
        pool.run(10, &|_, range| {
            sum.fetch_add(range.sum(), SeqCst);
        });
        assert_eq!(sum.load(SeqCst), 45);
    }
}

#[test]
fn nested_sections_run_where_they_are() {
    let pool = Pool::new(2);
    let sum = AtomicUsize::new(0);
    pool.run(4, &|_, outer| {
        for _ in outer {
            pool.run(10, &|worker, range| {
                assert_eq!((worker, range.clone()), (0, 0..10));
                sum.fetch_add(range.len(), SeqCst);
            });
        }
    });
    assert_eq!(sum.load(SeqCst), 40);
}

#[test]
fn shared_by_threads_that_come_and_go() {
    let n_sections = if cfg!(miri) { 20 } else { 500 };
    let pool = Arc::new(Pool::new(3));
    let total = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let (pool, total) = (pool.clone(), total.clone());
            std::thread::spawn(move || {
                for i in 0..n_sections {
                    pool.run(7, &|_, range| {
                        total.fetch_add(range.len(), SeqCst);
                    });
                    if i % 100 == caller {
                        // Long enough for the workers to fall asleep.
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
            })
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    assert_eq!(total.load(SeqCst), 4 * n_sections * 7);
}

#[test]
fn drop_joins_sleeping_and_spinning_workers() {
    for sleep_ms in [0, 2] {
        let pool = Pool::new(4);
        pool.run(4, &|_, _| {});
        std::thread::sleep(Duration::from_millis(sleep_ms));
        drop(pool);
    }
}
