//! Sets of letters, and of bytes with which letters begin.

use std::fmt::Write as _;

/// The last letter.
const LAST: u32 = 0x10_FFFF;
/// Code points that are no letters.
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);

/// A set of letters, as ranges in ascending order that do not touch. None has a surrogate.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Letters(Vec<(u32, u32)>);

impl Letters {
    pub(super) fn all() -> Self {
        Self::of(vec![(0, LAST)])
    }

    /// The letters of these ranges.
    pub(super) fn of(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (start, end) in ranges {
            match merged.last_mut() {
                Some(last) if start <= last.1.saturating_add(1) => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        let without = |(start, end): (u32, u32)| {
            let (from, to) = SURROGATES;
            let below = (start, end.min(from - 1));
            let above = (start.max(to + 1), end);
            [below, above].into_iter().filter(|(start, end)| start <= end)
        };
        Self(merged.into_iter().flat_map(without).collect())
    }

    /// The other letters.
    pub(super) fn inverted(&self) -> Self {
        let (mut ranges, mut next) = (Vec::new(), 0);
        for &(start, end) in &self.0 {
            if next < start {
                ranges.push((next, start - 1));
            }
            next = end + 1;
        }
        if next <= LAST {
            ranges.push((next, LAST));
        }
        Self::of(ranges)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }

    pub(super) fn has(&self, letter: u32) -> bool {
        self.0.iter().any(|&(start, end)| (start..=end).contains(&letter))
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        let (mut own, mut others) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(a), Some(b)) = (own.peek(), others.peek()) {
            if a.1 < b.0 {
                own.next();
            } else if b.1 < a.0 {
                others.next();
            } else {
                return true;
            }
        }
        false
    }

    /// The bytes with which the letters begin in UTF-8.
    pub(super) fn first_bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        for &(start, end) in &self.0 {
            // First bytes grow with the letter.
            let first = |letter| {
                let letter = char::from_u32(letter).expect("no set has surrogates");
                let mut buffer = [0; 4];
                letter.encode_utf8(&mut buffer).as_bytes()[0]
            };
            (first(start)..=first(end)).for_each(|byte| bytes.insert(byte));
        }
        bytes
    }

    /// Appends a class of a regular expression.
    pub(super) fn write(&self, out: &mut String) {
        let letter = |out: &mut String, letter: u32| match char::from_u32(letter) {
            Some(plain) if plain.is_ascii_alphanumeric() => out.push(plain),
            _ => drop(write!(out, "\\x{{{letter:X}}}")),
        };
        if let [(start, end)] = self.0[..]
            && start == end
        {
            return letter(out, start);
        }
        out.push('[');
        for &(start, end) in &self.0 {
            letter(out, start);
            if start < end {
                out.push('-');
                letter(out, end);
            }
        }
        out.push(']');
    }
}

/// A set of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bytes([u64; 4]);

impl Bytes {
    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(own, other)| own & other != 0)
    }

    pub(super) fn with(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own |= other);
        self
    }
}
