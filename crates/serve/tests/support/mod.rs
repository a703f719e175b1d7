//! A server with the fixture model on a free port, and a small HTTP client that shows every byte.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use refrain::drafting::CostProfile;
use refrain::{CancelToken, Engine, EngineOptions};
use refrain_assistant::{Assistant, AssistantOptions, Gate};
use refrain_index::notes::{NotesOptions, NotesWriter};
use refrain_serve::{Limits, Loaded, ModelKind, ModelSpec, Models, ServeError, ServeOptions, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const MODEL: &str = "fixture";
pub(crate) const EMBEDDER: &str = "fixture-embedding";

/// The fixture's engine, loaded once per test program. Fixed prices: measured ones would let the machine's load decide about drafts.
pub(crate) fn engine() -> Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
    let load = || {
        let options =
            EngineOptions { cost_profile: Some(CostProfile::free_rows(100.0)), ..EngineOptions::default() };
        Engine::open(path, options).expect("the fixture loads")
    };
    ENGINE.get_or_init(load).clone()
}

pub(crate) fn models() -> Models {
    let text = ModelSpec::new(MODEL, || Ok(Loaded::new(engine())));
    let embedding = ModelSpec::new(EMBEDDER, || Ok(Loaded::new(engine()))).with_kind(ModelKind::Embedding);
    Models::new([text, embedding]).expect("two names")
}

/// A folder with the sample notes, an index of them and a store.
pub(crate) struct Place(pub(crate) TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("a folder"));
        let notes = place.0.path().join("notes");
        fs::create_dir(&notes).expect("a folder");
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/notes");
        for sample in fs::read_dir(samples).expect("the sample notes") {
            let sample = sample.expect("an entry");
            fs::copy(sample.path(), notes.join(sample.file_name())).expect("copied");
        }
        let mut writer =
            NotesWriter::open(&place.0.path().join("index"), NotesOptions::default()).expect("opens");
        writer.add(&[notes]).expect("exists");
        writer.update(&mut |_, _| ControlFlow::Continue(())).expect("updates");
        place
    }

    pub(crate) fn assistant(&self, gate: Arc<Gate>, options: AssistantOptions) -> Assistant {
        let builder = Assistant::builder(engine()).notes(self.0.path().join("index")).gate(gate);
        builder.store(self.0.path().join("store")).options(options).build().expect("builds")
    }

    pub(crate) fn server(&self, options: ServeOptions) -> (Running, Assistant) {
        let gate = Arc::<Gate>::default();
        let assistant = self.assistant(Arc::clone(&gate), AssistantOptions::default());
        let theirs = assistant.clone();
        let spec = ModelSpec::new(MODEL, move || {
            Ok(changed(Loaded::new(engine()), |it| it.assistant = Some(theirs.clone())))
        });
        let models = Models::new([spec]).expect("one name").with_gate(gate);
        (Running::with_models(options, Limits::default(), models), assistant)
    }
}

/// A running server. Dropping it stops it.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: CancelToken,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Running {
    pub(crate) fn start() -> Self {
        Self::with(ServeOptions::default(), Limits::default())
    }

    pub(crate) fn with(options: ServeOptions, limits: Limits) -> Self {
        Self::with_models(options, limits, models())
    }

    pub(crate) fn with_models(mut options: ServeOptions, mut limits: Limits, models: Models) -> Self {
        limits.grace_time = Duration::from_secs(2);
        (options.port, options.limits) = (0, limits);
        let server = Server::bind(options, models).expect("it binds");
        let address = server.local_addr();
        let stop = CancelToken::new();
        let theirs = stop.clone();
        let thread = std::thread::spawn(move || server.run(&theirs));
        Self { address, stop, thread: Some(thread) }
    }

    /// A server that the test runs itself.
    pub(crate) fn of(address: SocketAddr, stop: CancelToken) -> Self {
        Self { address, stop, thread: None }
    }

    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    pub(crate) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let host = ("Host", format!("localhost:{}", self.address.port()));
        let mut all: Vec<(&str, &str)> = headers.to_vec();
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            all.insert(0, (host.0, &host.1));
        }
        self.raw(method, path, &all, body)
    }

    /// A request with these headers only, and the length of the body.
    pub(crate) fn raw(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut stream = self.connect();
        send(&mut stream, method, path, headers, body);
        Reply::read(stream)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
        stream
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.request("GET", path, &[], "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.request("POST", path, &[("Content-Type", "application/json")], &body.to_string())
    }

    /// The answer of a request that succeeds.
    pub(crate) fn answer(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()
    }

    /// Starts a request and leaves its response unread.
    pub(crate) fn begin(&self, path: &str, body: &Value) -> TcpStream {
        self.begin_with("POST", path, &[("Content-Type", "application/json")], &body.to_string())
    }

    pub(crate) fn begin_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TcpStream {
        let mut stream = self.connect();
        let host = format!("localhost:{}", self.address.port());
        send(&mut stream, method, path, &[&[("Host", host.as_str())], headers].concat(), body);
        stream
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no metric {name}")).parse().expect("a number")
    }

    /// Waits until a condition holds. The test's own time limit ends it otherwise.
    pub(crate) fn wait(&self, mut is_met: impl FnMut(&Self) -> bool) {
        while !is_met(self) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        let Some(thread) = self.thread.take() else { return };
        let ended = thread.join();
        if !std::thread::panicking() {
            ended.expect("no panic").expect("it served");
        }
    }
}

fn send(stream: &mut TcpStream, method: &str, path: &str, headers: &[(&str, &str)], body: &str) {
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    // A server that refuses by the head may close before the body is sent.
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

/// A response.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn read(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).expect("a status line");
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {line:?}"));
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).expect("a header");
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let mut bytes = Vec::new();
        if headers.get("transfer-encoding").is_some_and(|value| value == "chunked") {
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).expect("the size of a chunk") == 0 {
                    break;
                }
                let size = usize::from_str_radix(line.trim(), 16).expect("a size");
                let mut chunk = vec![0; size + 2];
                reader.read_exact(&mut chunk).expect("a chunk");
                bytes.extend_from_slice(&chunk[..size]);
                if size == 0 {
                    break;
                }
            }
        } else {
            reader.read_to_end(&mut bytes).expect("the body");
        }
        Self { status, headers, body: String::from_utf8(bytes).expect("UTF-8") }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// `param` and `code` of an error.
    pub(crate) fn error(&self) -> Value {
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{}", self.body);
        error
    }

    /// The data of all events; the last one is `[DONE]` for chunks.
    pub(crate) fn events(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{}", self.body);
        assert_eq!(self.headers["content-type"], "text/event-stream");
        let lines = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.map(str::to_owned).collect()
    }

    /// The chunks of a stream that ends well.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", self.body);
        events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
    }
}

/// A chat request with one user message.
pub(crate) fn chat(content: &str) -> Value {
    json!({ "model": MODEL, "messages": [{ "role": "user", "content": content }], "max_tokens": 48 })
}

/// A request whose outputs end with the context only.
pub(crate) fn endless(content: &str) -> Value {
    let ends = engine().tokenizer().eos().iter().map(|end| (end.0.to_string(), json!(-100))).collect();
    let more =
        json!({ "n": 8, "temperature": 1, "max_tokens": 1_000_000, "logit_bias": Value::Object(ends) });
    with(&chat(content), more)
}

/// The value with a change.
pub(crate) fn changed<T>(mut value: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut value);
    value
}

/// `base` with the fields of `more`.
pub(crate) fn with(base: &Value, more: Value) -> Value {
    let mut value = base.clone();
    for (name, field) in more.as_object().expect("an object") {
        value[name] = field.clone();
    }
    value
}

/// A question that the fixture model answers from its prompt.
pub(crate) const QUESTION: &str = "Answer the question from the notes.\n\n# Car repair\nQulittus Works takes care of the repair of the car. \
    The repair costs 240 euros and takes place on 14 October in the workshop behind the station.\n\n\
    Question: Who takes care of the repair of the car?";
