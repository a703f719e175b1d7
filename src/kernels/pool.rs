//! The threads of the forward pass: persistent workers with a fixed split.
//!
//! A decode step runs some hundred short parallel sections, so a section must start in about a microsecond: workers spin for
//! a moment after each one, and park when nothing comes, so that an idle engine burns no CPU. The split of items is fixed
//! (contiguous ranges by worker), which no result depends on; it keeps a worker's part of the weights in its own cache.
//!
//! One section at a time: `run` from several threads is serialised. A section started *inside* a section runs on the
//! thread that asks for it, since waiting for the workers there would be waiting for itself.

use std::any::Any;
use std::cell::Cell;
use std::mem::transmute;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

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
    /// Counts sections; a worker that sees a new value takes its range of `job`.
    generation: AtomicUsize,
    /// Workers that have not finished the section.
    pending: AtomicUsize,
    stop: AtomicBool,
    /// Written by the thread that holds the gate while `pending` is 0, read by workers until they count down.
    job: Mutex<Job>,
    /// Workers that sleep or are about to.
    sleepers: AtomicUsize,
    sleep_lock: Mutex<()>,
    wake: Condvar,
    /// The first panic of a section's workers.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct Job {
    n_items: usize,
    section: &'static Section<'static>,
}

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
            generation: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            job: Mutex::new(Job { n_items: 0, section: &|_, _| {} }),
            sleepers: AtomicUsize::new(0),
            sleep_lock: Mutex::new(()),
            wake: Condvar::new(),
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

    /// Calls `f(worker, range)` on the workers, the ranges together being `0..n_items`, and returns when all are done.
    ///
    /// A worker without items is not called. May be called from several threads (one section runs at a time), and from
    /// inside a section (it then runs on the calling thread, as worker 0 of its own section).
    ///
    /// # Panics
    /// Raises the panic of a worker again, once all have stopped. The pool stays usable.
    pub fn run(&self, n_items: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
        if n_items == 0 {
            return;
        }
        if self.shared.n_threads == 1 || n_items == 1 || IN_SECTION.get() {
            return f(0, 0..n_items);
        }
        let gate = lock(&self.gate);
        self.shared.publish(n_items, f);
        let own = run_part(f, 0, part(n_items, self.shared.n_threads, 0));
        self.shared.wait_for_workers();
        let theirs = lock(&self.shared.panic).take();
        drop(gate);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// `run`, without waking anyone where the whole work is `work` < a threshold: no result depends on who computes it.
    pub(super) fn run_sized(&self, work: usize, n_items: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
        /// In bytes of weights read, or operations of that order: a few µs, what starting a section costs at worst.
        const WORK_MIN: usize = 32 * 1024;
        if work < WORK_MIN && n_items > 0 { f(0, 0..n_items) } else { self.run(n_items, f) }
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
        self.shared.announce();
        for handle in self.handles.drain(..) {
            // Workers catch the panics of sections, so there is nothing to report here.
            let _ = handle.join();
        }
    }
}

impl Shared {
    fn publish(&self, n_items: usize, f: &Section<'_>) {
        // SAFETY: only the lifetime changes. Workers use the section between this call and their count-down of `pending`,
        // and `run` does not return, nor unwind, before `pending` is 0.
        let section: &'static Section<'static> = unsafe { transmute(f) };
        *lock(&self.job) = Job { n_items, section };
        self.pending.store(self.n_threads - 1, SeqCst);
        self.announce();
    }

    /// A new generation: spinning workers see it, sleeping ones are woken.
    fn announce(&self) {
        self.generation.fetch_add(1, SeqCst);
        // A worker counts itself in `sleepers` before it looks at `generation` for the last time: either it sees the new
        // generation, or it is counted here.
        if self.sleepers.load(SeqCst) > 0 {
            drop(lock(&self.sleep_lock));
            self.wake.notify_all();
        }
    }

    fn wait_for_workers(&self) {
        let mut spins = 0;
        while self.pending.load(Acquire) > 0 {
            spins += 1;
            // A worker that lost its core needs ours more than we do.
            if spins < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
        }
    }

    fn work(&self, worker: usize) {
        let mut seen = 0;
        loop {
            self.wait_for_generation(seen);
            seen = seen.wrapping_add(1);
            if self.stop.load(SeqCst) {
                return;
            }
            let job = *lock(&self.job);
            if let Err(panic) = run_part(job.section, worker, part(job.n_items, self.n_threads, worker)) {
                lock(&self.panic).get_or_insert(panic);
            }
            self.pending.fetch_sub(1, Release);
        }
    }

    /// Returns when the generation is past `seen`. It is at most one past it: the next section waits for this worker.
    fn wait_for_generation(&self, seen: usize) {
        for _ in 0..SPINS {
            if self.generation.load(Acquire) != seen {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.sleep_lock);
        self.sleepers.fetch_add(1, SeqCst);
        while self.generation.load(SeqCst) == seen {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }
}

/// The range of items that a worker has: contiguous, sizes differ by at most one.
fn part(n_items: usize, n_threads: usize, worker: usize) -> Range<usize> {
    let (each, more) = (n_items / n_threads, n_items % n_threads);
    let start = worker * each + worker.min(more);
    start..start + each + usize::from(worker < more)
}

fn run_part(section: &Section<'_>, worker: usize, range: Range<usize>) -> thread::Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    IN_SECTION.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| section(worker, range)));
    IN_SECTION.set(false);
    result
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
