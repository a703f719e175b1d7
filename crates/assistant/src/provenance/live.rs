//! The sentences of an answer while it is written, for an app that reads them aloud.
//!
//! A sentence is announced once nothing that follows can change its end: a later word may show that a full stop belongs to an
//! abbreviation, and a citation behind a full stop belongs to the sentence before it. So an announced sentence is one of
//! [`check_citations`](super::check_citations) for the whole answer.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::citations::{bounds, without_citations};
use super::marks::{citations_behind, settled_len};
use super::sentences::{is_line_end, is_settled};

/// A line is looked at again when it has grown by this part of its length, so that a line without end costs linear time. A line of 2,000
/// bytes waits for eight.
const GROWTH: usize = 256;

/// The same for what a line has beyond [`LINE_BYTES`]: a paragraph has fewer.
const GROWTH_BEYOND: usize = 16;
const LINE_BYTES: usize = 16 << 10;

/// A complete sentence of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SentenceReady {
    /// Its number among the sentences of the answer, from 0: the index in
    /// [`Provenance::sentences`](crate::Provenance::sentences).
    pub index: usize,
    /// Its place in the answer, in bytes, with its citations.
    pub place: Range<usize>,
    /// Its words, without citations: what is read aloud.
    pub text: String,
}

/// Finds the sentences of a text that comes in pieces. Each is given once, in order, as soon as it is complete; those without a word are left out.
///
/// Sentences are those of [`sentences`](super::sentences()), with the citations behind them, as
/// [`check_citations`](super::check_citations) has them. Takes linear time, and the memory of a line.
///
/// ```
/// use refrain_assistant::provenance::LiveSentences;
///
/// let mut live = LiveSentences::default();
/// assert!(live.push("Dr. Okafor comes on Friday.").is_empty(), "it may go on");
/// let ready = live.push(" He brings the pump [2]. The");
/// assert_eq!(ready[0].text, "Dr. Okafor comes on Friday.");
/// let rest: Vec<String> = live.finish().into_iter().map(|sentence| sentence.text).collect();
/// assert_eq!(rest, ["He brings the pump.", "The"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct LiveSentences {
    /// The lines that are not complete, from the start of one on.
    text: String,
    /// Bytes of the answer before them.
    offset: usize,
    /// Sentences before them.
    n_before: usize,
    /// Sentences of them that were given.
    n_given: usize,
    /// Backticks that opened code before them.
    code: usize,
    /// Their length when they were looked at last.
    seen: usize,
}

impl LiveSentences {
    /// Takes the next piece of the answer and gives the sentences that are complete now.
    pub fn push(&mut self, piece: &str) -> Vec<SentenceReady> {
        self.text.push_str(piece);
        let (n_bytes, grown) = (self.text.len(), self.text.len() - self.seen);
        let is_due = grown.saturating_mul(GROWTH) >= n_bytes
            && grown.saturating_mul(GROWTH_BEYOND) >= n_bytes.saturating_sub(LINE_BYTES);
        if is_due || piece.contains('\n') { self.look(false) } else { Vec::new() }
    }

    /// The answer has ended: gives the other sentences.
    pub fn finish(mut self) -> Vec<SentenceReady> {
        self.look(true)
    }

    fn look(&mut self, is_end: bool) -> Vec<SentenceReady> {
        self.seen = self.text.len();
        let text = &self.text[..if is_end { self.text.len() } else { settled_len(&self.text) }];
        let cited: Vec<Range<usize>> =
            citations_behind(text, 0, &mut self.code.clone()).into_iter().map(|(range, _)| range).collect();
        let plain = without_citations(text, cited.iter());
        let all = bounds(&plain, cited.iter().cloned());
        // Of the last line, a sentence is complete if another one has begun behind it.
        let line_start = plain
            .rfind(is_line_end)
            .map_or(0, |at| at + plain[at..].chars().next().map_or(0, char::len_utf8));
        let is_complete = |at: usize| {
            let (place, sentence) = &all[at];
            is_end
                || place.start < line_start
                || at + 1 < all.len() && is_settled(&plain[sentence.end.max(sentence.start)..])
        };
        let n_complete = (self.n_given..all.len()).take_while(|&at| is_complete(at)).count();
        let complete = self.n_given..self.n_given + n_complete;
        let ready = complete.clone().map(|at| {
            let (place, sentence) = &all[at];
            SentenceReady {
                index: self.n_before + at,
                place: self.offset + place.start..self.offset + place.end,
                text: words(text, sentence, &cited),
            }
        });
        let ready = ready.filter(|ready| ready.text.contains(char::is_alphanumeric)).collect();
        self.n_given = complete.end;
        // Brackets and code of a line end with `\n`.
        if let Some(done) = text.rfind('\n').map(|at| at + 1) {
            citations_behind(&text[..done], 0, &mut self.code);
            let n_done = all.iter().take_while(|(place, _)| place.start < done).count();
            self.n_before += n_done;
            self.n_given -= n_done;
            self.offset += done;
            self.text.drain(..done);
            self.seen -= done;
        }
        ready
    }
}

/// The words of a sentence: its text without citations, and without the white space before those that nothing but signs follow.
fn words(text: &str, sentence: &Range<usize>, cited: &[Range<usize>]) -> String {
    let (mut words, mut at) = (String::new(), sentence.start);
    let inside = |range: &&Range<usize>| range.start >= sentence.start && range.end <= sentence.end;
    for range in cited.iter().filter(inside) {
        words.push_str(&text[at..range.start]);
        at = range.end;
        if text[at..sentence.end].chars().next().is_none_or(|c| !c.is_alphanumeric()) {
            words.truncate(words.trim_end().len());
        }
    }
    words.push_str(&text[at..sentence.end.max(at)]);
    words.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::check_citations;
    use super::*;

    /// The sentences of a text that comes in these pieces.
    fn read<'a>(pieces: impl IntoIterator<Item = &'a str>) -> Vec<SentenceReady> {
        let mut live = LiveSentences::default();
        let mut all: Vec<SentenceReady> = pieces.into_iter().flat_map(|piece| live.push(piece)).collect();
        all.extend(live.finish());
        all
    }

    fn chars(text: &str) -> Vec<&str> {
        text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect()
    }

    #[test]
    fn a_sentence_is_given_when_nothing_can_change_it() {
        let text = "It is at Main St. He said: yes [1]. [2] They left.[1] It `runs[1]` now. End";
        let mut live = LiveSentences::default();
        let mut said = Vec::new();
        for (at, piece) in text.char_indices() {
            let ready = live.push(piece.encode_utf8(&mut [0; 4]));
            said.extend(ready.into_iter().map(|sentence| (at, sentence.text)));
        }
        let said: Vec<(&str, &str)> =
            said.iter().map(|(at, words)| (&text[at - 2..=*at], &**words)).collect();
        assert_eq!(said, [("He ", "It is at Main St."), ("ey ", "He said: yes."), ("It ", "They left."),]);
        let rest: Vec<String> = live.finish().into_iter().map(|sentence| sentence.text).collect();
        assert_eq!(rest, ["It `runs[1]` now.", "End"]);
    }

    #[test]
    fn words_are_without_citations() {
        let words =
            |text: &str| -> Vec<String> { read([text]).into_iter().map(|ready| ready.text).collect() };
        assert_eq!(
            words("It stopped [1][2]. It runs [1] again.\n[2]\nYes [1]"),
            ["It stopped.", "It runs again.", "Yes"]
        );
        assert_eq!(words("水が止まった【1】。次。"), ["水が止まった。", "次。"]);
        assert_eq!(words("*\n- x.\n"), ["- x."]);
        assert!(words("").is_empty() && words("[1]\n...\n").is_empty());
    }

    /// Prints the times of texts of 1 MB that come byte by byte.
    #[test]
    #[ignore = "a measurement"]
    fn times_of_long_texts() {
        for part in ["a. ", "A. ", "a.b", "[1] ", "[", "`", "a [1", "It came [1]. "] {
            let text = part.repeat((1 << 20) / part.len());
            let start = std::time::Instant::now();
            println!("{part:?}: {} sentences {:?}", read(chars(&text)).len(), start.elapsed());
        }
    }

    proptest! {
        #[test]
        fn sentences_are_those_of_the_whole_answer(
            answer in "\\PC{0,20}|([A-c .!?\n\r。「」»“*]|Dr\\. |Main St\\. |The|Theo|No\\. |5|\\[[0-3]\\]|\\[|\\(|`|``|\\[2|\\]|【2】|é){0,30}",
            cuts in prop::collection::vec(0_usize..100, 0..8),
        ) {
            let expected: Vec<(usize, Range<usize>)> =
                check_citations(&answer, &[], &[]).into_iter().map(|sentence| sentence.text).enumerate().collect();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&at| answer.is_char_boundary(at)).collect();
            cuts.extend([0, answer.len()]);
            cuts.sort_unstable();
            cuts.retain(|&at| at <= answer.len());
            let pieces: Vec<&str> = cuts.windows(2).map(|cut| &answer[cut[0]..cut[1]]).collect();
            for pieces in [pieces, chars(&answer)] {
                let found: Vec<(usize, Range<usize>)> =
                    read(pieces).into_iter().map(|ready| (ready.index, ready.place)).collect();
                let is_found = |sentence: &&(usize, Range<usize>)| found.contains(sentence);
                prop_assert_eq!(&expected.iter().filter(is_found).cloned().collect::<Vec<_>>(), &found);
                // What is left out has no word.
                for (index, place) in expected.iter().filter(|sentence| !found.contains(sentence)) {
                    let text = &answer[place.clone()];
                    let n_words = text.chars().filter(|c| c.is_alphabetic()).count();
                    prop_assert!(n_words == 0, "{} {:?}", index, text);
                }
            }
        }
    }
}
