//! A hub on this device: it serves files like the public one, and fails where a test wants it to.

#![allow(dead_code, reason = "every test file uses some of it")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use crate::support::{Ran, arg, command};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const REPO: &str = "owner/model-GGUF";

/// A request as the hub has read it.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn is_listing(&self) -> bool {
        self.path.starts_with("/api/")
    }
}

/// What the hub sends; the connection is closed behind it.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The connection is closed after so many bytes of the body.
    pub(crate) cut: Option<usize>,
    /// Pause after each piece of so many bytes.
    pub(crate) pauses: Option<(usize, Duration)>,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let headers = vec![("Content-Length".to_owned(), body.len().to_string())];
        Self { status, headers, body, cut: None, pauses: None }
    }

    pub(crate) fn redirect(location: &str) -> Self {
        Self::new(302, "").with("Location", location)
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(given, _)| given != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(given, _)| given != name);
        self
    }

    pub(crate) fn cut(self, at: usize) -> Self {
        Self { cut: Some(at), ..self }
    }

    pub(crate) fn paced(self, bytes: usize, pause: Duration) -> Self {
        Self { pauses: Some((bytes, pause)), ..self }
    }

    fn send(&self, stream: &mut dyn Write) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} x\r\nConnection: close\r\n", self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(head.as_bytes())?;
        stream.write_all(b"\r\n")?;
        let body = &self.body[..self.cut.unwrap_or(self.body.len()).min(self.body.len())];
        match self.pauses {
            None => stream.write_all(body)?,
            Some((bytes, pause)) => {
                for piece in body.chunks(bytes) {
                    stream.write_all(piece)?;
                    stream.flush()?;
                    thread::sleep(pause);
                }
            }
        }
        stream.flush()
    }
}

/// The files of a repository.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// Bytes that differ everywhere.
pub(crate) fn bytes(n: usize) -> Vec<u8> {
    (0..n as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

pub(crate) fn files<const N: usize>(files: [(&str, Vec<u8>); N]) -> Files {
    files.into_iter().map(|(path, bytes)| (path.to_owned(), bytes)).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&SHA256, bytes).as_ref())
}

fn blob_id(bytes: &[u8]) -> String {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    context.update(format!("blob {}\0", bytes.len()).as_bytes());
    context.update(bytes);
    hex(context.finish().as_ref())
}

/// The listing of a hub. Weights are large files, with a SHA-256.
pub(crate) fn listing(files: &Files) -> String {
    let siblings = files.iter().map(|(path, bytes)| {
        let mut file =
            serde_json::json!({ "rfilename": path, "size": bytes.len(), "blobId": blob_id(bytes) });
        if path.ends_with(".gguf") || path.ends_with(".safetensors") {
            file["lfs"] =
                serde_json::json!({ "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134 });
        }
        file
    });
    serde_json::json!({ "id": REPO, "sha": COMMIT, "gated": false, "siblings": siblings.collect::<Vec<_>>() })
        .to_string()
}

/// The answer of a hub that works.
pub(crate) fn good(files: &Files, request: &Request) -> Reply {
    if request.is_listing() {
        return Reply::new(200, listing(files)).with("Content-Type", "application/json");
    }
    let found = files.iter().find(|(path, _)| request.path == format!("/{REPO}/resolve/{COMMIT}/{path}"));
    let Some((_, bytes)) = found else { return Reply::new(404, "not found") };
    let etag = format!("\"{}\"", &sha256(bytes)[..32]);
    let from = request
        .header("Range")
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let is_same = request.header("If-Range").is_none_or(|given| given == etag);
    match from.filter(|from| is_same && *from < bytes.len()) {
        Some(from) => {
            let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
            Reply::new(206, &bytes[from..]).with("Content-Range", &range).with("ETag", &etag)
        }
        None => Reply::new(200, bytes.clone()).with("ETag", &etag),
    }
}

/// A running hub. It answers until the test program ends.
pub(crate) struct Hub {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Hub {
    /// A hub with these files. `answer` gets a request, how many were there for its path before, and the answer of a hub that works.
    pub(crate) fn start(
        files: Files,
        answer: impl Fn(&Request, usize, Reply) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::on("127.0.0.1:0", files, answer, |stream| Box::new(stream))
    }

    /// A hub at an address, behind a wrapper of its connections.
    pub(crate) fn on(
        address: &str,
        files: Files,
        answer: impl Fn(&Request, usize, Reply) -> Reply + Send + Sync + 'static,
        wrap: impl Fn(TcpStream) -> Box<dyn ReadWrite> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let requests = Arc::<Mutex<Vec<Request>>>::default();
        let (log, answer, wrap) = (Arc::clone(&requests), Arc::new(answer), Arc::new(wrap));
        let files = Arc::new(files);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer, wrap, files) =
                    (Arc::clone(&log), Arc::clone(&answer), Arc::clone(&wrap), Arc::clone(&files));
                thread::spawn(move || {
                    let mut stream = wrap(stream);
                    let Some(request) = read(&mut *stream) else { return };
                    let n_before = {
                        let mut log = log.lock().unwrap();
                        let n_before = log.iter().filter(|earlier| earlier.path == request.path).count();
                        log.push(request.clone());
                        n_before
                    };
                    let reply = answer(&request, n_before, good(&files, &request));
                    // A client that refuses the answer closes the connection.
                    let _ = reply.send(&mut *stream);
                });
            }
        });
        Self { port, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The requests for files.
    pub(crate) fn downloads(&self) -> Vec<Request> {
        self.requests().into_iter().filter(|request| !request.is_listing()).collect()
    }
}

pub(crate) trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

fn read(stream: &mut dyn ReadWrite) -> Option<Request> {
    let mut head = BufReader::with_capacity(1, stream);
    let mut line = String::new();
    head.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        head.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_owned(), value.to_owned())),
            None => return Some(Request { path, headers }),
        }
    }
}

/// A folder of models, and the program that pulls into it.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    pub(crate) fn models(&self) -> PathBuf {
        self.folder.path().join("models")
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The path of a file of the repository.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.models().join("owner").join("model-GGUF").join(path)
    }

    /// The program with this folder, and without tokens and proxies of this machine.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        for variable in
            ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_ENDPOINT", "HF_HUB_DISABLE_IMPLICIT_TOKEN"]
        {
            command.env_remove(variable);
        }
        command.env("REFRAIN_MODELS", self.models()).env("HOME", self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        finish(self.command(args).spawn().expect("it starts"))
    }

    pub(crate) fn pull(&self, hub: &Hub, more: &[&str]) -> Command {
        self.pull_named(hub, REPO, more)
    }

    pub(crate) fn pull_named(&self, hub: &Hub, name: &str, more: &[&str]) -> Command {
        let mut command = self.command(&[&["model", "pull", name], more].concat());
        command.env("HF_ENDPOINT", hub.url());
        command
    }

    /// Every file below the folder of models, and those beside it that a climbing name would reach.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.path().is_dir() {
                    true => folders.push(entry.path()),
                    false => {
                        let path = entry.path();
                        let below = path.strip_prefix(self.folder.path()).expect("below");
                        found.push(arg(below).replace('\\', "/"));
                    }
                }
            }
        }
        found.retain(|path| !path.contains("/.locks/") && !path.ends_with(".refrain-pull.json"));
        found.sort();
        found
    }
}

pub(crate) fn run(mut command: Command) -> Ran {
    finish(command.spawn().expect("it starts"))
}

pub(crate) fn finish(child: Child) -> Ran {
    let output = child.wait_with_output().expect("it ends");
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}
