//! The name of a segment's contents, under which hosts share it.

use std::fmt;

/// The name of a segment's contents: equal names, equal bytes. (XXH3 protects against damage, not against forgery. A
/// forged segment could waste drafts, and never change an output.)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentName {
    /// The number in its header.
    pub number: u64,
    /// The length of the file.
    pub bytes: u64,
    /// The checksum of its header, which contains a checksum of the tables, which contain those of all pages.
    pub sum: u64,
}

impl SegmentName {
    /// Parses the text that [`Display`](fmt::Display) writes; `None` for other texts.
    pub fn parse(name: &str) -> Option<Self> {
        let mut numbers = name.split('-').map(|number| u64::from_str_radix(number, 16).ok());
        let mut next = || numbers.next().flatten();
        let parsed = SegmentName { number: next()?, bytes: next()?, sum: next()? };
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}-{:016x}", self.number, self.bytes, self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let name = SegmentName { number: 1, bytes: 4096, sum: 7 };
        assert_eq!(SegmentName::parse(&name.to_string()), Some(name));
        for other in
            ["", "1-1000", "1-1000-0000000000000007-8", "01-1000-0000000000000007", "1-1000-7.partial"]
        {
            assert_eq!(SegmentName::parse(other), None, "{other}");
        }
    }
}
