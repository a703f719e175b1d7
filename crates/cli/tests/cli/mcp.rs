//! `refrain mcp`: a client that starts the program and speaks with it, one message a line.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::support::{arg, command, model, refrain, refrain_with};

const VERSION: &str = "2025-11-25";

/// The arguments of every test.
const FIXED: [&str; 7] = ["mcp", "--config", "none", "--threads", "1", "--store", "none"];

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("a folder"));
        fs::create_dir(place.path("notes")).expect("a folder");
        fs::write(place.path("notes/tap.md"), "# Kitchen\n\nThe tap drips. Ada Voss repairs it.\n").unwrap();
        fs::write(place.path("notes/roof.md"), "# Roof\n\nThe roof leaks.\n").unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn client(&self, notes: &[&Path]) -> Client {
        let notes: Vec<&str> = notes.iter().map(|path| arg(path)).collect();
        let (index, model) = (self.path("index"), model());
        // The index of notes that are named is not the user's own.
        let of_index: &[&str] = if notes == [arg(&index)] { &[] } else { &["--index", arg(&index)] };
        Client::start(&[&FIXED[..], &["--model", arg(&model)], of_index, &["--notes"], &notes].concat())
    }
}

struct Client {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    n_requests: u64,
}

impl Client {
    fn start(args: &[&str]) -> Self {
        let mut child = command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")));
        let mut client = Self { child, to, from, n_requests: 0 };
        let about = json!({ "name": "test", "version": "1" });
        let begun = client.result(
            "initialize",
            json!({ "protocolVersion": VERSION, "capabilities": {}, "clientInfo": about }),
        );
        assert_eq!(
            (&begun["protocolVersion"], &begun["serverInfo"]["name"]),
            (&json!(VERSION), &json!("refrain"))
        );
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string());
        client
    }

    fn send(&mut self, line: &str) {
        writeln!(self.to.as_mut().expect("open"), "{line}").expect("it reads");
    }

    /// The next line of standard output, which must be a message.
    fn message(&mut self) -> Value {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("a line");
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
        message
    }

    fn response(&mut self, method: &str, params: Value) -> Value {
        self.n_requests += 1;
        let id = self.n_requests;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
        let message = self.message();
        assert_eq!(message["id"], id, "{message}");
        message
    }

    fn result(&mut self, method: &str, params: Value) -> Value {
        let response = self.response(method, params);
        assert!(response["error"].is_null(), "{response}");
        response["result"].clone()
    }

    fn call(&mut self, name: &str, arguments: Value) -> Value {
        let result = self.result("tools/call", json!({ "name": name, "arguments": arguments }));
        assert_ne!(result["isError"], true, "{result}");
        result["structuredContent"].clone()
    }

    /// Closes standard input. Returns what the program then wrote to standard output, and to standard error in all.
    fn end(mut self) -> (String, String) {
        drop(self.to.take());
        let (mut out, mut errors) = (String::new(), String::new());
        self.from.read_to_string(&mut out).expect("text");
        self.child.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
        assert_eq!(self.child.wait().expect("it ends").code(), Some(0), "{errors}");
        (out, errors)
    }
}

#[test]
fn a_client_deletes_only_where_the_user_allows_it() {
    let place = Place::new();
    let (notes, index, model) = (place.path("notes"), place.path("index"), model());
    let fixed = [&FIXED[..], &["--model", arg(&model), "--index", arg(&index)]].concat();
    let start = |more: &[&str]| Client::start(&[&fixed[..], more, &["--notes", arg(&notes)]].concat());
    let forget = json!({ "name": "forget", "arguments": { "folder": "notes" } });
    let mut client = start(&[]);
    assert_eq!(client.response("tools/call", forget.clone())["error"]["data"]["param"], "name");
    client.end();
    let mut client = start(&["--mcp-forget"]);
    let tools = client.result("tools/list", json!({}));
    assert_eq!(tools["tools"].as_array().unwrap().last().unwrap()["name"], "forget");
    assert_eq!(client.result("resources/list", json!({}))["resources"].as_array().unwrap().len(), 2);
    assert_ne!(client.result("tools/call", forget)["isError"], true);
    assert_eq!(client.result("resources/list", json!({}))["resources"].as_array().unwrap().len(), 0);
    client.end();
}

#[test]
fn a_client_searches_reads_and_asks_the_notes() {
    let place = Place::new();
    let mut client = place.client(&[&place.path("notes")]);
    let tools = client.result("tools/list", json!({}));
    let names: Vec<&str> =
        tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["search_notes", "answer_from_notes", "summarize"]);
    let found = client.call("search_notes", json!({ "query": "who is repairing the taps" }));
    let passage = &found["passages"][0];
    assert_eq!(passage["name"], "notes/tap.md");
    let read = client.result("resources/read", json!({ "uri": passage["uri"] }));
    assert!(read["contents"][0]["text"].as_str().unwrap().contains("The tap drips."), "{read}");
    assert_eq!(client.result("resources/list", json!({}))["resources"].as_array().unwrap().len(), 2);
    let answer =
        client.call("answer_from_notes", json!({ "question": "Who repairs the tap?", "max_tokens": 4 }));
    assert!(answer["answer"].is_string() && !answer["sources"].as_array().unwrap().is_empty(), "{answer}");
    // Progress comes before the response.
    let call = json!({ "name": "summarize", "arguments": { "query": "tap", "max_tokens": 4 }, "_meta": { "progressToken": 1 } });
    client.send(&json!({ "jsonrpc": "2.0", "id": "s", "method": "tools/call", "params": call }).to_string());
    let mut n_notices = 0;
    let response = loop {
        let message = client.message();
        match message["method"].as_str() {
            Some(method) => assert_eq!(method, "notifications/progress"),
            None => break message,
        }
        n_notices += 1;
    };
    assert!(n_notices > 0 && response["id"] == "s", "{response}");
    assert!(response["result"]["structuredContent"]["summary"].is_string(), "{response}");
    let error = client.response("tools/call", json!({ "name": "search_notes", "arguments": {} }));
    assert_eq!(error["error"]["code"], -32602);
    let (out, errors) = client.end();
    assert_eq!(out, "");
    assert!(errors.contains("notes of"), "{errors}");
}

#[test]
fn an_index_is_served_as_it_is() {
    let place = Place::new();
    refrain(&["index", "add", arg(&place.path("notes")), "--index", arg(&place.path("index"))]).done();
    fs::write(place.path("notes/later.md"), "# Later\n\nThe cellar is dry.\n").unwrap();
    let mut client = place.client(&[&place.path("index")]);
    assert_eq!(client.result("resources/list", json!({}))["resources"].as_array().unwrap().len(), 2);
    // As a folder of notes, it is read again, and the notes of the index stay.
    assert_eq!(client.end().0, "");
    let mut client = place.client(&[&place.path("notes/later.md")]);
    assert_eq!(client.result("resources/list", json!({}))["resources"].as_array().unwrap().len(), 3);
    let found = client.call("search_notes", json!({ "query": "cellar" }));
    assert_eq!(found["passages"].as_array().unwrap().len(), 1);
    client.end();
}

#[test]
fn a_job_ends_with_its_client() {
    let place = Place::new();
    let mut client = place.client(&[&place.path("notes")]);
    // The notes have been read.
    client.call("search_notes", json!({ "query": "tap" }));
    let call = json!({ "name": "summarize", "arguments": { "text": "The tap drips. ".repeat(4000) }, "_meta": { "progressToken": 1 } });
    client.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call }).to_string());
    assert_eq!(client.message()["method"], "notifications/progress");
    let (out, _) = client.end();
    // Notices that were on their way, and perhaps that it was cancelled.
    for line in out.lines() {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    }
}

#[test]
fn lines_that_are_no_messages_end_nothing() {
    let place = Place::new();
    let mut client = place.client(&[&place.path("notes")]);
    for line in ["", "{", "[]", "hello", r#"{"jsonrpc": "2.0"}"#, r#"{"jsonrpc": "2.0", "method": 1}"#] {
        client.send(line);
    }
    client.n_requests = 100;
    client.send(r#"{"jsonrpc": "2.0", "id": 7, "method": "ping"}"#);
    let response = loop {
        let message = client.message();
        match message["error"].is_object() {
            true => assert!(message["id"].is_null(), "{message}"),
            false => break message,
        }
    };
    assert_eq!((&response["id"], &response["result"]), (&json!(7), &json!({})));
    assert_eq!(client.end().0, "");
}

#[test]
fn a_client_that_says_nothing_leaves_nothing_on_standard_output() {
    let place = Place::new();
    let (notes, index, model) = (place.path("notes"), place.path("index"), model());
    let of_place = ["--model", arg(&model), "--index", arg(&index), "--notes", arg(&notes)];
    let args = [&FIXED[..], &of_place].concat();
    assert_eq!(refrain_with(&args, b"").done(), "");
    let missing = place.path("nowhere");
    let line = refrain(&["mcp", "--config", "none", "--notes", arg(&missing)]).refused(3);
    assert!(line.contains("does not exist"), "{line}");
}
