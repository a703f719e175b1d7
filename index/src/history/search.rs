//! Searches a segment: intervals of its prefixes that narrow token by token.
//!
//! The followed text has a *chain* of orders: for each number of last tokens, the interval of the prefixes
//! that end with them. A new token maps every interval to one of prefixes that end with that token, and adds
//! an order for the token alone. If an order occurs as often as the next longer one, both occur at the same
//! places, also after every later token. The shorter order is then left out. A chain has the orders that a
//! suffix automaton's links would give, usually a few.

use std::ops::Range;

use refrain::TokenId;
use refrain::drafting::Cursor;
use refrain::internals::draft::{ORDER_SUCCESSORS_MAX, OrderSuccessor, SuffixOrders};

use super::cache::PageCache;
use super::segment::{Fault, Segment, Symbol};

/// Some last tokens of a text. The prefixes at the places `[from, to)` end with them. Never empty.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Order {
    /// Number of tokens.
    pub(super) len: u32,
    from: u32,
    to: u32,
}

/// Maximum number of orders in a chain. The longest are kept, and the last entry is for the single token.
const CHAIN_MAX: usize = 16;

/// Maximum number of places searched for the successors of an order. An order with more places is weak
/// evidence for any successor. Of such an order, evenly spread samples of [`SAMPLE_PLACES`] adjacent places
/// are searched, and its count is then this number of places.
const PLACES_MAX: u32 = 128;

/// A cache line of the section `ends`.
const SAMPLE_PLACES: u32 = 16;

impl Order {
    pub(super) fn count(self) -> u32 {
        self.to - self.from
    }

    /// The searched places, at most [`PLACES_MAX`] in total.
    fn samples(self) -> impl Iterator<Item = Range<u32>> {
        let is_whole = self.count() <= PLACES_MAX;
        let n_samples = if is_whole { 1 } else { PLACES_MAX / SAMPLE_PLACES };
        let n_places = if is_whole { self.count() } else { SAMPLE_PLACES };
        let span = u64::from(self.count() - n_places);
        (0..n_samples).map(move |i| {
            let from = self.from + (span * u64::from(i) / u64::from(n_samples.max(2) - 1)) as u32;
            from..from + n_places
        })
    }
}

/// A segment and its page cache.
pub(super) struct Search<'a> {
    pub(super) segment: &'a Segment,
    pub(super) cache: &'a mut PageCache,
}

impl Search<'_> {
    /// Replaces the chain of a text by the chain of the text with `token` appended.
    pub(super) fn follow(&mut self, chain: &mut Vec<Order>, token: TokenId) {
        match self.segment.symbol(token) {
            None => chain.clear(),
            Some(symbol) => self.append(chain, symbol).unwrap_or_else(|Fault| chain.clear()),
        }
    }

    fn append(&mut self, chain: &mut Vec<Order>, symbol: Symbol) -> Result<(), Fault> {
        let (first, end) = self.segment.places(symbol);
        // The interval of a longer order is inside that of a shorter one, and the two usually end near each
        // other.
        let middle = first + (end - first) / 2;
        let mut inner: Option<(u32, u32)> = None;
        let (mut n_kept, mut count) = (0, 0);
        for i in 0..chain.len() {
            let Order { len, from, to } = chain[i];
            let (before, guess) = inner.map_or((end, middle), |(from, _)| (from, from));
            let from = self.segment.first_with_shorter((first, before), from, guess, self.cache)?;
            let after = inner.map_or(from, |(_, to)| to);
            let to = self.segment.first_with_shorter((after, end), to, after, self.cache)?;
            inner = Some((from, to));
            let order = Order { len: len + 1, from, to };
            if order.count() > count {
                count = order.count();
                chain[n_kept] = order;
                n_kept += 1;
            }
        }
        chain.truncate(n_kept.min(CHAIN_MAX - 1));
        if end - first > count {
            chain.push(Order { len: 1, from: first, to: end });
        }
        Ok(())
    }
}

/// A successor of an order.
#[derive(Clone, Copy, Default, Debug)]
struct Run {
    symbol: Symbol,
    /// Its count among the searched places.
    count: u32,
    /// The end of the newest of these prefixes.
    last_end: u32,
}

/// The orders of a chain, as evidence for drafts.
pub(super) struct SegmentOrders<'a, 'c, F> {
    search: Search<'a>,
    chain: &'c [Order],
    /// The successors of the last queried order.
    runs: &'c mut Runs,
    /// Makes a cursor from the index of an order and its successor.
    cursor: F,
}

/// Scratch memory: the successors of one order.
#[derive(Debug)]
pub(super) struct Runs {
    of: Option<usize>,
    runs: Vec<Run>,
    /// By a symbol's hash, with linear probing: the run's index plus one, or 0.
    slots: [u8; N_SLOTS],
    /// The run of each searched place, or [`NO_RUN`].
    run_of: [u8; PLACES_MAX as usize],
}

/// Twice the maximum number of runs.
const N_SLOTS: usize = 2 * PLACES_MAX as usize;

const NO_RUN: u8 = u8::MAX;

impl Default for Runs {
    fn default() -> Self {
        Runs { of: None, runs: Vec::new(), slots: [0; N_SLOTS], run_of: [NO_RUN; PLACES_MAX as usize] }
    }
}

impl Runs {
    fn clear(&mut self) {
        self.runs.clear();
        self.slots.fill(0);
    }

    /// Counts an occurrence. Returns the symbol's run.
    fn count(&mut self, symbol: Symbol) -> u8 {
        if symbol == Symbol::END {
            return NO_RUN;
        }
        let mut at = symbol.0.wrapping_mul(0x9E37_79B9) as usize >> 24;
        loop {
            match self.slots[at % N_SLOTS] {
                0 => {
                    self.runs.push(Run { symbol, count: 1, last_end: 0 });
                    self.slots[at % N_SLOTS] = self.runs.len() as u8;
                    return self.runs.len() as u8 - 1;
                }
                slot if self.runs[slot as usize - 1].symbol == symbol => {
                    self.runs[slot as usize - 1].count += 1;
                    return slot - 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Bytes on the heap.
    pub(super) fn memory_usage(&self) -> usize {
        self.runs.capacity() * size_of::<Run>()
    }
}

impl<'a, 'c, F: FnMut(usize, TokenId) -> Cursor> SegmentOrders<'a, 'c, F> {
    pub(super) fn new(search: Search<'a>, chain: &'c [Order], runs: &'c mut Runs, cursor: F) -> Self {
        runs.of = None;
        SegmentOrders { search, chain, runs, cursor }
    }

    fn find_runs(&mut self, order: usize) {
        if self.runs.of == Some(order) {
            return;
        }
        self.runs.of = Some(order);
        self.runs.clear();
        for places in self.chain[order].samples() {
            if self.count(places).is_err() {
                self.runs.clear();
                return;
            }
        }
        self.runs.runs.sort_unstable_by_key(|run| (u32::MAX - run.count, run.symbol));
    }

    fn count(&mut self, places: Range<u32>) -> Result<(), Fault> {
        let Search { segment, cache } = &mut self.search;
        let runs = &mut *self.runs;
        segment.nexts(places.clone(), cache, |i, symbol| runs.run_of[i] = runs.count(symbol))?;
        segment.ends(places, cache, |i, end| {
            if let Some(run) = runs.runs.get_mut(runs.run_of[i] as usize) {
                run.last_end = run.last_end.max(end);
            }
        })
    }
}

impl<F: FnMut(usize, TokenId) -> Cursor> SuffixOrders for SegmentOrders<'_, '_, F> {
    /// The index in the chain.
    type Order = usize;
    type Next = TokenId;

    fn match_len(&self, order: usize) -> u32 {
        self.chain[order].len
    }

    /// The number of searched places.
    fn count(&self, order: usize) -> u32 {
        self.chain[order].count().min(PLACES_MAX)
    }

    /// The number of successors at the searched places.
    fn n_successors(&mut self, order: usize) -> usize {
        self.find_runs(order);
        self.runs.runs.len()
    }

    fn successors(&mut self, order: usize, mut each: impl FnMut(OrderSuccessor<TokenId>)) {
        self.find_runs(order);
        for run in self.runs.runs.iter().take(ORDER_SUCCESSORS_MAX) {
            let Some(token) = self.search.segment.token(run.symbol) else { return };
            each(OrderSuccessor { token: token.0, count: run.count, last_end: run.last_end, next: token });
        }
    }

    fn shorter(&mut self, order: usize) -> Option<usize> {
        (order + 1 < self.chain.len()).then_some(order + 1)
    }

    fn cursor(&mut self, order: usize, next: TokenId) -> Cursor {
        (self.cursor)(order, next)
    }
}

#[cfg(test)]
mod tests;
