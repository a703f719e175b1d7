//! Whether a passage supports a sentence: a simple measure of common words.
//!
//! A passage is cut into blocks of 25 words. Words of a sentence must stand close together, in two neighbouring blocks: a long passage
//! has most common words somewhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::sentences::is_list_number;
use crate::pieces::{Piece, Splitter, composed, is_single};

/// Minimum share of a sentence's content words that a supporting passage has (`benches/RESULTS.md` has the measurement).
pub const SUPPORT_SHARE_MIN: f32 = 0.5;

/// The same for a sentence with fewer than two content words, of which all words count: function words are in every passage.
pub(super) const SHORT_SHARE_MIN: f32 = 0.8;

/// Minimum number of words of a sentence that is checked.
const WORDS_MIN: usize = 2;

/// Words are compared by their first characters, which most inflections leave alone.
const STEM_CHARS: usize = 4;

/// Minimum length of a content word of an alphabet, in characters. Shorter words are mostly function words, in most languages.
const CONTENT_CHARS: usize = 4;

/// Words of a block.
const BLOCK_WORDS: usize = 25;

/// Maximum blocks that are kept for one word, the first ones. It bounds the time for an answer and passages of one word each.
const BLOCKS_MAX: usize = 256;

/// What supports a sentence.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Support {
    /// Five of its words or more are copied in one piece from the passage, which has enough of its content words.
    Copied {
        /// Index of the passage; of several, the one with most copied bytes.
        passage: usize,
        /// The share of the sentence's content words that the passage has, 0 to 1.
        share: f32,
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
        /// The largest share of its content words in a passage that has its numbers.
        share: f32,
    },
    /// It has fewer than two words, such as `Yes.`; nothing is claimed.
    TooShort,
}

impl Support {
    /// The index of the passage that supports the sentence.
    pub fn passage(&self) -> Option<usize> {
        match self {
            Support::Copied { passage, .. } | Support::Words { passage, .. } => Some(*passage),
            Support::None { .. } | Support::TooShort => None,
        }
    }

    /// Whether the sentence claims something that no passage shown supports.
    pub fn is_missing(&self) -> bool {
        matches!(self, Support::None { .. })
    }
}

/// A kind of word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Has a digit, and is compared in full.
    Number,
    Content,
    /// A short word.
    Other,
}

/// Calls `found` with each word of a text as it is compared: in lower case, shortened; ideographs and kana in pairs of
/// neighbours. The numbers of list entries are left out.
fn words(text: &str, mut found: impl FnMut(&str, Kind)) {
    let mut word = String::new();
    // The piece before: its end, and a single character.
    let mut before: (usize, Option<char>) = (0, None);
    // The number that is read, its end, and whether it begins a line.
    let mut number: Option<(String, usize, bool)> = None;
    let mut read_to = 0;
    let mut take = |piece: Option<Piece>| {
        let piece = piece.unwrap_or(text.len()..text.len());
        let own = &*composed(&text[piece.clone()]);
        let is_first = read_to == 0 || text[read_to..piece.start].contains(['\n', '\r']);
        read_to = piece.end;
        let first = own.chars().next();
        let digits = own.len() - own.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if let Some((value, end, begins_line)) = &mut number {
            // `1,200.50` is one number.
            let is_mark = *end == piece.start
                && matches!(own, "." | ",")
                && value.ends_with(|c: char| c.is_ascii_digit());
            if is_mark || *end == piece.start && digits > 0 && value.ends_with(['.', ',']) {
                value.push_str(&own[..if is_mark { 1 } else { digits }]);
                *end = piece.end;
                return;
            }
            let is_list = *begins_line
                && (value.ends_with('.') || own == ")")
                && is_list_number(value.trim_end_matches('.'));
            if !is_list {
                found(&plain_number(value), Kind::Number);
            }
            number = None;
        }
        let Some(first) = first.filter(|c| c.is_alphanumeric()) else { return };
        word.clear();
        if is_single(first) {
            if let (end, Some(c)) = before
                && end == piece.start
            {
                word.extend([c, first]);
                found(&word, Kind::Content);
            }
            before = (piece.end, Some(first));
        } else if digits > 0 {
            number = Some((own[..digits].to_owned(), piece.end, is_first));
        } else {
            // A sigma at the end of a word is the same letter.
            word.extend(own.chars().flat_map(char::to_lowercase).map(|c| if c == 'ς' { 'σ' } else { c }));
            let n_chars = own.chars().count();
            let kind = match own.chars().any(char::is_numeric) {
                true => Kind::Number,
                false if n_chars >= content_chars(first) => Kind::Content,
                false => Kind::Other,
            };
            if kind == Kind::Content
                && let Some((end, _)) = word.char_indices().nth(STEM_CHARS)
            {
                word.truncate(end);
            }
            found(&word, kind);
        }
    };
    let mut splitter = Splitter::default();
    splitter.read(text, |piece| take(Some(piece)));
    if let Some(piece) = splitter.finish() {
        take(Some(piece));
    }
    take(None);
}

/// A number without marks between thousands and without zeros behind its decimal mark.
fn plain_number(number: &str) -> String {
    let number = number.trim_end_matches(['.', ',']);
    let Some((whole, last)) = number.rsplit_once(['.', ',']) else { return number.to_owned() };
    let mut plain: String = whole.chars().filter(char::is_ascii_digit).collect();
    match last.trim_end_matches('0') {
        _ if last.len() == 3 => plain.push_str(last),
        "" => {}
        decimals => {
            plain.push('.');
            plain.push_str(decimals);
        }
    }
    plain
}

/// Hangul writes a syllable with one character.
fn content_chars(c: char) -> usize {
    if matches!(c, '\u{ac00}'..='\u{d7a3}') { 2 } else { CONTENT_CHARS }
}

/// The words of an answer and their places in the passages.
pub(super) struct Passages {
    /// The blocks with each word, in order.
    by_word: HashMap<String, Vec<u32>>,
    /// The passage of each block; a number that is no passage separates passages.
    passages: Vec<u32>,
}

/// The words of a sentence in the passages.
pub(super) struct Shares {
    /// The largest share of each passage that has all numbers of the sentence and one of its words.
    by_passage: BTreeMap<usize, f32>,
    min: f32,
}

impl Shares {
    pub(super) fn of(&self, passage: usize) -> f32 {
        self.by_passage.get(&passage).copied().unwrap_or(0.0)
    }

    /// Whether a passage supports the sentence.
    pub(super) fn supports(&self, passage: usize) -> bool {
        self.of(passage) >= self.min
    }

    /// The passage with the largest share, the first of equal ones.
    pub(super) fn best(&self) -> Option<(usize, f32)> {
        let all = self.by_passage.iter().map(|(&passage, &share)| (passage, share));
        all.rev().max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

impl Passages {
    /// Reads the passages. Only words of the answer are kept.
    pub(super) fn new<'a>(answer: &str, texts: impl Iterator<Item = &'a str>) -> Self {
        let mut by_word: HashMap<String, Vec<u32>> = HashMap::new();
        words(answer, |word, _| {
            if !by_word.contains_key(word) {
                by_word.insert(word.to_owned(), Vec::new());
            }
        });
        let mut passages = Vec::new();
        for (passage, text) in (0..).zip(texts) {
            passages.push(passage);
            let mut n_words = 0;
            words(text, |word, _| {
                if n_words == BLOCK_WORDS {
                    passages.push(passage);
                    n_words = 0;
                }
                n_words += 1;
                let block = passages.len() as u32 - 1;
                if let Some(blocks) = by_word.get_mut(word)
                    && blocks.last() != Some(&block)
                    && blocks.len() < BLOCKS_MAX
                {
                    blocks.push(block);
                }
            });
        }
        Passages { by_word, passages }
    }

    /// The share of a sentence's content words that each passage has; `None` if the sentence has too few words.
    pub(super) fn shares(&self, sentence: &str) -> Option<Shares> {
        let mut own: BTreeMap<String, Kind> = BTreeMap::new();
        words(sentence, |word, kind| _ = own.insert(word.to_owned(), kind));
        let n_content = own.values().filter(|&&kind| kind != Kind::Other).count();
        let is_short = n_content < WORDS_MIN;
        if own.len() < WORDS_MIN && own.values().all(|&kind| kind != Kind::Number) {
            return None;
        }
        own.retain(|_, kind| is_short || *kind != Kind::Other);
        let n_words = own.len() as f32;
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        let mut with_numbers: Option<BTreeSet<u32>> = None;
        for (word, kind) in own {
            let blocks = self.by_word.get(&word).map_or(&[][..], Vec::as_slice);
            // A window is a block and the next one of the same passage. It is named by its first block.
            let mut done = None;
            for &block in blocks {
                let is_first =
                    block == 0 || self.passages[block as usize - 1] != self.passages[block as usize];
                for window in block - u32::from(!is_first)..=block {
                    if done.is_none_or(|done| window > done) {
                        *counts.entry(window).or_default() += 1;
                        done = Some(window);
                    }
                }
            }
            if kind == Kind::Number {
                let passages = blocks.iter().map(|&block| self.passages[block as usize]);
                with_numbers = Some(match with_numbers {
                    None => passages.collect(),
                    Some(others) => passages.filter(|passage| others.contains(passage)).collect(),
                });
            }
        }
        let mut by_passage: BTreeMap<usize, f32> = BTreeMap::new();
        for (window, n) in counts {
            let passage = self.passages[window as usize];
            if with_numbers.as_ref().is_none_or(|passages| passages.contains(&passage)) {
                let share = by_passage.entry(passage as usize).or_default();
                *share = share.max(n as f32 / n_words);
            }
        }
        Some(Shares { by_passage, min: if is_short { SHORT_SHARE_MIN } else { SUPPORT_SHARE_MIN } })
    }
}

#[cfg(test)]
mod tests {
    use unicode_normalization::UnicodeNormalization;

    use super::*;

    fn content(text: &str) -> Vec<String> {
        let mut all = BTreeSet::new();
        words(text, |word, kind| _ = (kind != Kind::Other).then(|| all.insert(word.to_owned())));
        all.into_iter().collect()
    }

    #[test]
    fn content_words_of_scripts() {
        assert_eq!(content("The pumps, the 2nd PUMPING of 2024"), ["2", "2024", "pump"]);
        assert_eq!(content("地下室の水"), ["の水", "下室", "地下", "室の"]);
        assert_eq!(content("펌프가 그 멈췄다"), ["멈췄다", "펌프가"]);
        assert_eq!(content("a — of"), [""; 0]);
    }

    /// A note may have another form than the answer: files of a Mac are often decomposed.
    #[test]
    fn words_do_not_depend_on_the_form_of_the_text() {
        for text in ["펌프가 그 멈췄다", "Élise répète", "地下室が", "ΟΔΟΣΣ Bahnhof"] {
            let decomposed: String = text.nfd().collect();
            assert_eq!(content(&decomposed), content(text));
            assert_eq!(content(&text.replace("hof", "\u{ad}hof")), content(text));
        }
    }

    #[test]
    fn numbers() {
        assert_eq!(content("240.14, 1,200 and 1.200,50 or 5.00."), ["1200", "1200.5", "240.14", "5"]);
        assert_eq!(content("1. one\n 2) two\n3 of 4."), ["3", "4"]);
        assert_eq!(content("5"), ["5"]);
    }

    const NOTE: &str = include_str!("../../tests/note.md");
    const PUMP: &str =
        "The pump had stopped during the night. The repair cost 240 euros, and Bob was there on 14 October.";

    #[test]
    fn statements_that_a_passage_supports_and_others() {
        let drain = "The drain blocks when a leaf falls in; then the pump stops.";
        let cases = [
            ("The pump stopped at night.", PUMP, true),
            ("Leaves blocked the drains, so the pumps stopped.", drain, true),
            ("It cost 240.00 euros.", PUMP, true),
            ("Maria found the spare key in the washing machine.", NOTE, false),
            ("It cost 240.14 euros.", PUMP, false),
            ("The repair cost 900 euros.", PUMP, false),
            ("The fee is 900.", PUMP, false),
            ("He died.", PUMP, false),
            ("Bob is the CEO.", PUMP, false),
        ];
        for (sentence, passage, is_supported) in cases {
            let shares = Passages::new(sentence, [passage].into_iter()).shares(sentence).expect("words");
            assert_eq!(shares.supports(0), is_supported, "{sentence} {}", shares.of(0));
        }
        assert!(Passages::new("Yes.", [NOTE].into_iter()).shares("Yes.").is_none());
    }
}
