//! The measured speeds of a pool's workers, and the parts of the items that follow from them.
//!
//! Cores differ: a processor has fast and slow ones, another program runs on one, one is throttled. The speed of a
//! worker is its items divided by the time from the section's start to its end, so waking late counts too. Speeds are
//! relative to those of the same section, because sections differ in the cost of an item.

use std::ops::Range;

/// The share of each worker in the sum of speeds.
pub(super) struct Speeds {
    shares: Vec<f32>,
    /// The active workers of the last section.
    n_active: usize,
    faster: usize,
}

/// The weight of a section in the mean. A step has about a hundred sections.
const NEWEST: f32 = 1.0 / 16.0;

/// Shares within this factor of equal ones count as equal, so that noise does not move the parts of equal cores.
const EQUAL_WITHIN: f32 = 1.2;

/// The least share of a worker, in equal shares: it always has a part by which its speed is measured.
const SHARE_MIN: f32 = 1.0 / 16.0;

/// Shorter sections say more about the waking of workers than about their speed.
const NS_MIN: u64 = 20_000;

/// The caller hands small sections to a worker with this many times its speed, and until the ratio is below the second
/// number.
const FASTER: [f32; 2] = [1.8, 1.4];

impl Speeds {
    pub(super) fn new(n_threads: usize) -> Self {
        Self { shares: vec![1.0 / n_threads as f32; n_threads], n_active: n_threads, faster: 0 }
    }

    /// Calls `set` with the part of each worker. Parts begin at multiples of `tile` and cover `0..n_items` in order;
    /// workers from `n_active` on have empty ones.
    pub(super) fn part_ends(
        &self,
        n_items: usize,
        tile: usize,
        n_active: usize,
        mut set: impl FnMut(usize, Range<usize>),
    ) {
        let n_tiles = n_items.div_ceil(tile);
        let shares = &self.shares[..n_active];
        let sum: f32 = shares.iter().sum();
        let is_equal = |share: &f32| {
            let relative = share / sum * n_active as f32;
            (1.0 / EQUAL_WITHIN..=EQUAL_WITHIN).contains(&relative)
        };
        let is_equal = self.n_active != n_active || shares.iter().all(is_equal);
        let (each, more) = (n_tiles / n_active, n_tiles % n_active);
        let (mut start, mut before) = (0, 0.0);
        for worker in 0..self.shares.len() {
            let end = if worker + 1 >= n_active {
                n_tiles
            } else if is_equal {
                start + each + usize::from(worker < more)
            } else {
                before += shares[worker] / sum;
                ((before * n_tiles as f32).round() as usize).clamp(start, n_tiles)
            };
            set(worker, (start * tile).min(n_items)..(end * tile).min(n_items));
            start = end;
        }
    }

    /// Learns from a section: items and nanoseconds of each worker. Returns the worker that computes small sections
    /// instead of the caller; 0 if none is much faster.
    pub(super) fn observe(
        &mut self,
        n_active: usize,
        worked: impl Iterator<Item = (usize, u64)> + Clone,
    ) -> usize {
        let worked = worked.take(n_active);
        let speed =
            |(n_items, ns): (usize, u64)| if n_items == 0 { 0.0 } else { n_items as f32 / ns.max(1) as f32 };
        let sum: f32 = worked.clone().map(speed).sum();
        let ns = worked.clone().filter(|worked| worked.0 > 0).map(|worked| worked.1).max();
        if self.n_active != n_active {
            // Other workers take part: what was measured for this set is not known.
            self.shares.fill(1.0 / n_active as f32);
            (self.n_active, self.faster) = (n_active, 0);
        }
        if ns.is_none_or(|ns| ns < NS_MIN) || sum <= 0.0 {
            return self.faster;
        }
        let least = SHARE_MIN / n_active as f32;
        for (share, worked) in self.shares.iter_mut().zip(worked) {
            *share = (*share + NEWEST * (speed(worked) / sum - *share)).max(least);
        }
        let shares = self.shares[..n_active].iter().enumerate();
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
            sections in prop::collection::vec((1usize..9, prop::collection::vec((0usize..1000, 0u64..10_000_000), 8)), 0..20),
            n_items in 1usize..500,
            tile in 1usize..40,
            n_active in 1usize..9,
        ) {
            let mut speeds = Speeds::new(n_threads);
            for (n_active, worked) in sections {
                let faster = speeds.observe(n_active.min(n_threads), worked.into_iter());
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
            speeds.observe(2, [(75, 100_000), (25, 100_000)].into_iter());
        }
        assert_eq!(parts(&speeds, 400, 1, 2), [0..300, 300..400]);
        // Equal again.
        for _ in 0..100 {
            speeds.observe(2, [(50, 100_000), (51, 100_000)].into_iter());
        }
        assert_eq!(parts(&speeds, 400, 1, 2), [0..200, 200..400]);
        // A worker that never comes keeps a small part.
        for _ in 0..1000 {
            speeds.observe(2, [(50, 100_000), (0, 0)].into_iter());
        }
        assert_eq!(parts(&speeds, 1000, 1, 2), [0..970, 970..1000]);
    }

    #[test]
    fn short_sections_and_other_limits_count_for_nothing() {
        let mut speeds = Speeds::new(3);
        for _ in 0..100 {
            speeds.observe(3, [(90, 10_000), (5, 10_000), (5, 10_000)].into_iter());
        }
        assert_eq!(parts(&speeds, 300, 1, 3), [0..100, 100..200, 200..300]);
        (0..100).for_each(|_| _ = speeds.observe(3, [(90, 50_000), (5, 50_000), (5, 50_000)].into_iter()));
        assert_eq!(parts(&speeds, 300, 1, 2), [0..150, 150..300, 300..300]);
    }

    #[test]
    fn a_slow_caller_is_noticed() {
        let mut speeds = Speeds::new(3);
        let faster = |speeds: &mut Speeds, caller| {
            (0..100)
                .fold(0, |_, _| speeds.observe(3, [(caller, 50_000), (60, 50_000), (65, 50_000)].into_iter()))
        };
        assert_eq!(faster(&mut speeds, 60), 0);
        assert_eq!(faster(&mut speeds, 20), 2);
        // In between, nothing changes.
        assert_eq!(faster(&mut speeds, 42), 2);
        assert_eq!(faster(&mut speeds, 60), 0);
    }
}
