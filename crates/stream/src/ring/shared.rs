//! What a ring and the threads that read for it share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::ReadFailure;
use crate::file::{ReadAt, read_full};
use crate::meter::Meter;
use crate::queue::{Extent, Queue, Work};

/// The settings of a ring's reads.
#[derive(Debug, Clone, Copy)]
pub struct RingOptions {
    /// Bytes per read; a multiple of [`DIRECT_ALIGN`](crate::DIRECT_ALIGN).
    pub block_len: usize,
    /// Number of concurrent reads.
    pub n_reads: usize,
    /// A pass fails if it waits so long and no read ends.
    pub stall_max: Duration,
}

pub(super) struct Shared {
    pub(super) file: Arc<dyn ReadAt>,
    pub(super) meter: Arc<Meter>,
    pub(super) options: RingOptions,
    pub(super) extents: Vec<Extent>,
    pub(super) state: Mutex<State>,
    /// Signals that an extent is complete or a buffer is free.
    pub(super) arrived: Condvar,
    /// Signals that there are blocks to read, or that the ring is closed.
    pub(super) work: Condvar,
}

pub(super) struct State {
    pub(super) queue: Queue,
    /// Reads that have ended.
    pub(super) n_reads: u64,
    pub(super) closed: bool,
}

pub(crate) fn spawn(read: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("refrain-stream".to_owned()).spawn(read)
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held would be a bug of the queue; its state is still usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads blocks until the ring is closed.
    pub(super) fn read(&self) {
        let mut state = self.lock();
        while !state.closed {
            let Some(mut work) = state.queue.work() else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let result = self.read_block(&mut work);
            state = self.lock();
            state.n_reads += 1;
            if state.queue.done(work, result) {
                self.arrived.notify_all();
                self.work.notify_all();
            }
        }
    }

    fn read_block(&self, work: &mut Work) -> Result<(), ReadFailure> {
        read_block(&*self.file, &self.meter, work.offset, work.block.bytes_mut())
    }
}

/// Reads a block on the calling thread.
pub(crate) fn read_block(
    file: &dyn ReadAt,
    meter: &Meter,
    offset: u64,
    bytes: &mut [u8],
) -> Result<(), ReadFailure> {
    meter.read_starts();
    let n_bytes = bytes.len();
    // The reader may be the app's own code.
    let read = catch_unwind(AssertUnwindSafe(|| read_full(file, offset, bytes)));
    let read = read.unwrap_or_else(|_| Err((offset, std::io::Error::other("the reader panicked"))));
    meter.read_ends(if read.is_ok() { n_bytes } else { 0 });
    read.map_err(ReadFailure::from)
}
