//! The memory that is estimated before a model is loaded, beside what the system counts in a separate process: in memory, streamed, and
//! with a cache in 8 bits.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use refrain::checkpoint::Checkpoint;
use refrain::device::MemoryEstimate;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::stream::resident_bytes;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{Engine, EngineOptions, GenerateOptions, KvType, Quantize, SessionOptions};

use crate::common::{Tiny, prompt, run_in};

/// Environment variables with the model's path and the case, for the measured process.
const MODEL: &str = "REFRAIN_TEST_ESTIMATED_MODEL";
const CASE: &str = "REFRAIN_TEST_ESTIMATED_CASE";

const CASES: [&str; 3] = ["in memory", "streamed", "q8_0"];

const CONTEXT_LEN: usize = 2048;

/// 50 MB of weights, and 17 MB of keys and values in 16 bits.
const TINY: Tiny =
    Tiny { hidden_dim: 512, n_layers: 4, head_dim: 256, context_len: CONTEXT_LEN, ..Tiny::DEFAULT };

/// What a process takes beyond an estimate, at most: what the allocator holds back.
const ALLOWANCE: u64 = 8 << 20;

/// What an estimate exceeds what is taken by, at most: buffers of drafting that this text does not fill, and 16 MiB of logits of a streamed
/// output matrix, of which this vocabulary uses a few kilobytes.
const SLACK: u64 = 28 << 20;

#[test]
fn an_estimate_is_what_a_process_takes() {
    if let (Ok(model), Ok(case)) = (std::env::var(MODEL), std::env::var(CASE)) {
        return take(model.as_ref(), &case);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.refrain");
    let source = Checkpoint::from_gguf_bytes(TINY.gguf().into(), "model").unwrap();
    pack(&source, &path, LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() }).unwrap();
    drop(source);
    let mut totals = Vec::new();
    for case in CASES {
        let measured = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "estimates::an_estimate_is_what_a_process_takes", "--nocapture"])
            .envs([(MODEL, path.as_os_str()), (CASE, case.as_ref())])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&measured.stdout).into_owned();
        assert!(measured.status.success(), "{text}{}", String::from_utf8_lossy(&measured.stderr));
        let number = |name: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).expect(&text);
            line.trim().parse().unwrap()
        };
        let (taken, total) = (number("taken "), number("estimated "));
        println!("{case}: {taken} bytes taken, {total} estimated");
        assert!(taken <= total + ALLOWANCE, "{case}: {taken} bytes taken, {total} estimated");
        assert!(total <= taken + SLACK, "{case}: {taken} bytes taken, {total} estimated");
        totals.push(total);
    }
    // The ring has three of four layers; half of the cache's bits are 8 MB.
    assert!(totals[2] + (7 << 20) < totals[0], "{totals:?}");
}

/// Estimates, loads the model, fills a context, and prints both numbers.
fn take(model: &Path, case: &str) {
    let streaming = (case == "streamed").then(|| StreamOptions::new(Pinned::Layers(1)));
    let options = EngineOptions { n_threads: Some(2), streaming, ..TINY.options() };
    let kv_type = if case == "q8_0" { KvType::Q8_0 } else { KvType::F16 };
    let session = SessionOptions { kv_type, history: false, ..SessionOptions::default() };
    let estimate = {
        let checkpoint = Checkpoint::open(model).unwrap();
        MemoryEstimate::new(&checkpoint, &options, &session, 1).unwrap()
    };
    let before = resident_bytes().unwrap();
    let engine = Engine::open(model, options).unwrap();
    let mut session = engine.session(session).unwrap();
    let n_tokens = 24;
    session.append_tokens(&prompt(3, CONTEXT_LEN - n_tokens)).unwrap();
    let options = GenerateOptions { max_tokens: n_tokens, ignore_eos: true, ..GenerateOptions::default() };
    assert_eq!(run_in(&mut session, options, usize::MAX).tokens.len(), n_tokens);
    let taken = resident_bytes().unwrap() - before;
    println!("\ntaken {taken}\nestimated {}\n{estimate:?}", estimate.total_bytes());
}
