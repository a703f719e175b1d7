//! Tools: calls follow their schemas, whole and streamed.

use serde_json::{Value, json};

use crate::support::{MODEL, QUESTION, Running, chat, with};

fn tools() -> Value {
    json!([
        { "type": "function", "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": { "city": { "enum": ["Oslo", "Bergen"] }, "days": { "$ref": "#/$defs/days" } },
                "required": ["city", "days"],
                "additionalProperties": false,
                "$defs": { "days": { "type": "integer", "minimum": 1, "maximum": 7 } },
            },
            "strict": true,
        } },
        { "type": "function", "function": { "name": "now" } },
    ])
}

fn check_call(call: &Value) -> String {
    assert_eq!(call["type"], "function");
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    let name = call["function"]["name"].as_str().unwrap();
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).expect("JSON");
    match name {
        "weather" => {
            assert!(["Oslo", "Bergen"].contains(&arguments["city"].as_str().unwrap()));
            assert!((1..=7).contains(&arguments["days"].as_i64().unwrap()));
            assert_eq!(arguments.as_object().unwrap().len(), 2);
        }
        "now" => assert_eq!(arguments, json!({})),
        other => panic!("{other}"),
    }
    name.to_owned()
}

/// The calls of a stream, joined by their index.
fn joined(chunks: &[Value]) -> Vec<Value> {
    let mut calls: Vec<Value> = Vec::new();
    for delta in
        chunks.iter().flat_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array()).flatten()
    {
        let index = delta["index"].as_u64().expect("an index") as usize;
        if index == calls.len() {
            assert!(delta["id"].is_string() && delta["function"]["name"].is_string());
            calls.push(delta.clone());
            continue;
        }
        let arguments = calls[index]["function"]["arguments"].as_str().unwrap().to_owned();
        let more = delta["function"]["arguments"].as_str().unwrap();
        calls[index]["function"]["arguments"] = format!("{arguments}{more}").into();
    }
    calls
}

#[test]
fn required_and_named_calls_are_valid_whole_and_streamed() {
    let server = Running::start();
    let base =
        with(&chat("What is the weather?"), json!({ "tools": tools(), "max_tokens": 256, "temperature": 1 }));
    for (seed, choice) in (0..6).zip(
        [
            json!("required"),
            json!({ "type": "function", "function": { "name": "weather" } }),
            json!({ "type": "allowed_tools", "allowed_tools": {
            "mode": "required", "tools": [{ "type": "function", "function": { "name": "now" } }] } }),
        ]
        .into_iter()
        .cycle(),
    ) {
        let request =
            with(&base, json!({ "tool_choice": choice, "parallel_tool_calls": false, "seed": seed }));
        let answer = server.answer("/v1/chat/completions", &request);
        let choice_of = &answer["choices"][0];
        assert_eq!(choice_of["finish_reason"], "tool_calls");
        assert!(choice_of["message"]["content"].is_null());
        let calls = choice_of["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        let name = check_call(&calls[0]);
        match choice["type"].as_str() {
            Some("function") => assert_eq!(name, "weather"),
            Some(_) => assert_eq!(name, "now"),
            None => {}
        }
        let chunks = server.post("/v1/chat/completions", &with(&request, json!({ "stream": true }))).chunks();
        let streamed = joined(&chunks);
        assert_eq!(streamed.len(), 1);
        assert_eq!(streamed[0]["function"], calls[0]["function"]);
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[test]
fn parallel_calls_are_all_valid() {
    let server = Running::start();
    let mut n_max = 0;
    for seed in 0..8 {
        let request = with(
            &chat("What is the weather?"),
            json!({ "tools": tools(), "tool_choice": "required", "max_tokens": 600, "temperature": 1.5, "seed": seed }),
        );
        let answer = server.answer("/v1/chat/completions", &request);
        let choice = &answer["choices"][0];
        let calls = choice["message"]["tool_calls"].as_array().expect("calls");
        let is_cut = choice["finish_reason"] == "length";
        let whole = if is_cut { &calls[..calls.len() - 1] } else { calls };
        whole.iter().for_each(|call| drop(check_call(call)));
        n_max = n_max.max(whole.len());
    }
    assert!(n_max > 1, "no output had two calls");
}

#[test]
fn without_a_call_the_answer_is_text() {
    let server = Running::start();
    let base = with(&chat(QUESTION), json!({ "temperature": 0 }));
    let plain = server.answer("/v1/chat/completions", &base);
    let none = server
        .answer("/v1/chat/completions", &with(&base, json!({ "tools": tools(), "tool_choice": "none" })));
    assert_eq!(none["choices"][0]["message"], plain["choices"][0]["message"]);
    let auto = server.answer("/v1/chat/completions", &with(&base, json!({ "tools": tools() })));
    assert!(auto["choices"][0]["message"]["tool_calls"].is_null());
    assert_ne!(auto["choices"][0]["finish_reason"], "tool_calls");
    assert!(!auto["choices"][0]["message"]["content"].as_str().unwrap().is_empty());
}

#[test]
fn results_of_calls_are_turns() {
    let server = Running::start();
    let mut request =
        with(&chat("What is the weather?"), json!({ "tools": tools(), "temperature": 0, "max_tokens": 24 }));
    let messages = request["messages"].as_array_mut().unwrap();
    let call = json!({ "id": "call_1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\":\"Oslo\",\"days\":1}" } });
    messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
    messages.push(json!({ "role": "tool", "tool_call_id": "call_1", "content": "Rain." }));
    let answer = server.answer("/v1/chat/completions", &request);
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 40);
}

#[test]
fn tools_and_choices_are_checked() {
    let server = Running::start();
    let base = chat("Hello.");
    let function = |function: Value| json!([{ "type": "function", "function": function }]);
    let cases = [
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (json!({ "tools": function(json!({})) }), "tools[0].function.name"),
        (json!({ "tools": function(json!({ "name": "a b" })) }), "tools[0].function.name"),
        (
            json!({ "tools": function(json!({ "name": "a", "parameters": 3 })) }),
            "tools[0].function.parameters",
        ),
        (
            json!({ "tools": function(json!({ "name": "a", "parameters": { "type": "string" } })) }),
            "tools[0].function.parameters",
        ),
        (
            json!({ "tools": function(json!({ "name": "a", "parameters": { "properties": { "x": { "not": {} } } } })) }),
            "tools[0].function.parameters",
        ),
        (
            json!({ "tools": function(json!({ "name": "a", "parameters": { "x-guidance": { "lenient": true } } })) }),
            "tools[0].function.parameters",
        ),
        (json!({ "tools": tools(), "tool_choice": "sometimes" }), "tool_choice"),
        (
            json!({ "tools": tools(), "tool_choice": { "type": "function", "function": { "name": "other" } } }),
            "tool_choice",
        ),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (
            json!({ "tools": tools(), "tool_choice": { "type": "allowed_tools", "allowed_tools": { "tools": [] } } }),
            "tool_choice.allowed_tools.mode",
        ),
        (json!({ "tools": [tools()[1], tools()[1]] }), "tools[1].function.parameters"),
    ];
    for (fields, param) in cases {
        let reply = server.post("/v1/chat/completions", &with(&base, fields.clone()));
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)), "{fields}: {}", reply.body);
    }
    assert_eq!(server.answer("/v1/chat/completions", &base)["model"], MODEL);
}
