//! Compares the automaton with scanning every suffix, also on degenerate texts.

use proptest::prelude::*;

use super::naive;
use super::{FullError, Match, SuffixAutomaton};

/// Texts of up to 40 tokens stay below the limit of the walk, so counts and positions are exact.
fn sequences() -> impl Strategy<Value = Vec<Vec<u32>>> {
    (1u32..40)
        .prop_flat_map(|alphabet| prop::collection::vec(prop::collection::vec(0..alphabet, 0..40), 1..4))
}

fn build(sequences: &[Vec<u32>]) -> SuffixAutomaton {
    let mut automaton = SuffixAutomaton::new();
    for sequence in sequences {
        automaton.start_sequence();
        automaton.extend_all(sequence).unwrap();
        automaton.check_integrity();
    }
    automaton
}

fn find(automaton: &SuffixAutomaton, pattern: &[u32]) -> Option<Match> {
    pattern.iter().try_fold(Match::EMPTY, |m, &token| automaton.advance(m, token))
}

fn check_pattern(automaton: &SuffixAutomaton, sequences: &[Vec<u32>], pattern: &[u32]) {
    let ends = naive::ends(sequences, pattern);
    let Some(found) = find(automaton, pattern) else {
        assert!(ends.is_empty(), "{pattern:?} occurs and was not found");
        return;
    };
    assert_eq!(found.len(), pattern.len());
    assert_eq!(automaton.renew(found), found);
    assert_eq!(automaton.count(found) as usize, ends.len(), "count of {pattern:?}");
    assert_eq!(Some(&automaton.last_end(found)), ends.last(), "last end of {pattern:?}");
    assert_eq!(Some(&automaton.first_end(found)), ends.first(), "first end of {pattern:?}");
    let expected = naive::successors(sequences, pattern);
    assert_eq!(automaton.n_successors(found), expected.len());
    let mut successors: Vec<_> = automaton.successors(found).map(|s| (s.token, s.count)).collect();
    successors.sort_unstable();
    if expected.len() <= 16 {
        assert_eq!(successors, expected, "successors of {pattern:?}");
        return;
    }
    assert_eq!(successors.len(), 16);
    assert!(successors.iter().all(|s| expected.contains(s)));
    let rarest = successors.iter().map(|s| s.1).min();
    let left_out = expected.iter().filter(|s| !successors.contains(s)).map(|s| s.1).max();
    assert!(left_out <= rarest, "a more frequent successor of {pattern:?} was left out");
}

proptest! {
    #[test]
    fn accepts_every_substring(sequences in sequences()) {
        let automaton = build(&sequences);
        for sequence in &sequences {
            for start in 0..sequence.len() {
                for end in start + 1..=sequence.len() {
                    check_pattern(&automaton, &sequences, &sequence[start..end]);
                }
            }
        }
    }

    #[test]
    fn accepts_nothing_else(sequences in sequences(), patterns in prop::collection::vec(
        prop::collection::vec(0u32..4, 1..6), 20,
    )) {
        let automaton = build(&sequences);
        for pattern in &patterns {
            check_pattern(&automaton, &sequences, pattern);
        }
    }

    #[test]
    fn knows_the_longest_earlier_suffix_after_every_token(sequences in sequences()) {
        let mut automaton = SuffixAutomaton::new();
        let mut so_far: Vec<Vec<u32>> = Vec::new();
        for sequence in &sequences {
            automaton.start_sequence();
            so_far.push(Vec::new());
            for &token in sequence {
                automaton.extend(token).unwrap();
                so_far.last_mut().unwrap().push(token);
                let found = automaton.suffix_match();
                prop_assert_eq!(found.len(), naive::suffix_match_len(&so_far));
                let last = so_far.last().unwrap();
                prop_assert_eq!(Some(found), find(&automaton, &last[last.len() - found.len()..]));
            }
        }
    }

    #[test]
    fn follows_a_running_text_while_growing(sequences in sequences(), text in prop::collection::vec(0u32..4, 0..60)) {
        let mut automaton = SuffixAutomaton::new();
        let mut so_far = vec![Vec::new()];
        let mut grow = sequences.concat().into_iter();
        let mut m = Match::EMPTY;
        for i in 0..text.len() {
            let matched = m.len();
            m = automaton.follow(m, text[i]);
            // A cursor never loses a match; it may only miss tokens that were added later.
            prop_assert!(m.len() <= matched + 1);
            prop_assert!(m.len() <= naive::longest_suffix_len(&so_far, &text[..=i]));
            prop_assert_eq!(Some(automaton.renew(m)), find(&automaton, &text[i + 1 - m.len()..=i]));
            if let Some(token) = grow.next() {
                automaton.extend(token).unwrap();
                so_far[0].push(token);
            }
        }
        let full = text.iter().fold(Match::EMPTY, |m, &token| automaton.follow(m, token));
        prop_assert_eq!(full.len(), naive::longest_suffix_len(&so_far, &text));
    }

    #[test]
    fn clearing_equals_a_new_automaton(first in sequences(), second in sequences()) {
        let mut automaton = build(&first);
        automaton.clear();
        automaton.check_integrity();
        for sequence in &second {
            automaton.start_sequence();
            automaton.extend_all(sequence).unwrap();
        }
        automaton.check_integrity();
        prop_assert_eq!(automaton.n_states(), build(&second).n_states());
        for sequence in second.iter().filter(|sequence| !sequence.is_empty()) {
            check_pattern(&automaton, &second, sequence);
        }
    }
}

/// A small random generator for long texts, without a dependency: xorshift64*.
fn random_tokens(n: usize, alphabet: u32, seed: u64) -> Vec<u32> {
    let mut x = seed | 1;
    let mut next = || {
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        (x.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as u32 % alphabet
    };
    (0..n).map(|_| next()).collect()
}

#[test]
fn one_token_a_hundred_thousand_times() {
    let mut automaton = SuffixAutomaton::new();
    automaton.extend_all(&vec![5; 100_000]).unwrap();
    automaton.check_integrity();
    assert_eq!(automaton.suffix_match().len(), 99_999);
    assert_eq!(automaton.n_states(), 100_001);
    // Near the newest end, counts are exact; beyond the limit they are lower bounds.
    let longest = automaton.suffix_match();
    assert_eq!(automaton.count(longest), 2);
    let shortest = find(&automaton, &[5]).unwrap();
    assert!((1..=100_000).contains(&automaton.count(shortest)));
}

#[test]
fn periodic_text() {
    let text: Vec<u32> = (0..100_000).map(|i| i % 7).collect();
    let mut automaton = SuffixAutomaton::new();
    automaton.extend_all(&text).unwrap();
    automaton.check_integrity();
    assert_eq!(automaton.suffix_match().len(), 100_000 - 7);
    let next: Vec<u32> = automaton.successors(automaton.suffix_match()).map(|s| s.token).collect();
    assert_eq!(next, [100_000 % 7]);
}

#[test]
fn random_text_over_small_and_large_alphabets() {
    for alphabet in [2, 50, 50_000, u32::MAX] {
        let text = random_tokens(100_000, alphabet, 7);
        let mut automaton = SuffixAutomaton::new();
        automaton.extend_all(&text).unwrap();
        automaton.check_integrity();
        assert!(automaton.memory_usage() < 100_000 * 160, "{} bytes", automaton.memory_usage());
        assert!(find(&automaton, &text[50_000..50_040]).is_some());
    }
}

#[test]
fn all_tokens_different() {
    let text: Vec<u32> = (0..100_000).map(|i| i * 40_000).collect();
    let mut automaton = SuffixAutomaton::new();
    automaton.extend_all(&text).unwrap();
    automaton.check_integrity();
    assert!(automaton.suffix_match().is_empty());
    assert_eq!(automaton.n_successors(Match::EMPTY), 100_000);
}

#[test]
fn at_the_bound_nothing_changes() {
    let mut automaton = SuffixAutomaton::with_max_tokens(3);
    automaton.extend_all(&[1, 2, 1]).unwrap();
    assert_eq!(automaton.extend(2), Err(FullError { max_tokens: 3 }));
    assert_eq!(automaton.len(), 3);
    assert_eq!(automaton.suffix_match().len(), 1);
    automaton.check_integrity();
}

#[test]
fn empty_automaton() {
    let automaton = SuffixAutomaton::new();
    assert!(automaton.is_empty());
    assert!(automaton.suffix_match().is_empty());
    assert_eq!(automaton.successors(Match::EMPTY).count(), 0);
    assert_eq!(automaton.shorter(Match::EMPTY), None);
    assert_eq!(automaton.follow(Match::EMPTY, 3), Match::EMPTY);
    automaton.check_integrity();
}
