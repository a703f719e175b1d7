//! From a match in a suffix automaton to candidates: all suffix orders at once.
//!
//! The longest match knows best, but where it is wrong a shorter suffix, which occurs in more places, often is right.
//! So the candidates of a cursor are collected along its suffix links, each token at the longest order that has seen
//! it, as in prediction by partial matching (PPM, Cleary and Witten 1984), method C with exclusion:
//!
//! ```text
//! p(c | order) = (n_c / N mixed with recency) · N / (N + d) · Π escape of the longer orders,   escape = d / (N + d)
//! ```
//!
//! with `n_c` the occurrences of `c` after the order's suffix, `N` their sum and `d` their number, tokens of longer
//! orders left out. This is the raw probability; the reliability table knows what it is worth at each match length.
//!
//! A node's cursor is its longest match alone: the shorter orders are its suffix links, and the match of a child, where
//! the longest order does not have its token, is a shorter order's successor, just as if the text had gone on so.

use super::fitted;
use super::source::{Candidate, Candidates, Cursor};
use crate::sam::{Match, Successor, SuffixAutomaton};
use crate::token::TokenId;

/// How the suffix orders of a match become candidates. The defaults were fitted to recorded responses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OrderConfig {
    /// The shortest suffix that may propose. What follows a single token, and the most frequent tokens of the text, which
    /// follow the empty suffix, are weak evidence, but fill free rows well.
    pub match_len_min: u32,
    /// Candidates per cursor at most.
    pub n_candidates_max: usize,
    /// Suffix links followed per cursor at most, orders without a new token included.
    pub n_links_max: usize,
    /// Weight of the most recent successor against the counts, 0 to 1.
    pub recency_weight: f32,
}

impl Default for OrderConfig {
    fn default() -> Self {
        fitted::ORDERS
    }
}

/// Matches longer than this are stored as this length in a cursor: no evidence distinguishes them.
const CURSOR_LEN_MAX: u32 = u16::MAX as u32;

/// A match and the generation of its automaton as a cursor.
pub(super) fn encode(m: Match, generation: u16) -> Cursor {
    let (state, len) = m.to_parts();
    Cursor(u64::from(state) | u64::from(len.min(CURSOR_LEN_MAX)) << 32 | u64::from(generation) << 48)
}

/// The match and the generation of a cursor.
pub(super) fn decode(cursor: Cursor) -> (Match, u16) {
    let len = (cursor.0 >> 32) as u32 & CURSOR_LEN_MAX;
    (Match::from_parts(cursor.0 as u32, len), (cursor.0 >> 48) as u16)
}

/// Pushes the likely next tokens after `m`, likeliest first within each order, longest order first.
///
/// `parent` and `generation` are passed on. Cost: at most `n_links_max` states with 16 successors each.
pub(super) fn propose(
    automaton: &SuffixAutomaton,
    m: Match,
    config: &OrderConfig,
    (parent, generation): (u32, u16),
    out: &mut Candidates,
) {
    let first = out.as_slice().len();
    let mut order = Some(automaton.renew(m));
    let mut escape = 1.0;
    let mut n_successors = 0;
    for _ in 0..config.n_links_max {
        let Some(m) = order.filter(|m| m.len() >= config.match_len_min as usize) else { return };
        // A suffix has every successor that the longer match has, so an equal number means no new one.
        if automaton.n_successors(m) > n_successors {
            n_successors = automaton.n_successors(m);
            let mut found = NewSuccessors::default();
            found.collect(automaton, m, &out.as_slice()[first..]);
            let total = found.total(automaton, m);
            for successor in found.as_slice() {
                let share = successor.count as f32 / total.events as f32;
                let recent = if successor.last_end == total.newest_end { 1.0 } else { 0.0 };
                let mixed = share + config.recency_weight * (recent - share);
                let candidate = Candidate {
                    parent,
                    token: TokenId(successor.token),
                    probability: escape * (1.0 - total.escape) * mixed,
                    match_len: m.len() as u32,
                    count: successor.count,
                    next: encode(successor.next, generation),
                };
                if out.as_slice().len() - first >= config.n_candidates_max || !out.push(candidate) {
                    return;
                }
            }
            escape *= total.escape;
        }
        order = automaton.shorter(m);
    }
}

/// Successors of one order that no longer order has, most frequent and then most recent first.
struct NewSuccessors {
    items: [Successor; 16],
    len: usize,
}

/// Sums over the new successors of one order.
struct Total {
    events: u32,
    newest_end: u32,
    escape: f32,
}

impl Default for NewSuccessors {
    fn default() -> Self {
        let none = Successor { token: 0, next: Match::EMPTY, count: 0, last_end: 0 };
        NewSuccessors { items: [none; 16], len: 0 }
    }
}

impl NewSuccessors {
    fn as_slice(&self) -> &[Successor] {
        &self.items[..self.len]
    }

    fn collect(&mut self, automaton: &SuffixAutomaton, m: Match, known: &[Candidate]) {
        for successor in automaton.successors(m) {
            if !known.iter().any(|candidate| candidate.token.0 == successor.token) {
                self.items[self.len] = successor;
                self.len += 1;
            }
        }
        self.items[..self.len].sort_unstable_by_key(|s| (u32::MAX - s.count, u32::MAX - s.last_end, s.token));
    }

    /// Where the state has more successors than were read, the unread ones count as events too.
    fn total(&self, automaton: &SuffixAutomaton, m: Match) -> Total {
        let mut events: u32 = self.as_slice().iter().map(|s| s.count).sum();
        let mut n_distinct = self.len;
        if automaton.n_successors(m) > self.items.len() {
            events = events.max(automaton.count(m));
            n_distinct = automaton.n_successors(m);
        }
        let newest_end = self.as_slice().iter().map(|s| s.last_end).max().unwrap_or(0);
        let escape = n_distinct as f32 / (events as f32 + n_distinct as f32).max(1.0);
        Total { events: events.max(1), newest_end, escape }
    }
}
