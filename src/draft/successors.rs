//! The target's likely successors of a position: a few tokens with their probabilities, stored compactly.

use crate::face::internals;
use refrain_trees::TokenId;

/// A likely next token, and the natural logarithm of its target probability.
#[derive(Clone, Copy, PartialEq, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Successor {
    /// The token.
    pub token: TokenId,
    /// At most 0.
    pub log_probability: f32,
}

/// Lists of likely successors of consecutive positions, likeliest first.
///
/// A list has at most [`SUCCESSORS_MAX`] entries and takes 40 bytes: probabilities are rounded to steps of
/// 6 %, which is finer than any use requires.
#[derive(Clone, Debug, Default)]
pub struct SuccessorLists {
    /// `[len, SUCCESSORS_MAX]`; unused entries of a list are `NONE`.
    tokens: Vec<u32>,
    /// −log-probability in sixteenths. Shape as `tokens`.
    sixteenths: Vec<u8>,
}

/// Maximum successors of a position.
pub const SUCCESSORS_MAX: usize = 8;

/// Bytes of a list.
pub(super) const LIST_BYTES: usize = SUCCESSORS_MAX * (size_of::<u32>() + 1);

/// Not a token of any vocabulary.
const NONE: u32 = u32::MAX;

impl SuccessorLists {
    internals! {
        /// No lists.
        fn new() -> Self {
            Self::default()
        }
    }

    /// Number of positions, including those with an empty list.
    pub fn len(&self) -> usize {
        self.tokens.len() / SUCCESSORS_MAX
    }

    /// Whether there is no position.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    internals! {
        /// Removes all positions.
        fn clear(&mut self) {
            self.truncate(0);
        }

        /// Keeps the first `len` positions.
        fn truncate(&mut self, len: usize) {
            self.tokens.truncate(len.saturating_mul(SUCCESSORS_MAX));
            self.sixteenths.truncate(len.saturating_mul(SUCCESSORS_MAX));
        }

        /// Appends the list of the next position; entries beyond [`SUCCESSORS_MAX`] are dropped.
        fn push(&mut self, list: &[Successor]) {
            for i in 0..SUCCESSORS_MAX {
                let successor = list.get(i);
                self.tokens.push(successor.map_or(NONE, |successor| successor.token.0));
                self.sixteenths.push(successor.map_or(u8::MAX, |s| sixteenths(s.log_probability)));
            }
        }
    }

    /// The list of a position; empty if the position is unknown.
    pub fn list(&self, position: usize) -> impl ExactSizeIterator<Item = Successor> + '_ {
        let range = self.range(position);
        let tokens = &self.tokens[range.clone()];
        let sixteenths = &self.sixteenths[range];
        let n = tokens.iter().position(|&token| token == NONE).unwrap_or(tokens.len());
        tokens[..n].iter().zip(sixteenths).map(|(&token, &sixteenths)| Successor {
            token: TokenId(token),
            log_probability: f32::from(sixteenths) / -16.0,
        })
    }

    internals! {
        /// The `n`th successor of a position.
        fn successor(&self, position: usize, n: usize) -> Option<Successor> {
            self.list(position).nth(n)
        }

        /// Writes `lists` at the positions from `first` on; positions between the end and `first` get empty
        /// lists.
        fn write(&mut self, first: usize, lists: &SuccessorLists) {
            while self.len() < first {
                self.push(&[]);
            }
            let start = first * SUCCESSORS_MAX;
            let overlap = (self.tokens.len() - start).min(lists.tokens.len());
            self.tokens[start..start + overlap].copy_from_slice(&lists.tokens[..overlap]);
            self.sixteenths[start..start + overlap].copy_from_slice(&lists.sixteenths[..overlap]);
            self.tokens.extend_from_slice(&lists.tokens[overlap..]);
            self.sixteenths.extend_from_slice(&lists.sixteenths[overlap..]);
        }
    }

    /// Writes list `at` of `from` at `position`, which is at most [`len`](Self::len).
    ///
    /// # Panics
    /// One of the positions is beyond the end.
    pub(super) fn copy_from(&mut self, position: usize, from: &SuccessorLists, at: usize) {
        let end = (position + 1) * SUCCESSORS_MAX;
        if position == self.len() {
            self.tokens.resize(end, NONE);
            self.sixteenths.resize(end, u8::MAX);
        }
        let (to, of) = (end - SUCCESSORS_MAX..end, at * SUCCESSORS_MAX..(at + 1) * SUCCESSORS_MAX);
        self.tokens[to.clone()].copy_from_slice(&from.tokens[of.clone()]);
        self.sixteenths[to].copy_from_slice(&from.sixteenths[of]);
    }

    /// The stored form of a position's list: tokens, `u32::MAX` behind the last, and −log-probabilities in sixteenths, 255
    /// behind the last.
    ///
    /// # Panics
    /// The position is unknown.
    pub(super) fn stored(&self, position: usize) -> ([u32; SUCCESSORS_MAX], [u8; SUCCESSORS_MAX]) {
        let start = position * SUCCESSORS_MAX;
        let mut stored = ([0; SUCCESSORS_MAX], [0; SUCCESSORS_MAX]);
        stored.0.copy_from_slice(&self.tokens[start..start + SUCCESSORS_MAX]);
        stored.1.copy_from_slice(&self.sixteenths[start..start + SUCCESSORS_MAX]);
        stored
    }

    /// Appends a list in its [stored](Self::stored) form.
    pub(super) fn push_stored(&mut self, tokens: &[u32; SUCCESSORS_MAX], sixteenths: &[u8; SUCCESSORS_MAX]) {
        self.tokens.extend_from_slice(tokens);
        self.sixteenths.extend_from_slice(sixteenths);
    }

    internals! {
        /// Bytes on the heap.
        fn memory_usage(&self) -> usize {
            self.tokens.capacity() * size_of::<u32>() + self.sixteenths.capacity()
        }
    }

    fn range(&self, position: usize) -> std::ops::Range<usize> {
        if position < self.len() { position * SUCCESSORS_MAX..(position + 1) * SUCCESSORS_MAX } else { 0..0 }
    }
}

/// The stored form of a log-probability: values of −16 and less are equal, and so is NaN.
fn sixteenths(log_probability: f32) -> u8 {
    (-16.0 * log_probability).round().min(255.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn successor(token: u32, probability: f32) -> Successor {
        Successor { token: TokenId(token), log_probability: probability.ln() }
    }

    fn tokens(lists: &SuccessorLists, position: usize) -> Vec<u32> {
        lists.list(position).map(|successor| successor.token.0).collect()
    }

    #[test]
    fn lists_read_back() {
        let mut lists = SuccessorLists::new();
        lists.push(&[successor(7, 0.9), successor(3, 0.05)]);
        lists.push(&[]);
        lists.push(&(0..20).map(|token| successor(token, 0.01)).collect::<Vec<_>>());
        assert_eq!(lists.len(), 3);
        assert_eq!([tokens(&lists, 0), tokens(&lists, 1)], [vec![7, 3], vec![]]);
        assert_eq!(tokens(&lists, 2).len(), SUCCESSORS_MAX);
        assert_eq!(tokens(&lists, 3), [] as [u32; 0], "beyond the end");
        for (found, given) in lists.list(0).zip([0.9f32, 0.05]) {
            assert!((found.log_probability.exp() / given - 1.0).abs() < 0.04, "{found:?}");
        }
        assert_eq!(lists.successor(0, 1).unwrap().token, TokenId(3));
        assert_eq!(lists.successor(0, 2), None);
    }

    #[test]
    fn extremes_saturate() {
        let mut lists = SuccessorLists::new();
        lists.push(
            &[0.0, 1e-3, f32::NEG_INFINITY, f32::NAN]
                .map(|log_probability| Successor { token: TokenId(1), log_probability }),
        );
        let found: Vec<f32> = lists.list(0).map(|successor| successor.log_probability).collect();
        assert_eq!(found, [0.0, 0.0, -255.0 / 16.0, -255.0 / 16.0]);
    }

    #[test]
    fn writing_overwrites_appends_and_fills_gaps() {
        let mut new = SuccessorLists::new();
        new.push(&[successor(8, 0.5)]);
        new.push(&[successor(9, 0.5)]);
        let mut lists = SuccessorLists::new();
        lists.write(2, &new);
        assert_eq!((0..4).map(|i| tokens(&lists, i)).collect::<Vec<_>>(), [vec![], vec![], vec![8], vec![9]]);
        lists.write(3, &new);
        assert_eq!((2..5).map(|i| tokens(&lists, i)).collect::<Vec<_>>(), [vec![8], vec![8], vec![9]]);
        lists.write(0, &new);
        assert_eq!((lists.len(), tokens(&lists, 1)), (5, vec![9]));
        lists.truncate(1);
        assert_eq!((lists.len(), tokens(&lists, 0), tokens(&lists, 1)), (1, vec![8], vec![]));
    }
}
