//! Text from a stream of bytes. A token may end inside a character.

/// Turns a stream of bytes into complete UTF-8.
///
/// For any split of the bytes, the joined results equal [`String::from_utf8_lossy`] of the joined bytes: each maximal
/// invalid sequence becomes one U+FFFD. At most three bytes are pending.
///
/// ```
/// use refrain_tokenizer::Utf8Stream;
///
/// let mut stream = Utf8Stream::new();
/// assert_eq!(stream.push(b"caf\xc3"), "caf");
/// assert_eq!(stream.push(b"\xa9!"), "\u{e9}!");
/// assert_eq!(stream.finish(), "");
/// ```
#[derive(Debug, Default, Clone)]
pub struct Utf8Stream {
    /// An incomplete character: a proper prefix of a valid one.
    pending: Vec<u8>,
    out: String,
}

impl Utf8Stream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends bytes and returns the text that is complete now.
    pub fn push(&mut self, bytes: &[u8]) -> &str {
        self.out.clear();
        self.pending.extend_from_slice(bytes);
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (valid, after) = rest.split_at(e.valid_up_to());
                    // The error states that these bytes are valid. Lossy conversion avoids a second path that could
                    // fail.
                    self.out.push_str(&String::from_utf8_lossy(valid));
                    match e.error_len() {
                        Some(len) => {
                            self.out.push(char::REPLACEMENT_CHARACTER);
                            rest = &after[len..];
                        }
                        None => {
                            rest = after;
                            break;
                        }
                    }
                }
            }
        }
        let n_done = self.pending.len() - rest.len();
        self.pending.drain(..n_done);
        &self.out
    }

    /// Ends the stream. An incomplete character becomes U+FFFD. The stream can be used again.
    pub fn finish(&mut self) -> &str {
        self.out.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.out.push(char::REPLACEMENT_CHARACTER);
        }
        &self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn joined(pieces: &[&[u8]]) -> String {
        let mut stream = Utf8Stream::new();
        let mut text = String::new();
        for piece in pieces {
            text.push_str(stream.push(piece));
            assert!(stream.pending.len() <= 3);
        }
        text.push_str(stream.finish());
        text
    }

    #[test]
    fn characters_wait_until_they_are_complete() {
        let mut stream = Utf8Stream::new();
        let emoji = "🦀".as_bytes();
        assert_eq!(stream.push(&emoji[..3]), "");
        assert_eq!(stream.push(&emoji[3..]), "🦀");
        assert_eq!(stream.push(b"\xf0\x9f"), "");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }

    /// Bytes near the limits of UTF-8 are frequent here, so short sequences reach every rule.
    fn awkward_byte() -> impl Strategy<Value = u8> {
        prop_oneof![
            Just(b'a'),
            Just(0x80),
            Just(0xbf),
            Just(0xc2),
            Just(0xe0),
            Just(0xa0),
            Just(0xed),
            Just(0xf0),
            Just(0x90),
            Just(0xf4),
            Just(0xff),
            any::<u8>()
        ]
    }

    proptest! {
        #[test]
        fn any_split_equals_lossy_conversion_of_the_whole(
            bytes in prop::collection::vec(awkward_byte(), 0..24),
            cuts in prop::collection::vec(0usize..24, 0..6),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            prop_assert_eq!(joined(&pieces), String::from_utf8_lossy(&bytes));
        }
    }
}
