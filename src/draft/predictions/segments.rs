//! *Reuse*: the segments of rejected drafts that the target still finds likely (CoordGen, arXiv 2510.15312, section 3.4).
//!
//! A draft is cut off at the first token that the target does not choose, although its rest may still follow. Equation 3
//! selects the longest contiguous segment of the rejected draft whose tokens each have at least the threshold's
//! probability:
//!
//! ```text
//! S = argmax |d_i … d_j|   with   p(d_k | path to d_{k−1}) ≥ threshold   for all k in i..=j
//! ```
//!
//! The probability is that of the store: of the segment's own rows, if echo reads them, or of other rows after the same
//! tokens. The next steps place the segment at the root. If the output has reached one of its tokens, the segment
//! continues from there. Otherwise the draft is assumed to lack a token, or to have another one than the target chose
//! (`alignment.rs`).

use serde::{Deserialize, Serialize};

use crate::draft::alignment::Alignment;
use crate::draft::source::{Anchor, Candidate, Candidates, Cursor, StepOutcome};
use refrain_trees::TokenId;
use refrain_trees::{DraftTree, NodeIdx};

/// The segments of rejected drafts that are kept, and their lifetime.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct ReuseConfig {
    /// Minimum target probability of each token of a segment, 0 to 1.
    pub threshold: f32,
    /// Steps in which a segment may draft, 1 or more.
    pub lifetime: u32,
    /// Maximum tokens of all segments together, 1..=[`TOKENS_MAX`](Self::TOKENS_MAX); the oldest segments are
    /// dropped first. Default 32, as in the paper.
    pub tokens_max: u32,
}

impl Default for ReuseConfig {
    fn default() -> Self {
        ReuseConfig { threshold: 0.3, lifetime: 2, tokens_max: 32 }
    }
}

impl ReuseConfig {
    /// Maximum of [`tokens_max`](Self::tokens_max): cursors have 8 bits for it.
    pub const TOKENS_MAX: u32 = 255;
}

/// Minimum length of a segment: one token has no continuation.
const SEGMENT_LEN_MIN: u32 = 2;

/// The share of a claim at a place where no token agrees yet: 1 to 2 % of such tokens came true.
const UNREACHED: f32 = 0.125;

/// Segments of rejected drafts, at most [`ReuseConfig::tokens_max`] tokens.
#[derive(Clone, Debug)]
pub(super) struct Segments {
    config: ReuseConfig,
    /// Tokens of all segments, oldest first.
    tokens: Vec<TokenId>,
    segments: Vec<Segment>,
    /// Number of consecutive likely rejected tokens up to each node of the newest tree. Shape `[tree.len()]`.
    lens: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    len: u32,
    /// Place of its first token in the draft: 1 is the first rejected token. Zero or negative if the segment
    /// branched off next to an accepted token.
    depth: i32,
    /// Steps since the rejection.
    age: u32,
    /// Tokens that the target has committed since, including the token that replaced the rejected one.
    said: u32,
}

/// A candidate position in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    /// Index of the next token in `tokens`.
    next: u32,
    /// End of the segment in `tokens`.
    end: u32,
    alignment: Alignment,
    /// Number of preceding tokens that agree with the output.
    agreed: u32,
}

/// The high half of a place's cursor: not a token of any vocabulary, and not the `NONE` of a pair.
const PLACE: u64 = (u32::MAX - 1) as u64;

/// Whether a cursor is a place in a segment.
pub(super) fn is_place(cursor: Cursor) -> bool {
    cursor.0 >> 32 == PLACE
}

impl Segments {
    /// No segments; configuration values beyond the bounds are clamped.
    pub(super) fn new(config: ReuseConfig) -> Self {
        let config = ReuseConfig {
            lifetime: config.lifetime.max(1),
            tokens_max: config.tokens_max.clamp(1, ReuseConfig::TOKENS_MAX),
            ..config
        };
        Segments { config, tokens: Vec::new(), segments: Vec::new(), lens: Vec::new() }
    }

    /// Observes a step: ages the segments, and keeps the one of the step's rejected draft whose tokens have these
    /// probabilities, `None` for unknown ones.
    pub(super) fn observe(&mut self, step: &StepOutcome<'_>, probability: impl Fn(NodeIdx) -> Option<f32>) {
        self.age(step.new_tokens.len());
        if let Some((last, len)) = self.longest(step, probability) {
            self.keep(step.tree, last, len, step);
        }
    }

    /// Drops the segments.
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.segments.clear();
    }

    /// Drops the segments and frees their memory.
    pub(super) fn release(&mut self) {
        *self = Self::new(self.config);
    }

    /// Appends the places at which the segments may continue `committed`.
    pub(super) fn anchors(&self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        let mut end = self.tokens.len() as u32;
        for segment in self.segments.iter().rev() {
            end -= segment.len;
            self.places(segment, end, committed, |place| {
                if place.next < place.end {
                    out.push(Anchor { cursor: place.cursor(), match_len: place.agreed });
                }
            });
        }
    }

    /// Pushes the token at a place.
    pub(super) fn expand(&self, cursor: Cursor, parent: u32, out: &mut Candidates) {
        let place = Place::from_cursor(cursor);
        let segments = self.tokens.get(..place.end as usize);
        let Some(&token) = segments.and_then(|tokens| tokens.get(place.next as usize)) else { return };
        out.push(Candidate {
            parent,
            token,
            probability: match place.agreed {
                0 => UNREACHED * place.alignment.claim(),
                _ => Alignment::Straight.claim(),
            },
            match_len: place.agreed,
            count: 1,
            next: Place { next: place.next + 1, agreed: place.agreed + 1, ..place }.cursor(),
        });
    }

    /// Bytes on the heap.
    pub(super) fn memory_usage(&self) -> usize {
        self.tokens.capacity() * size_of::<TokenId>()
            + self.segments.capacity() * size_of::<Segment>()
            + self.lens.capacity() * size_of::<u32>()
    }

    /// Ages the segments by a step that committed `n_tokens`.
    fn age(&mut self, n_tokens: usize) {
        for segment in &mut self.segments {
            segment.age += 1;
            segment.said += n_tokens as u32;
        }
        while self.segments.first().is_some_and(|oldest| oldest.age >= self.config.lifetime) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let oldest = self.segments.remove(0);
        self.tokens.drain(..oldest.len as usize);
    }

    /// Returns the last node and the length of the longest likely segment of the rejected draft; ties go to
    /// the likeliest.
    fn longest(
        &mut self,
        step: &StepOutcome<'_>,
        probability: impl Fn(NodeIdx) -> Option<f32>,
    ) -> Option<(NodeIdx, u32)> {
        let StepOutcome { tree, accepted, .. } = *step;
        self.lens.clear();
        self.lens.resize(tree.len(), 0);
        let mut best = None;
        for i in 1..tree.len() {
            let node = NodeIdx(i as u32);
            let is_likely = || probability(node).is_some_and(|p| p >= self.config.threshold);
            if accepted.contains(&node) || !is_likely() {
                continue;
            }
            self.lens[i] = self.lens[tree.parents()[i] as usize] + 1;
            if best.is_none_or(|(_, len)| self.lens[i] > len) {
                best = Some((node, self.lens[i]));
            }
        }
        best.filter(|&(_, len)| len >= SEGMENT_LEN_MIN)
    }

    /// Keeps the segment that ends at `last`.
    fn keep(&mut self, tree: &DraftTree, last: NodeIdx, len: u32, step: &StepOutcome<'_>) {
        let kept = len.min(self.config.tokens_max);
        while self.tokens.len() as u32 + kept > self.config.tokens_max {
            self.drop_oldest();
        }
        let up = std::iter::successors(Some(last), |&node| tree.parent(node));
        let start = self.tokens.len();
        self.tokens.extend(up.take(len as usize).map(|node| tree.token(node)));
        self.tokens[start..].reverse();
        self.tokens.truncate(start + kept as usize);
        let depth = tree.depths()[last.index()] as i32 + 1 - len as i32 - step.accepted.len() as i32;
        self.segments.push(Segment { len: kept, depth, age: 0, said: 1 });
    }

    /// Calls `found` with the candidate positions after `committed` of the segment that begins at `start`.
    fn places(&self, segment: &Segment, start: u32, committed: &[TokenId], mut found: impl FnMut(Place)) {
        let Segment { len, depth, said, .. } = *segment;
        let tokens = &self.tokens[start as usize..(start + len) as usize];
        let end = start + len;
        let agreement = |n: usize| {
            let pairs = tokens[..n].iter().rev().zip(committed.iter().rev());
            pairs.take_while(|(a, b)| a == b).count() as u32
        };
        // The longest agreement; ties go to the last position, which the output has reached.
        let (agreed, n) = (1..=tokens.len()).map(|n| (agreement(n), n as u32)).max().unwrap_or((0, 0));
        if agreed > 0 {
            found(Place { next: start + n, end, alignment: Alignment::Straight, agreed });
            return;
        }
        let place = |index: i32, alignment| match u32::try_from(index) {
            Ok(index) => Place { next: start + index, end, alignment, agreed: 0 },
            // The target skipped the tokens in between.
            Err(_) => Place { next: start, end, alignment: Alignment::Redundant, agreed: 0 },
        };
        let synonym = place(said as i32 + 1 - depth, Alignment::Synonym);
        let missing = place(1 - depth, Alignment::Missing);
        found(synonym);
        if missing.next != synonym.next {
            found(missing);
        }
    }
}

impl Place {
    fn cursor(self) -> Cursor {
        let [next, end, agreed] = [self.next, self.end, self.agreed].map(|n| u64::from(n.min(255)));
        Cursor(next | end << 8 | agreed << 16 | self.alignment.to_bits() << 24 | PLACE << 32)
    }

    fn from_cursor(cursor: Cursor) -> Self {
        let [next, end, agreed] = [0, 8, 16].map(|bit| (cursor.0 >> bit) as u32 & 0xFF);
        Place { next, end, agreed, alignment: Alignment::from_bits(cursor.0 >> 24) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(c: char) -> TokenId {
        TokenId(c as u32)
    }

    fn tokens(text: &str) -> Vec<TokenId> {
        text.chars().map(token).collect()
    }

    /// A step that drafts `draft` as a chain with these probabilities in percent, accepts `n_accepted` tokens
    /// and commits `bonus`.
    fn reject(source: &mut Segments, draft: &str, percent: &[u8], n_accepted: usize, bonus: char) {
        let mut tree = DraftTree::new(token('^'));
        let mut nodes = vec![NodeIdx::ROOT];
        for c in draft.chars() {
            nodes.push(tree.push(nodes[nodes.len() - 1], token(c), 1.0, 0));
        }
        let mut said = tokens(&draft[..n_accepted]);
        said.push(token(bonus));
        let accepted = &nodes[1..=n_accepted];
        let probability = |node: NodeIdx| percent.get(node.index() - 1).map(|&p| f32::from(p) / 100.0);
        source.observe(&StepOutcome { tree: &tree, accepted, new_tokens: &said }, probability);
    }

    /// A step without a draft.
    fn say(source: &mut Segments, said: char) {
        reject(source, "", &[], 0, said);
    }

    /// The proposals after `committed`: each position extended to the end of its segment, best match first.
    fn drafts(source: &mut Segments, committed: &str) -> Vec<String> {
        let mut anchors = Vec::new();
        source.anchors(&tokens(committed), &mut anchors);
        assert!(anchors.iter().all(|anchor| is_place(anchor.cursor)));
        anchors.sort_by_key(|anchor| std::cmp::Reverse(anchor.match_len));
        let draft = |anchor: &Anchor, source: &mut Segments| {
            let (mut cursor, mut text) = (anchor.cursor, String::new());
            loop {
                let mut candidates = Candidates::with_limit(9);
                source.expand(cursor, 0, &mut candidates);
                let [candidate] = candidates.as_slice() else { return text };
                text.push(char::from_u32(candidate.token.0).unwrap());
                cursor = candidate.next;
            }
        };
        anchors.iter().map(|anchor| draft(anchor, source)).collect()
    }

    fn source(lifetime: u32, tokens_max: u32) -> Segments {
        Segments::new(ReuseConfig { threshold: 0.5, lifetime, tokens_max })
    }

    #[test]
    fn the_longest_likely_segment_is_placed_as_missing_and_as_synonym() {
        let mut source = source(1, 32);
        //                             a b │ c d e f g h
        reject(&mut source, "abcdefgh", &[99, 99, 60, 70, 80, 10, 90, 90], 2, 'X');
        assert_eq!(drafts(&mut source, "^abX"), ["de", "cde"], "X for c, or c was missing X");
        say(&mut source, 'Y');
        assert_eq!(drafts(&mut source, "^abXY"), [] as [&str; 0], "a lifetime of one step");
    }

    #[test]
    fn a_segment_that_begins_later_is_placed_where_it_lines_up() {
        let mut second = source(1, 32);
        reject(&mut second, "cdefg", &[10, 70, 80, 90, 90], 0, 'X');
        assert_eq!(drafts(&mut second, "^X"), ["defg"], "X for c; a missing X would want c first");
        let mut third = source(1, 32);
        reject(&mut third, "cdefg", &[10, 10, 80, 90, 90], 0, 'X');
        assert_eq!(drafts(&mut third, "^X"), ["efg"], "c and d left out");
    }

    #[test]
    fn it_goes_on_where_the_output_has_come_upon_it() {
        let mut redundant = source(3, 32);
        reject(&mut redundant, "cdefg", &[60, 70, 80, 90, 90], 0, 'e');
        assert_eq!(drafts(&mut redundant, "^e"), ["fg"], "c and d were redundant");
        let mut later = source(3, 32);
        reject(&mut later, "cdefg", &[60, 70, 80, 90, 90], 0, 'X');
        say(&mut later, 'c');
        assert_eq!(drafts(&mut later, "^Xc"), ["defg"]);
        say(&mut later, 'd');
        assert_eq!(drafts(&mut later, "^Xcd"), ["efg"]);
    }

    #[test]
    fn what_is_unlikely_or_unknown_is_not_kept() {
        let mut source = source(1, 32);
        reject(&mut source, "cdef", &[90, 10, 90, 10], 0, 'X');
        assert_eq!(drafts(&mut source, "^X"), [] as [&str; 0], "segments of one token");
        reject(&mut source, "cdef", &[], 0, 'X');
        assert_eq!(drafts(&mut source, "^X"), [] as [&str; 0], "no confidence was computed");
        let mut tree = DraftTree::new(token('^'));
        let first = tree.push(NodeIdx::ROOT, token('a'), 0.5, 0);
        tree.push(first, token('b'), 0.5, 0);
        let unknown = StepOutcome { tree: &tree, accepted: &[], new_tokens: &[token('X')] };
        source.observe(&unknown, |_| None);
        assert_eq!(drafts(&mut source, "^X"), [] as [&str; 0]);
    }

    #[test]
    fn the_newest_segments_keep_within_the_limit() {
        let mut source = source(9, 8);
        reject(&mut source, "abcde", &[90; 5], 0, 'X');
        reject(&mut source, "fgh", &[90; 3], 0, 'X');
        assert_eq!(source.tokens, tokens("abcdefgh"));
        reject(&mut source, "ijk", &[90; 3], 0, 'X');
        assert_eq!(source.tokens, tokens("fghijk"));
        reject(&mut source, "lmnopqrstuvw", &[90; 12], 0, 'X');
        assert_eq!(source.tokens, tokens("lmnopqrs"), "a long one is cut");
        assert_eq!(source.segments.len(), 1);
    }

    #[test]
    fn a_cursor_holds_its_place() {
        let place = Place { next: 254, end: 255, alignment: Alignment::Missing, agreed: 200 };
        assert_eq!(Place::from_cursor(place.cursor()), place);
        assert!(is_place(place.cursor()));
    }
}
