//! The source of a passage: the note around it, as the index has it. The page names a passage by an id that it was given, never by a path.

use axum::extract::{Path, State};
use axum::response::Response;
use refrain_index::NotePassage;
use serde_json::{Value, json};

use super::shown::{Source, short_path};
use super::state::Page;
use super::units;
use crate::blocking::blocking;
use crate::error::{ApiError, ApiResult};
use crate::response;

/// Passages of the note before and after, at most.
const AROUND_MAX: usize = 64;

pub(super) async fn source(State(page): State<Page>, Path(id): Path<String>) -> ApiResult<Response> {
    let source = page.shown().source(&id).cloned();
    let source = source.ok_or_else(|| ApiError::not_found("the server no longer has this source"))?;
    let (_, assistant) = page.assistant().await?;
    let json = blocking(move || {
        let passages = assistant.notes().map(|notes| notes.passages_of(&source.path));
        // The note may be gone from the index, or the index broken: the passage itself is still there.
        let mut passages = passages.and_then(Result::ok).unwrap_or_default();
        passages.sort_by_key(|passage| (passage.place.start, passage.place.end));
        Ok(around(&source, &passages))
    });
    Ok(response::json(&json.await?))
}

/// The passages around the source, with words that neighbours repeat shown once.
fn around(source: &Source, passages: &[NotePassage]) -> Value {
    let is_it = |passage: &NotePassage| {
        passage.place.start == source.place.start && passage.text.starts_with(&source.text)
    };
    let at = passages.iter().position(is_it);
    let (sections, section) = match at {
        Some(at) => {
            let first = at.saturating_sub(AROUND_MAX);
            let last = (at + AROUND_MAX + 1).min(passages.len());
            let sections = (first..last).map(|index| {
                let NotePassage { title, text, .. } = &passages[index];
                let (start, end) = own_part(passages, index, at);
                json!({ "title": title, "text": text.get(start..end).unwrap_or(text) })
            });
            (sections.collect(), at - first)
        }
        None => (vec![json!({ "title": source.title, "text": source.text })], 0),
    };
    json!({
        "title": source.title,
        "file": short_path(&source.path),
        "locator": source.locator.map(|locator| locator.to_string()),
        "is_current": at.is_some(),
        "sections": sections,
        "section": section,
        "len": units::len(&source.text),
    })
}

/// The part of a passage's text that its neighbour towards the one at `at` does not repeat.
fn own_part(passages: &[NotePassage], index: usize, at: usize) -> (usize, usize) {
    let passage = &passages[index];
    let repeated = |before: &NotePassage, after: &NotePassage| match before.is_verbatim && after.is_verbatim {
        true => before.place.end.saturating_sub(after.place.start) as usize,
        false => 0,
    };
    let len = passage.text.len();
    match index.cmp(&at) {
        std::cmp::Ordering::Less => (0, len.saturating_sub(repeated(passage, &passages[index + 1]))),
        std::cmp::Ordering::Equal => (0, len),
        std::cmp::Ordering::Greater => (repeated(&passages[index - 1], passage).min(len), len),
    }
}

#[cfg(test)]
mod tests {
    use refrain_index::SourceKind;

    use super::*;

    fn passage(place: std::ops::Range<u64>, text: &str) -> NotePassage {
        NotePassage {
            path: "/n/a.md".into(),
            kind: SourceKind::Note,
            title: "A".to_owned(),
            text: text.to_owned(),
            place,
            is_verbatim: true,
            locator: None,
            date: 0,
            tags: Vec::new(),
            language: None,
            key: 0,
        }
    }

    #[test]
    fn neighbours_lose_what_they_repeat() {
        let note = "one two three four five";
        let ranges = [0..7, 4..13, 8..18, 14..23];
        let passages: Vec<_> = ranges
            .iter()
            .map(|range| passage(range.start as u64..range.end as u64, &note[range.clone()]))
            .collect();
        let source = |text: &str, start: u64| Source {
            locator: None,
            id: String::new(),
            path: "/n/a.md".into(),
            title: "A".to_owned(),
            text: text.to_owned(),
            place: start..start + text.len() as u64,
        };
        let texts = |json: &Value| -> Vec<String> {
            let sections = json["sections"].as_array().unwrap();
            sections.iter().map(|section| section["text"].as_str().unwrap().to_owned()).collect()
        };
        let shown = around(&source("three", 8), &passages);
        assert_eq!(texts(&shown), ["one ", "two ", "three four", " five"]);
        assert_eq!((shown["section"].as_u64(), shown["is_current"].as_bool()), (Some(2), Some(true)));
        // The note has changed since.
        let shown = around(&source("other", 8), &passages);
        assert_eq!((texts(&shown), shown["is_current"].as_bool()), (vec!["other".to_owned()], Some(false)));
    }
}
