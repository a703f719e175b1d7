//! Places in texts, in the units of a language's strings.

use std::ops::Range;

use crate::events::Place;
use crate::options::Units;

impl Units {
    /// The place of a range of bytes of a text.
    pub(crate) fn place(self, text: &str, bytes: &Range<usize>) -> Place {
        Place { start: self.count(text, bytes.start), end: self.count(text, bytes.end) }
    }

    /// The number of units before a byte.
    fn count(self, text: &str, offset: usize) -> u64 {
        let offset = offset.min(text.len());
        match self {
            Self::Utf8 => offset as u64,
            Self::Utf16 => {
                let before = text.get(..offset).unwrap_or(text);
                before.chars().map(|letter| letter.len_utf16() as u64).sum()
            }
        }
    }

    /// The byte of a text at a number of units. Beyond the text, as many bytes beyond it; inside a character, its second byte, which is
    /// refused as such.
    pub(crate) fn byte(self, text: &str, units: u64) -> usize {
        let beyond = |rest: u64| text.len().saturating_add(usize::try_from(rest).unwrap_or(usize::MAX));
        match self {
            Self::Utf8 => usize::try_from(units).unwrap_or(usize::MAX),
            Self::Utf16 => {
                let mut at = 0;
                for (offset, letter) in text.char_indices() {
                    if at >= units {
                        return if at == units { offset } else { offset.saturating_sub(1) };
                    }
                    at += letter.len_utf16() as u64;
                }
                // (Between the surrogates of the last character.)
                if at > units { text.len().saturating_sub(1) } else { beyond(units - at) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_agree_with_the_strings_of_other_languages() {
        let text = "Ä🎉b";
        let utf16: Vec<u16> = text.encode_utf16().collect();
        assert_eq!(Units::Utf16.place(text, &(0..text.len())), Place { start: 0, end: utf16.len() as u64 });
        for (offset, _) in text.char_indices() {
            let place = Units::Utf16.place(text, &(offset..text.len()));
            let rest = String::from_utf16(&utf16[place.start as usize..]).unwrap();
            assert_eq!(rest, text[offset..]);
            assert_eq!(Units::Utf16.byte(text, place.start), offset);
        }
        assert!(!text.is_char_boundary(Units::Utf16.byte(text, 2)), "between the surrogates");
        assert_eq!(Units::Utf16.byte(text, 4), text.len());
        assert_eq!(Units::Utf16.byte(text, 6), text.len() + 2);
        assert!(!"🎉".is_char_boundary(Units::Utf16.byte("🎉", 1)));
        assert_eq!(Units::Utf8.place(text, &(2..6)), Place { start: 2, end: 6 });
    }
}
