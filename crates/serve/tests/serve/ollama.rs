//! Ollama's API: its lines, its options, its errors, over the same answers.

use refrain_serve::{Limits, ServeOptions};
use serde_json::{Value, json};

use crate::bigram::{Calls, FREE_STRING};
use crate::calling;
use crate::support::{self, EMBEDDER, MODEL, QUESTION, Reply, Running, changed, endless, with};

/// The lines of a stream. The last one is done, and no other.
fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.headers["content-type"], "application/x-ndjson");
    let lines: Vec<Value> =
        reply.body.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let n_done = lines.iter().filter(|line| line["done"] == true).count();
    assert!(n_done == 1 && lines.last().unwrap()["done"] == true, "{}", reply.body);
    lines
}

fn joined(lines: &[Value], path: &str) -> String {
    lines.iter().filter_map(|line| line.pointer(path)?.as_str()).collect()
}

fn chat(content: &str) -> Value {
    json!({
        "model": MODEL, "messages": [{ "role": "user", "content": content }],
        "options": { "temperature": 0, "num_predict": 48 },
    })
}

fn context_len(server: &Running) -> usize {
    let tokens = server.answer("/tokenize", &json!({ "content": "a" }));
    usize::try_from(tokens["max_model_len"].as_u64().unwrap()).unwrap()
}

fn error(reply: &Reply) -> String {
    let body = reply.json();
    assert_eq!(body.as_object().unwrap().len(), 1, "{}", reply.body);
    body["error"].as_str().expect("a message").to_owned()
}

#[test]
fn answers_are_those_of_the_other_apis() {
    let server = Running::start();
    let expected = with(&support::chat(QUESTION), json!({ "temperature": 0 }));
    let expected = server.answer("/v1/chat/completions", &expected);
    let text = &expected["choices"][0]["message"]["content"];
    let whole = server.answer("/api/chat", &with(&chat(QUESTION), json!({ "stream": false })));
    assert_eq!(whole["message"], json!({ "role": "assistant", "content": text }));
    assert_eq!(
        (&whole["done"], &whole["done_reason"], &whole["model"]),
        (&json!(true), &json!("stop"), &json!(MODEL))
    );
    let usage = &expected["usage"];
    assert_eq!(
        (&whole["prompt_eval_count"], &whole["eval_count"]),
        (&usage["prompt_tokens"], &usage["completion_tokens"])
    );
    for name in ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"] {
        assert!(whole[name].is_u64(), "{name}: {whole}");
    }
    assert!(whole["total_duration"].as_u64() >= whole["eval_duration"].as_u64());
    let streamed = lines(&server.post("/api/chat", &chat(QUESTION)));
    assert_eq!(joined(&streamed, "/message/content"), *text);
    assert!(
        streamed.iter().all(|line| line["message"]["role"] == "assistant" && line["created_at"].is_string())
    );
    // The same prompt through the template, and without it.
    let prompt = json!({ "model": format!("{MODEL}:latest"), "prompt": QUESTION, "options": { "temperature": 0, "num_predict": 48 } });
    let generated = lines(&server.post("/api/generate", &prompt));
    assert_eq!(joined(&generated, "/response"), *text);
    let raw = json!({ "model": MODEL, "prompt": "Answer the question", "raw": true, "stream": false, "options": { "temperature": 0, "num_predict": 12 } });
    let raw = server.answer("/api/generate", &raw);
    let plain = json!({ "prompt": "Answer the question", "max_tokens": 12, "temperature": 0 });
    let plain = server.answer("/v1/completions", &plain);
    let plain = &plain["choices"][0];
    assert_eq!((&raw["response"], &raw["done_reason"]), (&plain["text"], &plain["finish_reason"]));
    // `curl -d` states another content type.
    let curl = [("Content-Type", "application/x-www-form-urlencoded")];
    let body = with(&chat(QUESTION), json!({ "stream": false })).to_string();
    assert_eq!(server.request("POST", "/api/chat", &curl, &body).json()["message"], whole["message"]);
}

#[test]
fn options_formats_and_probabilities() {
    let server = Running::start();
    let ask = |more: Value| {
        server.answer("/api/chat", &with(&with(&chat(QUESTION), json!({ "stream": false })), more))
    };
    let whole = ask(json!({}))["message"]["content"].as_str().unwrap().to_owned();
    let word = format!(" {}", whole.split(' ').nth(2).expect("three words"));
    let cut = ask(json!({ "options": { "temperature": 0, "stop": [word] } }));
    assert_eq!(cut["message"]["content"], whole.split(&word).next().unwrap());
    assert!(whole.starts_with(cut["message"]["content"].as_str().unwrap()) && cut["done_reason"] == "stop");
    assert_eq!(ask(json!({ "options": { "num_predict": 2 } }))["done_reason"], "length");
    let sampled =
        || ask(json!({ "options": { "temperature": 1, "seed": 5, "num_predict": 24 } }))["message"].clone();
    assert_eq!(sampled(), sampled());
    let schema = json!({
        "type": "object", "properties": { "city": { "enum": ["Oslo", "Bergen"] } }, "required": ["city"], "additionalProperties": false,
    });
    let answer = ask(json!({ "format": schema }));
    let value: Value = serde_json::from_str(answer["message"]["content"].as_str().unwrap()).expect("JSON");
    assert!(["Oslo", "Bergen"].contains(&value["city"].as_str().unwrap()));
    let answer = ask(json!({ "format": "json", "options": { "num_predict": 200 } }));
    assert!(answer["message"]["content"].as_str().unwrap().starts_with('{'));
    let answer = ask(json!({ "logprobs": true, "top_logprobs": 2 }));
    let tokens = answer["logprobs"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, answer["message"]["content"].as_str().unwrap());
    assert_eq!(tokens[0]["top_logprobs"].as_array().unwrap().len(), 2);
}

#[test]
fn calls_have_their_arguments_as_an_object() {
    let server = calling::server(Calls::Text);
    let city =
        json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    let tools = json!([{ "type": "function", "function": { "name": "weather", "description": "", "parameters": city } }]);
    let request = with(&chat("The weather?"), json!({ "tools": tools, "options": { "num_predict": 200 } }));
    let whole = server.answer("/api/chat", &with(&request, json!({ "stream": false })));
    let call = &whole["message"]["tool_calls"][0]["function"];
    assert_eq!((&call["name"], &call["arguments"]), (&json!("weather"), &json!({ "city": FREE_STRING })));
    assert_eq!(whole["done_reason"], "stop");
    let streamed = lines(&server.post("/api/chat", &request));
    let calls: Vec<&Value> =
        streamed.iter().filter_map(|line| line.pointer("/message/tool_calls/0/function")).collect();
    assert_eq!(calls.len(), whole["message"]["tool_calls"].as_array().unwrap().len());
    assert_eq!(calls[0], call);
    // Its result.
    let mut request = with(&request, json!({ "stream": false }));
    let messages = request["messages"].as_array_mut().unwrap();
    messages.push(whole["message"].clone());
    messages.push(json!({ "role": "tool", "tool_name": "weather", "content": "Rain." }));
    assert!(!server.answer("/api/chat", &request)["message"]["content"].as_str().unwrap().is_empty());
}

#[test]
fn models_are_listed_loaded_and_unloaded() {
    let server = Running::start();
    let version = server.get("/api/version").json();
    assert!(version["version"].as_str().unwrap().split('.').count() == 3);
    let tags = server.get("/api/tags").json();
    let names: Vec<&Value> = tags["models"].as_array().unwrap().iter().map(|model| &model["name"]).collect();
    assert_eq!(names, [MODEL, EMBEDDER]);
    assert!(tags["models"][0]["modified_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(server.get("/api/ps").json()["models"], json!([]));
    let loaded = server.answer("/api/generate", &json!({ "model": MODEL }));
    assert_eq!((&loaded["done_reason"], &loaded["response"]), (&json!("load"), &json!("")));
    let ps = server.get("/api/ps").json();
    let context_len = context_len(&server);
    assert_eq!(
        (&ps["models"][0]["name"], &ps["models"][0]["context_length"]),
        (&json!(MODEL), &json!(context_len))
    );
    assert!(ps["models"][0]["size"].as_u64().unwrap() > 0);
    let show = server.answer("/api/show", &json!({ "model": MODEL }));
    assert_eq!(show["capabilities"], json!(["completion", "tools"]));
    let family = show["details"]["family"].as_str().unwrap();
    assert_eq!(show["model_info"][format!("{family}.context_length")], context_len);
    let show = server.answer("/api/show", &json!({ "name": EMBEDDER }));
    assert_eq!(show["capabilities"], json!(["embedding"]));
    let unloaded = server.answer("/api/chat", &json!({ "model": MODEL, "messages": [], "keep_alive": 0 }));
    assert_eq!(unloaded["done_reason"], "unload");
    assert_eq!(server.get("/api/ps").json()["models"], json!([]));
    let pulled = server.answer("/api/pull", &json!({ "model": MODEL, "stream": false }));
    assert_eq!(pulled["status"], "success");
    let reply = server.post("/api/pull", &json!({ "model": "other" }));
    assert_eq!(reply.status, 404);
    assert!(error(&reply).contains("refrain model pull"));
}

#[test]
fn vectors_are_those_of_the_other_api() {
    let server = Running::start();
    let expected =
        server.answer("/v1/embeddings", &json!({ "model": EMBEDDER, "input": ["a car", "a boat"] }));
    let answer = server.answer("/api/embed", &json!({ "model": EMBEDDER, "input": ["a car", "a boat"] }));
    for index in 0..2 {
        assert_eq!(answer["embeddings"][index], expected["data"][index]["embedding"]);
    }
    assert_eq!(answer["prompt_eval_count"], expected["usage"]["prompt_tokens"]);
    let one = server.answer("/api/embeddings", &json!({ "model": EMBEDDER, "prompt": "a car" }));
    assert_eq!(one["embedding"], answer["embeddings"][0]);
    assert_eq!(
        server.answer("/api/embed", &json!({ "model": EMBEDDER, "input": "" }))["embeddings"],
        json!([])
    );
    // A text that is too long is cut, unless the client wants to know.
    let long = json!({ "model": EMBEDDER, "input": "word ".repeat(4000) });
    assert_eq!(server.answer("/api/embed", &long)["embeddings"].as_array().unwrap().len(), 1);
    let reply = server.post("/api/embed", &with(&long, json!({ "truncate": false })));
    assert_eq!(reply.status, 400, "{}", reply.body);
}

#[test]
fn errors_have_ollamas_form_and_status() {
    let server = Running::start();
    let status = |path: &str, body: Value| {
        let reply = server.post(path, &body);
        (reply.status, error(&reply))
    };
    let (code, message) = status("/api/chat", with(&chat("Hello."), json!({ "model": "other" })));
    assert!(code == 404 && message.contains("not found"), "{message}");
    assert_eq!(status("/api/show", json!({ "model": "other" })).0, 404);
    assert_eq!(status("/api/chat", json!({ "messages": [] })).0, 400);
    assert_eq!(status("/api/chat", with(&chat("Hello."), json!({ "model": EMBEDDER }))).0, 400);
    let base = json!({ "model": MODEL, "prompt": "Hello." });
    for (more, field) in [
        (json!({ "images": ["aGk="] }), "images"),
        (json!({ "suffix": "x" }), "suffix"),
        (json!({ "template": "{{ .Prompt }}" }), "template"),
        (json!({ "context": [1, 2] }), "context"),
        (json!({ "raw": true, "system": "x" }), "raw"),
        (json!({ "format": "xml" }), "format"),
        (json!({ "think": "much" }), "think"),
        (json!({ "options": { "mirostat": 2 } }), "options.mirostat"),
        (json!({ "options": { "temperature": -1 } }), "options.temperature"),
    ] {
        let (code, message) = status("/api/generate", with(&base, more));
        assert!(code == 400 && message.contains(&format!("`{field}`")), "{field}: {message}");
    }
    let reply = server.request("POST", "/api/chat", &[], "{");
    assert_eq!(reply.status, 400);
    error(&reply);
    for (method, path, code) in
        [("GET", "/api/chat", 405), ("GET", "/api/nowhere", 404), ("DELETE", "/api/delete", 404)]
    {
        let reply = server.request(method, path, &[], "");
        assert_eq!(reply.status, code, "{path}");
        error(&reply);
    }
    // The queue is full.
    let mut limits = Limits::default();
    (limits.running, limits.waiting) = (1, 0);
    let busy = Running::with(ServeOptions::default(), limits);
    let long = busy.begin("/v1/chat/completions", &endless("A story."));
    busy.wait(|server| server.metric("refrain_requests_running") == 1.0);
    let reply = busy.post("/api/chat", &chat("Hello."));
    assert_eq!(reply.status, 503);
    assert!(error(&reply).starts_with("server busy"), "{}", reply.body);
    assert!(reply.headers.contains_key("retry-after"));
    drop(long);
    // Without the token.
    let options =
        changed(ServeOptions::default(), |it| it.token = Some("correct-horse-battery-staple".to_owned()));
    let guarded = Running::with(options, Limits::default());
    let reply = guarded.get("/api/tags");
    assert_eq!(reply.status, 401);
    error(&reply);
}

#[test]
fn the_oldest_messages_are_left_out_unless_the_client_forbids_it() {
    let server = Running::start();
    let context_len = context_len(&server);
    let long = "word ".repeat(context_len / 3);
    let turn = |role: &str, content: &str| json!({ "role": role, "content": content });
    let mut messages = vec![turn("system", "Be brief.")];
    for _ in 0..6 {
        messages.push(turn("user", &long));
        messages.push(turn("assistant", "Yes."));
    }
    messages.push(turn("user", "Hello."));
    let request =
        json!({ "model": MODEL, "messages": messages, "stream": false, "options": { "num_predict": 4 } });
    let reply = server.post("/api/chat", &request);
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.headers["x-refrain-ignored"], "messages[]");
    assert!(reply.json()["prompt_eval_count"].as_u64().unwrap() < context_len as u64);
    let reply = server.post("/api/chat", &with(&request, json!({ "truncate": false })));
    assert_eq!(reply.status, 400);
    assert!(error(&reply).contains("exceeds the context length"), "{}", reply.body);
    // One message that is too long cannot be left out.
    let request = with(&chat(&"word ".repeat(2 * context_len)), json!({ "stream": false }));
    assert_eq!(server.post("/api/chat", &request).status, 400);
}
