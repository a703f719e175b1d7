//! Gaps: `suffix` of completions and of Ollama's API, and `/infill`; and `/completion`, which answers in the same form.

use refrain::checkpoint::Checkpoint;
use refrain::drafting::CostProfile;
use refrain::{Engine, EngineOptions};
use refrain_serve::{Limits, Loaded, ModelSpec, Models, ServeOptions};
use serde_json::{Value, json};

use crate::bigram::{self, Calls, GREETING};
use crate::calling::server;
use crate::support::{MODEL, Running, with};

const BEFORE: &str = "def add(a, b):\n    ";
const AFTER: &str = "\n\nprint(add(1, 2))";

/// Each byte is a token, beside the three of the gap.
const N_PROMPT: usize = BEFORE.len() + AFTER.len() + 3;

#[test]
fn a_gap_is_filled_and_ends_with_the_models_own_token() {
    let server = server(Calls::Infill);
    let request = json!({ "prompt": BEFORE, "suffix": AFTER, "max_tokens": 40 });
    let answer = server.answer("/v1/completions", &request);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(GREETING), &json!("stop")), "{answer}");
    assert_eq!(answer["usage"]["prompt_tokens"], N_PROMPT);
    let chunks = server.post("/v1/completions", &with(&request, json!({ "stream": true }))).chunks();
    let streamed: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, GREETING);
    // The text behind a gap is a part of the prompt, and text that spells a control token is text.
    let spelled = with(&request, json!({ "prompt": ["<|fim_middle|>", BEFORE], "n": 2 }));
    let spelled = server.answer("/v1/completions", &spelled);
    assert_eq!(spelled["choices"].as_array().unwrap().len(), 4);
    assert_eq!(spelled["usage"]["prompt_tokens"], N_PROMPT + "<|fim_middle|>".len() + AFTER.len() + 3);
    // An empty one is none.
    let plain = server.answer("/v1/completions", &with(&request, json!({ "suffix": "" })));
    assert_eq!(plain["usage"]["prompt_tokens"], BEFORE.len());
    for (more, param) in [
        (json!({ "echo": true }), "echo"),
        (json!({ "echo": true, "logprobs": 1 }), "echo"),
        (json!({ "prompt": [1, 2] }), "suffix"),
        (json!({ "suffix": 3 }), "suffix"),
        (json!({ "suffix": "x".repeat(4000) }), "prompt"),
    ] {
        let reply = server.post("/v1/completions", &with(&request, more));
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)), "{}", reply.body);
    }
}

/// The prompt has the text behind the gap, which every session drafts from.
#[test]
fn the_text_behind_a_gap_drafts_the_output() {
    let checkpoint = Checkpoint::from_gguf_bytes(bigram::gguf(Calls::Infill).into(), "bigram").unwrap();
    let options =
        EngineOptions { cost_profile: Some(CostProfile::free_rows(100.0)), ..EngineOptions::default() };
    let engine = Engine::load(&checkpoint, options, |_, _| {}).unwrap();
    let models = Models::new([ModelSpec::new(MODEL, move || Ok(Loaded::new(engine.clone())))]).unwrap();
    let server = Running::with_models(ServeOptions::default(), Limits::default(), models);
    let request = json!({ "prompt": BEFORE, "suffix": format!("{GREETING}\n"), "max_tokens": 40 });
    let answer = server.answer("/v1/completions", &request);
    assert_eq!(answer["choices"][0]["text"], GREETING);
    assert!(server.metric("refrain_draft_tokens_accepted_total") > 0.0);
}

#[test]
fn ollamas_suffix_is_the_same() {
    let server = server(Calls::Infill);
    let request =
        json!({ "model": MODEL, "prompt": BEFORE, "suffix": AFTER, "stream": false, "system": "Be brief." });
    let reply = server.post("/api/generate", &request);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let answer = reply.json();
    assert_eq!((&answer["response"], &answer["done_reason"]), (&json!(GREETING), &json!("stop")), "{answer}");
    assert_eq!(answer["prompt_eval_count"], N_PROMPT);
    assert_eq!(reply.headers["x-refrain-ignored"], "system");
}

#[test]
fn infill_has_the_answers_of_llama_cpp() {
    let server = server(Calls::Infill);
    let request = json!({
        "input_prefix": "def add(a, b):\n", "prompt": "    ", "input_suffix": AFTER, "n_predict": 40, "temperature": 0,
        "samplers": ["top_k", "infill"], "cache_prompt": true, "t_max_predict_ms": 500,
    });
    let reply = server.post("/infill", &request);
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.headers["x-refrain-ignored"], "samplers, cache_prompt, t_max_predict_ms");
    let answer = reply.json();
    assert_eq!((&answer["content"], &answer["stop_type"]), (&json!(GREETING), &json!("eos")), "{answer}");
    assert_eq!((&answer["tokens_evaluated"], &answer["truncated"]), (&json!(N_PROMPT), &json!(false)));
    assert_eq!(answer["timings"]["predicted_n"], answer["tokens_predicted"]);
    let cut = server.answer("/infill", &with(&request, json!({ "n_predict": 1 })));
    assert_eq!((&cut["content"], &cut["stop_type"]), (&json!("Hello"), &json!("limit")));
    let word = server.answer("/infill", &with(&request, json!({ "stop": ["lo"] })));
    assert_eq!(
        (&word["content"], &word["stop_type"], &word["stopping_word"]),
        (&json!("Hel"), &json!("word"), &json!("lo"))
    );
    let warmed = server.answer("/infill", &with(&request, json!({ "n_predict": 0 })));
    assert_eq!((&warmed["content"], &warmed["stop"]), (&json!(""), &json!(true)));
    let events = server.post("/infill", &with(&request, json!({ "stream": true }))).events();
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let streamed: String = events.iter().filter_map(|event| event["content"].as_str()).collect();
    let last = events.last().unwrap();
    assert_eq!(
        (streamed.as_str(), &last["stop"], &last["tokens_evaluated"]),
        (GREETING, &json!(true), &json!(N_PROMPT))
    );
}

#[test]
fn files_that_do_not_fit_beside_a_gap_are_left_out() {
    let server = server(Calls::Infill);
    let file = |name: &str, n_bytes: usize| json!({ "filename": name, "text": "x".repeat(n_bytes) });
    let request = |files: Value| json!({ "input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 40, "input_extra": files });
    let reply = server.post("/infill", &request(json!([file("a.py", 10), file("b.py", 20)])));
    // Each file has its token, its name, and two line ends; the gap's own file has a name too.
    let n_files = (1 + 4 + 10 + 2) + (1 + 4 + 20 + 2) + 1 + "file\n".len();
    assert_eq!(reply.json()["tokens_evaluated"], N_PROMPT + n_files, "{}", reply.body);
    assert!(!reply.headers.contains_key("x-refrain-ignored"));
    // The context has 2,048 tokens.
    let reply =
        server.post("/infill", &request(json!([file("a.py", 1500), file("b.py", 1000), file("c.py", 20)])));
    let answer = reply.json();
    assert_eq!((&answer["content"], &answer["truncated"]), (&json!(GREETING), &json!(true)), "{answer}");
    let n_files = (1 + 4 + 1000 + 2) + (1 + 4 + 20 + 2) + 1 + "file\n".len();
    assert_eq!(answer["tokens_evaluated"], N_PROMPT + n_files);
    assert_eq!(reply.headers["x-refrain-ignored"], "input_extra[]");
    let reply = server.post("/infill", &request(json!([file("a.py", 1), { "filename": "b.py" }])));
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("input_extra[1].text")));
}

#[test]
fn a_model_without_the_tokens_fills_no_gap() {
    let server = Running::start();
    for (path, body, param) in [
        ("/v1/completions", json!({ "prompt": "a", "suffix": "b" }), "suffix"),
        ("/infill", json!({ "input_prefix": "a", "input_suffix": "b" }), "input_suffix"),
        ("/infill", json!({ "input_prefix": "a" }), "input_suffix"),
    ] {
        let reply = server.post(path, &body);
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)), "{}", reply.body);
    }
    let reply = server.post("/v1/completions", &json!({ "prompt": "a", "suffix": "b" }));
    assert_eq!(reply.error()["code"], "unsupported_parameter");
}

#[test]
fn completion_goes_on_with_a_text_in_llama_cpps_form() {
    let server = Running::start();
    let request = json!({ "prompt": "Hello", "temperature": 0, "cache_prompt": true });
    let whole = server.answer("/v1/completions", &with(&request, json!({ "max_tokens": 5 })));
    let request = with(&request, json!({ "n_predict": 5 }));
    let answer = server.answer("/completion", &request);
    assert_eq!((&answer["content"], &answer["stop_type"]), (&whole["choices"][0]["text"], &json!("limit")));
    assert_eq!((&answer["tokens_predicted"], &answer["stop"]), (&json!(5), &json!(true)));
    let events = server.post("/completion", &with(&request, json!({ "stream": true }))).events();
    let texts = events.iter().map(|event| serde_json::from_str::<Value>(event).unwrap());
    let streamed: String = texts.filter_map(|event| event["content"].as_str().map(str::to_owned)).collect();
    assert_eq!(answer["content"], streamed);
    // The older endpoint shows the prefill where it is asked to.
    let request_v1 = with(
        &request,
        json!({ "stream": true, "return_progress": true, "max_tokens": 2, "prompt": "Hello, boats" }),
    );
    let chunks = server.post("/v1/completions", &request_v1).chunks();
    let progress =
        &chunks.iter().find(|chunk| !chunk["prompt_progress"].is_null()).unwrap()["prompt_progress"];
    assert!(progress["processed"].as_u64() > Some(0) && progress["total"].as_u64() > Some(1), "{progress}");
    let tokens = server.answer("/tokenize", &json!({ "prompt": "Hello" }))["tokens"].clone();
    let of_tokens = server.answer("/completion", &with(&request, json!({ "prompt": tokens })));
    assert_eq!(of_tokens["content"], answer["content"]);
    for (fields, param) in [
        (json!({ "prompt": null }), "prompt"),
        (json!({ "prompt": ["a", "b"] }), "prompt"),
        (json!({ "n_probs": 3 }), "n_probs"),
    ] {
        let reply = server.post("/completion", &with(&request, fields));
        assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(param)), "{}", reply.body);
    }
}
