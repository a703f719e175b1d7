//! The state of a ring: its buffers, their extents, and the blocks to read next. It has no threads, clock or
//! file.

use std::collections::VecDeque;

use super::ReadFailure;
use refrain_kernels::{PageBlock, PageBuf};

/// A range of the file that is read and used as a whole. Both numbers are multiples of
/// [`DIRECT_ALIGN`](super::DIRECT_ALIGN).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its begin in the file.
    pub offset: u64,
    /// Its bytes.
    pub len: usize,
}

/// The buffers of a ring, and their extents.
///
/// Extents are fetched in the order of their expected use: as in the file, from the last on again from the first, except where something else
/// is [expected](Self::expect). A wrong prediction wastes the reads made ahead and has no other effect.
///
/// # Invariants
/// - A buffer is free, or belongs to a fetch, or is leased to a pass; `n_buffers` counts all of them.
/// - `queue` is in the order of expected use. The wanted extent is at its front, or waits for a free buffer.
pub(super) struct Queue {
    extents: Vec<Extent>,
    block_len: usize,
    free: Vec<PageBuf>,
    n_buffers: usize,
    /// Buffers beyond this number are freed as soon as they are unused.
    n_buffers_max: usize,
    queue: VecDeque<Fetch>,
    /// Cancelled fetches with reads in progress.
    dropped: Vec<Fetch>,
    /// For each extent, the extent that is expected after it.
    next: Vec<usize>,
    /// The extent that was leased last.
    taken: Option<usize>,
    /// The extent that a pass waits for.
    wanted: Option<usize>,
    n_fetches: u64,
    /// Bytes that were read but not used.
    pub(super) dropped_bytes: usize,
}

/// The reads of one extent into a buffer.
struct Fetch {
    id: u64,
    extent_idx: usize,
    /// Blocks whose reads have not started, in reverse order.
    todo: Vec<PageBlock>,
    /// Blocks whose reads have ended.
    done: Vec<PageBlock>,
    n_blocks: usize,
    n_read_bytes: usize,
    failure: Option<ReadFailure>,
    /// Whether reads may have started before the extent was wanted.
    is_ahead: bool,
}

/// A block to read, with the id of its fetch.
pub(super) struct Work {
    id: u64,
    pub(super) offset: u64,
    pub(super) block: PageBlock,
}

impl Fetch {
    fn is_complete(&self) -> bool {
        self.done.len() == self.n_blocks
    }

    /// Cancels the reads that have not started.
    fn stop(&mut self) {
        self.done.append(&mut self.todo);
    }
}

impl Queue {
    /// `buffers` are as long as the longest extent.
    pub(super) fn new(extents: Vec<Extent>, buffers: Vec<PageBuf>, block_len: usize) -> Self {
        let (n_extents, n_buffers) = (extents.len(), buffers.len());
        Self {
            extents,
            block_len,
            free: buffers,
            n_buffers,
            n_buffers_max: n_buffers,
            queue: VecDeque::new(),
            dropped: Vec::new(),
            next: (0..n_extents).map(|i| (i + 1) % n_extents).collect(),
            taken: None,
            wanted: None,
            n_fetches: 0,
            dropped_bytes: 0,
        }
    }

    /// Declares that a pass waits for an extent, and cancels the fetches of extents expected before it.
    /// Returns whether there are new blocks to read.
    pub(super) fn want(&mut self, extent_idx: usize) -> bool {
        let is_news = self.wanted.replace(extent_idx) != Some(extent_idx);
        let n_early = self.queue.iter().position(|fetch| fetch.extent_idx == extent_idx);
        for _ in 0..n_early.unwrap_or(self.queue.len()) {
            self.drop_front();
        }
        if is_news && let Some(fetch) = self.queue.front_mut() {
            fetch.is_ahead = true;
        }
        self.forget_old_failure();
        self.plan()
    }

    /// If the wanted extent has failed and its reads may have started before it was wanted, drops it, so that
    /// it is read again. A pass therefore gets only failures of reads that started while it waited. Returns
    /// whether a failure was dropped.
    fn forget_old_failure(&mut self) -> bool {
        let is_wanted = |fetch: &Fetch| self.wanted == Some(fetch.extent_idx);
        let is_old = |fetch: &Fetch| is_wanted(fetch) && fetch.is_ahead && fetch.failure.is_some();
        let forgets = self.queue.front().is_some_and(is_old);
        if forgets {
            self.drop_all();
        }
        forgets
    }

    /// The wanted extent, once it is complete or has failed.
    pub(super) fn take(&mut self) -> Option<Result<PageBuf, ReadFailure>> {
        let wanted = self.wanted?;
        let front = self.queue.front()?;
        if front.extent_idx != wanted || !front.is_complete() {
            return None;
        }
        let fetch = self.queue.pop_front()?;
        self.wanted = None;
        let pages = PageBlock::join(fetch.done);
        if let Some(failure) = fetch.failure {
            self.add_free(pages);
            // Stops reading ahead until an extent is wanted.
            self.taken = None;
            self.drop_all();
            return Some(Err(failure));
        }
        self.taken = Some(wanted);
        Some(Ok(pages))
    }

    /// Declares that the pass no longer waits.
    pub(super) fn give_up(&mut self) {
        self.wanted = None;
    }

    /// Takes a leased buffer back. Returns whether there are new blocks to read.
    pub(super) fn give_back(&mut self, pages: PageBuf) -> bool {
        self.add_free(pages);
        self.plan()
    }

    /// Number of all buffers: free, in use by fetches, and leased.
    pub(super) fn n_buffers(&self) -> usize {
        self.n_buffers
    }

    /// Reduces the ring to `n_max` buffers, at least two. Frees unused buffers now, then those of the extents
    /// that are expected last, then others as soon as they are unused.
    pub(super) fn shrink(&mut self, n_max: usize) {
        assert!(n_max >= 2, "{n_max} buffers");
        self.n_buffers_max = n_max;
        while self.n_buffers > n_max && self.free.pop().is_some() {
            self.n_buffers -= 1;
        }
        // A cancelled fetch frees its buffer after its reads have ended.
        while self.n_buffers > n_max + self.dropped.len()
            && let Some(fetch) = self.queue.pop_back()
        {
            self.drop_fetch(fetch);
        }
    }

    /// Adds buffers. Returns whether there are new blocks to read.
    pub(super) fn grow(&mut self, buffers: Vec<PageBuf>) -> bool {
        self.n_buffers += buffers.len();
        self.n_buffers_max = self.n_buffers_max.max(self.n_buffers);
        self.free.extend(buffers);
        self.plan()
    }

    /// Expects `next` after the extent `after` from now on, and cancels the fetches of extents that were expected behind it. Returns whether
    /// there are new blocks to read.
    pub(super) fn expect(&mut self, after: usize, next: usize) -> bool {
        if std::mem::replace(&mut self.next[after], next) == next {
            return false;
        }
        if let Some(at) = self.queue.iter().position(|fetch| fetch.extent_idx == after) {
            while self.queue.len() > at + 1
                && let Some(fetch) = self.queue.pop_back()
            {
                self.drop_fetch(fetch);
            }
        }
        self.plan()
    }

    /// Excludes an extent from reading ahead until it is wanted.
    pub(super) fn skip(&mut self, extent_idx: usize) {
        let behind = self.next[extent_idx];
        self.next.iter_mut().filter(|next| **next == extent_idx).for_each(|next| *next = behind);
    }

    /// Resets the predictions: after each extent, the next extent of the file is expected.
    pub(super) fn expect_all(&mut self) {
        let n_extents = self.next.len();
        self.next = (0..n_extents).map(|i| (i + 1) % n_extents).collect();
    }

    /// The next block to read.
    pub(super) fn work(&mut self) -> Option<Work> {
        let fetch = self.queue.iter_mut().find(|fetch| !fetch.todo.is_empty())?;
        let block = fetch.todo.pop()?;
        let offset = self.extents[fetch.extent_idx].offset + block.start() as u64;
        Some(Work { id: fetch.id, offset, block })
    }

    /// Records the end of a block's read. Returns whether an extent is complete or a buffer is free.
    pub(super) fn done(&mut self, work: Work, result: Result<(), ReadFailure>) -> bool {
        let Work { id, block, .. } = work;
        if let Some(fetch) = self.queue.iter_mut().find(|fetch| fetch.id == id) {
            fetch.end_block(block, result);
            let is_complete = fetch.is_complete();
            return if self.forget_old_failure() { self.plan() } else { is_complete };
        }
        let at = self.dropped.iter().position(|fetch| fetch.id == id).expect("a block belongs to a fetch");
        self.dropped[at].end_block(block, result);
        if !self.dropped[at].is_complete() {
            return false;
        }
        let fetch = self.dropped.swap_remove(at);
        self.free(fetch);
        self.plan();
        true
    }

    fn drop_all(&mut self) {
        while !self.queue.is_empty() {
            self.drop_front();
        }
    }

    /// Starts a fetch of the next expected extent for every free buffer. Returns whether there was a free buffer.
    fn plan(&mut self) -> bool {
        let mut is_new = false;
        while !self.free.is_empty() {
            let next = match self.queue.back() {
                Some(fetch) => Some(self.next[fetch.extent_idx]),
                None => self.wanted.or(self.taken.map(|taken| self.next[taken])),
            };
            let Some(extent_idx) = next else { break };
            let Some(pages) = self.free.pop() else { break };
            let mut todo = pages.split(self.extents[extent_idx].len, self.block_len);
            todo.reverse();
            let (id, n_blocks) = (self.n_fetches, todo.len());
            self.n_fetches += 1;
            let done = Vec::with_capacity(n_blocks);
            let fetch = Fetch {
                id,
                extent_idx,
                todo,
                done,
                n_blocks,
                n_read_bytes: 0,
                failure: None,
                is_ahead: false,
            };
            self.queue.push_back(fetch);
            is_new = true;
        }
        is_new
    }

    fn drop_front(&mut self) {
        if let Some(fetch) = self.queue.pop_front() {
            self.drop_fetch(fetch);
        }
    }

    fn drop_fetch(&mut self, mut fetch: Fetch) {
        fetch.stop();
        if fetch.is_complete() { self.free(fetch) } else { self.dropped.push(fetch) }
    }

    fn add_free(&mut self, pages: PageBuf) {
        if self.n_buffers > self.n_buffers_max {
            self.n_buffers -= 1; // the buffer is dropped
        } else {
            self.free.push(pages);
        }
    }

    fn free(&mut self, fetch: Fetch) {
        self.dropped_bytes += fetch.n_read_bytes;
        self.add_free(PageBlock::join(fetch.done));
    }
}

impl Fetch {
    fn end_block(&mut self, mut block: PageBlock, result: Result<(), ReadFailure>) {
        match result {
            Ok(()) => self.n_read_bytes += block.bytes_mut().len(),
            Err(failure) => {
                self.failure.get_or_insert(failure);
                self.stop();
            }
        }
        self.done.push(block);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const PAGE: usize = 4096;

    /// `n` extents of two pages each, read a page at a time.
    fn queue(n: usize, n_slots: usize) -> Queue {
        let extents = (0..n).map(|i| Extent { offset: (2 * i * PAGE) as u64, len: 2 * PAGE });
        let buffers = (0..n_slots).map(|_| PageBuf::zeroed(2 * PAGE).unwrap()).collect();
        Queue::new(extents.collect(), buffers, PAGE)
    }

    /// Completes all reads; returns the pages of the file in order.
    fn read_all(queue: &mut Queue) -> Vec<u64> {
        let mut pages = Vec::new();
        while let Some(work) = queue.work() {
            pages.push(work.offset / PAGE as u64);
            queue.done(work, Ok(()));
        }
        pages
    }

    fn take(queue: &mut Queue, extent_idx: usize) {
        queue.want(extent_idx);
        read_all(queue);
        let pages = queue.take().unwrap().unwrap();
        queue.give_back(pages);
    }

    #[test]
    fn reading_goes_on_behind_the_last_extent_and_stops_when_the_ring_is_full() {
        let mut queue = queue(3, 2);
        assert!(queue.work().is_none(), "nothing is read before something is wanted");
        assert!(queue.want(0));
        assert_eq!(read_all(&mut queue), [0, 1, 2, 3]);
        let pages = queue.take().unwrap().unwrap();
        assert!(queue.work().is_none(), "both buffers are in use");
        assert!(queue.give_back(pages));
        assert_eq!(read_all(&mut queue), [4, 5]);
        for extent_idx in [1, 2] {
            queue.want(extent_idx);
            let pages = queue.take().unwrap().unwrap();
            queue.give_back(pages);
        }
        assert_eq!(read_all(&mut queue), [0, 1, 2, 3], "the next round");
        assert_eq!(queue.dropped_bytes, 0);
    }

    #[test]
    fn an_expected_order_wastes_nothing() {
        let mut queue = queue(4, 2);
        queue.expect(1, 3);
        for _ in 0..3 {
            [0, 1, 3].into_iter().for_each(|extent_idx| take(&mut queue, extent_idx));
        }
        assert_eq!(queue.dropped_bytes, 0, "2 is not read");
        // 0 and 1 are read ahead now, and what is behind 1 changes before it is read.
        queue.expect(1, 2);
        [0, 1, 2, 3].into_iter().for_each(|extent_idx| take(&mut queue, extent_idx));
        assert_eq!(queue.dropped_bytes, 0);
        // 0 and 1 once more. Behind 0 comes 3.
        assert_eq!(read_all(&mut queue), [2, 3], "0 had been read");
        assert!(queue.expect(0, 3));
        assert_eq!(read_all(&mut queue), [6, 7]);
        assert_eq!(queue.dropped_bytes, 2 * PAGE, "1 had been read");
        [0, 3, 0, 3].into_iter().for_each(|extent_idx| take(&mut queue, extent_idx));
        // A wrong expectation costs the reads made ahead.
        take(&mut queue, 2);
        assert!(queue.dropped_bytes > 2 * PAGE);
    }

    #[test]
    fn what_is_wanted_waits_for_reads_under_way_at_most() {
        let mut queue = queue(4, 2);
        queue.want(0);
        let under_way = [queue.work().unwrap(), queue.work().unwrap(), queue.work().unwrap()];
        queue.want(2);
        assert!(queue.work().is_none(), "no buffer is free yet");
        let [first, second, third] = under_way;
        queue.done(first, Ok(()));
        assert!(queue.work().is_none());
        assert!(queue.done(second, Ok(())));
        assert_eq!(queue.work().unwrap().offset, 4 * PAGE as u64);
        assert!(queue.done(third, Ok(())), "the second page of its extent is not read any more");
        assert_eq!(queue.dropped_bytes, 3 * PAGE);
    }

    #[test]
    fn a_failure_is_told_once_and_tried_again() {
        let mut queue = queue(3, 2);
        queue.want(1);
        let failure =
            ReadFailure::Read { offset: 3, kind: std::io::ErrorKind::Other, message: "broken".into() };
        let work = queue.work().unwrap();
        assert!(queue.done(work, Err(failure.clone())), "its other block is not read");
        assert!(matches!(queue.take(), Some(Err(told)) if told == failure));
        assert!(queue.work().is_none() && queue.take().is_none(), "flash rests until something is wanted");
        queue.want(1);
        assert_eq!(read_all(&mut queue)[..2], [2, 3]);
        assert!(queue.take().unwrap().is_ok());
    }

    #[test]
    fn no_buffer_is_lost_while_nothing_is_expected() {
        let mut queue = queue(3, 2);
        assert!(!queue.expect(1, 0) && !queue.grow(vec![PageBuf::zeroed(2 * PAGE).unwrap()]));
        assert_eq!((queue.n_buffers(), queue.free.len()), (3, 3));
    }

    #[test]
    fn a_ring_shrinks_wherever_its_buffers_are_and_grows_again() {
        // Leased or not, read completely or in part: two buffers are left, and the data is complete and in
        // order.
        for (lent, reading) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut queue = queue(5, 4);
            queue.want(0);
            let mut under_way = Vec::new();
            while let Some(work) = queue.work() {
                let offset = work.offset;
                match reading && offset >= 4 * PAGE as u64 {
                    true => under_way.push(work),
                    false => _ = queue.done(work, Ok(())),
                }
            }
            let pages = lent.then(|| queue.take().unwrap().unwrap());
            queue.shrink(2);
            under_way.into_iter().for_each(|work| _ = queue.done(work, Ok(())));
            if let Some(pages) = pages {
                queue.give_back(pages);
            }
            assert_eq!(queue.n_buffers(), 2, "lent: {lent}, reading: {reading}");
            (0..10).for_each(|i| take(&mut queue, i % 5));
            assert_eq!((queue.n_buffers(), queue.free.len() + queue.queue.len()), (2, 2));
            assert!(queue.grow(vec![PageBuf::zeroed(2 * PAGE).unwrap()]));
            assert_eq!(queue.n_buffers(), 3);
            (0..10).for_each(|i| take(&mut queue, i % 5));
        }
    }

    #[test]
    fn what_is_skipped_is_not_read_ahead() {
        let mut queue = queue(4, 2);
        [1, 2].into_iter().for_each(|extent_idx| queue.skip(extent_idx));
        queue.want(0);
        assert_eq!(read_all(&mut queue), [0, 1, 6, 7]);
        queue.take().unwrap().unwrap();
        queue.expect_all();
        assert_eq!(queue.next, [1, 2, 3, 0]);
    }

    #[test]
    fn what_was_begun_ahead_of_its_use_and_fails_is_read_again() {
        let failure = ReadFailure::Stalled { offset: 0, limit: std::time::Duration::ZERO };
        for fails_first in [true, false] {
            let mut queue = queue(3, 2);
            queue.want(0);
            [0, 1].into_iter().for_each(|_| {
                let work = queue.work().unwrap();
                queue.done(work, Ok(()));
            });
            let ahead = queue.work().unwrap();
            let pages = queue.take().unwrap().unwrap();
            queue.give_back(pages);
            if fails_first {
                queue.done(ahead, Err(failure.clone()));
                assert!(queue.want(1), "it failed before it was wanted");
            } else {
                queue.want(1);
                assert!(queue.done(ahead, Err(failure.clone())), "it failed after");
            }
            assert!(queue.take().is_none());
            let again = queue.work().unwrap();
            assert_eq!(again.offset, 2 * PAGE as u64);
            // This read started while the extent was wanted.
            queue.done(again, Err(failure.clone()));
            assert!(matches!(queue.take(), Some(Err(told)) if told == failure));
            take(&mut queue, 1);
            assert!(queue.take().is_none(), "nothing is wanted now");
        }
    }

    proptest! {
        /// Whatever happened before, and though the reads under way fail: what a pass wants comes, if its own reads do not fail.
        #[test]
        fn what_is_wanted_comes(steps in vec((0..11u8, 0..5usize, 0..5usize), 0..80), wanted in 0..5usize) {
            let failure = ReadFailure::Stalled { offset: 0, limit: std::time::Duration::ZERO };
            let mut queue = queue(5, 3);
            let (mut under_way, mut lent) = (Vec::new(), Vec::new());
            for (step, a, b) in steps {
                match step {
                    0 => _ = queue.want(a),
                    1 => under_way.extend(queue.work()),
                    2 if a < under_way.len() => _ = queue.done(under_way.swap_remove(a), Ok(())),
                    3 if a < under_way.len() => _ = queue.done(under_way.swap_remove(a), Err(failure.clone())),
                    4 => lent.extend(queue.take().and_then(Result::ok)),
                    5 => _ = lent.pop().map(|pages| queue.give_back(pages)),
                    6 => _ = queue.expect(a, b),
                    7 => queue.skip(a),
                    8 => queue.shrink(2 + a % 2),
                    9 if queue.n_buffers() < 4 => _ = queue.grow(vec![PageBuf::zeroed(2 * PAGE).unwrap()]),
                    10 => queue.give_up(),
                    _ => {}
                }
            }
            queue.give_up();
            lent.into_iter().for_each(|pages| _ = queue.give_back(pages));
            let mut failing = under_way;
            let taken = (0..100).find_map(|_| {
                queue.want(wanted);
                let taken = queue.take();
                match (queue.work(), failing.pop()) {
                    (None, Some(work)) => _ = queue.done(work, Err(failure.clone())),
                    (Some(work), old) => {
                        queue.done(work, Ok(()));
                        failing.extend(old);
                    }
                    (None, None) => {}
                }
                taken
            });
            let pages = taken.expect("it comes").expect("a failure of an earlier read is not told");
            prop_assert_eq!(pages.bytes().len(), 2 * PAGE);
        }
    }

    /// A pass that gave up and waits again does not get the failure of a read that started before.
    #[test]
    fn a_failure_is_told_to_who_waited_when_the_read_began() {
        let failure = ReadFailure::Stalled { offset: 0, limit: std::time::Duration::ZERO };
        let mut queue = queue(3, 2);
        queue.want(0);
        let work = queue.work().unwrap();
        queue.give_up();
        queue.want(0);
        queue.done(work, Err(failure));
        assert!(queue.take().is_none());
        take(&mut queue, 0);
    }
}
