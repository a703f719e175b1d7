//! Unigram: the cut of a text into pieces whose scores have the largest sum (Kudo 2018, arXiv 1804.10959).
//!
//! A score is the logarithm of a piece's probability. The best cut of each prefix of the text follows from the best
//! cuts of shorter prefixes (Viterbi), so a text takes one pass: at each character, all pieces that begin there are
//! found, and each extends the best cut so far.
//!
//! The `tokenizers` library has this model too. It is not used, because its tree of hash tables takes about 300 bytes
//! for a letter of the vocabulary, beyond [`FILE_MEMORY_MULTIPLE`](super::FILE_MEMORY_MULTIPLE). Here the pieces are
//! sorted by their bytes. The pieces that begin with a prefix are then a range, and one more letter narrows the range.
//! The result equals the library's: the same sums in the same order, and the first of equally good cuts.

use tokenizers::Token;

use super::error::{TokenizerProblem, check_limit};
use super::vocab::byte_piece;

/// Maximum length of a piece, in bytes (published: 16 characters, runs of spaces up to 32). It bounds the work for a
/// byte of text.
pub const UNIGRAM_PIECE_BYTES_MAX: usize = 256;
/// The score of a character without a piece lies this far below the worst score of the vocabulary (SentencePiece's
/// constant).
const UNKNOWN_PENALTY: f64 = 10.0;

/// A checked vocabulary of scored pieces.
pub(super) struct Unigram {
    /// The bytes of all pieces, in the order of `pieces`.
    bytes: Vec<u8>,
    /// Sorted by their bytes.
    pieces: Vec<Piece>,
    /// For each first byte, the index of its first piece; the last entry is the number of pieces.
    first: Vec<u32>,
    unknown: u32,
    unknown_score: f64,
    /// The token of each byte that has one. Empty without byte fallback.
    byte_ids: Vec<Option<u32>>,
}

#[derive(Clone, Copy)]
struct Piece {
    begin: u32,
    end: u32,
    id: u32,
    score: f64,
}

/// The inputs of a [`Unigram`].
pub(super) struct UnigramParts {
    /// Pieces that text may spell: text, id, score.
    pub(super) pieces: Vec<(String, u32, f64)>,
    /// The token of an unknown character.
    pub(super) unknown: u32,
    /// The worst score of the whole vocabulary, including the control tokens.
    pub(super) min_score: f64,
    /// Whether an unknown character is spelt in the pieces of its bytes.
    pub(super) byte_fallback: bool,
}

/// The best cut of a prefix of the text: its last piece.
#[derive(Clone, Copy)]
struct Cut {
    score: f64,
    /// Where the last piece begins; [`NO_CUT`] before a cut has been found.
    begin: u32,
    id: u32,
}

const NO_CUT: u32 = u32::MAX;

/// Keeps the better of two cuts, the first of equally good ones.
fn extend(best: &mut Cut, cut: Cut) {
    if best.begin == NO_CUT || cut.score > best.score {
        *best = cut;
    }
}

impl Unigram {
    /// Sorts the pieces.
    ///
    /// # Errors
    /// [`TokenizerProblem::OverLimit`]: a piece is longer than [`UNIGRAM_PIECE_BYTES_MAX`].
    pub(super) fn new(file: &str, parts: UnigramParts) -> Result<Self, TokenizerProblem> {
        let UnigramParts { mut pieces, unknown, min_score, byte_fallback } = parts;
        for (text, ..) in &pieces {
            check_limit(file, "bytes of a unigram piece", text.len(), UNIGRAM_PIECE_BYTES_MAX)?;
        }
        let mut byte_ids = Vec::new();
        if byte_fallback {
            byte_ids.resize(256, None);
            for (text, id, _) in &pieces {
                if let Some(byte) = byte_piece(text) {
                    byte_ids[usize::from(byte)] = Some(*id);
                }
            }
        }
        pieces.sort_unstable_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
        // The vocabulary has at most `VOCAB_SIZE_MAX` pieces of 256 bytes, fewer than 2^32 bytes.
        let n_bytes = pieces.iter().map(|(text, ..)| text.len()).sum();
        let mut unigram = Self {
            bytes: Vec::with_capacity(n_bytes),
            pieces: Vec::with_capacity(pieces.len()),
            first: Vec::with_capacity(257),
            unknown,
            unknown_score: min_score - UNKNOWN_PENALTY,
            byte_ids,
        };
        for (text, id, score) in pieces {
            while unigram.first.len() <= usize::from(text.as_bytes().first().copied().unwrap_or(0)) {
                unigram.first.push(unigram.pieces.len() as u32);
            }
            let begin = unigram.bytes.len() as u32;
            unigram.bytes.extend_from_slice(text.as_bytes());
            unigram.pieces.push(Piece { begin, end: unigram.bytes.len() as u32, id, score });
        }
        unigram.first.resize(257, unigram.pieces.len() as u32);
        Ok(unigram)
    }

    fn text_of(&self, piece: &Piece) -> &[u8] {
        &self.bytes[piece.begin as usize..piece.end as usize]
    }

    /// Calls `found` with every piece that begins the text, shortest first.
    fn prefixes(&self, text: &[u8], mut found: impl FnMut(usize, &Piece)) {
        let Some(&byte) = text.first() else { return };
        let mut low = self.first[usize::from(byte)] as usize;
        let mut high = self.first[usize::from(byte) + 1] as usize;
        // All pieces of the range begin with `text[..len]`.
        let mut len = 1;
        while low < high {
            let shortest = &self.pieces[low];
            if self.text_of(shortest).len() == len {
                found(len, shortest);
                low += 1;
            }
            let Some(&byte) = text.get(len) else { return };
            if low == high {
                return;
            }
            let at = |index: usize| self.text_of(&self.pieces[index])[len];
            // In a long chain of pieces no letter narrows the range.
            if at(low) != byte || at(high - 1) != byte {
                let range = &self.pieces[low..high];
                let below = range.partition_point(|piece| self.text_of(piece)[len] < byte);
                let above = range.partition_point(|piece| self.text_of(piece)[len] <= byte);
                (low, high) = (low + below, low + above);
            }
            len += 1;
        }
    }

    /// The id of the piece with exactly this text.
    fn id_of(&self, text: &[u8]) -> Option<u32> {
        let found = self.pieces.binary_search_by(|piece| self.text_of(piece).cmp(text));
        found.ok().map(|index| self.pieces[index].id)
    }

    /// The tokens of a text of less than 4 GiB. Adjacent unknown characters are one token, or the pieces of their
    /// bytes.
    pub(super) fn tokenize(&self, text: &str) -> Vec<Token> {
        let bytes = text.as_bytes();
        let mut cuts = vec![Cut { score: 0.0, begin: NO_CUT, id: 0 }; bytes.len() + 1];
        for (begin, c) in text.char_indices() {
            let here = cuts[begin].score;
            let mut has_own_piece = false;
            let begins = begin as u32;
            self.prefixes(&bytes[begin..], |len, piece| {
                has_own_piece |= len == c.len_utf8();
                let cut = Cut { score: piece.score + here, begin: begins, id: piece.id };
                extend(&mut cuts[begin + len], cut);
            });
            if !has_own_piece {
                let cut = Cut { score: self.unknown_score + here, begin: begins, id: self.unknown };
                extend(&mut cuts[begin + c.len_utf8()], cut);
            }
        }
        // Backwards along the best cut, the ids in reverse.
        let mut tokens = Vec::new();
        let mut end = bytes.len();
        while end > 0 {
            let Cut { begin, id, .. } = cuts[end];
            let mut begin = begin as usize;
            if id != self.unknown {
                tokens.push(token(id, begin, end));
            } else {
                while begin > 0 && cuts[begin].id == self.unknown {
                    begin = cuts[begin].begin as usize;
                }
                self.push_unknown(bytes, begin, end, &mut tokens);
            }
            end = begin;
        }
        tokens.reverse();
        tokens
    }

    /// Appends the tokens of unknown characters, last first.
    fn push_unknown(&self, bytes: &[u8], begin: usize, end: usize, tokens: &mut Vec<Token>) {
        let part = &bytes[begin..end];
        // With scores above 0 a piece may be worse than its characters alone, unknown as they are. The library then
        // finds the piece in its table.
        if let Some(id) = self.id_of(part) {
            return tokens.push(token(id, begin, end));
        }
        let byte_id = |byte: u8| self.byte_ids.get(usize::from(byte)).copied().flatten();
        if part.iter().any(|&byte| byte_id(byte).is_none()) {
            return tokens.push(token(self.unknown, begin, end));
        }
        tokens
            .extend(part.iter().rev().map(|&byte| token(byte_id(byte).unwrap_or(self.unknown), begin, end)));
    }
}

/// A token of the library without its text, which nobody reads.
fn token(id: u32, begin: usize, end: usize) -> Token {
    Token::new(id, String::new(), (begin, end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::Model;
    use tokenizers::models::unigram;

    use super::*;

    /// The vocabulary with id 0 for unknown characters, here and in the library.
    fn both(pieces: &[(String, f64)], byte_fallback: bool) -> (Unigram, unigram::Unigram) {
        let mut all = vec![("<unk>".to_owned(), 0.0)];
        all.extend(pieces.iter().cloned());
        let parts = UnigramParts {
            pieces: (1..).zip(pieces).map(|(id, (text, score))| (text.clone(), id, *score)).collect(),
            unknown: 0,
            min_score: all.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min),
            byte_fallback,
        };
        let library = unigram::Unigram::from(all, Some(0), byte_fallback).unwrap();
        (Unigram::new("test", parts).unwrap(), library)
    }

    fn ids(tokens: Vec<Token>) -> Vec<u32> {
        tokens.into_iter().map(|token| token.id).collect()
    }

    proptest! {
        #[test]
        fn cuts_equal_the_library(
            texts in prop::collection::hash_set("[abé日]{1,5}", 0..40),
            steps in prop::collection::vec(-40i32..20, 40),
            text in "[abcé日▁]{0,40}",
            bytes in any::<bool>(),
        ) {
            let mut pieces: Vec<(String, f64)> =
                texts.into_iter().zip(steps).map(|(text, step)| (text, f64::from(step) / 8.0)).collect();
            if bytes {
                pieces.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 0.0)));
            }
            let (ours, library) = both(&pieces, bytes);
            prop_assert_eq!(ids(ours.tokenize(&text)), ids(library.tokenize(&text).unwrap()));
        }
    }

    #[test]
    fn the_best_sum_wins() {
        let pieces = [("a", -1.0), ("b", -1.0), ("ab", -1.5), ("abc", -9.0), ("c", -3.0), ("bc", -2.0)];
        let pieces = pieces.map(|(text, score)| (text.to_owned(), score));
        let (ours, _) = both(&pieces, false);
        // a·bc has −3, ab·c −4.5, abc −9.
        assert_eq!(ids(ours.tokenize("abc")), [1, 6]);
        assert_eq!(ids(ours.tokenize("xyaz")), [0, 1, 0], "adjacent unknown characters are one token");
        assert_eq!(ids(ours.tokenize("")), [0; 0]);
    }

    #[test]
    fn pieces_over_the_limit_are_refused() {
        let parts = |len: usize| UnigramParts {
            pieces: vec![("x".repeat(len), 1, 0.0)],
            unknown: 0,
            min_score: 0.0,
            byte_fallback: false,
        };
        assert!(Unigram::new("test", parts(UNIGRAM_PIECE_BYTES_MAX)).is_ok());
        let error = Unigram::new("test", parts(UNIGRAM_PIECE_BYTES_MAX + 1)).err().unwrap();
        assert!(error.to_string().contains("257, the limit is 256"), "{error}");
    }
}
