//! Large rounds against a server in a process of its own, and the rule for what it may hold afterwards.
//!
//! The rule for a flat memory: after a warm-up of a fifth of the round, the greatest resident memory of the last quarter exceeds that of
//! the first quarter by at most 5 % and 8 MiB. Open files at rest must be those before the round.

use std::error::Error;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use crate::load::{Sample, Served, abort_round, mixed_round, slow_round};

type Outcome = Result<(), Box<dyn Error>>;

/// Samples of a round.
const SAMPLES: usize = 200;
/// Requests before the first sample at rest: each model is loaded, each thread has worked.
const WARM_UP: usize = 400;
/// Idle threads of the runtime, which end later than their work.
const IDLE_THREADS_MAX: usize = 8;

const MIB: f64 = (1 << 20) as f64;

pub(crate) fn slow(n_connections: usize) -> Outcome {
    round(&format!("{n_connections} slow connections"), |served, samples| {
        // A place is free again after at most 30 seconds, so the ticks last about a minute.
        for _ in 0..4 {
            slow_round(served, n_connections, 6);
            samples.push(served.sample());
        }
    })
}

pub(crate) fn aborts(n_requests: usize) -> Outcome {
    const PARTS: usize = 50;
    round(&format!("{n_requests} aborted requests"), |served, samples| {
        let mut n_reached = 0;
        for _ in 0..PARTS {
            n_reached += abort_round(served, n_requests / PARTS);
            samples.push(served.sample());
        }
        println!("{n_reached} had reached their stage");
    })
}

pub(crate) fn mixed(n_requests: usize) -> Outcome {
    round(&format!("{n_requests} mixed requests, every answer the known one"), |served, samples| {
        let taken = Mutex::new(samples);
        mixed_round(served, n_requests, SAMPLES, |sample| taken.lock().expect("no panic").push(sample));
    })
}

/// Runs a round, prints what the server holds, and fails if that has grown.
fn round(name: &str, run: impl FnOnce(&Served, &mut Vec<Sample>)) -> Outcome {
    let served = Served::start(&mut Command::new(std::env::current_exe()?));
    mixed_round(&served, WARM_UP, 1, |_| {});
    let before = served.sample_at_rest();
    let (since, mut samples) = (Instant::now(), Vec::new());
    run(&served, &mut samples);
    let seconds = since.elapsed().as_secs_f64();
    // The models that are loaded in turn are in the state of before.
    mixed_round(&served, WARM_UP, 1, |_| {});
    let after = served.sample_at_rest();
    println!("{name}: {seconds:.0} s");
    println!("| | open files | threads | resident MiB |\n| --- | ---: | ---: | ---: |");
    let line = |name: &str, sample: &Sample| {
        let Sample { n_files, n_threads, rss_bytes } = sample;
        println!("| {name} | {n_files} | {n_threads} | {:.1} |", *rss_bytes as f64 / MIB);
    };
    line("at rest, before", &before);
    let measured = &samples[samples.len() / 5..];
    let greatest = |part: &[Sample]| Sample {
        n_files: part.iter().map(|sample| sample.n_files).max().unwrap_or_default(),
        n_threads: part.iter().map(|sample| sample.n_threads).max().unwrap_or_default(),
        rss_bytes: part.iter().map(|sample| sample.rss_bytes).max().unwrap_or_default(),
    };
    let quarter = measured.len().div_ceil(4);
    let (first, last) = (greatest(&measured[..quarter]), greatest(&measured[measured.len() - quarter..]));
    line("greatest of the first quarter after the warm-up", &first);
    line("greatest of the last quarter", &last);
    line("at rest, after", &after);
    let is_flat = last.rss_bytes as f64 <= first.rss_bytes as f64 * 1.05 + 8.0 * MIB;
    let gives_back =
        after.n_files == before.n_files && after.n_threads <= before.n_threads + IDLE_THREADS_MAX;
    match (is_flat, gives_back) {
        (true, true) => Ok(()),
        (false, _) => Err("the memory is not flat".into()),
        (_, false) => Err("files or threads are left".into()),
    }
}
