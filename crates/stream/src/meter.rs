//! Counters of streaming: bytes read from flash, and the time that passes wait for them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Counters of the reads of an engine. Concurrent sessions share them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Flow {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes that were read ahead and dropped unused; included in `read_bytes`.
    pub dropped_bytes: u64,
    /// Time in which at least one read was in progress, in µs.
    pub read_us: f64,
    /// Time in which a pass waited for weights, in µs.
    pub stall_us: f64,
    /// Experts that passes computed with, of layers whose experts are read on request.
    pub expert_uses: u64,
    /// Those of them that were in memory already.
    pub expert_hits: u64,
}

impl Flow {
    /// Bytes per second while reads were in progress; 0 if there were none.
    pub fn bandwidth(&self) -> f64 {
        if self.read_us > 0.0 { self.read_bytes as f64 * 1e6 / self.read_us } else { 0.0 }
    }

    /// The share of the reading time in which no pass waited, 0 to 1; 0 if nothing was read.
    pub fn overlap(&self) -> f64 {
        if self.read_us > 0.0 { (1.0 - self.stall_us / self.read_us).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The counters since an earlier state.
    pub fn since(&self, earlier: &Flow) -> Flow {
        Flow {
            read_bytes: self.read_bytes - earlier.read_bytes,
            dropped_bytes: self.dropped_bytes - earlier.dropped_bytes,
            read_us: self.read_us - earlier.read_us,
            stall_us: self.stall_us - earlier.stall_us,
            expert_uses: self.expert_uses - earlier.expert_uses,
            expert_hits: self.expert_hits - earlier.expert_hits,
        }
    }
}

/// Counts a [`Flow`].
#[derive(Debug, Default)]
pub struct Meter {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    flow: Flow,
    n_under_way: usize,
    /// Start of the current period with reads in progress.
    busy_since: Option<Instant>,
}

impl Meter {
    pub(super) fn read_starts(&self) {
        let mut state = self.lock();
        state.n_under_way += 1;
        state.busy_since.get_or_insert_with(Instant::now);
    }

    /// A read ended with `n_bytes` bytes.
    pub(super) fn read_ends(&self, n_bytes: usize) {
        let mut state = self.lock();
        state.flow.read_bytes += n_bytes as u64;
        state.n_under_way -= 1;
        if state.n_under_way == 0
            && let Some(since) = state.busy_since.take()
        {
            state.flow.read_us += us(since.elapsed());
        }
    }

    pub(super) fn dropped(&self, n_bytes: usize) {
        self.lock().flow.dropped_bytes += n_bytes as u64;
    }

    /// A pass needs so many experts, and finds some of them in memory.
    pub fn experts(&self, n_uses: usize, n_hits: usize) {
        let mut state = self.lock();
        state.flow.expert_uses += n_uses as u64;
        state.flow.expert_hits += n_hits as u64;
    }

    /// A pass has waited for so long.
    pub fn stalled(&self, time: Duration) {
        self.lock().flow.stall_us += us(time);
    }

    /// The counters so far.
    pub fn flow(&self) -> Flow {
        let state = self.lock();
        let running = state.busy_since.map_or(0.0, |since| us(since.elapsed()));
        Flow { read_us: state.flow.read_us + running, ..state.flow }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_once_for_reads_at_the_same_time() {
        let meter = Meter::default();
        let start = Instant::now();
        meter.read_starts();
        meter.read_starts();
        std::thread::sleep(Duration::from_millis(5));
        meter.read_ends(10);
        assert!(meter.flow().read_us >= 5e3, "a read that goes on counts");
        meter.read_ends(20);
        let flow = meter.flow();
        let elapsed_us = us(start.elapsed());
        assert!((5e3..=elapsed_us).contains(&flow.read_us), "{flow:?} in {elapsed_us}");
        assert_eq!((flow.read_bytes, meter.flow()), (30, flow), "nothing is counted while nothing is read");
    }

    #[test]
    fn shares_of_nothing_are_nothing() {
        assert_eq!((Flow::default().bandwidth(), Flow::default().overlap()), (0.0, 0.0));
        let flow = Flow { read_bytes: 100, read_us: 50.0, stall_us: 20.0, ..Flow::default() };
        assert_eq!((flow.bandwidth(), flow.overlap()), (2e6, 0.6));
        assert_eq!(flow.since(&Flow { read_us: 10.0, ..Flow::default() }).read_us, 40.0);
    }
}
