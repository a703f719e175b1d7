//! A ring: the threads that read extents, and the passes that wait for them.

mod queued;
pub(crate) mod shared;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::ReadFailure;
use super::file::{ReadAt, ReadMode, read_full};
use super::meter::Meter;
use super::patience::{CANCEL_INTERVAL, Patience};
use super::queue::{Extent, Queue};
use super::uring::Uring;
use refrain_kernels::PageBuf;
pub use shared::RingOptions;
use shared::{Shared, State, spawn};

/// A few buffers through which the extents of a file are streamed.
///
/// Reading starts when the first extent is wanted. From then on, the ring reads ahead, cyclically over all
/// extents, until every buffer is full. It is therefore idle while no pass takes an extent.
pub struct Ring {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    mode: ReadMode,
}

/// [`Ring::take`] returned no extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeError {
    /// The pass was cancelled.
    Cancelled,
    /// A read failed, or none ended.
    Failed(ReadFailure),
}

/// An extent in memory. Dropping it returns the buffer to the ring; all views of the buffer must be dropped
/// first.
pub struct Lease {
    shared: Arc<Shared>,
    pages: Option<Arc<PageBuf>>,
}

impl Ring {
    /// Starts the threads. Nothing is read yet.
    ///
    /// There must be at least two `buffers`, each as long as the longest extent.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn new(
        file: Arc<dyn ReadAt>,
        meter: Arc<Meter>,
        extents: Vec<Extent>,
        buffers: Vec<PageBuf>,
        options: RingOptions,
    ) -> std::io::Result<Self> {
        assert!(buffers.len() >= 2, "{} buffers", buffers.len());
        let queue = Queue::new(extents.clone(), buffers, options.block_len);
        let state = Mutex::new(State { queue, n_reads: 0, closed: false });
        let (arrived, work) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { file, meter, options, extents, state, arrived, work });
        let mode = shared.file.mode();
        let mut ring = Self { shared, threads: Vec::new(), mode };
        let n_queued = queued::start(&ring.shared, Uring::new, &mut ring.threads)?;
        if n_queued > 0 {
            ring.mode = ReadMode::Queued;
        }
        for _ in n_queued..options.n_reads {
            let shared = Arc::clone(&ring.shared);
            ring.threads.push(spawn(move || shared.read())?);
        }
        Ok(ring)
    }

    /// How the file is read.
    pub fn mode(&self) -> ReadMode {
        self.mode
    }

    /// The current number of buffers.
    pub fn n_buffers(&self) -> usize {
        self.shared.lock().queue.n_buffers()
    }

    /// Reduces the ring to `n_buffers` buffers, at least two, as soon as reads have ended and leases have
    /// been returned.
    pub fn shrink(&self, n_buffers: usize) {
        self.shared.lock().queue.shrink(n_buffers);
    }

    /// Adds buffers, each as long as the longest extent.
    pub fn grow(&self, buffers: Vec<PageBuf>) {
        if self.shared.lock().queue.grow(buffers) {
            self.shared.work.notify_all();
        }
    }

    /// Expects `next` after the extent `after` from now on.
    pub fn expect(&self, after: usize, next: usize) {
        if self.shared.lock().queue.expect(after, next) {
            self.shared.work.notify_all();
        }
    }

    /// Excludes an extent from reading ahead until it is wanted.
    pub fn skip(&self, extent_idx: usize) {
        self.shared.lock().queue.skip(extent_idx);
    }

    /// Resets the predictions: after each extent, the next extent of the file is read ahead.
    pub fn expect_all(&self) {
        self.shared.lock().queue.expect_all();
    }

    /// Waits for an extent.
    ///
    /// # Errors
    /// [`TakeError`]; a later call reads again.
    pub fn take(&self, extent_idx: usize, cancel: &AtomicBool) -> Result<Lease, TakeError> {
        self.take_after(extent_idx, cancel, || false)
    }

    /// As [`take`](Self::take), and calls `work` meanwhile: again and again while the extent is not there, until it returns `false`.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_after(
        &self,
        extent_idx: usize,
        cancel: &AtomicBool,
        mut work: impl FnMut() -> bool,
    ) -> Result<Lease, TakeError> {
        let (shared, start) = (&self.shared, Instant::now());
        let (mut state, mut has_work) = (shared.lock(), true);
        let limit = shared.options.stall_max;
        let mut patience = Patience::new(limit, state.n_reads);
        let result = loop {
            if cancel.load(Ordering::Relaxed) {
                break Err(TakeError::Cancelled);
            }
            if state.queue.want(extent_idx) {
                shared.work.notify_all();
            }
            if let Some(taken) = state.queue.take() {
                break taken.map_err(TakeError::Failed);
            }
            if patience.is_over(state.n_reads) {
                let offset = shared.extents[extent_idx].offset;
                break Err(TakeError::Failed(ReadFailure::Stalled { offset, limit }));
            }
            let began = Instant::now();
            if has_work {
                drop(state);
                has_work = work();
                patience.waited(began.elapsed());
                state = shared.lock();
                continue;
            }
            let waited = shared.arrived.wait_timeout(state, CANCEL_INTERVAL);
            let is_over;
            (state, is_over) = waited.unwrap_or_else(PoisonError::into_inner);
            if is_over.timed_out() {
                patience.waited(began.elapsed());
            }
        };
        if result.is_err() {
            state.queue.give_up();
        }
        let dropped_bytes = std::mem::take(&mut state.queue.dropped_bytes);
        drop(state);
        shared.meter.dropped(dropped_bytes);
        shared.meter.stalled(start.elapsed());
        Ok(Lease { shared: Arc::clone(shared), pages: Some(Arc::new(result?)) })
    }
}

impl Drop for Ring {
    /// Waits for the reads in progress, of one block each.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic would be a bug, and the panic hook has reported it.
            let _ = thread.join();
        }
    }
}

/// Reads on the calling thread, without the ring, for data that is too small to be streamed.
///
/// # Errors
/// [`ReadFailure::Read`]; `out` is then unspecified.
pub fn read_aside(file: &dyn ReadAt, meter: &Meter, offset: u64, out: &mut [u8]) -> Result<(), ReadFailure> {
    let start = Instant::now();
    meter.read_starts();
    let read = read_full(file, offset, out);
    meter.read_ends(if read.is_ok() { out.len() } else { 0 });
    meter.stalled(start.elapsed());
    read.map_err(ReadFailure::from)
}

impl Lease {
    /// The buffer. It begins with the bytes of the extent; the bytes after them are unspecified.
    pub fn pages(&self) -> &Arc<PageBuf> {
        self.pages.as_ref().expect("there until dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let pages = self.pages.take().and_then(Arc::into_inner);
        debug_assert!(pages.is_some() || std::thread::panicking(), "views of an extent outlive it");
        if let Some(pages) = pages
            && self.shared.lock().queue.give_back(pages)
        {
            self.shared.work.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use crate::ReadMode;

    const PAGE: usize = 4096;
    static NEVER: AtomicBool = AtomicBool::new(false);

    /// A file whose bytes are a function of their offsets; the function receives (number of the read, offset).
    struct Made<F>(F, AtomicUsize);

    impl<F: Fn(usize, u64) -> io::Result<()> + Send + Sync> ReadAt for Made<F> {
        fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
            (self.0)(self.1.fetch_add(1, Ordering::Relaxed), offset)?;
            out.iter_mut().enumerate().for_each(|(i, byte)| *byte = byte_at(offset + i as u64));
            Ok(out.len())
        }

        fn mode(&self) -> ReadMode {
            ReadMode::Cached
        }
    }

    fn byte_at(offset: u64) -> u8 {
        (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
    }

    fn extents(n: usize) -> Vec<Extent> {
        (0..n).map(|i| Extent { offset: (i * i * PAGE) as u64, len: (i % 3 + 1) * PAGE }).collect()
    }

    const OPTIONS: RingOptions =
        RingOptions { block_len: PAGE, n_reads: 3, stall_max: Duration::from_secs(30) };

    fn ring(
        n: usize,
        options: RingOptions,
        read: impl Fn(usize, u64) -> io::Result<()> + Send + Sync + 'static,
    ) -> (Ring, Arc<Meter>) {
        let buffers = (0..3).map(|_| PageBuf::zeroed(3 * PAGE).unwrap()).collect();
        let (file, meter) = (Arc::new(Made(read, AtomicUsize::new(0))), Arc::new(Meter::default()));
        (Ring::new(file, Arc::clone(&meter), extents(n), buffers, options).unwrap(), meter)
    }

    fn check(ring: &Ring, extent_idx: usize) {
        let lease = ring.take(extent_idx, &NEVER).unwrap();
        let Extent { offset, len } = ring.shared.extents[extent_idx];
        let bytes = &lease.pages().bytes()[..len];
        assert!(
            bytes.iter().enumerate().all(|(i, &byte)| byte == byte_at(offset + i as u64)),
            "{extent_idx}"
        );
    }

    #[test]
    fn every_extent_has_its_bytes_in_any_order() {
        let (ring, meter) = ring(7, OPTIONS, |_, _| Ok(()));
        for _ in 0..20 {
            (0..7).for_each(|extent_idx| check(&ring, extent_idx));
        }
        let mut x = 1u64;
        for _ in 0..300 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            check(&ring, (x >> 33) as usize % 7);
        }
        let flow = meter.flow();
        assert!(flow.read_bytes >= flow.dropped_bytes && flow.dropped_bytes > 0, "{flow:?}");
    }

    #[test]
    fn nothing_is_read_unless_somebody_takes() {
        let (ring, meter) = ring(5, OPTIONS, |_, _| Ok(()));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(meter.flow().read_bytes, 0);
        (0..5).for_each(|extent_idx| check(&ring, extent_idx));
        // Waits until the ring is full: five extents have been taken, and its three buffers have the next three.
        let n_bytes: usize = extents(5).iter().chain(&extents(3)).map(|extent| extent.len).sum();
        while meter.flow().read_bytes < n_bytes as u64 {
            std::thread::sleep(Duration::from_millis(5));
        }
        // (The meter counts a read's bytes before its time.)
        std::thread::sleep(Duration::from_millis(50));
        let rests = meter.flow();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(meter.flow(), rests);
        check(&ring, 0);
    }

    #[test]
    fn errors_name_their_place_and_the_next_take_tries_again() {
        let bad = AtomicUsize::new(0);
        let (ring, _) = ring(4, OPTIONS, move |_, offset| match bad.fetch_add(1, Ordering::Relaxed) {
            n if offset == PAGE as u64 && n < 20 => Err(io::Error::from_raw_os_error(5)),
            _ => Ok(()),
        });
        let mut n_failed = 0;
        for _ in 0..40 {
            for extent_idx in 0..4 {
                match ring.take(extent_idx, &NEVER) {
                    Ok(lease) => drop(lease),
                    Err(TakeError::Failed(ReadFailure::Read { offset, .. })) => {
                        assert_eq!((extent_idx, offset), (1, PAGE as u64));
                        n_failed += 1;
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        assert!((1..20).contains(&n_failed), "{n_failed}");
        (0..4).for_each(|extent_idx| check(&ring, extent_idx));
    }

    #[test]
    fn a_read_that_was_under_way_when_somebody_came_and_fails_is_made_again() {
        for _ in 0..20 {
            let (asked, planted) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
            let is_asked = Arc::clone(&asked);
            let (ring, _) = ring(4, OPTIONS, move |_, offset| {
                if offset != PAGE as u64 || planted.swap(true, Ordering::Relaxed) {
                    return Ok(());
                }
                while !is_asked.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(1));
                Err(io::Error::from_raw_os_error(5))
            });
            check(&ring, 0);
            asked.store(true, Ordering::Relaxed);
            check(&ring, 1);
        }
    }

    #[test]
    fn a_reader_that_panics_is_an_error() {
        // The first read of the wanted extent fails; another thread may read parts of the next extents before
        // it. There are more extents than buffers, so that it is not read ahead a second time.
        let planted = AtomicBool::new(false);
        let (ring, _) =
            ring(4, OPTIONS, move |_, offset| match offset == 0 && !planted.swap(true, Ordering::Relaxed) {
                true => panic!("planted"),
                false => Ok(()),
            });
        match ring.take(0, &NEVER) {
            Err(TakeError::Failed(ReadFailure::Read { message, .. })) => {
                assert!(message.contains("panicked"))
            }
            other => panic!("{:?}", other.err()),
        }
        check(&ring, 0);
    }

    #[test]
    fn a_disk_that_hangs_is_an_error_and_a_wish_to_stop_is_heard() {
        let go_on = Arc::new(AtomicBool::new(false));
        let hang = Arc::clone(&go_on);
        let options = RingOptions { stall_max: Duration::from_millis(60), ..OPTIONS };
        let (ring, _) = ring(2, options, move |_, _| {
            while !hang.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        let start = Instant::now();
        assert_eq!(
            ring.take(1, &NEVER).err(),
            Some(TakeError::Failed(ReadFailure::Stalled { offset: PAGE as u64, limit: options.stall_max }))
        );
        assert!(start.elapsed() >= options.stall_max);
        assert_eq!(ring.take(1, &AtomicBool::new(true)).err(), Some(TakeError::Cancelled));
        go_on.store(true, Ordering::Relaxed);
        check(&ring, 1);
        check(&ring, 0);
    }
}
