//! The copied spans of an answer.

use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::marks::citations;
use super::runs::{Run, Text};
use crate::pieces::{Piece, Splitter, composed, is_single};

/// A passage that was shown to the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shown<'a> {
    /// The document, such as a path.
    pub document: &'a str,
    /// The passage's first byte in the document, if the passage is a part of it byte for byte.
    pub at: Option<usize>,
    /// The text.
    pub text: &'a str,
}

/// Default of [`SpanOptions::words_min`].
pub(super) const WORDS_MIN: usize = 5;

/// Which runs count as copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SpanOptions {
    /// Minimum number of words in a span, separated by white space. Two ideographs or kana count as one word, and 0 as 1. Default 5 (`benches/RESULTS.md` has the measurement).
    pub words_min: usize,
}

impl Default for SpanOptions {
    fn default() -> Self {
        SpanOptions { words_min: WORDS_MIN }
    }
}

/// A part of an answer that stands in a passage. Ranges are in bytes, on character boundaries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopiedSpan {
    /// Its place in the answer.
    pub output: Range<usize>,
    /// Index of the passage.
    pub passage: usize,
    /// Its place in the passage's text.
    pub place: Range<usize>,
    /// Whether both texts are equal byte for byte. Otherwise they differ in white space, citations, signs that begin lines of lists and quotes, or
    /// the encoding of equal characters.
    pub is_exact: bool,
    /// Number of words.
    pub n_words: usize,
}

impl CopiedSpan {
    /// The place in the document; `None` if the passage's place in it is unknown.
    pub fn place_in_document(&self, passages: &[Shown<'_>]) -> Option<Range<usize>> {
        let at = passages.get(self.passage)?.at?;
        Some(at + self.place.start..at + self.place.end)
    }
}

/// Finds the spans of an answer that are copied from passages.
///
/// A span is a run of words and signs that stand in the same order in a passage. White space, the encoding of equal characters (NFC or
/// NFD) and soft hyphens may differ; citations and, at the start of a
/// line, marks of lists and quotes are skipped; [`CopiedSpan::is_exact`] says whether they do. Spans do not overlap in the answer. The longest
/// run counts first (of equal ones, the first in the answer), then the longest of what it leaves, down to
/// [`words_min`](SpanOptions::words_min). A run that occurs at several places has the first one of the first passage; what a longer
/// span has left of a run keeps the run's place.
///
/// The result is in the order of the answer. Takes linear time in the texts, and O(n log n) in the number of runs; the memory is about 300
/// bytes per word of the answer.
///
/// ```
/// use refrain_assistant::provenance::{Shown, SpanOptions, copied_spans};
///
/// let note = Shown { document: "cellar.md", at: Some(120), text: "He offered to clear the pipe on 14 October for 240 euros." };
/// let answer = "Mr Okafor can clear the pipe on 14 October for 240 euros, which is soon.";
/// let spans = copied_spans(answer, &[note], SpanOptions::default());
/// assert_eq!(spans.len(), 1);
/// assert_eq!(&answer[spans[0].output.clone()], "clear the pipe on 14 October for 240 euros");
/// assert_eq!(spans[0].place_in_document(&[note]), Some(134..176));
/// ```
pub fn copied_spans(output: &str, passages: &[Shown<'_>], options: SpanOptions) -> Vec<CopiedSpan> {
    let pieces = pieces(output);
    let mut numbers = HashMap::new();
    let words: Vec<u32> = pieces
        .iter()
        .map(|piece| {
            let n = numbers.len() as u32;
            *numbers.entry(composed(&output[piece.clone()])).or_insert(n)
        })
        .collect();
    let mut text = Text::new(&words);
    for passage in passages {
        let mut reader = text.reader();
        each_piece(passage.text, |piece| reader.read(numbers.get(&composed(&passage.text[piece])).copied()));
    }
    let weights: Vec<usize> = std::iter::once(0)
        .chain(half_words(output, &pieces).into_iter().scan(0, |sum, n| {
            *sum += n;
            Some(*sum)
        }))
        .collect();
    let half_words_min = options.words_min.max(1).saturating_mul(2);
    let is_enough = |run: &Run| weights[run.start + run.len] - weights[run.start] >= half_words_min;
    let runs = longest_first(text.runs(&words), is_enough);
    places(output, passages, &pieces, &weights, &runs)
}

/// The words and signs of a text, without citations and the marks that begin lines of lists and quotes.
fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    each_piece(text, |piece| pieces.push(piece));
    pieces
}

/// Calls `found` with each of the [`pieces`].
fn each_piece(text: &str, mut found: impl FnMut(Piece)) {
    let mut splitter = Splitter::default();
    let mut cited = citations(text, 0).into_iter().map(|(range, _)| range).peekable();
    let mut line_start = true;
    let mut end = 0;
    let mut take = |piece: Piece| {
        line_start |= text[end..piece.start].contains('\n');
        end = piece.end;
        while cited.next_if(|range| range.end <= piece.start).is_some() {}
        let is_cited = cited.peek().is_some_and(|range| range.start <= piece.start);
        let is_mark = line_start && matches!(&text[piece.clone()], "-" | "*" | "•" | ">" | "#");
        if !is_mark && !is_cited {
            found(piece);
            line_start = false;
        }
    };
    splitter.read(text, &mut take);
    splitter.finish().map(take);
}

/// The number of words of a text. Two ideographs or kana are one word.
pub(super) fn n_words(text: &str) -> usize {
    half_words(text, &pieces(text)).into_iter().sum::<usize>().div_ceil(2)
}

/// The number of words of each piece, times two. Of pieces without white space between them, as in a URL, the first word counts.
fn half_words(text: &str, pieces: &[Piece]) -> Vec<usize> {
    // End of the piece before, and whether a word stands before it without white space between.
    let (mut end, mut in_word) = (0, false);
    let count = |piece: &Piece| {
        in_word &= !text[end..piece.start].contains(char::is_whitespace);
        end = piece.end;
        let first = text[piece.clone()].chars().next().filter(|c| c.is_alphanumeric());
        match first {
            None => 0,
            Some(c) if is_single(c) => 1,
            Some(_) => 2 * usize::from(!std::mem::replace(&mut in_word, true)),
        }
    };
    pieces.iter().map(count).collect()
}

/// The runs that do not overlap, by length, in the order of the text.
fn longest_first(runs: Vec<Run>, is_enough: impl Fn(&Run) -> bool) -> Vec<Run> {
    let order = |run: &Run| (run.len, std::cmp::Reverse(run.start));
    let mut waiting: BinaryHeap<_> =
        runs.iter().enumerate().filter(|(_, run)| is_enough(run)).map(|(i, run)| (order(run), i)).collect();
    let mut runs = runs;
    let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
    while let Some((_, i)) = waiting.pop() {
        let run = &mut runs[i];
        let mut rest = run.start..run.start + run.len;
        // No taken run lies inside: it is at least as long, and no run contains another.
        if let Some((_, &end)) = taken.range(..=rest.start).next_back() {
            rest.start = rest.start.max(end);
        }
        if let Some((&start, _)) = taken.range(rest.start..).next() {
            rest.end = rest.end.min(start);
        }
        if rest == (run.start..run.start + run.len) {
            taken.insert(run.start, rest.end);
            continue;
        }
        let len = rest.end.saturating_sub(rest.start);
        *run = Run { start: rest.start, len, place: run.place + (rest.start - run.start), ..*run };
        if len > 0 && is_enough(run) {
            waiting.push((order(run), i));
        } else {
            run.len = 0;
        }
    }
    runs.retain(|run| run.len > 0 && taken.get(&run.start) == Some(&(run.start + run.len)));
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by_key(|run| run.start);
    runs
}

/// The runs in bytes.
fn places(
    output: &str,
    passages: &[Shown<'_>],
    pieces: &[Piece],
    weights: &[usize],
    runs: &[Run],
) -> Vec<CopiedSpan> {
    let bytes = |pieces: &[Piece], from: usize, len: usize| pieces[from].start..pieces[from + len - 1].end;
    let mut by_passage: BTreeMap<usize, Vec<&Run>> = BTreeMap::new();
    runs.iter().for_each(|run| by_passage.entry(run.other).or_default().push(run));
    let mut spans = Vec::with_capacity(runs.len());
    for (passage, runs) in by_passage {
        let text = passages[passage].text;
        let others = self::pieces(text);
        spans.extend(runs.into_iter().map(|run| {
            let (place, span) = (bytes(&others, run.place, run.len), bytes(pieces, run.start, run.len));
            let is_exact = text[place.clone()] == output[span.clone()];
            let n_words = (weights[run.start + run.len] - weights[run.start]).div_ceil(2);
            CopiedSpan { output: span, passage, place, is_exact, n_words }
        }));
    }
    spans.sort_unstable_by_key(|span| span.output.start);
    spans
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_normalization::UnicodeNormalization;

    use super::*;

    fn shown<'a>(texts: &[&'a str]) -> Vec<Shown<'a>> {
        texts.iter().map(|text| Shown { document: "note.md", at: None, text }).collect()
    }

    fn find<'a>(output: &'a str, texts: &[&str], words_min: usize) -> Vec<(&'a str, usize, bool)> {
        let spans = copied_spans(output, &shown(texts), SpanOptions { words_min });
        spans.into_iter().map(|span| (&output[span.output], span.passage, span.is_exact)).collect()
    }

    #[test]
    fn the_longest_run_counts_first() {
        let passages = ["one two three four five", "four five six seven eight nine"];
        assert_eq!(
            find("x one two three four five six seven eight nine y", &passages, 3),
            [("one two three", 0, true), ("four five six seven eight nine", 1, true),]
        );
        assert_eq!(
            find("one two three four five", &["zero", "one two three four five", passages[0]], 3),
            [("one two three four five", 1, true)]
        );
        assert_eq!(find("one two", &passages, 3), []);
    }

    #[test]
    fn white_space_and_list_marks_may_differ() {
        let passage =
            "The pump\nhad stopped:\n- call Maria\n- order a new switch\n> and thank the neighbours";
        assert_eq!(
            find(
                "So the pump had stopped: call Maria. Also order a new switch and thank the neighbours!",
                &[passage],
                4
            ),
            [
                ("pump had stopped: call Maria", 0, false),
                ("order a new switch and thank the neighbours", 0, false),
            ]
        );
        assert_eq!(find("- order a new switch\n", &[passage], 4), [("order a new switch", 0, true)]);
    }

    #[test]
    fn equal_characters_may_be_encoded_differently() {
        let answer = "Élise répète qu'elle a déjà payé.";
        let decomposed: String = answer.nfd().collect();
        assert_eq!(find(answer, &[&decomposed], 4), [(answer, 0, false)]);
        assert_eq!(find(answer, &[&answer.replace("pè", "p\u{ad}è")], 4), [(answer, 0, false)]);
    }

    #[test]
    fn scripts_without_spaces_have_words_too() {
        let passage = "地下室の水は四センチでした。ポンプが止まっていた。";
        assert_eq!(
            find("答え：ポンプが止まっていた。", &[passage], 4),
            [("ポンプが止まっていた。", 0, true)]
        );
        assert_eq!(find("水はない", &[passage], 4), []);
    }

    #[test]
    fn a_citation_does_not_break_a_span() {
        let passage = "The pump had stopped during the night [3] because the switch was stuck.";
        let answer = "The pump had stopped [1] during the night because the switch was stuck [1].";
        assert_eq!(find(answer, &[passage], 12), [(answer, 0, false)]);
    }

    #[test]
    fn a_url_is_one_word() {
        let text = "at 2024-10-14T08:30:15 see https://example.org/a/b/c?d=e don't";
        assert_eq!(n_words(text), 5);
        assert_eq!(find(text, &[text], 6), []);
        assert_eq!(find("see https://example.org/a/b/c?d=e", &[text], 5), []);
    }

    #[test]
    fn empty_texts_have_no_spans() {
        assert_eq!(find("", &["a b c"], 1), []);
        assert_eq!(find("a b c", &[], 1), []);
        assert_eq!(find("a b c", &["", "—"], 0), []);
    }

    /// The spans of the definition: the longest common run of what is left, again and again.
    fn obvious(
        output: &[&str],
        weights: &[usize],
        passages: &[Vec<&str>],
        words_min: usize,
    ) -> Vec<(usize, usize)> {
        let mut left = vec![true; output.len()];
        let mut spans = Vec::new();
        loop {
            let mut best: Option<(usize, usize)> = None;
            for start in 0..output.len() {
                for passage in passages {
                    for place in 0..passage.len() {
                        let pairs = output[start..].iter().zip(&left[start..]).zip(&passage[place..]);
                        let len = pairs.take_while(|((a, left), b)| **left && a == b).count();
                        let n_words: usize = weights[start..start + len].iter().sum();
                        if n_words >= 2 * words_min && best.is_none_or(|(_, longest)| len > longest) {
                            best = Some((start, len));
                        }
                    }
                }
            }
            let Some((start, len)) = best else { break };
            left[start..start + len].fill(false);
            spans.push((start, len));
        }
        spans.sort_unstable();
        spans
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn equals_the_definition(
            output in "([abc]|ab|[.]| |\n- |é|漢){0,40}",
            passages in prop::collection::vec("([abc]|ab|[.]| |\n- |é|漢){0,30}", 0..4),
            words_min in 1..4usize,
        ) {
            let texts: Vec<&str> = passages.iter().map(String::as_str).collect();
            let spans = copied_spans(&output, &shown(&texts), SpanOptions { words_min });
            let of = |text| pieces(text);
            let own = of(&output);
            let strings: Vec<&str> = own.iter().map(|piece| &output[piece.clone()]).collect();
            let others: Vec<Vec<&str>> = texts.iter().map(|text| of(text).into_iter().map(|piece| &text[piece]).collect()).collect();
            let expected: Vec<Range<usize>> = obvious(&strings, &half_words(&output, &own), &others, words_min)
                .into_iter().map(|(start, len)| own[start].start..own[start + len - 1].end).collect();
            let ranges: Vec<Range<usize>> = spans.iter().map(|span| span.output.clone()).collect();
            prop_assert_eq!(ranges, expected);
            for span in &spans {
                let (a, b) = (&output[span.output.clone()], &texts[span.passage][span.place.clone()]);
                prop_assert_eq!(a == b, span.is_exact);
                let strings = |text: String| pieces(&text).into_iter().map(|piece| text[piece].to_owned()).collect::<Vec<_>>();
                // Marks at the start of a line are marks only there, so the span alone is compared with a word before it.
                prop_assert_eq!(strings(format!("x {a}")), strings(format!("x {b}")));
            }
        }
    }
}
