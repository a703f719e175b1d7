//! The drafted text of an answer.

use std::ops::Range;

use refrain::{Origin, TokenEvent};

/// The parts of an answer whose tokens were proposed by draft sources.
///
/// A draft is evidence of copying that does not depend on the length of the span. The target chose every token, so a span may be copied
/// without it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Drafted {
    ranges: Vec<Range<usize>>,
    n_bytes: usize,
}

impl Drafted {
    /// Before the first token.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next token of the answer.
    pub fn push(&mut self, token: &TokenEvent) {
        self.push_text(token.text.len(), token.origin != Origin::Target);
    }

    /// Adds the next `n_bytes` of the answer.
    pub fn push_text(&mut self, n_bytes: usize, is_drafted: bool) {
        let range = self.n_bytes..self.n_bytes + n_bytes;
        self.n_bytes = range.end;
        match self.ranges.last_mut() {
            _ if !is_drafted || range.is_empty() => {}
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }

    /// The drafted bytes of a part of the answer.
    pub fn n_drafted(&self, part: Range<usize>) -> usize {
        let from = self.ranges.partition_point(|range| range.end <= part.start);
        let inside = self.ranges[from..].iter().take_while(|range| range.start < part.end);
        inside.map(|range| range.end.min(part.end) - range.start.max(part.start)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_bytes_inside() {
        let mut drafted = Drafted::new();
        for (n, is_drafted) in [(4, false), (3, true), (0, false), (2, true), (5, false), (1, true)] {
            drafted.push_text(n, is_drafted);
        }
        assert_eq!(drafted.ranges, [4..9, 14..15]);
        assert_eq!(drafted.n_drafted(0..15), 6);
        assert_eq!(drafted.n_drafted(5..14), 4);
        assert_eq!(drafted.n_drafted(9..14), 0);
        assert_eq!(drafted.n_drafted(14..99), 1);
    }
}
