//! Texts as pieces: words and signs.

use std::ops::Range;

use unicode_normalization::char::is_combining_mark;

/// Maximum length of a piece in bytes. A longer word is cut into several pieces, so a text without spaces is not held back.
const PIECE_BYTES_MAX: usize = 64;

/// A word or a single other character, with the marks that combine with it. The white space between pieces belongs to no piece.
pub(crate) type Piece = Range<usize>;

/// Splits a text that grows into its pieces. The cuts do not depend on the steps in which it grows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Splitter {
    /// End of the characters that were read.
    n_read: usize,
    /// Start of the piece that may still grow, and whether it is a word.
    open: Option<(usize, bool)>,
    /// Whether the last character joins the next one to it.
    joins_next: bool,
}

impl Splitter {
    /// Reads the rest of `text`, which begins with the text of the last call, and passes on each finished piece.
    pub(crate) fn read(&mut self, text: &str, mut found: impl FnMut(Piece)) {
        let from = self.n_read;
        for (at, c) in text[from..].char_indices().map(|(i, c)| (from + i, c)) {
            let is_word = is_word(c);
            let joins = |(start, open_word): &(usize, bool)| {
                at + c.len_utf8() - start <= PIECE_BYTES_MAX
                    && (is_word && *open_word || is_mark(c) || self.joins_next && !c.is_whitespace())
            };
            if let Some((start, _)) = self.open.take_if(|open| !joins(open)) {
                found(start..at);
            }
            if !c.is_whitespace() {
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

/// Whether a character combines with the one before: marks, joiners, and the modifiers and tags of emoji.
pub(crate) fn is_mark(c: char) -> bool {
    is_combining_mark(c)
        || matches!(c, '\u{200c}' | ZERO_WIDTH_JOINER | '\u{1f3fb}'..='\u{1f3ff}' | '\u{e0020}'..='\u{e007f}')
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
    }
}
