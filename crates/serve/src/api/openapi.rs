//! The OpenAPI document of this server.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::openai::wire;
use super::{anthropic, ollama};
use crate::body::Given;
use crate::error::ApiResult;
use crate::json::{Ignored, Shape};
use crate::limits::Limits;

/// The text of the document.
pub(crate) fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| document().to_string());
    &TEXT
}

/// The body that a reader takes. The reader is run on an example, which has what it needs and an object of each kind within: it asks for
/// every other field too.
fn body<T>(example: &Value, read: impl FnOnce(Given<'_>) -> ApiResult<T>) -> Value {
    let (limits, ignored, shape) = (Limits::default(), Ignored::default(), Shape::default());
    let given = Given { value: example, limits: &limits, ignored: &ignored, shape: Some(&shape) };
    let refusal = read(given).err();
    debug_assert!(refusal.is_none() && ignored.names().is_empty(), "{refusal:?} {ignored:?} {example}");
    json!({ "required": true, "content": { "application/json": { "schema": shape.into_schema() } } })
}

/// The document, in version 3.1 of OpenAPI. Bodies name the fields that are read; the types of responses are those of the OpenAI API.
fn document() -> Value {
    let text = json!({ "type": "string" });
    let turn = json!([{ "role": "user", "content": "x" }]);
    let call = json!({ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let turns = json!([
        { "role": "user", "content": "x" },
        { "role": "assistant", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "1", "content": "x" },
    ]);
    let nested = json!([{ "type": "function", "function": { "name": "f" } }]);
    let format = json!({ "type": "json_schema", "json_schema": { "schema": {} } });
    let passages = json!([{ "text": "x" }]);
    let chat = json!({
        "messages": turns, "tools": nested, "response_format": format, "documents": passages, "reasoning": {}, "stream": true,
        "stream_options": {}, "prediction": { "type": "content", "content": "x" },
    });
    let completions = json!({ "prompt": "x", "stream": true, "stream_options": {} });
    let items = json!({
        "input": turn, "tools": [{ "type": "function", "name": "f" }], "documents": passages, "reasoning": {}, "stream_options": {},
        "text": { "format": { "type": "json_schema", "name": "x", "schema": {} } },
    });
    let of_items = |given: Given<'_>| wire::responses::read(given, &|_| None);
    let message = json!({
        "model": "m", "max_tokens": 1, "messages": turn, "tools": [{ "name": "f" }], "tool_choice": { "type": "auto" },
        "thinking": { "type": "enabled" }, "output_config": {},
    });
    let mut conversation = message.clone();
    conversation["max_tokens"] = Value::Null;
    let gap = json!({ "input_prefix": "x", "input_suffix": "x", "input_extra": passages });
    let ollama_chat = json!({ "model": "m", "messages": turns, "tools": nested, "options": {} });
    let ollama_prompt = json!({ "model": "m", "prompt": "x", "options": {} });
    let of_model = json!({ "model": "m" });
    let query = json!({ "query": "x", "documents": passages });
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
            "/v1/chat/completions": post("The next message of a conversation.", body(&chat, wire::chat::read), true),
            "/v1/completions": post("The continuation of a text.", body(&completions, wire::completions::read), true),
            "/v1/responses": post("Items that answer items.", body(&items, of_items), true),
            "/v1/responses/{id}": response,
            "/v1/chat/completions/input_tokens": post("The number of tokens of a conversation.", body(&chat, wire::chat::read), false),
            "/v1/responses/input_tokens": post("The number of tokens of an input.", body(&items, of_items), false),
            "/infill": post("The text between two texts.", body(&gap, wire::infill::read), true),
            "/completion": post("The continuation of a text, as llama.cpp has it.", body(&completions, wire::infill::read_completion), true),
            "/tokenize": post("The tokens of a text or a conversation.", body(&json!({ "prompt": "x" }), wire::tokens::read_text), false),
            "/detokenize": post("The text of tokens.", body(&json!({ "tokens": [0] }), wire::tokens::read_tokens), false),
            "/v1/embeddings": post("Vectors of texts.", body(&json!({ "input": "x" }), wire::embeddings::read), false),
            "/v1/rerank": post("Documents in the order of their similarity to a query.", body(&query, wire::rerank::read), false),
            "/v1/messages": post("The next message of a conversation, as Anthropic's API has it.", body(&message, anthropic::read::create), true),
            "/v1/messages/count_tokens": post("The number of tokens of such a conversation.", body(&conversation, anthropic::read::count), false),
            "/api/chat": post("The next message of a conversation, as Ollama's API has it.", body(&ollama_chat, ollama::read::chat), false),
            "/api/generate": post("The answer to a prompt, or its continuation.", body(&ollama_prompt, ollama::read::generate), false),
            "/api/embed": post("Vectors of texts.", body(&of_model, |given| ollama::read::embeddings(given, "input")), false),
            "/api/embeddings": post("The vector of a text.", body(&of_model, |given| ollama::read::embeddings(given, "prompt")), false),
            "/api/show": post("What is known of a model.", body(&of_model, ollama::read::shown), false),
            "/api/pull": post("Whether a model is there.", body(&of_model, ollama::read::pulled), false),
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Words in backticks.
    fn named(cell: &str) -> impl Iterator<Item = &str> {
        cell.split('`').skip(1).step_by(2)
    }

    #[test]
    fn the_table_of_the_docs_has_the_fields_that_are_read() {
        let document = document();
        let docs = include_str!("../../../../docs/use/serve.md");
        let rows = docs.lines().skip_while(|line| !line.starts_with("| field | chat |")).skip(2);
        let rows: Vec<Vec<&str>> = rows
            .take_while(|line| line.starts_with('|'))
            .map(|line| line.split('|').skip(1).map(str::trim).collect())
            .collect();
        assert!(rows.len() > 10, "the table is not found");
        for (column, path) in [(1, "/v1/chat/completions"), (2, "/v1/completions"), (3, "/v1/responses")] {
            let body =
                &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
            let read: BTreeSet<&str> =
                body["properties"].as_object().unwrap().keys().map(String::as_str).collect();
            let is_documented = |name: &&&str| {
                rows.iter().any(|row| {
                    let takes = !row[column].is_empty() && row[column] != "refused";
                    let is_it = |word: &str| {
                        word.split('.').next() == Some(**name)
                            || word.strip_suffix('*').is_some_and(|start| name.starts_with(start))
                    };
                    takes && (named(row[0]).any(is_it) || named(row[4]).any(is_it))
                })
            };
            let missing: Vec<_> = read.iter().filter(|name| !is_documented(name)).collect();
            assert!(missing.is_empty(), "{path}: the docs do not name {missing:?}");
            for row in rows.iter().filter(|row| !row[column].is_empty() && row[column] != "refused") {
                let is_read = named(row[0]).any(|word| {
                    read.contains(word.split('.').next().unwrap_or(word))
                        || word
                            .strip_suffix('*')
                            .is_some_and(|start| read.iter().any(|name| name.starts_with(start)))
                });
                assert!(is_read, "{path}: nothing reads {}", row[0]);
            }
        }
    }
}
