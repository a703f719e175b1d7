//! The threads of the forward pass: persistent workers that share out a section's items and steal what others leave.
//!
//! A decode step runs some hundred short parallel sections, so a section must start in about a microsecond: workers spin for
//! a moment after each one, and park when nothing comes, so that an idle engine burns no CPU. Each worker has a contiguous part
//! of the items, the same in every step, which keeps its part of the weights in its own cache; it takes it in chunks, and
//! then chunks of the others' parts. A slow core, or one that the system has taken away, so costs its share and no more, and
//! nobody waits for a worker that has not yet come. No result depends on who computes it.
//!
//! Sections compute in the default [floating-point environment](FloatEnv), whatever the caller's is.
//!
//! One section at a time: `run` from several threads is serialised. A section started *inside* a section runs on the
//! thread that asks for it, since waiting for the workers there would be waiting for itself.

use std::any::Any;
use std::cell::Cell;
use std::mem::transmute;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::float_env::FloatEnv;

/// How often a waiting thread looks before it gives up its core: about 30 µs here, some times the gap between two parallel
/// sections of a step, and far below the time between two requests.
const SPINS: usize = 1000;

type Section<'a> = dyn Fn(usize, Range<usize>) + Sync + 'a;

/// A fixed set of threads that run parallel sections; the thread that calls takes part as worker 0.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held while a section runs.
    gate: Mutex<()>,
    handles: Vec<JoinHandle<()>>,
}

struct Shared {
    n_threads: usize,
    /// Number of the section, whether it is `OPEN`, and how many workers are in it.
    state: AtomicU64,
    stop: AtomicBool,
    /// Workers below this number take part; the others sleep.
    n_active: AtomicUsize,
    /// Written by the thread that holds the gate while the section is closed and empty, read by the workers in it.
    job: Mutex<Job>,
    /// For each worker's part of the items: the next one. Reset as `job` is written.
    cursors: Vec<Cursor>,
    /// Workers that sleep or are about to.
    sleepers: AtomicUsize,
    sleep_lock: Mutex<()>,
    wake: Condvar,
    /// For workers that do not take part: the limit has changed. With `sleep_lock`.
    limit_changed: Condvar,
    /// The first panic of a section's workers.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// In `state`: workers may still enter.
const OPEN: u64 = 1 << 31;
/// In `state`: where the section's number begins. Below `OPEN` the workers are counted.
const NUMBER_SHIFT: u32 = 32;

/// A line of its own: neighbours on one line would slow each other down.
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

/// Chunks of a worker's part, as far as tiles allow: enough for the others to take over half of what a core that was lost had.
const CHUNKS: usize = 8;

thread_local! {
    /// Whether this thread is inside a section, of any pool.
    static IN_SECTION: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// A pool of `n_threads` workers, the caller of [`Pool::run`] among them: `new(1)` starts no thread.
    ///
    /// # Panics
    /// If `n_threads` is zero, or the system refuses a thread.
    pub fn new(n_threads: usize) -> Pool {
        Self::try_new(n_threads).expect("the system gives threads")
    }

    /// As [`Pool::new`], for where the system may refuse a thread.
    ///
    /// # Errors
    /// What the system said; the threads that were started have ended.
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

    /// Lets so many threads take part from the next section on, the caller always among them; the others sleep until the limit
    /// allows them again. May be called from any thread. No result depends on it.
    pub fn limit(&self, n_threads: usize) {
        self.shared.n_active.store(n_threads.max(1), SeqCst);
        drop(lock(&self.shared.sleep_lock));
        self.shared.limit_changed.notify_all();
    }

    /// Calls `f(worker, range)` on the workers, several times each, the ranges together being `0..n_items`, each item once; returns
    /// when all are done. No two calls with the same `worker` run at the same time.
    ///
    /// May be called from several threads (one section runs at a time), and from inside a section (it then runs on the
    /// calling thread, as worker 0 of its own section).
    ///
    /// # Panics
    /// Raises the panic of a worker again, once all have stopped. The pool stays usable.
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

    /// `run_tiled`, without waking anyone where the whole work is `work` < a threshold: no result depends on who computes it.
    pub(super) fn run_sized(
        &self,
        work: usize,
        n_items: usize,
        tile: usize,
        f: &(dyn Fn(usize, Range<usize>) + Sync),
    ) {
        /// In bytes of weights read, or operations of that order: a few µs, what starting a section costs at worst.
        const WORK_MIN: usize = 32 * 1024;
        if work < WORK_MIN && n_items > 0 {
            let _env = FloatEnv::ieee();
            f(0, 0..n_items);
        } else {
            self.run_tiled(n_items, tile, f);
        }
    }

    /// Calls `f(row, out_row)` for every row of `out`, rows of `row_len` numbers.
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
            // Workers catch the panics of sections, so there is nothing to report here.
            let _ = handle.join();
        }
    }
}

impl Shared {
    fn publish(&self, n_items: usize, tile: usize, f: &Section<'_>) -> Job {
        // SAFETY: only the lifetime changes. Workers use the section between entering and leaving it, and `run_tiled` does not
        // return, nor unwind, before it is closed and empty.
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

    /// A new state: spinning workers see it, sleeping ones are woken.
    fn announce(&self, state: u64) {
        self.state.store(state, SeqCst);
        // A worker counts itself in `sleepers` before it looks at `state` for the last time: either it sees the new one, or
        // it is counted here.
        if self.sleepers.load(SeqCst) > 0 {
            drop(lock(&self.sleep_lock));
            self.wake.notify_all();
        }
    }

    /// Lets nobody enter any more and waits for those inside.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Relaxed);
        let mut spins = 0;
        while self.state.load(Acquire) & (OPEN - 1) > 0 {
            spins += 1;
            // A worker that lost its core needs ours more than we do.
            if spins < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
        }
    }

    fn work(&self, worker: usize) {
        // A thread inherits the environment of the one that starts it.
        let _env = FloatEnv::ieee();
        let mut seen = 0;
        while let Some(number) = self.enter(worker, seen) {
            seen = number;
            let job = *lock(&self.job);
            // The limit may have come while this worker was about to enter.
            let taken =
                if worker < self.n_active.load(Relaxed) { self.take_part(job, worker) } else { Ok(()) };
            if let Err(panic) = taken {
                let mut first = lock(&self.panic);
                match &mut *first {
                    None => *first = Some(panic),
                    // Not dropped: a payload whose drop panics would keep this worker from leaving the section.
                    Some(_) => std::mem::forget(panic),
                }
            }
            self.state.fetch_sub(1, Release);
        }
    }

    /// Enters the next open section that is not number `seen`, and returns its number; `None` when the pool ends.
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

    /// Sleeps until the section is no longer number `seen`. (A worker that spins has either been in `seen` or found it closed.)
    fn sleep(&self, seen: u64) {
        let mut guard = lock(&self.sleep_lock);
        self.sleepers.fetch_add(1, SeqCst);
        while self.state.load(SeqCst) >> NUMBER_SHIFT == seen && !self.stop.load(SeqCst) {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }

    /// Sleeps while the worker is beyond the limit. Its part of a section is computed by the others.
    fn rest(&self, worker: usize) {
        let mut guard = lock(&self.sleep_lock);
        while worker >= self.n_active.load(SeqCst) && !self.stop.load(SeqCst) {
            guard = self.limit_changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Computes chunks of the worker's own part, then of the others', until none is left.
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
    /// The items that a worker begins with: contiguous, sizes differ by at most a tile.
    fn part(&self, n_threads: usize, worker: usize) -> Range<usize> {
        let n_tiles = self.n_items.div_ceil(self.tile);
        let (each, more) = (n_tiles / n_threads, n_tiles % n_threads);
        let start = worker * each + worker.min(more);
        let end = start + each + usize::from(worker < more);
        (start * self.tile).min(self.n_items)..(end * self.tile).min(self.n_items)
    }
}

/// Locks whatever a panic left behind: no lock here guards anything that a panic can leave half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A slice of which the workers of a section write disjoint parts.
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
    /// The slice outlives `'a`, and no two parts that overlap are alive at a time.
    #[inline(always)]
    pub(super) unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: inside the slice; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), len) }
    }
}
