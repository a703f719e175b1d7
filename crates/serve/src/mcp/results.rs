//! What the tools do, and their results: structured, and as text with links to the notes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use refrain::ChatDate;
use refrain_assistant::provenance::{CheckedSentence, CopiedSpan};
use refrain_assistant::{
    Answer, AnswerRequest, Assistant, Forget, Forgotten, JobOptions, LeftOut, LeftOutReason, Passage, Report,
    SummarizeRequest, Summary,
};
use refrain_index::{NoteHit, Search};
use rmcp::RoleServer;
use rmcp::model::{CallToolResult, ContentBlock, Resource};
use rmcp::service::RequestContext;
use serde_json::{Value, json};

use super::arguments::{AnswerCall, ForgetCall, Output, SearchCall, Subject, SummarizeCall};
use super::job::{Reporter, count_outputs};
use super::names::{Names, found, uri};
use super::resources::link;
use super::state::Mcp;
use crate::error::{ApiError, ApiResult};
use crate::page::{forgotten_json, of_task, stats_json, support_of};

impl Mcp {
    pub(super) async fn search(
        &self,
        call: SearchCall,
        _: RequestContext<RoleServer>,
    ) -> ApiResult<CallToolResult> {
        let (_, assistant) = self.page.assistant().await?;
        self.brief(move || {
            let notes = assistant.notes().ok_or_else(no_notes)?;
            // What a writer has changed since; without it, the earlier state is searched.
            let _ = notes.refresh();
            let names = Names::of(&assistant);
            let mut search = Search::new(&call.query, call.limit);
            search.filter = call.filter.of(&names)?;
            let hits = assistant.search_notes(search).map_err(of_task)?;
            Ok(of_hits(&hits, &names))
        })
        .await
    }

    pub(super) async fn answer(
        &self,
        call: AnswerCall,
        context: RequestContext<RoleServer>,
    ) -> ApiResult<CallToolResult> {
        let (model, assistant) = self.page.assistant().await?;
        let app = self.page.app().clone();
        let job = move |reporter: &Reporter| {
            assistant.notes().map(|notes| notes.refresh().ok());
            let names = Names::of(&assistant);
            let mut request = AnswerRequest::new(call.question);
            request.filter = call.filter.of(&names)?;
            request.n_passages = call.limit;
            request.earlier = call.earlier;
            let mut options = options(&call.output, reporter);
            options.sampling = Some(model.sampling.clone());
            let job = assistant.answer(request, options).map_err(of_task)?;
            let (answer, first_token) = reporter.drive(job)?;
            count_outputs(&app, &answer.report, first_token);
            Ok(of_answer(&answer, &names))
        };
        self.run(&context, job).await
    }

    pub(super) async fn summarize(
        &self,
        call: SummarizeCall,
        context: RequestContext<RoleServer>,
    ) -> ApiResult<CallToolResult> {
        let (model, assistant) = self.page.assistant().await?;
        let app = self.page.app().clone();
        let job = move |reporter: &Reporter| {
            assistant.notes().map(|notes| notes.refresh().ok());
            let names = Names::of(&assistant);
            let mut request = match call.subject {
                Subject::Note(id) => SummarizeRequest::notes([found(&assistant, &id)?]),
                Subject::Text { title, text } => SummarizeRequest::text(title, text),
                Subject::Query(query) => SummarizeRequest::query(query),
            };
            request.request = call.instruction;
            let mut options = options(&call.output, reporter);
            options.sampling = Some(model.sampling.clone());
            let job = assistant.summarize(request, options).map_err(of_task)?;
            let (summary, first_token) = reporter.drive(job)?;
            count_outputs(&app, &summary.report, first_token);
            Ok(of_summary(&summary, &names))
        };
        self.run(&context, job).await
    }

    pub(super) async fn forget(&self, call: ForgetCall) -> ApiResult<CallToolResult> {
        let (_, assistant) = self.page.assistant().await?;
        let page = self.page.clone();
        self.brief(move || {
            let what = what(&assistant, call)?;
            let mut forgotten = Forgotten::default();
            for what in what {
                let Forgotten { n_answers, n_summaries, n_prefix_blocks, is_notes_pending, .. } =
                    page.forget(&assistant, &what)?;
                forgotten.n_answers += n_answers;
                forgotten.n_summaries += n_summaries;
                forgotten.n_prefix_blocks += n_prefix_blocks;
                forgotten.is_notes_pending |= is_notes_pending;
            }
            Ok(of_forgotten(&forgotten, assistant.has_store()))
        })
        .await
    }
}

fn no_notes() -> ApiError {
    of_task(refrain_assistant::TaskError::NoNotes)
}

fn options(output: &Output, reporter: &Reporter) -> JobOptions {
    let mut options = JobOptions::default();
    options.answer_tokens = output.max_tokens;
    options.keep = output.keep;
    options.cancel = reporter.cancel.clone();
    options
}

/// What a call wants to be deleted. A folder's name must be that of notes in the index: a wrong name should not look like a deletion.
fn what(assistant: &Assistant, call: ForgetCall) -> ApiResult<Vec<Forget>> {
    match call {
        ForgetCall::Note(id) => Ok(vec![Forget::Note(found(assistant, &id)?)]),
        ForgetCall::Folder(name) => {
            let paths = Names::of(assistant).paths(&name)?;
            let files = assistant.note_files().map_err(of_task)?;
            let has_notes = |path: &Path| files.iter().any(|file| file.path.starts_with(path));
            let known: Vec<Forget> =
                paths.into_iter().filter(|path| has_notes(path)).map(Forget::Note).collect();
            match known.is_empty() {
                true => Err(ApiError::not_found("the notes have no note in this folder")),
                false => Ok(known),
            }
        }
        ForgetCall::Before(time) => Ok(vec![Forget::Before(time.min(SystemTime::now()))]),
    }
}

fn of_hits(hits: &[NoteHit], names: &Names) -> CallToolResult {
    let json: Vec<Value> = hits
        .iter()
        .map(|NoteHit { passage, score, coverage, snippet, .. }| {
            let matched: Vec<[usize; 2]> = snippet
                .matched
                .iter()
                .map(|range| [snippet.range.start + range.start, snippet.range.start + range.end])
                .collect();
            json!({
                "uri": uri(&passage.path),
                "name": names.name(&passage.path),
                "title": passage.title,
                "text": passage.text,
                "note_bytes": [passage.place.start, passage.place.end],
                "is_verbatim": passage.is_verbatim,
                "locator": passage.locator.map(|locator| locator.to_string()),
                "matched": matched,
                "kind": passage.kind.name(),
                "date": date(passage.date),
                "tags": passage.tags,
                "score": score,
                "coverage": coverage,
            })
        })
        .collect();
    let mut text = match hits.len() {
        0 => "No passage of the notes matches.".to_owned(),
        n => format!("{n} passages, best first.\n"),
    };
    for NoteHit { passage, .. } in hits {
        let (name, day) = (names.name(&passage.path), &date(passage.date)[..10]);
        let place = passage.locator.map_or_else(String::new, |locator| format!("{locator}, "));
        text.push_str(&format!(
            "\n## {}\n({name}, {place}{day}, {})\n{}\n",
            passage.title,
            uri(&passage.path),
            passage.text
        ));
    }
    let links = links(hits.iter().map(|hit| (&*hit.passage.path, &*hit.passage.title)), names);
    result(text, links, json!({ "passages": json }))
}

fn of_answer(answer: &Answer, names: &Names) -> CallToolResult {
    let Answer { text, passages, searched, provenance, report, .. } = answer;
    let mut json = ended(report);
    json["answer"] = text.as_str().into();
    json["searched_for"] = searched.as_ref().map(ToString::to_string).into();
    json["sources"] =
        passages.iter().enumerate().map(|(index, passage)| source_json(index, passage, names)).collect();
    json["copied"] = provenance.copied.iter().map(|span| copied_json(span, passages)).collect();
    json["sentences"] = provenance.sentences.iter().map(sentence_json).collect();
    json["left_out"] = report.left_out.iter().map(|left_out| left_out_json(left_out, names)).collect();
    let mut shown = text.trim_end().to_owned();
    shown.push_str(cut_notice(report));
    if !passages.is_empty() {
        shown.push_str("\n\nFrom the notes:");
    }
    for (index, passage) in passages.iter().enumerate() {
        let source = passage.source.as_ref();
        let name = source.map(|source| names.name(&source.path)).unwrap_or_default();
        let locator = source.and_then(|source| source.locator);
        let place = locator.map_or_else(String::new, |locator| format!(", {locator}"));
        shown.push_str(&format!("\n[{}] {} ({name}{place})", index + 1, passage.title));
    }
    result(shown, links_of(passages, names), json)
}

fn of_summary(summary: &Summary, names: &Names) -> CallToolResult {
    let Summary { text, passages, parts, report, .. } = summary;
    let mut json = ended(report);
    json["summary"] = text.as_str().into();
    let notes: BTreeSet<&Path> =
        passages.iter().filter_map(|passage| Some(&*passage.source.as_ref()?.path)).collect();
    json["notes"] = notes.iter().map(|path| json!({ "uri": uri(path), "name": names.name(path) })).collect();
    json["n_parts"] = parts.len().max(1).into();
    json["left_out"] = report.left_out.iter().map(|left_out| left_out_json(left_out, names)).collect();
    result(format!("{text}{}", cut_notice(report)), links_of(passages, names), json)
}

/// A paragraph behind a text that was cut, for models and clients that read no structured content.
fn cut_notice(report: &Report) -> &'static str {
    match is_cut(report) {
        true => "\n\n(Cut: the limit of output tokens was reached; `max_tokens` raises it.)",
        false => "",
    }
}

fn is_cut(report: &Report) -> bool {
    report.n_cut > 0
}

fn of_forgotten(forgotten: &Forgotten, has_store: bool) -> CallToolResult {
    let Forgotten { n_answers, n_summaries, n_prefix_blocks, is_notes_pending, .. } = *forgotten;
    let mut text = format!(
        "Deleted: {n_answers} answers, {n_summaries} summaries, {n_prefix_blocks} blocks of computed prompts."
    );
    if is_notes_pending {
        text.push_str(" Another part of the program has the index open and removes the notes' text next; searches leave it out already.");
    }
    if !has_store {
        text.push_str(" This server keeps no answers on disk; what another process keeps was not changed.");
    }
    let mut json = forgotten_json(forgotten);
    json["has_store"] = has_store.into();
    result(text, Vec::new(), json)
}

fn result(text: String, links: Vec<Resource>, structured: Value) -> CallToolResult {
    let mut result = CallToolResult::structured(structured);
    result.content = vec![ContentBlock::text(text)];
    result.content.extend(links.into_iter().map(ContentBlock::resource_link));
    result
}

fn links_of(passages: &[Passage], names: &Names) -> Vec<Resource> {
    let notes =
        passages.iter().filter_map(|passage| Some((&*passage.source.as_ref()?.path, &*passage.title)));
    links(notes, names)
}

/// A link to each note, in order.
fn links<'a>(notes: impl Iterator<Item = (&'a Path, &'a str)>, names: &Names) -> Vec<Resource> {
    let mut seen = BTreeSet::new();
    notes
        .filter(|(path, _)| seen.insert(*path))
        .map(|(path, title)| link(path, names).with_title(title))
        .collect()
}

/// What the results of all jobs have.
fn ended(report: &Report) -> Value {
    json!({
        "is_cut": is_cut(report),
        // The reason may name a file of this device.
        "is_kept": report.not_kept.is_none(),
        "stats": stats_json(report),
    })
}

fn source_json(index: usize, passage: &Passage, names: &Names) -> Value {
    let source = passage.source.as_ref();
    json!({
        "number": index + 1,
        "uri": source.map(|source| uri(&source.path)),
        "name": source.map(|source| names.name(&source.path)),
        "title": passage.title,
        "text": passage.text,
        "note_bytes": source.map(|source| [source.place.start, source.place.end]),
        "is_verbatim": source.is_some_and(|source| source.is_verbatim),
        "locator": source.and_then(|source| source.locator).map(|locator| locator.to_string()),
    })
}

fn bytes(range: &Range<usize>) -> [usize; 2] {
    [range.start, range.end]
}

fn copied_json(span: &CopiedSpan, passages: &[Passage]) -> Value {
    let source = passages.get(span.passage).and_then(|passage| passage.source.as_ref());
    let at = source.filter(|source| source.is_verbatim).map(|source| source.place.start);
    json!({
        "answer_bytes": bytes(&span.output),
        "source": span.passage + 1,
        "text_bytes": bytes(&span.place),
        "note_bytes": at.map(|at| [at + span.place.start as u64, at + span.place.end as u64]),
        "is_exact": span.is_exact,
    })
}

fn sentence_json(sentence: &CheckedSentence) -> Value {
    let (support, passage) = support_of(sentence);
    let citations = sentence.citations.iter().map(|citation| {
        json!({ "answer_bytes": bytes(&citation.text), "number": citation.number, "verdict": citation.verdict })
    });
    json!({
        "answer_bytes": bytes(&sentence.text),
        "support": support,
        "source": passage.map(|passage| passage + 1),
        "citations": citations.collect::<Vec<_>>(),
    })
}

fn left_out_json(left_out: &LeftOut, names: &Names) -> Value {
    let path = left_out.source.as_ref().map(|source| &*source.path);
    let reason = match left_out.reason {
        LeftOutReason::Rest => "rest",
        LeftOutReason::Parts => "parts",
        _ => "context",
    };
    json!({
        "uri": path.map(uri),
        "name": path.map(|path| names.name(path)),
        "title": left_out.title,
        "n_tokens": left_out.n_tokens,
        "reason": reason,
    })
}

/// `2024-05-01T12:30:05Z`, of seconds from 1970. Years are in 0..=9999.
fn date(seconds: i64) -> String {
    ChatDate::from_unix(seconds).format("%FT%TZ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use refrain_index::notes::parse_date;

    use super::*;

    #[test]
    fn dates_beyond_the_calendar_are_its_ends() {
        assert_eq!(
            (date(i64::MIN), date(i64::MAX)),
            ("0000-01-01T00:00:00Z".into(), "9999-12-31T23:59:59Z".into())
        );
    }

    proptest! {
        #[test]
        fn dates_are_read_back(seconds in -62_135_596_800_i64..253_402_300_800) {
            prop_assert_eq!(parse_date(&date(seconds)), Some(seconds));
        }
    }
}
