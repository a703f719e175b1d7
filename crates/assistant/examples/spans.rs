//! Precision and recall of copied spans, and the thresholds of support, on recorded answers.
//!
//! ```sh
//! cargo run --release -p refrain-assistant --example spans -- rag.jsonl
//! ```
//!
//! A row is a JSON object with `context` (the passages: a string or a list), `response` and `subtask`.
//!
//! - **Inserted copies.** Parts of 4 to 40 words of a row's passages are inserted into the response of a row of another subtask, each
//!   after a sentence of it; a third of them with other line breaks. The truth is the inserted bytes. Found bytes outside of them are false,
//!   also where the two texts have a common phrase by chance.
//! - **Chance.** The spans of a response in the passages of another row of its subtask. All of them are false.
//! - **Recorded.** The spans of each response in its own passages, beside the obvious algorithm on words between white space: the
//!   longest common run of what is left, again and again. It gives the share of the truth's bytes that are found, and the reverse.
//! - **Support.** The share of sentences that their own passages support (as far as people and models wrote them from the passages), and
//!   the share that the passages of another row of the subtask support, by threshold.

use std::error::Error;
use std::ops::Range;
use std::time::{Duration, Instant};

use refrain_assistant::provenance::{
    CopiedSpan, Shown, SpanOptions, Support, check_citations, copied_spans, sentences,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Row {
    subtask: String,
    context: Context,
    response: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Context {
    One(String),
    Many(Vec<String>),
}

impl Row {
    fn passages(&self) -> Vec<Shown<'_>> {
        let texts = match &self.context {
            Context::One(text) => std::slice::from_ref(text),
            Context::Many(texts) => texts,
        };
        texts.iter().map(|text| Shown { document: "", at: None, text }).collect()
    }
}

/// Bytes and spans of both sides.
#[derive(Default)]
struct Count {
    n_answers: usize,
    n_spans: usize,
    found: usize,
    truth: usize,
    both: usize,
    time: Duration,
}

impl Count {
    fn add(&mut self, found: &[Range<usize>], truth: &[Range<usize>]) {
        self.n_answers += 1;
        self.n_spans += found.len();
        self.found += found.iter().map(Range::len).sum::<usize>();
        self.truth += truth.iter().map(Range::len).sum::<usize>();
        for a in found {
            let common = truth.iter().map(|b| a.end.min(b.end).saturating_sub(a.start.max(b.start)));
            self.both += common.sum::<usize>();
        }
    }

    fn row(&self, name: &str) {
        let share = |n: usize, of: usize| {
            if of == 0 { "".to_owned() } else { format!("{:.4}", n as f64 / of as f64) }
        };
        println!(
            "| {name} | {} | {} | {} | {:.2} | {:.0} |",
            self.n_answers,
            share(self.both, self.found),
            share(self.both, self.truth),
            self.n_spans as f64 / self.n_answers as f64,
            self.time.as_secs_f64() * 1e6 / self.n_answers as f64
        );
    }
}

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n.max(1) as u64) as usize
    }
}

/// The words between white space.
fn words(text: &str) -> Vec<Range<usize>> {
    text.split_whitespace()
        .map(|word| {
            let start = word.as_ptr() as usize - text.as_ptr() as usize;
            start..start + word.len()
        })
        .collect()
}

fn ranges(spans: &[CopiedSpan], is_exact: bool) -> Vec<Range<usize>> {
    spans.iter().filter(|span| !is_exact || span.is_exact).map(|span| span.output.clone()).collect()
}

/// An answer with copies from passages of another row, and the copies.
fn with_copies(row: &Row, other: &Row, random: &mut Random) -> Option<(String, Vec<Range<usize>>)> {
    let passages = other.passages();
    let (mut text, mut truth) = (String::new(), Vec::new());
    for sentence in sentences(&row.response) {
        text.push_str(&row.response[sentence]);
        text.push(' ');
        let passage = passages.get(random.below(passages.len()))?.text;
        let words = words(passage);
        let n = (4 + random.below(37)).min(words.len());
        if n < 4 || random.below(2) == 0 {
            continue;
        }
        let from = random.below(words.len() - n + 1);
        let copy = &passage[words[from].start..words[from + n - 1].end];
        let copy = match random.below(3) {
            0 => {
                copy.split_whitespace().collect::<Vec<_>>().join(if n.is_multiple_of(2) { "\n" } else { " " })
            }
            _ => copy.to_owned(),
        };
        truth.push(text.len()..text.len() + copy.len());
        text.push_str(&copy);
        text.push(' ');
    }
    Some((text, truth))
}

/// The spans of the definition, on words between white space.
fn obvious(output: &str, passages: &[Shown<'_>], words_min: usize) -> Vec<Range<usize>> {
    let own = words(output);
    let others: Vec<Vec<&str>> =
        passages.iter().map(|passage| passage.text.split_whitespace().collect()).collect();
    let mut left = vec![true; own.len()];
    let mut spans = Vec::new();
    loop {
        let mut best = (0, 0);
        for start in 0..own.len() {
            for other in &others {
                for place in 0..other.len() {
                    let pairs = own[start..].iter().zip(&left[start..]).zip(&other[place..]);
                    let len = pairs
                        .take_while(|((own, left), other)| **left && output[(*own).clone()] == ***other)
                        .count();
                    if len > best.1 {
                        best = (start, len);
                    }
                }
            }
        }
        let (start, len) = best;
        if len < words_min {
            return spans;
        }
        left[start..start + len].fill(false);
        spans.push(own[start].start..own[start + len - 1].end);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut rows: Vec<Row> = Vec::new();
    for path in std::env::args().skip(1) {
        for line in std::fs::read_to_string(path)?.lines() {
            rows.push(serde_json::from_str(line)?);
        }
    }
    rows.retain(|row| !row.passages().is_empty() && !row.response.is_empty());
    let others: Vec<&Row> = (0..rows.len()).map(|i| next(&rows, i, |a, b| a == b)).collect();
    let foreign: Vec<&Row> = (0..rows.len()).map(|i| next(&rows, i, |a, b| a != b)).collect();

    println!("| answers | number | precision | recall | spans per answer | µs per answer |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for words_min in [3, 4, 5, 6, 8] {
        let mut options = SpanOptions::default();
        options.words_min = words_min;
        for is_exact in [false, true] {
            let (mut inserted, mut chance, mut random) = (Count::default(), Count::default(), Random(7));
            for ((row, other), foreign) in rows.iter().zip(&others).zip(&foreign) {
                let Some((text, truth)) = with_copies(row, foreign, &mut random) else { continue };
                let start = Instant::now();
                let spans = copied_spans(&text, &foreign.passages(), options);
                inserted.time += start.elapsed();
                inserted.add(&ranges(&spans, is_exact), &truth);
                chance.add(&ranges(&copied_spans(&row.response, &other.passages(), options), is_exact), &[]);
            }
            let kind = if is_exact { "byte for byte" } else { "white space may differ" };
            inserted.row(&format!("inserted copies, {words_min} words, {kind}"));
            println!(
                "| chance, {words_min} words, {kind} | {} | | | {:.3} | |",
                chance.n_answers,
                chance.n_spans as f64 / chance.n_answers as f64
            );
        }
    }
    let options = SpanOptions::default();
    let mut subtasks: Vec<&str> = rows.iter().map(|row| row.subtask.as_str()).collect();
    subtasks.dedup();
    for subtask in subtasks {
        let mut count = Count::default();
        for row in rows.iter().filter(|row| row.subtask == subtask) {
            let start = Instant::now();
            let spans = copied_spans(&row.response, &row.passages(), options);
            count.time += start.elapsed();
            count.add(&ranges(&spans, false), &obvious(&row.response, &row.passages(), options.words_min));
        }
        count.row(&format!("recorded, {subtask}"));
    }

    println!("\n| threshold | own passages: supported sentences | passages of another row |");
    println!("| --- | ---: | ---: |");
    let measure = |of: &dyn Fn(usize) -> usize| -> (Vec<f32>, usize, usize) {
        let (mut all, mut copied, mut missing) = (Vec::new(), 0, 0);
        for (i, row) in rows.iter().enumerate() {
            let passages = rows[of(i)].passages();
            let spans = copied_spans(&row.response, &passages, options);
            for sentence in check_citations(&row.response, &passages, &spans) {
                missing += usize::from(sentence.support.is_missing());
                match sentence.support {
                    Support::Copied { share, .. } => {
                        copied += 1;
                        all.push(share);
                    }
                    Support::Words { share, .. } | Support::None { share } => all.push(share),
                    _ => {}
                }
            }
        }
        (all, copied, missing)
    };
    let index = |row: &Row| rows.iter().position(|other| std::ptr::eq(other, row)).unwrap_or_default();
    let (own, own_copied, own_missing) = measure(&|i| i);
    let (other, other_copied, other_missing) = measure(&|i| index(others[i]));
    let share = |shares: &[f32], min: f32| {
        shares.iter().filter(|&&share| share >= min).count() as f64 / shares.len() as f64
    };
    for percent in (20..=90).step_by(10) {
        let min = percent as f32 / 100.0;
        println!("| {min:.1} | {:.3} | {:.3} |", share(&own, min), share(&other, min));
    }
    println!(
        "| as shipped | {:.3} | {:.3} |",
        1.0 - own_missing as f64 / own.len() as f64,
        1.0 - other_missing as f64 / other.len() as f64
    );
    println!(
        "| copied text alone | {:.3} | {:.3} |",
        own_copied as f64 / own.len() as f64,
        other_copied as f64 / other.len() as f64
    );
    Ok(())
}

/// The next row after row `i`, around the end, whose subtask and passages fit.
fn next(rows: &[Row], i: usize, fits: impl Fn(&str, &str) -> bool) -> &Row {
    let first = |row: &Row| row.passages()[0].text.to_owned();
    let mut after = (1..rows.len()).map(|n| &rows[(i + n * 7) % rows.len()]);
    after
        .find(|row| fits(&row.subtask, &rows[i].subtask) && first(row) != first(&rows[i]))
        .unwrap_or(&rows[(i + 1) % rows.len()])
}
