//! How long a pass waits for a disk that reads nothing.

use std::time::Duration;

/// The interval at which a waiting thread checks its cancel flag.
pub(crate) const CANCEL_INTERVAL: Duration = Duration::from_millis(5);

/// What one wait counts at most: more than a step of any timer. A stop of the process counts no more.
const COUNTED_MAX: Duration = Duration::from_millis(100);

/// The patience of one wait: the waits in a row in which no read ended.
///
/// Of each wait only so much is counted as a running process may take for it, because a process may be stopped: a phone freezes apps, and
/// a laptop sleeps. The reading threads stand still for as long as the waiting one, and a stop of any length is over within one wait.
#[derive(Debug)]
pub struct Patience {
    waited: Duration,
    stall_max: Duration,
    n_reads: u64,
}

impl Patience {
    /// Patience for waits of `stall_max` together, when `n_reads` reads have ended.
    pub fn new(stall_max: Duration, n_reads: u64) -> Self {
        Self { waited: Duration::ZERO, stall_max, n_reads }
    }

    /// Whether the disk has stalled. `n_reads` reads have ended, whether they failed or not.
    pub fn is_over(&mut self, n_reads: u64) -> bool {
        if n_reads != self.n_reads {
            (self.n_reads, self.waited) = (n_reads, Duration::ZERO);
        }
        self.waited >= self.stall_max
    }

    /// Counts a wait of this time.
    pub fn waited(&mut self, time: Duration) {
        self.waited = self.waited.saturating_add(time.min(COUNTED_MAX));
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
                patience.waited(CANCEL_INTERVAL);
            }
            if n_reads == 9 {
                break;
            }
        }
        patience.waited(CANCEL_INTERVAL);
        assert!(patience.is_over(9), "11 waits of 5 ms");
        assert!(!patience.is_over(10), "a read has ended");
        assert!(Patience::new(Duration::ZERO, 0).is_over(0), "no patience at all");
        let mut stopped = Patience::new(Duration::from_secs(1), 0);
        stopped.waited(Duration::from_secs(3600));
        assert!(!stopped.is_over(0), "the process was stopped for an hour");
        let mut longest = Patience::new(Duration::MAX, 0);
        longest.waited(CANCEL_INTERVAL);
        assert!(!longest.is_over(0));
    }
}
