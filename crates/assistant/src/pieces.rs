//! Texts as pieces: words and signs.

use std::borrow::Cow;
use std::ops::Range;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Maximum length of a piece in characters without their marks. A longer word is cut into several pieces, so a text without spaces is
/// not held back.
const PIECE_CHARS_MAX: usize = 64;

/// Maximum length of a piece in bytes: characters may have any number of marks.
const PIECE_BYTES_MAX: usize = 1024;

/// A word or a single other character, with the marks that combine with it. The white space between pieces belongs to no piece.
pub(crate) type Piece = Range<usize>;

/// Splits a text that grows into its pieces. The cuts do not depend on the steps in which it grows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Splitter {
    /// End of the characters that were read.
    n_read: usize,
    /// Start of the piece that may still grow, and whether it is a word.
    open: Option<(usize, bool)>,
    /// Characters of this piece that are no marks.
    n_chars: usize,
    /// Whether the last character joins the next one to it.
    joins_next: bool,
}

impl Splitter {
    /// Reads the rest of `text`, which begins with the text of the last call, and passes on each finished piece.
    pub(crate) fn read(&mut self, text: &str, mut found: impl FnMut(Piece)) {
        let from = self.n_read;
        for (at, c) in text[from..].char_indices().map(|(i, c)| (from + i, c)) {
            let (is_word, is_mark) = (is_word(c), is_mark(c));
            let has_room = is_mark || self.n_chars < PIECE_CHARS_MAX;
            let joins = |(start, open_word): &(usize, bool)| {
                has_room
                    && at + c.len_utf8() - start <= PIECE_BYTES_MAX
                    && (is_word && *open_word || is_mark || self.joins_next && !c.is_whitespace())
            };
            if let Some((start, _)) = self.open.take_if(|open| !joins(open)) {
                found(start..at);
                self.n_chars = 0;
            }
            if !c.is_whitespace() {
                self.n_chars += usize::from(!is_mark);
                self.open.get_or_insert((at, is_word));
            }
            self.joins_next = c == ZERO_WIDTH_JOINER;
        }
        self.n_read = text.len();
    }

    /// The last piece, when the text is complete.
    pub(crate) fn finish(&mut self) -> Option<Piece> {
        self.open.take().map(|(start, _)| start..self.n_read)
    }
}

pub(crate) const ZERO_WIDTH_JOINER: char = '\u{200d}';

/// Whether a character combines with the one before: marks, invisible characters, and the modifiers and tags of emoji.
pub(crate) fn is_mark(c: char) -> bool {
    is_combining_mark(c)
        || is_invisible(c)
        || matches!(c, '\u{1f3fb}'..='\u{1f3ff}' | '\u{e0020}'..='\u{e007f}')
}

/// Soft hyphens, joiners and non-joiners, which are inside words and change none.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{34f}' | '\u{200c}' | ZERO_WIDTH_JOINER | '\u{2060}' | '\u{feff}')
}

/// A piece in the form in which pieces are compared: composed (NFC), without invisible characters.
pub(crate) fn composed(piece: &str) -> Cow<'_, str> {
    match piece.is_ascii() {
        true => Cow::Borrowed(piece),
        false => Cow::Owned(piece.chars().filter(|&c| !is_invisible(c)).nfc().collect()),
    }
}

/// Whether a character is part of a longer word.
fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric() && !is_single(c)
}

/// Whether a letter is a piece alone, because its texts have no spaces between words: ideographs, kana, and the letters of Thai, Lao,
/// Burmese and Khmer.
pub(crate) fn is_single(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{2e80}'..='\u{31ff}'
        | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<&str> {
        let (mut splitter, mut pieces) = (Splitter::default(), Vec::new());
        splitter.read(text, |piece| pieces.push(piece));
        pieces.extend(splitter.finish());
        pieces.into_iter().map(|piece| &text[piece]).collect()
    }

    #[test]
    fn words_and_signs() {
        assert_eq!(split("  Don't go, Élise_2!\n"), ["Don", "'", "t", "go", ",", "Élise_2", "!"]);
        assert_eq!(split("明日は3時 한국어 문장."), ["明", "日", "は", "3", "時", "한국어", "문장", "."]);
        assert_eq!(split(&"a".repeat(130)), ["a".repeat(64), "a".repeat(64), "aa".to_owned()]);
        assert_eq!(split(" \n"), [""; 0]);
        assert_eq!(split("पम्प रुक! e\u{301}te\u{301}"), ["पम्प", "रुक", "!", "e\u{301}te\u{301}"]);
        assert_eq!(split("👩‍👩‍👧👍🏽☂️1️⃣ ที่นี้"), ["👩‍👩‍👧", "👍🏽", "☂️", "1️⃣", "ที่", "นี้"]);
        assert_eq!(split("\u{301} a"), ["\u{301}", "a"]);
        assert_eq!(split("Bahn\u{ad}hof \u{feff}a"), ["Bahn\u{ad}hof", "\u{feff}", "a"]);
    }

    #[test]
    fn long_words_are_cut_between_characters() {
        let word = "достопримечательность".repeat(4);
        assert_eq!(split(&word).iter().map(|piece| piece.chars().count()).collect::<Vec<_>>(), [64, 20]);
        let accents = "e\u{301}".repeat(70);
        assert_eq!(split(&accents), ["e\u{301}".repeat(64), "e\u{301}".repeat(6)]);
        let longest = split(&format!("e{}", "\u{301}".repeat(10_000))).iter().map(|piece| piece.len()).max();
        assert!(longest <= Some(PIECE_BYTES_MAX));
    }

    #[test]
    fn forms_of_a_word_compare_equal() {
        for form in ["ete\u{301}\u{302}", "e\u{ad}te\u{301}\u{34f}\u{302}"] {
            assert_eq!(composed(form), composed("et\u{e9}\u{302}"));
        }
        assert_eq!(composed(&"회의".nfd().collect::<String>()), "회의");
    }
}
