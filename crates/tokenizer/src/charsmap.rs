//! Checks the table of a `Precompiled` normalizer: SentencePiece's rules for replacing characters.
//!
//! The table is a base64 text of a double array (Aoe 1989) and of the replacements, each ended by a NUL byte. A unit of
//! the array has 32 bits. From a node at place `p` with offset `o`, the child of byte `b` is at `p ^ o ^ b`, if the unit
//! there has the label `b`. A node with a leaf has its value at `p ^ o`: the place of its replacement.
//!
//! The `tokenizers` library follows the array without a check, and panics where it leads outside. So all nodes that a
//! text can reach are visited here first.

/// Maximum length of a table, in bytes (SentencePiece's NFKC: 240 kB). It bounds the time of the check.
pub(super) const CHARSMAP_BYTES_MAX: usize = 4 << 20;

/// A checked table.
pub(super) struct Charsmap {
    /// For each key, the replacement's letters other than spaces, its spaces, and the key's length, all in bytes.
    replacements: Vec<(usize, usize, usize)>,
}

impl Charsmap {
    /// Decodes and checks a table.
    ///
    /// # Errors
    /// The reason why the library could not follow the table.
    pub(super) fn check(base64: &str) -> Result<Self, &'static str> {
        let bytes = decode_base64(base64).ok_or("the table is not base64")?;
        let (size, rest) = bytes.split_first_chunk().ok_or("the table has no length")?;
        let size = u32::from_le_bytes(*size) as usize / 4 * 4;
        let (array, replacements) =
            rest.split_at_checked(size).ok_or("the array is longer than the table")?;
        let units: Vec<u32> = array.as_chunks().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        let texts = std::str::from_utf8(replacements).map_err(|_| "the replacements are not UTF-8")?;
        let unit = |place: usize| units.get(place).copied().ok_or("the array leads outside itself");
        let mut charsmap = Self { replacements: Vec::new() };
        // The units reached, from short keys to long ones. A unit's first visit has its shortest key, with which the
        // replacement grows a text most.
        let mut seen = vec![false; units.len()];
        let mut level = vec![offset(unit(0)?)];
        let mut key_len = 0;
        while !level.is_empty() {
            key_len += 1;
            let mut next = Vec::new();
            for node in level {
                for byte in 1..=255usize {
                    let place = node ^ byte;
                    let child = unit(place)?;
                    if child & (1 << 31 | 0xff) != byte as u32 || std::mem::replace(&mut seen[place], true) {
                        continue;
                    }
                    let inner = place ^ offset(child);
                    if child >> 8 & 1 == 1 {
                        let begin = (unit(inner)? & !(1 << 31)) as usize;
                        let text = texts.get(begin..).ok_or("a key has no replacement")?;
                        let text = text.split_once('\0').map_or(text, |(text, _)| text);
                        let spaces = text.bytes().filter(|&byte| byte == b' ').count();
                        charsmap.replacements.push((text.len() - spaces, spaces, key_len));
                    }
                    next.push(inner);
                }
            }
            level = next;
        }
        Ok(charsmap)
    }

    /// Maximum output bytes for one byte of text, if a byte of a replacement becomes `other` bytes later and a space
    /// becomes `space` bytes. At least `other`.
    pub(super) fn growth(&self, other: usize, space: usize) -> usize {
        let grown = self.replacements.iter().map(|&(others, spaces, key_len)| {
            others.saturating_mul(other).saturating_add(spaces.saturating_mul(space)).div_ceil(key_len)
        });
        grown.max().unwrap_or(0).max(other)
    }
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & 1 << 9) >> 6)) as usize
}

/// Decodes base64 with padding, in the alphabet with `+` and `/`.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits = text.trim_end_matches('=').as_bytes();
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in digits.chunks(4) {
        let mut bits = 0u32;
        for index in 0..4 {
            bits = bits << 6 | u32::from(group.get(index).map_or(Some(0), |&byte| digit(byte))?);
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode_base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut out = String::new();
        for group in bytes.chunks(3) {
            let mut padded = [0; 4];
            padded[1..=group.len()].copy_from_slice(group);
            let bits = u32::from_be_bytes(padded);
            let digit = |index: u32| DIGITS[(bits >> (18 - 6 * index)) as usize & 63] as char;
            out.extend((0..=group.len() as u32).map(digit));
            out.push_str(&"=".repeat(3 - group.len()));
        }
        out
    }

    /// A table of an array and replacements.
    fn table(units: &[u32], texts: &[u8]) -> String {
        let mut bytes = (4 * units.len() as u32).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend_from_slice(texts);
        encode_base64(&bytes)
    }

    /// The keys `a` and `bc`, with the replacements at 0 and `at`.
    fn two_keys(at: u32) -> Vec<u32> {
        let mut units = vec![0u32; 1024];
        units[0] = 256 << 10;
        // `a`: a leaf whose value is at 256 ^ 97 ^ 512.
        let a = 256 ^ usize::from(b'a');
        units[a] = 512 << 10 | 1 << 8 | u32::from(b'a');
        units[a ^ 512] = 1 << 31;
        let b = 256 ^ usize::from(b'b');
        units[b] = 512 << 10 | u32::from(b'b');
        let c = b ^ 512 ^ usize::from(b'c');
        units[c] = 768 << 10 | 1 << 8 | u32::from(b'c');
        units[c ^ 768] = 1 << 31 | at;
        units
    }

    #[test]
    fn growth_follows_from_the_keys() {
        let units = two_keys(4);
        let charsmap = Charsmap::check(&table(&units, b"xyz\0 q q \0")).unwrap();
        let mut found = charsmap.replacements.clone();
        found.sort_unstable();
        assert_eq!(found, [(2, 3, 2), (3, 0, 1)]);
        assert_eq!((charsmap.growth(1, 1), charsmap.growth(1, 3), charsmap.growth(5, 5)), (3, 6, 15));
        let library = tokenizers::normalizers::Precompiled::from(
            &decode_base64(&table(&units, b"xyz\0 q q \0")).unwrap(),
        );
        // The library looks up one character or cluster of characters at a time.
        assert_eq!(library.unwrap().normalize_string("abcb"), "xyzbcb");
    }

    #[test]
    fn tables_that_lead_outside_are_refused() {
        let refused = |units: &[u32], texts: &[u8]| Charsmap::check(&table(units, texts)).err();
        assert_eq!(refused(&[], b""), Some("the array leads outside itself"));
        assert_eq!(refused(&two_keys(4)[..900], b"xyz\0abc\0"), Some("the array leads outside itself"));
        assert_eq!(refused(&two_keys(40), b"xyz\0abc\0"), Some("a key has no replacement"));
        assert_eq!(refused(&two_keys(1), "\u{e9}\0".as_bytes()), Some("a key has no replacement"));
        assert_eq!(refused(&two_keys(1), b"\xff"), Some("the replacements are not UTF-8"));
        assert_eq!(Charsmap::check("AAA").err(), Some("the table is not base64"));
        assert_eq!(Charsmap::check("AA==").err(), Some("the table has no length"));
        assert_eq!(Charsmap::check("/////w==").err(), Some("the array is longer than the table"));
    }

    #[test]
    fn base64_is_decoded() {
        for bytes in [&b""[..], b"a", b"ab", b"abc", b"abcd", &[0, 255, 127, 128, 62, 63]] {
            assert_eq!(decode_base64(&encode_base64(bytes)).as_deref(), Some(bytes));
        }
        for text in ["a", "ab", "abc", "a===", "====", "ab=c", "ab\n=", "é=="] {
            assert_eq!(decode_base64(text), None, "{text:?}");
        }
    }
}
