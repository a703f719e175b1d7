//! Requests as twelve clients send them, written after their documentation and code (`tests/corpus`, a file per client). Each is answered, or
//! refused for a field that would change the output; the answer names the fields that have no effect.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{Reply, Running};

#[test]
fn requests_of_twelve_clients_are_answered() {
    let server = Running::start();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut n_clients = 0;
    for entry in fs::read_dir(folder).expect("the corpus") {
        let path = entry.expect("an entry").path();
        let client = path.file_stem().unwrap().to_string_lossy().into_owned();
        let requests: Vec<Value> = serde_json::from_str(&fs::read_to_string(&path).unwrap()).expect("JSON");
        for request in &requests {
            check(&server, &format!("{client}, {}", request["what"]), request);
        }
        n_clients += 1;
    }
    assert_eq!(n_clients, 12);
}

fn check(server: &Running, name: &str, request: &Value) {
    let path = request["path"].as_str().expect("a path");
    let reply = server.post(path, &request["body"]);
    if let Some(field) = request["refused"].as_str() {
        assert!(reply.status == 400 && reply.body.contains(field), "{name}: {}", reply.body);
        return;
    }
    assert_eq!(reply.status, 200, "{name}: {}", reply.body);
    let named = reply.headers.get("x-refrain-ignored").map(String::as_str).unwrap_or_default();
    let named: BTreeSet<&str> = named.split(", ").filter(|name| !name.is_empty()).collect();
    let expected = request["ignored"].as_array().into_iter().flatten();
    let expected: BTreeSet<&str> = expected.map(|name| name.as_str().expect("a name")).collect();
    assert_eq!(named, expected, "{name}");
    ends_well(name, path, &request["body"], &reply);
}

/// A stream has its last event, and an answer its content.
fn ends_well(name: &str, path: &str, body: &Value, reply: &Reply) {
    let is_lines = path == "/api/chat" || path == "/api/generate";
    match body["stream"].as_bool().unwrap_or(is_lines) {
        true if is_lines => {
            let last = reply.body.lines().last().expect("a line");
            let last: Value = serde_json::from_str(last).expect("JSON");
            assert_eq!(last["done"], true, "{name}: {}", reply.body);
        }
        true if path == "/v1/messages" => {
            assert!(reply.body.contains("event: message_stop\n"), "{name}: {}", reply.body);
        }
        true => assert_eq!(reply.events().last().map(String::as_str), Some("[DONE]"), "{name}"),
        false => assert!(reply.json().is_object(), "{name}"),
    }
}
