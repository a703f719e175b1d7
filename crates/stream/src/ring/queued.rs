//! Threads that read for a ring through io_uring.

use std::fs::File;
use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use super::shared::{Shared, State, spawn};
use crate::uring::{Ended, RETRY_INTERVAL, Uring};

/// Number of threads, each with a queue for its share of the reads. If a busy processor delays one thread,
/// the others keep the disk busy.
const N_QUEUES: usize = 4;

/// Starts threads, adds them to `threads`, and returns the number of their concurrent reads. It is 0 if the
/// reader has no direct file or the system refuses io_uring to this process. It is less than requested if the
/// system refuses some of the queues.
///
/// # Errors
/// A thread could not be started; the started threads are in `threads`.
/// A thread could not be started; those that were are in `threads`.
pub(super) fn start(
    shared: &Arc<Shared>,
    new: fn(File, usize) -> io::Result<Uring>,
    threads: &mut Vec<JoinHandle<()>>,
) -> io::Result<usize> {
    let Some(file) = shared.file.direct_file() else { return Ok(0) };
    let n_reads = shared.options.n_reads;
    let n_queues = N_QUEUES.min(n_reads);
    let mut n_started = 0;
    for i in 0..n_queues {
        let n_own = (n_reads - n_started).div_ceil(n_queues - i);
        let Ok(file) = file.try_clone() else { break };
        let shared = Arc::clone(shared);
        let (started, is_started) = sync_channel(1);
        let thread = spawn(move || {
            let uring = new(file, n_own);
            // The starting thread waits for this.
            let _ = started.send(uring.is_ok());
            if let Ok(uring) = uring {
                shared.read_queued(uring);
            }
        })?;
        if !is_started.recv().unwrap_or(false) {
            // A panic would be a bug, and the panic hook has reported it.
            let _ = thread.join();
            break;
        }
        threads.push(thread);
        n_started += n_own;
    }
    Ok(n_started)
}

impl Shared {
    /// Reads blocks until the ring is closed, then completes the reads in progress.
    fn read_queued(&self, mut uring: Uring) {
        let mut ended: Vec<Ended> = Vec::new();
        let mut state = self.lock();
        loop {
            while !uring.is_full()
                && !state.closed
                && let Some(work) = state.queue.work()
            {
                self.meter.read_starts();
                uring.push(work);
            }
            if uring.is_idle() {
                if state.closed {
                    return;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            if uring.wait(&mut ended).is_err() {
                // If the error persists, the waiting pass fails after `stall_max`.
                std::thread::sleep(RETRY_INTERVAL);
            }
            state = self.lock();
            if ended.is_empty() && state.closed {
                return;
            }
            self.end(&mut state, &mut ended);
        }
    }

    fn end(&self, state: &mut State, ended: &mut Vec<Ended>) {
        if ended.is_empty() {
            return;
        }
        state.n_reads += ended.len() as u64;
        let mut is_news = false;
        for (mut work, result) in ended.drain(..) {
            self.meter.read_ends(if result.is_ok() { work.block.bytes_mut().len() } else { 0 });
            is_news |= state.queue.done(work, result);
        }
        if is_news {
            self.arrived.notify_all();
            self.work.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use crate::queue::Extent;
    use crate::ring::{Ring, RingOptions, TakeError};
    use crate::uring::Uring;
    use crate::{DirectFile, Meter, ReadAt, ReadFailure, ReadMode};
    use refrain_kernels::PageBuf;

    const PAGE: usize = 4096;
    const N_EXTENTS: usize = 9;
    static NEVER: AtomicBool = AtomicBool::new(false);

    fn byte_at(offset: usize) -> u8 {
        (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
    }

    fn write(path: &Path, n_pages: usize) {
        std::fs::write(path, (0..n_pages * PAGE).map(byte_at).collect::<Vec<_>>()).unwrap();
    }

    fn extents() -> Vec<Extent> {
        (0..N_EXTENTS).map(|i| Extent { offset: (i * i * PAGE) as u64, len: (i % 3 + 3) * PAGE }).collect()
    }

    /// A ring that reads through io_uring, and its meter. If io_uring is unavailable, prints the reason and
    /// returns `None`.
    fn ring(path: &Path) -> Option<(Ring, Arc<Meter>)> {
        let (file, meter) =
            (DirectFile::reopen(&std::fs::File::open(path).unwrap()).unwrap(), Arc::new(Meter::default()));
        let mode = file.mode();
        let options = RingOptions { block_len: PAGE, n_reads: 4, stall_max: Duration::from_secs(30) };
        let buffers = (0..3).map(|_| PageBuf::zeroed(5 * PAGE).unwrap()).collect();
        let ring = Ring::new(Arc::new(file), Arc::clone(&meter), extents(), buffers, options).unwrap();
        if ring.mode() != ReadMode::Queued {
            assert_eq!(ring.mode(), mode);
            println!("skipped: {mode} and no io_uring here");
            return None;
        }
        Some((ring, meter))
    }

    fn check(ring: &Ring, extent_idx: usize) -> Result<(), TakeError> {
        let lease = ring.take(extent_idx, &NEVER)?;
        let Extent { offset, len } = extents()[extent_idx];
        let bytes = lease.pages().bytes()[..len].iter().enumerate();
        assert!(bytes.into_iter().all(|(i, &byte)| byte == byte_at(offset as usize + i)), "{extent_idx}");
        Ok(())
    }

    #[test]
    fn every_extent_has_its_bytes_in_any_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path, 70);
        let Some((ring, meter)) = ring(&path) else { return };
        for round in 0..30 {
            (0..N_EXTENTS).for_each(|i| check(&ring, (i * (round % 4 + 1)) % N_EXTENTS).unwrap());
        }
        let flow = meter.flow();
        assert!(
            flow.read_us > 0.0 && flow.read_bytes > flow.dropped_bytes && flow.dropped_bytes > 0,
            "{flow:?}"
        );
    }

    /// Threads replace queues that the system refuses.
    #[test]
    fn what_has_no_queue_is_read_by_threads() {
        static N_CALLS: AtomicUsize = AtomicUsize::new(0);
        fn second_fails(file: File, n_reads: usize) -> io::Result<Uring> {
            match N_CALLS.fetch_add(1, Ordering::Relaxed) {
                0 => Uring::new(file, n_reads),
                _ => Err(io::ErrorKind::OutOfMemory.into()),
            }
        }
        fn all_fail(_: File, _: usize) -> io::Result<Uring> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path, 70);
        let Some((ring, _)) = ring(&path) else { return };
        // The ring's own threads continue meanwhile.
        let mut threads = Vec::new();
        assert_eq!(super::start(&ring.shared, all_fail, &mut threads).unwrap(), 0);
        assert!(threads.is_empty());
        assert_eq!(super::start(&ring.shared, second_fails, &mut threads).unwrap(), 1, "one of four reads");
        assert_eq!(threads.len(), 1);
        assert_eq!(super::start(&ring.shared, Uring::new, &mut threads).unwrap(), 4);
        (0..N_EXTENTS).for_each(|extent_idx| check(&ring, extent_idx).unwrap());
        drop(ring);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn a_ring_may_end_at_any_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path, 70);
        for i in 0..100 {
            let Some((ring, _)) = ring(&path) else { return };
            (0..i % 4).for_each(|extent_idx| check(&ring, extent_idx).unwrap());
        }
    }

    #[test]
    fn a_file_that_becomes_shorter_is_an_error_with_its_place_until_it_is_whole_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path, 70);
        let Some((ring, _)) = ring(&path) else { return };
        check(&ring, 7).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(51 * PAGE as u64 + 10).unwrap();
        // Extents that were read ahead before the change may still be in memory.
        let failure = (0..2).find_map(|_| (0..N_EXTENTS).rev().find_map(|i| check(&ring, i).err())).unwrap();
        match failure {
            TakeError::Failed(ReadFailure::Read { offset, kind, .. }) => {
                assert_eq!(kind, io::ErrorKind::UnexpectedEof);
                assert!(offset >= 51 * PAGE as u64, "{offset}");
            }
            other => panic!("{other:?}"),
        }
        write(&path, 70);
        (0..N_EXTENTS).for_each(|extent_idx| check(&ring, extent_idx).unwrap());
    }
}
