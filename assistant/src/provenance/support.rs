//! Whether a passage supports a sentence: a simple measure of common words.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::pieces::Splitter;

/// Minimum share of a sentence's content words that a supporting passage has (`lab/RESULTS.md` has the measurement).
pub const SUPPORT_SHARE_MIN: f32 = 0.4;

/// Minimum number of content words of a sentence that is checked.
pub(super) const WORDS_MIN: usize = 2;

/// Words are compared by their first characters, which most inflections leave alone.
const STEM_CHARS: usize = 6;

/// Minimum length of a content word of an alphabet, in characters. Shorter words are mostly function words, in most languages.
const CONTENT_CHARS: usize = 4;

/// What supports a sentence.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Support {
    /// A part of it is copied from the passage.
    Copied {
        /// Index of the passage; of several, the one with most copied bytes.
        passage: usize,
    },
    /// The passage has many of its content words.
    Words {
        /// Index of the passage; of several, the one with most of the words.
        passage: usize,
        /// Their share of the sentence's content words, 0 to 1.
        share: f32,
    },
    /// No passage shown supports it.
    None {
        /// The largest share of its content words in a passage.
        share: f32,
    },
    /// It has fewer than two content words, such as `Yes.`; nothing is claimed.
    TooShort,
}

impl Support {
    /// Whether the sentence claims something that no passage shown supports.
    pub fn is_missing(&self) -> bool {
        matches!(self, Support::None { .. })
    }
}

/// The content words of a text as they are compared: in lower case, shortened. Numbers count in full; ideographs and kana in
/// pairs of neighbours.
pub(super) fn content_words(text: &str) -> BTreeSet<String> {
    let (mut splitter, mut pieces) = (Splitter::default(), Vec::new());
    splitter.read(text, |piece| pieces.push(piece));
    pieces.extend(splitter.finish());
    let mut words = BTreeSet::new();
    let mut neighbour: Option<(usize, char)> = None;
    for piece in pieces {
        let word = &text[piece.clone()];
        let mut chars = word.chars();
        let Some(first) = chars.next().filter(|c| c.is_alphanumeric()) else { continue };
        if first >= '\u{2e80}' && chars.next().is_none() {
            if let Some((_, before)) = neighbour.filter(|&(end, _)| end == piece.start) {
                words.insert([before, first].iter().collect());
            }
            neighbour = Some((piece.end, first));
        } else if word.chars().any(char::is_numeric) {
            words.insert(word.to_lowercase());
        } else if word.chars().count() >= content_chars(first) {
            words.insert(word.chars().flat_map(char::to_lowercase).take(STEM_CHARS).collect());
        }
    }
    words
}

/// Hangul writes a syllable with one character.
fn content_chars(c: char) -> usize {
    if matches!(c, '\u{ac00}'..='\u{d7a3}') { 2 } else { CONTENT_CHARS }
}

/// The passages that have each content word of an answer.
pub(super) struct Passages {
    /// The passages with each word, in order.
    by_word: HashMap<String, Vec<usize>>,
    n_passages: usize,
}

impl Passages {
    /// Reads the passages. Only words of the answer are kept.
    pub(super) fn new<'a>(answer: &str, passages: impl Iterator<Item = &'a str>) -> Self {
        let mut by_word: HashMap<String, Vec<usize>> =
            content_words(answer).into_iter().map(|word| (word, Vec::new())).collect();
        let mut n_passages = 0;
        for passage in passages {
            for word in content_words(passage) {
                if let Some(passages) = by_word.get_mut(&word) {
                    passages.push(n_passages);
                }
            }
            n_passages += 1;
        }
        Passages { by_word, n_passages }
    }

    /// The share of a sentence's content words that each passage has; `None` if the sentence has too few of them.
    pub(super) fn shares(&self, sentence: &str) -> Option<Vec<f32>> {
        let words = content_words(sentence);
        let mut counts = vec![0_usize; self.n_passages];
        for word in &words {
            self.by_word.get(word).into_iter().flatten().for_each(|&passage| counts[passage] += 1);
        }
        (words.len() >= WORDS_MIN).then(|| counts.iter().map(|&n| n as f32 / words.len() as f32).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_words_of_scripts() {
        let words = |text| content_words(text).into_iter().collect::<Vec<_>>();
        assert_eq!(words("The pumps, the 2nd PUMPING of 2024"), ["2024", "2nd", "pumpin", "pumps"]);
        assert_eq!(words("地下室の水"), ["の水", "下室", "地下", "室の"]);
        assert_eq!(words("펌프가 그 멈췄다"), ["멈췄다", "펌프가"]);
        assert_eq!(words("a — of"), [""; 0]);
    }
}
