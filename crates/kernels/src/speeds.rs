//! The measured speeds of a pool's workers, and the parts of the items that follow from them.
//!
//! Cores differ: a processor has fast and slow ones, another program runs on one, one is throttled. The speed of a
//! worker is its items divided by the time from the section's start to its end, so waking late counts too. Speeds are
//! relative to those of the same section, because sections differ in the cost of an item.
//!
//! A worker whose core another program shares is preempted inside a chunk now and then, and the section waits for it. Each
//! worker has an account of the time that it saves and costs ([`Account`]); one that costs more rests for a while.

use std::ops::Range;

/// The share of each worker in the sum of speeds.
pub(super) struct Speeds {
    shares: Vec<f32>,
    /// The active workers of the last section.
    n_active: usize,
    faster: usize,
    accounts: Vec<Account>,
}

/// The time that a worker has saved, and cost by sections that waited for it.
#[derive(Clone)]
struct Account {
    /// Nanoseconds saved over the other workers alone, from 0 to [`CREDIT_MAX`].
    credit: f32,
    /// Nanoseconds of sections without it, after which it is tried again. 0: it works.
    rest: f32,
    /// The length of its next rest.
    next_rest: f32,
}

/// The weight of a section in the mean. A step has about a hundred sections.
const NEWEST: f32 = 1.0 / 16.0;

/// Shares within this factor of equal ones count as equal, so that noise does not move the parts of equal cores.
const EQUAL_WITHIN: f32 = 1.2;

/// The least share of a worker, in equal shares: it always has a part by which its speed is measured.
const SHARE_MIN: f32 = 1.0 / 16.0;

/// Shorter sections say more about the waking of workers than about their speed.
const NS_MIN: u64 = 20_000;

/// The greatest credit, in nanoseconds: two slices of a scheduler. A worker that is preempted once does not rest.
const CREDIT_MAX: f32 = 8e6;

/// The first and the longest rest, in nanoseconds. A rest is twice as long as the one before, unless the worker had earned
/// the greatest credit. A trial costs about 10 ms where the core is still shared.
const REST: [f32; 2] = [20e6, 500e6];

/// The caller hands small sections to a worker with this many times its speed, and until the ratio is below the second
/// number.
const FASTER: [f32; 2] = [1.8, 1.4];

impl Speeds {
    pub(super) fn new(n_threads: usize) -> Self {
        let account = Account { credit: CREDIT_MAX, rest: 0.0, next_rest: REST[0] };
        Self {
            shares: vec![1.0 / n_threads as f32; n_threads],
            n_active: n_threads,
            faster: 0,
            accounts: vec![account; n_threads],
        }
    }

    /// Whether the worker takes no part in the next section. The caller, worker 0, never rests.
    pub(super) fn rests(&self, worker: usize) -> bool {
        self.accounts[worker].rest > 0.0
    }

    /// Calls `set` with the part of each worker. Parts begin at multiples of `tile` and cover `0..n_items` in order;
    /// workers that rest, and those from `n_active` on, have empty ones.
    pub(super) fn part_ends(
        &self,
        n_items: usize,
        tile: usize,
        n_active: usize,
        mut set: impl FnMut(usize, Range<usize>),
    ) {
        let n_tiles = n_items.div_ceil(tile);
        let works = |worker: usize| worker < n_active && !self.rests(worker);
        let working = || (0..n_active).filter(|&worker| works(worker));
        let n_working = working().count();
        let sum: f32 = working().map(|worker| self.shares[worker]).sum();
        let is_equal = |worker: usize| {
            let relative = self.shares[worker] / sum * n_working as f32;
            (1.0 / EQUAL_WITHIN..=EQUAL_WITHIN).contains(&relative)
        };
        let is_equal = self.n_active != n_active || working().all(is_equal);
        let (each, more) = (n_tiles / n_working, n_tiles % n_working);
        let (mut start, mut before, mut n_set) = (0, 0.0, 0);
        for worker in 0..self.shares.len() {
            let mut end = start;
            if works(worker) {
                n_set += 1;
                before += self.shares[worker] / sum;
                end = if n_set == n_working {
                    n_tiles
                } else if is_equal {
                    start + each + usize::from(n_set <= more)
                } else {
                    ((before * n_tiles as f32).round() as usize).clamp(start, n_tiles)
                };
            }
            set(worker, (start * tile).min(n_items)..(end * tile).min(n_items));
            start = end;
        }
    }

    /// Learns from a section of `ns` nanoseconds: items and nanoseconds of each worker. Returns the worker that computes small
    /// sections instead of the caller; 0 if none is much faster.
    pub(super) fn observe(
        &mut self,
        n_active: usize,
        ns: u64,
        worked: impl Iterator<Item = (usize, u64)> + Clone,
    ) -> usize {
        let worked = worked.take(n_active);
        let speed =
            |(n_items, ns): (usize, u64)| if n_items == 0 { 0.0 } else { n_items as f32 / ns.max(1) as f32 };
        let sum: f32 = worked.clone().map(speed).sum();
        if self.n_active != n_active {
            // Other workers take part: what was measured for this set is not known.
            self.shares.fill(1.0 / n_active as f32);
            (self.n_active, self.faster) = (n_active, 0);
        }
        if sum <= 0.0 {
            return self.faster;
        }
        let n_items: usize = worked.clone().map(|worked| worked.0).sum();
        let last = worked.clone().filter(|worked| worked.0 > 0).map(|worked| worked.1).max();
        let resting = (0..n_active).filter(|&worker| self.rests(worker));
        let working = 1.0 - resting.map(|worker| self.shares[worker]).sum::<f32>();
        let least = SHARE_MIN / n_active as f32;
        for (worker, worked) in worked.enumerate() {
            let account = &mut self.accounts[worker];
            if account.rest > 0.0 {
                account.rest -= ns as f32;
                continue;
            }
            let speed = speed(worked);
            if ns >= NS_MIN {
                let share = &mut self.shares[worker];
                *share = (*share + NEWEST * (speed / sum * working - *share)).max(least);
            }
            if worker > 0 && worked.0 > 0 && speed < sum {
                let saved = n_items as f32 / (sum - speed) - ns as f32;
                account.settle(if last == Some(worked.1) { saved } else { saved.max(0.0) });
            }
        }
        if self.rests(self.faster) {
            self.faster = 0;
        }
        if ns < NS_MIN {
            return self.faster;
        }
        let works = |&(worker, _): &(usize, &f32)| !self.rests(worker);
        let shares = self.shares[..n_active].iter().enumerate().filter(works);
        let (fastest, share) =
            shares.fold((0, 0.0), |best, (i, &share)| if share > best.1 { (i, share) } else { best });
        let ratio = share / self.shares[0];
        self.faster = match self.faster {
            0 if ratio > FASTER[0] => fastest,
            0 => 0,
            _ if ratio < FASTER[1] => 0,
            _ => fastest,
        };
        self.faster
    }
}

impl Account {
    /// Enters the nanoseconds that a section took less than the other workers alone would have taken.
    fn settle(&mut self, saved: f32) {
        self.credit = (self.credit + saved).min(CREDIT_MAX);
        if self.credit == CREDIT_MAX {
            self.next_rest = REST[0];
        } else if self.credit < 0.0 {
            (self.credit, self.rest) = (0.0, self.next_rest);
            self.next_rest = (2.0 * self.next_rest).min(REST[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(speeds: &Speeds, n_items: usize, tile: usize, n_active: usize) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        speeds.part_ends(n_items, tile, n_active, |worker, part| {
            assert_eq!(worker, parts.len());
            parts.push(part);
        });
        parts
    }

    proptest! {
        #[test]
        fn parts_cover_the_items_whatever_was_measured(
            n_threads in 1usize..9,
            sections in prop::collection::vec((1usize..9, 0u64..40_000_000, prop::collection::vec((0usize..1000, 0u64..10_000_000), 8)), 0..20),
            n_items in 1usize..500,
            tile in 1usize..40,
            n_active in 1usize..9,
        ) {
            let mut speeds = Speeds::new(n_threads);
            for (n_active, ns, worked) in sections {
                let faster = speeds.observe(n_active.min(n_threads), ns, worked.into_iter());
                prop_assert!(faster < n_threads);
                prop_assert!(speeds.shares.iter().all(|share| *share > 0.0 && *share <= 1.01));
            }
            let n_active = n_active.min(n_threads);
            let parts = parts(&speeds, n_items, tile, n_active);
            prop_assert_eq!(parts.len(), n_threads);
            let mut at = 0;
            for (worker, part) in parts.iter().enumerate() {
                prop_assert!(part.start == at && part.end >= at);
                prop_assert!(part.start % tile == 0 || part.is_empty());
                prop_assert!(worker < n_active || part.is_empty());
                at = part.end;
            }
            prop_assert_eq!(at, n_items);
        }
    }

    #[test]
    fn a_worker_of_a_third_of_the_speed_gets_a_quarter() {
        let mut speeds = Speeds::new(2);
        for _ in 0..100 {
            speeds.observe(2, 100_000, [(75, 100_000), (25, 100_000)].into_iter());
        }
        assert_eq!(parts(&speeds, 400, 1, 2), [0..300, 300..400]);
        // Equal again.
        for _ in 0..100 {
            speeds.observe(2, 100_000, [(50, 100_000), (51, 100_000)].into_iter());
        }
        assert_eq!(parts(&speeds, 400, 1, 2), [0..200, 200..400]);
        // A worker that never comes keeps a small part.
        for _ in 0..1000 {
            speeds.observe(2, 100_000, [(50, 100_000), (0, 0)].into_iter());
        }
        assert_eq!(parts(&speeds, 1000, 1, 2), [0..970, 970..1000]);
    }

    #[test]
    fn short_sections_and_other_limits_count_for_nothing() {
        let mut speeds = Speeds::new(3);
        for _ in 0..100 {
            speeds.observe(3, 10_000, [(90, 10_000), (5, 10_000), (5, 10_000)].into_iter());
        }
        assert_eq!(parts(&speeds, 300, 1, 3), [0..100, 100..200, 200..300]);
        (0..100).for_each(|_| {
            _ = speeds.observe(3, 50_000, [(90, 50_000), (5, 50_000), (5, 50_000)].into_iter())
        });
        assert_eq!(parts(&speeds, 300, 1, 2), [0..150, 150..300, 300..300]);
    }

    #[test]
    fn a_slow_caller_is_noticed() {
        let mut speeds = Speeds::new(3);
        let faster = |speeds: &mut Speeds, caller| {
            (0..100).fold(0, |_, _| {
                speeds.observe(3, 50_000, [(caller, 50_000), (60, 50_000), (65, 50_000)].into_iter())
            })
        };
        assert_eq!(faster(&mut speeds, 60), 0);
        assert_eq!(faster(&mut speeds, 20), 2);
        // In between, nothing changes.
        assert_eq!(faster(&mut speeds, 42), 2);
        assert_eq!(faster(&mut speeds, 60), 0);
    }

    /// A section of 64 items of 1 µs: the worker computes half of them in half of the time, or is preempted for 6 ms.
    fn section(speeds: &mut Speeds, is_preempted: bool) {
        match (speeds.rests(1), is_preempted) {
            (true, _) => speeds.observe(2, 64_000, [(64, 64_000), (0, 0)].into_iter()),
            (false, false) => speeds.observe(2, 32_000, [(32, 32_000), (32, 32_000)].into_iter()),
            (false, true) => speeds.observe(2, 6_032_000, [(62, 62_000), (2, 6_032_000)].into_iter()),
        };
    }

    #[test]
    fn a_worker_that_costs_more_than_it_saves_rests_longer_each_time() {
        let mut speeds = Speeds::new(2);
        // Preempted in each 40th section: 39 save 1.2 ms, one costs 6.
        let mut rests = Vec::new();
        for i in 0..100_000 {
            let rested = speeds.rests(1);
            section(&mut speeds, i % 40 == 0);
            match (rested, speeds.rests(1)) {
                (false, true) => rests.push(0),
                (true, _) => *rests.last_mut().expect("a rest has begun") += 1,
                _ => {}
            }
        }
        // 20 ms in sections of 64 µs, and so on to 500 ms.
        assert_eq!(rests[..6], [313, 625, 1250, 2500, 5000, 7813]);
        assert_eq!(parts(&speeds, 64, 1, 2), if speeds.rests(1) { [0..64, 64..64] } else { [0..32, 32..64] });
        // The neighbour has gone: the worker is tried again, and stays.
        (0..20_000).for_each(|_| section(&mut speeds, false));
        assert!(!speeds.rests(1));
        assert_eq!(parts(&speeds, 64, 1, 2), [0..32, 32..64]);
        // Its next rest would be short.
        assert_eq!(speeds.accounts[1].next_rest, REST[0]);
    }

    #[test]
    fn a_worker_that_is_preempted_now_and_then_stays() {
        let mut speeds = Speeds::new(2);
        for i in 0..10_000 {
            section(&mut speeds, i % 400 == 0);
            assert!(!speeds.rests(1), "section {i}");
        }
        // A slow core saves time too.
        for _ in 0..10_000 {
            speeds.observe(2, 48_000, [(48, 48_000), (16, 48_000)].into_iter());
            assert!(!speeds.rests(1));
        }
    }

    #[test]
    fn a_caller_that_delays_a_section_is_charged_to_nobody() {
        let mut speeds = Speeds::new(2);
        for _ in 0..100 {
            speeds.observe(2, 6_032_000, [(2, 6_032_000), (62, 62_000)].into_iter());
            assert!(!speeds.rests(0) && !speeds.rests(1));
        }
    }
}
