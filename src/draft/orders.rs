//! Converts a match in a suffix automaton to candidates from all suffix orders at once.
//!
//! The longest match is the strongest evidence, but if it is wrong, a shorter suffix with more occurrences is
//! often right. The candidates of a cursor are therefore collected along its suffix links. Each token is
//! counted at the longest order with an occurrence, as in prediction by partial matching (PPM, Cleary and
//! Witten 1984), method C with exclusion:
//!
//! ```text
//! p(c | order) = (n_c / N mixed with recency) · N / (N + d) · Π escape of the longer orders,   escape = d / (N + d)
//! ```
//!
//! `n_c` is the number of occurrences of `c` after the order's suffix, `N` their sum and `d` the number of
//! distinct tokens, without the tokens of longer orders. This is the raw probability; the reliability table
//! corrects it by match length.
//!
//! A node's cursor is only its longest match: the shorter orders are its suffix links. If the longest order
//! lacks a child's token, the child's match is the successor of a shorter order, as if the text had continued
//! that way.

use super::constants::OrderConfig;
use super::fitted;
use super::source::{Candidate, Candidates, Cursor};
use refrain_trees::TokenId;
use refrain_trees::sam::{Match, SuffixAutomaton, Transition};

impl Default for OrderConfig {
    fn default() -> Self {
        fitted::ORDERS
    }
}

/// Maximum match length in a cursor: longer matches are no stronger evidence.
const CURSOR_LEN_MAX: u32 = u16::MAX as u32;

/// Encodes a match and the generation of its automaton as a cursor.
pub(super) fn encode(m: Match, generation: u16) -> Cursor {
    let (state, len) = m.to_parts();
    Cursor(u64::from(state) | u64::from(len.min(CURSOR_LEN_MAX)) << 32 | u64::from(generation) << 48)
}

/// Decodes the match and the generation of a cursor.
pub(super) fn decode(cursor: Cursor) -> (Match, u16) {
    let len = (cursor.0 >> 32) as u32 & CURSOR_LEN_MAX;
    (Match::from_parts(cursor.0 as u32, len), (cursor.0 >> 48) as u16)
}

/// The suffixes of a match in a text, and the successors of each suffix: the evidence that [`propose_orders`]
/// weighs.
///
/// An order is one suffix. Implementations are deterministic.
pub trait SuffixOrders {
    /// A reference to a suffix.
    type Order: Copy;
    /// The data that [`cursor`](Self::cursor) needs about a successor.
    type Next: Copy + Default;

    /// Length of the suffix, in tokens.
    fn match_len(&self, order: Self::Order) -> u32;

    /// Number of occurrences of the suffix.
    fn count(&self, order: Self::Order) -> u32;

    /// Number of distinct successors. An implementation that samples a frequent suffix returns the number in
    /// its samples, and counts occurrences only in the samples.
    fn n_successors(&mut self, order: Self::Order) -> usize;

    /// Calls `each` with the successors; if there are more than [`ORDER_SUCCESSORS_MAX`], with the most
    /// frequent ones. Further calls are ignored.
    fn successors(&mut self, order: Self::Order, each: impl FnMut(OrderSuccessor<Self::Next>));

    /// The longest proper suffix with more occurrences.
    fn shorter(&mut self, order: Self::Order) -> Option<Self::Order>;

    /// A cursor for the suffix with the successor appended. Called only for successors that become
    /// candidates.
    fn cursor(&mut self, order: Self::Order, next: Self::Next) -> Cursor;
}

/// Maximum successors considered per order.
pub const ORDER_SUCCESSORS_MAX: usize = 16;

/// A successor of a suffix.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OrderSuccessor<N> {
    /// The token.
    pub token: u32,
    /// Number of occurrences after the suffix.
    pub count: u32,
    /// Position of its most recent occurrence, in any numbering that grows with time.
    pub last_end: u32,
    /// Data of the order's text for continuing after the token.
    pub next: N,
}

/// Pushes the likely next tokens after `m`, likeliest first within each order, longest order first.
///
/// `parent` and `generation` are copied to the candidates. Cost: at most `n_links_max` states with 16
/// successors each.
pub(super) fn propose(
    automaton: &SuffixAutomaton,
    m: Match,
    config: &OrderConfig,
    (parent, generation): (u32, u16),
    out: &mut Candidates,
) {
    let mut orders = AutomatonOrders::new(automaton, |next| encode(next, generation));
    propose_orders(&mut orders, automaton.renew(m), config, parent, out);
}

/// Pushes the likely next tokens after the suffix `longest` and its shorter suffixes: likeliest first within
/// each order, longest order first.
///
/// `parent` is the index of the cursor in the frontier and is copied to the candidates. Cost: at most
/// `n_links_max` orders with [`ORDER_SUCCESSORS_MAX`] successors each.
pub fn propose_orders<O: SuffixOrders>(
    orders: &mut O,
    longest: O::Order,
    config: &OrderConfig,
    parent: u32,
    out: &mut Candidates,
) {
    let first = out.as_slice().len();
    let mut order = Some(longest);
    let mut escape = 1.0;
    let mut n_successors = 0;
    for _ in 0..config.n_links_max {
        let Some(m) = order.filter(|m| orders.match_len(*m) >= config.match_len_min) else { return };
        // A shorter suffix has every successor of the longer match, so an equal number means no new
        // successor.
        let n_here = orders.n_successors(m);
        if n_here > n_successors {
            n_successors = n_here;
            let found = NewSuccessors::collect(orders, m, &out.as_slice()[first..]);
            let total = found.total(n_here, orders.count(m));
            for successor in found.as_slice() {
                if out.as_slice().len() - first >= config.n_candidates_max || out.is_full() {
                    return;
                }
                let share = successor.count as f32 / total.events as f32;
                let recent = if successor.last_end == total.newest_end { 1.0 } else { 0.0 };
                let mixed = share + config.recency_weight * (recent - share);
                out.push(Candidate {
                    parent,
                    token: TokenId(successor.token),
                    probability: escape * (1.0 - total.escape) * mixed,
                    match_len: orders.match_len(m),
                    count: successor.count,
                    next: orders.cursor(m, successor.next),
                });
            }
            escape *= total.escape;
        }
        order = orders.shorter(m);
    }
}

/// The orders of a match in a suffix automaton.
#[derive(Debug)]
pub struct AutomatonOrders<'a, F> {
    automaton: &'a SuffixAutomaton,
    cursor: F,
}

impl<'a, F: FnMut(Match) -> Cursor> AutomatonOrders<'a, F> {
    /// `cursor` creates a candidate's cursor from its match.
    pub fn new(automaton: &'a SuffixAutomaton, cursor: F) -> Self {
        AutomatonOrders { automaton, cursor }
    }
}

impl<F: FnMut(Match) -> Cursor> SuffixOrders for AutomatonOrders<'_, F> {
    type Order = Match;
    type Next = Match;

    fn match_len(&self, order: Match) -> u32 {
        order.len() as u32
    }

    fn count(&self, order: Match) -> u32 {
        self.automaton.count(order)
    }

    fn n_successors(&mut self, order: Match) -> usize {
        self.automaton.n_successors(order)
    }

    fn successors(&mut self, order: Match, each: impl FnMut(OrderSuccessor<Match>)) {
        self.automaton.successors(order).map(OrderSuccessor::from).for_each(each);
    }

    fn shorter(&mut self, order: Match) -> Option<Match> {
        self.automaton.shorter(order)
    }

    fn cursor(&mut self, _order: Match, next: Match) -> Cursor {
        (self.cursor)(next)
    }
}

impl From<Transition> for OrderSuccessor<Match> {
    fn from(Transition { token, next, count, last_end }: Transition) -> Self {
        OrderSuccessor { token, count, last_end, next }
    }
}

/// Successors of one order that no longer order has: most frequent first, then most recent.
struct NewSuccessors<N> {
    items: [OrderSuccessor<N>; ORDER_SUCCESSORS_MAX],
    len: usize,
}

/// Sums over the new successors of one order.
struct Total {
    events: u32,
    newest_end: u32,
    escape: f32,
}

impl<N: Copy + Default> NewSuccessors<N> {
    fn as_slice(&self) -> &[OrderSuccessor<N>] {
        &self.items[..self.len]
    }

    fn collect<O: SuffixOrders<Next = N>>(orders: &mut O, m: O::Order, known: &[Candidate]) -> Self {
        let mut found = NewSuccessors { items: [OrderSuccessor::default(); ORDER_SUCCESSORS_MAX], len: 0 };
        orders.successors(m, |successor| {
            let is_known = known.iter().any(|candidate| candidate.token.0 == successor.token);
            if !is_known && found.len < ORDER_SUCCESSORS_MAX {
                found.items[found.len] = successor;
                found.len += 1;
            }
        });
        let key = |s: &OrderSuccessor<N>| (u32::MAX - s.count, u32::MAX - s.last_end, s.token);
        found.items[..found.len].sort_unstable_by_key(key);
        found
    }

    /// `n_successors` and `count` belong to the order. If the order has more successors than are considered,
    /// the others count as events too.
    fn total(&self, n_successors: usize, count: u32) -> Total {
        let mut events: u32 = self.as_slice().iter().map(|s| s.count).sum();
        let mut n_distinct = self.len;
        if n_successors > self.items.len() {
            events = events.max(count);
            n_distinct = n_successors;
        }
        let newest_end = self.as_slice().iter().map(|s| s.last_end).max().unwrap_or(0);
        let escape = n_distinct as f32 / (events as f32 + n_distinct as f32).max(1.0);
        Total { events: events.max(1), newest_end, escape }
    }
}
