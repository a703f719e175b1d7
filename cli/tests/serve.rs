//! `refrain serve`: the address, requests, folders of notes, stops, options that are refused.
#![cfg(unix)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use support::{arg, model, refrain};

/// A running server with its address.
fn start(args: &[&str]) -> (Child, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_refrain"))
        .args(["serve", "--no-config", "--port", "0", "--threads", "1"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("http://").unwrap_or_else(|| panic!("{line:?}")).to_owned();
    (child, address)
}

fn request(address: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let length = body.len();
    let request =
        format!("{head}\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("it answers");
    reply
}

/// Ends a server with a signal, and returns its exit code.
fn stop(mut child: Child, signal: &str) -> Option<i32> {
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    child.wait().expect("it ends").code()
}

#[test]
fn the_model_inside_the_program_answers_until_a_signal() {
    for signal in ["-TERM", "-INT"] {
        let (child, address) = start(&[]);
        let list = request(&address, "GET /v1/models HTTP/1.1", "");
        assert!(list.starts_with("HTTP/1.1 200") && list.contains("refrain-embedded"), "{list}");
        let body = r#"{"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4}"#;
        let reply =
            request(&address, "POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json", body);
        assert!(reply.contains("\"finish_reason\""), "{reply}");
        assert_eq!(stop(child, signal), Some(0));
    }
}

/// The names of the notes that a search finds.
fn found(address: &str, query: &str) -> Vec<String> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let call = json!({ "name": "search_notes", "arguments": { "query": query }, "_meta": meta });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call }).to_string();
    let head = "POST /mcp HTTP/1.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
        MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: search_notes";
    let reply = request(address, head, &body);
    let message = reply.lines().map(|line| line.strip_prefix("data:").unwrap_or(line).trim());
    let message = message.filter_map(|line| serde_json::from_str::<Value>(line).ok()).find(Value::is_object);
    let message = message.unwrap_or_else(|| panic!("{reply}"));
    let passages = message["result"]["structuredContent"]["passages"].as_array();
    let passages = passages.unwrap_or_else(|| panic!("{message}"));
    passages.iter().map(|passage| passage["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn folders_of_notes_are_read_and_watched() {
    let place = tempfile::tempdir().expect("a folder");
    let path = |name: &str| place.path().join(name);
    let (home, work, index) = (path("home"), path("work"), path("index"));
    for folder in [&home, &work] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(home.join("tap.md"), "# Kitchen\n\nThe tap drips.\n").unwrap();
    fs::write(work.join("plan.md"), "# Plan\n\nThe bridge opens in May.\n").unwrap();
    let model = model();
    let fixed = ["--no-store", "--model", arg(&model)];
    let folders = ["--index", arg(&index), "--notes", arg(&home), arg(&work)];
    let (child, address) = start(&[&fixed[..], &folders].concat());
    assert_eq!(found(&address, "taps that drip"), ["home/tap.md"]);
    assert_eq!(found(&address, "bridge"), ["work/plan.md"]);
    // What changes is read while the server runs.
    fs::write(work.join("roof.md"), "# Roof\n\nThe roof leaks.\n").unwrap();
    while found(&address, "roof").is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    fs::remove_file(home.join("tap.md")).unwrap();
    while !found(&address, "taps that drip").is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(stop(child, "-TERM"), Some(0));
    // The index has them without the folders, and is not written.
    fs::write(work.join("later.md"), "# Later\n\nThe cellar is dry.\n").unwrap();
    let (child, address) = start(&[&fixed[..], &["--notes", arg(&index)]].concat());
    assert_eq!((found(&address, "roof").len(), found(&address, "cellar").len()), (1, 0));
    assert_eq!(stop(child, "-TERM"), Some(0));
    // So does `--notes` without a value, which knows new notes of its folders when they have been read.
    let (child, address) = start(&[&fixed[..], &["--index", arg(&index), "--notes"]].concat());
    assert_eq!((found(&address, "roof").len(), found(&address, "cellar").len()), (1, 0));
    assert_eq!(stop(child, "-TERM"), Some(0));
    let refused = |args: &[&str], code: i32| {
        refrain(&[&["serve", "--no-config", "--port", "0"], args].concat()).refused(code)
    };
    assert!(refused(&["--notes", arg(&path("nowhere"))], 3).contains("does not exist"));
    assert!(refused(&["--notes", arg(&index), arg(&home)], 2).contains("--notes"));
}

#[test]
fn a_token_guards_the_server() {
    let (child, address) = start(&["--token", "0123456789abcdef", "--name", "mine"]);
    let refused = request(&address, "GET /v1/models HTTP/1.1", "");
    assert!(refused.starts_with("HTTP/1.1 401") && !refused.contains("mine"), "{refused}");
    let list = request(&address, "GET /v1/models HTTP/1.1\r\nAuthorization: Bearer 0123456789abcdef", "");
    assert!(list.contains("\"mine\""), "{list}");
    assert_eq!(stop(child, "-TERM"), Some(0));
}

#[test]
fn unusable_options_are_refused() {
    for (args, message) in [
        (&["--host", "0.0.0.0"][..], "token"),
        (&["--token", "short"], "token"),
        (&["--origin", "null"], "origin"),
        (&["--allow-host", "a b"], "host"),
        (&["--strategy", "pld"], "--strategy"),
        (&["--add-model", "refrain-embedded.gguf"], "two models"),
    ] {
        let line = refrain(&[&["serve", "--port", "0", "--threads", "1"], args].concat()).refused(2);
        assert!(line.contains(message), "{line}");
    }
    refrain(&["serve", "--port", "0", "--model", "nowhere.gguf"]).refused(3);
}
