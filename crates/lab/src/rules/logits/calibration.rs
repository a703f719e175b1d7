//! CoordGen's calibration as published (arXiv 2510.15312, section 3.3): a token tree from the target's own predictions at the
//! positions of the context.
//!
//! During prefill, one projection yields the target's distribution after each position of the prompt. The likeliest
//! [successors](SuccessorLists) of each position are the target's predictions, which may differ from the text's next token. The
//! tree follows the successors through the text:
//!
//! ```text
//! output      … Clinton ▏
//! context     … Clinton 's visit …            successors there: arrived .4, 's .3, …
//! context     … when she arrived in Oslo …    successors there: in .6, at .2, …
//! draft       Clinton → arrived → in …
//! ```
//!
//! A cursor is a position of the text whose preceding tokens agree with the path over some length. Its
//! children are the position's successors. A child continues at the occurrences of its token, those with the
//! longest agreement of preceding tokens first. A successor that does not occur in the text is a leaf. The
//! rows that verification computes are positions too.
//!
//! Per node of the tree, at most [`OCCURRENCES_MAX`] occurrences are compared and [`FOLLOWED_MAX`] lists are
//! read, so the batch's rows bound the search. (The engine's source keys the same lists by the last two tokens instead.)

use std::collections::HashMap;

use refrain::TokenId;
use refrain::drafting::{Anchor, Candidate, Candidates, Cursor, Successor, SuccessorLists};

/// Maximum occurrences of a token that are compared, newest first.
const OCCURRENCES_MAX: usize = 16;
/// Maximum positions whose successors a node has.
const FOLLOWED_MAX: usize = 3;
/// Maximum tokens compared before an occurrence: a longer agreement is no stronger evidence.
const AGREED_MAX: u32 = 24;
/// Maximum tokens of the text: a cursor has 24 bits for a position.
const TOKENS_MAX: usize = 1 << 24;
/// No position.
const NONE: u32 = u32::MAX;

/// A position of the text, and the number of tokens up to it that agree with the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    position: u32,
    agreed: u32,
}

/// The target's successors at the positions of the context.
#[derive(Clone, Debug, Default)]
pub(super) struct Calibration {
    text: Vec<TokenId>,
    /// The previous position with the same token, or `NONE`. Shape of `text`.
    earlier: Vec<u32>,
    /// The last position of each token. Only looked up, never iterated over.
    newest: HashMap<TokenId, u32>,
    /// Successors by position; may include positions that are not yet in `text`, and lack the newest.
    lists: SuccessorLists,
    /// The places of the newest step, best first. They ensure that a place that keeps agreeing is never lost
    /// among many occurrences.
    places: Vec<Place>,
}

impl Calibration {
    /// Reads the text so far.
    pub(super) fn read(&mut self, committed: &[TokenId]) {
        if committed.len() < self.text.len() {
            self.reset();
        }
        for &token in committed.iter().take(TOKENS_MAX).skip(self.text.len()) {
            let position = self.text.len() as u32;
            let earlier = self.newest.insert(token, position).unwrap_or(NONE);
            self.text.push(token);
            self.earlier.push(earlier);
            self.go_on(token);
        }
    }

    /// Advances the places by a token; drops the places whose text has another token.
    fn go_on(&mut self, token: TokenId) {
        let text = &self.text;
        self.places.retain_mut(|place| {
            place.position += 1;
            place.agreed = (place.agreed + 1).min(AGREED_MAX);
            text.get(place.position as usize) == Some(&token) && (place.position as usize) < text.len() - 1
        });
    }

    /// Inserts a new place in order of agreement, then of recency, and keeps the best.
    fn insert(places: &mut [Option<Place>; FOLLOWED_MAX], place: Place) {
        if places.iter().flatten().any(|held| held.position == place.position) {
            return;
        }
        let key = |place: &Place| (place.agreed, place.position);
        let mut moving = Some(place);
        for slot in places {
            let Some(new) = moving else { return };
            if slot.is_none_or(|held| key(&held) < key(&new)) {
                moving = slot.replace(new);
            }
        }
    }

    /// Number of tokens before `position` that agree with those before `other`, at most `max`.
    fn agreement(&self, position: u32, other: u32, max: u32) -> u32 {
        let before = |end: u32| self.text[..end as usize].iter().rev().take(max as usize);
        before(position).zip(before(other)).take_while(|(a, b)| a == b).count() as u32
    }

    /// The best occurrences of `token` that have successors, after a path whose last `from.agreed` tokens
    /// agree with the text up to `from.position`.
    fn occurrences(&self, token: TokenId, from: Place) -> [Option<Place>; FOLLOWED_MAX] {
        let mut best = [None; FOLLOWED_MAX];
        // The text's own continuation, if it is the token, has the longest agreement.
        let straight = from.position + 1;
        if self.text.get(straight as usize) == Some(&token) && self.has_list(straight) {
            Self::insert(&mut best, Place { position: straight, agreed: from.agreed + 1 });
        }
        let newest = self.newest.get(&token).copied().filter(|&newest| newest != NONE);
        let chain = std::iter::successors(newest, |&at| {
            Some(self.earlier[at as usize]).filter(|&earlier| earlier != NONE)
        });
        for position in chain.take(OCCURRENCES_MAX).filter(|&position| self.has_list(position)) {
            let agreed = 1 + self.agreement(position, from.position + 1, from.agreed.min(AGREED_MAX - 1));
            Self::insert(&mut best, Place { position, agreed });
        }
        best
    }

    fn has_list(&self, position: u32) -> bool {
        self.lists.successor(position as usize, 0).is_some()
    }

    /// Pushes the successors of a position.
    fn propose(&self, place: Place, parent: u32, out: &mut Candidates) {
        let text_goes_on = self.text.get(place.position as usize + 1);
        for (n, Successor { token, log_probability }) in self.lists.list(place.position as usize).enumerate()
        {
            let candidate = Candidate {
                parent,
                token,
                probability: log_probability.exp(),
                match_len: place.agreed,
                // The count is 2 if the text continues with the token too.
                count: 1 + u32::from(text_goes_on == Some(&token)),
                next: encode(place, Some(n)),
            };
            if !out.push(candidate) {
                return;
            }
        }
    }

    /// Takes the successors of the positions of the text.
    pub(super) fn calibrate(&mut self, first: usize, lists: &SuccessorLists) {
        if first < TOKENS_MAX {
            self.lists.write(first, lists);
        }
    }

    /// Forgets the text.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Appends the positions whose preceding tokens agree with the end of the text, the longest agreement first.
    pub(super) fn anchors(&mut self, out: &mut Vec<Anchor>) {
        let Some((&root, before)) = self.text.split_last() else { return };
        // The path is the text itself, up to the token before the root.
        let end = Place { position: (before.len() as u32).wrapping_sub(1), agreed: AGREED_MAX - 1 };
        let mut best = [None; FOLLOWED_MAX];
        for &place in self.places.iter().filter(|place| self.has_list(place.position)) {
            Self::insert(&mut best, place);
        }
        if !before.is_empty() {
            for place in self.occurrences(root, end).into_iter().flatten() {
                Self::insert(&mut best, place);
            }
        }
        self.places.clear();
        self.places.extend(best.into_iter().flatten());
        let anchor = |place: &Place| Anchor { cursor: encode(*place, None), match_len: place.agreed };
        out.extend(self.places.iter().map(anchor));
    }

    /// Pushes the successors at each cursor.
    pub(super) fn expand(&self, frontier: &[Cursor], out: &mut Candidates) {
        for (parent, &cursor) in frontier.iter().enumerate() {
            let parent = parent as u32;
            let (place, successor) = decode(cursor);
            let Some(n) = successor else {
                self.propose(place, parent, out);
                continue;
            };
            let Some(Successor { token, .. }) = self.lists.successor(place.position as usize, n) else {
                continue;
            };
            for next in self.occurrences(token, place).into_iter().flatten() {
                self.propose(next, parent, out);
            }
        }
    }

    /// Bytes on the heap.
    pub(super) fn memory_usage(&self) -> usize {
        self.text.capacity() * size_of::<TokenId>()
            + self.earlier.capacity() * size_of::<u32>()
            + self.newest.capacity() * (size_of::<(TokenId, u32)>() + 1)
            + self.lists.memory_usage()
            + self.places.capacity() * size_of::<Place>()
    }
}

/// Encodes a place, or the place after its `n`th successor, as a cursor.
fn encode(place: Place, successor: Option<usize>) -> Cursor {
    let n = successor.map_or(0, |n| n as u64 + 1);
    Cursor(u64::from(place.position) | u64::from(place.agreed) << 24 | n << 32)
}

fn decode(cursor: Cursor) -> (Place, Option<usize>) {
    let place = Place { position: cursor.0 as u32 & 0xFF_FFFF, agreed: (cursor.0 >> 24) as u32 & 0xFF };
    (place, (cursor.0 >> 32).checked_sub(1).map(|n| n as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source with `text` and these successors: (position, tokens with percentages).
    fn source(text: &str, lists: &[(usize, &[(char, u8)])]) -> Calibration {
        let mut source = Calibration::default();
        for &(position, list) in lists {
            let mut one = SuccessorLists::new();
            one.push(&successors(list));
            source.calibrate(position, &one);
        }
        source.read(&tokens(text));
        source
    }

    fn successors(list: &[(char, u8)]) -> Vec<Successor> {
        let successor = |&(token, percent): &(char, u8)| Successor {
            token: TokenId(token as u32),
            log_probability: (f32::from(percent) / 100.0).ln(),
        };
        list.iter().map(successor).collect()
    }

    fn tokens(text: &str) -> Vec<TokenId> {
        text.chars().map(|c| TokenId(c as u32)).collect()
    }

    /// The proposals at these cursors: (token, match length, cursor).
    fn expand(source: &mut Calibration, frontier: &[Cursor]) -> Vec<(char, u32, Cursor)> {
        let mut candidates = Candidates::with_limit(100);
        source.expand(frontier, &mut candidates);
        let of = |c: &Candidate| (char::from_u32(c.token.0).unwrap(), c.match_len, c.next);
        candidates.as_slice().iter().map(of).collect()
    }

    fn anchors(source: &mut Calibration) -> Vec<Cursor> {
        let mut anchors = Vec::new();
        source.anchors(&mut anchors);
        assert!(anchors.is_sorted_by(|a, b| a.match_len >= b.match_len));
        anchors.iter().map(|anchor| anchor.cursor).collect()
    }

    fn draft(found: &[(char, u32, Cursor)]) -> Vec<(char, u32)> {
        found.iter().map(|&(token, match_len, _)| (token, match_len)).collect()
    }

    #[test]
    fn the_targets_words_come_before_the_texts() {
        // After "ab" the text continues with "c", the target predicts "x" or "c".
        let mut source = source("zabcd-ab", &[(2, &[('x', 70), ('c', 20)]), (3, &[('e', 50)])]);
        let frontier = anchors(&mut source);
        let found = expand(&mut source, &frontier);
        assert_eq!(draft(&found), [('x', 2), ('c', 2)]);
        assert_eq!(expand(&mut source, &[found[0].2]), [], "the text does not have x");
        assert_eq!(draft(&expand(&mut source, &[found[1].2])), [('e', 3)], "straight on");
    }

    #[test]
    fn a_successor_goes_on_at_the_occurrence_that_agrees_longest() {
        //                        0123456789
        let mut source = source(
            "qxm.axn.ab-a",
            &[(8, &[('x', 90)]), (1, &[('1', 50)]), (5, &[('2', 50)]), (4, &[('x', 10)])],
        );
        let frontier = anchors(&mut source);
        let found = expand(&mut source, &frontier);
        assert_eq!(draft(&found)[0], ('x', 1));
        // "ax" is at 4..=5, "x" alone at 1.
        assert_eq!(draft(&expand(&mut source, &[found[0].2])), [('2', 2), ('1', 1)]);
    }

    #[test]
    fn a_place_that_goes_on_agreeing_is_not_lost() {
        let mut text = "abcdefgh".to_owned();
        text.extend(std::iter::repeat_n("?h", 40));
        let mut source = source(&text, &[(6, &[('h', 90)]), (7, &[('i', 90)])]);
        let mut committed = tokens(&text);
        for token in "abcdefgh".chars() {
            committed.push(TokenId(token as u32));
            source.read(&committed);
            anchors(&mut source);
        }
        let frontier = anchors(&mut source);
        // "h" occurs at 40 newer positions, all without successors.
        assert_eq!(draft(&expand(&mut source, &frontier)), [('i', 8)]);
    }

    #[test]
    fn a_cursor_holds_its_place() {
        for (position, agreed, n) in [(0, 0, None), ((1 << 24) - 1, 200, Some(7)), (5, 3, Some(0))] {
            let place = Place { position, agreed };
            assert_eq!(decode(encode(place, n)), (place, n));
        }
    }

    #[test]
    fn without_lists_nothing_is_proposed() {
        for text in ["", "a", "aaaa"] {
            assert_eq!(anchors(&mut source(text, &[])), []);
        }
    }
}
