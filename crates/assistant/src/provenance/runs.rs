//! The common runs of a text and other texts, as numbers.
//!
//! A suffix automaton of the text reads the other texts. Each state keeps the longest of its substrings that was read. A substring
//! that was read has all its suffixes read too, which are in the states on the way to the root. Then the state of each prefix of
//! the text has the longest run that ends there. All work is linear; the memory depends on the text alone, about 150 bytes per number.

use std::cmp::Reverse;

use refrain_trees::sam::{Match, SuffixAutomaton};

/// A run of the text that occurs in another text, and in none of them with one more number on either side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) start: usize,
    pub(super) len: usize,
    /// Index of the other text.
    pub(super) other: usize,
    /// Start of the run in the other text.
    pub(super) place: usize,
}

/// A substring that occurs in another text.
#[derive(Clone, Copy, Default)]
struct Found {
    len: u32,
    other: u32,
    /// End of the occurrence.
    end: usize,
}

/// Another text that is read.
pub(super) struct Reader<'a> {
    text: &'a mut Text,
    longest: Match,
    n_numbers: usize,
}

impl Reader<'_> {
    /// Reads the next number. `None` stands for a number that the text does not contain.
    pub(super) fn read(&mut self, number: Option<u32>) {
        let Text { automaton, found, n_read } = &mut *self.text;
        self.n_numbers += 1;
        self.longest = number.map_or(Match::EMPTY, |number| automaton.follow(self.longest, number));
        let (state, len) = self.longest.to_parts();
        let found = &mut found[state as usize];
        if len > found.len {
            *found = Found { len, other: *n_read - 1, end: self.n_numbers };
        }
    }
}

/// A text that other texts are compared with.
pub(super) struct Text {
    automaton: SuffixAutomaton,
    /// The longest substring of each state that occurs in the texts read so far.
    found: Vec<Found>,
    n_read: u32,
}

impl Text {
    /// A text of numbers. Numbers beyond the automaton's bound (2³⁰) are in no run.
    pub(super) fn new(numbers: &[u32]) -> Self {
        let mut automaton = SuffixAutomaton::new();
        let fits = numbers.len().min(SuffixAutomaton::MAX_TOKENS as usize);
        automaton.extend_all(&numbers[..fits]).expect("within the bound");
        let found = vec![Found::default(); automaton.n_states()];
        Text { automaton, found, n_read: 0 }
    }

    /// Begins the next other text.
    pub(super) fn reader(&mut self) -> Reader<'_> {
        self.n_read += 1;
        Reader { text: self, longest: Match::EMPTY, n_numbers: 0 }
    }

    /// The runs, in the order of the text. Of equal occurrences, the one in the first of the other texts counts, and there the first.
    pub(super) fn runs(mut self, numbers: &[u32]) -> Vec<Run> {
        let (prefixes, links, mut states) = self.states(numbers);
        states.sort_unstable_by_key(|&(_, len)| Reverse(len));
        for &(state, _) in &states {
            let found = self.found[state as usize];
            let (link, len) = links[state as usize];
            let suffix = &mut self.found[link as usize];
            let is_first = (found.other, found.end) < (suffix.other, suffix.end);
            if found.len > 0 && len > 0 && (len > suffix.len || is_first) {
                *suffix = Found { len, ..found };
            }
        }
        for &(state, _) in states.iter().rev() {
            if self.found[state as usize].len == 0 {
                self.found[state as usize] = self.found[links[state as usize].0 as usize];
            }
        }
        let ends = (1..).zip(prefixes.iter().map(|&state| self.found[state as usize]));
        let runs = ends.map(|(end, Found { len, other, end: place })| {
            let len = len as usize;
            Run { start: end - len, len, other: other as usize, place: place - len }
        });
        let mut maximal: Vec<Run> = Vec::new();
        for run in runs {
            // A run with the same start as the one before contains it.
            maximal.pop_if(|before| before.start == run.start);
            if run.len > 0 {
                maximal.push(run);
            }
        }
        maximal
    }

    /// The state of each prefix; of each state, the link with its length; all states but the root with their lengths.
    #[expect(clippy::type_complexity, reason = "three lists for one caller")]
    fn states(&self, numbers: &[u32]) -> (Vec<u32>, Vec<(u32, u32)>, Vec<(u32, u32)>) {
        let mut prefix = Match::EMPTY;
        let mut prefixes = Vec::with_capacity(self.automaton.len());
        let mut links = vec![(u32::MAX, 0); self.automaton.n_states()];
        let mut states = Vec::with_capacity(links.len());
        for &number in &numbers[..self.automaton.len()] {
            prefix = self.automaton.advance(prefix, number).expect("a prefix occurs");
            prefixes.push(prefix.to_parts().0);
            let mut at = prefix;
            while let Some(shorter) = self.automaton.shorter(at) {
                let (state, len) = at.to_parts();
                if links[state as usize].0 != u32::MAX {
                    break;
                }
                links[state as usize] = shorter.to_parts();
                states.push((state, len));
                at = shorter;
            }
        }
        (prefixes, links, states)
    }
}
