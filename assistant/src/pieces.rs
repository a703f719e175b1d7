//! Texts as pieces: words and signs, each with the white space before it.

use std::ops::Range;

/// Maximum length of a piece in bytes. A longer word is cut into several pieces, so a text without spaces is not held back.
const PIECE_BYTES_MAX: usize = 64;

/// A word or a single other character. The white space between pieces belongs to no piece.
pub(crate) type Piece = Range<usize>;

/// Splits a text that grows into its pieces. The cuts do not depend on the steps in which it grows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Splitter {
    /// End of the characters that were read.
    n_read: usize,
    /// Start of the word that may still grow.
    word: Option<usize>,
}

impl Splitter {
    /// Reads the rest of `text`, which begins with the text of the last call, and passes on each finished piece.
    pub(crate) fn read(&mut self, text: &str, mut found: impl FnMut(Piece)) {
        let from = self.n_read;
        for (at, c) in text[from..].char_indices().map(|(i, c)| (from + i, c)) {
            let joins = is_word(c);
            let fits = self.word.is_none_or(|start| at + c.len_utf8() - start <= PIECE_BYTES_MAX);
            if let Some(start) = self.word.take_if(|_| !joins || !fits) {
                found(start..at);
            }
            match joins {
                true => _ = self.word.get_or_insert(at),
                false if c.is_whitespace() => {}
                false => found(at..at + c.len_utf8()),
            }
        }
        self.n_read = text.len();
    }

    /// The last piece, when the text is complete.
    pub(crate) fn finish(&mut self) -> Option<Piece> {
        self.word.take().map(|start| start..self.n_read)
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
    }
}
