//! The other endpoints: completions, responses, embeddings, models, metrics, the document.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use refrain_index::notes::{Embedder, ModelEmbedder};
use serde_json::{Value, json};

use crate::support::{EMBEDDER, MODEL, QUESTION, Running, engine, with};

#[test]
fn completions_continue_plain_text() {
    let server = Running::start();
    let request =
        json!({ "model": MODEL, "prompt": "Answer the question", "max_tokens": 12, "temperature": 0 });
    let answer = server.answer("/v1/completions", &request);
    assert_eq!(answer["object"], "text_completion");
    let text = answer["choices"][0]["text"].as_str().unwrap();
    let mut session = engine().session(Default::default()).unwrap();
    session.append_text("Answer the question", refrain::SpecialTokens::AsText).unwrap();
    let options = refrain::GenerateOptions { max_tokens: 12, ..refrain::GenerateOptions::default() };
    let mut expected = String::new();
    let summary = session.generate(options).unwrap().run(|token| {
        expected.push_str(&token.text);
        std::ops::ControlFlow::Continue(())
    });
    expected.push_str(&summary.unwrap().text);
    assert_eq!(text, expected);
    let echoed = server.answer("/v1/completions", &with(&request, json!({ "echo": true })));
    assert_eq!(echoed["choices"][0]["text"], format!("Answer the question{text}"));
    let tokens: Vec<u32> = engine()
        .tokenizer()
        .encode("Answer the question", refrain::SpecialTokens::AsText)
        .unwrap()
        .iter()
        .map(|token| token.0)
        .collect();
    let of_tokens = server.answer("/v1/completions", &with(&request, json!({ "prompt": tokens })));
    assert_eq!(of_tokens["choices"], answer["choices"]);
    let several =
        with(&request, json!({ "prompt": ["Answer the question", "Summarize"], "n": 2, "logprobs": 2 }));
    let several = server.answer("/v1/completions", &several);
    let choices = several["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    assert_eq!((&choices[0]["text"], &choices[1]["text"]), (&json!(text), &json!(text)));
    let logprobs = &choices[0]["logprobs"];
    let pieces: String =
        logprobs["tokens"].as_array().unwrap().iter().map(|piece| piece.as_str().unwrap()).collect();
    assert_eq!(pieces, text);
    assert_eq!(logprobs["text_offset"][0], 0);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    let stream = with(&request, json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let chunks = server.post("/v1/completions", &stream).chunks();
    let streamed: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, text);
    assert_eq!(
        chunks.last().unwrap()["usage"],
        answer["usage"]
            .as_object()
            .map(|usage| {
                let mut usage = usage.clone();
                // The first request has computed the prompt.
                usage["prompt_tokens_details"] =
                    chunks.last().unwrap()["usage"]["prompt_tokens_details"].clone();
                Value::Object(usage)
            })
            .unwrap()
    );
}

#[test]
fn the_tokens_of_an_echoed_prompt_have_their_probabilities() {
    let server = Running::start();
    let text = "Answer the question from the notes.";
    let mut session = engine().session(Default::default()).unwrap();
    session.append_text(text, refrain::SpecialTokens::AsText).unwrap();
    let tokens: Vec<u32> = session.tokens().iter().map(|token| token.0).collect();
    let expected = session.score(&refrain::CancelToken::new(), None).unwrap().log_probabilities;
    let request = json!({ "prompt": text, "echo": true, "logprobs": 2, "max_tokens": 1, "temperature": 0 });
    for request in [request.clone(), with(&request, json!({ "prompt": tokens }))] {
        let choice = server.answer("/v1/completions", &request)["choices"][0].clone();
        let (list, whole) = (&choice["logprobs"], choice["text"].as_str().unwrap());
        assert!(whole.starts_with(text), "{whole}");
        let joined: String =
            list["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
        assert_eq!(joined, whole);
        let given = list["token_logprobs"].as_array().unwrap();
        // The first token follows nothing, and the last one is the output.
        assert_eq!((given.len(), given[0].is_null()), (expected.len() + 2, true));
        for (given, expected) in given[1..].iter().zip(&expected) {
            assert!((given.as_f64().unwrap() - expected).abs() < 1e-3, "{given} {expected}");
        }
        assert!(list["top_logprobs"][0].is_null() && list["top_logprobs"][1].is_object());
        let starts: Vec<u64> =
            list["text_offset"].as_array().unwrap().iter().map(|start| start.as_u64().unwrap()).collect();
        assert_eq!((starts[0], starts.last()), (0, Some(&(text.chars().count() as u64))));
        assert!(starts.is_sorted());
        let chunks = server.post("/v1/completions", &with(&request, json!({ "stream": true }))).chunks();
        let streamed: String =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
        assert_eq!(streamed, whole);
        assert_eq!(chunks[0]["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), given.len() - 1);
    }
}

fn responses_events(server: &Running, request: &Value) -> Vec<Value> {
    let reply = server.post("/v1/responses", &with(request, json!({ "stream": true })));
    let mut events = reply.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let names: Vec<&str> = reply.body.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    for (index, (event, name)) in events.iter().zip(names).enumerate() {
        assert_eq!((&event["sequence_number"], &event["type"]), (&json!(index), &json!(name)));
    }
    events
}

fn types(events: &[Value]) -> Vec<&str> {
    let mut types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    types.dedup();
    types
}

#[test]
fn responses_have_items_and_typed_events() {
    let server = Running::start();
    let request = json!({ "model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 48 });
    let response = server.answer("/v1/responses", &request);
    assert_eq!((&response["object"], &response["status"]), (&json!("response"), &json!("completed")));
    let chat = json!({ "model": MODEL, "messages": [{ "role": "user", "content": QUESTION }], "temperature": 0, "max_tokens": 48 });
    let chat = server.answer("/v1/chat/completions", &chat);
    let text = &chat["choices"][0]["message"]["content"];
    assert_eq!(&response["output"][0]["content"][0]["text"], text);
    let events = responses_events(&server, &request);
    assert_eq!(
        types(&events),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let deltas: String = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(json!(deltas), *text);
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"], response["output"][0]["content"]);
    assert_eq!(last["usage"]["output_tokens"], response["usage"]["output_tokens"]);
    let cut = server.answer("/v1/responses", &with(&request, json!({ "max_output_tokens": 2 })));
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
}

#[test]
fn responses_continue_those_that_are_kept() {
    let server = Running::start();
    let request = json!({ "input": QUESTION, "temperature": 0, "max_output_tokens": 24 });
    let first = server.answer("/v1/responses", &request);
    assert_eq!((&first["store"], &first["previous_response_id"]), (&json!(true), &Value::Null));
    let address = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    assert_eq!(server.get(&address).json(), first);
    let next = json!({ "input": "And when?", "instructions": "Be brief.", "temperature": 0, "max_output_tokens": 8 });
    let whole = json!([
        { "role": "user", "content": QUESTION },
        first["output"][0],
        { "role": "user", "content": "And when?" },
    ]);
    let expected = server.answer("/v1/responses", &with(&next, json!({ "input": whole, "store": false })));
    assert_eq!(expected["store"], false);
    let continuing = with(&next, json!({ "previous_response_id": first["id"] }));
    let reply = server.post("/v1/responses", &continuing);
    let second = reply.json();
    assert_eq!(second["output"][0]["content"], expected["output"][0]["content"], "{}", reply.body);
    assert_eq!(second["usage"]["input_tokens"], expected["usage"]["input_tokens"]);
    assert_eq!(second["previous_response_id"], first["id"]);
    assert!(!reply.headers.contains_key("x-refrain-ignored"), "{:?}", reply.headers);
    // The first turn was computed before.
    assert!(second["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0);
    let count = with(&json!({ "input": "And when?" }), json!({ "previous_response_id": first["id"] }));
    let count = server.answer("/v1/responses/input_tokens", &count);
    assert!(count["input_tokens"].as_u64() > first["usage"]["input_tokens"].as_u64());
    // A streamed one is kept too, and continues the second.
    let events = responses_events(&server, &with(&next, json!({ "previous_response_id": second["id"] })));
    let third = &events.last().unwrap()["response"];
    assert!(third["usage"]["input_tokens"].as_u64() > second["usage"]["input_tokens"].as_u64());
    assert_eq!(server.get(&format!("/v1/responses/{}", third["id"].as_str().unwrap())).json(), *third);
    // The one before may go.
    let deleted = server.request("DELETE", &address, &[], "").json();
    assert_eq!(deleted, json!({ "id": first["id"], "object": "response", "deleted": true }));
    assert_eq!(server.request("DELETE", &address, &[], "").status, 404);
    assert_eq!(server.get(&address).status, 404);
    server.answer("/v1/responses", &with(&next, json!({ "previous_response_id": second["id"] })));
    for id in [&first["id"], &expected["id"]] {
        let reply = server.post("/v1/responses", &with(&next, json!({ "previous_response_id": id })));
        assert_eq!((reply.status, &reply.error()["code"]), (400, &json!("previous_response_not_found")));
    }
}

#[test]
fn responses_call_functions_and_take_their_results() {
    let server = Running::start();
    let tool = json!({ "type": "function", "name": "weather", "parameters": {
        "type": "object", "properties": { "city": { "enum": ["Oslo"] } }, "required": ["city"], "additionalProperties": false } });
    let request = json!({
        "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "What is the weather?" }] }],
        "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false, "temperature": 0, "max_output_tokens": 99,
    });
    let response = server.answer("/v1/responses", &request);
    let call = &response["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("weather")));
    assert_eq!(call["arguments"], "{\"city\":\"Oslo\"}");
    let (given, tool) = (&request["tools"][0], &response["tools"][0]);
    assert_eq!((&tool["name"], &tool["parameters"]), (&given["name"], &given["parameters"]));
    assert_eq!((&tool["strict"], &tool["description"]), (&json!(true), &Value::Null));
    let events = responses_events(&server, &request);
    assert!(types(&events).contains(&"response.function_call_arguments.delta"));
    let done = events.iter().find(|event| event["type"] == "response.function_call_arguments.done").unwrap();
    assert_eq!(done["arguments"], call["arguments"]);
    let mut input = request["input"].as_array().unwrap().clone();
    input.push(call.clone());
    input.push(json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "Rain." }));
    let next = with(&request, json!({ "input": input, "tool_choice": "none", "instructions": "Be brief." }));
    let response = server.answer("/v1/responses", &next);
    assert_eq!(
        (&response["instructions"], &response["output"][0]["type"]),
        (&json!("Be brief."), &json!("message"))
    );
}

#[test]
fn embeddings_are_those_of_the_embedder() {
    let server = Running::start();
    let embedder = ModelEmbedder::new(engine()).unwrap();
    let texts = ["The repair of the car", "A boat"];
    let expected = embedder.embed(&texts).unwrap();
    let request = json!({ "model": EMBEDDER, "input": texts });
    let answer = server.answer("/v1/embeddings", &request);
    assert_eq!(answer["model"], EMBEDDER);
    for (index, vector) in expected.iter().enumerate() {
        let entry = &answer["data"][index];
        let given: Vec<f32> = entry["embedding"]
            .as_array()
            .unwrap()
            .iter()
            .map(|number| number.as_f64().unwrap() as f32)
            .collect();
        assert_eq!((&entry["index"], &given), (&json!(index), vector));
    }
    let packed = server.answer("/v1/embeddings", &with(&request, json!({ "encoding_format": "base64" })));
    let bytes = STANDARD.decode(packed["data"][1]["embedding"].as_str().unwrap()).unwrap();
    let given: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(given, expected[1]);
    // The first embedding model answers requests that name none.
    let unnamed = server.answer("/v1/embeddings", &json!({ "input": texts[1] }));
    assert_eq!(unnamed["data"][0]["embedding"], answer["data"][1]["embedding"]);
    let reply = server.post("/v1/embeddings", &with(&request, json!({ "dimensions": 3 })));
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("dimensions")));
    let tokens = |text: &str| {
        let tokens = engine().tokenizer().encode(text, refrain::SpecialTokens::AsText).unwrap();
        json!(tokens.iter().map(|token| token.0).collect::<Vec<_>>())
    };
    let of_tokens = server.answer("/v1/embeddings", &with(&request, json!({ "input": tokens(texts[0]) })));
    assert_eq!(of_tokens["data"][0]["embedding"], answer["data"][0]["embedding"]);
    for input in [json!(""), json!([]), json!(["a", ""]), json!(3), json!([99_999_999]), json!([[0, 1, 2]])] {
        let reply = server.post("/v1/embeddings", &with(&request, json!({ "input": input })));
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("input")));
    }
}

#[test]
fn documents_are_ranked_by_their_vectors() {
    let server = Running::start();
    let documents = json!(["A boat", "The repair of the car", { "text": "The car" }]);
    let request = json!({ "model": EMBEDDER, "query": "The repair of the car", "documents": documents });
    let answer = server.answer("/v1/rerank", &with(&request, json!({ "return_documents": true })));
    let results = answer["results"].as_array().unwrap();
    assert_eq!((results.len(), &results[0]["index"]), (3, &json!(1)));
    assert!((results[0]["relevance_score"].as_f64().unwrap() - 1.0).abs() < 1e-5);
    assert!(
        results
            .windows(2)
            .all(|pair| pair[0]["relevance_score"].as_f64() >= pair[1]["relevance_score"].as_f64())
    );
    assert_eq!(results[0]["document"]["text"], "The repair of the car");
    let first = server.answer("/v1/rerank", &with(&request, json!({ "top_n": 1 })));
    assert_eq!(first["results"].as_array().unwrap().len(), 1);
    assert_eq!(first["results"][0].as_object().unwrap().len(), 2);
    for (fields, param) in [
        (json!({ "query": null }), "query"),
        (json!({ "documents": [] }), "documents"),
        (json!({ "documents": [3] }), "documents[0]"),
        (json!({ "documents": [{}] }), "documents[0].text"),
        (json!({ "top_n": 0 }), "top_n"),
    ] {
        let reply = server.post("/v1/rerank", &with(&request, fields));
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)));
    }
}

#[test]
fn models_metrics_and_the_document_are_shown() {
    let server = Running::start();
    let list = server.get("/v1/models").json();
    assert_eq!((&list["object"], list["data"].as_array().unwrap().len()), (&json!("list"), 2));
    assert_eq!(server.get(&format!("/v1/models/{MODEL}")).json(), list["data"][0]);
    // Clients whose address lacks the version.
    assert_eq!(server.get("/models").json(), list);
    assert_eq!(server.get(&format!("/models/{MODEL}")).json(), list["data"][0]);
    assert_eq!(server.post("/chat/completions", &json!({})).error()["param"], "messages");
    assert_eq!(server.get("/health").json(), json!({ "status": "ok" }));
    let props = server.get("/props").json();
    assert_eq!((&props["model_alias"], &props["total_slots"]), (&json!(MODEL), &json!(4)));
    let slots = server.get("/slots").json();
    assert_eq!((slots.as_array().unwrap().len(), &slots[3]["is_processing"]), (4, &json!(false)));
    assert_eq!(slots[0]["n_ctx"], props["default_generation_settings"]["n_ctx"]);
    server.answer("/v1/completions", &json!({ "prompt": "Hello", "max_tokens": 5, "temperature": 0 }));
    assert_eq!(server.metric("refrain_requests_total"), 1.0);
    assert!(server.metric("refrain_output_tokens_total") >= 1.0);
    assert!(server.get("/metrics").body.contains("refrain_model_bytes{model=\"fixture\"}"));
    let document = server.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(
        server.metric("llamacpp:tokens_predicted_total"),
        server.metric("refrain_output_tokens_total")
    );
    assert_eq!(server.metric("llamacpp:requests_processing"), 0.0);
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let id = match path.starts_with("/v1/responses/") {
                true => server.answer("/v1/responses", &json!({ "input": "Hello", "max_output_tokens": 1 }))
                    ["id"]
                    .clone(),
                false => json!(MODEL),
            };
            let path = path.replace("{id}", id.as_str().unwrap());
            let reply = server.request(&method.to_uppercase(), &path, &[], "");
            assert!(![404, 405].contains(&reply.status), "{method} {path}: {}", reply.body);
        }
    }
}
