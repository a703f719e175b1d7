//! `refrain serve`: the address, requests, stops, options that are refused.
#![cfg(unix)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use support::refrain;

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
