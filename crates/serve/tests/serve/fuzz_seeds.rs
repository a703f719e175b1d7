//! Bodies that the fuzz target `request_body` starts from. `cargo test -p refrain-serve --test serve -- --ignored` writes them.

use std::path::Path;

use serde_json::{Value, json};

/// Index of the endpoint in `BodyChecker::ENDPOINTS`, name and body.
fn seeds() -> Vec<(u8, &'static str, Value)> {
    let messages = json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "Hi" }]);
    let schema = json!({
        "type": "object",
        "properties": { "a": { "type": "string", "pattern": "[a-z]{1,3}" }, "b": { "$ref": "#/$defs/b" } },
        "required": ["a"], "additionalProperties": false,
        "$defs": { "b": { "anyOf": [{ "type": "integer", "minimum": -1, "maximum": 7 }, { "enum": ["x", null] }] } },
    });
    let nested = json!([{ "type": "function", "function": { "name": "f", "description": "d", "parameters": schema, "strict": true } }]);
    let flat = json!([{ "type": "function", "name": "f", "parameters": schema }]);
    let call =
        json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{\"a\":\"x\"}" } });
    vec![
        (
            0,
            "chat",
            json!({ "messages": messages, "max_tokens": 4, "stream": true, "stream_options": { "include_usage": true } }),
        ),
        (
            0,
            "chat-sampling",
            json!({
                "messages": messages, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "n": 2, "stop": ["a", "b"],
                "logit_bias": { "7": -100 }, "presence_penalty": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.1,
                "logprobs": true, "top_logprobs": 3, "service_tier": "flex", "metadata": { "a": "b" }, "prompt_cache_key": "k",
            }),
        ),
        (
            0,
            "chat-tools",
            json!({ "messages": messages, "tools": nested, "tool_choice": "auto", "parallel_tool_calls": false }),
        ),
        (
            0,
            "chat-choice",
            json!({
                "messages": messages, "tools": nested,
                "tool_choice": { "type": "allowed_tools", "allowed_tools": { "mode": "required", "tools": [{ "type": "function", "function": { "name": "f" } }] } },
            }),
        ),
        (
            0,
            "chat-results",
            json!({ "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "Hi" }] },
            { "role": "assistant", "content": null, "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "c", "content": "Rain." },
        ], "tools": nested }),
        ),
        (
            0,
            "chat-format",
            json!({ "messages": messages, "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": schema } } }),
        ),
        (
            0,
            "chat-format-tools",
            json!({ "messages": messages, "tools": nested, "response_format": { "type": "json_object" } }),
        ),
        (
            0,
            "chat-documents",
            json!({
                "messages": messages, "documents": [{ "title": "t", "text": "The car.", "url": "u" }],
                "prediction": { "type": "content", "content": "The car." }, "reasoning_effort": "low", "chat_template_kwargs": { "enable_thinking": false, "x": [1] },
            }),
        ),
        (
            0,
            "chat-continued",
            json!({
                "messages": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Well" }],
                "continue_final_message": true, "add_generation_prompt": false,
            }),
        ),
        (
            1,
            "completion",
            json!({ "prompt": ["a", [1, 2]], "max_tokens": 3, "logprobs": 2, "n": 2, "best_of": 2 }),
        ),
        (1, "completion-echo", json!({ "prompt": "a", "echo": true })),
        (
            2,
            "response",
            json!({ "input": "Hi", "instructions": "Be brief.", "max_output_tokens": 3, "include": ["message.output_text.logprobs"], "top_logprobs": 2 }),
        ),
        (
            2,
            "response-items",
            json!({ "input": [
            { "type": "message", "role": "developer", "content": [{ "type": "input_text", "text": "a" }] },
            { "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "b" }] },
            { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c", "output": "d" },
        ], "tools": flat, "tool_choice": { "type": "function", "name": "f" }, "reasoning": { "effort": "high" } }),
        ),
        (
            2,
            "response-format",
            json!({ "input": "Hi", "text": { "format": { "type": "json_schema", "name": "n", "schema": schema } } }),
        ),
        (3, "embedding", json!({ "input": ["a", [98, 99]], "encoding_format": "base64", "dimensions": 288 })),
        (4, "tokenize", json!({ "content": "a\u{1F30D}", "with_pieces": true, "add_special": true })),
        (4, "tokenize-messages", json!({ "messages": messages, "return_token_strs": true })),
        (5, "detokenize", json!({ "tokens": [1, 2, 255] })),
        (
            6,
            "ask",
            json!({ "question": "Who?", "max_tokens": 3, "temperature": 0.5, "seed": 1, "drafts": false, "keep": false }),
        ),
        (7, "edit", json!({ "text": "a b", "instruction": "shorter" })),
        (8, "forget", json!({ "what": "before", "at_ms": 5 })),
        (
            9,
            "ollama-chat",
            json!({
                "model": "m:latest", "messages": [
                    { "role": "user", "content": "Hi", "images": [] },
                    { "role": "assistant", "content": "", "thinking": "t", "tool_calls": [{ "function": { "name": "f", "arguments": { "a": "x" } } }] },
                    { "role": "tool", "tool_name": "f", "content": "Rain." },
                ],
                "tools": nested, "format": schema, "think": "low", "keep_alive": "5m", "truncate": true, "logprobs": true, "top_logprobs": 2,
                "options": { "temperature": 0.5, "num_predict": 3, "stop": ["a"], "repeat_last_n": -1, "seed": 3, "num_ctx": 100 },
            }),
        ),
        (
            10,
            "ollama-generate",
            json!({ "model": "m", "prompt": "a", "system": "b", "raw": false, "stream": false, "format": "json", "think": false }),
        ),
        (
            11,
            "ollama-embed",
            json!({ "model": "m", "input": ["a", "b"], "truncate": true, "dimensions": 288 }),
        ),
        (
            12,
            "anthropic",
            json!({
                "model": "m", "max_tokens": 3, "system": [{ "type": "text", "text": "a" }], "messages": [
                    { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "document", "source": { "type": "text", "data": "b" } }] },
                    { "role": "assistant", "content": [{ "type": "thinking", "thinking": "t", "signature": "" }, { "type": "tool_use", "id": "c", "name": "f", "input": {} }] },
                    { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c", "content": "d" }] },
                ],
                "tools": [{ "name": "f", "input_schema": schema }], "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
                "thinking": { "type": "enabled", "budget_tokens": 1024 }, "stop_sequences": ["x"], "stream": true, "top_k": 5,
                "output_config": { "effort": "high", "format": { "type": "json_schema", "schema": schema } },
            }),
        ),
        (1, "completion-gap", json!({ "prompt": ["a", "b"], "suffix": "c", "n": 2, "max_tokens": 4 })),
        (
            14,
            "infill",
            json!({
                "input_prefix": "a", "input_suffix": "b", "prompt": "c", "input_extra": [{ "filename": "d", "text": "e" }], "n_predict": 4,
                "stop": ["x"], "samplers": ["infill"],
            }),
        ),
        (15, "native-completion", json!({ "prompt": [1, 2], "n_predict": 2, "stop": "x", "stream": true })),
        (13, "anthropic-count", json!({ "model": "m", "messages": [{ "role": "user", "content": "a" }] })),
    ]
}

#[test]
#[ignore = "writes the seeds"]
fn write_seeds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/request_body");
    std::fs::create_dir_all(&folder).unwrap();
    for (endpoint, name, body) in seeds() {
        let bytes = [&[endpoint], body.to_string().as_bytes()].concat();
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

#[test]
fn seeds_in_the_repository_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/request_body");
    for (endpoint, name, body) in seeds() {
        let bytes = [&[endpoint], body.to_string().as_bytes()].concat();
        assert_eq!(std::fs::read(folder.join(name)).unwrap(), bytes, "{name}");
    }
}
