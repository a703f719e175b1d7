//! What is refused, and how: the status, the form of the error, the field's name.

use std::io::Write;
use std::time::Duration;

use proptest::prelude::*;
use refrain_serve::{Limits, ServeOptions};
use serde_json::{Value, json};

use crate::support::{self, Running, changed, chat, endless, with};

#[test]
fn fields_are_refused_by_name() {
    let server = Running::start();
    let base = chat("Hello.");
    let user = |content: Value| json!([{ "role": "user", "content": content }]);
    let cases = [
        (json!({ "messages": null }), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": "Hello." }), "messages"),
        (json!({ "messages": ["Hello."] }), "messages[0]"),
        (json!({ "messages": [{ "content": "Hello." }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "narrator", "content": "Hello." }] }), "messages[0].role"),
        (
            json!({ "messages": [{ "role": "function", "name": "f", "content": "Hello." }] }),
            "messages[0].role",
        ),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (json!({ "messages": [{ "role": "assistant" }] }), "messages[0].content"),
        (json!({ "messages": [{ "role": "tool", "content": "Rain." }] }), "messages[0].tool_call_id"),
        (json!({ "messages": user(json!(3)) }), "messages[0].content"),
        (json!({ "messages": user(json!([{ "type": "text" }])) }), "messages[0].content[0].text"),
        (
            json!({ "messages": user(json!([{ "type": "image_url", "image_url": { "url": "data:," } }])) }),
            "messages[0].content[0]",
        ),
        (
            json!({ "messages": user(json!([{ "type": "text", "text": "a" }, { "type": "input_audio" }])) }),
            "messages[0].content[1]",
        ),
        (json!({ "messages": user(json!([{ "type": "file" }])) }), "messages[0].content[0]"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "temperature": 2.1 }), "temperature"),
        (json!({ "temperature": -0.1 }), "temperature"),
        (json!({ "top_p": 1.5 }), "top_p"),
        (json!({ "min_p": 2 }), "min_p"),
        (json!({ "presence_penalty": 3 }), "presence_penalty"),
        (json!({ "frequency_penalty": -3 }), "frequency_penalty"),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 99 }), "n"),
        (json!({ "n": 1.5 }), "n"),
        (json!({ "seed": "x" }), "seed"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "max_completion_tokens": -2 }), "max_completion_tokens"),
        (json!({ "stop": vec!["a"; 65] }), "stop"),
        (json!({ "stop": "" }), "stop"),
        (json!({ "stop": [1] }), "stop"),
        (json!({ "logprobs": 1 }), "logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": -1 }), "top_logprobs"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias"),
        (json!({ "logit_bias": { "1": 101 } }), "logit_bias"),
        (json!({ "logit_bias": { "999999": 1 } }), "logit_bias"),
        (json!({ "stream": "yes" }), "stream"),
        (json!({ "stream_options": { "include_usage": true } }), "stream_options"),
        (json!({ "response_format": "json" }), "response_format"),
        (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
        (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x" } } }),
            "response_format.json_schema.schema",
        ),
        (json!({ "response_format": { "type": "json_object", "schema": 123 } }), "response_format.schema"),
        (
            json!({ "response_format": { "type": "json_object", "schema": { "type": "hiccup" } } }),
            "response_format.schema",
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": { "not": {} } } } }),
            "response_format.json_schema.schema",
        ),
        (json!({ "prediction": { "type": "other", "content": "a" } }), "prediction.type"),
        (json!({ "prediction": { "type": "content" } }), "prediction.content"),
        (json!({ "documents": [{ "title": "a" }] }), "documents[0].text"),
        (json!({ "modalities": ["text", "audio"] }), "modalities"),
        (json!({ "audio": { "voice": "a", "format": "wav" } }), "audio"),
        (json!({ "web_search_options": {} }), "web_search_options"),
        (json!({ "functions": [] }), "functions"),
        (json!({ "function_call": "auto" }), "function_call"),
        (json!({ "reasoning_effort": "high" }), "reasoning_effort"),
        (json!({ "verbosity": "low" }), "verbosity"),
        (json!({ "service_tier": "best" }), "service_tier"),
        (json!({ "chat_template_kwargs": { "messages": [] } }), "chat_template_kwargs"),
        (json!({ "logit_bias": { "+5": 1 } }), "logit_bias"),
        (json!({ "typical_p": 0.5 }), "typical_p"),
        (json!({ "model": 3 }), "model"),
    ];
    for (fields, param) in cases {
        let reply = server.post("/v1/chat/completions", &with(&base, fields.clone()));
        let error = reply.error();
        assert_eq!((reply.status, &error["param"]), (400, &json!(param)), "{fields}: {}", reply.body);
        assert_eq!(error["type"], "invalid_request_error");
        // A stream that cannot start is refused in the same way.
        let reply = server
            .post("/v1/chat/completions", &with(&with(&base, json!({ "stream": true })), fields.clone()));
        if param != "stream" && param != "stream_options" {
            assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)), "{fields}");
        }
    }
    for (fields, param) in [
        (json!({ "echo": true, "prompt": [1, 2] }), "echo"),
        (json!({ "suffix": "x" }), "suffix"),
        (json!({ "best_of": 3 }), "best_of"),
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": [[1, "a"]] }), "prompt"),
        (json!({ "prompt": [99999999] }), "prompt"),
        (json!({ "prompt": ["a", "b", "c"], "n": 4 }), "prompt"),
        (json!({ "logprobs": 21 }), "logprobs"),
        (json!({ "messages": [] }), "messages"),
    ] {
        let base = json!({ "prompt": "Hello.", "max_tokens": 4 });
        let reply = server.post("/v1/completions", &with(&base, fields.clone()));
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)), "{fields}: {}", reply.body);
    }
    for (fields, param) in [
        (json!({ "input": null }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0]"),
        (json!({ "input": [{ "type": "web_search_call" }] }), "input[0].type"),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }),
            "input[0].content[0]",
        ),
        (
            json!({ "input": [{ "type": "function_call", "name": "f", "arguments": "{}" }] }),
            "input[0].call_id",
        ),
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "conversation": "conv_1" }), "conversation"),
        (json!({ "background": true }), "background"),
        (json!({ "truncation": "auto" }), "truncation"),
        (json!({ "prompt": { "id": "p" } }), "prompt"),
        (json!({ "text": { "format": { "type": "xml" } } }), "text.format.type"),
        (json!({ "reasoning": { "effort": "high" } }), "reasoning.effort"),
        (json!({ "max_output_tokens": 0 }), "max_output_tokens"),
        (json!({ "include": [3] }), "include[0]"),
        (json!({ "stop": "x" }), "stop"),
        (json!({ "metadata": 3 }), "metadata"),
        (json!({ "metadata": { "a": 1 } }), "metadata"),
        (json!({ "metadata": { "a": "b".repeat(513) } }), "metadata"),
        (json!({ "max_tokens": 3 }), "max_tokens"),
    ] {
        let base = json!({ "input": "Hello.", "max_output_tokens": 4 });
        let reply = server.post("/v1/responses", &with(&base, fields.clone()));
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)), "{fields}: {}", reply.body);
    }
}

#[test]
fn harmless_fields_are_ignored() {
    let server = Running::start();
    let base = with(&chat("Hello."), json!({ "temperature": 0, "max_tokens": 6 }));
    let plain = server.answer("/v1/chat/completions", &base);
    let fields = json!({
        "user": "u", "metadata": { "a": "b" }, "store": false, "safety_identifier": "s", "prompt_cache_key": "k",
        "service_tier": "flex", "n": 1, "modalities": ["text"], "parallel_tool_calls": true, "stop": null, "audio": null,
        "tools": [], "logit_bias": {}, "stream": false, "typical_p": null, "response_format": { "type": "text" },
    });
    let answer = server.answer("/v1/chat/completions", &with(&base, fields));
    assert_eq!(answer["choices"], plain["choices"]);
    // The first model answers requests that name none.
    let mut unnamed = base.clone();
    unnamed.as_object_mut().unwrap().remove("model");
    assert_eq!(server.answer("/v1/chat/completions", &unnamed)["model"], support::MODEL);
}

#[test]
fn bodies_methods_and_addresses_are_checked() {
    let mut limits = Limits::default();
    limits.body_bytes = 2000;
    limits.body_time = Duration::from_millis(300);
    let server = Running::with(ServeOptions::default(), limits);
    let json_type = [("Content-Type", "application/json")];
    let status = |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let reply = server.request(method, path, headers, body);
        assert!(reply.json()["error"]["message"].is_string(), "{}", reply.body);
        reply.status
    };
    assert_eq!(status("POST", "/v1/chat/completions", &json_type, "{"), 400);
    assert_eq!(status("POST", "/v1/chat/completions", &json_type, "[]"), 400);
    assert_eq!(status("POST", "/v1/chat/completions", &json_type, &"[".repeat(1000)), 400);
    assert_eq!(status("POST", "/v1/chat/completions", &json_type, &"x".repeat(2001)), 413);
    assert_eq!(status("POST", "/v1/chat/completions", &[], "{}"), 415);
    assert_eq!(status("POST", "/v1/chat/completions", &[("Content-Type", "text/plain")], "{}"), 415);
    assert_eq!(status("GET", "/v1/chat/completions", &[], ""), 405);
    assert_eq!(status("POST", "/v1/models", &json_type, "{}"), 405);
    assert_eq!(status("GET", "/v1/nowhere", &[], ""), 404);
    assert_eq!(status("GET", "/etc/passwd", &[], ""), 404);
    assert_eq!(status("GET", "/v1/models/none", &[], ""), 404);
    assert_eq!(status("GET", "/v1/models/../../etc/passwd", &[], ""), 404);
    let many = format!("{{\"a\": [{}0]}}", "0,".repeat(600));
    let few = Running::with(ServeOptions::default(), changed(Limits::default(), |it| it.json_values = 500));
    let reply = few.request("POST", "/v1/responses", &json_type, &many);
    assert_eq!((reply.status, &reply.error()["code"]), (400, &json!("too_many_values")));
    let tight = Running::with(ServeOptions::default(), changed(Limits::default(), |it| it.bodies_bytes = 10));
    assert_eq!(tight.post("/v1/chat/completions", &chat("Hello.")).status, 429);
    // The bytes of a body count until its request ends.
    let long = endless("A story.");
    let mut room = Limits::default();
    room.bodies_bytes = long.to_string().len() + 20;
    let counting = Running::with(ServeOptions::default(), room);
    let running = counting.begin("/v1/chat/completions", &long);
    counting.wait(|server| server.metric("refrain_requests_running") == 1.0);
    assert_eq!(counting.post("/v1/chat/completions", &chat("Hello.")).status, 429);
    drop(running);
    counting.wait(|server| server.metric("refrain_requests_running") == 0.0);
    counting.answer("/v1/chat/completions", &chat("Hello."));
    // A body that never comes.
    let slow = [("Content-Type", "application/json"), ("Content-Length", "100")];
    assert_eq!(status("POST", "/v1/chat/completions", &slow, ""), 408);
}

#[test]
fn models_and_contexts_are_checked() {
    let server = Running::start();
    let reply = server.post("/v1/chat/completions", &with(&chat("Hello."), json!({ "model": "gpt-4o" })));
    assert_eq!((reply.status, &reply.error()["code"]), (404, &json!("model_not_found")));
    let reply =
        server.post("/v1/chat/completions", &with(&chat("Hello."), json!({ "model": support::EMBEDDER })));
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("model")));
    let reply = server.post("/v1/embeddings", &json!({ "model": support::MODEL, "input": "Hello." }));
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("model")));
    let reply = server.post("/v1/chat/completions", &chat(&"word ".repeat(20_000)));
    let error = reply.error();
    assert_eq!((reply.status, &error["code"]), (400, &json!("context_length_exceeded")));
    assert_eq!(error["param"], "messages");
}

#[test]
fn slow_bodies_take_no_place_of_others() {
    let mut limits = Limits::default();
    limits.running = 1;
    limits.waiting = 1;
    let server = Running::with(ServeOptions::default(), limits);
    let host = format!("localhost:{}", server.address.port());
    let slow: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = server.connect();
            let head =
                "POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 100";
            stream.write_all(format!("{head}\r\nHost: {host}\r\n\r\n{{").as_bytes()).unwrap();
            stream
        })
        .collect();
    server.wait(|server| server.metric("refrain_connections") == 9.0);
    server.answer("/v1/chat/completions", &chat("Hello."));
    drop(slow);
}

#[test]
fn monitors_are_answered_when_all_connections_are_taken() {
    let server = Running::with(ServeOptions::default(), changed(Limits::default(), |it| it.connections = 1));
    let taken = server.connect();
    server.wait(|server| server.metric("refrain_connections") == 2.0);
    let reply = server.post("/v1/chat/completions", &chat("Hello."));
    assert_eq!((reply.status, &reply.error()["code"]), (503, &json!("connections")));
    assert_eq!(reply.headers["retry-after"], "1");
    assert_eq!(server.get("/v1/models").status, 503);
    assert_eq!(server.get("/health").status, 200);
    drop(taken);
    server.wait(|server| server.get("/v1/models").status == 200);
}

#[test]
fn a_full_queue_refuses_with_a_time() {
    let mut limits = Limits::default();
    limits.running = 1;
    limits.waiting = 1;
    let server = Running::with(ServeOptions::default(), limits);
    let long = endless("Tell a story.");
    let first = server.begin("/v1/chat/completions", &long);
    let second = server.begin("/v1/chat/completions", &long);
    server.wait(|server| {
        server.metric("refrain_requests_running") == 1.0 && server.metric("refrain_requests_waiting") == 1.0
    });
    let reply = server.post("/v1/chat/completions", &chat("Hello."));
    assert_eq!((reply.status, &reply.error()["code"]), (429, &json!("queue_full")));
    assert!(reply.headers["retry-after"].parse::<u32>().unwrap() >= 1);
    drop((first, second));
    // Both are cancelled, and the next request is answered.
    server.wait(|server| {
        server.metric("refrain_requests_running") + server.metric("refrain_requests_waiting") == 0.0
    });
    server.answer("/v1/chat/completions", &chat("Hello."));
}

/// A JSON value of a few levels, often near what fields take.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..30).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z<>{}\"\\\\]{0,8}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        prop::sample::select(vec![
            "text",
            "function",
            "auto",
            "required",
            "user",
            "tool",
            "content",
            "json_object",
            "json_schema",
            "object"
        ])
        .prop_map(Value::from),
    ];
    let names = [
        "type",
        "role",
        "content",
        "text",
        "name",
        "function",
        "parameters",
        "schema",
        "json_schema",
        "properties",
        "arguments",
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(names.to_vec()), inner), 0..4).prop_map(|fields| {
                fields
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            }),
        ]
    })
}

#[test]
fn any_value_of_any_field_is_an_answer_or_a_refusal() {
    let server = Running::start();
    let fields = [
        "messages",
        "temperature",
        "top_p",
        "top_k",
        "n",
        "stop",
        "seed",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "response_format",
        "prediction",
        "documents",
        "stream",
        "stream_options",
        "chat_template_kwargs",
        "prompt",
        "input",
        "text",
        "reasoning",
        "include",
        "instructions",
        "metadata",
        "encoding_format",
        "prompt_cache_key",
        "model",
        "echo",
        "system",
        "thinking",
        "output_config",
        "stop_sequences",
        "format",
        "think",
        "keep_alive",
        "raw",
        "images",
    ];
    let paths = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/api/chat",
        "/api/generate",
        "/api/embed",
    ];
    let cases = (
        prop::sample::select(paths.to_vec()),
        prop::collection::vec((prop::sample::select(fields.to_vec()), value()), 0..4),
    );
    proptest!(ProptestConfig::with_cases(256), |((path, changes) in cases)| {
        let mut request = match path {
            "/v1/chat/completions" => with(&chat("Hello."), json!({ "max_tokens": 2 })),
            "/v1/completions" => json!({ "prompt": "Hello.", "max_tokens": 2 }),
            "/v1/responses" => json!({ "input": "Hello.", "max_output_tokens": 2 }),
            "/v1/messages" | "/v1/messages/count_tokens" => with(&chat("Hello."), json!({ "max_tokens": 2 })),
            "/api/chat" => with(&chat("Hello."), json!({ "options": { "num_predict": 2 } })),
            "/api/generate" => {
                json!({ "model": support::MODEL, "prompt": "Hello.", "options": { "num_predict": 2 } })
            }
            "/api/embed" => json!({ "model": support::EMBEDDER, "input": "Hello." }),
            _ => json!({ "input": "Hello." }),
        };
        for (name, value) in changes {
            request[name] = value;
        }
        let reply = server.post(path, &request);
        prop_assert!(matches!(reply.status, 200 | 400 | 404), "{} {}: {}", path, request, reply.body);
    });
}
