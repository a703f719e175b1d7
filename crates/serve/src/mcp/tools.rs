//! What clients are told about the tools: names, schemas of arguments and results, hints.
//!
//! The schemas are written by hand, because [`arguments`](super::arguments) reads by hand, with errors that name arguments. They use no keyword
//! at their top but `properties`: several APIs of models refuse others. So "exactly one of" is a sentence.

use std::sync::Arc;

use refrain_index::SourceKind;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::arguments::{
    EARLIER_MAX, HITS, HITS_MAX, LINE_BYTES_MAX, NAMES_MAX, PASSAGES_MAX, QUERY_BYTES_MAX,
    QUESTION_BYTES_MAX, TEXT_BYTES_MAX, TOKENS_MAX,
};

/// All tools.
pub(super) fn all() -> Vec<Tool> {
    vec![search(), answer(), summarize(), forget()]
}

/// Whether a tool deletes something of the user.
pub(super) fn is_destructive(tool: &Tool) -> bool {
    tool.annotations
        .as_ref()
        .is_none_or(|hints| hints.destructive_hint != Some(false) && hints.read_only_hint != Some(true))
}

fn search() -> Tool {
    let input = object(
        with_filter(json!({
            "query": text("Plain words or a question; not a query language.", QUERY_BYTES_MAX),
            "limit": integer(&format!("Maximum number of passages; default {HITS}."), HITS_MAX),
        })),
        &["query"],
    );
    let passage = full(json!({
        "uri": note_uri(),
        "name": note_name(),
        "title": string("The title of the note, message or event, with the heading above the passage."),
        "text": string("The passage."),
        "note_bytes": range("The bytes of the note's file that the passage was read from."),
        "is_verbatim": boolean("Whether these bytes are the text itself."),
        "locator": nullable(&string("The line or page on which it begins, such as `line 12` or `page 3`.")),
        "matched": { "type": "array", "items": range("Bytes of a word that matched."), "description": "Words of the query, as bytes of `text`." },
        "kind": { "type": "string", "enum": kinds() },
        "date": string("The date of the note, message or event (UTC)."),
        "tags": { "type": "array", "items": { "type": "string" } },
        "score": { "type": "number", "description": "Larger is better; comparable within one search only." },
        "coverage": { "type": "number", "description": "The share of the query's words that the passage has, weighed by their rarity, 0 to 1." },
    }));
    let output = full(json!({ "passages": { "type": "array", "items": passage } }));
    tool("search_notes", "Search notes", "Finds the passages of the user's notes, documents, mail, chats and calendars that match a query best. No model runs.", input, output)
        .with_annotations(ToolAnnotations::with_title("Search notes").read_only(true).idempotent(true).open_world(false))
}

fn kinds() -> Vec<&'static str> {
    SourceKind::ALL.into_iter().map(SourceKind::name).collect()
}

/// The arguments of a search of the notes, beside others.
fn with_filter(mut properties: Value) -> Value {
    properties["kinds"] =
        names(&json!({ "type": "string", "enum": kinds() }), "Only these kinds of sources.");
    properties["folders"] = folders();
    properties["tags"] = names(&json!({ "type": "string" }), "Only passages with one of these tags.");
    properties["from"] = string("Only from this date on, such as 2024-05-01 or 2024-05-01T12:30:00Z.");
    properties["until"] = string("Only up to this date; a day without a time counts as a whole.");
    properties
}

fn answer() -> Tool {
    let input = object(
        with_filter(json!({
            "question": text("The question.", QUESTION_BYTES_MAX),
            "earlier": {
                "type": "array",
                "items": text("A question.", QUESTION_BYTES_MAX),
                "maxItems": EARLIER_MAX,
                "description": "Earlier questions of the conversation, newest first: the search looks for their words too, with less weight.",
            },
            "limit": integer("Maximum number of passages that the answer is made from; default 4.", PASSAGES_MAX),
            "max_tokens": max_tokens(),
            "keep": keep(),
        })),
        &["question"],
    );
    let source = full(json!({
        "number": { "type": "integer", "description": "The number that `source` and citations `[n]` mean, from 1." },
        "uri": nullable(&note_uri()),
        "name": nullable(&note_name()),
        "title": string("The title of the passage."),
        "text": string("The text that the model was shown."),
        "note_bytes": nullable(&range("The bytes of the note's file that the text was read from.")),
        "is_verbatim": boolean("Whether these bytes are the text itself."),
        "locator": nullable(&string("The line or page on which it begins, such as `line 12` or `page 3`.")),
    }));
    let copied = full(json!({
        "answer_bytes": range("The span in `answer`."),
        "source": { "type": "integer", "description": "The number of the source." },
        "text_bytes": range("The span in the source's `text`."),
        "note_bytes": nullable(&range("The span in the note's file; null if the text is not verbatim there.")),
        "is_exact": boolean("Whether both texts are equal byte for byte; otherwise white space or marks of lists differ."),
    }));
    let citation = full(json!({
        "answer_bytes": range("The citation in `answer`."),
        "number": { "type": "integer" },
        "verdict": { "type": "string", "enum": ["supports", "not_shown", "does_not_support", "too_short"] },
    }));
    let sentence = full(json!({
        "answer_bytes": range("The sentence in `answer`."),
        "support": {
            "type": "string",
            "enum": ["copied", "words", "none", "too_short"],
            "description": "`copied`: it stands in a source; `words`: a source has its words close together; `none`: no source supports it.",
        },
        "source": { "type": ["integer", "null"], "description": "The number of the source." },
        "citations": { "type": "array", "items": citation },
    }));
    let output = of_job(json!({
        "answer": string("The answer."),
        "searched_for": nullable(&string("The words that the notes were searched for.")),
        "sources": { "type": "array", "items": source, "description": "The passages that the model was shown." },
        "copied": { "type": "array", "items": copied, "description": "Parts of the answer that stand in a source." },
        "sentences": { "type": "array", "items": sentence, "description": "The sentences of the answer, checked against the sources." },
    }));
    tool("answer_from_notes", "Answer from notes", "Answers a question from the user's notes with the local model, and says which part of the answer stands in which note. May take a minute.", input, output)
        .with_annotations(keeps("Answer from notes"))
}

fn summarize() -> Tool {
    let input = object(
        json!({
            "note": described(&note_uri(), "The note to summarise. Exactly one of `note`, `text` and `query` is expected."),
            "text": text("The text to summarise.", TEXT_BYTES_MAX),
            "title": text("The title of `text`.", LINE_BYTES_MAX),
            "query": text("Summarises the passages of the notes that match this.", QUERY_BYTES_MAX),
            "instruction": text("A wish for the summary, such as `In two sentences.`", LINE_BYTES_MAX),
            "max_tokens": max_tokens(),
            "keep": keep(),
        }),
        &[],
    );
    let note = full(json!({ "uri": note_uri(), "name": note_name() }));
    let output = of_job(json!({
        "summary": string("The summary."),
        "notes": { "type": "array", "items": note, "description": "The notes that were summarised." },
        "n_parts": { "type": "integer", "description": "Parts that a long text was summarised in; 1 if it fitted the context." },
    }));
    tool("summarize", "Summarize", "Summarises a note, a text, or the passages of the notes that match a query, with the local model. A long text is summarised in parts. May take minutes.", input, output)
        .with_annotations(keeps("Summarize"))
}

fn forget() -> Tool {
    let one = "Exactly one of `note`, `folder` and `before` is expected.";
    let input = object(
        json!({
            "note": described(&note_uri(), &format!("Forgets this note. {one}")),
            "folder": text("Forgets all notes in this folder, named as in `name`, such as `notes/work`.", LINE_BYTES_MAX),
            "before": string("Deletes the answers, summaries and computed prompts from before this time; notes stay."),
        }),
        &[],
    );
    let count = |what: &str| json!({ "type": "integer", "description": what });
    let output = full(json!({
        "n_answers": count("Answers that were deleted."),
        "n_summaries": count("Summaries that were deleted."),
        "n_prefix_blocks": count("Blocks of computed prompts that were deleted."),
        "is_notes_pending": boolean("Whether the notes' text leaves the index only when its writer comes to it. Searches leave it out already."),
        "has_store": boolean("Whether this server keeps answers on disk."),
    }));
    let description = "Deletes a note or a folder of notes from the index, with every answer, summary and computed prompt that was made from them, \
        or deletes what was kept before a time. The files stay, and are not read again. Cannot be undone: ask the user first.";
    tool("forget", "Forget", description, input, output).with_annotations(
        ToolAnnotations::with_title("Forget")
            .read_only(false)
            .destructive(true)
            .idempotent(true)
            .open_world(false),
    )
}

/// Hints of jobs: they add what later ones draft from, and change nothing else.
fn keeps(title: &str) -> ToolAnnotations {
    ToolAnnotations::with_title(title).read_only(false).destructive(false).idempotent(true).open_world(false)
}

fn tool(name: &'static str, title: &str, description: &'static str, input: Value, output: Value) -> Tool {
    Tool::new(name, description, schema(input)).with_title(title).with_raw_output_schema(schema(output))
}

fn schema(value: Value) -> Arc<JsonObject> {
    let Value::Object(schema) = value else { unreachable!("schemas are objects") };
    Arc::new(schema)
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// A result, which has all of its properties.
fn full(properties: Value) -> Value {
    let names: Vec<&str> = properties.as_object().into_iter().flatten().map(|(name, _)| &**name).collect();
    let required = json!(names);
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// The result of a job, with what those of all jobs have.
fn of_job(mut properties: Value) -> Value {
    let left_out = full(json!({
        "uri": nullable(&note_uri()),
        "name": nullable(&note_name()),
        "title": string("The title of the passage."),
        "n_tokens": { "type": "integer", "description": "Its tokens; estimated for long texts." },
        "reason": { "type": "string", "enum": ["context", "rest", "parts"], "description": "`context`: it did not fit; `rest`: its start was shown; `parts`: the text has too many parts." },
    }));
    let count = json!({ "type": "integer" });
    let stats =
        full(json!({ "prompt_tokens": count, "cached_tokens": count, "tokens": count, "steps": count }));
    properties["left_out"] = json!({ "type": "array", "items": left_out, "description": "What the model was not shown, though it matched." });
    properties["is_cut"] = boolean("Whether the output was cut at its maximum length.");
    properties["is_kept"] = boolean("Whether nothing went wrong with keeping the output for later drafts.");
    properties["stats"] = stats;
    full(properties)
}

fn text(description: &str, bytes_max: usize) -> Value {
    // JSON Schema counts characters, and the limit is in bytes: no text that the schema refuses is short enough.
    json!({ "type": "string", "minLength": 1, "maxLength": bytes_max, "description": description })
}

fn string(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn boolean(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}

fn integer(description: &str, max: i64) -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": max, "description": description })
}

fn names(items: &Value, description: &str) -> Value {
    json!({ "type": "array", "items": items, "maxItems": NAMES_MAX, "description": description })
}

fn folders() -> Value {
    names(
        &json!({ "type": "string" }),
        "Only notes in these folders, named as in `name`, such as `notes/work`.",
    )
}

fn note_name() -> Value {
    string("The note's path below the user's folder.")
}

fn note_uri() -> Value {
    string("The URI of a note, as resources and results have it.")
}

fn max_tokens() -> Value {
    integer("Maximum length of the output; default 512, at most half of the model's context.", TOKENS_MAX)
}

fn keep() -> Value {
    boolean(
        "Whether the output is kept on this device, so that later ones are drafted from it; default true.",
    )
}

fn range(description: &str) -> Value {
    json!({ "type": "array", "items": { "type": "integer" }, "minItems": 2, "maxItems": 2, "description": format!("{description} [start, end)") })
}

fn described(schema: &Value, description: &str) -> Value {
    let mut schema = schema.clone();
    schema["description"] = description.into();
    schema
}

fn nullable(schema: &Value) -> Value {
    let mut schema = schema.clone();
    schema["type"] = json!([schema["type"], "null"]);
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every property of an object has a type.
    fn check(schema: &Value, path: &str) {
        assert!(schema["type"].is_string() || schema["type"].is_array(), "{path}: {schema}");
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            check(property, &format!("{path}.{name}"));
        }
        if schema["type"].as_str() == Some("array") {
            check(&schema["items"], &format!("{path}[]"));
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(schema["properties"].get(name.as_str().unwrap()).is_some(), "{path}: {name}");
        }
    }

    #[test]
    fn schemas_are_whole_and_plain_at_the_top() {
        for tool in all() {
            assert_eq!(is_destructive(&tool), tool.name == "forget");
            for schema in [Some(tool.input_schema), tool.output_schema].into_iter().flatten() {
                check(&Value::Object((*schema).clone()), &tool.name);
                let known = ["type", "properties", "required", "additionalProperties"];
                assert!(schema.keys().all(|key| known.contains(&key.as_str())), "{}", tool.name);
            }
            let hints = tool.annotations.expect("hints");
            assert_eq!(hints.destructive_hint == Some(true), tool.name == "forget");
            assert_eq!(hints.read_only_hint == Some(true), tool.name == "search_notes");
        }
    }
}
