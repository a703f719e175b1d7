//! `refrain serve`: the address, requests, folders of notes, stops, options that are refused.
#![cfg(unix)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command};

use serde_json::{Value, json};

use crate::support::{self, arg, model, refrain, serve, started};

/// A running server with its address. A token that the server has made is behind the address.
fn start(args: &[&str]) -> (Child, String) {
    let (child, line) = started(serve("0").args(args));
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

/// Ends a server, and returns what it wrote to standard error.
fn ended(mut child: Child) -> String {
    let errors = child.stderr.take().expect("piped");
    assert_eq!(stop(child, "-TERM"), Some(0));
    std::io::read_to_string(errors).expect("text")
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

/// Its address is printed before it serves.
#[test]
fn a_signal_before_the_first_request_stops_it_too() {
    for round in 0..20 {
        let (child, _) = start(&[]);
        let signal = ["-TERM", "-INT"][round % 2];
        assert_eq!(stop(child, signal), Some(0), "{signal}");
    }
}

/// The names of the notes that a search finds.
fn found(address: &str, query: &str) -> Vec<String> {
    let (address, token) = address.split_once("/?token=").unwrap_or((address, "none"));
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let call = json!({ "name": "search_notes", "arguments": { "query": query }, "_meta": meta });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call }).to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
        Authorization: Bearer {token}\r\n\
        MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: search_notes"
    );
    let reply = request(address, &head, &body);
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
    let fixed = ["--store", "none", "--model", arg(&model)];
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
        refrain(&[&["serve", "--config", "none", "--listen", "0"], args].concat()).refused(code)
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

/// Other users and programs of the device reach an address of it too.
#[test]
fn notes_are_behind_a_new_token_unless_the_user_refuses_one() {
    let place = tempfile::tempdir().expect("a folder");
    let notes = place.path().join("notes");
    fs::create_dir(&notes).unwrap();
    fs::write(notes.join("tap.md"), "# Kitchen\n\nThe tap drips.\n").unwrap();
    let (model, index) = (model(), place.path().join("index"));
    let fixed = ["--store", "none", "--model", arg(&model), "--index", arg(&index), "--notes", arg(&notes)];
    let with = |more: &[&'static str]| start(&[&fixed[..], more].concat());
    let (first, shown) = with(&[]);
    let (address, token) = shown.split_once("/?token=").unwrap_or_else(|| panic!("{shown}"));
    assert!(token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
    let status = |head: &str, token: Option<&str>| {
        let key = token.map(|token| format!("\r\nAuthorization: Bearer {token}")).unwrap_or_default();
        request(address, &format!("{head} HTTP/1.1{key}"), "")[9..12].to_owned()
    };
    // The token in an address is for the page alone, which takes it out: addresses are written to logs.
    let in_address = format!("/page/status?token={token}");
    for path in
        ["/v1/models", "/page/status", "/page/history", "/metrics", "/mcp", "/page/source/1", &in_address]
    {
        assert_eq!(status(&format!("GET {path}"), None), "401", "{path}");
        assert_eq!(status(&format!("GET {path}"), Some("0123456789abcdef")), "401", "{path}");
        assert_ne!(status(&format!("GET {path}"), Some(token)), "401", "{path}");
    }
    for path in ["/health", "/", &format!("/?token={token}"), "/page/page.js", "/page/page.css"] {
        assert_eq!(status(&format!("GET {path}"), None), "200", "{path}");
    }
    assert_eq!(found(&shown, "taps"), ["notes/tap.md"]);
    let (second, other) = with(&[]);
    let (address_of_other, other) = other.split_once("/?token=").expect("a token");
    assert_ne!(other, token, "each start has a new one");
    // A server that answers has its handlers of signals.
    assert!(request(address_of_other, "GET /health HTTP/1.1", "").starts_with("HTTP/1.1 200"));
    assert!(!ended(first).contains(token));
    ended(second);
    // A given token is not shown.
    let (child, address) = with(&["--token", "0123456789abcdef"]);
    assert!(!address.contains("token"), "{address}");
    assert!(request(&address, "GET /page/status HTTP/1.1", "").starts_with("HTTP/1.1 401"));
    ended(child);
    // Without a token, a line says what that opens.
    let (child, address) = with(&["--token", "none"]);
    assert_eq!(found(&address, "taps"), ["notes/tap.md"]);
    assert_eq!(ended(child).lines().filter(|line| line.contains("--token none")).count(), 1);
    refrain(&["serve", "--config", "none", "--token", "none", "--listen", "0.0.0.0:0"]).refused(2);
    // A socket is open to its owner alone.
    let socket = place.path().join("socket");
    let (child, line) = started(serve(&format!("unix:{}", arg(&socket))).args(fixed));
    assert!(line.starts_with("unix:") && !line.contains("token"), "{line}");
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).expect("it listens");
    write!(stream, "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    ended(child);
}

/// What a stream of eight long answers still sends when a signal has stopped the server.
fn stopped_stream(grace: &str, signal: &str) -> String {
    let (mut child, address) = start(&["--limits", &format!("grace={grace}")]);
    let body = r#"{"prompt": "a", "n": 8, "max_tokens": 400, "temperature": 1.0, "stream": true}"#;
    let mut stream = TcpStream::connect(&address).expect("it listens");
    let length = body.len();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).expect("it reads");
    let mut first = [0; 12];
    stream.read_exact(&mut first).expect("it answers");
    assert_eq!(&first, b"HTTP/1.1 200");
    let idle = TcpStream::connect(&address).expect("it listens");
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("it ends");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(TcpStream::connect(&address).is_err());
    drop(idle);
    rest
}

#[test]
fn a_stop_finishes_the_streams_that_run_or_cancels_them_after_the_grace_time() {
    for signal in ["-TERM", "-INT"] {
        let rest = stopped_stream("600", signal);
        assert!(rest.contains("data: [DONE]"), "{rest}");
        assert_eq!(rest.matches("\"finish_reason\":\"").count(), 8);
    }
    // A machine that is busy may end all answers before the signal comes, but not each time.
    let is_cancelled = |_| {
        let rest = stopped_stream("0", "-TERM");
        let is_cancelled = rest.contains("\"code\":\"stopped\"");
        assert!(is_cancelled || rest.contains("data: [DONE]"), "{rest}");
        is_cancelled
    };
    assert!((0..5).any(is_cancelled));
}

#[test]
fn a_server_listens_on_a_unix_socket() {
    use std::os::unix::net::UnixStream;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("refrain.sock");
    let place = format!("unix:{}", arg(&path));
    let (mut child, line) = started(&mut serve(&place));
    assert_eq!(line.trim_end(), format!("unix:{}", path.display()));
    let answers = || {
        let mut stream = UnixStream::connect(&path).expect("it listens");
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    };
    answers();
    // Without the signal's handler, a killed server leaves its socket, and the next one replaces it.
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(path.exists());
    let (child, _) = started(&mut serve(&place));
    // A signal before it serves ends it at once.
    answers();
    assert_eq!(stop(child, "-TERM"), Some(0));
    assert!(!path.exists());
}

#[test]
fn several_models_share_a_budget_and_the_first_one_is_loaded_again() {
    let model = support::model();
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.gguf");
    std::fs::copy(&model, &other).unwrap();
    let bytes = std::fs::metadata(&model).unwrap().len();
    // Room for one of them, with the longest tensor beside it while it is loaded.
    let budget = (bytes * 3 / 2).to_string();
    let (child, address) = start(&[
        "--model",
        support::arg(&model),
        "--add-model",
        support::arg(&other),
        "--limits",
        &format!("models={budget},prompts=0"),
    ]);
    let loaded = || {
        let metrics = request(&address, "GET /metrics HTTP/1.1", "");
        let lines = metrics.lines().filter(|line| line.starts_with("refrain_model_bytes{"));
        lines.map(|line| line.split('"').nth(1).unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(loaded(), ["target"], "at the start");
    let mut answers = Vec::new();
    for name in ["target", "other", "target", "other"] {
        let body = format!(r#"{{"model": "{name}", "prompt": "Hello", "max_tokens": 4, "temperature": 0}}"#);
        let reply =
            request(&address, "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json", &body);
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        answers.push(reply.split("\"text\":").nth(1).unwrap().split(',').next().unwrap().to_owned());
        assert_eq!(loaded(), [name]);
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(stop(child, "-TERM"), Some(0));
    let refused =
        refrain(&["serve", "--config", "none", "--listen", "0", "--limits", "models=1000"]).refused(2);
    assert!(refused.contains("--limits"), "{refused}");
}

#[test]
fn unusable_options_are_refused() {
    for (args, message) in [
        (&["--listen", "0.0.0.0:0"][..], "token"),
        (&["--token", "short"], "token"),
        (&["--origin", "null"], "origin"),
        (&["--allow-host", "a b"], "host"),
        (&["--add-model", "refrain-embedded.gguf"], "two models"),
        (&["--limits", "models=1.5GiB"], "models: "),
        (&["--limits", "prompts=many"], "prompts: "),
    ] {
        let line = refrain(&[&["serve", "--threads", "1"], args].concat()).refused(2);
        assert!(line.contains(message), "{line}");
    }
    refrain(&["serve", "--listen", "0", "--model", "nowhere.gguf"]).refused(3);
}

#[test]
fn ps_shows_what_servers_have_in_memory() {
    let (child, address) = start(&[]);
    let list = refrain(&["model", "ps", &address]).done();
    assert!(list.starts_with(&format!("{address} (refrain-")) && list.contains("refrain-embedded"), "{list}");
    assert!(list.contains("until others need its memory"), "{list}");
    let json: Value = serde_json::from_str(&refrain(&["model", "ps", "--json", &address]).done()).unwrap();
    let model = &json["servers"][0]["models"][0];
    assert_eq!((&model["name"], &model["until"]), (&json!("refrain-embedded"), &Value::Null));
    assert!(model["bytes"].as_u64() > Some(1000) && model["context_length"].as_u64() > Some(100));
    assert_eq!(stop(child, "-TERM"), Some(0));
    assert!(refrain(&["model", "ps", &address]).refused(1).contains("no server answers"));
    let (child, address) = start(&["--token", "a-token-of-some-length"]);
    assert!(refrain(&["model", "ps", &address]).refused(1).contains("REFRAIN_TOKEN"));
    let with_token =
        support::command(&["model", "ps", &address]).env("REFRAIN_TOKEN", "a-token-of-some-length").output();
    assert!(with_token.unwrap().status.success());
    assert_eq!(stop(child, "-TERM"), Some(0));
}
