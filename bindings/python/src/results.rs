//! Results of the assistant's tasks as JSON, from which `refrain._results` makes dataclasses.
//!
//! Places in texts are in characters, as Python's strings have them; places in files are in bytes.

use std::ops::Range;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use refrain::FinishReason;
use refrain_assistant::edit::DiffEvent;
use refrain_assistant::provenance::Support;
use refrain_assistant::{
    Answer, ChatAnswer, Command, Edit, Forgotten, LeftOut, LeftOutReason, Passage, Prefetched, Provenance,
    Reply, Report, Source, Summary, Turn, UiCommand,
};
use serde_json::{Value, json};

/// A JSON object as the class of `refrain.assistant` with this name.
pub(crate) fn object(py: Python<'_>, class: &str, value: &Value) -> PyResult<Py<PyAny>> {
    Ok(py.import("refrain._results")?.getattr("read")?.call1((class, value.to_string()))?.unbind())
}

/// A place in a text, in characters.
pub(crate) fn place(text: &str, bytes: &Range<usize>) -> [usize; 2] {
    let count = |to: usize| text.get(..to).unwrap_or(text).chars().count();
    [count(bytes.start), count(bytes.end)]
}

/// A path as Python's `os.fsdecode` would have it, except that bytes that are no Unicode are replaced.
fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn source(source: &Source) -> Value {
    let Source { path: file, place, is_verbatim, locator, score, .. } = source;
    let locator = locator.map(|locator| locator.to_string());
    json!({ "path": path(file), "place": [place.start, place.end], "is_verbatim": is_verbatim, "score": score, "locator": locator })
}

fn passage(passage: &Passage) -> Value {
    let Passage { title, text, source: from, .. } = passage;
    json!({ "title": title, "text": text, "source": from.as_ref().map(source) })
}

fn passages(all: &[Passage]) -> Vec<Value> {
    all.iter().map(passage).collect()
}

fn provenance(provenance: &Provenance, text: &str, shown: &[Passage]) -> Value {
    let copied = provenance.copied.iter().map(|span| {
        let of = shown.get(span.passage).map_or("", |passage| &passage.text);
        json!({
            "output": place(text, &span.output), "passage": span.passage, "place": place(of, &span.place),
            "is_exact": span.is_exact, "n_words": span.n_words,
        })
    });
    let sentences = provenance.sentences.iter().map(|sentence| {
        let (support, by, share) = match sentence.support {
            Support::Copied { passage, share } => ("copied", Some(passage), Some(share)),
            Support::Words { passage, share } => ("words", Some(passage), Some(share)),
            Support::None { share } => ("none", None, Some(share)),
            _ => ("too_short", None, None),
        };
        let citations = sentence.citations.iter().map(|citation| {
            json!({
                "place": place(text, &citation.text), "number": citation.number, "verdict": citation.verdict,
            })
        });
        json!({
            "place": place(text, &sentence.text), "support": support, "passage": by, "share": share,
            "citations": citations.collect::<Vec<_>>(),
        })
    });
    json!({ "copied": copied.collect::<Vec<_>>(), "sentences": sentences.collect::<Vec<_>>() })
}

/// The name of a reason in Python.
pub(crate) fn finish_name(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::EndToken => "end_token",
        FinishReason::Stop => "stop",
        FinishReason::MaxTokens => "max_tokens",
        FinishReason::ContextFull => "context_full",
        _ => "cancelled",
    }
}

fn left_out(left_out: &LeftOut) -> Value {
    let LeftOut { title, source: from, n_tokens, reason, .. } = left_out;
    let reason = match reason {
        LeftOutReason::Context => "context",
        LeftOutReason::Rest => "rest",
        _ => "parts",
    };
    json!({ "title": title, "source": from.as_ref().map(source), "n_tokens": n_tokens, "reason": reason })
}

fn report(report: &Report) -> Value {
    let Report { finish, n_cut, seed, stats, left_out: missing, not_kept, .. } = report;
    json!({
        "finish": finish_name(*finish), "n_cut": n_cut, "seed": seed, "stats": stats,
        "left_out": missing.iter().map(left_out).collect::<Vec<_>>(), "not_kept": not_kept,
    })
}

/// A change as JSON, with places in characters, as Python's strings have them.
pub(crate) fn change_in_characters(change: &DiffEvent, old: &str, new: &str) -> Value {
    let (kind, old, new) = match change {
        DiffEvent::Keep { old: from, new: to } => ("keep", Some(place(old, from)), Some(place(new, to))),
        DiffEvent::Insert { new: to, at } => ("insert", Some(place(old, &(*at..*at))), Some(place(new, to))),
        DiffEvent::Delete { old: from } => ("delete", Some(place(old, from)), None),
    };
    json!({ "kind": kind, "old": old, "new": new })
}

fn changes(changes: &[DiffEvent], old: &str, new: &str) -> Vec<Value> {
    changes.iter().map(|change| change_in_characters(change, old, new)).collect()
}

pub(crate) fn turn(turn: &Turn) -> Value {
    let notes: Vec<String> = turn.notes.iter().map(PathBuf::as_path).map(path).collect();
    json!({ "role": turn.message.role.name(), "content": turn.message.content, "notes": notes, "keep": turn.keep })
}

pub(crate) fn answer(done: Answer, _: &str) -> Value {
    json!({
        "text": done.text, "reasoning": done.reasoning, "passages": passages(&done.passages),
        "provenance": provenance(&done.provenance, &done.text, &done.passages), "report": report(&done.report),
    })
}

pub(crate) fn reply(done: Reply, _: &str) -> Value {
    json!({
        "text": done.text, "reasoning": done.reasoning, "passages": passages(&done.passages),
        "provenance": provenance(&done.provenance, &done.text, &done.passages), "report": report(&done.report),
    })
}

pub(crate) fn chat_answer(done: ChatAnswer, _: &str) -> Value {
    json!({
        "text": done.text, "reasoning": done.reasoning, "passages": passages(&done.passages),
        "provenance": provenance(&done.provenance, &done.text, &done.passages), "report": report(&done.report),
        "dropped": done.dropped.iter().map(turn).collect::<Vec<_>>(),
    })
}

pub(crate) fn summary(done: Summary, _: &str) -> Value {
    let old = done.previous.as_deref().unwrap_or("");
    json!({
        "text": done.text, "reasoning": done.reasoning, "passages": passages(&done.passages), "parts": done.parts,
        "previous": done.previous, "changes": changes(&done.changes, old, &done.text), "report": report(&done.report),
    })
}

pub(crate) fn edit(done: Edit, old: &str) -> Value {
    json!({
        "text": done.text, "reasoning": done.reasoning, "changes": changes(&done.changes, old, &done.text),
        "report": report(&done.report),
    })
}

pub(crate) fn ui_command(done: UiCommand, _: &str) -> Value {
    let mut command = json!({
        "kind": "other", "element": null, "text": null, "direction": null, "name": null, "arguments": null,
    });
    let mut set = |kind: &str, fields: &[(&str, &str)]| {
        command["kind"] = kind.into();
        fields.iter().for_each(|&(field, value)| command[field] = value.into());
    };
    match &done.command {
        Command::Tap { element } => set("tap", &[("element", element)]),
        Command::LongPress { element } => set("long_press", &[("element", element)]),
        Command::Type { element, text } => set("type", &[("element", element), ("text", text)]),
        Command::Swipe { element: Some(element), direction } => {
            set("swipe", &[("element", element), ("direction", direction.name())]);
        }
        Command::Swipe { element: None, direction } => set("swipe", &[("direction", direction.name())]),
        Command::Scroll(direction) => set("scroll", &[("direction", direction.name())]),
        Command::Back => set("back", &[]),
        Command::Key(key) => set("key", &[("name", key)]),
        Command::Open(app) => set("open", &[("name", app)]),
        Command::Wait => set("wait", &[]),
        Command::Ask(question) => set("ask", &[("text", question)]),
        Command::Done => set("done", &[]),
        Command::NoAction => set("none", &[]),
        Command::Own { name, arguments } => set("own", &[("name", name), ("arguments", arguments)]),
        _ => {}
    }
    json!({ "command": command, "text": done.text, "report": report(&done.report) })
}

pub(crate) fn prefetched(done: Prefetched, _: &str) -> Value {
    json!({ "n_tokens": done.n_tokens, "n_kept": done.n_kept })
}

pub(crate) fn forgotten(done: Forgotten) -> Value {
    let Forgotten { n_answers, n_summaries, n_prefix_blocks, is_notes_pending, .. } = done;
    json!({
        "n_answers": n_answers, "n_summaries": n_summaries, "n_prefix_blocks": n_prefix_blocks,
        "is_notes_pending": is_notes_pending,
    })
}
