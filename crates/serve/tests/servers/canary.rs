//! Texts of requests are in no error, metric or log.

use std::io::Read;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{self, Running, chat, with};

const CANARY: &str = "zq7canary";

fn requests() -> Vec<(&'static str, Value)> {
    let base = chat(&format!("The word is {CANARY}."));
    let more = |fields: Value| ("/v1/chat/completions", with(&base, fields));
    vec![
        more(json!({})),
        more(json!({ "stream": true })),
        more(json!({ "temperature": CANARY })),
        more(json!({ "stop": [CANARY, ""] })),
        more(json!({ "model": CANARY })),
        more(json!({ "tools": [{ "type": CANARY }] })),
        more(json!({ "tools": [{ "type": "function", "function": { "name": format!("{CANARY} x") } }] })),
        more(json!({ "tool_choice": CANARY })),
        more(json!({ "response_format": { "type": CANARY } })),
        more(json!({ "service_tier": CANARY })),
        more(json!({ "messages": [{ "role": CANARY, "content": CANARY }] })),
        more(json!({ "messages": [{ "role": "user", "content": [{ "type": CANARY }] }] })),
        more(json!({ "messages": [{ "role": "user", "content": CANARY.repeat(40_000) }] })),
        more(
            json!({ "messages": [{ "role": "tool", "tool_call_id": CANARY, "content": CANARY }, { "role": "system", "content": CANARY }] }),
        ),
        more(json!({ "documents": [{ "text": CANARY, "title": 3 }] })),
        more(json!({ "prediction": { "type": "content", "content": CANARY }, "n": 99 })),
        more(json!({ (format!("{CANARY} is a field")): 1 })),
        more(json!({ "chat_template_kwargs": { "messages": CANARY } })),
        more(json!({ "logit_bias": { CANARY: 1 } })),
        ("/v1/completions", json!({ "prompt": CANARY, "max_tokens": 4, "echo": CANARY })),
        ("/v1/responses", json!({ "input": CANARY, "previous_response_id": CANARY })),
        ("/v1/responses", json!({ "input": [{ "type": CANARY }] })),
        ("/v1/embeddings", json!({ "input": CANARY, "encoding_format": CANARY })),
        ("/v1/embeddings", json!({ "model": support::EMBEDDER, "input": CANARY.repeat(10_000) })),
        ("/v1/zq7canary", json!({})),
        ("/api/chat", json!({ "model": CANARY, "messages": [{ "role": "user", "content": CANARY }] })),
        (
            "/api/chat",
            json!({ "model": support::MODEL, "messages": [{ "role": CANARY, "content": CANARY }] }),
        ),
        ("/api/generate", json!({ "model": support::MODEL, "prompt": CANARY, "format": CANARY })),
        (
            "/api/generate",
            json!({ "model": support::MODEL, "prompt": "a", "options": { (format!("{CANARY} x")): 1, "num_predict": 2 } }),
        ),
        ("/api/pull", json!({ "model": CANARY })),
        (
            "/v1/messages",
            json!({ "model": CANARY, "max_tokens": 2, "messages": [{ "role": "user", "content": CANARY }] }),
        ),
        (
            "/v1/messages",
            json!({ "model": support::MODEL, "max_tokens": 2, "messages": [{ "role": "user", "content": [{ "type": CANARY }] }] }),
        ),
    ]
}

#[test]
fn texts_are_in_no_error_and_no_metric() {
    let server = Running::start();
    for (path, request) in requests() {
        let reply = server.post(path, &request);
        if reply.status != 200 {
            assert!(!reply.body.contains(CANARY), "{request}: {}", reply.body);
        }
        assert!(reply.headers.values().all(|value| !value.contains(CANARY)), "{request}");
    }
    let broken = format!("{{\"messages\": [{CANARY}");
    let reply =
        server.request("POST", "/v1/chat/completions", &[("Content-Type", "application/json")], &broken);
    assert!(reply.status == 400 && !reply.body.contains(CANARY), "{}", reply.body);
    let headers = [("Origin", "http://zq7canary.example"), ("Authorization", "Bearer zq7canary")];
    let reply = server.request("GET", "/v1/models", &headers, "");
    assert!(!reply.body.contains(CANARY));
    assert!(!server.get("/metrics").body.contains(CANARY));
}

/// This test program runs itself as the server, so that all of its output can be read.
#[test]
fn texts_are_in_no_log() {
    if std::env::var_os("REFRAIN_SERVE_CANARY").is_some() {
        texts_are_in_no_error_and_no_metric();
        return;
    }
    let program = std::env::current_exe().expect("a path");
    let mut child = Command::new(program)
        .args(["--exact", "canary::texts_are_in_no_log", "--nocapture"])
        .env("REFRAIN_SERVE_CANARY", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (mut out, mut err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).map(|_| text)
    });
    let mut output = String::new();
    out.read_to_string(&mut output).expect("UTF-8");
    let errors = reader.join().expect("no panic").expect("UTF-8");
    assert!(child.wait().expect("it ends").success(), "{output}\n{errors}");
    assert!(!output.contains(CANARY) && !errors.contains(CANARY), "{output}\n{errors}");
}
