//! Random sequences of calls, in one thread and in eight, and many generations without a leak.

#![allow(unsafe_code, reason = "calls of the C face")]

mod calls;

use std::ptr::null_mut;
use std::thread;

use calls::{open_engine, run};
use refrain_c::{Code, Handle};

/// A generator of bytes: xorshift of a seed.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn random_calls_return_codes() {
    let engine = open_engine("../../fixtures/target.gguf");
    let n_listeners: usize = (0..150).map(|seed| run(&bytes(seed, 320), engine)).sum();
    assert!(n_listeners > 10, "{n_listeners}");
    println!("{n_listeners} listeners");
    free(engine);
}

#[test]
fn random_calls_of_eight_threads_return_codes() {
    let engine = open_engine("../../fixtures/target.gguf");
    thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for seed in 0..25 {
                    run(&bytes(1_000 * (thread + 1) + seed, 320), engine);
                }
            });
        }
    });
    free(engine);
}

/// 8 threads with 10,000 generations each: `cargo test -p refrain-c --test random -- --ignored --nocapture`. REFRAIN_TEST_GENERATIONS is their
/// number.
#[test]
#[ignore = "takes minutes"]
fn generations_of_eight_threads_leak_nothing() {
    let generations: usize = std::env::var("REFRAIN_TEST_GENERATIONS")
        .ok()
        .and_then(|number| number.parse().ok())
        .unwrap_or(10_000);
    let engine = open_engine("../../fixtures/target.gguf");
    generate(engine, 200);
    let before = resident_kib();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(move || generate(engine, generations));
        }
    });
    let after = resident_kib();
    println!("8 threads × {generations} generations: resident memory from {before} to {after} KiB");
    // Allocators keep pages of threads that are gone.
    assert!(after < before + (64 << 10), "{before} KiB before, {after} KiB after");
    free(engine);
}

fn generate(engine: Handle, n: usize) {
    let (options, text) = (r#"{"context_len": 64}"#, "The train leaves at");
    for _ in 0..n {
        let [mut session, mut job] = [0; 2];
        // SAFETY: texts and places live.
        let codes = unsafe {
            [
                refrain_c::refrain_engine_session(
                    engine,
                    options.as_ptr().cast(),
                    options.len(),
                    0,
                    &mut session,
                    null_mut(),
                ),
                refrain_c::refrain_session_append_text(session, text.as_ptr().cast(), text.len(), null_mut()),
                refrain_c::refrain_session_generate(
                    session,
                    c"{\"max_tokens\": 2}".as_ptr(),
                    17,
                    &mut job,
                    null_mut(),
                ),
            ]
        };
        assert_eq!(codes, [Code::Ok; 3]);
        let mut result = refrain_c::Buffer::EMPTY;
        // SAFETY: the buffer lives.
        let codes = unsafe {
            [
                refrain_c::refrain_job_wait(job, &mut result, null_mut()),
                refrain_c::refrain_buffer_free(&mut result),
                refrain_c::refrain_free(job, null_mut()),
                refrain_c::refrain_free(session, null_mut()),
            ]
        };
        assert_eq!(codes, [Code::Ok; 4]);
    }
}

fn free(handle: Handle) {
    // SAFETY: null is allowed.
    assert_eq!(unsafe { refrain_c::refrain_free(handle, null_mut()) }, Code::Ok);
}

/// The process's memory, where the system says it.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
