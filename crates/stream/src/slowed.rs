//! A simulated slower disk, for measurements of streaming on other devices.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::file::{ReadAt, ReadMode};

/// Simulates a read bandwidth. Reads of all threads queue up as on a disk with one channel, and none ends
/// earlier than on that disk. A read that takes longer by itself is not delayed further.
///
/// Only the bandwidth is simulated, neither the latency of a disk nor the speed of a phone's processor.
pub(super) struct Slowed {
    inner: Arc<dyn ReadAt>,
    bytes_per_s: f64,
    /// The time at which the simulated disk has completed all reads so far.
    free_at: Mutex<Option<Instant>>,
}

impl Slowed {
    pub(super) fn new(inner: Arc<dyn ReadAt>, bytes_per_s: u64) -> Self {
        Self { inner, bytes_per_s: bytes_per_s.max(1) as f64, free_at: Mutex::new(None) }
    }

    /// Queues a read of `n_bytes` on the simulated disk; returns the time of its completion.
    fn book(&self, now: Instant, n_bytes: usize) -> Instant {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let start = free_at.map_or(now, |free_at| free_at.max(now));
        let end = start + Duration::from_secs_f64(n_bytes as f64 / self.bytes_per_s);
        *free_at = Some(end);
        end
    }
}

impl ReadAt for Slowed {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let end = self.book(Instant::now(), out.len());
        let result = self.inner.read_at(offset, out);
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        result
    }

    fn mode(&self) -> ReadMode {
        self.inner.mode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Zeros;

    impl ReadAt for Zeros {
        fn read_at(&self, _offset: u64, out: &mut [u8]) -> io::Result<usize> {
            out.fill(0);
            Ok(out.len())
        }

        fn mode(&self) -> ReadMode {
            ReadMode::Cached
        }
    }

    #[test]
    fn reads_queue_up_and_an_idle_disk_saves_nothing() {
        let slowed = Slowed::new(Arc::new(Zeros), 1000);
        let start = Instant::now();
        let seconds = |s: f64| Duration::from_secs_f64(s);
        assert_eq!(slowed.book(start, 500), start + seconds(0.5));
        assert_eq!(slowed.book(start, 500), start + seconds(1.0));
        assert_eq!(slowed.book(start + seconds(0.2), 100), start + seconds(1.0) + seconds(0.1));
        assert_eq!(slowed.book(start + seconds(5.0), 1000), start + seconds(6.0));
    }

    #[test]
    fn a_read_takes_as_long_as_it_would() {
        let slowed = Slowed::new(Arc::new(Zeros), 1 << 20);
        let start = Instant::now();
        assert_eq!(slowed.read_at(0, &mut [1; 1 << 14]).unwrap(), 1 << 14);
        assert!(start.elapsed() >= Duration::from_secs_f64(1.0 / 64.0));
    }
}
