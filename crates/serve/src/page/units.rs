//! Offsets in UTF-16 code units.

use std::ops::Range;

/// The units before each byte of a text.
pub(super) struct Units(Vec<u32>);

impl Units {
    /// Takes four bytes per byte of the text.
    pub(super) fn of(text: &str) -> Self {
        let mut before = Vec::with_capacity(text.len() + 1);
        let mut n_units = 0;
        for c in text.chars() {
            before.extend(std::iter::repeat_n(n_units, c.len_utf8()));
            n_units += c.len_utf16() as u32;
        }
        before.push(n_units);
        Self(before)
    }

    /// A range of bytes on character boundaries, in units. An end behind the text is its end.
    pub(super) fn range(&self, bytes: &Range<usize>) -> [u32; 2] {
        let last = self.0.len() - 1;
        [self.0[bytes.start.min(last)], self.0[bytes.end.min(last)]]
    }
}

/// The length of a text in units.
pub(super) fn len(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_cut_the_same_text(text in "[a-cé語🙂\n]{0,20}", a in 0..21_usize, b in 0..21_usize) {
            let bounds: Vec<usize> = text.char_indices().map(|(i, _)| i).chain([text.len()]).collect();
            let (a, b) = (bounds[a.min(bounds.len() - 1)], bounds[b.min(bounds.len() - 1)]);
            let bytes = a.min(b)..a.max(b);
            let [start, end] = Units::of(&text).range(&bytes);
            let units: Vec<u16> = text.encode_utf16().collect();
            prop_assert_eq!(String::from_utf16(&units[start as usize..end as usize]).unwrap(), &text[bytes]);
            prop_assert_eq!(len(&text), units.len());
        }
    }
}
