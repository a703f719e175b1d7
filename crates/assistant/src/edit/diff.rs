//! The diff of a text that is being written against an older one, while it is written.
//!
//! The new text follows the old one piece by piece (a piece is a word or a sign). Where it departs, the newest pieces are held
//! back until they occur again in the rest of the old text: the sooner they do, the fewer pieces suffice.
//!
//! ```text
//! old … the blue car | stops here …         next old piece: stops
//! new … the blue car | never stops          never: nowhere ahead; stops: the very next piece, so `never` was inserted
//! ```
//!
//! An index of the old text has the places of each piece, each two and each four pieces. Only places ahead count, and the place in the
//! old text only moves on, so each list of places is walked once: all work is linear in both texts.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::pieces::{Piece, Splitter};

/// One part of a diff. Ranges are in bytes, on character boundaries, and never empty.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DiffEvent {
    /// The text stays.
    Keep {
        /// Its place in the old text.
        old: Range<usize>,
        /// Its place in the new text.
        new: Range<usize>,
    },
    /// Text is inserted.
    Insert {
        /// Its place in the new text.
        new: Range<usize>,
        /// The place in the old text before which it stands.
        at: usize,
    },
    /// Text of the old text is left out.
    Delete {
        /// Its place in the old text.
        old: Range<usize>,
    },
}

/// Maximum number of pieces that are held back after a departure. So many pieces may go on anywhere ahead.
const HELD_MAX: usize = 48;

/// Maximum length of the text that is left out, as a multiple of the text that agrees behind it. A wrong jump costs the text that
/// it leaves out; a late one costs nothing but time. Measured by `small_edits_are_small_diffs`.
const SKIPPED_PER_AGREED: usize = 4;

/// Pieces that agree behind a departure, at least, to leave out any length of text if they occur only once ahead. Measured like
/// [`SKIPPED_PER_AGREED`]; 8 and 12 were worse.
const ONLY_PLACE_MIN: usize = 16;

/// Lengths of the sequences in the index, in pieces, longest first.
const LEVELS: [usize; N_LEVELS] = [4, 2, 1];
const N_LEVELS: usize = 3;

/// Number of a piece or of a sequence of pieces that occurs in the old text.
type Id = u32;

/// No place.
const NONE: u32 = u32::MAX;

/// The diff of a growing new text against an old one.
///
/// The events of all calls, in order, describe the new text from its start to its end. An event is never taken back. Text is kept,
/// inserted and left out in whole pieces (a word of more than 64 characters is several), except for white space.
///
/// Memory: both texts, and about 150 bytes for each word of the old one. Time: linear in both texts.
///
/// ```
/// use refrain_assistant::edit::{DiffEvent, LiveDiff};
///
/// let mut diff = LiveDiff::new("Meet me at noon.");
/// let mut events = diff.push("Meet me a");
/// assert_eq!(events, [DiffEvent::Keep { old: 0..7, new: 0..7 }]); // `a` may become a longer word
/// events.extend(diff.push("t seven."));
/// events.extend(diff.finish());
/// let changes: Vec<DiffEvent> = events.into_iter().filter(|event| !matches!(event, DiffEvent::Keep { .. })).collect();
/// assert_eq!(changes, [DiffEvent::Insert { new: 11..16, at: 11 }, DiffEvent::Delete { old: 11..15 }]);
/// ```
#[derive(Clone, Debug)]
pub struct LiveDiff {
    old: String,
    /// The pieces of the old text. At most 2³² − 1; the text behind them is left out in the end.
    pieces: Vec<Piece>,
    index: Index,
    /// Number of old pieces that are kept or left out.
    at: usize,
    /// End of the old text that events describe.
    old_done: usize,
    new: String,
    splitter: Splitter,
    /// The newest pieces of the new text since the last departure, and their numbers.
    held: VecDeque<(Piece, Option<Id>)>,
    /// Whether the new text has departed from the old one since the last kept piece.
    departed: bool,
    /// End of the new text that events describe.
    new_done: usize,
}

impl LiveDiff {
    /// A diff against `old`, before the first text of the new one.
    pub fn new(old: &str) -> Self {
        let (mut splitter, mut pieces) = (Splitter::default(), Vec::new());
        splitter.read(old, |piece| pieces.push(piece));
        pieces.extend(splitter.finish());
        pieces.truncate(NONE as usize);
        let index = Index::new(old, &pieces);
        LiveDiff {
            old: old.to_owned(),
            pieces,
            index,
            at: 0,
            old_done: 0,
            new: String::new(),
            splitter: Splitter::default(),
            held: VecDeque::new(),
            departed: false,
            new_done: 0,
        }
    }

    /// Appends the next part of the new text and returns the events that became certain. Text is held back while it is
    /// unclear whether the old text goes on with it: at most 48 pieces, and the white space before the next piece. The last
    /// piece is held back until the next character, which may belong to it.
    pub fn push(&mut self, text: &str) -> Vec<DiffEvent> {
        self.new.push_str(text);
        let mut found = Vec::new();
        self.splitter.read(&self.new, |piece| found.push(piece));
        let mut out = Vec::new();
        found.into_iter().for_each(|piece| self.take(piece, &mut out));
        out
    }

    /// Ends the new text: the remaining events.
    pub fn finish(mut self) -> Vec<DiffEvent> {
        let mut out = Vec::new();
        if let Some(piece) = self.splitter.finish() {
            self.take(piece, &mut out);
        }
        let ahead = self.index.ids.iter().skip(self.at).rev();
        let newest = self.held.iter().rev();
        let n = newest.zip(ahead).take_while(|((_, new), old)| *new == Some(**old)).count();
        if n > 0 {
            self.go_on(self.held.len() - n, self.pieces.len() - n, &mut out);
        }
        self.close(self.old.len(), self.new.len(), &mut out);
        out
    }

    /// Takes the next piece of the new text.
    fn take(&mut self, piece: Piece, out: &mut Vec<DiffEvent>) {
        let id = self.index.words.get(&self.new[piece.clone()]).copied();
        if !self.departed && id.is_some() && id == self.index.ids.get(self.at).copied() {
            self.keep(piece, out);
            return;
        }
        self.held.push_back((piece, id));
        self.departed = true;
        if let Some((from, place)) = self.place_ahead() {
            self.go_on(from, place, out);
        } else if self.held.len() > HELD_MAX {
            let (piece, _) = self.held.pop_front().expect("not empty");
            self.insert(piece.end, out);
        }
    }

    /// The newest held pieces that occur ahead: the first of them, and its place. `None` if too few of them agree.
    fn place_ahead(&mut self) -> Option<(usize, usize)> {
        LEVELS.iter().enumerate().find_map(|(level, &n)| {
            let mut from = self.held.len().checked_sub(n)?;
            let found = self.index.next(level, self.held.range(from..).map(|(_, id)| *id), self.at)?;
            let mut place = found;
            while from > 0 && place > self.at && self.held[from - 1].1 == Some(self.index.ids[place - 1]) {
                (from, place) = (from - 1, place - 1);
            }
            let n_agreed = self.held.len() - from;
            let agreed = self.pieces[place + n_agreed - 1].end - self.pieces[place].start;
            let skipped = self.pieces[place].start - self.old_done;
            let is_only_place =
                level == 0 && n_agreed >= ONLY_PLACE_MIN && self.index.places[0].is_last(found);
            let is_enough = skipped <= SKIPPED_PER_AGREED * agreed || is_only_place || n_agreed >= HELD_MAX;
            is_enough.then_some((from, place))
        })
    }

    /// Keeps the held pieces from `from` on, which are the old pieces from `place` on.
    fn go_on(&mut self, from: usize, place: usize, out: &mut Vec<DiffEvent>) {
        self.at = place;
        for (piece, _) in std::mem::take(&mut self.held).into_iter().skip(from) {
            self.keep(piece, out);
        }
        self.departed = false;
    }

    /// Keeps a piece, which is the next old piece.
    fn keep(&mut self, piece: Piece, out: &mut Vec<DiffEvent>) {
        let old = self.pieces[self.at].clone();
        self.close(old.start, piece.start, out);
        push(out, DiffEvent::Keep { old: old.clone(), new: piece.clone() });
        (self.old_done, self.new_done) = (old.end, piece.end);
        self.at += 1;
    }

    /// Keeps the white space with which both remaining texts begin.
    fn keep_space(&mut self, old_end: usize, new_end: usize, out: &mut Vec<DiffEvent>) {
        let (old, new) = (&self.old[self.old_done..old_end], &self.new[self.new_done..new_end]);
        let n = common_space(old.chars(), new.chars());
        self.keep_bytes(n, out);
    }

    fn keep_bytes(&mut self, n: usize, out: &mut Vec<DiffEvent>) {
        if n > 0 {
            let (old, new) = (self.old_done..self.old_done + n, self.new_done..self.new_done + n);
            (self.old_done, self.new_done) = (old.end, new.end);
            push(out, DiffEvent::Keep { old, new });
        }
    }

    /// Inserts the new text up to `new_end`.
    fn insert(&mut self, new_end: usize, out: &mut Vec<DiffEvent>) {
        self.keep_space(self.old.len(), new_end, out);
        if self.new_done < new_end {
            push(out, DiffEvent::Insert { new: self.new_done..new_end, at: self.old_done });
            self.new_done = new_end;
        }
    }

    /// Describes both texts up to these ends, which are the same place.
    fn close(&mut self, old_end: usize, new_end: usize, out: &mut Vec<DiffEvent>) {
        self.keep_space(old_end, new_end, out);
        let (old, new) = (&self.old[self.old_done..old_end], &self.new[self.new_done..new_end]);
        let n = common_space(old.chars().rev(), new.chars().rev());
        let (old_end, new_end) = (old_end - n, new_end - n);
        if self.new_done < new_end {
            push(out, DiffEvent::Insert { new: self.new_done..new_end, at: self.old_done });
        }
        if self.old_done < old_end {
            push(out, DiffEvent::Delete { old: self.old_done..old_end });
        }
        (self.old_done, self.new_done) = (old_end, new_end);
        self.keep_bytes(n, out);
    }
}

/// The bytes of the white space with which both begin.
fn common_space(a: impl Iterator<Item = char>, b: impl Iterator<Item = char>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b && a.is_whitespace()).map(|(c, _)| c.len_utf8()).sum()
}

/// Adds an event, or extends the last one.
fn push(out: &mut Vec<DiffEvent>, event: DiffEvent) {
    match (out.last_mut(), &event) {
        (Some(DiffEvent::Keep { old, new }), DiffEvent::Keep { old: more_old, new: more_new }) => {
            (old.end, new.end) = (more_old.end, more_new.end);
        }
        (Some(DiffEvent::Insert { new, .. }), DiffEvent::Insert { new: more, .. }) => new.end = more.end,
        (Some(DiffEvent::Delete { old }), DiffEvent::Delete { old: more }) => old.end = more.end,
        _ => out.push(event),
    }
}

/// The places of every piece, every two and every four pieces of the old text.
#[derive(Clone, Debug)]
struct Index {
    /// The number of each word.
    words: HashMap<Box<str>, Id>,
    /// The number of each pair of words, and of each pair of pairs.
    pairs: [HashMap<(Id, Id), Id>; 2],
    /// The word at each place.
    ids: Vec<Id>,
    /// By level, as [`LEVELS`].
    places: [Places; N_LEVELS],
}

/// The places of the sequences of one length.
#[derive(Clone, Debug, Default)]
struct Places {
    /// The first place of each sequence that is not behind.
    first: Vec<u32>,
    /// The next place of the sequence at each place.
    next: Vec<u32>,
}

impl Index {
    fn new(text: &str, pieces: &[Piece]) -> Self {
        let mut words: HashMap<Box<str>, Id> = HashMap::new();
        let mut ids = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let word = &text[piece.clone()];
            let id = words.get(word).copied().unwrap_or_else(|| {
                words.insert(word.into(), words.len() as Id);
                words.len() as Id - 1
            });
            ids.push(id);
        }
        let (two, pairs) = pair_up(&ids, 1);
        let (four, fours) = pair_up(&two, 2);
        let places =
            [Places::new(&four, fours.len()), Places::new(&two, pairs.len()), Places::new(&ids, words.len())];
        Index { words, pairs: [pairs, fours], ids, places }
    }

    /// The first place of a sequence of the level's length from `at` on.
    fn next(&mut self, level: usize, ids: impl Iterator<Item = Option<Id>>, at: usize) -> Option<usize> {
        let mut row = [0; LEVELS[0]];
        let mut n = 0_usize;
        for (slot, id) in row.iter_mut().zip(ids) {
            *slot = id?;
            n += 1;
        }
        for pairs in &self.pairs[..n.ilog2() as usize] {
            for i in 0..n / 2 {
                row[i] = *pairs.get(&(row[2 * i], row[2 * i + 1]))?;
            }
            n /= 2;
        }
        self.places[level].from(row[0], at)
    }
}

/// The numbers of the pairs of sequences that are `distance` apart, by place.
fn pair_up(ids: &[Id], distance: usize) -> (Vec<Id>, HashMap<(Id, Id), Id>) {
    let mut pairs = HashMap::new();
    let both = ids.iter().zip(ids.iter().skip(distance));
    let by_place = both.map(|(&a, &b)| {
        let n = pairs.len() as Id;
        *pairs.entry((a, b)).or_insert(n)
    });
    (by_place.collect(), pairs)
}

impl Places {
    fn new(ids: &[Id], n_ids: usize) -> Self {
        let (mut first, mut next) = (vec![NONE; n_ids], vec![NONE; ids.len()]);
        for (place, &id) in ids.iter().enumerate().rev() {
            next[place] = std::mem::replace(&mut first[id as usize], place as u32);
        }
        Places { first, next }
    }

    /// The first place from `at` on. `at` never decreases, so the places behind it are dropped.
    fn from(&mut self, id: Id, at: usize) -> Option<usize> {
        let first = &mut self.first[id as usize];
        while *first != NONE && (*first as usize) < at {
            *first = self.next[*first as usize];
        }
        (*first != NONE).then_some(*first as usize)
    }

    /// Whether the sequence at `place` does not occur again.
    fn is_last(&self, place: usize) -> bool {
        self.next[place] == NONE
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree as _;
    use similar::{ChangeTag, TextDiff};

    use super::*;

    /// The new text by the events, which must describe both texts from start to end.
    fn apply(old: &str, new: &str, events: &[DiffEvent]) -> String {
        let (mut text, mut at) = (String::new(), 0);
        for event in events {
            match event {
                DiffEvent::Keep { old: o, new: n } => {
                    assert_eq!((o.start, n.start), (at, text.len()), "{event:?}");
                    assert!(!o.is_empty());
                    text.push_str(&old[o.clone()]);
                    assert_eq!(text.len(), n.end);
                    at = o.end;
                }
                DiffEvent::Insert { new: n, at: place } => {
                    assert_eq!((*place, n.start), (at, text.len()), "{event:?}");
                    assert!(!n.is_empty());
                    text.push_str(&new[n.clone()]);
                }
                DiffEvent::Delete { old: o } => {
                    assert_eq!(o.start, at, "{event:?}");
                    assert!(old.is_char_boundary(o.end) && !o.is_empty());
                    at = o.end;
                }
            }
        }
        assert_eq!(at, old.len());
        text
    }

    fn diff(old: &str, new: &str) -> Vec<DiffEvent> {
        let mut diff = LiveDiff::new(old);
        let mut events = diff.push(new);
        events.extend(diff.finish());
        events
    }

    fn n_changed(events: &[DiffEvent]) -> usize {
        let lens = events.iter().map(|event| match event {
            DiffEvent::Keep { .. } => 0,
            DiffEvent::Insert { new, .. } => new.len(),
            DiffEvent::Delete { old } => old.len(),
        });
        lens.sum()
    }

    /// The changed bytes of a diff that sees both whole texts.
    fn n_changed_at_best(old: &str, new: &str) -> usize {
        let (a, b): (Vec<&str>, Vec<&str>) = (split(old), split(new));
        let diff = TextDiff::from_slices(&a, &b);
        diff.iter_all_changes()
            .filter(|change| change.tag() != ChangeTag::Equal)
            .map(|change| change.value().len())
            .sum()
    }

    /// Pieces and the white space between them.
    fn split(text: &str) -> Vec<&str> {
        let (mut splitter, mut pieces) = (Splitter::default(), Vec::new());
        splitter.read(text, |piece| pieces.push(piece));
        pieces.extend(splitter.finish());
        let mut at = 0;
        let mut all = Vec::new();
        for piece in pieces {
            all.extend([&text[at..piece.start], &text[piece.clone()]]);
            at = piece.end;
        }
        all.push(&text[at..]);
        all.retain(|part| !part.is_empty());
        all
    }

    #[test]
    fn each_kind_of_edit() {
        let old = "The meeting is on Monday. Bring the report. Lunch is at noon.";
        let show = |new: &str| -> Vec<String> {
            let events = diff(old, new);
            assert_eq!(apply(old, new, &events), new);
            events
                .iter()
                .filter_map(|event| match event {
                    DiffEvent::Keep { .. } => None,
                    DiffEvent::Insert { new: range, .. } => Some(format!("+{}", &new[range.clone()])),
                    DiffEvent::Delete { old: range } => Some(format!("-{}", &old[range.clone()])),
                })
                .collect()
        };
        assert_eq!(show(old), [""; 0]);
        assert_eq!(
            show("The meeting is on Friday. Bring the report. Lunch is at noon."),
            ["+Friday", "-Monday"]
        );
        assert_eq!(show("The meeting is on Monday. Lunch is at noon."), ["-Bring the report. "]);
        assert_eq!(show("The next meeting is on Monday. Bring the report. Lunch is at noon."), ["+next "]);
        assert_eq!(
            show("The meeting is on Monday.\nBring the report. Lunch is at noon. Come!"),
            ["+\n", "- ", "+ Come!"]
        );
        assert_eq!(show(""), [format!("-{old}")]);
        assert_eq!(show("Lunch is at noon."), ["-The meeting is on Monday. Bring the report. "]);
    }

    #[test]
    fn what_is_certain_comes_at_once() {
        let mut diff = LiveDiff::new("one two three four");
        assert_eq!(diff.push("one two "), [DiffEvent::Keep { old: 0..7, new: 0..7 }]);
        assert_eq!(diff.push("X "), []);
        assert_eq!(
            diff.push("four "),
            [
                DiffEvent::Keep { old: 7..8, new: 7..8 },
                DiffEvent::Insert { new: 8..9, at: 8 },
                DiffEvent::Delete { old: 8..13 },
                DiffEvent::Keep { old: 13..18, new: 9..14 },
            ]
        );
    }

    #[test]
    fn events_are_json() {
        let event = DiffEvent::Insert { new: 3..5, at: 2 };
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(json, r#"{"kind":"insert","new":{"start":3,"end":5},"at":2}"#);
        assert_eq!(serde_json::from_str::<DiffEvent>(&json).unwrap(), event);
    }

    /// Behind a large deletion, changes stand closer than the text that a jump by length needs.
    #[test]
    fn small_edits_behind_a_large_deletion() {
        let words: Vec<String> =
            (0..3000).map(|i: u32| format!("w{} ", i.wrapping_mul(2_654_435_761) >> 20)).collect();
        let kept = words[..1000].iter().chain(&words[1200..]).enumerate();
        let new: String = kept.map(|(i, word)| if i % 20 == 19 { "other " } else { word }).collect();
        let old = words.concat();
        let events = diff(&old, &new);
        assert_eq!(apply(&old, &new, &events), new);
        let (live, best) = (n_changed(&events), n_changed_at_best(&old, &new));
        assert!(10 * live <= 11 * best, "{live} bytes changed, at best {best}");
    }

    const NOTE: &str = include_str!("../../tests/note.md");

    /// Edits of the note: a place, the number of words that are removed there, and the words that are added, which are words of the
    /// note at another place or other words.
    fn edited() -> impl Strategy<Value = String> {
        let place = any::<prop::sample::Index>;
        let own = (place(), 1..12usize).prop_map(|(from, n)| {
            let words: Vec<&str> = NOTE.split_inclusive(' ').collect();
            words.into_iter().skip(from.index(300)).take(n).collect::<String>()
        });
        let added = prop_oneof![own, "([a-z]{2,9} ){0,6}", "(the |of |and |it |on |, ){1,3}"];
        prop::collection::vec((place(), 0..25usize, added), 1..5).prop_map(|edits| {
            let mut words: Vec<String> = NOTE.split_inclusive(' ').map(str::to_owned).collect();
            for (place, n_removed, added) in edits {
                let from = place.index(words.len());
                let to = (from + n_removed).min(words.len());
                words.splice(from..to, [added]);
            }
            words.concat()
        })
    }

    proptest! {
        #[test]
        fn applies_for_any_texts_and_parts(
            old in "(ab|a b|the |[a-c ]{0,6}|\\PC{0,8}|\n){0,12}",
            new in "(ab|a b|the |[a-c ]{0,6}|\\PC{0,8}|\n){0,12}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(new.len() + 1)).filter(|&cut| new.is_char_boundary(cut)).collect();
            cuts.extend([0, new.len()]);
            cuts.sort_unstable();
            let mut live = LiveDiff::new(&old);
            let mut events = Vec::new();
            for cut in cuts.windows(2) {
                events.extend(live.push(&new[cut[0]..cut[1]]));
            }
            events.extend(live.finish());
            prop_assert_eq!(apply(&old, &new, &events), new.clone());
            // The cuts change when events come, not what they say.
            let mut joined = Vec::new();
            events.into_iter().for_each(|event| push(&mut joined, event));
            let mut whole = Vec::new();
            diff(&old, &new).into_iter().for_each(|event| push(&mut whole, event));
            prop_assert_eq!(joined, whole);
        }
    }

    /// Prints the times of texts of 1 MB: equal, unrelated, and repetitions.
    #[test]
    #[ignore = "a measurement"]
    fn times_of_long_texts() {
        let note = NOTE.repeat(500);
        let cases = [
            ("equal", note.clone(), note.clone()),
            ("reversed words", note.clone(), note.split(' ').rev().collect::<Vec<_>>().join(" ")),
            ("a and b", "a ".repeat(500_000), "b ".repeat(500_000)),
            ("two repetitions", "a b ".repeat(250_000), "a a b ".repeat(166_000)),
            ("no spaces", "a".repeat(1 << 20), "aab".repeat(1 << 18)),
            ("only spaces", " ".repeat(1 << 20), "\n ".repeat(1 << 19)),
        ];
        for (name, old, new) in cases {
            let start = std::time::Instant::now();
            let mut live = LiveDiff::new(&old);
            let built = start.elapsed();
            let mut events = Vec::new();
            let mut rest = new.as_str();
            while let Some(c) = rest.chars().next() {
                let (part, others) = rest.split_at(c.len_utf8());
                events.extend(live.push(part));
                rest = others;
            }
            events.extend(live.finish());
            println!(
                "{name}: index {built:?}, with the diff by characters {:?}, {} events",
                start.elapsed(),
                events.len()
            );
            assert_eq!(apply(&old, &new, &events), new);
        }
    }

    /// The sum over 2,000 edits, always the same ones. A single edit can be a copy of far text that must be taken for a jump, and
    /// cost ten times the best diff.
    #[test]
    fn small_edits_are_small_diffs() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let (mut live, mut best) = (0, 0);
        for _ in 0..2000 {
            let new = edited().new_tree(&mut runner).unwrap().current();
            let events = diff(NOTE, &new);
            assert_eq!(apply(NOTE, &new, &events), new);
            live += n_changed(&events);
            best += n_changed_at_best(NOTE, &new);
        }
        let ratio = live as f64 / best as f64;
        println!("{live} bytes changed, at best {best}: {ratio:.3}");
        assert!(ratio < 1.125, "{live} bytes changed, at best {best}");
    }
}
