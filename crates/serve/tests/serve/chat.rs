//! `/v1/chat/completions`: whole answers and streams.

use refrain::drafting::{DraftPolicy, DraftRows};
use refrain::{Engine, EngineOptions, Event, GenerateOptions, Role, Sampling, SessionOptions};
use refrain_serve::{Limits, Loaded, ModelSpec, Models, ServeOptions};
use serde_json::{Value, json};

use crate::support::{MODEL, QUESTION, Running, changed, chat, engine, with};

/// The library's own answer.
fn library(content: &str, max_tokens: usize, sampling: Sampling) -> (String, usize) {
    let mut session = engine().session(SessionOptions::default()).unwrap();
    session.append_turn(Role::User, content).unwrap();
    let options = GenerateOptions { max_tokens, sampling, ..GenerateOptions::default() };
    let mut text = String::new();
    for event in session.generate(options).unwrap() {
        match event.unwrap() {
            Event::Token(token) => text.push_str(&token.text),
            Event::Done(summary) => {
                text.push_str(&summary.text);
                return (text, summary.stats.tokens);
            }
            _ => {}
        }
    }
    unreachable!("a generation ends");
}

/// Text of a stream, with its order checked: the role first, one reason of the end per output, usage last.
fn joined(chunks: &[Value], n: usize, has_usage: bool) -> Vec<String> {
    let mut texts = vec![String::new(); n];
    let (mut started, mut finished) = (vec![false; n], vec![0; n]);
    for (place, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["id"], chunks[0]["id"]);
        let choices = chunk["choices"].as_array().unwrap();
        if choices.is_empty() {
            assert!(has_usage && place + 1 == chunks.len(), "usage comes last");
            assert!(chunk["usage"]["total_tokens"].is_u64());
            continue;
        }
        if has_usage {
            assert!(chunk["usage"].is_null());
        }
        for choice in choices {
            let index = choice["index"].as_u64().expect("an index") as usize;
            let role = &choice["delta"]["role"];
            assert_eq!(role.is_string(), !started[index], "the role comes first and once");
            started[index] = true;
            assert_eq!(finished[index], 0, "nothing follows the end");
            texts[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
            finished[index] += usize::from(choice["finish_reason"].is_string());
        }
    }
    assert_eq!(finished, vec![1; n]);
    texts
}

#[test]
fn an_answer_is_that_of_the_library_whole_and_streamed() {
    let server = Running::start();
    for (sampling, fields) in [
        (Sampling::default(), json!({ "temperature": 0 })),
        (
            Sampling { temperature: 0.9, top_p: 0.95, seed: Some(7), ..Sampling::default() },
            json!({ "temperature": 0.9, "top_p": 0.95, "seed": 7 }),
        ),
        (
            Sampling {
                temperature: 0.8,
                presence_penalty: 0.5,
                frequency_penalty: 0.25,
                seed: Some(3),
                ..Sampling::default()
            },
            json!({ "temperature": 0.8, "presence_penalty": 0.5, "frequency_penalty": 0.25, "seed": 3 }),
        ),
    ] {
        let (text, n_tokens) = library(QUESTION, 48, sampling);
        let request = with(&chat(QUESTION), fields);
        let answer = server.answer("/v1/chat/completions", &request);
        assert_eq!(answer["object"], "chat.completion");
        assert_eq!(answer["model"], MODEL);
        assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
        assert_eq!(answer["choices"][0]["message"]["content"], text.as_str());
        assert_eq!(answer["usage"]["completion_tokens"], n_tokens);
        let (prompt, total) = (&answer["usage"]["prompt_tokens"], &answer["usage"]["total_tokens"]);
        assert_eq!(prompt.as_u64().unwrap() + n_tokens as u64, total.as_u64().unwrap());
        let stream = with(&request, json!({ "stream": true, "stream_options": { "include_usage": true } }));
        let chunks = server.post("/v1/chat/completions", &stream).chunks();
        assert_eq!(joined(&chunks, 1, true), [text.as_str()]);
        let usage = &chunks.last().unwrap()["usage"];
        assert_eq!(usage["completion_tokens"], n_tokens);
    }
}

#[test]
fn several_outputs_have_seeds_of_their_own() {
    let server = Running::start();
    let request = with(
        &chat("Tell me about the harbour."),
        json!({ "n": 3, "temperature": 1, "seed": 11, "max_tokens": 24 }),
    );
    let answer = server.answer("/v1/chat/completions", &request);
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    // Outputs of one prompt share it.
    let single = server.answer("/v1/chat/completions", &with(&request, json!({ "n": 1 })));
    assert_eq!(answer["usage"]["prompt_tokens"], single["usage"]["prompt_tokens"]);
    assert!(answer["usage"]["completion_tokens"].as_u64() > single["usage"]["completion_tokens"].as_u64());
    let chunks = server.post("/v1/chat/completions", &with(&request, json!({ "stream": true }))).chunks();
    let texts = joined(&chunks, 3, false);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        let seed = 11 + index as u64;
        let sampling = Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::default() };
        let (text, _) = library("Tell me about the harbour.", 24, sampling);
        assert_eq!(choice["message"]["content"], text.as_str());
        assert_eq!(texts[index], text);
    }
}

#[test]
fn the_next_turn_computes_its_new_part_only() {
    let server = Running::start();
    let mut request = with(&chat(QUESTION), json!({ "temperature": 0 }));
    let first = server.answer("/v1/chat/completions", &request);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let answer = first["choices"][0]["message"].clone();
    let messages = request["messages"].as_array_mut().unwrap();
    messages.push(answer);
    messages.push(json!({ "role": "user", "content": "And what does it cost?" }));
    let second = server.answer("/v1/chat/completions", &request);
    let usage = &second["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= first["usage"]["prompt_tokens"].as_u64().unwrap() - 1, "{usage}");
    assert!(cached < usage["prompt_tokens"].as_u64().unwrap());
    // Without kept prompts, the answer is the same.
    let mut limits = Limits::default();
    limits.warm_bytes = 0;
    let cold = Running::with(ServeOptions::default(), limits);
    let again = cold.answer("/v1/chat/completions", &request);
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(again["choices"], second["choices"]);
}

/// The state of recurrent layers is kept behind prompts and answers, and where conversations part.
#[test]
fn conversations_with_a_recurrent_model_go_on_where_they_ended_or_parted() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/lfm2");
    let engine = Engine::open(folder, EngineOptions::default()).unwrap();
    let start = |warm_bytes: usize| {
        let engine = engine.clone();
        let models = Models::new([ModelSpec::new(MODEL, move || Ok(Loaded::new(engine.clone())))]).unwrap();
        Running::with_models(
            ServeOptions::default(),
            changed(Limits::default(), |it| it.warm_bytes = warm_bytes),
            models,
        )
    };
    let [server, cold] = [512 << 20, 0].map(start);
    // Without kept prompts, every answer is the same.
    let ask = |messages: &Value| -> (u64, u64, Value) {
        let request = json!({ "model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 12 });
        let [answer, expected] =
            [&server, &cold].map(|server| server.answer("/v1/chat/completions", &request));
        assert_eq!(answer["choices"], expected["choices"]);
        assert_eq!(expected["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        let usage = &answer["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (cached, usage["prompt_tokens"].as_u64().unwrap(), answer["choices"][0]["message"].clone())
    };
    let system = "You answer in one sentence, and name the note that says it. Nothing else is known to you: if they do not say it, say so.";
    let turns =
        |user: &str| json!([{ "role": "system", "content": system }, { "role": "user", "content": user }]);
    let mut cached = Vec::new();
    for user in ["One?", "Two?", "And three?", "Or four?"] {
        let mut messages = turns(user);
        let (n_cached, n_prompt, answer) = ask(&messages);
        cached.push(n_cached);
        assert_eq!(ask(&messages).0, n_prompt - 1, "the same prompt again");
        let messages_of = messages.as_array_mut().unwrap();
        messages_of.extend([answer, json!({ "role": "user", "content": "Why?" })]);
        let (n_cached, n_next, _) = ask(&messages);
        assert!((n_prompt - 1..n_next - 1).contains(&n_cached), "{n_cached} of {n_next} after {n_prompt}");
    }
    let shared = cached[2];
    assert!(shared > 64 && shared % 16 == 0, "{cached:?}");
    assert_eq!(cached, [0, 0, shared, shared]);
}

#[test]
fn stop_strings_and_lengths_end_an_output() {
    let server = Running::start();
    let request = with(&chat(QUESTION), json!({ "temperature": 0 }));
    let whole = server.answer("/v1/chat/completions", &request);
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let word = text.split(' ').nth(2).expect("some words");
    for stop in [json!(word), json!(["\u{1F680}", word])] {
        let stopped = server.answer("/v1/chat/completions", &with(&request, json!({ "stop": stop })));
        assert_eq!(stopped["choices"][0]["message"]["content"], text.split(word).next().unwrap());
        assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
        let stream = with(&request, json!({ "stop": stop, "stream": true }));
        let chunks = server.post("/v1/chat/completions", &stream).chunks();
        assert_eq!(joined(&chunks, 1, false), [text.split(word).next().unwrap()]);
    }
    for name in ["max_tokens", "max_completion_tokens"] {
        let cut = server.answer("/v1/chat/completions", &with(&request, json!({ name: 3 })));
        assert_eq!(cut["usage"]["completion_tokens"], 3);
        assert_eq!(cut["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn probabilities_are_those_of_the_model() {
    let server = Running::start();
    let request = with(&chat(QUESTION), json!({ "temperature": 0, "logprobs": true, "top_logprobs": 4 }));
    let answer = server.answer("/v1/chat/completions", &request);
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let joined_bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(String::from_utf8(joined_bytes).unwrap(), text);
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 4);
        // Greedy decoding chooses the likeliest.
        assert_eq!(top[0]["logprob"], token["logprob"]);
        let values: Vec<f64> = top.iter().map(|other| other["logprob"].as_f64().unwrap()).collect();
        assert!(values.is_sorted_by(|a, b| a >= b) && values[0] <= 0.0, "{values:?}");
    }
    let chunks = server.post("/v1/chat/completions", &with(&request, json!({ "stream": true }))).chunks();
    let streamed: Vec<Value> = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(&streamed, tokens);
}

#[test]
fn a_prediction_drafts_and_changes_no_output() {
    // Without the history, which has earlier answers too. Drafts at any cost: on a busy machine none may pay.
    let policy = DraftPolicy { rows: DraftRows::Fixed(8), ..DraftPolicy::default() };
    let session = SessionOptions { history: false, policy, ..SessionOptions::default() };
    let spec =
        ModelSpec::new(MODEL, move || Ok(changed(Loaded::new(engine()), |it| it.session = session.clone())));
    let models = Models::new([spec]).unwrap();
    let server = Running::with_models(ServeOptions::default(), Limits::default(), models);
    let request = with(&chat("Write about the boats in the harbour."), json!({ "temperature": 0 }));
    let plain = server.answer("/v1/chat/completions", &request);
    let text = plain["choices"][0]["message"]["content"].as_str().unwrap();
    let accepted = |content: Value| {
        let prediction = json!({ "prediction": { "type": "content", "content": content } });
        let answer = server.answer("/v1/chat/completions", &with(&request, prediction));
        assert_eq!(answer["choices"][0]["message"]["content"], text);
        let details = &answer["usage"]["completion_tokens_details"];
        let count = |name: &str| details[name].as_u64().unwrap();
        (count("accepted_prediction_tokens"), count("rejected_prediction_tokens"))
    };
    for content in [json!(text), json!([{ "type": "text", "text": text }])] {
        let (accepted, rejected) = accepted(content);
        // What a step drafts behind the end of the output is all that a right prediction can lose.
        assert!(accepted > 0 && rejected < accepted, "{accepted} accepted, {rejected} rejected");
    }
    accepted(json!("Quite another text about hills."));
}

#[test]
fn without_drafts_an_answer_is_the_same_in_a_step_per_token() {
    let server = Running::start();
    let request = with(
        &chat("Write about the boats in the harbour."),
        json!({
            "temperature": 1.0,
            "seed": 3,
            "max_tokens": 32,
            "stream": true,
            "stream_options": { "include_usage": true },
            "return_origins": true,
        }),
    );
    let answer = |drafts: bool| {
        let chunks =
            server.post("/v1/chat/completions", &with(&request, json!({ "drafts": drafts }))).chunks();
        let text = joined(&chunks, 1, true).remove(0);
        let deltas = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["origin"].as_str());
        let n_drafted = deltas.filter(|origin| *origin != "target").count();
        let timings = chunks.last().unwrap()["timings"].clone();
        (text, n_drafted, timings)
    };
    let (plain, n_drafted, timings) = answer(false);
    assert_eq!((n_drafted, &timings["n_steps"]), (0, &timings["predicted_n"]));
    assert!(
        timings["predicted_ms"].as_f64() > Some(0.0) && timings["prompt_n"].as_u64() > Some(0),
        "{timings}"
    );
    assert_eq!(answer(true).0, plain);
    let reply = server.post("/v1/chat/completions", &with(&request, json!({ "drafts": "no" })));
    assert_eq!(reply.status, 400, "{}", reply.body);
}

/// The fixture model answers in these words.
const DOCUMENT: &str = "The repair of the car was given to Qulittus Works.";

#[test]
fn copied_text_is_annotated() {
    let server = Running::start();
    let request = json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": "Who takes care of the repair of the car?" }],
        "documents": [
            { "title": "Harbour", "text": "The boats leave at eight." },
            { "title": "Car repair", "text": DOCUMENT, "url": "notes:car.md" },
        ],
        "temperature": 0,
        "max_tokens": 48,
    });
    let answer = server.answer("/v1/chat/completions", &request);
    let message = &answer["choices"][0]["message"];
    let text: Vec<char> = message["content"].as_str().unwrap().chars().collect();
    let citation = &message["annotations"][0]["url_citation"];
    assert_eq!(citation["url"], "notes:car.md", "{message}");
    let place = |name: &str| citation[name].as_u64().unwrap() as usize;
    let span: String = text[place("start_index")..place("end_index")].iter().collect();
    assert_eq!(span, DOCUMENT[place("document_start")..place("document_end")]);
    let chunks = server.post("/v1/chat/completions", &with(&request, json!({ "stream": true }))).chunks();
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"][0]["delta"]["annotations"], message["annotations"]);
}

#[test]
fn json_follows_its_schema() {
    let server = Running::start();
    let schema = json!({
        "type": "object",
        "properties": { "action": { "enum": ["tap", "scroll"] }, "n": { "type": "integer", "minimum": 0, "maximum": 9 } },
        "required": ["action", "n"],
        "additionalProperties": false,
    });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "command", "schema": schema, "strict": true } });
    let request =
        with(&chat("Open the settings."), json!({ "response_format": format, "seed": 1, "temperature": 1 }));
    let answer = server.answer("/v1/chat/completions", &request);
    let value: Value =
        serde_json::from_str(answer["choices"][0]["message"]["content"].as_str().unwrap()).unwrap();
    assert!(
        ["tap", "scroll"].contains(&value["action"].as_str().unwrap()) && value["n"].as_u64().unwrap() <= 9
    );
    let request = with(
        &chat("Open the settings."),
        json!({ "response_format": { "type": "json_object" }, "temperature": 0, "max_tokens": 64 }),
    );
    let answer = server.answer("/v1/chat/completions", &request);
    assert!(answer["choices"][0]["message"]["content"].as_str().unwrap().starts_with('{'));
}
