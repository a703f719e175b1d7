//! The state that passes and the loading thread share: the content of each block, the queue of loads, and the
//! plan.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::LayersError;
use super::file::{BlockLayers, GraphFile};
use super::memory::GraphMemory;
use crate::kernels::Instant;
use crate::kernels::PageBuf;
use crate::schedule::{GraphKind, Plan, SwitchTimes};

/// The interval at which a waiting pass reads its cancel flag.
pub(super) const CANCEL_INTERVAL: Duration = Duration::from_millis(5);

/// The time at which blocks change from prefill graphs to verify graphs. It does not affect the bits of the
/// output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Switching {
    /// By the plan of [`progressive`](crate::schedule::progressive), from the target's times.
    #[default]
    Progressive,
    /// Each block after its last chunk.
    Asynchronous,
    /// All blocks after the prefill.
    Synchronous,
}

/// An entry of a trace, for measurements. A trace keeps its first 16384 entries.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TracedWork {
    /// The kind of work: a load or a computation.
    pub kind: WorkKind,
    /// The block.
    pub block: usize,
    /// The graph.
    pub graph: GraphKind,
    /// Its start, in µs since the start of the trace.
    pub start_us: f64,
    /// Its end.
    pub end_us: f64,
}

/// Kinds of traced work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    /// A graph was read.
    Load,
    /// A block computed its part of a batch.
    Compute,
}

/// The longest trace: a prompt of 100 k tokens through 24 blocks.
pub(super) const TRACE_MAX: usize = 1 << 14;

/// The state that passes and the loading thread share.
pub(super) struct Slots {
    /// The graphs of each block, in the order of [`GraphKind::ALL`].
    pub(super) files: Vec<[GraphFile; 2]>,
    state: Mutex<State>,
    changed: Condvar,
}

pub(super) struct State {
    pub(super) slots: Vec<Slot>,
    /// Blocks whose slots are queued, in order.
    queue: VecDeque<usize>,
    pub(super) schedule: Option<Schedule>,
    pub(super) switching: Switching,
    /// A plan that takes the place of `switching`.
    pub(super) given: Option<Plan>,
    pub(super) times: Option<Arc<SwitchTimes>>,
    pub(super) memory: GraphMemory,
    pub(super) n_loads: u64,
    pub(super) trace: Vec<TracedWork>,
    trace_start: Instant,
    closed: bool,
}

/// The content of a block. The memory of the block belongs to the layers, to the slot, or to the loading
/// thread.
pub(super) enum Slot {
    Ready {
        graph: GraphKind,
        layers: Arc<BlockLayers>,
    },
    Queued {
        graph: GraphKind,
        pages: PageBuf,
    },
    Loading {
        graph: GraphKind,
    },
    /// No graph, and the error of the last load until it has been returned.
    Empty {
        pages: PageBuf,
        error: Option<LayersError>,
    },
}

impl Slot {
    /// The graph that the block holds or loads.
    pub(super) fn graph(&self) -> Option<GraphKind> {
        match *self {
            Slot::Ready { graph, .. } | Slot::Queued { graph, .. } | Slot::Loading { graph } => Some(graph),
            Slot::Empty { .. } => None,
        }
    }

    fn is_settled(&self) -> bool {
        matches!(self, Slot::Ready { .. } | Slot::Empty { .. })
    }
}

/// A plan, and the progress of its prefill.
pub(super) struct Schedule {
    pub(super) plan: Plan,
    /// The next load to start.
    pub(super) next: usize,
    /// Computed parts. (A part is a chunk in a block.)
    pub(super) n_computed: usize,
}

/// A load that the loading thread has started.
pub(super) struct LoadJob {
    pub(super) block_idx: usize,
    pub(super) graph: GraphKind,
    pub(super) pages: PageBuf,
}

impl Slots {
    pub(super) fn new(files: Vec<[GraphFile; 2]>, pages: Vec<PageBuf>, memory: GraphMemory) -> Self {
        let state = State {
            slots: pages.into_iter().map(|pages| Slot::Empty { pages, error: None }).collect(),
            queue: VecDeque::new(),
            schedule: None,
            switching: Switching::default(),
            given: None,
            times: None,
            memory,
            n_loads: 0,
            trace: Vec::new(),
            trace_start: Instant::now(),
            closed: false,
        };
        Self { files, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is one assignment, so a panic leaves no partial change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, or until the timeout `at_most`.
    pub(super) fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        at_most: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        match at_most {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(time) => self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
        }
    }

    /// Wakes all waiting threads. Must be called after a change.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits until all loads have ended.
    pub(super) fn settled(&self) -> MutexGuard<'_, State> {
        self.settled_unless(&AtomicBool::new(false)).expect("nobody cancels")
    }

    /// Waits until all loads have ended; `None` if `cancel` is set before.
    pub(super) fn settled_unless(&self, cancel: &AtomicBool) -> Option<MutexGuard<'_, State>> {
        let mut state = self.lock();
        while !state.slots.iter().all(Slot::is_settled) {
            if cancel.load(Ordering::Relaxed) {
                return None;
            }
            state = self.wait(state, Some(CANCEL_INTERVAL));
        }
        Some(state)
    }
}

impl State {
    /// Drops the block's graph and queues a load. Does nothing if a load is queued or running.
    pub(super) fn request(&mut self, block_idx: usize, graph: GraphKind) {
        let slot = &mut self.slots[block_idx];
        if !slot.is_settled() {
            return;
        }
        let pages = match std::mem::replace(slot, Slot::Loading { graph }) {
            Slot::Ready { layers, .. } => BlockLayers::into_pages(layers),
            Slot::Empty { pages, .. } => pages,
            Slot::Queued { .. } | Slot::Loading { .. } => unreachable!("the slot is settled"),
        };
        *slot = Slot::Queued { graph, pages };
        self.queue.push_back(block_idx);
    }

    /// Queues the loads of the plan that are due.
    pub(super) fn advance(&mut self) {
        let n_blocks = self.slots.len();
        while let Some(schedule) = &mut self.schedule
            && let Some(&load) = schedule.plan.loads.get(schedule.next)
            && load.starts_at(n_blocks) <= schedule.n_computed
        {
            schedule.next += 1;
            self.request(load.block, load.graph);
        }
    }

    /// Starts the next load; `None` if there is none.
    ///
    /// # Errors
    /// The target was dropped.
    pub(super) fn take(&mut self) -> Result<Option<LoadJob>, Closed> {
        if self.closed {
            return Err(Closed);
        }
        let Some(block_idx) = self.queue.pop_front() else { return Ok(None) };
        let graph = self.slots[block_idx].graph().expect("a queued slot has a graph");
        match std::mem::replace(&mut self.slots[block_idx], Slot::Loading { graph }) {
            Slot::Queued { graph, pages } => Ok(Some(LoadJob { block_idx, graph, pages })),
            _ => unreachable!("what is in the queue is queued"),
        }
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) fn start_trace(&mut self) {
        self.trace.clear();
        self.trace_start = Instant::now();
    }

    pub(super) fn traced(
        &mut self,
        kind: WorkKind,
        block: usize,
        graph: GraphKind,
        start: Instant,
        end: Instant,
    ) {
        if self.trace.len() < TRACE_MAX {
            let us = |at: Instant| at.saturating_duration_since(self.trace_start).as_secs_f64() * 1e6;
            let (start_us, end_us) = (us(start), us(end));
            self.trace.push(TracedWork { kind, block, graph, start_us, end_us });
        }
    }
}

/// The target was dropped.
pub(super) struct Closed;
