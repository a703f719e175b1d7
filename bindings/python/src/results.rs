//! Results of the assistant's tasks as JSON, from which `refrain._results` makes dataclasses.
//!
//! Places in texts are in characters, as Python's strings have them; places in files are in bytes.

use std::ops::Range;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use refrain::FinishReason;
use refrain_assistant::edit::DiffEvent;
use refrain_assistant::provenance::{CheckedSentence, CopiedSpan, Support};
use refrain_assistant::{
    Answer, Bubble, BubbleSource, ChatAnswer, Command, Edit, Forgotten, LeftOut, LeftOutReason, Passage,
    Prefetched, Provenance, Reply, Report, Searched, Source, Summary, Turn, UiCommand,
};
use refrain_index::notes::SkipReason;
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

/// The texts of a file, and why a part of it was left out.
pub(crate) fn file_texts((texts, lost): &(Vec<Passage>, Option<SkipReason>)) -> Value {
    json!({ "texts": passages(texts), "lost": lost.as_ref().map(ToString::to_string) })
}

fn passages(all: &[Passage]) -> Vec<Value> {
    all.iter().map(passage).collect()
}

fn provenance(provenance: &Provenance, text: &str, shown: &[Passage]) -> Value {
    let texts: Vec<&str> = shown.iter().map(|passage| &*passage.text).collect();
    let [copied, sentences] = spans_and_sentences(&provenance.copied, &provenance.sentences, text, &texts);
    json!({ "copied": copied, "sentences": sentences })
}

/// The copied spans and the sentences of a text from these texts.
fn spans_and_sentences(
    copied: &[CopiedSpan],
    sentences: &[CheckedSentence],
    text: &str,
    shown: &[&str],
) -> [Value; 2] {
    let copied = copied.iter().map(|span| {
        let of = shown.get(span.passage).copied().unwrap_or_default();
        json!({
            "output": place(text, &span.output), "passage": span.passage, "place": place(of, &span.place),
            "is_exact": span.is_exact, "n_words": span.n_words,
        })
    });
    let sentences = sentences.iter().map(|sentence| {
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
    [copied.collect(), sentences.collect()]
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

pub(crate) fn searched(searched: &Searched) -> Value {
    let words: Vec<(&str, f32)> =
        searched.words.iter().map(|word| (word.text.as_str(), word.weight)).collect();
    json!({
        "words": words, "coverage": searched.coverage, "is_not_in_notes": searched.is_not_in_notes(),
        "nearest": passages(&searched.nearest),
    })
}

pub(crate) fn turn(turn: &Turn) -> Value {
    let notes: Vec<String> = turn.notes.iter().map(PathBuf::as_path).map(path).collect();
    json!({ "role": turn.message.role.name(), "content": turn.message.content, "notes": notes, "asked": turn.asked, "keep": turn.keep })
}

pub(crate) fn answer(done: Answer, _: &str) -> Value {
    json!({
        "text": done.text, "reasoning": done.reasoning, "passages": passages(&done.passages),
        "searched": done.searched.as_ref().map(searched),
        "provenance": provenance(&done.provenance, &done.text, &done.passages), "report": report(&done.report),
    })
}

pub(crate) fn bubble(done: Bubble, _: &str) -> Value {
    let unsupported: Vec<usize> = done.unsupported().collect();
    let texts: Vec<&str> = done.sources.iter().map(|source| &*source.text).collect();
    let [copied, sentences] = spans_and_sentences(&done.copied, &done.sentences, &done.text, &texts);
    json!({
        "text": done.text, "reasoning": done.reasoning,
        "sources": done.sources.iter().map(bubble_source).collect::<Vec<_>>(),
        "copied": copied, "sentences": sentences, "unsupported": unsupported,
        "searched": done.searched.as_ref().map(searched),
        "left_out": done.left_out.iter().map(left_out).collect::<Vec<_>>(), "is_cut": done.is_cut,
        "report": report(&done.report),
    })
}

fn bubble_source(source: &BubbleSource) -> Value {
    let BubbleSource { number, title, path: file, locator, text, is_cited, supports, .. } = source;
    json!({
        "number": number, "title": title, "path": file.as_deref().map(path),
        "locator": locator.map(|locator| locator.to_string()), "text": text, "is_cited": is_cited,
        "supports": supports,
    })
}

pub(crate) fn reply(done: Reply, _: &str) -> Value {
    json!({
        "text": done.text, "reasoning": done.reasoning, "passages": passages(&done.passages), "searched": null,
        "provenance": provenance(&done.provenance, &done.text, &done.passages), "report": report(&done.report),
    })
}

pub(crate) fn chat_answer(done: ChatAnswer, _: &str) -> Value {
    json!({
        "text": done.text, "reasoning": done.reasoning, "passages": passages(&done.passages),
        "searched": done.searched.as_ref().map(searched),
        "provenance": provenance(&done.provenance, &done.text, &done.passages), "report": report(&done.report),
        "dropped": done.dropped.iter().map(turn).collect::<Vec<_>>(),
    })
}

pub(crate) fn summary(done: Summary, _: &str) -> Value {
    let old = done.previous.as_deref().unwrap_or("");
    json!({
        "text": done.text, "reasoning": done.reasoning, "passages": passages(&done.passages), "parts": done.parts,
        "n_kept_parts": done.n_kept_parts,
        "previous": done.previous, "changes": changes(&done.changes, old, &done.text), "report": report(&done.report),
    })
}

pub(crate) fn edit(done: Edit, old: &str) -> Value {
    json!({
        "text": done.text, "reasoning": done.reasoning, "changes": changes(&done.changes, old, &done.text),
        "old_part": place(old, &done.old_part), "new_part": place(&done.text, &done.new_part), "around": done.around,
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
