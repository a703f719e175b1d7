//! Answers and edits for the page.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use axum::extract::{Request, State};
use axum::response::Response;
use refrain::{Origin, Sampling, Stats, TextKind};
use refrain_assistant::edit::DiffEvent;
use refrain_assistant::provenance::{CheckedCitation, CheckedSentence, Support};
use refrain_assistant::{
    Answer, AnswerRequest, Assistant, EditRequest, Job, JobEvent, JobOptions, LeftOut, LeftOutReason,
    Passage, Report, Searched, Source, TaskError, TextEvent,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::shown::{Entry, SourceName, short_path};
use super::state::Page;
use super::stream::{self, Sink};
use super::units::{self, Units};
use crate::body;
use crate::error::{ApiError, ApiResult};
use crate::json::fields::Fields;

/// Maximum length of a question or an instruction, in bytes. The context of the model is a limit of its own.
const REQUEST_BYTES_MAX: usize = 32 << 10;

/// Maximum number of earlier questions of a follow-up question. A search reads five of them.
const EARLIER_MAX: usize = 16;

/// What asks and edits have in common.
pub(super) struct Options {
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    seed: Option<u64>,
    drafts: bool,
    keep: bool,
}

impl Options {
    fn read(fields: &mut Fields<'_>) -> ApiResult<Self> {
        let max_tokens = fields.count("max_tokens", 1)?;
        let temperature = fields.number("temperature", 0.0..=2.0)?;
        // A number of JSON is exact up to 2⁵³.
        let seed = fields.integer("seed", 0..=(1 << 53))?;
        Ok(Self {
            max_tokens,
            temperature,
            seed: seed.map(i64::unsigned_abs),
            drafts: fields.bool("drafts")?.unwrap_or(true),
            keep: fields.bool("keep")?.unwrap_or(true),
        })
    }

    fn assistant(&self, assistant: Assistant) -> Assistant {
        if self.drafts { assistant } else { assistant.without_drafts() }
    }

    /// `sampling` is that of the model: only what the page sets differs.
    fn job(&self, sink: &Sink, sampling: &Sampling) -> JobOptions {
        let sampling =
            self.temperature.map(|temperature| Sampling { temperature, seed: self.seed, ..sampling.clone() });
        let mut options = JobOptions::default();
        options.answer_tokens = self.max_tokens;
        options.sampling = sampling;
        options.keep = self.keep;
        options.cancel = sink.cancel.clone();
        options
    }
}

/// A question, and the options of its answer.
pub(super) fn read_ask(value: &Value) -> ApiResult<(AnswerRequest, Options)> {
    let mut fields = Fields::of_request(value)?;
    let mut request = AnswerRequest::new(fields.required_text("question", REQUEST_BYTES_MAX)?);
    request.earlier = fields.texts("earlier", EARLIER_MAX, REQUEST_BYTES_MAX)?;
    let options = Options::read(&mut fields)?;
    fields.finish()?;
    Ok((request, options))
}

/// Maximum length of a text to edit, in bytes. A longer one than the context is edited in windows, and a request has a time limit.
const EDITED_BYTES_MAX: usize = 256 << 10;

/// A text, an instruction to edit it, and the options of the edit.
pub(super) fn read_edit(value: &Value) -> ApiResult<(String, String, Options)> {
    let mut fields = Fields::of_request(value)?;
    let old = fields.required_text("text", EDITED_BYTES_MAX)?;
    let instruction = fields.required_text("instruction", REQUEST_BYTES_MAX)?;
    let options = Options::read(&mut fields)?;
    fields.finish()?;
    Ok((old, instruction, options))
}

pub(super) async fn ask(State(page): State<Page>, request: Request) -> ApiResult<Response> {
    let app = State(page.app().clone());
    let (place, (asked, options)) = body::read(&app, request, |given| read_ask(given.value)).await?;
    let (model, assistant) = page.assistant().await?;
    let assistant = options.assistant(assistant);
    let theirs = page.clone();
    Ok(stream::run(&page, place, move |sink| {
        let n_forgotten = theirs.shown().n_forgotten();
        let question = asked.question.clone();
        let job = match assistant.answer(asked, options.job(sink, &model.sampling)) {
            Err(TaskError::NotInNotes { searched }) => {
                let sources = theirs.show(&searched.nearest, n_forgotten);
                sink.send("done", &not_in_notes(&searched, &sources));
                return Ok(());
            }
            job => job.map_err(of_task)?,
        };
        let (answer, first_token) = drive(sink, job, None)?;
        theirs.count(&answer.report, first_token);
        let sources = theirs.show(&answer.passages, n_forgotten);
        let paths = paths_of(&answer.passages);
        let notes: BTreeMap<&str, &SourceName> =
            sources.iter().flatten().map(|name| (name.file.as_str(), name)).collect();
        if options.keep {
            let entry = entry("answer", &question, &answer.text, &answer.report);
            let notes = notes.into_values().cloned().collect();
            theirs.shown().add(Entry { notes, paths, ..entry }, n_forgotten);
        }
        sink.send("done", &answered(&answer, &sources));
        Ok(())
    }))
}

pub(super) async fn edit(State(page): State<Page>, request: Request) -> ApiResult<Response> {
    let app = State(page.app().clone());
    let (place, (old, instruction, options)) =
        body::read(&app, request, |given| read_edit(given.value)).await?;
    let (model, assistant) = page.assistant().await?;
    let assistant = options.assistant(assistant);
    let theirs = page.clone();
    Ok(stream::run(&page, place, move |sink| {
        let n_forgotten = theirs.shown().n_forgotten();
        let job = assistant
            .edit(EditRequest::new(old.as_str(), instruction.as_str()), options.job(sink, &model.sampling));
        let (edit, first_token) = drive(sink, job.map_err(of_task)?, Some(&old))?;
        theirs.count(&edit.report, first_token);
        if options.keep {
            theirs.shown().add(entry("edit", &instruction, &edit.text, &edit.report), n_forgotten);
        }
        sink.send("done", &ended(&edit.text, &edit.report));
        Ok(())
    }))
}

/// A piece of the output, with the totals after it.
#[derive(Serialize)]
struct PieceEvent<'a> {
    text: &'a str,
    origin: Option<&'a str>,
    is_reasoning: bool,
    us: f64,
    n_tokens: usize,
    n_steps: usize,
}

/// Runs a job to its end and sends its events; also returns the time to the first token. `old` is the text that is edited.
fn drive<T>(sink: &Sink, mut job: Job<T>, old: Option<&str>) -> ApiResult<(T, Option<Duration>)> {
    let (mut new, mut totals) = (String::new(), (0.0, 0, 0));
    let mut first_token = None;
    while let Some(event) = job.next() {
        sink.check_time()?;
        match event.map_err(of_task)? {
            JobEvent::Prefill { done, total } => {
                sink.send("prefill", &json!({ "done": done, "total": total }));
            }
            JobEvent::Text(TextEvent { text, kind, origin, .. }) => {
                first_token.get_or_insert_with(|| sink.elapsed());
                // The rest of a text comes when its generation has ended.
                if let Some(stats) = job.stats() {
                    totals = (stats.time_us.decode(), stats.tokens, stats.steps);
                }
                let (us, n_tokens, n_steps) = totals;
                let origin = match &origin {
                    Origin::Draft(name) => Some(name.as_str()),
                    Origin::Target => None,
                };
                let is_reasoning = kind != TextKind::Answer;
                if old.is_some() && !is_reasoning {
                    new.push_str(&text);
                }
                sink.send("text", &PieceEvent { text: &text, origin, is_reasoning, us, n_tokens, n_steps });
            }
            JobEvent::Edit(change) => {
                if let Some(old) = old {
                    sink.send("change", &change_json(&change, old, &new));
                }
            }
            JobEvent::Done(done) => return Ok((done, first_token)),
            _ => {}
        }
    }
    Err(ApiError::server("the job has ended without a result"))
}

/// A change as a number of units of the old text, or as new text.
fn change_json(change: &DiffEvent, old: &str, new: &str) -> Value {
    let of = |text: &str, range: &Range<usize>| units::len(&text[range.clone()]);
    match change {
        DiffEvent::Keep { old: range, .. } => json!({ "kind": "keep", "n": of(old, range) }),
        DiffEvent::Delete { old: range } => json!({ "kind": "delete", "n": of(old, range) }),
        DiffEvent::Insert { new: range, .. } => json!({ "kind": "insert", "text": &new[range.clone()] }),
    }
}

/// Counts of all passes of a job.
pub(crate) fn stats_json(report: &Report) -> Value {
    let sum = |of: fn(&Stats) -> usize| report.stats.iter().map(of).sum::<usize>();
    json!({
        "prompt_tokens": sum(|stats| stats.prompt_tokens),
        "cached_tokens": sum(|stats| stats.cached_tokens),
        "tokens": sum(|stats| stats.tokens),
        "steps": sum(|stats| stats.steps),
    })
}

/// What the results of all jobs have.
fn ended(text: &str, report: &Report) -> Value {
    let time = |of: fn(&Stats) -> f64| report.stats.iter().map(of).sum::<f64>();
    let mut stats = stats_json(report);
    stats["prefill_us"] = time(|stats| stats.time_us.prefill).into();
    stats["decode_us"] = time(|stats| stats.time_us.decode()).into();
    json!({
        "text": text,
        "is_cut": report.n_cut > 0,
        "stats": stats,
        // The reason may name a file of this device.
        "not_kept": report.not_kept.as_ref().map(|_| "the store cannot keep it"),
    })
}

fn answered(answer: &Answer, sources: &[Option<SourceName>]) -> Value {
    let Answer { text, passages, searched, provenance, report, .. } = answer;
    let units = Units::of(text);
    let places: Vec<Units> = passages.iter().map(|passage| Units::of(&passage.text)).collect();
    let n_copied = |index: usize| -> usize {
        provenance.copied.iter().filter(|span| span.passage == index).map(|span| span.n_words).sum()
    };
    let mut json = ended(text, report);
    json["searched"] = searched.as_ref().map(ToString::to_string).into();
    json["is_not_in_notes"] = false.into();
    let passages = passages.iter().zip(sources).enumerate();
    json["passages"] =
        passages.map(|(index, (passage, source))| passage_json(passage, source, n_copied(index))).collect();
    json["copied"] = provenance
        .copied
        .iter()
        .map(|span| {
            json!({
                "output": units.range(&span.output),
                "passage": span.passage,
                "place": places[span.passage].range(&span.place),
                "is_exact": span.is_exact,
            })
        })
        .collect();
    json["sentences"] = provenance.sentences.iter().map(|sentence| sentence_json(sentence, &units)).collect();
    json["left_out"] = report.left_out.iter().map(left_out_json).collect();
    json
}

/// The answer of notes that have none: the passages are the nearest ones, and no model has run.
fn not_in_notes(searched: &Searched, sources: &[Option<SourceName>]) -> Value {
    let passages = searched.nearest.iter().zip(sources);
    json!({
        "text": "Not in your notes.",
        "is_cut": false,
        "stats": {
            "prompt_tokens": 0, "cached_tokens": 0, "tokens": 0, "steps": 0, "prefill_us": 0, "decode_us": 0,
        },
        "not_kept": null,
        "searched": searched.to_string(),
        "is_not_in_notes": true,
        "passages": passages.map(|(passage, source)| passage_json(passage, source, 0)).collect::<Vec<_>>(),
        "copied": [],
        "sentences": [],
        "left_out": [],
    })
}

fn passage_json(passage: &Passage, source: &Option<SourceName>, n_words_copied: usize) -> Value {
    json!({
        "id": source.as_ref().map_or("", |source| &source.id),
        "title": passage.title,
        "file": file_of(passage.source.as_ref()),
        "locator": locator_of(passage.source.as_ref()),
        "n_words_copied": n_words_copied,
    })
}

/// What supports a sentence: the kind, and the index of a passage.
pub(crate) fn support_of(sentence: &CheckedSentence) -> (&'static str, Option<usize>) {
    match sentence.support {
        Support::Copied { passage, .. } => ("copied", Some(passage)),
        Support::Words { passage, .. } => ("words", Some(passage)),
        Support::None { .. } => ("none", None),
        _ => ("too_short", None),
    }
}

fn sentence_json(sentence: &CheckedSentence, units: &Units) -> Value {
    let (support, passage) = support_of(sentence);
    let citation = |citation: &CheckedCitation| json!({ "text": units.range(&citation.text), "number": citation.number, "verdict": citation.verdict });
    json!({
        "text": units.range(&sentence.text),
        "support": support,
        "passage": passage,
        "citations": sentence.citations.iter().map(citation).collect::<Vec<_>>(),
    })
}

fn left_out_json(left_out: &LeftOut) -> Value {
    json!({
        "title": left_out.title,
        "file": file_of(left_out.source.as_ref()),
        "n_tokens": left_out.n_tokens,
        "is_rest": left_out.reason == LeftOutReason::Rest,
    })
}

fn file_of(source: Option<&Source>) -> String {
    source.map(|source| short_path(&source.path)).unwrap_or_default()
}

/// The line or page on which a passage begins.
fn locator_of(source: Option<&Source>) -> Option<String> {
    Some(source?.locator?.to_string())
}

fn paths_of(passages: &[Passage]) -> Vec<PathBuf> {
    passages.iter().filter_map(|passage| Some(passage.source.as_ref()?.path.clone())).collect()
}

fn entry(kind: &'static str, request: &str, text: &str, report: &Report) -> Entry {
    let (tokens, steps) = report.tokens_and_steps();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Entry {
        id: 0,
        kind,
        at_ms: since.as_millis() as u64,
        request: request.to_owned(),
        text: text.to_owned(),
        tokens,
        steps,
        is_kept: report.not_kept.is_none(),
        notes: Vec::new(),
        paths: Vec::new(),
    }
}

impl Page {
    /// Puts passages under ids, unless something was forgotten since the job began: one of them might be.
    fn show(&self, passages: &[Passage], n_forgotten: u64) -> Vec<Option<SourceName>> {
        let mut shown = self.shown();
        if shown.n_forgotten() != n_forgotten {
            return vec![None; passages.len()];
        }
        passages.iter().map(|passage| shown.show(passage, || self.app().id("src_"))).collect()
    }

    /// Adds an output to the metrics.
    fn count(&self, report: &Report, first_token: Option<Duration>) {
        report.stats.iter().for_each(|stats| self.app().metrics().add_output(stats, first_token));
    }
}

/// A task's error in words that quote no text and name no file, but for the titles of the nearest passages.
pub(crate) fn of_task(error: TaskError) -> ApiError {
    match error {
        TaskError::Cancelled => ApiError::stopped(),
        TaskError::NoNotes => {
            ApiError::not_found("the server has no notes; `refrain serve --notes FOLDER` gives it some")
        }
        TaskError::NotInNotes { .. } => ApiError::not_found(error.to_string()),
        TaskError::Nothing { verb: "edit" } => ApiError::bad_request("the text is empty"),
        TaskError::Nothing { .. } => {
            ApiError::bad_request("no passage of the notes has a word of the question")
        }
        TaskError::RequestTooLong { .. }
        | TaskError::TextTooLong { .. }
        | TaskError::TextTooLarge { .. }
        | TaskError::NoRoom { .. } => ApiError::bad_request(error.to_string()),
        TaskError::NoSuchNote { .. } => ApiError::not_found("the notes have no such note"),
        TaskError::Notes(_) => ApiError::server("the notes cannot be searched"),
        TaskError::Session(error) => ApiError::of_engine(error, "text"),
        TaskError::Tokenizer(error) => ApiError::of_engine(error, "text"),
        TaskError::Generate(error) => ApiError::of_engine(error, "text"),
        TaskError::NoChatTemplate => ApiError::bad_request("the model has no chat template"),
        _ => ApiError::server("the job has failed"),
    }
}
