//! A model that reasons: the fixture with another chat template, which opens the reasoning.

use std::borrow::Cow;
use std::ops::ControlFlow;

use refrain::checkpoint::Checkpoint;
use refrain::{Engine, EngineOptions, GenerateOptions, SpecialTokens};
use refrain_serve::{Limits, Loaded, ModelSpec, Models, ServeOptions};
use serde_json::{Value, json};

use crate::support::{MODEL, QUESTION, Running, chat, with};

/// A template of the same length in the file, which ends the prompt with `<think>`.
fn reasoning_engine() -> Engine {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
    let mut bytes = std::fs::read(path).unwrap();
    let find =
        |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).position(|window| window == text).unwrap();
    let start = find(&bytes, b"{% for message in messages %}");
    let end =
        start + find(&bytes[start..], b"assistant\\n' }}{% endif %}") + b"assistant\\n' }}{% endif %}".len();
    let template = "{%for m in messages%}{{'<|im_start|>'+m['role']+'\\n'+m['content']+'<|im_end|>\\n'}}{%endfor%}\
        {%if add_generation_prompt%}{{'<|im_start|>assistant\\n<think>'}}{%endif%}{#</think>";
    let padding = " ".repeat(end - start - template.len() - 2);
    bytes[start..end].copy_from_slice(format!("{template}{padding}#}}").as_bytes());
    let checkpoint = Checkpoint::from_gguf_bytes(Cow::Owned(bytes), "reasoning fixture").unwrap();
    Engine::load(&checkpoint, EngineOptions::default(), |_, _| {}).unwrap()
}

/// A server with this model.
pub(crate) fn server() -> (Running, Engine) {
    let engine = reasoning_engine();
    let theirs = engine.clone();
    let models = Models::new([ModelSpec::new(MODEL, move || Ok(Loaded::new(theirs.clone())))]).unwrap();
    (Running::with_models(ServeOptions::default(), Limits::default(), models), engine)
}

#[test]
fn reasoning_comes_apart_in_chats_and_not_in_continued_texts() {
    let (server, engine) = server();
    let request = with(&chat(QUESTION), json!({ "temperature": 0, "max_tokens": 12 }));
    let answer = server.answer("/v1/chat/completions", &request);
    let message = &answer["choices"][0]["message"];
    let reasoning = message["reasoning_content"].as_str().expect("reasoning");
    assert!(!reasoning.is_empty() && message["content"] == "", "{message}");
    let details = &answer["usage"]["completion_tokens_details"];
    assert_eq!(details["reasoning_tokens"], answer["usage"]["completion_tokens"]);
    let chunks = server.post("/v1/chat/completions", &with(&request, json!({ "stream": true }))).chunks();
    let streamed: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["reasoning_content"].as_str())
        .collect();
    assert_eq!(streamed, reasoning);
    let response = json!({ "input": QUESTION, "temperature": 0, "max_output_tokens": 12 });
    let response = server.answer("/v1/responses", &response);
    assert_eq!(response["output"][0]["type"], "reasoning");
    assert_eq!(response["output"][0]["content"][0]["text"], reasoning);

    // A continued text whose prompt ends with the marker.
    let prompt = format!("{QUESTION}\n<think>");
    let mut session = engine.session(Default::default()).unwrap();
    session.append_text(&prompt, SpecialTokens::AsText).unwrap();
    let mut expected = String::new();
    let options = GenerateOptions { max_tokens: 12, ..GenerateOptions::default() };
    let summary = session.generate(options).unwrap().run(|token| {
        expected.push_str(&token.text);
        ControlFlow::Continue(())
    });
    expected.push_str(&summary.unwrap().text);
    assert!(!expected.is_empty());
    let request = json!({ "prompt": prompt, "temperature": 0, "max_tokens": 12, "logprobs": 0 });
    let whole = server.answer("/v1/completions", &request);
    assert_eq!(whole["choices"][0]["text"], expected.as_str());
    let tokens: String = whole["choices"][0]["logprobs"]["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token.as_str().unwrap())
        .collect();
    assert_eq!(tokens, expected);
    let chunks: Vec<Value> =
        server.post("/v1/completions", &with(&request, json!({ "stream": true }))).chunks();
    let streamed: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, expected);
}
