//! The threads of the forward pass: persistent workers that share the items of a parallel section and steal
//! from each other.
//!
//! A decoding step runs some hundred short parallel sections, so a section must start in about a microsecond.
//! After each section, workers spin for a short time and then park, so an idle engine uses no CPU time. Each
//! worker owns a contiguous part of the items, the same in every step, so its part of the weights stays in
//! its cache. It computes its own part in chunks, and then chunks of other workers' parts. A slow or
//! preempted core therefore delays a section by at most one chunk, and a section does not wait for a worker
//! that has not entered it. Results do not depend on the worker that computes them.
//!
//! Sections compute in the default [floating-point environment](FloatEnv), whatever the caller's is.
//!
//! Sections of one pool run one at a time: calls of `run` from several threads are serialised. A section
//! started *inside* a section runs on its calling thread alone, because waiting for the workers would be a
//! deadlock.

use std::any::Any;
use std::cell::Cell;
use std::mem::transmute;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::float_env::FloatEnv;

/// Iterations that a thread spins before it parks: about 30 µs on the development machine. This is several
/// times the gap between two sections of a step, and far less than the time between two requests.
const SPINS: usize = 1000;

type Section<'a> = dyn Fn(usize, Range<usize>) + Sync + 'a;

/// A fixed set of threads that run parallel sections. The calling thread takes part as worker 0.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held while a section runs.
    gate: Mutex<()>,
    handles: Vec<JoinHandle<()>>,
}

struct Shared {
    n_threads: usize,
    /// The number of the section, whether it is `OPEN`, and the number of workers in it.
    state: AtomicU64,
    stop: AtomicBool,
    /// Workers with lower numbers take part; the others sleep.
    n_active: AtomicUsize,
    /// Written by the thread that holds the gate, while the section is closed and empty. Read by the workers
    /// in the section.
    job: Mutex<Job>,
    /// The next item of each worker's part. Reset together with `job`.
    cursors: Vec<Cursor>,
    /// The number of workers that sleep or are about to.
    sleepers: AtomicUsize,
    sleep_lock: Mutex<()>,
    wake: Condvar,
    /// Signals a change of `n_active` to workers that do not take part. Used with `sleep_lock`.
    limit_changed: Condvar,
    /// The first panic of a section's workers.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The bit of `state` that allows workers to enter the section.
const OPEN: u64 = 1 << 31;
/// The lowest bit of the section's number in `state`. The bits below `OPEN` count the workers in the section.
const NUMBER_SHIFT: u32 = 32;

/// A counter on a cache line of its own, to avoid false sharing.
#[repr(align(64))]
struct Cursor(AtomicUsize);

#[derive(Clone, Copy)]
struct Job {
    n_items: usize,
    /// Parts and chunks begin at multiples of this.
    tile: usize,
    /// Items of a chunk.
    chunk: usize,
    section: &'static Section<'static>,
}

/// Chunks in a worker's part, unless tiles are larger. With this number, other workers can compute most of a
/// preempted worker's part.
const CHUNKS: usize = 8;

thread_local! {
    /// Whether this thread is inside a section, of any pool.
    static IN_SECTION: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// A pool of `n_threads` workers, including the caller of [`Pool::run`]: `new(1)` starts no thread.
    ///
    /// # Panics
    /// If `n_threads` is zero, or the system cannot start a thread.
    pub fn new(n_threads: usize) -> Pool {
        Self::try_new(n_threads).expect("the system gives threads")
    }

    /// As [`Pool::new`], but returns an error if the system cannot start a thread.
    ///
    /// # Errors
    /// The system's error. Threads that were started have ended.
    ///
    /// # Panics
    /// If `n_threads` is zero.
    pub fn try_new(n_threads: usize) -> std::io::Result<Pool> {
        assert!(n_threads > 0, "a pool has at least the calling thread");
        let shared = Arc::new(Shared {
            n_threads,
            n_active: AtomicUsize::new(n_threads),
            state: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            job: Mutex::new(Job { n_items: 0, tile: 1, chunk: 1, section: &|_, _| {} }),
            cursors: (0..n_threads).map(|_| Cursor(AtomicUsize::new(0))).collect(),
            sleepers: AtomicUsize::new(0),
            sleep_lock: Mutex::new(()),
            wake: Condvar::new(),
            limit_changed: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, gate: Mutex::new(()), handles: Vec::new() };
        for worker in 1..n_threads {
            let shared = pool.shared.clone();
            let builder = thread::Builder::new().name(format!("refrain-{worker}"));
            pool.handles.push(builder.spawn(move || shared.work(worker))?);
        }
        Ok(pool)
    }

    /// Threads that take part, the caller included.
    pub fn n_threads(&self) -> usize {
        self.shared.n_threads
    }

    /// Limits later sections to `n_threads` threads, including the caller. The other workers sleep until the
    /// limit is raised. May be called from any thread. Results do not depend on the limit.
    pub fn limit(&self, n_threads: usize) {
        self.shared.n_active.store(n_threads.max(1), SeqCst);
        drop(lock(&self.shared.sleep_lock));
        self.shared.limit_changed.notify_all();
    }

    /// Calls `f(worker, range)` on the workers, perhaps several times on each, with disjoint ranges that
    /// together cover `0..n_items`. Returns when all calls have returned. Calls with the same `worker` never
    /// run concurrently.
    ///
    /// May be called from several threads; sections run one at a time. A call from inside a section runs on
    /// the calling thread, as worker 0.
    ///
    /// # Panics
    /// If `f` panics: with one of the panics, after all workers have left the section. The pool stays usable.
    pub fn run(&self, n_items: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
        self.run_tiled(n_items, 1, f);
    }

    /// As [`Pool::run`], with ranges that begin at multiples of `tile` items.
    pub(super) fn run_tiled(&self, n_items: usize, tile: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
        if n_items == 0 {
            return;
        }
        let _env = FloatEnv::ieee();
        if self.shared.n_threads == 1
            || self.shared.n_active.load(Relaxed) == 1
            || n_items <= tile
            || IN_SECTION.get()
        {
            return f(0, 0..n_items);
        }
        let gate = lock(&self.gate);
        let job = self.shared.publish(n_items, tile, f);
        let own = self.shared.take_part(job, 0);
        self.shared.close();
        let theirs = lock(&self.shared.panic).take();
        drop(gate);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// As `run_tiled`, but on the calling thread alone if `work` is below a threshold.
    pub(super) fn run_sized(
        &self,
        work: usize,
        n_items: usize,
        tile: usize,
        f: &(dyn Fn(usize, Range<usize>) + Sync),
    ) {
        /// Bytes of weights, or a number of operations: a few µs of work, the maximum cost of starting a
        /// section.
        const WORK_MIN: usize = 32 * 1024;
        if work < WORK_MIN && n_items > 0 {
            let _env = FloatEnv::ieee();
            f(0, 0..n_items);
        } else {
            self.run_tiled(n_items, tile, f);
        }
    }

    /// Calls `f(row, out_row)` for every row of `out`; a row has `row_len` numbers.
    ///
    /// # Panics
    /// If `out` is not a whole number of rows; as [`Pool::run`].
    pub fn for_rows(&self, out: &mut [f32], row_len: usize, f: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        if out.is_empty() {
            return;
        }
        assert!(row_len > 0 && out.len().is_multiple_of(row_len), "{} numbers, rows of {row_len}", out.len());
        let n_rows = out.len() / row_len;
        let out = SharedMut::new(out);
        self.run(n_rows, &|_, rows| {
            for row in rows {
                // SAFETY: rows are disjoint, each belongs to one range, and `out` outlives the section.
                f(row, unsafe { out.slice(row * row_len, row_len) });
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.announce(0);
        drop(lock(&self.shared.sleep_lock));
        self.shared.limit_changed.notify_all();
        for handle in self.handles.drain(..) {
            // Workers catch the panics of sections, so `join` reports none.
            let _ = handle.join();
        }
    }
}

impl Shared {
    fn publish(&self, n_items: usize, tile: usize, f: &Section<'_>) -> Job {
        // SAFETY: only the lifetime changes. Workers use the section only between entering and leaving it,
        // and `run_tiled` neither returns nor unwinds before it is closed and empty.
        let section: &'static Section<'static> = unsafe { transmute(f) };
        let chunk = (n_items / (self.n_threads * CHUNKS)).max(1).next_multiple_of(tile);
        let job = Job { n_items, tile, chunk, section };
        for (worker, cursor) in self.cursors.iter().enumerate() {
            cursor.0.store(job.part(self.n_threads, worker).start, Relaxed);
        }
        *lock(&self.job) = job;
        let number = self.state.load(Relaxed) >> NUMBER_SHIFT;
        self.announce((number + 1) << NUMBER_SHIFT | OPEN);
        job
    }

    /// Sets a new state and wakes sleeping workers.
    fn announce(&self, state: u64) {
        self.state.store(state, SeqCst);
        // A worker increments `sleepers` before its last read of `state`. It therefore either reads the new
        // state or is counted here.
        if self.sleepers.load(SeqCst) > 0 {
            drop(lock(&self.sleep_lock));
            self.wake.notify_all();
        }
    }

    /// Closes the section to further workers and waits until all have left.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Relaxed);
        let mut spins = 0;
        while self.state.load(Acquire) & (OPEN - 1) > 0 {
            spins += 1;
            // A preempted worker may need this core.
            if spins < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
        }
    }

    fn work(&self, worker: usize) {
        // A thread inherits the environment of the thread that starts it.
        let _env = FloatEnv::ieee();
        let mut seen = 0;
        while let Some(number) = self.enter(worker, seen) {
            seen = number;
            let job = *lock(&self.job);
            // The limit may have been lowered while this worker was entering.
            let taken =
                if worker < self.n_active.load(Relaxed) { self.take_part(job, worker) } else { Ok(()) };
            if let Err(panic) = taken {
                let mut first = lock(&self.panic);
                match &mut *first {
                    None => *first = Some(panic),
                    // Leaked: if dropping the payload panicked, this worker would never leave the section.
                    Some(_) => std::mem::forget(panic),
                }
            }
            self.state.fetch_sub(1, Release);
        }
    }

    /// Waits for an open section other than number `seen`, enters it, and returns its number; `None` when the
    /// pool is dropped.
    fn enter(&self, worker: usize, seen: u64) -> Option<u64> {
        let mut spins = 0;
        loop {
            if worker >= self.n_active.load(Relaxed) {
                self.rest(worker);
            }
            let state = self.state.load(Acquire);
            if self.stop.load(SeqCst) {
                return None;
            }
            let number = state >> NUMBER_SHIFT;
            if state & OPEN != 0 && number != seen {
                if self.state.compare_exchange_weak(state, state + 1, AcqRel, Relaxed).is_ok() {
                    return Some(number);
                }
                continue;
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                self.sleep(number);
                spins = 0;
            }
        }
    }

    /// Sleeps until there is a section other than number `seen`. (The worker took part in `seen`, or found it
    /// closed.)
    fn sleep(&self, seen: u64) {
        let mut guard = lock(&self.sleep_lock);
        self.sleepers.fetch_add(1, SeqCst);
        while self.state.load(SeqCst) >> NUMBER_SHIFT == seen && !self.stop.load(SeqCst) {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }

    /// Sleeps while the worker's number is at or above the limit. The other workers compute its part.
    fn rest(&self, worker: usize) {
        let mut guard = lock(&self.sleep_lock);
        while worker >= self.n_active.load(SeqCst) && !self.stop.load(SeqCst) {
            guard = self.limit_changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Computes chunks of the worker's own part, then of the other parts, until none are left.
    fn take_part(&self, job: Job, worker: usize) -> thread::Result<()> {
        IN_SECTION.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| {
            for owner in (worker..self.n_threads).chain(0..worker) {
                let end = job.part(self.n_threads, owner).end;
                loop {
                    let start = self.cursors[owner].0.fetch_add(job.chunk, Relaxed);
                    if start >= end {
                        break;
                    }
                    (job.section)(worker, start..end.min(start + job.chunk));
                }
            }
        }));
        IN_SECTION.set(false);
        result
    }
}

impl Job {
    /// The contiguous part of a worker. The sizes of parts differ by at most one tile.
    fn part(&self, n_threads: usize, worker: usize) -> Range<usize> {
        let n_tiles = self.n_items.div_ceil(self.tile);
        let (each, more) = (n_tiles / n_threads, n_tiles % n_threads);
        let start = worker * each + worker.min(more);
        let end = start + each + usize::from(worker < more);
        (start * self.tile).min(self.n_items)..(end * self.tile).min(self.n_items)
    }
}

/// Locks a mutex and ignores poisoning: every value is written in one operation, so a panic leaves no partial
/// state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A slice with disjoint parts that the workers of a section write.
#[derive(Clone, Copy)]
pub(super) struct SharedMut<T> {
    ptr: *mut T,
    len: usize,
}

// SAFETY: all access goes through `slice`, whose caller keeps the parts disjoint.
unsafe impl<T: Send> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    pub(super) fn new(slice: &mut [T]) -> Self {
        SharedMut { ptr: slice.as_mut_ptr(), len: slice.len() }
    }

    pub(super) fn empty() -> Self {
        SharedMut { ptr: std::ptr::NonNull::dangling().as_ptr(), len: 0 }
    }

    /// A part of the slice. Out of bounds panics.
    ///
    /// # Safety
    /// The slice outlives `'a`, and no two overlapping parts are alive at the same time.
    #[inline(always)]
    pub(super) unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: the part is inside the slice; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), len) }
    }
}
