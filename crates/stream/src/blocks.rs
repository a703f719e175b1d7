//! Reads of blocks on request: for weights whose need is known only during a pass, so that nothing is read ahead.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::ReadFailure;
use super::file::ReadAt;
use super::meter::Meter;
use super::patience::{CANCEL_INTERVAL, Patience};
use super::ring::shared::{read_block, spawn};
use refrain_kernels::PageBlock;

/// A block to read.
pub struct BlockRead {
    /// The caller's number of the read.
    pub tag: usize,
    /// Its begin in the file.
    pub offset: u64,
    /// Where the bytes go.
    pub block: PageBlock,
}

/// Threads that read blocks in the order of their requests.
pub struct BlockReads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    file: Arc<dyn ReadAt>,
    meter: Arc<Meter>,
    state: Mutex<State>,
    /// Signals that a read has ended.
    ended: Condvar,
    /// Signals that there are blocks to read, or that the threads should end.
    work: Condvar,
}

struct State {
    todo: VecDeque<BlockRead>,
    ended: Vec<(BlockRead, Result<(), ReadFailure>)>,
    /// Reads that have ended.
    n_reads: u64,
    closed: bool,
}

impl BlockReads {
    /// Starts `n_reads` threads.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn new(file: Arc<dyn ReadAt>, meter: Arc<Meter>, n_reads: usize) -> std::io::Result<Self> {
        let state = Mutex::new(State { todo: VecDeque::new(), ended: Vec::new(), n_reads: 0, closed: false });
        let shared = Arc::new(Shared { file, meter, state, ended: Condvar::new(), work: Condvar::new() });
        let mut reads = Self { shared, threads: Vec::new() };
        for _ in 0..n_reads {
            let shared = Arc::clone(&reads.shared);
            reads.threads.push(spawn(move || shared.read())?);
        }
        Ok(reads)
    }

    /// Requests reads.
    pub fn request(&self, reads: impl IntoIterator<Item = BlockRead>) {
        self.shared.lock().todo.extend(reads);
        self.shared.work.notify_all();
    }

    /// Takes the reads that have ended. If there are none, waits for one, for `CANCEL_INTERVAL` at most, which `patience` counts.
    pub fn ended(&self, patience: &mut Patience) -> Vec<(BlockRead, Result<(), ReadFailure>)> {
        let mut state = self.shared.lock();
        if state.ended.is_empty() {
            let began = Instant::now();
            let waited = self.shared.ended.wait_timeout(state, CANCEL_INTERVAL);
            let is_over;
            (state, is_over) = waited.unwrap_or_else(PoisonError::into_inner);
            if is_over.timed_out() {
                patience.waited(began.elapsed());
            }
        }
        std::mem::take(&mut state.ended)
    }

    /// Takes the reads that have ended.
    pub fn ended_already(&self) -> Vec<(BlockRead, Result<(), ReadFailure>)> {
        std::mem::take(&mut self.shared.lock().ended)
    }

    /// Reads that have ended.
    pub fn n_reads(&self) -> u64 {
        self.shared.lock().n_reads
    }
}

impl Drop for BlockReads {
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code between changes of the state panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) {
        let mut state = self.lock();
        while !state.closed {
            let Some(mut read) = state.todo.pop_front() else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let result = read_block(&*self.file, &self.meter, read.offset, read.block.bytes_mut());
            state = self.lock();
            state.n_reads += 1;
            state.ended.push((read, result));
            self.ended.notify_all();
        }
    }
}
