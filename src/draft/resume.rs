//! The source *resume*: goes on where the text was being copied, after the target has left it.
//!
//! A target that copies a passage departs from it in places: it takes another word (a synonym), puts one in, or leaves
//! some out. An automaton then falls back to a match of one or two common tokens, which stand in many places; but the
//! place that was being copied is known. With `d` the token that stood there and `t` the one that came:
//!
//! ```text
//! text      … a b c d e f g …
//! output    … a b c t              synonym: e follows     missing: d follows     redundant (t = f): g follows
//! ```
//!
//! Each of the three is a *place* with an own claim; further tokens confirm one of them or drop it. CoordGen lines up rejected
//! drafts in these ways (`alignment.rs`, and [`ReuseSource`](super::ReuseSource) for drafts from anywhere); here the whole text
//! is at hand, so a place holds for as long as the output agrees with it.

use std::collections::HashMap;

use super::alignment::{Alignment, REDUNDANT_MAX};
use super::evidence::EvidenceClass;
use super::source::{Anchor, Candidate, Candidates, Cursor, DraftSource, StepOutcome};
use crate::token::TokenId;

/// Tokens that must agree before a text counts as being copied.
const GRAM: usize = 3;
/// Places followed at a time.
const PLACES_MAX: usize = 4;
/// Tokens after a departure within which a place must be confirmed.
const UNCONFIRMED_MAX: u32 = 3;

/// A position of the text that may be what comes next.
#[derive(Clone, Copy, Debug)]
struct Place {
    next: u32,
    /// Tokens that agreed before the newest departure.
    before: u32,
    /// Tokens that have agreed since.
    since: u32,
    /// Tokens that have disagreed since the newest agreement.
    missed: u32,
    alignment: Alignment,
}

/// Drafts from the session's own text at the places where the output was copying it.
///
/// Holds the newest 2²⁰ tokens at most and 16 bytes for each of their trigrams; beyond that it forgets the older half.
#[derive(Clone, Debug, Default)]
pub struct ResumeSource {
    text: Vec<TokenId>,
    /// Where each trigram ended most recently. Looked up only, never iterated over.
    grams: HashMap<[u32; GRAM], u32>,
    /// Best first.
    places: Vec<Place>,
    /// Its memory is that of the next `places`.
    spare: Vec<Place>,
    /// Committed tokens that were read, forgotten ones included.
    n_read: usize,
}

const TOKENS_MAX: usize = 1 << 20;

impl ResumeSource {
    /// A source without text.
    pub fn new() -> Self {
        Self::default()
    }

    fn read(&mut self, committed: &[TokenId]) {
        if committed.len() < self.n_read {
            self.reset();
        }
        if self.text.len() + (committed.len() - self.n_read) > TOKENS_MAX {
            self.reset();
            self.n_read = committed.len().saturating_sub(TOKENS_MAX / 2);
        }
        for &token in &committed[self.n_read..] {
            self.read_token(token);
        }
        self.n_read = committed.len();
    }

    fn read_token(&mut self, token: TokenId) {
        self.follow(token);
        self.text.push(token);
        let Some(newest) = self.text.last_chunk::<GRAM>() else { return };
        let end = self.text.len() as u32;
        let earlier = self.grams.insert(newest.map(|token| token.0), end);
        if self.places.first().is_none_or(|place| place.alignment != Alignment::Straight)
            && let Some(next) = earlier
            && self.places.iter().all(|place| place.next != next)
        {
            self.places.retain(|place| place.since > 0 || place.before > GRAM as u32);
            let found =
                Place { next, before: 0, since: GRAM as u32, missed: 0, alignment: Alignment::Straight };
            self.places.insert(0, found);
            self.places.truncate(PLACES_MAX);
        }
    }

    /// Confirms or departs from each place.
    fn follow(&mut self, token: TokenId) {
        let before = std::mem::take(&mut self.places);
        let mut kept = std::mem::take(&mut self.spare);
        kept.clear();
        let agrees = |place: &&Place| self.text.get(place.next as usize) == Some(&token);
        for &place in before.iter().filter(agrees) {
            kept.push(Place { next: place.next + 1, since: place.since + 1, missed: 0, ..place });
        }
        // A place that agrees makes the ones that do not worthless, unless it is new itself.
        if kept.iter().all(|place| place.since < GRAM as u32) {
            for &place in before.iter().filter(|place| !agrees(place)) {
                self.depart(place, token, &mut kept);
            }
        }
        kept.truncate(PLACES_MAX);
        (self.places, self.spare) = (kept, before);
    }

    /// The places that a departure leaves.
    fn depart(&self, place: Place, token: TokenId, kept: &mut Vec<Place>) {
        if place.since == 0 {
            // A guess that was not confirmed yet waits a little longer, in step with the output.
            if place.missed + 1 < UNCONFIRMED_MAX {
                let step = u32::from(place.alignment == Alignment::Synonym);
                push(kept, Place { next: place.next + step, missed: place.missed + 1, ..place });
            }
            return;
        }
        let left = Place { before: place.before + place.since, since: 0, missed: 0, ..place };
        let mut ahead = self.text.iter().skip(place.next as usize + 1).take(REDUNDANT_MAX);
        if let Some(skipped) = ahead.position(|&ahead| ahead == token) {
            let next = place.next + skipped as u32 + 2;
            push(kept, Place { next, since: 1, alignment: Alignment::Redundant, ..left });
        }
        push(kept, Place { next: place.next + 1, alignment: Alignment::Synonym, ..left });
        push(kept, Place { alignment: Alignment::Missing, ..left });
    }
}

fn push(places: &mut Vec<Place>, place: Place) {
    if places.iter().all(|other| other.next != place.next) {
        places.push(place);
    }
}

impl Place {
    /// The place as a cursor, moved on by `n` tokens.
    fn cursor(self, n: u32) -> Cursor {
        let before = u64::from(self.before.min(1023));
        let since = u64::from((self.since + n).min(1023));
        Cursor(u64::from(self.next + n) | self.alignment.to_bits() << 32 | before << 34 | since << 44)
    }

    fn from_cursor(cursor: Cursor) -> Self {
        let alignment = Alignment::from_bits(cursor.0 >> 32);
        let (before, since) = ((cursor.0 >> 34 & 1023) as u32, (cursor.0 >> 44 & 1023) as u32);
        Place { next: cursor.0 as u32, before, since, missed: 0, alignment }
    }
}

impl DraftSource for ResumeSource {
    fn name(&self) -> &str {
        "resume"
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::ResumedCopy
    }

    fn prime(&mut self, committed: &[TokenId]) {
        self.read(committed);
    }

    fn reset(&mut self) {
        self.text.clear();
        self.grams.clear();
        self.places.clear();
        self.n_read = 0;
    }

    fn release(&mut self) {
        *self = Self::new();
    }

    fn anchors(&mut self, _committed: &[TokenId], out: &mut Vec<Anchor>) {
        let anchor = |place: &Place| Anchor { cursor: place.cursor(0), match_len: place.since };
        out.extend(self.places.iter().map(anchor));
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        for (parent, &cursor) in frontier.iter().enumerate() {
            let place = Place::from_cursor(cursor);
            if let Some(&token) = self.text.get(place.next as usize) {
                out.push(Candidate {
                    parent: parent as u32,
                    token,
                    probability: place.alignment.claim(),
                    match_len: place.since,
                    count: place.before,
                    next: place.cursor(1),
                });
            }
        }
    }

    fn observe(&mut self, committed: &[TokenId], _step: &StepOutcome<'_>) {
        self.read(committed);
    }

    fn memory_usage(&self) -> usize {
        self.text.capacity() * size_of::<TokenId>()
            + self.grams.capacity() * (size_of::<([u32; GRAM], u32)>() + 1)
            + (self.places.capacity() + self.spare.capacity()) * size_of::<Place>()
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposals(text: &str) -> Vec<char> {
        let committed: Vec<TokenId> = text.chars().map(|c| TokenId(c as u32)).collect();
        let mut source = ResumeSource::new();
        let mut anchors = Vec::new();
        source.read(&committed);
        source.anchors(&committed, &mut anchors);
        let frontier: Vec<Cursor> = anchors.iter().map(|anchor| anchor.cursor).collect();
        let mut candidates = Candidates::with_limit(16);
        source.expand(&frontier, &mut candidates);
        candidates.as_slice().iter().filter_map(|candidate| char::from_u32(candidate.token.0)).collect()
    }

    #[test]
    fn goes_on_after_a_departure() {
        assert_eq!(proposals("abcdefgh-abc"), ['d']);
        assert_eq!(proposals("abcdefgh-abcX"), ['e', 'd'], "a synonym, or missing");
        assert_eq!(proposals("abcdefgh-abcXe")[0], 'f', "it was a synonym");
        assert_eq!(proposals("abcdefgh-abcXd")[0], 'e', "it was missing");
        assert_eq!(proposals("abcdefgh-abcf")[0], 'g', "two were redundant");
    }

    #[test]
    fn gives_up_what_is_not_confirmed() {
        assert_eq!(proposals("abcdefgh-abcXYZUVW"), []);
    }

    #[test]
    fn a_cursor_holds_its_place() {
        for alignment in [Alignment::Straight, Alignment::Synonym, Alignment::Missing, Alignment::Redundant] {
            let place = Place { next: u32::MAX - 9, before: 1000, since: 7, missed: 0, alignment };
            let back = Place::from_cursor(place.cursor(2));
            assert_eq!(
                (back.next, back.before, back.since, back.alignment),
                (u32::MAX - 7, 1000, 9, alignment)
            );
        }
    }
}
