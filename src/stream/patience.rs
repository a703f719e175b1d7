//! How long a pass waits for a disk that reads nothing.

use std::time::Duration;

/// The interval at which a waiting thread checks its cancel flag.
pub(crate) const CANCEL_INTERVAL: Duration = Duration::from_millis(5);

/// The patience of one wait: the waits of [`CANCEL_INTERVAL`] in a row, each over by its time limit, in which no read ended.
///
/// Waits are counted instead of time, because a process may be stopped: a phone freezes apps, and a laptop sleeps. The reading threads
/// stand still for as long as the waiting one, and a stop of any length is over within one wait.
#[derive(Debug)]
pub(crate) struct Patience {
    n_waits: u64,
    n_waits_max: u64,
    n_reads: u64,
}

impl Patience {
    /// Patience for waits of `stall_max` together, when `n_reads` reads have ended.
    pub(crate) fn new(stall_max: Duration, n_reads: u64) -> Self {
        let n_waits_max = stall_max.as_nanos().div_ceil(CANCEL_INTERVAL.as_nanos());
        Self { n_waits: 0, n_waits_max: u64::try_from(n_waits_max).unwrap_or(u64::MAX), n_reads }
    }

    /// Whether the disk has stalled. `n_reads` reads have ended, whether they failed or not.
    pub(crate) fn is_over(&mut self, n_reads: u64) -> bool {
        if n_reads != self.n_reads {
            (self.n_reads, self.n_waits) = (n_reads, 0);
        }
        self.n_waits >= self.n_waits_max
    }

    /// Counts a wait of [`CANCEL_INTERVAL`] that was over by its time limit.
    pub(crate) fn waited(&mut self) {
        self.n_waits += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_in_a_row_without_a_read_are_counted() {
        let mut patience = Patience::new(Duration::from_millis(52), 7);
        for n_reads in [7, 8, 9, 9] {
            for _ in 0..10 {
                assert!(!patience.is_over(n_reads), "{n_reads}");
                patience.waited();
            }
            if n_reads == 9 {
                break;
            }
        }
        patience.waited();
        assert!(patience.is_over(9), "11 waits of 5 ms");
        assert!(!patience.is_over(10), "a read has ended");
        assert!(Patience::new(Duration::ZERO, 0).is_over(0), "no patience at all");
        let mut longest = Patience::new(Duration::MAX, 0);
        longest.waited();
        assert!(!longest.is_over(0));
    }
}
