//! The marker after which a grammar starts, found in the bytes of the output token by token.
//!
//! The search is Knuth, Morris and Pratt's. Its state is the number of bytes of the marker that the text ends with.

use std::sync::OnceLock;

use refrain::{TokenId, Tokenizer};

/// A marker. A token that has bytes behind the marker's end is not allowed: the grammar starts at a token.
#[derive(Debug)]
pub(crate) struct Marker {
    bytes: Vec<u8>,
    /// For each state: the longest shorter state with the same end.
    shorter: Vec<usize>,
    /// For each state: the tokens that complete the marker before their last byte.
    overshooting: Vec<OnceLock<Vec<TokenId>>>,
}

/// The result of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The text ends with this many bytes of the marker.
    Part(usize),
    /// The text ends with the marker.
    Whole,
    /// The marker ends inside the token.
    Inside,
}

impl Marker {
    /// A marker of at least one byte.
    pub(crate) fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut shorter = vec![0; bytes.len() + 1];
        let mut state = 0;
        for i in 1..bytes.len() {
            while state > 0 && bytes[state] != bytes[i] {
                state = shorter[state];
            }
            state += usize::from(bytes[state] == bytes[i]);
            shorter[i + 1] = state;
        }
        let overshooting = bytes.iter().map(|_| OnceLock::new()).collect();
        Self { bytes, shorter, overshooting }
    }

    /// The result of a token with these bytes after the state `state`.
    pub(crate) fn find(&self, mut state: usize, token: &[u8]) -> Found {
        for (i, &byte) in token.iter().enumerate() {
            while state > 0 && self.bytes[state] != byte {
                state = self.shorter[state];
            }
            state += usize::from(self.bytes[state] == byte);
            if state == self.bytes.len() {
                return if i + 1 == token.len() { Found::Whole } else { Found::Inside };
            }
        }
        Found::Part(state)
    }

    /// The tokens that are not allowed after the state `state`, because the marker ends inside them. Searched once per state.
    pub(crate) fn overshooting(&self, state: usize, tokenizer: &Tokenizer) -> &[TokenId] {
        self.overshooting[state].get_or_init(|| {
            let ids = (0..tokenizer.vocab_size() as u32).map(TokenId);
            let bytes = |id| tokenizer.token_bytes(id).unwrap_or_default();
            ids.filter(|&id| self.find(state, bytes(id)) == Found::Inside).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The obvious search: the state is the longest start of the marker that the text ends with.
    fn naive(marker: &str, text: &[u8]) -> Option<usize> {
        let marker = marker.as_bytes();
        if text.windows(marker.len()).any(|window| window == marker) {
            return None;
        }
        (0..marker.len()).rev().find(|&len| text.ends_with(&marker[..len]))
    }

    #[test]
    fn states_are_those_of_the_obvious_search() {
        for marker in ["</think>", "aab", "aaaa", "abab", "x", "é"] {
            let search = Marker::new(marker);
            for seed in 0..2000u64 {
                let letters: Vec<u8> = marker.bytes().chain(*b"a<").collect();
                let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let mut state = 0;
                let mut text = Vec::new();
                for _ in 0..12 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    text.push(letters[(random >> 33) as usize % letters.len()]);
                    let found = search.find(state, &text[text.len() - 1..]);
                    match naive(marker, &text) {
                        Some(len) => assert_eq!(found, Found::Part(len), "{marker} in {text:?}"),
                        None => {
                            assert_eq!(found, Found::Whole, "{marker} in {text:?}");
                            break;
                        }
                    }
                    if let Found::Part(len) = found {
                        state = len;
                    }
                }
            }
        }
    }

    #[test]
    fn a_marker_may_end_inside_a_token() {
        let marker = Marker::new("</t>");
        assert_eq!(marker.find(0, b"a</t>"), Found::Whole);
        assert_eq!(marker.find(0, b"a</t>b"), Found::Inside);
        assert_eq!(marker.find(2, b"t>"), Found::Whole);
        assert_eq!(marker.find(2, b"t>\n"), Found::Inside);
        assert_eq!(marker.find(2, b"</"), Found::Part(2));
    }
}
