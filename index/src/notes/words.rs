//! Words of texts as the index stores them: stems without accents, and pairs of characters where a script has no
//! spaces.
//!
//! A word is a run of letters, digits and combining marks. It is composed (NFKC), converted to lower case, stemmed in
//! the language of its passage, and its accents are removed. In Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese,
//! every two neighbouring characters form a word, as in Lucene's `CJKAnalyzer`; the last character of a run is a word
//! too, so each character of a text begins a word. A search for one character is a search for words that begin with it.

use std::iter::Peekable;
use std::ops::Range;
use std::str::CharIndices;

use frostem::Stemmer;
use tantivy::tokenizer::{Token, TokenStream, Tokenizer};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use super::language::Language;

/// Maximum length of a word, in bytes: tantivy's own value for text. Links and encoded data are longer.
const WORD_BYTES_MAX: usize = 40;

/// A word of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    /// Its form in the index.
    pub(super) text: String,
    /// Its bytes in the text.
    pub(super) range: Range<usize>,
    /// Whether it is one character of a script without spaces.
    pub(super) is_single: bool,
}

/// The words of a text in the given language.
pub(super) fn words(text: &str, language: Option<Language>) -> Words<'_> {
    Words {
        text,
        rest: text.char_indices().peekable(),
        stemmer: language.map(|language| Stemmer::new(language.algorithm())),
        in_run: false,
    }
}

/// See [`words`].
pub(super) struct Words<'a> {
    text: &'a str,
    rest: Peekable<CharIndices<'a>>,
    stemmer: Option<Stemmer>,
    /// Whether the next character continues a run without spaces.
    in_run: bool,
}

impl Iterator for Words<'_> {
    type Item = Word;

    fn next(&mut self) -> Option<Word> {
        loop {
            let (start, first) = self.rest.next()?;
            if is_spaceless(first) {
                return Some(self.pair(start, first));
            }
            self.in_run = false;
            if !first.is_alphanumeric() {
                continue;
            }
            let continues = |c: char| (c.is_alphanumeric() || is_combining_mark(c)) && !is_spaceless(c);
            let mut end = start + first.len_utf8();
            while let Some((at, character)) = self.rest.next_if(|&(_, c)| continues(c)) {
                end = at + character.len_utf8();
            }
            if end - start <= WORD_BYTES_MAX {
                let text = self.index_form(&self.text[start..end]);
                return Some(Word { text, range: start..end, is_single: false });
            }
        }
    }
}

impl Words<'_> {
    fn pair(&mut self, start: usize, first: char) -> Word {
        let begins_run = !std::mem::replace(&mut self.in_run, true);
        let (end, is_pair) = match self.rest.peek() {
            Some(&(at, second)) if is_spaceless(second) => (at + second.len_utf8(), true),
            _ => {
                self.in_run = false;
                (start + first.len_utf8(), false)
            }
        };
        let text = self.text[start..end].nfkc().collect();
        Word { text, range: start..end, is_single: !is_pair && begins_run }
    }

    fn index_form(&self, word: &str) -> String {
        let word = match word.is_ascii() {
            true => word.to_ascii_lowercase(),
            false => word.nfkc().flat_map(char::to_lowercase).collect(),
        };
        let stem = match &self.stemmer {
            Some(stemmer) => stemmer.stem(&word).into_owned(),
            None => word,
        };
        if stem.is_ascii() { stem } else { without_accents(&stem) }
    }
}

/// Removes accents, and replaces letters that Unicode does not decompose.
fn without_accents(word: &str) -> String {
    let mut plain = String::with_capacity(word.len());
    for character in word.nfd().filter(|&character| !is_combining_mark(character)) {
        match character {
            'ß' => plain.push_str("ss"),
            'æ' => plain.push_str("ae"),
            'œ' => plain.push_str("oe"),
            'þ' => plain.push_str("th"),
            'ø' => plain.push('o'),
            'đ' | 'ð' => plain.push('d'),
            'ł' => plain.push('l'),
            'ħ' => plain.push('h'),
            'ı' => plain.push('i'),
            'ς' => plain.push('σ'),
            other => plain.push(other),
        }
    }
    plain
}

/// Whether a character belongs to a script that is written without spaces between words. (Korean has spaces, but its
/// words have endings, and pairs find the stem.)
fn is_spaceless(character: char) -> bool {
    matches!(character,
        '\u{0e01}'..='\u{0eff}'     // Thai, Lao
        | '\u{1000}'..='\u{109f}'   // Burmese
        | '\u{1100}'..='\u{11ff}'   // Hangul Jamo
        | '\u{1780}'..='\u{17ff}'   // Khmer
        | '\u{3005}'..='\u{3007}'
        | '\u{3041}'..='\u{30ff}'   // Hiragana, Katakana
        | '\u{3131}'..='\u{318e}'
        | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}'   // Han
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7af}'   // Hangul
        | '\u{f900}'..='\u{faff}'
        | '\u{ff66}'..='\u{ff9f}'   // Half-width Katakana
        | '\u{20000}'..='\u{3ffff}')
        && character != '\u{30fb}'
        && character != '\u{0e3f}'
}

/// Gives [`words`] to tantivy. The first character of a text is the number of its language, since a tokenizer of
/// tantivy knows a field, not a passage.
#[derive(Clone, Default)]
pub(super) struct MarkedTokenizer;

/// A text with its language in front.
pub(super) fn marked(text: &str, language: Option<Language>) -> String {
    let number = Language::number(language) as u8;
    let mut marked = String::with_capacity(text.len() + 1);
    marked.push(char::from(number));
    marked.push_str(text);
    marked
}

impl Tokenizer for MarkedTokenizer {
    type TokenStream<'a> = MarkedStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> MarkedStream<'a> {
        let mut characters = text.chars();
        let language = characters.next().and_then(|mark| Language::of_number(u64::from(u32::from(mark))));
        MarkedStream { words: words(characters.as_str(), language), token: Token::default() }
    }
}

/// See [`MarkedTokenizer`].
pub(super) struct MarkedStream<'a> {
    words: Words<'a>,
    token: Token,
}

impl TokenStream for MarkedStream<'_> {
    fn advance(&mut self) -> bool {
        let Some(word) = self.words.next() else { return false };
        self.token.position = self.token.position.wrapping_add(1);
        self.token.text = word.text;
        // Behind the mark, which is one byte.
        (self.token.offset_from, self.token.offset_to) = (word.range.start + 1, word.range.end + 1);
        true
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.token
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str, language: Option<Language>) -> Vec<String> {
        words(text, language).map(|word| word.text).collect()
    }

    #[test]
    fn european_words_are_stems_without_accents() {
        assert_eq!(shown("Meetings, at the CAFÉ!", Some(Language::English)), ["meet", "at", "the", "cafe"]);
        assert_eq!(shown("die Häuser", Some(Language::German)), shown("die Haus", Some(Language::German)));
        assert_eq!(shown("größe Straße", None), ["grosse", "strasse"]);
        assert_eq!(shown("cafe\u{301} ＡＢＣ Łódź", None), ["cafe", "abc", "lodz"]);
        assert_eq!(shown("Οδός", None), shown("ΟΔΟΣ", None));
    }

    #[test]
    fn scripts_without_spaces_give_pairs() {
        assert_eq!(shown("東京都へ", None), ["東京", "京都", "都へ", "へ"]);
        assert_eq!(shown("茶 tea 회의", None), ["茶", "tea", "회의", "의"]);
        let single: Vec<_> = words("茶 東京", None).map(|word| word.is_single).collect();
        assert_eq!(single, [true, false, false]);
    }

    #[test]
    fn long_words_are_left_out() {
        assert_eq!(shown(&format!("a {} b", "x".repeat(41)), None), ["a", "b"]);
    }

    proptest! {
        #[test]
        fn ranges_are_ascending_slices(text: String, number in 0..30_u64) {
            let mut last_start = 0;
            for word in words(&text, Language::of_number(number)) {
                prop_assert!(word.range.start >= last_start && text.get(word.range.clone()).is_some());
                last_start = word.range.start;
            }
        }
    }
}
