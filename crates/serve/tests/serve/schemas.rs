//! Schemas of clients: their numbers are exact or refused, their faults are the client's, and nobody else waits for them.

use serde_json::{Value, json};

use crate::support::{self, Running, chat};

/// The bodies that put a schema, which may have numbers that serde_json rounds, into every place of a request; with the path and the field's name.
fn bodies(schema: &str) -> [(&'static str, &'static str, String); 4] {
    let messages = r#""messages":[{"role":"user","content":"Hello."}],"max_tokens":60"#;
    let object = format!(
        r#"{{"type":"object","properties":{{"a":{schema}}},"required":["a"],"additionalProperties":false}}"#
    );
    [
        (
            "/v1/chat/completions",
            "response_format.json_schema.schema",
            format!(
                r#"{{{messages},"response_format":{{"type":"json_schema","json_schema":{{"name":"x","schema":{schema}}}}}}}"#
            ),
        ),
        (
            "/v1/chat/completions",
            "response_format.schema",
            format!(r#"{{{messages},"response_format":{{"type":"json_object","schema":{schema}}}}}"#),
        ),
        (
            "/v1/chat/completions",
            "tools[0].function.parameters",
            format!(
                r#"{{{messages},"tool_choice":"required","parallel_tool_calls":false,"tools":[{{"type":"function","function":{{"name":"f","parameters":{object}}}}}]}}"#
            ),
        ),
        (
            "/v1/responses",
            "text.format.schema",
            format!(
                r#"{{"input":"Hello.","max_output_tokens":60,"text":{{"format":{{"type":"json_schema","name":"x","schema":{schema}}}}}}}"#
            ),
        ),
    ]
}

fn post(server: &Running, path: &str, body: &str) -> support::Reply {
    server.request("POST", path, &[("Content-Type", "application/json")], body)
}

#[test]
fn numbers_are_exact_or_refused() {
    let server = Running::start();
    for number in [
        "-9223372036854775808",
        "9223372036854775807",
        "9007199254740993",
        "18446744073709551615",
        "0.1",
        "73519",
    ] {
        for (path, _, body) in bodies(&format!(r#"{{"const":{number}}}"#)) {
            let reply = post(&server, path, &body);
            assert_eq!(reply.status, 200, "{number}: {}", reply.body);
            assert!(reply.body.contains(number), "{number}: {}", reply.body);
        }
    }
    for number in ["18446744073709551616", "-9223372036854775809", "0.10000000000000000001"] {
        for schema in
            [format!(r#"{{"const":{number}}}"#), format!(r#"{{"type":"number","minimum":{number}}}"#)]
        {
            for (path, field, body) in bodies(&schema) {
                let reply = post(&server, path, &body);
                assert_eq!(reply.status, 400, "{number}: {}", reply.body);
                let (param, message) = (&reply.error()["param"], &reply.error()["message"]);
                assert!(param.as_str().unwrap().starts_with(field), "{param}");
                assert!(message.as_str().unwrap().contains(number), "{message}");
            }
        }
    }
    // Elsewhere, a number of too many digits means the nearest float.
    let body = r#"{"messages":[{"role":"user","content":"Hello."}],"max_tokens":2,"temperature":0.10000000000000000001}"#;
    assert_eq!(post(&server, "/v1/chat/completions", body).status, 200);
}

/// Schemas that cannot be followed to an end, or not within limits, are the client's fault, and the server goes on.
#[test]
fn faults_of_schemas_are_the_clients() {
    let server = Running::start();
    let names: Vec<String> = (0..5000).map(|index| format!("\"p{index}\"")).collect();
    for schema in [
        r##"{"$ref":"#"}"##.to_owned(),
        r##"{"type":"object","properties":{"b":{"$ref":"#"}},"required":["b"]}"##.to_owned(),
        r#"{"enum":[]}"#.to_owned(),
        r#"{"type":"string","pattern":"[^\\s\\S]"}"#.to_owned(),
        r#"{"type":"integer","multipleOf":1000003}"#.to_owned(),
        format!(r#"{{"const":"{}"}}"#, "x".repeat(1_900_000)),
        format!(r#"{{"type":"object","required":[{}]}}"#, names.join(",")),
    ] {
        for (path, field, body) in bodies(&schema) {
            let reply = post(&server, path, &body);
            let short: String = schema.chars().take(60).collect();
            // In the parameters of a tool, `#` is the whole of them.
            let is_other = schema.contains("\"#\"") && field.starts_with("tools");
            assert!(
                reply.status == 400 || (is_other && reply.status == 200),
                "{short}: {} {}",
                reply.status,
                reply.body
            );
            // Tools are part of the prompt, so large ones may not fit.
            let param = reply.status == 400
                && reply.error()["param"].as_str().is_some_and(|param| {
                    param.starts_with(field) || (field.starts_with("tools") && schema.len() > 10_000)
                });
            assert!(is_other || param, "{short}: {}", reply.body);
        }
    }
    server.answer("/v1/chat/completions", &chat("Hello."));
}

/// Requests without a grammar, or with one that is kept, are answered while others compile theirs.
#[test]
fn nobody_waits_for_a_grammar() {
    let server = Running::start();
    let with_schema = |schema: Value| {
        let mut body = chat("Hello.");
        body["response_format"] =
            json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        body
    };
    let slow = |request: usize| {
        let properties: serde_json::Map<String, Value> = (0..1900)
            .map(|index| (format!("p{request}_{index}"), json!({ "type": "integer", "minimum": index })))
            .collect();
        let required: Vec<String> = properties.keys().cloned().collect();
        with_schema(json!({ "type": "object", "properties": properties, "required": required }))
    };
    // Such a grammar is compiled.
    server.answer("/v1/chat/completions", &slow(40));
    let kept = with_schema(json!({ "enum": ["yes", "no"] }));
    server.answer("/v1/chat/completions", &kept);
    // 40 grammars; a model compiles one at a time, and 16 have their place.
    let slow: Vec<_> = (0..40).map(|request| server.begin("/v1/chat/completions", &slow(request))).collect();
    server.wait(|server| server.metric("refrain_requests_waiting") >= 36.0);
    server.answer("/v1/chat/completions", &chat("Hello."));
    server.answer("/v1/chat/completions", &kept);
    assert!(server.metric("refrain_requests_waiting") > 16.0, "the grammars were waited for");
    drop(slow);
}

#[test]
fn gbnf_is_followed_or_refused_with_its_place() {
    let server = Running::start();
    let grammar = "root ::= \"yes\" | \"no\" reason?\nreason ::= \", because of \" [a-z]{1,9} \".\"\n";
    let is_answer = |text: &str| {
        let reason = text.strip_prefix("no, because of ").and_then(|rest| rest.strip_suffix('.'));
        ["yes", "no"].contains(&text) || reason.is_some_and(|reason| (1..=9).contains(&reason.len()))
    };
    for seed in 0..3 {
        let more = json!({ "grammar": grammar, "temperature": 1, "seed": seed, "max_tokens": 60 });
        let answer = server.answer("/v1/chat/completions", &support::with(&chat("Is it so?"), more.clone()));
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(is_answer(text), "{text}");
        let answer =
            server.answer("/v1/completions", &support::with(&more, json!({ "prompt": "Is it so?" })));
        let text = answer["choices"][0]["text"].as_str().unwrap();
        assert!(is_answer(text), "{text}");
    }
    // A grammar with recursion.
    let nested = "root ::= \"(\" root \")\" | [a-z]{1,3}";
    let answer = server.answer(
        "/v1/chat/completions",
        &support::with(&chat("Hello."), json!({ "grammar": nested, "max_tokens": 60 })),
    );
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    let inner = text.trim_matches(['(', ')']);
    let depth = text.len() - text.trim_start_matches('(').len();
    if answer["choices"][0]["finish_reason"] == "stop" {
        assert_eq!(text, format!("{}{inner}{}", "(".repeat(depth), ")".repeat(depth)));
    }
    let tool = json!([{ "type": "function", "function": { "name": "f" } }]);
    for (more, message) in [
        (json!({ "grammar": "root ::= a" }), "line 1, column 10"),
        (json!({ "grammar": "root ::= \"a\" root" }), "refused"),
        (json!({ "grammar": "a ::= \"a\"" }), "`root`"),
        (json!({ "grammar": 3 }), "string"),
        (json!({ "grammar": grammar, "response_format": { "type": "json_object" } }), "format"),
        (json!({ "grammar": grammar, "tools": tool }), "tools"),
    ] {
        let reply = server.post("/v1/chat/completions", &support::with(&chat("Hello."), more));
        let error = reply.error();
        assert_eq!((reply.status, &error["param"]), (400, &json!("grammar")), "{}", reply.body);
        assert!(error["message"].as_str().unwrap().contains(message), "{}", reply.body);
    }
}
