//! What a token costs in C beside the library's own iterator.
//!
//! `cargo bench -p refrain-c --bench overhead`. Both decode the same outputs in turns, on one thread of the model; C takes the events in batches
//! (`refrain_job_next_events`), or by a listener. The difference is the cost of the job's thread, the batches and their JSON.

#![allow(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "calls of the C face, whose texts and places live"
)]

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use refrain_c::*;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
const PROMPT: &str = "The train leaves at";
const TOKENS: usize = 900;
const TURNS: usize = 15;

fn main() {
    let mut options = refrain::EngineOptions::default();
    options.n_threads = Some(1);
    options.measure_time = Some(Duration::ZERO);
    let native = refrain::Engine::open(MODEL, options).expect("the fixture model");
    let json = format!(r#"{{"threads": 1, "measure_ms": 0, "path": {}}}"#, serde_json::json!(MODEL));
    let mut engine = 0;
    // SAFETY: texts and places live, here and below.
    let opened = unsafe {
        refrain_engine_open(json.as_ptr().cast(), json.len(), None, null_mut(), &mut engine, null_mut())
    };
    assert_eq!(opened, Code::Ok);
    let (mut rust, mut polled, mut listened) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        rust.push(of_native(&native));
        polled.push(of_c(engine, poll));
        listened.push(of_c(engine, listen));
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let [rust, polled, listened] = [&mut rust, &mut polled, &mut listened].map(median);
    println!("native iterator      {rust:8.2} µs per token");
    for (name, us) in [("C, batches by poll", polled), ("C, batches by listener", listened)] {
        println!("{name:<22}{us:7.2} µs per token, {:+.2} µs, {:.3} times", us - rust, us / rust);
    }
    assert_eq!(unsafe { refrain_free(engine, null_mut()) }, Code::Ok);
}

fn of_native(engine: &refrain::Engine) -> f64 {
    let mut options = refrain::SessionOptions::default();
    options.context_len = Some(1024);
    options.history = false;
    options.drafting = refrain::Drafting::Off;
    let mut session = engine.session(options).expect("a session");
    session.append_text(PROMPT, refrain::SpecialTokens::AsText).expect("a prompt");
    let mut options = refrain::GenerateOptions::default();
    options.max_tokens = TOKENS;
    let schema = long(engine);
    let started = Instant::now();
    let n = session
        .generate(schema.constrain(options))
        .expect("a generation")
        .filter(|event| event.is_ok())
        .count();
    started.elapsed().as_secs_f64() * 1e6 / (n - 1) as f64
}

/// A grammar under which the output does not end.
fn long(engine: &refrain::Engine) -> refrain_grammar::Grammar {
    let vocabulary = refrain_grammar::Vocabulary::of_engine(engine).expect("a vocabulary");
    refrain_grammar::Grammar::json_schema(&vocabulary, SCHEMA, refrain_grammar::JsonOptions::default())
        .expect("a grammar")
}

const SCHEMA: &str = r#"{"type": "array", "items": {"type": "integer"}, "minItems": 900}"#;

fn of_c(engine: Handle, take: fn(Handle)) -> f64 {
    let options = r#"{"context_len": 1024, "history": false, "drafting": "off"}"#;
    let generate = serde_json::json!({ "max_tokens": TOKENS, "json_schema": SCHEMA }).to_string();
    let [mut session, mut job] = [0; 2];
    let mut result = Buffer::EMPTY;
    // SAFETY: texts and places live.
    unsafe {
        let (json, len) = (options.as_ptr().cast(), options.len());
        assert_eq!(refrain_engine_session(engine, json, len, 0, &mut session, null_mut()), Code::Ok);
        assert_eq!(
            refrain_session_append_text(session, PROMPT.as_ptr().cast(), PROMPT.len(), null_mut()),
            Code::Ok
        );
        let (json, len) = (generate.as_ptr().cast(), generate.len());
        assert_eq!(refrain_session_generate(session, json, len, &mut job, null_mut()), Code::Ok);
        let started = Instant::now();
        take(job);
        let taken = started.elapsed();
        assert_eq!(refrain_job_wait(job, &mut result, null_mut()), Code::Ok);
        let text = std::slice::from_raw_parts(result.data.cast::<u8>(), result.len);
        let value: serde_json::Value = serde_json::from_slice(text).expect("JSON");
        let tokens = value["stats"]["tokens"].as_f64().expect("a number");
        assert_eq!(refrain_buffer_free(&mut result), Code::Ok);
        assert_eq!(refrain_free(job, null_mut()), Code::Ok);
        assert_eq!(refrain_free(session, null_mut()), Code::Ok);
        taken.as_secs_f64() * 1e6 / tokens
    }
}

fn poll(job: Handle) {
    let mut is_ended = false;
    while !is_ended {
        let mut events = Buffer::EMPTY;
        // SAFETY: the places live.
        unsafe {
            assert_eq!(refrain_job_next_events(job, 1000, &mut events, null_mut()), Code::Ok);
            assert_eq!(refrain_buffer_free(&mut events), Code::Ok);
            assert_eq!(refrain_job_is_ended(job, &mut is_ended, null_mut()), Code::Ok);
        }
    }
}

unsafe extern "C" fn go_on(_user: *mut c_void, _events: *const c_char, _len: usize) -> bool {
    true
}

fn listen(job: Handle) {
    let mut result = Buffer::EMPTY;
    // SAFETY: the place lives.
    unsafe {
        assert_eq!(refrain_job_listen(job, Some(go_on), null_mut(), null_mut()), Code::Ok);
        assert_eq!(refrain_job_wait(job, &mut result, null_mut()), Code::Ok);
        assert_eq!(refrain_buffer_free(&mut result), Code::Ok);
    }
}
