//! A server on a Unix socket: who may open it, what is replaced, which names of hosts are allowed.
#![cfg(unix)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::JoinHandle;

use refrain::CancelToken;
use refrain_serve::{ServeError, ServeOptions, Server};

use crate::support::{changed, models};

struct Running(CancelToken, Option<JoinHandle<Result<(), ServeError>>>);

impl Running {
    fn start(path: &Path) -> Self {
        let server = bind(path).expect("it binds");
        assert_eq!(server.unix_socket(), Some(path));
        let stop = CancelToken::new();
        let theirs = stop.clone();
        Self(stop, Some(std::thread::spawn(move || server.run(&theirs))))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.cancel();
        self.1.take().expect("dropped once").join().expect("no panic").expect("it served");
    }
}

fn bind(path: &Path) -> Result<Server, ServeError> {
    Server::bind(changed(ServeOptions::default(), |it| it.unix_socket = Some(path.to_owned())), models())
}

fn request(path: &Path, head: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(path).expect("it listens");
    let request = format!("{head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("it answers");
    reply
}

#[test]
fn requests_are_answered_over_a_socket_of_one_user() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("refrain.sock");
    let server = Running::start(&path);
    let found = fs::metadata(&path).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    let body = r#"{"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4, "stream": true}"#;
    let reply = request(
        &path,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json",
        body,
    );
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("[DONE]"), "{reply}");
    drop(server);
    assert!(!path.exists(), "the socket goes with the server");
}

#[test]
fn a_client_that_goes_away_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("refrain.sock");
    let _server = Running::start(&path);
    let metric = |name: &str| {
        let text = request(&path, "GET /metrics HTTP/1.1\r\nHost: localhost", "");
        let line =
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
        line.unwrap_or_else(|| panic!("no metric {name}")).parse::<f64>().expect("a number")
    };
    let body = r#"{"prompt": "Hello", "max_tokens": 100000, "logit_bias": {}, "stream": false, "n": 8}"#;
    let mut stream = UnixStream::connect(&path).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    drop(stream);
    // The test's own time limit ends it otherwise.
    while metric("refrain_connections") > 1.0 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_stale_socket_is_replaced_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("refrain.sock");
    // A killed process leaves its socket.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = Running::start(&path);
    assert!(matches!(bind(&path), Err(ServeError::SocketInUse { .. })));
    assert!(request(&path, "GET /health HTTP/1.1\r\nHost: localhost", "").starts_with("HTTP/1.1 200"));
    drop(server);

    // Another program listens.
    let other = UnixListener::bind(&path).unwrap();
    assert!(matches!(bind(&path), Err(ServeError::SocketInUse { .. })));
    drop(other);
    fs::remove_file(&path).unwrap();

    fs::write(&path, "mine").unwrap();
    assert!(matches!(bind(&path), Err(ServeError::NotASocket { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), &path).unwrap();
    assert!(matches!(bind(&path), Err(ServeError::NotASocket { .. })));

    let long = folder.path().join("x".repeat(200));
    assert!(matches!(bind(&long), Err(ServeError::Socket { .. })));
    assert!(matches!(bind(Path::new("/nowhere/refrain.sock")), Err(ServeError::Socket { .. })));
}

#[test]
fn a_replaced_socket_is_left_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("refrain.sock");
    let server = Running::start(&path);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "mine").unwrap();
    drop(server);
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}

#[test]
fn programs_name_any_host_and_pages_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("refrain.sock");
    let _server = Running::start(&path);
    for (headers, status) in [
        ("Host: localhost", "200"),
        ("Host: refrain", "200"),
        ("Host: evil.example", "200"),
        ("Host: ", "403"),
        ("Host: a b", "403"),
        ("Host: evil.example\r\nOrigin: http://evil.example", "403"),
        ("Host: evil.example\r\nSec-Fetch-Site: same-origin", "403"),
        ("Host: localhost\r\nOrigin: http://evil.example", "403"),
        ("Host: localhost\r\nOrigin: http://localhost", "200"),
    ] {
        let reply = request(&path, &format!("GET /v1/models HTTP/1.1\r\n{headers}"), "");
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{headers:?}: {reply}");
    }
}
