//! The bytes that each token stands for.
//!
//! Three schemes exist. *Byte level* (GPT-2 and later) writes each byte as one printable character. *Sentence piece*
//! writes plain UTF-8 with `▁` for a space, and `<0x0A>` for a byte without a piece. *Word piece* writes plain UTF-8 with `##` before
//! what goes on a word.

use std::collections::HashMap;

use super::error::{TokenizerProblem, check_limit};
use super::limits::VOCAB_SIZE_MAX;
use refrain_trees::TokenId;

/// Maximum length of a token's text, in bytes.
pub const TOKEN_BYTES_MAX: usize = 64 << 10;
/// Maximum number of ids without a token. Tables have an entry per id, so one token with a large id would cost as
/// much as a whole vocabulary.
pub const ID_GAPS_MAX: usize = 1 << 16;

/// The byte encoding of ordinary tokens' texts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scheme {
    ByteLevel,
    SentencePiece,
    WordPiece,
}

/// The prefix of a word piece that does not begin a word.
pub(super) const CONTINUING: &str = "##";

/// The role of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TokenKind {
    /// Produced from text by the encoder.
    Normal,
    /// Controls the model; never produced from plain text.
    Control,
    /// Matched literally before all other tokens, in any text.
    UserDefined,
    /// A placeholder; stands for nothing.
    Unused,
}

/// All tokens of a model.
#[derive(Debug, Default)]
pub(super) struct Vocab {
    /// Concatenated bytes of all tokens.
    bytes: Vec<u8>,
    /// Per id: the end of its bytes and its kind; `None` if the id has no token.
    entries: Vec<Option<(usize, usize, TokenKind)>>,
    ids: HashMap<String, u32>,
}

impl Vocab {
    /// Builds the table. Texts and ids must be distinct.
    pub(super) fn new(
        file: &str,
        scheme: Scheme,
        tokens: Vec<(u32, String, TokenKind)>,
    ) -> Result<Self, TokenizerProblem> {
        let limit = VOCAB_SIZE_MAX.min(tokens.len() + ID_GAPS_MAX);
        let largest = tokens.iter().map(|(id, ..)| *id as usize).max().unwrap_or(0);
        if largest >= limit {
            let file = file.to_owned();
            return Err(TokenizerProblem::OverLimit { file, field: "token id", value: largest, limit });
        }
        let mut vocab = Self::default();
        for (id, text, kind) in tokens {
            vocab.insert(file, scheme, id, text, kind)?;
        }
        Ok(vocab)
    }

    fn insert(
        &mut self,
        file: &str,
        scheme: Scheme,
        id: u32,
        text: String,
        kind: TokenKind,
    ) -> Result<(), TokenizerProblem> {
        let index = id as usize;
        check_limit(file, "bytes of a token", text.len(), TOKEN_BYTES_MAX)?;
        let file = || file.to_owned();
        if text.is_empty() && kind != TokenKind::Unused {
            return Err(TokenizerProblem::EmptyToken { file: file(), id });
        }
        if self.entries.len() <= index {
            self.entries.resize(index + 1, None);
        }
        if self.entries[index].is_some() || self.ids.contains_key(&text) && kind != TokenKind::Unused {
            return Err(TokenizerProblem::DuplicateToken { file: file(), token: text, id });
        }
        let begin = self.bytes.len();
        match (kind, scheme) {
            (TokenKind::Normal, Scheme::ByteLevel) => push_byte_level(&mut self.bytes, &text),
            (TokenKind::Normal, Scheme::SentencePiece) => push_sentence_piece(&mut self.bytes, &text),
            (TokenKind::Normal, Scheme::WordPiece) => push_word_piece(&mut self.bytes, &text),
            (TokenKind::Control | TokenKind::UserDefined, _) => self.bytes.extend_from_slice(text.as_bytes()),
            (TokenKind::Unused, _) => {}
        }
        self.entries[index] = Some((begin, self.bytes.len(), kind));
        if kind != TokenKind::Unused {
            self.ids.insert(text, id);
        }
        Ok(())
    }

    /// The largest id plus one.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn id(&self, text: &str) -> Option<TokenId> {
        self.ids.get(text).copied().map(TokenId)
    }

    pub(super) fn ids(&self) -> &HashMap<String, u32> {
        &self.ids
    }

    pub(super) fn bytes(&self, id: TokenId) -> Option<&[u8]> {
        match *self.entries.get(id.index())? {
            Some((begin, end, kind)) if kind != TokenKind::Unused => self.bytes.get(begin..end),
            _ => None,
        }
    }

    pub(super) fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.entries.get(id.index()).copied().flatten().map(|(_, _, kind)| kind)
    }

    /// FNV-1a over id, kind and bytes of every token except placeholders.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut eat = |bytes: &[u8]| {
            for &byte in bytes {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        for index in 0..self.entries.len() {
            let id = TokenId(index as u32);
            if let Some(bytes) = self.bytes(id) {
                eat(&id.0.to_le_bytes());
                eat(&[u8::from(self.kind(id) == Some(TokenKind::Control))]);
                eat(&(bytes.len() as u32).to_le_bytes());
                eat(bytes);
            }
        }
        hash
    }
}

/// The byte that a character of the byte-level alphabet stands for.
///
/// Printable Latin-1 stands for itself; the other 68 bytes, in order, are U+0100 and after (GPT-2's `bytes_to_unicode`).
pub(super) fn byte_of_char(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x143 => {
            let n = (code - 0x100) as u8;
            Some(match n {
                0..=0x20 => n,
                0x21..=0x42 => 0x7f + (n - 0x21),
                _ => 0xad,
            })
        }
        _ => None,
    }
}

/// A text with a character outside the alphabet stands for its own UTF-8, as in the `tokenizers` library.
fn push_byte_level(out: &mut Vec<u8>, text: &str) {
    let begin = out.len();
    for c in text.chars() {
        match byte_of_char(c) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(begin);
                out.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}

fn push_sentence_piece(out: &mut Vec<u8>, text: &str) {
    match byte_piece(text) {
        Some(byte) => out.push(byte),
        None => out.extend_from_slice(text.replace('\u{2581}', " ").as_bytes()),
    }
}

/// A word begins behind a space.
fn push_word_piece(out: &mut Vec<u8>, text: &str) {
    match text.strip_prefix(CONTINUING) {
        Some(rest) => out.extend_from_slice(rest.as_bytes()),
        None => out.extend([b" ", text.as_bytes()].concat()),
    }
}

/// The byte of a piece like `<0x0A>`.
pub(super) fn byte_piece(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// Whether a byte occurs in valid UTF-8.
fn occurs_in_utf8(byte: u8) -> bool {
    !matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff)
}

/// Whether a byte occurs only in rare text: control characters, and the unassigned characters from U+40000 to
/// U+BFFFF. A vocabulary trained without a token for every byte has tokens only for the bytes of its training text.
fn is_rare(byte: u8) -> bool {
    matches!(byte, 0..=0x08 | 0x0b | 0x0c | 0x0e..=0x1f | 0x7f | 0xf1 | 0xf2)
}

/// The bytes of UTF-8 text without an ordinary token, for a vocabulary in which each byte needs one. All of them are
/// rare.
///
/// # Errors
/// The first byte without a token that is not rare ([`is_rare`]). With pieces `<0xNN>`, the first byte without a
/// token.
pub(super) fn missing_bytes<'a>(
    scheme: Scheme,
    byte_fallback: bool,
    ordinary: impl Iterator<Item = &'a str>,
) -> Result<Vec<u8>, u8> {
    let mut has = [false; 256];
    for text in ordinary {
        let mut chars = text.chars();
        let byte = match scheme {
            Scheme::ByteLevel => chars.next().filter(|_| chars.next().is_none()).and_then(byte_of_char),
            Scheme::SentencePiece if byte_fallback => byte_piece(text),
            Scheme::SentencePiece | Scheme::WordPiece => return Ok(Vec::new()),
        };
        if let Some(byte) = byte {
            has[usize::from(byte)] = true;
        }
    }
    let missing = (0..=255u8).filter(|&byte| occurs_in_utf8(byte) && !has[usize::from(byte)]);
    missing
        .map(|byte| if scheme == Scheme::ByteLevel && is_rare(byte) { Ok(byte) } else { Err(byte) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The character that stands for a byte in the byte-level alphabet.
    fn char_of_byte(byte: u8) -> char {
        match byte {
            0..=0x20 => char::from_u32(0x100 + u32::from(byte)).unwrap_or_default(),
            0x7f..=0xa0 => char::from_u32(0x121 + u32::from(byte - 0x7f)).unwrap_or_default(),
            0xad => '\u{143}',
            _ => char::from(byte),
        }
    }

    #[test]
    fn the_byte_alphabet_is_a_bijection() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255 {
            let c = char_of_byte(byte);
            assert_eq!(byte_of_char(c), Some(byte));
            assert!(seen.insert(c));
        }
        // Spot checks against GPT-2's table.
        assert_eq!(char_of_byte(b' '), 'Ġ');
        assert_eq!(char_of_byte(b'\n'), 'Ċ');
        assert_eq!(byte_of_char('\u{144}'), None);
    }

    #[test]
    fn pieces_become_bytes() {
        let tokens = [
            (0, "▁the", TokenKind::Normal),
            (1, "<0x0A>", TokenKind::Normal),
            (2, "</s>", TokenKind::Control),
            (4, "[PAD4]", TokenKind::Unused),
        ];
        let tokens = tokens.map(|(id, text, kind)| (id, text.to_owned(), kind)).to_vec();
        let vocab = Vocab::new("test", Scheme::SentencePiece, tokens).unwrap();
        let bytes = |id| vocab.bytes(TokenId(id));
        assert_eq!(bytes(0), Some(&b" the"[..]));
        assert_eq!(bytes(1), Some(&b"\n"[..]));
        assert_eq!(bytes(2), Some(&b"</s>"[..]));
        assert_eq!([bytes(3), bytes(4), bytes(5)], [None; 3]);
        assert_eq!(vocab.len(), 5);
    }

    #[test]
    fn only_rare_bytes_may_be_missing() {
        let without = |left_out: &[u8]| {
            let bytes = (0..=255u8).filter(|byte| !left_out.contains(byte));
            let ordinary: Vec<String> = bytes.map(|byte| char_of_byte(byte).to_string()).collect();
            missing_bytes(Scheme::ByteLevel, false, ordinary.iter().map(String::as_str))
        };
        assert_eq!(without(&[]), Ok(vec![]));
        assert_eq!(without(&[0xc0, 0xff]), Ok(vec![]), "no text has them");
        let smollm2 = [0x04, 0x06, 0x13, 0x14, 0x16, 0x1d, 0xf1, 0xf2];
        assert_eq!(without(&smollm2), Ok(smollm2.to_vec()));
        for byte in (0x20..0x7f).chain(*b"\t\n\r").chain(0x80..0xc0).chain(0xc2..=0xf0).chain([0xf3, 0xf4]) {
            assert_eq!(without(&[0x04, byte]), Err(byte), "{byte:#04x}");
        }
        let pieces: Vec<String> =
            (0..=255).filter(|&byte| byte != 4).map(|byte| format!("<0x{byte:02X}>")).collect();
        let missing =
            |fallback| missing_bytes(Scheme::SentencePiece, fallback, pieces.iter().map(String::as_str));
        assert_eq!((missing(true), missing(false)), (Err(4), Ok(vec![])));
    }
}
