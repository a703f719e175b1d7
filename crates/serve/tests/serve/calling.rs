//! A model whose every step is known: calls that it begins by itself, answers beside tools, continued messages, levels of reasoning, tokens.

use refrain::checkpoint::Checkpoint;
use refrain::{Engine, EngineOptions};
use refrain_serve::{Limits, Loaded, ModelSpec, Models, ServeOptions};
use serde_json::{Value, json};

use crate::bigram::{self, Calls, FREE_STRING, GREETING, THOUGHT};
use crate::support::{MODEL, Running, with};

pub(crate) fn server(calls: Calls) -> Running {
    let checkpoint = Checkpoint::from_gguf_bytes(bigram::gguf(calls).into(), "bigram").unwrap();
    let engine = Engine::load(&checkpoint, EngineOptions::default(), |_, _| {}).unwrap();
    let models = Models::new([ModelSpec::new(MODEL, move || Ok(Loaded::new(engine.clone())))]).unwrap();
    Running::with_models(ServeOptions::default(), Limits::default(), models)
}

fn chat(content: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 200 })
}

fn tools() -> Value {
    let city =
        json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    json!([
        { "type": "function", "function": { "name": "weather", "parameters": city } },
        { "type": "function", "function": { "name": "now" } },
    ])
}

fn content(answer: &Value) -> &Value {
    &answer["choices"][0]["message"]["content"]
}

#[test]
fn a_call_comes_with_either_kind_of_marker() {
    for calls in [Calls::Text, Calls::Control] {
        let server = server(calls);
        for choice in ["auto", "required"] {
            let request = with(&chat("The weather?"), json!({ "tools": tools(), "tool_choice": choice }));
            let request = with(&request, json!({ "parallel_tool_calls": false }));
            let answer = server.answer("/v1/chat/completions", &request);
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "tool_calls", "{calls:?}: {answer}");
            assert!(content(&answer).is_null());
            let call = &choice["message"]["tool_calls"][0]["function"];
            let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            match call["name"].as_str().unwrap() {
                "weather" => assert_eq!(arguments, json!({ "city": FREE_STRING })),
                name => assert_eq!((name, arguments), ("now", json!({}))),
            }
            let chunks =
                server.post("/v1/chat/completions", &with(&request, json!({ "stream": true }))).chunks();
            let deltas = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
            assert!(deltas().all(|delta| !delta["content"].as_str().unwrap_or_default().contains('<')));
            let streamed: String = deltas()
                .filter_map(|delta| delta["tool_calls"][0]["function"]["arguments"].as_str())
                .collect();
            assert_eq!(streamed, call["arguments"].as_str().unwrap());
        }
        // The result of a call is answered with text.
        let mut request = with(&chat("The weather?"), json!({ "tools": tools() }));
        let call =
            json!({ "id": "call_1", "type": "function", "function": { "name": "now", "arguments": "{}" } });
        let messages = request["messages"].as_array_mut().unwrap();
        messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
        messages.push(json!({ "role": "tool", "tool_call_id": "call_1", "content": "Ten." }));
        assert_eq!(content(&server.answer("/v1/chat/completions", &request)), GREETING);
        let response = json!({ "input": "The weather?", "tools": [{ "type": "function", "name": "now" }] });
        let response = server.answer("/v1/responses", &response);
        assert_eq!(response["output"][0]["type"], "function_call", "{response}");
    }
}

/// A chat in which [`Calls::RecipientFirst`] reasons once.
fn penalized(text: &str) -> Value {
    with(&chat(text), json!({ "presence_penalty": 2 }))
}

#[test]
fn a_call_comes_in_channels() {
    let weather = json!({ "name": "weather", "arguments": json!({ "city": FREE_STRING }).to_string() });
    for calls in [Calls::Channels, Calls::RecipientFirst] {
        let server = server(calls);
        let reasoning = if calls == Calls::RecipientFirst { THOUGHT.into() } else { Value::Null };
        for choice in
            [json!("auto"), json!("required"), json!({ "type": "function", "function": { "name": "now" } })]
        {
            let request =
                with(&penalized("The weather?"), json!({ "tools": tools(), "tool_choice": choice }));
            let answer = server.answer("/v1/chat/completions", &request);
            let (first, message) = (&answer["choices"][0], &answer["choices"][0]["message"]);
            let expected = match choice.is_object() {
                true => json!({ "name": "now", "arguments": "{}" }),
                false => weather.clone(),
            };
            assert_eq!(message["tool_calls"][0]["function"], expected, "{calls:?} {choice}: {answer}");
            assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1);
            assert_eq!((&first["finish_reason"], content(&answer)), (&json!("tool_calls"), &Value::Null));
            assert_eq!(message["reasoning_content"], reasoning, "{answer}");
            let chunks =
                server.post("/v1/chat/completions", &with(&request, json!({ "stream": true }))).chunks();
            let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
            let joined = |path: &str| -> String {
                deltas.iter().filter_map(|delta| delta.pointer(path)?.as_str()).collect()
            };
            let call = json!({
                "name": joined("/tool_calls/0/function/name"),
                "arguments": joined("/tool_calls/0/function/arguments"),
            });
            assert_eq!((call, joined("/content")), (expected, String::new()));
            assert_eq!(joined("/reasoning_content"), reasoning.as_str().unwrap_or_default());
            assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
        }
        if calls == Calls::RecipientFirst {
            // The template opens the reasoning.
            for choice in ["auto", "required"] {
                let open = json!({ "tools": tools(), "tool_choice": choice, "reasoning_effort": "high" });
                let answer = server.answer("/v1/chat/completions", &with(&penalized("The weather?"), open));
                let message = &answer["choices"][0]["message"];
                assert_eq!(message["tool_calls"][0]["function"], weather, "{choice}: {answer}");
                assert_eq!(message["reasoning_content"], reasoning, "{answer}");
            }
        }
        // The call is cut, and so are its arguments.
        let cut = with(&penalized("The weather?"), json!({ "tools": tools(), "tool_choice": "required" }));
        let whole = server.answer("/v1/chat/completions", &cut);
        let n_tokens = whole["usage"]["completion_tokens"].as_u64().unwrap();
        let answer =
            server.answer("/v1/chat/completions", &with(&cut, json!({ "max_tokens": n_tokens - 3 })));
        let first = &answer["choices"][0];
        assert_eq!(first["finish_reason"], "length", "{answer}");
        let arguments = first["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
        assert!(arguments.len() > 5 && weather["arguments"].as_str().unwrap().starts_with(arguments));
        let response = json!({ "input": "The weather?", "tools": [{ "type": "function", "name": "now" }] });
        let response = server.answer("/v1/responses", &response);
        let kinds: Vec<&Value> =
            response["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
        assert_eq!(kinds.last().unwrap(), &"function_call", "{response}");
        assert_eq!(kinds.len(), 1 + usize::from(calls == Calls::RecipientFirst));
    }
}

#[test]
fn an_answer_beside_tools_in_channels_is_text_or_json() {
    let format = json!({ "type": "json_object" });
    let request = with(&penalized("The weather?"), json!({ "tools": tools() }));
    let answers = server(Calls::Never);
    let answer = answers.answer("/v1/chat/completions", &request);
    assert_eq!(
        (content(&answer), &answer["choices"][0]["finish_reason"]),
        (&json!(GREETING), &json!("stop"))
    );
    let formatted = with(&request, json!({ "response_format": format }));
    let answer = answers.answer("/v1/chat/completions", &formatted);
    assert_eq!((content(&answer), &answer["choices"][0]["finish_reason"]), (&json!("{}"), &json!("stop")));
    // The result of a call is a turn.
    let mut answered = request.clone();
    let call =
        json!({ "id": "call_1", "type": "function", "function": { "name": "now", "arguments": "{}" } });
    let messages = answered["messages"].as_array_mut().unwrap();
    messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
    messages.push(json!({ "role": "tool", "tool_call_id": "call_1", "content": "Ten." }));
    assert_eq!(content(&answers.answer("/v1/chat/completions", &answered)), GREETING);
    for calls in [Calls::Channels, Calls::RecipientFirst] {
        let answer = server(calls).answer("/v1/chat/completions", &formatted);
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{calls:?}: {answer}");
    }
    let required = with(&formatted, json!({ "tool_choice": "required" }));
    let answer = answers.answer("/v1/chat/completions", &required);
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "weather", "{answer}");
}

#[test]
fn an_answer_beside_tools_has_its_format() {
    let server = server(Calls::Text);
    let schema = json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
    for (format, expected) in
        [(json!({ "type": "json_object" }), json!({})), (format, json!({ "a": FREE_STRING }))]
    {
        let fields = json!({ "tools": tools(), "response_format": format });
        let answer = server.answer("/v1/chat/completions", &with(&chat("Answer plainly."), fields.clone()));
        let value: Value = serde_json::from_str(content(&answer).as_str().unwrap()).unwrap();
        assert_eq!((value, &answer["choices"][0]["finish_reason"]), (expected, &json!("stop")));
        let answer = server.answer("/v1/chat/completions", &with(&chat("The weather?"), fields.clone()));
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
        let required = with(&with(&chat("Answer plainly."), fields), json!({ "tool_choice": "required" }));
        let answer = server.answer("/v1/chat/completions", &required);
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
    }
    for (schema, param) in [
        (json!({ "not": {} }), "response_format.json_schema.schema"),
        (json!(false), "response_format.json_schema.schema"),
        (json!({ "x-guidance": { "lenient": true } }), "response_format.json_schema.schema"),
    ] {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
        let request = with(&chat("Hello."), json!({ "tools": tools(), "response_format": format }));
        let reply = server.post("/v1/chat/completions", &request);
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)), "{}", reply.body);
    }
}

#[test]
fn a_stop_string_cuts_a_formatted_answer() {
    let server = server(Calls::Text);
    let schema = json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
    let request = with(&chat("Hello."), json!({ "response_format": format, "stop": FREE_STRING }));
    let answer = server.answer("/v1/chat/completions", &request);
    assert_eq!(
        (content(&answer), &answer["choices"][0]["finish_reason"]),
        (&json!("{\"a\":\""), &json!("stop"))
    );
}

#[test]
fn characters_of_several_tokens_arrive_whole() {
    let server = server(Calls::Text);
    let request = with(&chat("Hello."), json!({ "stream": true, "logprobs": true }));
    let chunks = server.post("/v1/chat/completions", &request).chunks();
    let texts: Vec<&str> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(texts.concat(), GREETING);
    assert!(texts.iter().all(|text| !text.contains('\u{FFFD}')), "{texts:?}");
    let entries = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    let bytes: Vec<u8> = entries
        .flatten()
        .flat_map(|entry| entry["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), GREETING);
    // Cut inside the character.
    let answer = server.answer("/v1/chat/completions", &with(&chat("Hello."), json!({ "max_tokens": 3 })));
    assert_eq!(
        (content(&answer), &answer["choices"][0]["finish_reason"]),
        (&json!("Hello\u{FFFD}"), &json!("length"))
    );
}

#[test]
fn the_last_message_can_be_continued() {
    let server = server(Calls::Text);
    let mut request = chat("Hello.");
    let begun = json!({ "role": "assistant", "content": "Say: Hi]" });
    request["messages"].as_array_mut().unwrap().push(begun);
    let continued = with(&request, json!({ "continue_final_message": true, "add_generation_prompt": false }));
    let answer = server.answer("/v1/chat/completions", &continued);
    assert_eq!(content(&answer), GREETING);
    let prompt = "[user]Hello.[assistant]Say: Hi]";
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
    // The same prompt as a plain text.
    let plain = server.answer("/v1/completions", &json!({ "prompt": prompt }));
    assert_eq!(plain["choices"][0]["text"], GREETING);
    // Otherwise the answer is a message of its own.
    let answer = server.answer("/v1/chat/completions", &request);
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.len() + "[assistant]".len());
    for (fields, param) in [
        (json!({ "continue_final_message": true, "add_generation_prompt": true }), "continue_final_message"),
        (json!({ "add_generation_prompt": false }), "add_generation_prompt"),
        (json!({ "continue_final_message": true, "tools": tools() }), "continue_final_message"),
        (
            json!({ "continue_final_message": true, "response_format": { "type": "json_object" } }),
            "continue_final_message",
        ),
        (
            json!({ "continue_final_message": true, "messages": [{ "role": "user", "content": "a" }] }),
            "continue_final_message",
        ),
    ] {
        let reply = server.post("/v1/chat/completions", &with(&request, fields.clone()));
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)), "{fields}: {}", reply.body);
    }
}

#[test]
fn levels_of_reasoning_reach_a_template_that_knows_them() {
    let server = server(Calls::Text);
    let n_prompt = |fields: Value| {
        server.answer("/v1/chat/completions", &with(&chat("Hello."), fields))["usage"]["prompt_tokens"]
            .clone()
    };
    let base = n_prompt(json!({})).as_u64().unwrap();
    for level in ["minimal", "low", "medium", "high", "xhigh"] {
        let expected = base + level.len() as u64 + 2;
        assert_eq!(n_prompt(json!({ "reasoning_effort": level })), expected, "{level}");
        let request = json!({ "input": "Hello.", "reasoning": { "effort": level } });
        let response = server.answer("/v1/responses", &request);
        assert_eq!(response["usage"]["input_tokens"], expected);
        assert_eq!(response["reasoning"]["effort"], level);
    }
    assert_eq!(n_prompt(json!({ "reasoning_effort": "none" })), base);
    let reply =
        server.post("/v1/chat/completions", &with(&chat("Hello."), json!({ "reasoning_effort": "most" })));
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("reasoning_effort")));
}

#[test]
fn texts_become_tokens_and_tokens_texts() {
    let server = server(Calls::Text);
    let text = "Où? 🌍";
    let bytes: Vec<u8> = text.bytes().collect();
    for name in ["prompt", "content"] {
        let answer = server.answer("/tokenize", &json!({ name: text }));
        assert_eq!((&answer["tokens"], &answer["count"]), (&json!(bytes), &json!(bytes.len())));
        assert_eq!(answer["max_model_len"], 2048);
    }
    let pieces = server.answer("/tokenize", &json!({ "content": "aù", "with_pieces": true }));
    assert_eq!(
        pieces["tokens"],
        json!([{ "id": 97, "piece": "a" }, { "id": 195, "piece": [195] }, { "id": 185, "piece": [185] }])
    );
    let texts = server.answer("/tokenize", &json!({ "prompt": "ab", "return_token_strs": true }));
    assert_eq!(texts["token_strs"], json!(["a", "b"]));
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    assert_eq!(
        server.answer("/tokenize", &json!({ "messages": messages }))["count"],
        "[user]Hi[assistant]".len()
    );
    let count = server.answer("/v1/chat/completions/input_tokens", &json!({ "messages": messages }));
    assert_eq!(count["input_tokens"], "[user]Hi[assistant]".len());
    let count = server.answer("/v1/responses/input_tokens", &json!({ "input": "Hi" }));
    assert_eq!(
        count,
        json!({ "object": "response.input_tokens", "input_tokens": "[user]Hi[assistant]".len() })
    );
    let back = server.answer("/detokenize", &json!({ "tokens": bytes }));
    assert_eq!((&back["content"], &back["prompt"]), (&json!(text), &json!(text)));
    assert_eq!(server.answer("/detokenize", &json!({ "tokens": [] }))["content"], "");
    for (path, request, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({ "prompt": "a", "content": "b" }), "prompt"),
        ("/tokenize", json!({ "prompt": 3 }), "prompt"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({ "tokens": "a" }), "tokens"),
        ("/detokenize", json!({ "tokens": [[1]] }), "tokens"),
        ("/detokenize", json!({ "tokens": [99_999] }), "tokens"),
        ("/detokenize", json!({ "tokens": [-1] }), "tokens"),
    ] {
        let reply = server.post(path, &request);
        assert_eq!(
            (reply.status, &reply.error()["param"]),
            (400, &json!(param)),
            "{request}: {}",
            reply.body
        );
    }
}
