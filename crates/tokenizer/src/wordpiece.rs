//! WordPiece: the longest piece that begins a word, then the longest one that goes on, and so on (Schuster and Nakajima 2012; the greedy
//! search of BERT, Devlin et al. 2018).
//!
//! A piece inside a word is written with a prefix, `##`. A word that cannot be cut into pieces is unknown as a whole.
//!
//! The `tokenizers` library has this model too. It looks up every end of the rest of a word and copies each part; here no part is longer
//! than the longest piece, so the work for a byte of text is bounded. The result equals the library's.

use std::collections::HashMap;

use tokenizers::Token;

use super::error::{TokenizerProblem, check_limit};

/// Maximum length of a piece, in bytes (published: about 54, 18 characters).
pub const WORDPIECE_BYTES_MAX: usize = 256;
/// Maximum length of a word that is cut, in characters (published: 100).
const WORD_CHARS_MAX: usize = 1 << 12;

/// The inputs of a [`WordPiece`].
pub(super) struct WordPieceParts {
    /// Pieces that text may spell: text and id.
    pub(super) pieces: Vec<(String, u32)>,
    /// The token of a word that cannot be cut.
    pub(super) unknown: u32,
    /// The prefix of pieces inside a word.
    pub(super) prefix: String,
    /// Longer words are unknown.
    pub(super) word_chars_max: usize,
}

/// A checked vocabulary of pieces.
pub(super) struct WordPiece {
    /// The pieces as they are written: those that begin a word.
    first: HashMap<String, u32>,
    /// Those inside a word, without their prefix.
    rest: HashMap<String, u32>,
    /// Bytes of the longest piece.
    longest: usize,
    unknown: u32,
    word_chars_max: usize,
}

impl WordPiece {
    /// # Errors
    /// [`TokenizerProblem::OverLimit`]: a piece is longer than [`WORDPIECE_BYTES_MAX`], or the words are.
    pub(super) fn new(file: &str, parts: WordPieceParts) -> Result<Self, TokenizerProblem> {
        let WordPieceParts { pieces, unknown, prefix, word_chars_max } = parts;
        check_limit(file, "max_input_chars_per_word", word_chars_max, WORD_CHARS_MAX)?;
        let mut longest = 0;
        for (text, _) in &pieces {
            check_limit(file, "bytes of a piece", text.len(), WORDPIECE_BYTES_MAX)?;
            longest = longest.max(text.len());
        }
        let inside = |(text, id): &(String, u32)| Some((text.strip_prefix(&*prefix)?.to_owned(), *id));
        let rest = pieces.iter().filter_map(inside).collect();
        Ok(Self { first: pieces.into_iter().collect(), rest, longest, unknown, word_chars_max })
    }

    /// The tokens of a word.
    pub(super) fn tokenize(&self, word: &str) -> Vec<Token> {
        let token = |id: u32, begin: usize, end: usize| Token::new(id, String::new(), (begin, end));
        let unknown = || vec![token(self.unknown, 0, word.len())];
        if word.chars().nth(self.word_chars_max).is_some() {
            return unknown();
        }
        let mut tokens = Vec::new();
        let mut begin = 0;
        while begin < word.len() {
            let table = if begin == 0 { &self.first } else { &self.rest };
            let mut end = word.len().min(begin + self.longest);
            let found = loop {
                if end <= begin {
                    break None;
                }
                if word.is_char_boundary(end)
                    && let Some(&id) = table.get(&word[begin..end])
                {
                    break Some(id);
                }
                end -= 1;
            };
            let Some(id) = found else { return unknown() };
            tokens.push(token(id, begin, end));
            begin = end;
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::Model;
    use tokenizers::models::wordpiece;

    use super::*;

    /// The vocabulary with id 0 for unknown words, here and in the library.
    fn both(pieces: &[String], word_chars_max: usize) -> (WordPiece, wordpiece::WordPiece) {
        let pieces: Vec<(String, u32)> = pieces.iter().cloned().zip(1..).collect();
        let all = pieces.iter().cloned().chain([("[UNK]".to_owned(), 0)]);
        let library = wordpiece::WordPiece::builder()
            .vocab(all.collect::<tokenizers::models::bpe::Vocab>())
            .unk_token("[UNK]".to_owned())
            .max_input_chars_per_word(word_chars_max)
            .build()
            .unwrap();
        let parts = WordPieceParts { pieces, unknown: 0, prefix: "##".to_owned(), word_chars_max };
        (WordPiece::new("test", parts).unwrap(), library)
    }

    fn ids(tokens: Vec<Token>) -> Vec<u32> {
        tokens.into_iter().map(|token| token.id).collect()
    }

    proptest! {
        #[test]
        fn cuts_equal_the_library(
            pieces in prop::collection::hash_set("(##)?[abé日]{1,4}", 0..40),
            word in "[abcé日]{1,12}",
        ) {
            let (ours, library) = both(&pieces.into_iter().collect::<Vec<_>>(), 10);
            prop_assert_eq!(ids(ours.tokenize(&word)), ids(library.tokenize(&word).unwrap()));
        }
    }

    #[test]
    fn the_longest_piece_is_taken_first_and_a_word_is_unknown_as_a_whole() {
        let pieces = ["un", "una", "##affable", "##aff", "##able", "##ble"].map(str::to_owned);
        let (ours, _) = both(&pieces, 100);
        assert_eq!(ids(ours.tokenize("unaffable")), [0], "`una` leaves `ffable`");
        assert_eq!(ids(ours.tokenize("unable")), [2, 6]);
        assert_eq!(ids(ours.tokenize("ununx")), [0]);
        assert_eq!(ids(ours.tokenize("")), [0; 0]);
        assert_eq!(ids(ours.tokenize(&"un".repeat(60))), [0]);
    }

    #[test]
    fn pieces_and_words_over_the_limit_are_refused() {
        let parts = |len: usize, word_chars_max: usize| {
            let (pieces, prefix) = (vec![("x".repeat(len), 1)], "##".to_owned());
            WordPiece::new("test", WordPieceParts { pieces, unknown: 0, prefix, word_chars_max })
        };
        assert!(parts(WORDPIECE_BYTES_MAX, WORD_CHARS_MAX).is_ok());
        let error = |len, max| parts(len, max).err().unwrap().to_string();
        assert!(error(WORDPIECE_BYTES_MAX + 1, 100).contains("257, the limit is 256"));
        assert!(error(1, WORD_CHARS_MAX + 1).contains("max_input_chars_per_word is 4097, the limit is 4096"));
    }
}
