//! What is ignored, and said so; what other servers call by another name; what would change the output, and is refused.

use serde_json::{Value, json};

use crate::bigram::{Calls, GREETING};
use crate::calling;
use crate::support::{QUESTION, Running, chat, with};

fn ignored(server: &Running, path: &str, request: &Value) -> String {
    let reply = server.post(path, request);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.headers.get("x-refrain-ignored").cloned().unwrap_or_default()
}

#[test]
fn fields_without_an_effect_are_named_in_a_header() {
    let server = Running::start();
    let base = with(&chat("Hello."), json!({ "temperature": 0, "max_tokens": 6 }));
    let plain = server.post("/v1/chat/completions", &base);
    assert!(!plain.headers.contains_key("x-refrain-ignored"));
    let mut request = with(&base, json!({ "unheard_of": 1, "user": "u", "null": null, "empty": [] }));
    request["messages"][0]["provider_specific_fields"] = json!({ "a": 1 });
    let reply = server.post("/v1/chat/completions", &request);
    assert_eq!(reply.headers["x-refrain-ignored"], "messages[].provider_specific_fields, unheard_of, user");
    assert_eq!(reply.json()["choices"], plain.json()["choices"]);
    // A stream has the header too, and a name that is a text is not repeated.
    let stream = with(&base, json!({ "stream": true, "a text of the user": 1 }));
    assert_eq!(ignored(&server, "/v1/chat/completions", &stream), "*");
    let many: Value =
        (0..100).map(|n| (format!("field_{n}"), json!(1))).collect::<serde_json::Map<_, _>>().into();
    let named = ignored(&server, "/v1/chat/completions", &with(&base, many));
    assert_eq!(named.split(", ").count(), 17);
    // This server's own endpoints know all of their fields.
    let reply = server.post("/page/forget", &json!({ "what": "all", "unheard_of": 1 }));
    assert_eq!(reply.status, 400, "{}", reply.body);
}

#[test]
fn names_of_other_servers_mean_the_same() {
    let server = Running::start();
    let text = |fields: Value| {
        let request = with(&with(&chat(QUESTION), json!({ "temperature": 1, "seed": 3 })), fields);
        server.answer("/v1/chat/completions", &request)["choices"][0]["message"].clone()
    };
    let plain = text(json!({}));
    assert_eq!(text(json!({ "repeat_penalty": 1.8 })), text(json!({ "repetition_penalty": 1.8 })));
    assert_ne!(text(json!({ "repeat_penalty": 1.8 })), plain);
    assert_eq!(text(json!({ "repeat_penalty": 1.8, "repeat_last_n": 0 })), plain);
    assert_eq!(text(json!({ "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2 })), plain);
    let endless = |max: Value| {
        let request = json!({ "prompt": "Answer", "temperature": 0, "max_tokens": max });
        server.answer("/v1/completions", &request)["usage"]["completion_tokens"].as_u64().unwrap()
    };
    assert!(endless(json!(-1)) >= endless(json!(null)), "16 tokens without the field");
}

#[test]
fn what_would_change_the_output_is_refused() {
    let server = Running::start();
    let base = with(&chat("Hello."), json!({ "max_tokens": 2 }));
    for (name, value, neutral) in [
        ("typical_p", json!(0.5), json!(1)),
        ("mirostat", json!(2), json!(0)),
        ("xtc_probability", json!(0.1), json!(0.0)),
        ("min_tokens", json!(5), json!(0)),
        ("ignore_eos", json!(true), json!(false)),
        ("skip_special_tokens", json!(false), json!(true)),
        ("grammar", json!("root ::= a"), json!("")),
        ("grammar_string", json!("root ::= \"a\""), json!("")),
        ("guided_json", json!({ "type": "object" }), json!({})),
        ("stop_token_ids", json!([1]), json!([])),
        ("chat_template", json!("{{ messages }}"), Value::Null),
    ] {
        let reply = server.post("/v1/chat/completions", &with(&base, json!({ name: value })));
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(name)), "{}", reply.body);
        server.answer("/v1/chat/completions", &with(&base, json!({ name: neutral })));
    }
}

#[test]
fn a_stop_string_beside_tools_ends_text_and_cuts_no_call() {
    let server = calling::server(Calls::Text);
    let tools = json!([{ "type": "function", "function": { "name": "now" } }]);
    let ask = |content: &str, stop: &str| {
        let messages = json!([{ "role": "user", "content": content }]);
        let request =
            json!({ "messages": messages, "tools": tools, "stop": [stop, "never"], "max_tokens": 99 });
        let answer = server.answer("/v1/chat/completions", &request);
        let chunks = server.post("/v1/chat/completions", &with(&request, json!({ "stream": true }))).chunks();
        let streamed: String =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
        let choice = answer["choices"][0].clone();
        assert_eq!(streamed, choice["message"]["content"].as_str().unwrap_or_default());
        choice
    };
    assert_eq!(ask("plainly", "unheard")["message"]["content"], GREETING);
    let cut = ask("plainly", "llo");
    assert_eq!((&cut["message"]["content"], &cut["finish_reason"]), (&json!("He"), &json!("stop")));
    let cut = ask("plainly", "\u{1F30D}");
    assert_eq!(cut["message"]["content"], "Hello");
    // The text of the call has it.
    let call = ask("The time?", "name");
    assert_eq!(call["finish_reason"], "tool_calls", "{call}");
    assert_eq!(call["message"]["tool_calls"][0]["function"], json!({ "name": "now", "arguments": "{}" }));
}
