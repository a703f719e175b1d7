//! What the commands of the assistant tell of a result: JSON, and notices.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use refrain::{FinishReason, Stats};
use refrain_assistant::provenance::{CheckedSentence, CitationVerdict, Support};
use refrain_assistant::{LeftOut, LeftOutReason, Passage, Provenance, Report, Searched, Source};
use serde_json::{Value, json};

use crate::index;
use crate::terminal::{note, visible};

/// The part of the JSON form that all tasks have.
pub(crate) fn about(text: &str, reasoning: &str, report: &Report) -> Value {
    json!({
        "text": text,
        "reasoning": reasoning,
        "finish": report.finish,
        "seed": report.seed,
        "left_out": report.left_out.iter().map(left_out_json).collect::<Vec<_>>(),
        "not_kept": report.not_kept,
        "stats": report.stats,
    })
}

/// As [`about`], of a text from passages.
pub(crate) fn about_passages(
    text: &str,
    reasoning: &str,
    report: &Report,
    passages: &[Passage],
    provenance: &Provenance,
) -> Value {
    let mut json = about(text, reasoning, report);
    json["passages"] = passages.iter().map(passage_json).collect();
    json["copied"] = json!(provenance.copied);
    json["sentences"] = json!(provenance.sentences);
    json
}

pub(crate) fn passage_json(passage: &Passage) -> Value {
    let source = passage.source.as_ref();
    json!({
        "title": passage.title,
        "text": passage.text,
        "path": source.map(|source| source.path.display().to_string()),
        "place": source.map(|source| &source.place),
        "is_verbatim": source.map(|source| source.is_verbatim),
        "locator": source.and_then(|source| source.locator).map(|locator| locator.to_string()),
        "score": source.and_then(|source| source.score),
    })
}

pub(crate) fn searched_json(searched: &Searched) -> Value {
    let words: Vec<Value> =
        searched.words.iter().map(|word| json!({ "text": word.text, "weight": word.weight })).collect();
    json!({ "words": words, "coverage": searched.coverage, "is_not_in_notes": searched.is_not_in_notes() })
}

pub(crate) fn left_out_json(left_out: &LeftOut) -> Value {
    let source = left_out.source.as_ref();
    json!({
        "title": left_out.title,
        "path": source.map(|source| source.path.display().to_string()),
        "place": source.map(|source| &source.place),
        "n_tokens": left_out.n_tokens,
        "reason": reason(left_out.reason),
    })
}

fn reason(reason: LeftOutReason) -> &'static str {
    match reason {
        LeftOutReason::Context => "context",
        LeftOutReason::Rest => "rest",
        LeftOutReason::Parts => "parts",
        _ => "other",
    }
}

/// A notice of the words that were searched for.
pub(crate) fn note_searched(searched: &Searched) {
    note(&visible(&format!("searched for: {searched}")));
}

/// A notice for each of the nearest passages.
pub(crate) fn note_nearest(searched: &Searched) {
    for passage in &searched.nearest {
        note(&visible(&format!("nearest: {}", place_of(passage))));
    }
}

/// Notices of what is left out: one for each reason.
pub(crate) fn note_left_out(left_out: &[LeftOut]) {
    let mut reasons: Vec<LeftOutReason> = Vec::new();
    for first in left_out {
        if reasons.contains(&first.reason) {
            continue;
        }
        reasons.push(first.reason);
        let others = left_out.iter().filter(|other| other.reason == first.reason).skip(1);
        let (n_others, n_tokens) = others.fold((0, 0), |(n, sum), other| (n + 1, sum + other.n_tokens));
        let others =
            if n_others > 0 { format!("; and {n_others} more, {n_tokens} tokens") } else { String::new() };
        note(&visible(&format!("{}{others}", left_out_text(first))));
    }
}

fn left_out_text(left_out: &LeftOut) -> String {
    let place = place(&left_out.title, left_out.source.as_ref());
    let (start, why) = match left_out.reason {
        LeftOutReason::Rest => ("the rest of ", "it does not fit the context"),
        LeftOutReason::Parts => ("", "the text has too many parts"),
        _ => ("", "it does not fit the context"),
    };
    format!("left out: {start}{place}, {} tokens: {why}", left_out.n_tokens)
}

/// The note and the title of a passage.
pub(crate) fn place_of(passage: &Passage) -> String {
    place(&passage.title, passage.source.as_ref())
}

fn place(title: &str, source: Option<&Source>) -> String {
    match source.map(|source| index::place(&source.path, source.locator)) {
        Some(place) => format!("{place} {title}").trim_end().to_owned(),
        None if title.is_empty() => "the text".to_owned(),
        None => title.to_owned(),
    }
}

/// A notice that a text, or what it was made from, ended at a limit.
pub(crate) fn note_cut(report: &Report) {
    let limit = match report.finish {
        FinishReason::ContextFull => "the end of the context (--ctx)",
        _ => "the limit of output tokens (--max-tokens)",
    };
    match (report.n_cut, report.stats.len()) {
        (0, _) => {}
        (_, 1) => note(&format!("cut: the text ends at {limit}")),
        (n_cut, n) => {
            note(&format!("cut: {n_cut} of {n} texts, those of the parts included, end at {limit}"))
        }
    }
}

/// Notices: the passages that were shown, and the sentences and citations without support, one for each cause.
pub(crate) fn note_provenance(text: &str, passages: &[Passage], provenance: &Provenance) {
    let sentences = &provenance.sentences;
    for (index, passage) in passages.iter().enumerate() {
        let spans = provenance.copied.iter().filter(|span| span.passage == index);
        let n_copied: usize = spans.map(|span| span.n_words).sum();
        let supports = |support: &Support| match support {
            Support::Copied { passage, .. } | Support::Words { passage, .. } => *passage == index,
            _ => false,
        };
        let is_cited =
            sentences.iter().flat_map(|sentence| &sentence.citations).any(|cited| cited.number == index + 1);
        let use_of_it = match n_copied {
            0 if is_cited || sentences.iter().any(|sentence| supports(&sentence.support)) => String::new(),
            0 => ": shown, and no sentence is from it".to_owned(),
            n => format!(": {n} words copied"),
        };
        note(&visible(&format!("[{}] {}{use_of_it}", index + 1, place_of(passage))));
    }
    let n = sentences.len();
    let quoted = |sentence: &CheckedSentence| &text[sentence.text.clone()];
    let unsupported: Vec<&str> =
        sentences.iter().filter(|sentence| sentence.support.is_missing()).map(quoted).collect();
    if let [first, others @ ..] = &unsupported[..] {
        let how_many = if others.is_empty() {
            String::new()
        } else {
            format!(" {} of {n} sentences, first", others.len() + 1)
        };
        note(&visible(&format!("no passage supports{how_many}: {first}")));
    }
    let cited = |verdict: CitationVerdict| {
        let all = sentences
            .iter()
            .flat_map(|sentence| sentence.citations.iter().map(move |cited| (cited, sentence)));
        all.filter(move |(cited, _)| cited.verdict == verdict)
    };
    let names: BTreeSet<usize> = cited(CitationVerdict::NotShown).map(|(cited, _)| cited.number).collect();
    if !names.is_empty() {
        let numbers: Vec<String> = names.iter().map(|number| format!("[{number}]")).collect();
        note(&format!(
            "{} {} no passage",
            numbers.join(", "),
            if names.len() == 1 { "names" } else { "name" }
        ));
    }
    let mut wrong = cited(CitationVerdict::DoesNotSupport);
    if let Some((first, sentence)) = wrong.next() {
        let others = match wrong.count() {
            0 => String::new(),
            n => format!(" (and {n} more citations do not support theirs)"),
        };
        note(&visible(&format!("[{}] does not support{others}: {}", first.number, quoted(sentence))));
    }
}

/// Tokens, steps and times of all generations, on one line.
pub(crate) fn summary(stats: &[Stats]) -> String {
    let sum = |of: &dyn Fn(&Stats) -> f64| stats.iter().map(of).sum::<f64>();
    let (tokens, steps) = (sum(&|stats| stats.tokens as f64), sum(&|stats| stats.steps as f64));
    let prompt = sum(&|stats| stats.prompt_tokens as f64);
    let restored = sum(&|stats| stats.cached_tokens as f64);
    let mut text = format!("{tokens} tokens in {steps} steps, after {prompt} of prompt");
    if restored > 0.0 {
        let _ = write!(text, " ({restored} not computed again)");
    }
    let ms = |us: f64| us / 1e3;
    let (prefill, decode) = (sum(&|stats| stats.time_us.prefill), sum(&|stats| stats.time_us.decode()));
    let _ = write!(text, "; prefill {:.0} ms, answer {:.0} ms", ms(prefill), ms(decode));
    text
}
