//! The vectors that all languages share, from Rust: through the definition, and the conversation through the library itself.
//!
//! `REFRAIN_WRITE_VECTORS=1 cargo test -p refrain-ffi --test vectors` writes what the fixture model gives now.

#![cfg(feature = "notes")]

use std::path::PathBuf;
use std::sync::Arc;

use refrain_ffi::{
    AssistantOptions, Engine, EngineOptions, ErrorInfo, Event, FfiError, GenerateOptions, Job, JobResult,
    Message, SessionOptions,
};
use serde_json::{Value, json};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");

fn folder() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors").into()
}

/// The inputs; what is expected is written by the test.
fn inputs() -> Vec<(&'static str, Value)> {
    let engine = json!({ "threads": 1, "measure_ms": 0 });
    let session = json!({ "context_len": 512 });
    let append = |content: &str| json!({ "append": { "role": "user", "content": content } });
    let schema = json!({
        "type": "object",
        "properties": { "repairs": { "type": "boolean" }, "days": { "enum": ["Monday", "Friday"] } },
        "required": ["repairs", "days"],
        "additionalProperties": false,
    });
    let long = json!({ "type": "array", "items": { "type": "integer" }, "minItems": 600 });
    vec![
        (
            "conversation",
            json!({
                "about": "Two turns of one session. The second one is sampled with a seed.",
                "engine": engine, "session": session,
                "steps": [
                    append("The tap in the kitchen drips. Who repairs it?"),
                    { "generate": { "max_tokens": 32 } },
                    append("And when does the train to Oslo leave?"),
                    { "generate": { "max_tokens": 24, "temperature": 0.8, "top_p": 0.9, "seed": 7 } },
                ],
            }),
        ),
        (
            "json_schema",
            json!({
                "about": "An answer that is JSON under a schema.",
                "engine": engine, "session": session,
                "steps": [
                    append("Does Ada Voss repair the tap?"),
                    { "generate": { "max_tokens": 64, "json_schema": schema.to_string() } },
                ],
            }),
        ),
        (
            "edit",
            json!({
                "about": "An edit with its live changes. Places are in UTF-8 bytes.",
                "engine": engine, "session": session,
                "task": {
                    "task": "edit",
                    "text": "The café opens on Monday. Ada Voss repairs the tap on Friday.",
                    "instruction": "Change Monday to Tuesday.",
                },
                "options": { "max_tokens": 64 },
            }),
        ),
        (
            "cancelled",
            json!({
                "about": "An answer that is cancelled as soon as it has started, and would take at least 600 tokens.",
                "engine": engine, "session": { "context_len": 1024 },
                "steps": [
                    append("Count."),
                    { "generate": { "max_tokens": 960, "json_schema": long.to_string() }, "cancel": true },
                ],
            }),
        ),
        (
            "out_of_memory",
            json!({
                "about": "A model that exceeds the memory limit.",
                "engine": { "threads": 1, "measure_ms": 0, "memory_limit_bytes": 1000 },
            }),
        ),
    ]
}

fn record<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    let value = if value.is_null() { json!({}) } else { value.clone() };
    serde_json::from_value(value).unwrap()
}

/// What a vector expects of a result.
fn of_result(result: &JobResult, live: Vec<Value>) -> Value {
    let mut expected = json!({ "text": result.text, "finish": result.finish, "seed": result.seed });
    if !live.is_empty() {
        expected["changes"] = serde_json::to_value(&result.changes).unwrap();
        expected["live"] = live.into();
    }
    expected
}

fn of_error(error: &ErrorInfo) -> Value {
    let mut expected = json!({ "code": error.code, "kind": error.kind });
    for (name, value) in [("field", json!(error.field)), ("limit", json!(error.limit))] {
        if !value.is_null() {
            expected[name] = value;
        }
    }
    json!({ "error": expected })
}

/// Takes all events. The text of the events is that of the result.
fn ended(job: &Job) -> Value {
    let (mut text, mut live) = (String::new(), Vec::new());
    loop {
        for event in job.next_events(1000).unwrap() {
            match event {
                Event::Text { text: piece, .. } => text.push_str(&piece),
                Event::Edit { change } => live.push(serde_json::to_value(change).unwrap()),
                Event::Done { result } => {
                    if live.is_empty() {
                        assert_eq!(text, result.text);
                    } else {
                        let changes = serde_json::to_value(&result.changes).unwrap();
                        assert_eq!(
                            Value::from(live.clone()),
                            changes,
                            "live changes are those of the result"
                        );
                    }
                    return of_result(&result, live);
                }
                Event::Failed { error } => return of_error(&error),
                _ => {}
            }
        }
    }
}

/// The vector with what is expected.
fn run(mut vector: Value) -> Value {
    let mut options = vector["engine"].clone();
    options["path"] = json!(MODEL);
    let options: EngineOptions = record(&options);
    let engine = match Engine::open(options, None) {
        Ok(engine) => engine,
        Err(FfiError::Failed { info }) => {
            vector["expect"] = of_error(&info);
            return vector;
        }
    };
    let session_options: SessionOptions = record(&vector["session"]);
    if vector.get("task").is_some() {
        let options = AssistantOptions { session: Some(session_options), ..AssistantOptions::default() };
        let assistant = engine.assistant(options).unwrap();
        let job = assistant.start(record(&vector["task"]), record(&vector["options"])).unwrap();
        vector["expect"] = ended(&job);
        return vector;
    }
    let session = engine.session(session_options, None).unwrap();
    for step in vector["steps"].as_array_mut().unwrap() {
        if let Some(turn) = step.get("append") {
            let Message { role, content } = record(turn);
            session.append(role, content).unwrap();
            continue;
        }
        let job: Arc<Job> = session.generate(record::<GenerateOptions>(&step["generate"])).unwrap();
        if step["cancel"] == true {
            job.cancel();
        }
        step["expect"] = ended(&job);
    }
    vector
}

#[test]
fn vectors_are_the_same_in_rust() {
    for (name, input) in inputs() {
        let path = folder().join(name).with_extension("json");
        let given = run(input);
        if std::env::var_os("REFRAIN_WRITE_VECTORS").is_some() {
            std::fs::write(&path, format!("{}\n", serde_json::to_string_pretty(&given).unwrap())).unwrap();
        }
        let known: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(given, known, "{name}");
    }
}

#[test]
fn the_library_itself_gives_the_texts_of_the_conversation() {
    let vector: Value =
        serde_json::from_slice(&std::fs::read(folder().join("conversation.json")).unwrap()).unwrap();
    let engine = refrain::Engine::open(MODEL, refrain::EngineOptions::default()).unwrap();
    let mut options = refrain::SessionOptions::default();
    options.context_len = Some(512);
    let mut session = engine.session(options).unwrap();
    for step in vector["steps"].as_array().unwrap() {
        if let Some(turn) = step.get("append") {
            session.append_turn(refrain::Role::User, turn["content"].as_str().unwrap()).unwrap();
            continue;
        }
        let given = &step["generate"];
        let mut options = refrain::GenerateOptions::default();
        options.max_tokens = given["max_tokens"].as_u64().unwrap() as usize;
        if let Some(temperature) = given["temperature"].as_f64() {
            options.sampling.temperature = temperature as f32;
            options.sampling.top_p = given["top_p"].as_f64().unwrap() as f32;
            options.sampling.seed = given["seed"].as_u64();
        }
        let mut text = String::new();
        for event in session.generate(options).unwrap() {
            match event.unwrap() {
                refrain::Event::Token(token) => text.push_str(&token.text),
                refrain::Event::Done(summary) => text.push_str(&summary.text),
                _ => {}
            }
        }
        assert_eq!(text, step["expect"]["text"].as_str().unwrap());
    }
}
