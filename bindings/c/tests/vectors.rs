//! The vectors that all languages share, through the C face.

#![allow(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "calls of the C face, whose texts and places live"
)]

use std::ffi::c_char;
use std::ptr::null_mut;
use std::slice;

use refrain_c::*;
use serde_json::{Value, json};

/// A JSON text in the form that functions take.
fn parts(text: &str) -> (*const c_char, usize) {
    (text.as_ptr().cast(), text.len())
}

fn taken(mut buffer: Buffer) -> Value {
    if buffer.data.is_null() {
        return Value::Null;
    }
    // SAFETY: the library has filled it.
    let bytes = unsafe { slice::from_raw_parts(buffer.data.cast::<u8>(), buffer.len) };
    let value = serde_json::from_slice(bytes).expect("what the library writes is JSON");
    // SAFETY: the library has made it.
    assert_eq!(unsafe { refrain_buffer_free(&mut buffer) }, Code::Ok);
    value
}

/// Calls a function that makes a handle.
fn made(call: impl FnOnce(*mut Handle, *mut Buffer) -> Code) -> Result<Handle, Value> {
    let (mut handle, mut error) = (0, Buffer::EMPTY);
    match call(&mut handle, &mut error) {
        Code::Ok => Ok(handle),
        code => {
            let error = taken(error);
            assert_eq!(error["code"], code as u32);
            Err(error)
        }
    }
}

/// Calls a function that gives JSON.
fn given(call: impl FnOnce(*mut Buffer, *mut Buffer) -> Code) -> Result<Value, Value> {
    let (mut buffer, mut error) = (Buffer::EMPTY, Buffer::EMPTY);
    match call(&mut buffer, &mut error) {
        Code::Ok => Ok(taken(buffer)),
        _ => Err(taken(error)),
    }
}

/// The events of a job, and the result or the error that the last one has.
fn ended(job: Handle) -> (Vec<Value>, Result<Value, Value>) {
    let mut all = Vec::new();
    loop {
        // SAFETY: the places live.
        let events =
            given(|events, error| unsafe { refrain_job_next_events(job, 1000, events, error) }).unwrap();
        all.extend(events.as_array().unwrap().iter().cloned());
        match all.last().map(|event| (event["type"].as_str().unwrap(), event)) {
            Some(("done", event)) => return (all.clone(), Ok(event["result"].clone())),
            Some(("failed", event)) => return (all.clone(), Err(event["error"].clone())),
            _ => {}
        }
    }
}

/// Compares what a vector expects of a result or an error.
fn check(expected: &Value, events: &[Value], outcome: Result<Value, Value>, name: &str) {
    let (given, expected) = match (outcome, expected.get("error")) {
        (Err(error), Some(expected)) => (error, expected),
        (Ok(mut result), None) => {
            let live: Vec<Value> = events.iter().filter_map(|event| event.get("change").cloned()).collect();
            result["live"] = live.into();
            (result, expected)
        }
        (outcome, _) => panic!("{name}: {outcome:?}, not {expected}"),
    };
    for (field, expected) in expected.as_object().unwrap() {
        assert_eq!(&given[field], expected, "{name}: {field}");
    }
}

#[test]
fn vectors_are_the_same_in_c() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors");
    let mut n = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let vector: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        run(&vector, &path.display().to_string());
        n += 1;
    }
    assert_eq!(n, 5);
}

fn run(vector: &Value, name: &str) {
    let mut options = vector["engine"].clone();
    options["path"] = json!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf"));
    let options = options.to_string();
    let (json, len) = parts(&options);
    // SAFETY: texts and places live, here and below.
    let opened =
        made(|engine, error| unsafe { refrain_engine_open(json, len, None, null_mut(), engine, error) });
    let engine = match opened {
        Ok(engine) => engine,
        Err(error) => return check(&vector["expect"], &[], Err(error), name),
    };
    let session = vector["session"].to_string();
    let (json, len) = parts(&session);
    if vector.get("task").is_some() {
        let of_assistant = json!({ "session": vector["session"] }).to_string();
        let (json, len) = parts(&of_assistant);
        let assistant =
            made(|made, error| unsafe { refrain_engine_assistant(engine, json, len, made, error) }).unwrap();
        let (request, options) = (vector["task"].to_string(), vector["options"].to_string());
        let ((json, len), (options, options_len)) = (parts(&request), parts(&options));
        let job = made(|job, error| unsafe {
            refrain_assistant_start(assistant, json, len, options, options_len, job, error)
        });
        let (events, outcome) = ended(job.unwrap());
        check(&vector["expect"], &events, outcome, name);
    } else {
        let session =
            made(|made, error| unsafe { refrain_engine_session(engine, json, len, 0, made, error) }).unwrap();
        for step in vector["steps"].as_array().unwrap() {
            if let Some(turn) = step.get("append") {
                let [role, content] = ["role", "content"].map(|part| turn[part].as_str().unwrap());
                let ((role, role_len), (content, content_len)) = (parts(role), parts(content));
                let code = unsafe {
                    refrain_session_append(session, role, role_len, content, content_len, null_mut())
                };
                assert_eq!(code, Code::Ok);
                continue;
            }
            let options = step["generate"].to_string();
            let (json, len) = parts(&options);
            let job = made(|job, error| unsafe { refrain_session_generate(session, json, len, job, error) });
            let job = job.unwrap();
            if step["cancel"] == true {
                assert_eq!(refrain_job_cancel(job), Code::Ok);
            }
            let (events, outcome) = ended(job);
            check(&step["expect"], &events, outcome, name);
        }
    }
    assert_eq!(unsafe { refrain_close(engine, null_mut()) }, Code::Ok);
    assert_eq!(unsafe { refrain_free(engine, null_mut()) }, Code::Ok);
}
