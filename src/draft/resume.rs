//! The source *resume*: continues a copied passage after the target has departed from it.
//!
//! A target that copies a passage sometimes departs from it: it substitutes a word (a synonym), inserts one,
//! or omits some. An automaton then falls back to a match of one or two common tokens with many occurrences,
//! although the copied position is known. Let `d` be the token at that position and `t` the committed token:
//!
//! ```text
//! text      … a b c d e f g …
//! output    … a b c t              synonym: e follows     missing: d follows     redundant (t = f): g follows
//! ```
//!
//! Each of the three is a *place* with its own claim; further tokens confirm or drop it. CoordGen aligns
//! rejected drafts in these ways (`alignment.rs`, and `predictions/segments.rs` for drafts from
//! anywhere). Here the whole text is available, so a place stays valid as long as the output agrees with it.

use std::collections::HashMap;

use super::alignment::{Alignment, REDUNDANT_MAX};
use super::evidence::EvidenceClass;
use super::source::{Anchor, Candidate, Candidates, Cursor, DraftSource};
use refrain_trees::TokenId;

/// Number of tokens that must agree before a text counts as copied.
const GRAM: usize = 3;
/// Maximum places followed at a time.
const PLACES_MAX: usize = 4;
/// Number of tokens after a departure within which a place must be confirmed.
const UNCONFIRMED_MAX: u32 = 3;

/// A position of the text that may continue the output.
#[derive(Clone, Copy, Debug)]
struct Place {
    next: u32,
    /// Number of tokens that agreed before the newest departure.
    before: u32,
    /// Number of tokens that have agreed since.
    since: u32,
    /// Number of tokens that have disagreed since the newest agreement.
    missed: u32,
    alignment: Alignment,
}

/// Drafts from the session's own text at the places that the output was copying.
///
/// Holds at most the newest 2²⁰ tokens and 16 bytes for each of their trigrams. At the bound it drops the
/// older half.
#[derive(Clone, Debug, Default)]
pub struct ResumeSource {
    text: Vec<TokenId>,
    /// The newest end position of each trigram. Only looked up, never iterated over.
    grams: HashMap<[u32; GRAM], u32>,
    /// Best first.
    places: Vec<Place>,
    /// The buffer of the next `places`.
    spare: Vec<Place>,
    /// Number of committed tokens that were read, including dropped ones.
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
            self.truncate(0);
        }
        if self.text.len() + (committed.len() - self.n_read) > TOKENS_MAX {
            self.truncate(0);
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

    /// Updates each place with a token: the place agrees or departs.
    fn follow(&mut self, token: TokenId) {
        let before = std::mem::take(&mut self.places);
        let mut kept = std::mem::take(&mut self.spare);
        kept.clear();
        let agrees = |place: &&Place| self.text.get(place.next as usize) == Some(&token);
        for &place in before.iter().filter(agrees) {
            kept.push(Place { next: place.next + 1, since: place.since + 1, missed: 0, ..place });
        }
        // An established place that agrees replaces all places that disagree.
        if kept.iter().all(|place| place.since < GRAM as u32) {
            for &place in before.iter().filter(|place| !agrees(place)) {
                self.depart(place, token, &mut kept);
            }
        }
        kept.truncate(PLACES_MAX);
        (self.places, self.spare) = (kept, before);
    }

    /// Adds the candidate places after a departure.
    fn depart(&self, place: Place, token: TokenId, kept: &mut Vec<Place>) {
        if place.since == 0 {
            // An unconfirmed place is kept for a few tokens and moves along with the output.
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
    /// The place as a cursor, advanced by `n` tokens.
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

    fn truncate(&mut self, _len: usize) {
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

    fn memory_usage(&self) -> u64 {
        (self.text.capacity() * size_of::<TokenId>()
            + self.grams.capacity() * (size_of::<([u32; GRAM], u32)>() + 1)
            + (self.places.capacity() + self.spare.capacity()) * size_of::<Place>()) as u64
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
