//! Anthropic's API: blocks and typed events, tools and their results, errors, over the same answers.

use refrain_serve::{Limits, ServeOptions};
use serde_json::{Value, json};

use crate::reasoning;
use crate::support::{self, EMBEDDER, MODEL, QUESTION, Reply, Running, changed, endless, with};

fn ask(content: &str) -> Value {
    json!({ "model": MODEL, "max_tokens": 48, "temperature": 0, "messages": [{ "role": "user", "content": content }] })
}

fn tools() -> Value {
    json!([{ "name": "weather", "description": "The weather.", "input_schema": {
        "type": "object", "properties": { "city": { "enum": ["Oslo", "Bergen"] } }, "required": ["city"], "additionalProperties": false,
    } }])
}

/// The events of a stream, with their order checked: every block begins, grows and ends before the next one.
fn events(server: &Running, request: &Value) -> Vec<Value> {
    let reply = server.post("/v1/messages", &with(request, json!({ "stream": true })));
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    let names: Vec<&str> = reply.body.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    let data = reply.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).expect("JSON")).collect();
    let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(names, types);
    assert_eq!((types.first(), types.last()), (Some(&"message_start"), Some(&"message_stop")));
    assert_eq!(types[types.len() - 2], "message_delta");
    let (mut open, mut n_blocks) = (false, 0);
    for event in events.iter().filter(|event| event["type"].as_str().unwrap().starts_with("content_block")) {
        assert_eq!(event["index"], n_blocks);
        match event["type"].as_str().unwrap() {
            "content_block_start" => assert!(!std::mem::replace(&mut open, true)),
            "content_block_delta" => assert!(open),
            _ => {
                assert!(std::mem::replace(&mut open, false));
                n_blocks += 1;
            }
        }
    }
    assert!(!open);
    events
}

fn joined(events: &[Value], field: &str) -> String {
    events.iter().filter_map(|event| event["delta"][field].as_str()).collect()
}

fn error(reply: &Reply) -> (u16, String, String) {
    let body = reply.json();
    assert_eq!(body["type"], "error", "{}", reply.body);
    assert_eq!(body["request_id"], json!(reply.headers["request-id"]));
    let text = |name: &str| body["error"][name].as_str().expect("text").to_owned();
    (reply.status, text("type"), text("message"))
}

#[test]
fn answers_are_those_of_the_other_apis() {
    let server = Running::start();
    let expected =
        server.answer("/v1/chat/completions", &with(&support::chat(QUESTION), json!({ "temperature": 0 })));
    let text = expected["choices"][0]["message"]["content"].as_str().unwrap();
    let answer = server.answer("/v1/messages", &ask(QUESTION));
    assert_eq!(answer["content"], json!([{ "type": "text", "text": text }]));
    assert_eq!(
        (&answer["type"], &answer["role"], &answer["model"]),
        (&json!("message"), &json!("assistant"), &json!(MODEL))
    );
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("end_turn"), &Value::Null));
    assert!(answer["id"].as_str().unwrap().starts_with("msg_"));
    let usage = &answer["usage"];
    let n_prompt =
        usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(n_prompt, expected["usage"]["prompt_tokens"]);
    assert_eq!(usage["output_tokens"], expected["usage"]["completion_tokens"]);
    let events = events(&server, &ask(QUESTION));
    assert_eq!(joined(&events, "text"), text);
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], n_prompt);
    let end = &events[events.len() - 2];
    assert_eq!(
        (&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]),
        (&json!("end_turn"), &usage["output_tokens"])
    );
    // Instructions as a text and as blocks; a message as blocks.
    let briefly = |system: Value| {
        server.answer("/v1/messages", &with(&ask(QUESTION), json!({ "system": system })))["content"].clone()
    };
    assert_eq!(briefly(json!("Be brief.")), briefly(json!([{ "type": "text", "text": "Be brief." }])));
    let blocks =
        json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": QUESTION }] }] });
    assert_eq!(server.answer("/v1/messages", &with(&ask(QUESTION), blocks))["content"], answer["content"]);
    // The count of the prompt's tokens.
    let counted = json!({ "model": MODEL, "messages": ask(QUESTION)["messages"] });
    assert_eq!(server.answer("/v1/messages/count_tokens", &counted), json!({ "input_tokens": n_prompt }));
}

#[test]
fn answers_end_for_a_reason() {
    let server = Running::start();
    let whole =
        server.answer("/v1/messages", &ask(QUESTION))["content"][0]["text"].as_str().unwrap().to_owned();
    let word = format!(" {}", whole.split(' ').nth(2).expect("three words"));
    let cut = with(&ask(QUESTION), json!({ "stop_sequences": ["unheard", word] }));
    let answer = server.answer("/v1/messages", &cut);
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("stop_sequence"), &json!(word)));
    let events = events(&server, &cut);
    assert_eq!(
        events[events.len() - 2]["delta"],
        json!({ "stop_reason": "stop_sequence", "stop_sequence": word })
    );
    let answer = server.answer("/v1/messages", &with(&ask(QUESTION), json!({ "max_tokens": 2 })));
    assert_eq!(answer["stop_reason"], "max_tokens");
    // The answer goes on where the last message ends.
    let begun: String = whole.chars().take(12).collect();
    let messages =
        json!([{ "role": "user", "content": QUESTION }, { "role": "assistant", "content": begun }]);
    let answer = server.answer("/v1/messages", &with(&ask(QUESTION), json!({ "messages": messages })));
    let rest = answer["content"][0]["text"].as_str().unwrap();
    assert!(!rest.starts_with(&begun), "{rest}");
    let schema = json!({ "type": "json_schema", "schema": tools()[0]["input_schema"] });
    for config in [
        json!({ "output_format": schema }),
        json!({ "output_config": { "format": schema, "effort": "high" } }),
    ] {
        let answer = server.answer("/v1/messages", &with(&ask("A city."), config));
        let value: Value =
            serde_json::from_str(answer["content"][0]["text"].as_str().unwrap()).expect("JSON");
        assert!(["Oslo", "Bergen"].contains(&value["city"].as_str().unwrap()));
    }
}

#[test]
fn tools_are_called_and_their_results_read() {
    let server = Running::start();
    let base = with(&ask("The weather?"), json!({ "tools": tools(), "max_tokens": 99 }));
    for choice in [json!({ "type": "any" }), json!({ "type": "tool", "name": "weather" })] {
        let mut choice = choice;
        choice["disable_parallel_tool_use"] = true.into();
        let request = with(&base, json!({ "tool_choice": choice }));
        let answer = server.answer("/v1/messages", &request);
        let call = &answer["content"][0];
        assert_eq!(
            (&call["type"], &call["name"], &answer["stop_reason"]),
            (&json!("tool_use"), &json!("weather"), &json!("tool_use"))
        );
        assert!(call["id"].as_str().unwrap().starts_with("toolu_"));
        assert!(["Oslo", "Bergen"].contains(&call["input"]["city"].as_str().unwrap()));
        let events = events(&server, &request);
        let start = events.iter().find(|event| event["type"] == "content_block_start").unwrap();
        assert_eq!(
            (&start["content_block"]["name"], &start["content_block"]["input"]),
            (&json!("weather"), &json!({}))
        );
        let input: Value = serde_json::from_str(&joined(&events, "partial_json")).expect("JSON");
        assert_eq!(input, call["input"]);
        let results = json!([
            { "role": "user", "content": "The weather?" },
            { "role": "assistant", "content": [{ "type": "text", "text": "I look." }, call] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": call["id"], "content": [{ "type": "text", "text": "Rain." }] },
                { "type": "text", "text": "And now?" },
            ] },
        ]);
        let answer = server.answer(
            "/v1/messages",
            &with(&base, json!({ "messages": results, "tool_choice": { "type": "none" } })),
        );
        assert_eq!(answer["content"][0]["type"], "text");
    }
}

#[test]
fn thinking_is_a_block_of_its_own() {
    let (server, _) = reasoning::server();
    let request = with(
        &ask(QUESTION),
        json!({ "max_tokens": 12, "thinking": { "type": "enabled", "budget_tokens": 1024 } }),
    );
    let answer = server.answer("/v1/messages", &request);
    let block = &answer["content"][0];
    assert_eq!((&block["type"], &block["signature"]), (&json!("thinking"), &json!("")));
    let events = events(&server, &request);
    assert_eq!(joined(&events, "thinking"), block["thinking"].as_str().unwrap());
    // It comes back with the next turn.
    let messages = json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": [block, { "type": "text", "text": "b" }] }, { "role": "user", "content": "c" }]);
    server.answer("/v1/messages", &with(&request, json!({ "messages": messages })));
}

#[test]
fn errors_have_anthropics_form_and_status() {
    let server = Running::start();
    let status = |body: Value| error(&server.post("/v1/messages", &body));
    let (code, kind, _) = status(with(&ask("Hello."), json!({ "model": "claude" })));
    assert_eq!((code, kind.as_str()), (404, "not_found_error"));
    for (more, field) in [
        (json!({ "max_tokens": null }), "max_tokens"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "model": null }), "model"),
        (json!({ "model": EMBEDDER }), "model"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "tool", "content": "a" }] }), "messages[0].role"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image", "source": {} }] }] }),
            "messages[0].content[0].type",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_use" }] }] }),
            "messages[0].content[0].type",
        ),
        (json!({ "system": 3 }), "system"),
        (json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] }), "tools[0].type"),
        (json!({ "tools": [{ "name": "a b", "input_schema": {} }] }), "tools[0].name"),
        (json!({ "tool_choice": { "type": "any" } }), "tool_choice"),
        (json!({ "thinking": { "type": "deep" } }), "thinking.type"),
        (json!({ "output_config": { "effort": "low" } }), "output_config.effort"),
        (json!({ "mcp_servers": [{ "url": "https://a" }] }), "mcp_servers"),
        (json!({ "temperature": 3 }), "temperature"),
    ] {
        let (code, kind, message) = status(with(&ask("Hello."), more));
        assert_eq!((code, kind.as_str()), (400, "invalid_request_error"), "{field}: {message}");
        assert!(message.contains(&format!("`{field}`")), "{field}: {message}");
    }
    let (code, _, message) = status(ask(&"word ".repeat(20_000)));
    assert!(code == 400 && message.starts_with("prompt is too long: "), "{message}");
    let reply = server.request("POST", "/v1/messages", &[("Content-Type", "application/json")], "{");
    assert_eq!(error(&reply).1, "invalid_request_error");
    assert_eq!(error(&server.get("/v1/messages")).0, 405);
    assert_eq!(error(&server.post("/v1/messages/batches", &json!({}))).1, "not_found_error");
    let small = Running::with(ServeOptions::default(), changed(Limits::default(), |it| it.body_bytes = 2000));
    let (code, kind, _) = error(&small.post("/v1/messages", &ask(&"a".repeat(3000))));
    assert_eq!((code, kind.as_str()), (413, "request_too_large"));
    // The queue is full.
    let mut limits = Limits::default();
    (limits.running, limits.waiting) = (1, 0);
    let busy = Running::with(ServeOptions::default(), limits);
    let long = busy.begin("/v1/chat/completions", &endless("A story."));
    busy.wait(|server| server.metric("refrain_requests_running") == 1.0);
    let reply = busy.post("/v1/messages", &ask("Hello."));
    assert!(reply.headers.contains_key("retry-after"));
    let (code, kind, _) = error(&reply);
    assert_eq!((code, kind.as_str()), (529, "overloaded_error"));
    drop(long);
}

#[test]
fn the_key_has_a_header_of_its_own() {
    const TOKEN: &str = "correct-horse-battery-staple";
    let options = changed(ServeOptions::default(), |it| it.token = Some(TOKEN.to_owned()));
    let server = Running::with(options, Limits::default());
    let version = ("anthropic-version", "2023-06-01");
    let get =
        |headers: &[(&str, &str)]| server.request("GET", "/v1/models", &[headers, &[version]].concat(), "");
    let (code, kind, _) = error(&get(&[]));
    assert_eq!((code, kind.as_str()), (401, "authentication_error"));
    assert_eq!(get(&[("x-api-key", "wrong")]).status, 401);
    assert_eq!(get(&[("x-api-key", TOKEN), ("x-api-key", TOKEN)]).status, 401);
    // The other header decides where both are there.
    assert_eq!(get(&[("x-api-key", TOKEN), ("Authorization", "Bearer wrong")]).status, 401);
    let list = get(&[("x-api-key", TOKEN)]).json();
    assert_eq!(
        (&list["has_more"], &list["first_id"], &list["last_id"]),
        (&json!(false), &json!(MODEL), &json!(EMBEDDER))
    );
    assert_eq!(
        (&list["data"][0]["type"], &list["data"][0]["display_name"]),
        (&json!("model"), &json!(MODEL))
    );
    let one = server.request("GET", &format!("/v1/models/{MODEL}"), &[("x-api-key", TOKEN), version], "");
    assert_eq!(one.json(), list["data"][0]);
}
