//! Small rounds of load: what is begun and left is given back. The example `load` runs the large ones.
#![cfg(target_os = "linux")]

#[path = "../support/load/mod.rs"]
mod rounds;

use std::process::Command;
use std::time::{Duration, Instant};

use rounds::{Sample, Served, abort_round, is_server, mixed_round, serve_until_the_parent_ends, slow_round};

/// Idle threads of the runtime, which end ten seconds after their work.
const IDLE_THREADS_MAX: usize = 8;
const IDLE_TIME_MAX: Duration = Duration::from_secs(60);
/// Freed memory that the allocator keeps, for each thread of a running request and for the kept prompts.
const KEPT_BYTES_MAX: usize = 96 << 20;

/// This test program runs itself as the server.
#[test]
fn server_of_the_other_tests() {
    if is_server() {
        serve_until_the_parent_ends();
    }
}

fn start() -> Served {
    let program = std::env::current_exe().expect("a path");
    Served::start(Command::new(program).args(["--exact", "load::server_of_the_other_tests", "--nocapture"]))
}

/// Runs a round after a small one, and compares what the server holds at rest.
fn gives_back(round: impl FnOnce(&Served)) {
    let served = start();
    // Every model is loaded once, and every thread has worked.
    mixed_round(&served, 80, 1, |_| {});
    let before = served.sample_at_rest();
    round(&served);
    // The models that are loaded in turn are in the state of before.
    mixed_round(&served, 80, 1, |_| {});
    let since = Instant::now();
    let mut after = served.sample_at_rest();
    // How many threads there were depends on how slow they were.
    while after.n_threads > before.n_threads + IDLE_THREADS_MAX && since.elapsed() < IDLE_TIME_MAX {
        std::thread::sleep(Duration::from_millis(200));
        after = served.sample_at_rest();
    }
    let Sample { n_files, n_threads, rss_bytes } = after;
    assert_eq!(n_files, before.n_files, "open files: {before:?}, {after:?}");
    assert!(n_threads <= before.n_threads + IDLE_THREADS_MAX, "threads: {before:?}, {after:?}");
    assert!(rss_bytes <= before.rss_bytes + KEPT_BYTES_MAX, "memory: {before:?}, {after:?}");
}

#[test]
fn slow_connections_hold_up_no_other_and_are_given_back() {
    gives_back(|served| slow_round(served, 50, 8));
}

#[test]
fn aborted_requests_are_given_back() {
    gives_back(|served| {
        let n_reached = abort_round(served, 204);
        // A queue of 68 refuses none of 8 clients, but those that have gone may still be in it.
        assert!(n_reached > 150, "{n_reached} of 204");
    });
}

#[test]
fn mixed_requests_have_the_known_answers() {
    gives_back(|served| mixed_round(served, 500, 5, |_| {}));
}
