//! The OpenAPI document of this server.

use std::sync::LazyLock;

use serde_json::{Value, json};

/// The text of the document.
pub(crate) fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| document().to_string());
    &TEXT
}

/// The document, in version 3.1 of OpenAPI. Bodies name the fields that are read; the types of responses are those of the OpenAI API.
fn document() -> Value {
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "minimum": 1 });
    let flag = json!({ "type": "boolean" });
    let number = |min: f64, max: f64| json!({ "type": "number", "minimum": min, "maximum": max });
    let list = |items: &Value| json!({ "type": "array", "items": items });
    let object = json!({ "type": "object" });
    let sampling = json!({
        "temperature": number(0.0, 2.0),
        "top_p": number(0.0, 1.0),
        "top_k": { "type": "integer", "minimum": -1 },
        "min_p": number(0.0, 1.0),
        "frequency_penalty": number(-2.0, 2.0),
        "presence_penalty": number(-2.0, 2.0),
        "repetition_penalty": number(0.01, 100.0),
        "repeat_penalty": number(0.01, 100.0),
        "repeat_last_n": { "type": "integer", "minimum": -1 },
        "dry_multiplier": number(0.0, 100.0),
        "dry_base": number(1.0, 10.0),
        "dry_allowed_length": count,
        "dry_penalty_last_n": { "type": "integer", "minimum": -1 },
        "dry_sequence_breakers": list(&text),
        "logit_bias": { "type": "object", "additionalProperties": number(-100.0, 100.0) },
        "seed": { "type": "integer" },
        "stream": flag,
        "service_tier": { "enum": ["auto", "default", "priority", "flex", "scale"] },
        "prompt_cache_key": text,
        "model": text,
    });
    let stops = json!({ "oneOf": [text, { "type": "array", "items": text, "maxItems": 64 }] });
    let limit = json!({ "type": "integer", "minimum": -1 });
    let body = |required: &[&str], more: Value| {
        let mut properties = sampling.clone();
        for (name, schema) in more.as_object().into_iter().flatten() {
            properties[name] = schema.clone();
        }
        json!({
            "required": true,
            "content": { "application/json": { "schema": {
                "type": "object", "required": required, "properties": properties,
            } } },
        })
    };
    let stream_options = json!({ "type": "object", "properties": { "include_usage": flag } });
    let chat = body(
        &["messages"],
        json!({
            "messages": list(&object),
            "n": count,
            "max_tokens": limit,
            "max_completion_tokens": limit,
            "stop": stops,
            "logprobs": flag,
            "top_logprobs": { "type": "integer", "minimum": 0, "maximum": 20 },
            "response_format": object,
            "grammar": text,
            "tools": list(&object),
            "tool_choice": {},
            "parallel_tool_calls": flag,
            "prediction": object,
            "documents": list(&json!({ "$ref": "#/components/schemas/Document" })),
            "chat_template_kwargs": object,
            "enable_thinking": flag,
            "reasoning_effort": { "enum": ["none", "minimal", "low", "medium", "high", "xhigh"] },
            "reasoning": object,
            "continue_final_message": flag,
            "add_generation_prompt": flag,
            "stream_options": stream_options,
            "return_progress": flag,
            "return_origins": flag,
            "drafts": flag,
        }),
    );
    let completions = body(
        &["prompt"],
        json!({
            "prompt": {},
            "n": count,
            "max_tokens": limit,
            "stop": stops,
            "suffix": text,
            "grammar": text,
            "echo": flag,
            "logprobs": { "type": "integer", "minimum": 0, "maximum": 20 },
            "stream_options": stream_options,
        }),
    );
    let responses = body(
        &["input"],
        json!({
            "input": { "oneOf": [text, list(&object)] },
            "instructions": text,
            "previous_response_id": text,
            "store": flag,
            "max_output_tokens": limit,
            "text": object,
            "tools": list(&object),
            "tool_choice": {},
            "parallel_tool_calls": flag,
            "top_logprobs": { "type": "integer", "minimum": 0, "maximum": 20 },
            "include": list(&text),
            "reasoning": object,
            "documents": list(&json!({ "$ref": "#/components/schemas/Document" })),
        }),
    );
    let embeddings = json!({
        "required": true,
        "content": { "application/json": { "schema": {
            "type": "object",
            "required": ["input"],
            "properties": {
                "model": text, "input": {}, "encoding_format": { "enum": ["float", "base64"] }, "dimensions": count,
            },
        } } },
    });
    let plain_body = |properties: Value| {
        json!({
            "required": true,
            "content": { "application/json": { "schema": { "type": "object", "properties": properties } } },
        })
    };
    let tokenize = plain_body(json!({
        "model": text, "prompt": text, "content": text, "messages": list(&object), "add_special": flag,
        "add_special_tokens": flag, "with_pieces": flag, "return_token_strs": flag,
    }));
    let detokenize =
        plain_body(json!({ "model": text, "tokens": list(&json!({ "type": "integer", "minimum": 0 })) }));
    let ollama = |input: Value| {
        let mut properties = json!({
            "model": text, "stream": flag, "options": object, "format": {}, "think": {}, "keep_alive": {}, "truncate": flag,
            "logprobs": flag, "top_logprobs": { "type": "integer", "minimum": 0, "maximum": 20 },
        });
        for (name, schema) in input.as_object().into_iter().flatten() {
            properties[name] = schema.clone();
        }
        plain_body(properties)
    };
    let ollama_chat = ollama(json!({ "messages": list(&object), "tools": list(&object) }));
    let ollama_generate = ollama(json!({ "prompt": text, "suffix": text, "system": text, "raw": flag }));
    let embed = plain_body(json!({ "model": text, "input": {}, "truncate": flag, "dimensions": count }));
    let embed_one = plain_body(json!({ "model": text, "prompt": text }));
    let rerank = plain_body(json!({
        "model": text, "query": text, "documents": list(&json!({})), "top_n": count, "return_documents": flag,
    }));
    let mut infill = plain_body(json!({
        "input_prefix": text,
        "input_suffix": text,
        "prompt": text,
        "input_extra": list(&json!({
            "type": "object", "required": ["text"], "properties": { "filename": text, "text": text },
        })),
        "n_predict": limit,
        "grammar": text,
        "stop": stops,
    }));
    for (name, schema) in sampling.as_object().into_iter().flatten() {
        infill["content"]["application/json"]["schema"]["properties"][name] = schema.clone();
    }
    let of_model = || plain_body(json!({ "model": text, "stream": flag }));
    let message = json!({
        "model": text, "messages": list(&object), "system": {}, "tools": list(&object), "tool_choice": object, "thinking": object,
        "output_config": object, "output_format": object,
    });
    let message_tokens = plain_body(message.clone());
    let mut message = plain_body(message);
    for (name, schema) in [
        ("max_tokens", &count),
        ("stop_sequences", &list(&text)),
        ("stream", &flag),
        ("temperature", &number(0.0, 2.0)),
        ("top_p", &number(0.0, 1.0)),
        ("top_k", &limit),
    ] {
        message["content"]["application/json"]["schema"]["properties"][name] = schema.clone();
    }
    let (chat_tokens, responses_tokens) = (chat.clone(), responses.clone());
    let answers = |summary: &str, types: &[&str]| {
        let content: serde_json::Map<String, Value> =
            types.iter().map(|kind| ((*kind).to_owned(), json!({ "schema": {} }))).collect();
        json!({
            "summary": summary,
            "responses": {
                "200": { "description": "The answer.", "content": content },
                "default": { "$ref": "#/components/responses/Error" },
            },
        })
    };
    let post = |summary: &str, body: Value, streams: bool| {
        let types: &[&str] =
            if streams { &["application/json", "text/event-stream"] } else { &["application/json"] };
        let mut operation = answers(summary, types);
        operation["requestBody"] = body;
        json!({ "post": operation })
    };
    let get = |summary: &str, kind: &str| json!({ "get": answers(summary, &[kind]) });
    let mut model = get("A model of this server.", "application/json");
    model["get"]["parameters"] = json!([{ "name": "id", "in": "path", "required": true, "schema": text }]);
    let mut response = get("A kept response.", "application/json");
    response["delete"] = answers("Drops a kept response.", &["application/json"]);
    for method in ["get", "delete"] {
        response[method]["parameters"] = model["get"]["parameters"].clone();
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Refrain", "version": env!("CARGO_PKG_VERSION") },
        "paths": {
            "/v1/chat/completions": post("The next message of a conversation.", chat, true),
            "/v1/completions": post("The continuation of a text.", completions, true),
            "/v1/responses": post("Items that answer items.", responses, true),
            "/v1/responses/{id}": response,
            "/v1/chat/completions/input_tokens": post("The number of tokens of a conversation.", chat_tokens, false),
            "/v1/responses/input_tokens": post("The number of tokens of an input.", responses_tokens, false),
            "/infill": post("The text between two texts.", infill, true),
            "/tokenize": post("The tokens of a text or a conversation.", tokenize, false),
            "/detokenize": post("The text of tokens.", detokenize, false),
            "/v1/embeddings": post("Vectors of texts.", embeddings, false),
            "/v1/rerank": post("Documents in the order of their similarity to a query.", rerank, false),
            "/v1/messages": post("The next message of a conversation, as Anthropic's API has it.", message, true),
            "/v1/messages/count_tokens": post("The number of tokens of such a conversation.", message_tokens, false),
            "/api/chat": post("The next message of a conversation, as Ollama's API has it.", ollama_chat, false),
            "/api/generate": post("The answer to a prompt, or its continuation.", ollama_generate, false),
            "/api/embed": post("Vectors of texts.", embed, false),
            "/api/embeddings": post("The vector of a text.", embed_one, false),
            "/api/show": post("What is known of a model.", of_model(), false),
            "/api/pull": post("Whether a model is there.", of_model(), false),
            "/api/tags": get("The models of this server.", "application/json"),
            "/api/ps": get("The models in memory.", "application/json"),
            "/api/version": get("The version of Ollama's API.", "application/json"),
            "/v1/models": get("The models of this server.", "application/json"),
            "/v1/models/{id}": model,
            "/props": get("The first model's context and sampling.", "application/json"),
            "/slots": get("The places for requests that compute.", "application/json"),
            "/health": get("Whether the server answers.", "application/json"),
            "/metrics": get("Counts, for Prometheus.", "text/plain"),
            "/openapi.json": get("This document.", "application/json"),
        },
        "components": {
            "schemas": {
                "Document": {
                    "type": "object",
                    "required": ["text"],
                    "properties": { "title": text, "text": text, "url": text },
                },
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": { "error": {
                        "type": "object",
                        "required": ["message", "type", "param", "code"],
                        "properties": {
                            "message": text,
                            "type": text,
                            "param": { "type": ["string", "null"] },
                            "code": { "type": ["string", "null"] },
                        },
                    } },
                },
            },
            "responses": { "Error": {
                "description": "A refusal or a failure.",
                "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
            } },
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{}, { "token": [] }],
    })
}
