//! Searches a segment: intervals of its suffix array that narrow token by token.
//!
//! The text that is followed has a *chain* of orders: for each of its last tokens, two, three, …, the interval of the suffixes
//! that begin with them. A new token narrows every interval at its own depth, and adds one for itself alone. An order that
//! occurs as often as the next longer one occurs in the very same places, also after every later token, and is left out:
//! so a chain has the orders that a suffix automaton's links would give, a handful of them.

use refrain::draft::{Cursor, OrderSuccessor, SUCCESSORS_MAX, SuffixOrders};
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

/// Different successors of an order that are told apart: two pages of pairs. An order with more is weak evidence for any.
const RUNS_MAX: usize = 256;

/// Places that are looked at for the most recent occurrence: all of them where there are no more.
const RECENT_PLACES: u32 = 8;

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
        for pair in from..end {
            let (symbol, place) = self.search.segment.pair_at(pair, self.search.cache)?;
            let to = self.search.pair_end(pair, end, of)?;
            let is_inside = of.from <= place && place < to;
            if is_inside && !self.push_run(symbol, Order { len: 2, from: place, to }) {
                return Ok(());
            }
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
        for run in &runs[..runs.len().min(SUCCESSORS_MAX)] {
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
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::super::disk::Disk;
    use super::super::key::RecordId;
    use super::super::log::{Place, Record};
    use super::super::segment::write_segment;
    use super::super::testing::MemDisk;
    use super::*;

    const PLACE: Place = Place { owner: 1, number: 1 };

    fn segment(texts: &[Vec<u32>], cache: &mut PageCache) -> Segment {
        let disk = MemDisk::default();
        let folder = Path::new("ns");
        disk.create_dir(folder).unwrap();
        let tokens = |text: &Vec<u32>| text.iter().copied().map(TokenId).collect();
        let record = |(i, text): (usize, &Vec<u32>)| Record { id: RecordId(i as u64), tokens: tokens(text) };
        let records: Vec<Record> = texts.iter().enumerate().map(record).collect();
        write_segment(&disk, folder, PLACE, &[], &records).unwrap();
        let segment = Segment::open(&disk, folder, PLACE, cache).unwrap();
        assert_eq!(segment.read_records(|_| true).unwrap(), records);
        segment.verify().unwrap();
        segment
    }

    /// Where `pattern` ends in the responses, counted over all of them with one for the end of each.
    fn ends(texts: &[Vec<u32>], pattern: &[u32]) -> Vec<usize> {
        let mut start = 0;
        let mut found = Vec::new();
        for text in texts {
            for (i, window) in text.windows(pattern.len()).enumerate() {
                if window == pattern {
                    found.push(start + i + pattern.len());
                }
            }
            start += text.len() + 1;
        }
        found
    }

    /// Compares a chain with a scan of the responses. `false` where the chain had to leave orders out.
    fn check_chain(texts: &[Vec<u32>], followed: &[u32], chain: &[Order]) -> bool {
        if chain.len() >= CHAIN_MAX - 1 {
            return false;
        }
        for len in 1..=followed.len() {
            let count = ends(texts, &followed[followed.len() - len..]).len();
            let order = chain.iter().rev().find(|order| order.len as usize >= len);
            assert_eq!(order.map_or(0, |order| order.count() as usize), count, "{len} of {followed:?}");
        }
        true
    }

    fn check_successors(texts: &[Vec<u32>], followed: &[u32], search: Search<'_>, chain: &[Order]) {
        let mut runs = Runs::default();
        let mut orders = SegmentOrders::new(search, chain, &mut runs, |_, _| Cursor(0));
        for (i, order) in chain.iter().enumerate() {
            let suffix = &followed[followed.len() - order.len as usize..];
            let mut found = Vec::new();
            orders.successors(i, |successor| found.push(successor));
            found.sort_by_key(|successor| successor.token);
            let distinct: std::collections::BTreeSet<u32> = texts.iter().flatten().copied().collect();
            let expected = distinct.into_iter().filter_map(|token| {
                let ends = ends(texts, &[suffix, &[token]].concat());
                Some((token, ends.len() as u32, *ends.iter().max()? as u32))
            });
            let expected: Vec<_> = expected.collect();
            assert_eq!(orders.n_successors(i), expected.len());
            if expected.len() <= SUCCESSORS_MAX {
                let seen = |s: &OrderSuccessor<TokenId>| (s.token, s.count);
                let found_counts: Vec<_> = found.iter().map(seen).collect();
                let expected_counts: Vec<_> =
                    expected.iter().map(|&(token, count, _)| (token, count)).collect();
                assert_eq!(found_counts, expected_counts, "after {suffix:?}");
                for (found, expected) in found.iter().zip(&expected) {
                    assert!(found.last_end <= expected.2);
                    assert!(found.count > RECENT_PLACES || found.last_end == expected.2);
                }
            }
        }
    }

    fn check(texts: &[Vec<u32>], followed: &[u32]) {
        let mut cache = PageCache::new(0);
        let segment = segment(texts, &mut cache);
        let mut chain = Vec::new();
        for end in 1..=followed.len() {
            let mut search = Search { segment: &segment, cache: &mut cache };
            search.follow(&mut chain, TokenId(followed[end - 1]));
            if !check_chain(texts, &followed[..end], &chain) {
                return;
            }
            check_successors(texts, &followed[..end], search, &chain);
        }
    }

    proptest! {
        #[test]
        fn chains_are_what_a_scan_finds(
            texts in proptest::collection::vec(proptest::collection::vec(0..4u32, 0..30), 1..6),
            followed in proptest::collection::vec(0..5u32, 0..12),
        ) {
            check(&texts, &followed);
        }

        #[test]
        fn also_with_many_tokens(
            texts in proptest::collection::vec(proptest::collection::vec(0..60u32, 0..60), 1..4),
            source in 0..4usize,
            at in 0..50usize,
        ) {
            let text = &texts[source % texts.len()];
            check(&texts, &text[at.min(text.len())..text.len().min(at + 6)]);
        }
    }

    #[test]
    fn no_match_runs_from_one_response_into_the_next() {
        let texts = [vec![1, 2], vec![3, 4], vec![1, 2]];
        check(&texts, &[1, 2, 3, 4]);
    }

    #[test]
    fn more_tokens_than_two_bytes_tell_apart() {
        let text: Vec<u32> = (0..70_000).map(|i| i * 7).collect();
        let mut cache = PageCache::new(0);
        let segment = segment(&[text, vec![14, 21, 5 * 7]], &mut cache);
        let mut chain = Vec::new();
        let mut search = Search { segment: &segment, cache: &mut cache };
        for token in [7, 14, 21] {
            search.follow(&mut chain, TokenId(token));
        }
        let lens: Vec<(u32, u32)> = chain.iter().map(|order| (order.len, order.count())).collect();
        assert_eq!(lens, [(3, 1), (2, 2)]);
    }

    /// A crafted file whose checksums are right may hold any numbers: wrong drafts, but no panic.
    #[test]
    fn any_numbers_are_searched() {
        use xxhash_rust::xxh3::xxh3_64;
        let texts: Vec<Vec<u32>> = (0..4).map(|i| (0..40).map(|j| (i * j * 7) % 5).collect()).collect();
        let disk = MemDisk::default();
        let folder = Path::new("ns");
        disk.create_dir(folder).unwrap();
        let tokens = |text: &Vec<u32>| text.iter().copied().map(TokenId).collect();
        let records =
            texts.iter().enumerate().map(|(i, text)| Record { id: RecordId(i as u64), tokens: tokens(text) });
        let path = write_segment(&disk, folder, PLACE, &[], &records.collect::<Vec<_>>()).unwrap();
        let whole = disk.contents(&path);
        for seed in 0..200u64 {
            let mut bytes = whole.clone();
            // Three pages of numbers follow the header, then the tables, which end with the pages' sums.
            let n_bytes = bytes.len();
            for i in 0..20 {
                let at = 4096 + (xxh3_64(&[seed as u8, i]) % (3 * 4096)) as usize;
                bytes[at] ^= xxh3_64(&[i, seed as u8]) as u8;
            }
            for page in 0..3 {
                let sum = xxh3_64(&bytes[(page + 1) * 4096..(page + 2) * 4096]).to_le_bytes();
                bytes[n_bytes - 24 + page * 8..][..8].copy_from_slice(&sum);
            }
            let sum = xxh3_64(&bytes[4 * 4096..]).to_le_bytes();
            bytes[48..56].copy_from_slice(&sum);
            let sum = xxh3_64(&bytes[..4088]).to_le_bytes();
            bytes[4088..4096].copy_from_slice(&sum);
            disk.put(&path, &bytes);
            let mut cache = PageCache::new(0);
            let segment = Segment::open(&disk, folder, PLACE, &mut cache).unwrap();
            let mut chain = Vec::new();
            for token in [0, 2, 4, 1, 3, 0, 0, 2] {
                let mut search = Search { segment: &segment, cache: &mut cache };
                search.follow(&mut chain, TokenId(token));
                let mut runs = Runs::default();
                let mut orders = SegmentOrders::new(search, &chain, &mut runs, |_, _| Cursor(0));
                (0..chain.len()).for_each(|i| orders.successors(i, |_| {}));
            }
            let _ = segment.read_records(|_| true);
        }
    }
}
