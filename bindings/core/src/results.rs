//! Results of the assistant as records.

use std::ops::Range;
use std::path::Path;

use refrain_assistant as assistant;
use refrain_assistant::edit::DiffEvent;
use refrain_assistant::provenance::{CheckedSentence, CitationVerdict, SentenceReady};
use refrain_assistant::{Bubble, Command, Report};
use refrain_index::notes::document_id;

use crate::events::{
    Change, ChangeKind, Citation, CopiedSpan, Event, JobResult, LeftOut, Place, Sentence, Skipped, Source,
    Turn, UiCommand, UpdateReport,
};
use crate::options::Units;

pub(crate) fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The id of a document without a file.
pub(crate) fn document(path: &Path) -> Option<String> {
    document_id(path).map(|id| id_text(&id))
}

/// An id as text. (Those that this library puts are text; another program's bytes that are none are replaced.)
pub(crate) fn id_text(id: &[u8]) -> String {
    String::from_utf8_lossy(id).into_owned()
}

pub(crate) fn sentence_ready(ready: SentenceReady, answer: &str, units: Units) -> Event {
    Event::Sentence { index: ready.index as u64, place: units.place(answer, &ready.place), text: ready.text }
}

pub(crate) fn change(change: &DiffEvent, old: &str, new: &str, units: Units) -> Change {
    let [old_place, new_place] = [old, new].map(|text| move |range: &Range<usize>| units.place(text, range));
    match change {
        DiffEvent::Keep { old, new } => {
            Change { kind: ChangeKind::Keep, old: old_place(old), new: new_place(new) }
        }
        DiffEvent::Insert { new, at } => {
            Change { kind: ChangeKind::Insert, old: old_place(&(*at..*at)), new: new_place(new) }
        }
        DiffEvent::Delete { old } => {
            Change { kind: ChangeKind::Delete, old: old_place(old), new: Place::default() }
        }
    }
}

/// Changes, of which each deletion has its place in the new text: behind the change before it.
fn changes(all: &[DiffEvent], old: &str, new: &str, units: Units) -> Vec<Change> {
    let mut at = 0;
    let with_place = |event: &DiffEvent| {
        let mut change = change(event, old, new, units);
        match change.kind {
            ChangeKind::Delete => change.new = Place { start: at, end: at },
            _ => at = change.new.end,
        }
        change
    };
    all.iter().map(with_place).collect()
}

fn report(report: Report) -> JobResult {
    let mut result = JobResult {
        finish: Some(report.finish.into()),
        is_cut: report.n_cut > 0,
        seed: report.seed,
        left_out: report.left_out.iter().map(left_out).collect(),
        not_kept: report.not_kept,
        ..JobResult::default()
    };
    report.stats.iter().for_each(|stats| result.stats.add(stats));
    result
}

fn left_out(left_out: &assistant::LeftOut) -> LeftOut {
    let note = left_out.source.as_ref().map(|source| path(&source.path));
    LeftOut { title: left_out.title.clone(), path: note, tokens: left_out.n_tokens as u64 }
}

pub(crate) fn bubble(done: Bubble, units: Units) -> JobResult {
    let sources: Vec<Source> = done.sources.iter().map(source).collect();
    let text_of = |index: usize| done.sources.get(index).map_or("", |source| source.text.as_str());
    let copied = done.copied.iter().map(|span| CopiedSpan {
        place: units.place(&done.text, &span.output),
        source: span.passage as u32 + 1,
        source_place: units.place(text_of(span.passage), &span.place),
    });
    let copied = copied.collect();
    let sentences = done.sentences.iter().map(|checked| sentence(checked, &done.text, units)).collect();
    JobResult {
        text: done.text,
        reasoning: done.reasoning,
        sources,
        copied,
        sentences,
        ..report(done.report)
    }
}

fn source(source: &assistant::BubbleSource) -> Source {
    Source {
        number: source.number as u32,
        title: source.title.clone(),
        path: source.path.as_deref().map(path),
        document: source.path.as_deref().and_then(document),
        locator: source.locator.map(|locator| locator.to_string()),
        text: source.text.clone(),
        is_cited: source.is_cited,
        supports: source.supports.iter().map(|&index| index as u32).collect(),
    }
}

fn sentence(checked: &CheckedSentence, text: &str, units: Units) -> Sentence {
    let citations = checked.citations.iter().map(|citation| Citation {
        place: units.place(text, &citation.text),
        number: citation.number as u32,
        holds: match citation.verdict {
            CitationVerdict::Supports => Some(true),
            CitationVerdict::TooShort => None,
            _ => Some(false),
        },
    });
    Sentence {
        place: units.place(text, &checked.text),
        source: checked.support.passage().map(|index| index as u32 + 1),
        is_unsupported: checked.support.is_missing(),
        citations: citations.collect(),
    }
}

pub(crate) fn summary(done: assistant::Summary, units: Units) -> JobResult {
    let old = done.previous.as_deref().unwrap_or("");
    let changes = changes(&done.changes, old, &done.text, units);
    let numbered = done.passages.iter().enumerate().map(|(index, passage)| Source {
        number: index as u32 + 1,
        title: passage.title.clone(),
        path: passage.source.as_ref().map(|source| path(&source.path)),
        document: passage.source.as_ref().and_then(|source| document(&source.path)),
        locator: passage.source.as_ref().and_then(|source| source.locator).map(|locator| locator.to_string()),
        text: passage.text.clone(),
        is_cited: false,
        supports: Vec::new(),
    });
    JobResult {
        sources: numbered.collect(),
        text: done.text,
        reasoning: done.reasoning,
        changes,
        parts: done.parts,
        previous: done.previous,
        ..report(done.report)
    }
}

pub(crate) fn edit(done: assistant::Edit, old: &str, units: Units) -> JobResult {
    JobResult {
        changes: changes(&done.changes, old, &done.text, units),
        doubts: done.doubts.iter().map(ToString::to_string).collect(),
        text: done.text,
        reasoning: done.reasoning,
        ..report(done.report)
    }
}

pub(crate) fn command(done: assistant::UiCommand) -> JobResult {
    let set = |kind: &str| UiCommand { kind: kind.to_owned(), ..UiCommand::default() };
    let command = match done.command {
        Command::Tap { element } => UiCommand { element: Some(element), ..set("tap") },
        Command::LongPress { element } => UiCommand { element: Some(element), ..set("long_press") },
        Command::Type { element, text } => {
            UiCommand { element: Some(element), text: Some(text), ..set("type") }
        }
        Command::Swipe { element, direction } => {
            UiCommand { element, direction: Some(direction.name().to_owned()), ..set("swipe") }
        }
        Command::Scroll(direction) => {
            UiCommand { direction: Some(direction.name().to_owned()), ..set("scroll") }
        }
        Command::Back => set("back"),
        Command::Key(key) => UiCommand { name: Some(key), ..set("key") },
        Command::Open(app) => UiCommand { name: Some(app), ..set("open") },
        Command::Wait => set("wait"),
        Command::Ask(question) => UiCommand { text: Some(question), ..set("ask") },
        Command::Done => set("done"),
        Command::NoAction => set("none"),
        Command::Own { name, arguments } => {
            UiCommand { name: Some(name), arguments: Some(arguments), ..set("own") }
        }
        _ => set("other"),
    };
    JobResult { text: done.text, command: Some(command), ..report(done.report) }
}

pub(crate) fn turn(turn: &assistant::Turn) -> Turn {
    Turn {
        role: turn.message.role.into(),
        content: turn.message.content.clone(),
        notes: turn.notes.iter().map(|note| path(note)).collect(),
        asked: turn.asked.clone(),
        keep: turn.keep,
    }
}

pub(crate) fn update(report: &refrain_index::notes::UpdateReport) -> UpdateReport {
    let skipped = report.skipped.iter().filter(|skipped| skipped.reason.is_notable());
    UpdateReport {
        added: report.n_added as u64,
        changed: report.n_changed as u64,
        unchanged: report.n_unchanged as u64,
        removed: report.n_removed as u64,
        passages: report.n_passages as u64,
        skipped: skipped
            .map(|skipped| Skipped { path: path(&skipped.path), reason: skipped.reason.to_string() })
            .collect(),
        is_incomplete: report.is_incomplete,
    }
}
