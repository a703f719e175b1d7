//! The threads of the forward pass: persistent workers that share the items of a parallel section and steal
//! from each other.
//!
//! A decoding step runs some hundred short parallel sections, so a section must start in about a microsecond.
//! After each section, workers spin for a bounded time ([`Pool::set_spin_time`]) and then park, so an idle engine uses
//! no CPU time. Each worker owns a contiguous part of the items, as large as its [measured speed](Speeds) suggests:
//! the same in every step on equal cores, so its part of the weights stays in its cache. It computes its own part in
//! chunks, and then chunks of other workers' parts. Chunks shrink towards the end of a part, so a slow core delays a
//! section by about one small chunk. A section does not wait for a worker that has not entered it, but it waits for one
//! that the system preempts inside a chunk, however small the chunk, until that worker has run again: some milliseconds
//! beside a busy neighbour. A worker that thereby costs more time than it saves rests for some time, and is tried again.
//! Results do not depend on the worker that computes them.
//!
//! A section too small to share runs on the caller; if the caller's core is much slower than another worker's, on that
//! worker.
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
use std::time::Duration;

use super::float_env::FloatEnv;
use super::speeds::Speeds;
use super::system::Instant;
use crate::room::has_room;

/// Time that a thread spins before it parks: longer than the gap between two sections and than the drafting of a step,
/// and far less than the time between two requests.
pub const SPIN_TIME_DEFAULT: Duration = Duration::from_micros(100);

/// Time that the caller spins for the last worker of a section, whose chunk is short, before it yields its core.
const CLOSE_SPIN_TIME: Duration = Duration::from_micros(20);

/// Time that a faster worker has to enter a section that the caller hands over: some times the way of a cache line
/// between two cores.
const HAND_OVER_TIME: Duration = Duration::from_micros(2);

type Section<'a> = dyn Fn(usize, Range<usize>) + Sync + 'a;

/// A fixed set of threads that run parallel sections. The calling thread takes part as worker 0.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held while a section runs.
    gate: Mutex<Speeds>,
    handles: Vec<JoinHandle<()>>,
}

struct Shared {
    n_threads: usize,
    /// The number of the section, whether it is `OPEN`, and the number of workers in it. All writes are `SeqCst`: whether a
    /// sleeping thread is woken depends on their order with those of `sleepers` and `caller_sleeps`.
    state: AtomicU64,
    stop: AtomicBool,
    /// Workers with lower numbers take part; the others sleep.
    n_active: AtomicUsize,
    /// Written by the thread that holds the gate, while the section is closed and empty. Read by the workers
    /// in the section.
    job: Mutex<Job>,
    /// The part of each worker. Reset together with `job`.
    parts: Vec<Part>,
    /// What each worker did in the section. Written by the worker before it leaves, and read after the section.
    worked: Vec<Worked>,
    /// Workers that take no part because they delay sections.
    rests: Vec<AtomicBool>,
    /// The worker that computes small sections instead of the caller; 0 if none is much faster.
    faster: AtomicUsize,
    spin_ns: AtomicU64,
    /// Whether the caller sleeps until the last worker has left the section.
    caller_sleeps: AtomicBool,
    left: Condvar,
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

/// A worker's part, on a cache line of its own to avoid false sharing.
#[derive(Default)]
#[repr(align(64))]
struct Part {
    /// The next item.
    next: AtomicUsize,
    end: AtomicUsize,
}

/// A worker's items in a section, and the time from the section's start to the end of the last of them.
#[derive(Default)]
#[repr(align(64))]
struct Worked {
    n_items: AtomicUsize,
    ns: AtomicU64,
}

#[derive(Clone, Copy)]
struct Job {
    /// Parts and chunks begin at multiples of this.
    tile: usize,
    start: Instant,
    /// The only worker that may compute; `None`: all.
    only: Option<usize>,
    section: &'static Section<'static>,
}

/// A chunk is the rest of its part divided by this number and by the number of threads: all other threads then need
/// about as long for what remains as a thread of a third of their speed needs for the chunk.
const CHUNKS_PER_THREAD: usize = 2;

thread_local! {
    /// Whether this thread is inside a section, of any pool.
    static IN_SECTION: Cell<bool> = const { Cell::new(false) };
}

/// Address space of a thread's stack.
const THREAD_BYTES: usize = 2 << 20;

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
            job: Mutex::new(Job { tile: 1, start: Instant::now(), only: None, section: &|_, _| {} }),
            parts: (0..n_threads).map(|_| Part::default()).collect(),
            worked: (0..n_threads).map(|_| Worked::default()).collect(),
            rests: (0..n_threads).map(|_| AtomicBool::new(false)).collect(),
            faster: AtomicUsize::new(0),
            spin_ns: AtomicU64::new(SPIN_TIME_DEFAULT.as_nanos() as u64),
            caller_sleeps: AtomicBool::new(false),
            left: Condvar::new(),
            sleepers: AtomicUsize::new(0),
            sleep_lock: Mutex::new(()),
            wake: Condvar::new(),
            limit_changed: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, gate: Mutex::new(Speeds::new(n_threads)), handles: Vec::new() };
        for worker in 1..n_threads {
            // A thread that starts without memory ends the process.
            if !has_room(THREAD_BYTES) {
                return Err(std::io::ErrorKind::OutOfMemory.into());
            }
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

    /// Sets the time that threads spin after a section before they park, at most a second; 0: they park at once, and
    /// each section wakes them. May be called from any thread. Results do not depend on it.
    pub fn set_spin_time(&self, time: Duration) {
        let time = time.min(Duration::from_secs(1));
        self.shared.spin_ns.store(time.as_nanos() as u64, Relaxed);
    }

    /// The time set last; [`SPIN_TIME_DEFAULT`] at first.
    pub fn spin_time(&self) -> Duration {
        Duration::from_nanos(self.shared.spin_ns.load(Relaxed))
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
        let n_active = self.shared.n_active.load(Relaxed).min(self.shared.n_threads);
        if n_active == 1 || IN_SECTION.get() {
            return f(0, 0..n_items);
        }
        if n_items <= tile {
            return self.run_serial(n_items, f);
        }
        let mut speeds = lock(&self.gate);
        speeds.part_ends(n_items, tile, n_active, |worker, part| {
            self.shared.parts[worker].next.store(part.start, Relaxed);
            self.shared.parts[worker].end.store(part.end, Relaxed);
        });
        let job = self.shared.publish(tile, None, f);
        let own = self.shared.take_part(job, 0);
        self.shared.close();
        let ns = job.start.elapsed().as_nanos() as u64;
        let worked =
            self.shared.worked.iter().map(|worked| (worked.n_items.load(Relaxed), worked.ns.load(Relaxed)));
        let faster = speeds.observe(n_active, ns, worked);
        self.shared.faster.store(faster, Relaxed);
        self.shared.set_rests(&speeds);
        let theirs = lock(&self.shared.panic).take();
        drop(speeds);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Runs a small section as one range: on the caller, or on a worker whose core is much faster, if it is awake.
    fn run_serial(&self, n_items: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
        let faster = self.shared.faster.load(Relaxed);
        if faster == 0
            || faster >= self.shared.n_active.load(Relaxed)
            || self.shared.sleepers.load(Relaxed) > 0
        {
            return f(0, 0..n_items);
        }
        let speeds = lock(&self.gate);
        for (worker, part) in self.shared.parts.iter().enumerate() {
            part.next.store(0, Relaxed);
            part.end.store(if worker == faster { n_items } else { 0 }, Relaxed);
        }
        let job = self.shared.publish(n_items, Some(faster), f);
        let part = &self.shared.parts[faster];
        while part.next.load(Relaxed) == 0 && job.start.elapsed() < HAND_OVER_TIME {
            std::hint::spin_loop();
        }
        // If the worker has not taken the section, the caller does.
        let own = self.shared.take_part(Job { only: None, ..job }, 0);
        self.shared.close();
        let theirs = lock(&self.shared.panic).take();
        drop(speeds);
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
            // One tile: not shared.
            self.run_tiled(n_items, n_items, f);
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
    fn publish(&self, tile: usize, only: Option<usize>, f: &Section<'_>) -> Job {
        // SAFETY: only the lifetime changes. Workers use the section only between entering and leaving it, and the
        // caller neither returns nor unwinds before it is closed and empty.
        let section: &'static Section<'static> = unsafe { transmute(f) };
        for worked in &self.worked {
            worked.n_items.store(0, Relaxed);
        }
        let job = Job { tile, start: Instant::now(), only, section };
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
        self.state.fetch_and(!OPEN, SeqCst);
        let is_empty = || self.state.load(SeqCst) & (OPEN - 1) == 0;
        let mut spin = Spin::new(CLOSE_SPIN_TIME.as_nanos() as u64);
        while spin.again() {
            if is_empty() {
                return;
            }
        }
        // The worker may be preempted, and wait for this core.
        let since = Instant::now();
        while since.elapsed().as_nanos() as u64 <= self.spin_ns.load(Relaxed) {
            thread::yield_now();
            if is_empty() {
                return;
            }
        }
        // It waits for another core. A caller that sleeps frees this one for it.
        let mut guard = lock(&self.sleep_lock);
        self.caller_sleeps.store(true, SeqCst);
        while !is_empty() {
            guard = self.left.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, SeqCst);
    }

    /// The worker leaves the section. The last one wakes the caller.
    fn leave(&self) {
        // The caller sets `caller_sleeps` before its last look at `state`, so it sees the worker leave, or the worker
        // sees that it sleeps.
        let before = self.state.fetch_sub(1, SeqCst);
        if before & (OPEN - 1) == 1 && self.caller_sleeps.load(SeqCst) {
            drop(lock(&self.sleep_lock));
            self.left.notify_all();
        }
    }

    fn work(&self, worker: usize) {
        // A thread inherits the environment of the thread that starts it.
        let _env = FloatEnv::ieee();
        let mut seen = 0;
        while let Some(number) = self.enter(worker, seen) {
            seen = number;
            let job = *lock(&self.job);
            // The limit may have been lowered, or the worker's rest begun, while it was entering.
            let taken = if self.is_off(worker) { Ok(()) } else { self.take_part(job, worker) };
            if let Err(panic) = taken {
                let mut first = lock(&self.panic);
                match &mut *first {
                    None => *first = Some(panic),
                    // Leaked: if dropping the payload panicked, this worker would never leave the section.
                    Some(_) => std::mem::forget(panic),
                }
            }
            self.leave();
        }
    }

    /// Waits for an open section other than number `seen`, enters it, and returns its number; `None` when the
    /// pool is dropped.
    fn enter(&self, worker: usize, seen: u64) -> Option<u64> {
        let mut spin = Spin::new(self.spin_ns.load(Relaxed));
        loop {
            if self.is_off(worker) {
                self.rest(worker);
            }
            let state = self.state.load(Acquire);
            if self.stop.load(SeqCst) {
                return None;
            }
            let number = state >> NUMBER_SHIFT;
            if state & OPEN != 0 && number != seen {
                if self.state.compare_exchange_weak(state, state + 1, SeqCst, Relaxed).is_ok() {
                    return Some(number);
                }
                continue;
            }
            if !spin.again() {
                self.sleep(number);
                spin = Spin::new(self.spin_ns.load(Relaxed));
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

    /// Whether the worker's number is at or above the limit, or it rests because it delays sections.
    fn is_off(&self, worker: usize) -> bool {
        worker >= self.n_active.load(SeqCst) || self.rests[worker].load(SeqCst)
    }

    /// Lets the workers rest that delay sections, and wakes those that are tried again.
    fn set_rests(&self, speeds: &Speeds) {
        let mut wakes = false;
        for (worker, rests) in self.rests.iter().enumerate() {
            if rests.load(Relaxed) != speeds.rests(worker) {
                wakes |= rests.swap(speeds.rests(worker), SeqCst);
            }
        }
        if wakes {
            drop(lock(&self.sleep_lock));
            self.limit_changed.notify_all();
        }
    }

    /// Sleeps while the worker is off. The other workers compute its part.
    fn rest(&self, worker: usize) {
        let mut guard = lock(&self.sleep_lock);
        while self.is_off(worker) && !self.stop.load(SeqCst) {
            guard = self.limit_changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Computes chunks of the worker's own part, then of the other parts, until none are left.
    fn take_part(&self, job: Job, worker: usize) -> thread::Result<()> {
        if job.only.is_some_and(|only| only != worker) {
            return Ok(());
        }
        IN_SECTION.set(true);
        let mut n_items = 0;
        let result = catch_unwind(AssertUnwindSafe(|| {
            for owner in (worker..self.n_threads).chain(0..worker) {
                while let Some(chunk) = self.parts[owner].take(job.tile, CHUNKS_PER_THREAD * self.n_threads) {
                    n_items += chunk.len();
                    (job.section)(worker, chunk);
                }
            }
        }));
        IN_SECTION.set(false);
        self.worked[worker].n_items.store(n_items, Relaxed);
        self.worked[worker].ns.store(job.start.elapsed().as_nanos() as u64, Relaxed);
        result
    }
}

impl Part {
    /// Takes the next chunk: whole tiles, a `divisor`th of what is left, and at least one tile.
    fn take(&self, tile: usize, divisor: usize) -> Option<Range<usize>> {
        let end = self.end.load(Relaxed);
        let mut start = self.next.load(Relaxed);
        while start < end {
            let left = end - start;
            let next = start + (left / divisor / tile * tile).max(tile).min(left);
            match self.next.compare_exchange_weak(start, next, Relaxed, Relaxed) {
                Ok(_) => return Some(start..next),
                Err(moved) => start = moved,
            }
        }
        None
    }
}

/// Waits with the processor busy, for a bounded time.
struct Spin {
    ns_max: u64,
    n_spins: u32,
    since: Option<Instant>,
}

impl Spin {
    /// Spins between two looks at the clock: about 1 µs.
    const SPINS_PER_LOOK: u32 = 32;

    fn new(ns_max: u64) -> Self {
        Self { ns_max, n_spins: 0, since: None }
    }

    /// Pauses for a moment; `false` if the time is over.
    fn again(&mut self) -> bool {
        self.n_spins += 1;
        if self.n_spins.is_multiple_of(Self::SPINS_PER_LOOK) || self.ns_max == 0 {
            let since = *self.since.get_or_insert_with(Instant::now);
            if since.elapsed().as_nanos() as u64 >= self.ns_max {
                return false;
            }
        }
        std::hint::spin_loop();
        true
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

    /// A part of the slice, to be divided further. Out of bounds panics.
    pub(super) fn part(self, start: usize, len: usize) -> Self {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: the part is inside the slice.
        SharedMut { ptr: unsafe { self.ptr.add(start) }, len }
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
