//! Searches a segment: intervals of its suffix array that narrow token by token.
//!
//! The text that is followed has a *chain* of orders: for each of its last tokens, two, three, …, the interval of the suffixes
//! that begin with them. A new token narrows every interval at its own depth, and adds one for itself alone. An order that
//! occurs as often as the next longer one occurs in the very same places, also after every later token, and is left out:
//! so a chain has the orders that a suffix automaton's links would give, a handful of them.

use refrain::draft::{Cursor, ORDER_SUCCESSORS_MAX, OrderSuccessor, SuffixOrders};
use refrain::token::TokenId;

use super::cache::PageCache;
use super::segment::{Fault, Segment, Symbol};

/// Some last tokens of a text: the suffixes in `[from, to)` of the array begin with them. Never empty.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Order {
    /// How many tokens.
    pub(super) len: u32,
    from: u32,
    to: u32,
}

/// Orders of a chain at most; the longest are kept, and the last place is for the single token.
const CHAIN_MAX: usize = 16;

/// Different successors of an order that are told apart, lowest symbols first. An order with more is weak evidence for any of
/// them; to tell 256 apart took half the time of a lookup.
const RUNS_MAX: usize = 32;

/// Places that are looked at for the most recent occurrence: all of them where there are no more.
const RECENT_PLACES: u32 = 4;

impl Order {
    pub(super) fn count(self) -> u32 {
        self.to - self.from
    }
}

/// A segment, and the pages of it.
pub(super) struct Search<'a> {
    pub(super) segment: &'a Segment,
    pub(super) cache: &'a mut PageCache,
}

impl Search<'_> {
    /// Replaces a chain by that of the text with `token` appended.
    pub(super) fn follow(&mut self, chain: &mut Vec<Order>, token: TokenId) {
        match self.segment.symbol(token) {
            None => chain.clear(),
            Some(symbol) => self.narrow_all(chain, symbol).unwrap_or_else(|Fault| chain.clear()),
        }
    }

    fn narrow_all(&mut self, chain: &mut Vec<Order>, symbol: Symbol) -> Result<(), Fault> {
        let (mut n_kept, mut count) = (0, 0);
        for i in 0..chain.len() {
            if let Some(order) = self.narrow(chain[i], symbol)?.filter(|order| order.count() > count) {
                count = order.count();
                chain[n_kept] = order;
                n_kept += 1;
            }
        }
        chain.truncate(n_kept.min(CHAIN_MAX - 1));
        let (from, to) = self.segment.places(symbol);
        if to - from > count {
            chain.push(Order { len: 1, from, to });
        }
        Ok(())
    }

    /// The order with a symbol appended, where that occurs.
    fn narrow(&mut self, order: Order, symbol: Symbol) -> Result<Option<Order>, Fault> {
        if order.len == 1 {
            return self.find_pair(order, symbol);
        }
        let Order { len, from, to } = order;
        let from = self.first_place(order, from, |found| found >= symbol)?;
        if from == to || self.symbol_at(from, len)? != symbol {
            return Ok(None);
        }
        let to = self.first_place(order, from + 1, |found| found > symbol)?;
        Ok(Some(Order { len: len + 1, from, to }))
    }

    /// By the table of pairs, which lie side by side.
    fn find_pair(&mut self, order: Order, second: Symbol) -> Result<Option<Order>, Fault> {
        let first = self.symbol_at(order.from, 0)?;
        let (mut low, end) = self.pairs_of(first)?;
        let mut high = end;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.segment.pair_at(middle, self.cache)?.0 < second {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if low == end {
            return Ok(None);
        }
        let (found, from) = self.segment.pair_at(low, self.cache)?;
        let to = self.pair_end(low, end, order)?;
        let is_inside = order.from <= from && from < to;
        Ok((found == second && is_inside).then_some(Order { len: 2, from, to }))
    }

    fn pairs_of(&self, first: Symbol) -> Result<(u32, u32), Fault> {
        self.segment.token(first).map(|_| self.segment.pairs_of(first)).ok_or(Fault)
    }

    /// Where the places of a pair end: at the next pair's.
    fn pair_end(&mut self, pair: u32, end: u32, order: Order) -> Result<u32, Fault> {
        if pair + 1 == end {
            return Ok(order.to);
        }
        Ok(self.segment.pair_at(pair + 1, self.cache)?.1.min(order.to))
    }

    /// The symbol that follows `depth` others at a place of the array.
    fn symbol_at(&mut self, place: u32, depth: u32) -> Result<Symbol, Fault> {
        let start = self.segment.suffix_at(place, self.cache)?;
        self.segment.text_at(start.saturating_add(depth), self.cache)
    }

    /// The first place of the order, from `low` on, whose next symbol is as asked for; `order.to` where there is none.
    /// Looks near `low` first: most of what is asked for is.
    fn first_place(
        &mut self,
        order: Order,
        mut low: u32,
        is_past: impl Fn(Symbol) -> bool,
    ) -> Result<u32, Fault> {
        let mut step = 1;
        let mut high = low;
        while high < order.to && !is_past(self.symbol_at(high, order.len)?) {
            low = high + 1;
            high = low.saturating_add(step).min(order.to);
            step *= 4;
        }
        // Everything before `low` is not past, `high` is, or is the end.
        while low < high {
            let middle = low + (high - low) / 2;
            if is_past(self.symbol_at(middle, order.len)?) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(low)
    }

    /// Position of the newest occurrence of an order's text; of many occurrences, the newest of some.
    fn last_end(&mut self, order: Order) -> Result<u32, Fault> {
        let n_looks = order.count().min(RECENT_PLACES);
        let mut last = 0;
        for look in 0..n_looks {
            let place = order.from + (u64::from(order.count()) * u64::from(look) / u64::from(n_looks)) as u32;
            last = last.max(self.segment.suffix_at(place, self.cache)?);
        }
        Ok(last.saturating_add(order.len))
    }
}

/// A symbol that follows an order, and the order with it.
#[derive(Clone, Copy, Default, Debug)]
struct Run {
    symbol: Symbol,
    order: Order,
}

/// The orders of a chain, as evidence for drafts.
pub(super) struct SegmentOrders<'a, 'c, F> {
    search: Search<'a>,
    chain: &'c [Order],
    /// What follows the order that was asked for last.
    runs: &'c mut Runs,
    /// Makes a cursor: the orders from this one on, and the symbol that follows them.
    cursor: F,
}

/// Scratch: what follows one order.
#[derive(Default, Debug)]
pub(super) struct Runs {
    of: Option<usize>,
    runs: Vec<Run>,
    /// Whether there are more.
    is_cut: bool,
}

impl Runs {
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
        (self.runs.of, self.runs.is_cut) = (Some(order), false);
        self.runs.runs.clear();
        let of = self.chain[order];
        let found = if of.len == 1 { self.find_pairs(of) } else { self.find_intervals(of) };
        if found.is_err() {
            self.runs.runs.clear();
        }
    }

    fn find_intervals(&mut self, of: Order) -> Result<(), Fault> {
        let mut from = of.from;
        while from < of.to {
            let symbol = self.search.symbol_at(from, of.len)?;
            let to = self.search.first_place(of, from + 1, |found| found > symbol)?;
            if !self.push_run(symbol, Order { len: of.len + 1, from, to }) {
                return Ok(());
            }
            from = to;
        }
        Ok(())
    }

    fn find_pairs(&mut self, of: Order) -> Result<(), Fault> {
        let first = self.search.symbol_at(of.from, 0)?;
        let (from, end) = self.search.pairs_of(first)?;
        if from == end {
            return Ok(());
        }
        let (mut symbol, mut place) = self.search.segment.pair_at(from, self.search.cache)?;
        for pair in from + 1..=end {
            let (next_symbol, next_place) = match pair == end {
                true => (Symbol::END, of.to),
                false => self.search.segment.pair_at(pair, self.search.cache)?,
            };
            let to = next_place.min(of.to);
            let is_inside = of.from <= place && place < to;
            if is_inside && !self.push_run(symbol, Order { len: 2, from: place, to }) {
                return Ok(());
            }
            (symbol, place) = (next_symbol, next_place);
        }
        Ok(())
    }

    /// `false` where no more are taken.
    fn push_run(&mut self, symbol: Symbol, order: Order) -> bool {
        self.runs.is_cut = self.runs.runs.len() >= RUNS_MAX;
        if symbol != Symbol::END && !self.runs.is_cut {
            self.runs.runs.push(Run { symbol, order });
        }
        !self.runs.is_cut
    }
}

impl<F: FnMut(usize, TokenId) -> Cursor> SuffixOrders for SegmentOrders<'_, '_, F> {
    /// Its place in the chain.
    type Order = usize;
    type Next = TokenId;

    fn match_len(&self, order: usize) -> u32 {
        self.chain[order].len
    }

    fn count(&self, order: usize) -> u32 {
        self.chain[order].count()
    }

    fn n_successors(&mut self, order: usize) -> usize {
        self.find_runs(order);
        self.runs.runs.len() + usize::from(self.runs.is_cut)
    }

    fn successors(&mut self, order: usize, mut each: impl FnMut(OrderSuccessor<TokenId>)) {
        self.find_runs(order);
        let Runs { runs, .. } = &mut *self.runs;
        runs.sort_unstable_by_key(|run| (u32::MAX - run.order.count(), run.symbol));
        for run in &runs[..runs.len().min(ORDER_SUCCESSORS_MAX)] {
            let token = self.search.segment.token(run.symbol);
            let (Some(token), Ok(last_end)) = (token, self.search.last_end(run.order)) else { return };
            each(OrderSuccessor { token: token.0, count: run.order.count(), last_end, next: token });
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
