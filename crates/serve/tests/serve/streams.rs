//! Many clients at once, clients that go away, and stops of the server.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use refrain::{Drafting, SessionOptions};
use refrain_serve::{Limits, Loaded, ModelSpec, Models, ServeOptions};
use serde_json::{Value, json};

use crate::support::{MODEL, QUESTION, Reply, Running, changed, chat, endless, engine, with};

fn content(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"].as_str().expect("text").to_owned()
}

#[test]
fn clients_at_once_get_what_each_gets_alone_without_drafts() {
    const CLIENTS: usize = 8;
    let server = Running::start();
    let requests: Vec<Value> = (0..25)
        .map(|n| {
            let content =
                if n % 3 == 0 { QUESTION.to_owned() } else { format!("Write a line about place {n}.") };
            let temperature = if n % 2 == 0 { 0.0 } else { 1.0 };
            with(&chat(&content), json!({ "temperature": temperature, "seed": n, "max_tokens": 20 + n }))
        })
        .collect();
    // Alone, one after the other, without drafts and kept prompts.
    let session = SessionOptions { drafting: Drafting::Off, ..SessionOptions::default() };
    let spec =
        ModelSpec::new(MODEL, move || Ok(changed(Loaded::new(engine()), |it| it.session = session.clone())));
    let plain = Models::new([spec]).expect("a name");
    let plain = Running::with_models(
        ServeOptions::default(),
        changed(Limits::default(), |it| it.warm_bytes = 0),
        plain,
    );
    let alone: Vec<String> =
        requests.iter().map(|request| content(&plain.answer("/v1/chat/completions", request))).collect();
    let n_done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, requests, alone, n_done) = (&server, &requests, &alone, &n_done);
            scope.spawn(move || {
                for step in 0..requests.len() {
                    let index = (step * 7 + client * 3) % requests.len();
                    let request = &requests[index];
                    let text = if (step + client) % 2 == 0 {
                        content(&server.answer("/v1/chat/completions", request))
                    } else {
                        let stream = with(request, json!({ "stream": true }));
                        let chunks = server.post("/v1/chat/completions", &stream).chunks();
                        chunks
                            .iter()
                            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
                            .collect()
                    };
                    assert_eq!(text, alone[index], "request {index} of client {client}");
                    n_done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(n_done.into_inner(), CLIENTS * requests.len());
    let passes = server.metric("refrain_shared_passes_total");
    assert!(passes > 0.0, "requests share passes");
    assert!(server.metric("refrain_shared_steps_total") >= 2.0 * passes);
    assert!(server.metric("refrain_shared_rows_total") >= 2.0 * passes);
    assert_eq!(plain.metric("refrain_shared_passes_total"), 0.0, "one at a time");
}

#[test]
fn a_client_that_goes_away_cancels() {
    let mut limits = Limits::default();
    limits.running = 1;
    let server = Running::with(ServeOptions::default(), limits);
    for (index, streams) in [true, false].into_iter().enumerate() {
        let n_before = 2.0 * index as f64;
        let mut stream =
            server.begin("/v1/chat/completions", &with(&endless("A story."), json!({ "stream": streams })));
        server.wait(|server| server.metric("refrain_requests_running") == 1.0);
        if streams {
            let mut some = [0; 64];
            stream.read_exact(&mut some).expect("the head");
        }
        let waits = server.begin("/v1/chat/completions", &endless("Another story."));
        server.wait(|server| server.metric("refrain_requests_total") == n_before + 2.0);
        assert_eq!(server.metric("refrain_requests_waiting"), 1.0);
        drop(waits);
        server.wait(|server| server.metric("refrain_requests_waiting") == 0.0);
        drop(stream);
        server.wait(|server| server.metric("refrain_requests_running") == 0.0);
        server.wait(|server| server.metric("refrain_requests_cancelled_total") == n_before + 2.0);
    }
    server.answer("/v1/chat/completions", &chat("Hello."));
}

#[test]
fn a_stop_finishes_short_streams_and_ends_long_ones() {
    let server = Running::start();
    let stream = json!({ "stream": true });
    let short = server.begin("/v1/chat/completions", &with(&chat(QUESTION), stream.clone()));
    let long = with(&endless("A story."), json!({ "n": 8, "stream": true }));
    let long = server.begin("/v1/chat/completions", &long);
    server.wait(|server| server.metric("refrain_requests_total") == 2.0);
    server.stop();
    let short = Reply::read(short);
    assert!(short.body.ends_with("data: [DONE]\n\n"), "{}", short.body);
    let long = Reply::read(long);
    let last = long.events().pop().expect("an event");
    // Cancelled after the grace time, or finished within it: never cut without a word.
    assert!(last == "[DONE]" || last.contains("\"code\":\"stopped\""), "{last}");
}

#[test]
fn an_idle_stream_has_comments() {
    let mut limits = Limits::default();
    limits.running = 1;
    limits.ping_time = Duration::from_millis(20);
    let server = Running::with(ServeOptions::default(), limits);
    let long = server.begin("/v1/chat/completions", &endless("A story."));
    server.wait(|server| server.metric("refrain_requests_running") == 1.0);
    let mut waits = server.begin("/v1/chat/completions", &with(&chat("Hello."), json!({ "stream": true })));
    let mut text = String::new();
    while !text.contains(": ping\n\n") {
        let mut bytes = [0; 256];
        let n = waits.read(&mut bytes).expect("bytes");
        assert!(n > 0, "{text}");
        text.push_str(std::str::from_utf8(&bytes[..n]).expect("ASCII"));
    }
    drop((long, waits));
}

#[test]
fn a_client_that_reads_nothing_is_dropped() {
    let mut limits = Limits::default();
    limits.stall_time = Duration::from_millis(300);
    let server = Running::with(ServeOptions::default(), limits);
    // Many megabytes, so that the system's buffers are full.
    let probabilities = json!({ "stream": true, "logprobs": true, "top_logprobs": 20 });
    let unread = server.begin("/v1/chat/completions", &with(&endless("A story."), probabilities));
    server.wait(|server| server.metric("refrain_requests_total") == 1.0);
    // The connection that asks is the only one left.
    server.wait(|server| {
        server.metric("refrain_requests_running") == 0.0 && server.metric("refrain_connections") == 1.0
    });
    drop(unread);
    server.answer("/v1/chat/completions", &chat("Hello."));
}
