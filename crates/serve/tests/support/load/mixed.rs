//! Valid and invalid requests to every endpoint, with their known answers.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::time::Duration;

use refrain::{Drafting, SessionOptions};
use refrain_serve::{Limits, Loaded, ModelKind, ModelSpec, Models, ServeOptions};
use serde_json::{Value, json};

use super::served::LOADED_IN_TURN;
use crate::support::{EMBEDDER, MODEL, QUESTION, Running, changed, chat, engine, with};

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    method: &'static str,
    path: &'static str,
    headers: &'static str,
    body: String,
}

impl Call {
    fn get(path: &'static str) -> Self {
        Self { method: "GET", path, headers: "", body: String::new() }
    }

    fn post(path: &'static str, body: &Value) -> Self {
        let headers = "Content-Type: application/json\r\n";
        Self { method: "POST", path, headers, body: body.to_string() }
    }
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const EMBEDDINGS: &str = "/v1/embeddings";

/// Requests with different prompts: together they need more memory than is kept for prompts.
const PROMPTS: usize = 24;

fn calls() -> Vec<Call> {
    let stream = |request: &Value| with(request, json!({ "stream": true }));
    let question = with(&chat(QUESTION), json!({ "temperature": 0, "max_tokens": 24 }));
    let short = with(&chat("Write a line about the sea."), json!({ "max_tokens": 8, "temperature": 0 }));
    let sampled = with(&short, json!({ "temperature": 1, "seed": 7 }));
    let weather = json!({ "type": "function", "function": {
        "name": "weather",
        "parameters": { "type": "object", "properties": { "city": { "enum": ["Oslo", "Rome"] } }, "required": ["city"], "additionalProperties": false },
    } });
    let tools = with(&short, json!({ "max_tokens": 64, "tools": [weather], "tool_choice": "required" }));
    let schema = json!({ "type": "json_schema", "json_schema": { "name": "answer", "schema": {
        "type": "object", "properties": { "yes": { "type": "boolean" } }, "required": ["yes"], "additionalProperties": false,
    } } });
    let formatted = with(&short, json!({ "max_tokens": 32, "response_format": schema }));
    let text = json!({ "model": MODEL, "prompt": "Answer the question", "max_tokens": 8, "temperature": 0 });
    let input = json!({ "model": MODEL, "input": QUESTION, "max_output_tokens": 16, "temperature": 0 });
    let texts = json!({ "model": EMBEDDER, "input": ["The sea.", "A train at noon."] });
    let mut calls = vec![
        Call::post(CHAT, &question),
        Call::post(CHAT, &stream(&question)),
        Call::post(
            CHAT,
            &with(&question, json!({ "prediction": { "type": "content", "content": "Qulittus Works" } })),
        ),
        Call::post(CHAT, &with(&question, json!({ "service_tier": "flex", "n": 2 }))),
        Call::post(CHAT, &sampled),
        Call::post(
            CHAT,
            &stream(&with(&sampled, json!({ "n": 3, "stream_options": { "include_usage": true } }))),
        ),
        Call::post(CHAT, &with(&short, json!({ "logprobs": true, "top_logprobs": 3 }))),
        Call::post(CHAT, &tools),
        Call::post(CHAT, &stream(&tools)),
        Call::post(CHAT, &formatted),
        Call::post(COMPLETIONS, &text),
        Call::post(COMPLETIONS, &stream(&text)),
        Call::post(
            COMPLETIONS,
            &with(&text, json!({ "prompt": ["Summarize", "Answer"], "n": 2, "best_of": 2 })),
        ),
        Call::post(RESPONSES, &input),
        Call::post(RESPONSES, &stream(&input)),
        Call::post(EMBEDDINGS, &texts),
        Call::post(EMBEDDINGS, &with(&texts, json!({ "encoding_format": "base64" }))),
        Call::get("/v1/models"),
        Call::get("/v1/models/fixture"),
        Call::get("/health"),
        Call::get("/openapi.json"),
        Call::get("/"),
        // Refused ones.
        Call::get("/v1/models/none"),
        Call::get("/v1/nothing"),
        Call::get(CHAT),
        Call { headers: "Origin: http://evil.example\r\n", ..Call::get("/v1/models") },
        Call { headers: "", ..Call::post(CHAT, &short) },
        Call { body: "{\"messages\": [".to_owned(), ..Call::post(CHAT, &short) },
        Call { body: "[".repeat(2000), ..Call::post(CHAT, &short) },
        Call::post(CHAT, &with(&short, json!({ "model": "none" }))),
        Call::post(CHAT, &with(&short, json!({ "mirostat": 2 }))),
        Call::post(CHAT, &with(&short, json!({ "temperature": 9 }))),
        Call::post(CHAT, &with(&short, json!({ "messages": [] }))),
        Call::post(
            CHAT,
            &with(&short, json!({ "messages": [{ "role": "user", "content": "x ".repeat(100_000) }] })),
        ),
        Call::post(COMPLETIONS, &with(&text, json!({ "prompt": [u32::MAX] }))),
        Call::post(RESPONSES, &with(&input, json!({ "previous_response_id": "resp_1" }))),
        Call::post(EMBEDDINGS, &with(&texts, json!({ "model": MODEL }))),
        Call::post(EMBEDDINGS, &with(&texts, json!({ "input": "x ".repeat(20_000) }))),
    ];
    for prompt in 0..PROMPTS {
        let request = with(
            &chat(&format!("Write a line about place {prompt}. {QUESTION}")),
            json!({ "max_tokens": 6 }),
        );
        calls.push(Call::post(CHAT, &if prompt % 2 == 0 { request.clone() } else { stream(&request) }));
    }
    // Loads and unloads a model.
    calls.extend(LOADED_IN_TURN.map(|name| Call::post(CHAT, &with(&short, json!({ "model": name })))));
    calls
}

/// All requests with their answers.
pub(crate) fn known_answers() -> &'static [(Call, String)] {
    static KNOWN: OnceLock<Vec<(Call, String)>> = OnceLock::new();
    KNOWN.get_or_init(plain_answers)
}

/// The answers of a server without drafts and kept prompts, one after the other.
fn plain_answers() -> Vec<(Call, String)> {
    let model = |name: &str| {
        let session = SessionOptions { drafting: Drafting::Off, ..SessionOptions::default() };
        ModelSpec::new(name, move || Ok(changed(Loaded::new(engine()), |it| it.session = session.clone())))
    };
    let [second, third] = LOADED_IN_TURN.map(model);
    let embedder = model(EMBEDDER).with_kind(ModelKind::Embedding);
    let models = Models::new([model(MODEL), embedder, second, third]).expect("four names");
    let plain = Running::with_models(
        ServeOptions::default(),
        changed(Limits::default(), |it| it.warm_bytes = 0),
        models,
    );
    let mut client = Client::new(plain.address);
    calls()
        .into_iter()
        .map(|call| {
            let text = client.text(&call);
            (call, text)
        })
        .collect()
}

/// A client that keeps its connection, as most do.
pub(crate) struct Client {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

struct Answer {
    status: u16,
    body: String,
    is_last: bool,
}

/// A server may take so long for its next byte.
const PATIENCE: Duration = Duration::from_secs(120);

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, stream: None }
    }

    pub(crate) fn metrics(&mut self) -> String {
        self.call(&Call::get("/metrics")).body
    }

    /// The status and the texts of an answer, without ids, times and counts.
    pub(crate) fn text(&mut self, call: &Call) -> String {
        let Answer { status, body, .. } = self.call(call);
        let mut text = format!("{status}:");
        let is_stream = body.contains("data: ");
        let documents: Vec<&str> = match is_stream {
            true => body.lines().filter_map(|line| line.strip_prefix("data: ")).collect(),
            false => vec![&body],
        };
        for document in documents {
            match serde_json::from_str(document) {
                Ok(value) => add_texts(&value, &mut text),
                // The end of a stream, or a page.
                Err(_) => text.push_str(document),
            }
        }
        text
    }

    fn call(&mut self, call: &Call) -> Answer {
        let kept = self.stream.take();
        let is_kept = kept.is_some();
        let mut stream = kept.unwrap_or_else(|| self.connect());
        let answer = match ask(&mut stream, self.address, call) {
            // The server may have ended a kept connection meanwhile; then it has not seen the request.
            Err(_) if is_kept => {
                stream = self.connect();
                ask(&mut stream, self.address, call)
            }
            answer => answer,
        };
        let answer = answer.unwrap_or_else(|error| panic!("no answer to {call:?}: {error}"));
        self.stream = (!answer.is_last).then_some(stream);
        answer
    }

    fn connect(&self) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        BufReader::new(stream)
    }
}

/// Sends a request and reads its answer.
fn ask(stream: &mut BufReader<TcpStream>, address: SocketAddr, call: &Call) -> io::Result<Answer> {
    let Call { method, path, headers, body } = call;
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: localhost:{}\r\n{headers}", address.port());
    if *method == "POST" {
        let _ = write!(request, "Content-Length: {}\r\n", body.len());
    }
    request.push_str("\r\n");
    request.push_str(body);
    // A refusal may come before the whole body was taken; it is read in any case.
    let sent = stream.get_mut().write_all(request.as_bytes());
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(sent.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()));
    }
    let status =
        line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    let (mut is_chunked, mut is_last, mut n_bytes) = (false, sent.is_err(), 0);
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "transfer-encoding" => is_chunked = value == "chunked",
            "content-length" => n_bytes = value.parse().map_err(|_| io::ErrorKind::InvalidData)?,
            "connection" => is_last |= value == "close",
            _ => {}
        }
    }
    let mut body = vec![0; n_bytes];
    stream.read_exact(&mut body)?;
    while is_chunked {
        line.clear();
        stream.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim(), 16).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk)?;
        body.extend_from_slice(&chunk[..size]);
        is_chunked = size > 0;
    }
    let body = String::from_utf8(body).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Answer { status, body, is_last })
}

/// Fields whose values depend on the time, on other requests, or on whether there are drafts.
const UNKNOWN: [&str; 8] =
    ["id", "item_id", "call_id", "created", "created_at", "completed_at", "usage", "system_fingerprint"];

fn add_texts(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter().filter(|(name, _)| !UNKNOWN.contains(&name.as_str())) {
                let _ = write!(out, "{name}=");
                add_texts(field, out);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| add_texts(value, out)),
        value => {
            let _ = write!(out, "{value} ");
        }
    }
}
