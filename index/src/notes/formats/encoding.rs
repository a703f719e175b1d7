//! Texts as editors write them: UTF-8, with a byte order mark or without, and UTF-16 with one.

use std::borrow::Cow;
use std::ops::Range;

use crate::notes::report::SkipReason;

/// The bytes of a text in UTF-8, and how its places lie in the file.
#[derive(Debug)]
pub(crate) struct Decoded<'a> {
    /// UTF-8, unless the file has bytes that are no text.
    pub(in crate::notes) bytes: Cow<'a, [u8]>,
    source: Source,
}

/// The encoding of the file.
#[derive(Debug)]
enum Source {
    /// The text begins at this offset.
    Utf8(usize),
    /// UTF-16 behind a byte order mark, in a file of `file_bytes`. `n_units[i]` counts the units of the first `i * STEP`
    /// bytes of the text.
    Utf16 { n_units: Vec<usize>, file_bytes: usize },
    /// Another character set, in a file of this length. No place is known.
    Other(usize),
}

/// Distance of the marks in [`Source::Utf16`], in bytes of the text.
const STEP: usize = 1024;

impl<'a> Decoded<'a> {
    /// Decodes UTF-16 behind a byte order mark; a lone surrogate and a last half unit become U+FFFD. Removes the mark of
    /// UTF-8. Other bytes stay as they are.
    pub(crate) fn new(file: &'a [u8]) -> Self {
        let unit: fn([u8; 2]) -> u16 = match file {
            [0xff, 0xfe, ..] => u16::from_le_bytes,
            [0xfe, 0xff, ..] => u16::from_be_bytes,
            [0xef, 0xbb, 0xbf, text @ ..] => {
                return Self { bytes: Cow::Borrowed(text), source: Source::Utf8(3) };
            }
            text => return Self { bytes: Cow::Borrowed(text), source: Source::Utf8(0) },
        };
        let (units, half) = file[2..].as_chunks::<2>();
        let chars = char::decode_utf16(units.iter().map(|&bytes| unit(bytes)));
        let mut text: String = chars.map(|char| char.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
        if !half.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
        let counts = text.as_bytes().chunks(STEP).scan(0, |n, bytes| {
            *n += n_units(bytes);
            Some(*n)
        });
        let n_units = std::iter::once(0).chain(counts).collect();
        let source = Source::Utf16 { n_units, file_bytes: file.len() };
        Self { bytes: Cow::Owned(text.into_bytes()), source }
    }

    /// The text of a file in another character set.
    pub(super) fn of_other(text: String, file_bytes: usize) -> Self {
        Self { bytes: Cow::Owned(text.into_bytes()), source: Source::Other(file_bytes) }
    }

    /// The text.
    ///
    /// # Errors
    /// [`SkipReason::NotText`]: a byte is not UTF-8, or zero, which means a binary file.
    pub(crate) fn text(&self) -> Result<&str, SkipReason> {
        let not_text = |offset| self.in_file(SkipReason::NotText { offset: offset as u64 });
        if let Some(offset) = self.bytes.iter().position(|&byte| byte == 0) {
            return Err(not_text(offset));
        }
        std::str::from_utf8(&self.bytes).map_err(|error| not_text(error.valid_up_to()))
    }

    /// Whether the bytes of the file are the text.
    pub(in crate::notes) fn is_verbatim(&self) -> bool {
        matches!(self.source, Source::Utf8(_))
    }

    /// The bytes of the file from which a range of the text was decoded.
    pub(in crate::notes) fn place(&self, range: Range<usize>) -> Range<usize> {
        match self.source {
            Source::Other(file_bytes) => 0..file_bytes,
            _ => self.offset(range.start)..self.offset(range.end),
        }
    }

    /// A reason whose offset lies in the file, from one whose offset lies in the text.
    pub(super) fn in_file(&self, mut reason: SkipReason) -> SkipReason {
        if let SkipReason::Broken { offset, .. }
        | SkipReason::Limit { offset, .. }
        | SkipReason::NotText { offset } = &mut reason
        {
            *offset = self.offset(*offset as usize) as u64;
        }
        reason
    }

    /// The place in the file of an offset in the text.
    pub(super) fn offset(&self, at: usize) -> usize {
        let at = at.min(self.bytes.len());
        match &self.source {
            Source::Utf8(start) => start + at,
            Source::Other(file_bytes) => at.min(*file_bytes),
            Source::Utf16 { n_units: marks, file_bytes } => {
                let mark = at / STEP;
                let n_units = marks[mark] + n_units(&self.bytes[mark * STEP..at]);
                // The replacement of a last half unit is longer than it.
                (2 + 2 * n_units).min(*file_bytes)
            }
        }
    }
}

/// The units of UTF-16 whose characters begin in these bytes of UTF-8.
fn n_units(bytes: &[u8]) -> usize {
    bytes.iter().map(|&byte| usize::from(byte & 0xc0 != 0x80) + usize::from(byte >= 0xf0)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn utf16(text: &str, is_little: bool) -> Vec<u8> {
        let units = std::iter::once(0xfeff).chain(text.encode_utf16());
        units.flat_map(|unit| if is_little { unit.to_le_bytes() } else { unit.to_be_bytes() }).collect()
    }

    #[test]
    fn damaged_units_are_replaced_and_binary_files_refused() {
        let file = [utf16("a𝄞", true), vec![0x34, 0xd8, b'b', 0, b'c']].concat();
        let decoded = Decoded::new(&file);
        assert_eq!(decoded.text(), Ok("a𝄞\u{fffd}b\u{fffd}"));
        assert_eq!((decoded.place(1..5), decoded.place(8..12)), (4..8, 10..13));
        assert_eq!(Decoded::new(&utf16("ab\0", false)).text(), Err(SkipReason::NotText { offset: 6 }));
        assert_eq!(Decoded::new(b"\xef\xbb\xbfab\xff").text(), Err(SkipReason::NotText { offset: 5 }));
        assert_eq!(Decoded::new(b"a\0b\0").text(), Err(SkipReason::NotText { offset: 1 }));
        assert_eq!(Decoded::new(b"\xff\xfe").text(), Ok(""));
        assert_eq!(Decoded::new(b"\xef\xbb\xbf").place(0..0), 3..3);
    }

    proptest! {
        #[test]
        fn places_are_the_units_of_the_text(text in "[a-é語𝄞\n]{0,900}", repeat in 1..4_usize, is_little: bool) {
            let text = text.repeat(repeat);
            let file = utf16(&text, is_little);
            let decoded = Decoded::new(&file);
            prop_assert_eq!(decoded.text().unwrap(), &text);
            let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            for end in ends {
                let place = decoded.place(0..end);
                let expected = utf16(&text[..end], is_little);
                prop_assert_eq!(&file[place], &expected[2..]);
            }
        }
    }
}
