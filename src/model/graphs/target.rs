//! A model of static graphs: the memory and the files of its blocks, and the loading thread.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::file::GraphFile;
use super::folder::GraphFolder;
use super::memory::GraphMemory;
use super::pass::Pass;
use super::slots::{Schedule, Slot, Slots, State, Switching, TracedWork};
use super::{GraphsError, LayersError, loader};
use crate::kernels::PageBuf;
use crate::model::compute::PassEnd;
use crate::model::packed::Piece;
use crate::schedule::{
    GraphKind, Plan, Prefill, SwitchTimes, asynchronous, progressive, simulate, synchronous,
};
use refrain_stream::ReadMode;

/// The layers of a model as static graphs. Each block holds one graph at a time.
///
/// Passes run one at a time, as on the emulated device.
pub struct StaticGraphs {
    piece: Piece,
    slots: Arc<Slots>,
    /// Held by the pass that computes.
    turn: Mutex<()>,
    loader: Option<JoinHandle<()>>,
}

impl StaticGraphs {
    /// Allocates memory for one graph per block and starts the loading thread; nothing is loaded.
    ///
    /// Embedding, norm and head are included in the accounting; the caller loads them.
    ///
    /// # Errors
    /// [`GraphsError::MemoryLimit`] before anything is allocated; [`GraphsError`] otherwise.
    pub(in crate::model) fn open(folder: &GraphFolder, memory_max: Option<u64>) -> Result<Self, GraphsError> {
        let piece = folder.piece().clone();
        let files = files(folder)?;
        let memory = memory(folder, &files, memory_max)?;
        let pages = |graphs: &[GraphFile; 2]| {
            let len = usize::try_from(room(graphs)).unwrap_or(usize::MAX);
            PageBuf::zeroed(len).map_err(GraphsError::from)
        };
        let pages = files.iter().map(pages).collect::<Result<_, _>>()?;
        let slots = Arc::new(Slots::new(files, pages, memory));
        let thread_slots = Arc::clone(&slots);
        let thread = std::thread::Builder::new().name("refrain-graphs".to_owned());
        let loader = thread.spawn(move || loader::run(&thread_slots)).map_err(GraphsError::Spawn)?;
        Ok(Self { piece, slots, turn: Mutex::new(()), loader: Some(loader) })
    }

    /// Bytes of memory for weights that [`open`](Self::open) would take, from the headers alone.
    ///
    /// # Errors
    /// [`GraphsError::MemoryLimit`], or a file is damaged.
    pub(in crate::model) fn planned_bytes(
        folder: &GraphFolder,
        memory_max: Option<u64>,
    ) -> Result<u64, GraphsError> {
        Ok(memory(folder, &files(folder)?, memory_max)?.used_bytes)
    }

    /// The blocks of the model, and the lengths of its graphs.
    pub fn piece(&self) -> &Piece {
        &self.piece
    }

    /// The read mode of the first file. All files of a folder have the same mode.
    pub fn read_mode(&self) -> ReadMode {
        self.slots.files[0][0].read_mode()
    }

    /// Bytes of this kind of graph, summed over all blocks.
    pub fn graphs_bytes(&self, graph: GraphKind) -> u64 {
        self.slots.files.iter().map(|graphs| graphs[graph as usize].len()).sum()
    }

    /// The memory for weights: limit, current use and peak.
    pub fn memory(&self) -> GraphMemory {
        self.slots.lock().memory
    }

    /// The number of loads since the model was opened.
    pub fn n_loads(&self) -> u64 {
        self.slots.lock().n_loads
    }

    /// The graph that each block holds or loads; `None` before the first load, and after a failed one.
    pub fn graphs(&self) -> Vec<Option<GraphKind>> {
        self.slots.lock().slots.iter().map(Slot::graph).collect()
    }

    /// Sets the switching policy from the next prefill on.
    pub fn set_switching(&self, switching: Switching) {
        let mut state = self.slots.lock();
        (state.switching, state.given) = (switching, None);
    }

    /// From the next prefill on, blocks change by `plan`, if the prefill has the plan's number of chunks and
    /// the blocks hold the plan's initial graphs. Otherwise they change at the first verification batch.
    pub fn set_plan(&self, plan: Plan) {
        self.slots.lock().given = Some(plan);
    }

    /// The times for making plans, if they were measured or given.
    pub fn times(&self) -> Option<Arc<SwitchTimes>> {
        self.slots.lock().times.clone()
    }

    /// Sets the times for making plans, from the next prefill on.
    ///
    /// # Panics
    /// If their number of blocks or their lengths differ from the model's.
    pub fn set_times(&self, times: SwitchTimes) {
        assert!(self.fits(&times), "times of {} blocks", times.blocks.len());
        self.slots.lock().times = Some(Arc::new(times));
    }

    /// Whether the times have the model's number of blocks and lengths.
    pub fn fits(&self, times: &SwitchTimes) -> bool {
        times.blocks.len() == self.piece.blocks.len()
            && GraphKind::ALL.iter().all(|&graph| times.graph_len(graph) == self.piece.graph_len(graph))
    }

    /// Loads this kind of graph into every block that does not hold it, and waits for all loads.
    ///
    /// # Errors
    /// The first failed load; the others were tried too.
    pub fn load_all(&self, graph: GraphKind) -> Result<(), LayersError> {
        let _turn = self.turn();
        let mut state = self.slots.settled();
        state.schedule = None;
        for block_idx in 0..state.slots.len() {
            if state.slots[block_idx].graph() != Some(graph) {
                state.request(block_idx, graph);
            }
        }
        self.slots.notify();
        drop(state);
        self.wait()
    }

    /// Waits until all loads have ended.
    ///
    /// # Errors
    /// The first failed load that no pass has returned. It is returned once.
    pub fn wait(&self) -> Result<(), LayersError> {
        let mut state = self.slots.settled();
        let errors = state.slots.iter_mut().filter_map(|slot| match slot {
            Slot::Empty { error, .. } => error.take(),
            _ => None,
        });
        errors.reduce(|first, _| first).map_or(Ok(()), Err)
    }

    /// Clears the trace and restarts it at 0 µs.
    pub fn start_trace(&self) {
        self.slots.lock().start_trace();
    }

    /// The loads and calls since the start of the trace.
    pub fn trace(&self) -> Vec<TracedWork> {
        self.slots.lock().trace.clone()
    }

    /// Makes and starts the plan of a prefill of `n_rows` rows after `context` tokens, in chunks of
    /// `chunk_len`. Waits for loads under way, until `cancel` is set: then there is no plan.
    pub(crate) fn expect_prefill(
        &self,
        context: usize,
        n_rows: usize,
        chunk_len: usize,
        cancel: &AtomicBool,
    ) {
        if n_rows == 0 {
            return;
        }
        let _turn = self.turn();
        let Some(mut state) = self.slots.settled_unless(cancel) else { return };
        for block_idx in 0..state.slots.len() {
            if state.slots[block_idx].graph().is_none() {
                state.request(block_idx, GraphKind::Prefill);
            }
        }
        let prefill = Prefill::new(context, n_rows, chunk_len);
        let initial: Vec<GraphKind> = state.slots.iter().filter_map(Slot::graph).collect();
        let plan = match (&state.given, state.switching, &state.times) {
            (Some(plan), _, Some(times)) => match simulate(times, &prefill, &initial, plan) {
                Ok(_) => plan.clone(),
                Err(_) => Plan::default(),
            },
            (None, Switching::Progressive, Some(times)) => progressive(times, &prefill, &initial),
            (None, Switching::Synchronous, _) => synchronous(&prefill, &initial),
            // A plan needs times.
            _ => asynchronous(&prefill, &initial),
        };
        state.schedule = Some(Schedule { plan, next: 0, n_computed: 0 });
        state.advance();
        self.slots.notify();
    }

    /// Waits for the end of the current pass, and begins a new one.
    pub(in crate::model) fn pass(&self, end: PassEnd) -> Pass<'_> {
        let graph_lens = GraphKind::ALL.map(|graph| self.piece.graph_len(graph));
        Pass::new(&self.slots, graph_lens, self.turn(), end)
    }

    pub(super) fn lock_state(&self) -> MutexGuard<'_, State> {
        self.slots.lock()
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        // The guard of a pass that panicked has dropped its plan, so the state is consistent.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StaticGraphs {
    fn drop(&mut self) {
        self.slots.lock().close();
        self.slots.notify();
        if let Some(loader) = self.loader.take() {
            // A panic would be a bug, and the panic hook has reported it.
            let _ = loader.join();
        }
    }
}

/// Bytes of embedding, norm and head.
fn ends_bytes(folder: &GraphFolder) -> u64 {
    folder.ends().sections().iter().flat_map(|section| &section.tensors).map(|tensor| tensor.len).sum()
}

/// Bytes of the larger graph of a block.
fn room(graphs: &[GraphFile; 2]) -> u64 {
    graphs[0].len().max(graphs[1].len())
}

/// The graphs of each block, of which only the headers are read.
fn files(folder: &GraphFolder) -> Result<Vec<[GraphFile; 2]>, GraphsError> {
    let of_block = |(block_idx, layers): (usize, &std::ops::Range<usize>)| {
        let open = |graph| GraphFile::open(folder.graph(block_idx, graph), layers.clone());
        let [prefill, verify] = GraphKind::ALL.map(open);
        Ok([prefill?, verify?])
    };
    folder.piece().blocks.iter().enumerate().map(of_block).collect()
}

/// The memory of embedding, norm and head, and of one graph per block.
fn memory(
    folder: &GraphFolder,
    files: &[[GraphFile; 2]],
    memory_max: Option<u64>,
) -> Result<GraphMemory, GraphsError> {
    let needed = files.iter().map(block_bytes).fold(ends_bytes(folder), u64::saturating_add);
    let mut memory = GraphMemory::new(memory_max.unwrap_or(needed));
    memory.take(needed)?;
    Ok(memory)
}

/// Bytes of a block: room for either graph, and copies of norms and biases.
fn block_bytes(graphs: &[GraphFile; 2]) -> u64 {
    PageBuf::size_bytes(room(graphs)) + graphs[0].vectors_bytes().max(graphs[1].vectors_bytes())
}
