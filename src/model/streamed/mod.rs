//! A packed model whose weights are read from flash in every pass, except for pinned weights, which stay in
//! memory.
//!
//! A pass computes one layer after another. A pinned layer is in memory. A streamed layer is leased from the
//! ring (the module `stream`), and the lease ends when the layer has been computed. The output matrix follows
//! the last layer, in pieces of whole panels that fit the ring's buffers. From the embedding, a pass reads
//! only the rows of its tokens. Norms and biases are stored with the matrices of their layer. The operations
//! and their order are those of a model in memory, so all bits are equal.
//!
//! The experts of a layer are not read with it: behind its router, a pass reads those that its rows choose (`experts.rs`).
//!
//! Passes take turns in the order of their arrival, since the ring has room for one pass. Between two passes,
//! pinned layers can be released under memory pressure
//! ([`Device::set_memory_pressure`](crate::device::Device::set_memory_pressure)). When the pressure has
//! ended, they are pinned again as they come through the ring.
//!
//! **Not checked.** Checksums of a packed file cover whole sections, and comparing them in every pass would
//! read all weights twice. As for a mapped file, `refrain model inspect --verify` compares them. A failed read is
//! an error; damaged bytes give wrong output.

mod error;
mod experts;
mod head;
mod open;
mod plan;
mod rows;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::kernels::Instant;
use crate::kernels::{PackError, PackedMatrix, PageBuf};
use crate::model::config::ModelConfig;
use crate::model::layers::{LayersError, SectionTensors, vectors_bytes};
use crate::model::packed::PackedSection;
use crate::model::resident::Layer;
use crate::model::rows::Meanwhile;
use crate::model::transformer::error::ForwardError;
use crate::model::transformer::{SWEEP_ROWS_MAX, sweep_bytes};
use refrain_stream::{
    Flow, Lease, Meter, ReadAt, ReadFailure, ReadMode, Ring, TakeError, Turn, TurnError, Turns,
};
use refrain_trees::TokenId;

pub use error::StreamedError;
pub(in crate::model) use experts::{ExpertCache, LoadedExperts};
use head::Piece;
use plan::{Plan, SLOTS_MIN};
use rows::RowReader;

/// Bytes of a read. Longer reads were no faster on the measured disks (`benches/RESULTS.md`), and delay
/// cancellation.
pub const BLOCK_BYTES: usize = 1 << 20;

/// Concurrent reads. The disk is idle between the end of its last read and the next request, mostly while a
/// layer computes; more concurrent reads make that rarer. A wrong prediction of the next extent wastes this
/// number of reads (`benches/RESULTS.md`).
pub const N_READS: usize = 24;

/// Rows of a streamed embedding that are kept in memory at most: 3.5 MB of a 1.5 B model in Q4_0, and more tokens than most
/// conversations have. A pass waits for each row that is not there, and the disk is busy with layers then.
const EMBEDDING_ROWS_KEPT: usize = 4096;

/// The weights of a streamed model: pinned in memory, or read through a ring.
pub struct Streamed {
    file: String,
    config: ModelConfig,
    reader: Arc<dyn ReadAt>,
    meter: Arc<Meter>,
    /// The extent of a layer has the number of the layer.
    layers: Vec<StreamedLayer>,
    /// The pieces of the output matrix; empty if it is pinned.
    head: Vec<Piece>,
    /// Reads rows of the output matrix, if it is streamed.
    head_rows: Option<RowReader>,
    /// Reads rows of the embedding, if it is streamed.
    embedding_rows: Option<RowReader>,
    /// Reads rows of the embedding of layers' own inputs, if it is streamed.
    per_layer_rows: Option<RowReader>,
    /// `None` if everything is pinned.
    ring: Option<Ring>,
    /// The experts that are read on request, if there are any.
    experts: Option<ExpertCache>,
    turns: Turns,
    plan: Plan,
    /// Pinned bytes of embedding and output matrix.
    ends_bytes: u64,
    pass_bytes: u64,
    /// Whether pinned layers should be released, and whether they have been. `is_lean` is written only by the
    /// holder of the turn.
    lean_wanted: AtomicBool,
    is_lean: AtomicBool,
    /// Whether a sweep has its memory.
    sweeps: AtomicBool,
}

/// A layer of a streamed model: its section of the file, and its weights while it is pinned.
struct StreamedLayer {
    section: PackedSection,
    /// Whether the plan pins it.
    is_planned: bool,
    /// The weights, while they are in memory.
    pinned: Mutex<Option<Arc<Layer>>>,
}

impl StreamedLayer {
    fn pinned(&self) -> MutexGuard<'_, Option<Arc<Layer>>> {
        // A panic leaves the old value or the new one.
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the layer when it is pinned: its section, and copies of its norms and biases.
    fn pinned_bytes(&self) -> u64 {
        self.section.len + vectors_bytes(std::slice::from_ref(&self.section))
    }
}

/// Memory for weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct StreamMemory {
    /// Bytes of pinned weights.
    pub pinned_bytes: u64,
    /// Bytes for rows of a streamed embedding that are kept.
    pub rows_bytes: u64,
    /// Bytes of the ring's buffers.
    pub ring_bytes: u64,
    /// Bytes of the slots of experts that are read on request.
    pub experts_bytes: u64,
    /// Bytes for a long prompt while its layers are read: one prompt at a time, and only while it is read. Not part of the
    /// [total](Self::total_bytes).
    pub prompt_bytes: u64,
    /// The number of pinned layers.
    pub n_pinned_layers: usize,
    /// Whether the output matrix is pinned.
    pub head_pinned: bool,
    /// Whether the embedding is pinned.
    pub embedding_pinned: bool,
}

impl StreamMemory {
    /// All memory for weights, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.pinned_bytes + self.rows_bytes + self.ring_bytes + self.experts_bytes
    }
}

/// A layer while a pass computes with it.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub(in crate::model) enum PassLayer {
    Pinned(Arc<Layer>),
    /// The views are dropped before the lease that returns their buffer.
    Streamed {
        layer: Layer,
        _lease: Lease,
    },
}

impl AsRef<[Layer]> for PassLayer {
    fn as_ref(&self) -> &[Layer] {
        match self {
            PassLayer::Pinned(layer) => std::slice::from_ref(&**layer),
            PassLayer::Streamed { layer, .. } => std::slice::from_ref(layer),
        }
    }
}

/// The memory for a sweep, until it is dropped.
pub(crate) struct SweepMemory<'a> {
    streamed: &'a Streamed,
    bytes: u64,
}

impl SweepMemory<'_> {
    /// Maximum rows of the sweep. `taps`: a draft source reads residual streams before three layers.
    pub(crate) fn n_rows(&self, taps: bool) -> usize {
        let Streamed { config, experts, .. } = self.streamed;
        let fits = |n_rows: usize| {
            sweep_bytes(config, experts.is_some(), taps, n_rows).is_some_and(|bytes| bytes <= self.bytes)
        };
        // The bytes rise with the rows.
        let (mut fitting, mut end) = (0, SWEEP_ROWS_MAX + 1);
        while end - fitting > 1 {
            let middle = fitting.midpoint(end);
            *(if fits(middle) { &mut fitting } else { &mut end }) = middle;
        }
        fitting
    }
}

impl Drop for SweepMemory<'_> {
    fn drop(&mut self) {
        self.streamed.sweeps.store(false, Ordering::Release);
    }
}

/// A pass over the streamed weights. Only one exists at a time.
pub(in crate::model) struct Pass<'a> {
    streamed: &'a Streamed,
    _turn: Turn<'a>,
}

impl Streamed {
    /// The read mode of the file.
    pub fn read_mode(&self) -> ReadMode {
        self.ring.as_ref().map_or(self.reader.mode(), Ring::mode)
    }

    /// Bytes read and time waited since the model was loaded.
    pub fn flow(&self) -> Flow {
        self.meter.flow()
    }

    /// The memory for weights, as it is now.
    pub fn memory(&self) -> StreamMemory {
        let pinned = self.layers.iter().filter(|layer| layer.pinned().is_some());
        let (n_pinned_layers, layers_bytes) =
            pinned.fold((0, 0), |(n, bytes), layer| (n + 1, bytes + layer.pinned_bytes()));
        StreamMemory {
            pinned_bytes: self.ends_bytes + layers_bytes,
            rows_bytes: self.embedding_rows.as_ref().map_or(0, RowReader::kept_len),
            ring_bytes: self.ring_bytes(),
            experts_bytes: self.experts.as_ref().map_or(0, ExpertCache::bytes),
            prompt_bytes: self.plan.sweep_bytes,
            n_pinned_layers,
            head_pinned: self.plan.head,
            embedding_pinned: self.plan.embedding,
        }
    }

    /// Bytes of the ring's buffers now.
    fn ring_bytes(&self) -> u64 {
        self.plan.slot_bytes() * self.n_buffers() as u64
    }

    /// Releases the pinned layers and all but two buffers of the ring, or lets layers be pinned again as they
    /// come through the ring. May be called from any thread; if a pass is under way, the change takes effect
    /// before the next one. A model that is pinned as a whole has no ring and is not changed.
    pub(crate) fn set_lean(&self, is_lean: bool) {
        self.lean_wanted.store(is_lean, Ordering::Relaxed);
        if let Some(_turn) = self.turns.try_now() {
            self.settle();
        }
    }

    /// Applies the newest `lean_wanted`. The caller must have the turn.
    fn settle(&self) {
        let wanted = self.lean_wanted.load(Ordering::Relaxed);
        let is_news = self.is_lean.swap(wanted, Ordering::Relaxed) != wanted;
        // Reads of a cancelled pass may have kept some experts in memory.
        if is_news || wanted {
            self.experts.iter().for_each(|experts| experts.set_lean(wanted));
        }
        if !is_news {
            return;
        }
        let Some(ring) = &self.ring else { return };
        if wanted {
            self.layers.iter().for_each(|layer| *layer.pinned() = None);
            ring.shrink(SLOTS_MIN);
            ring.expect_all();
            return;
        }
        let n_missing = self.plan.n_slots.saturating_sub(ring.n_buffers());
        // Two buffers are enough if there is no memory for more.
        let buffers = (0..n_missing).map_while(|_| PageBuf::zeroed(self.plan.slot_len as usize).ok());
        ring.grow(buffers.collect());
    }

    /// Bytes that a pass and its projection read while all planned layers are pinned.
    pub fn pass_bytes(&self) -> u64 {
        self.pass_bytes
    }

    /// The memory for a sweep; `None` while another sweep has it, under memory pressure, and if every layer is in memory.
    pub(crate) fn sweep_memory(&self) -> Option<SweepMemory<'_>> {
        self.ring.as_ref()?;
        if self.lean_wanted.load(Ordering::Relaxed) || self.sweeps.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(SweepMemory { streamed: self, bytes: self.plan.sweep_bytes })
    }

    /// Whether a layer is in memory except under memory pressure.
    pub(crate) fn pins(&self, layer_idx: usize) -> bool {
        self.layers[layer_idx].is_planned
    }

    /// Whether experts are read on request.
    pub(crate) fn reads_experts(&self) -> bool {
        self.experts.is_some()
    }

    /// A layer, if it is in memory now. It stays there as long as the result lives.
    pub(in crate::model) fn pinned(&self, layer_idx: usize) -> Option<PassLayer> {
        self.layers[layer_idx].pinned().as_ref().map(|layer| PassLayer::Pinned(Arc::clone(layer)))
    }

    /// Waits for the turn and begins a pass over the first `n_layers` layers. If the output matrix follows, it is read ahead.
    ///
    /// # Errors
    /// [`ForwardError::Cancelled`], [`ForwardError::Reentered`].
    pub(in crate::model) fn pass(
        &self,
        n_layers: usize,
        head_follows: bool,
        cancel: &AtomicBool,
    ) -> Result<Pass<'_>, ForwardError> {
        let turn = self.turn(cancel)?;
        self.settle();
        let mut streamed = (0..n_layers).filter(|&layer_idx| self.layers[layer_idx].pinned().is_none());
        if let (Some(first), Some(ring)) = (streamed.next(), &self.ring) {
            let last = streamed.next_back().unwrap_or(first);
            let head = self.head.first().filter(|_| head_follows);
            ring.expect(last, head.map_or(first, |piece| piece.extent_idx));
        }
        Ok(Pass { streamed: self, _turn: turn })
    }

    fn turn(&self, cancel: &AtomicBool) -> Result<Turn<'_>, ForwardError> {
        self.turns.wait(cancel).map_err(|error| match error {
            TurnError::Cancelled => ForwardError::Cancelled,
            TurnError::Held => ForwardError::Reentered,
        })
    }

    /// The experts that are read on request, if there are any.
    pub(in crate::model) fn experts(&self) -> Option<&ExpertCache> {
        self.experts.as_ref()
    }

    /// Waits for experts of a layer, at most as many as there are slots. The caller must have the turn.
    ///
    /// # Errors
    /// As [`Pass::layer`].
    pub(in crate::model) fn load_experts(
        &self,
        layer_idx: usize,
        experts: &[u32],
        cancel: &AtomicBool,
    ) -> Result<LoadedExperts, ForwardError> {
        let cache = self.experts.as_ref().expect("the layer's experts are read on request");
        cache.load(layer_idx, experts, cancel).map_err(|error| self.take_error(error))
    }

    /// Reads the embedding of tokens into `out`, `[tokens.len(), hidden_dim]`; `None` if the embedding is
    /// pinned.
    pub(in crate::model) fn embed(
        &self,
        tokens: &[TokenId],
        out: &mut [f32],
    ) -> Option<Result<(), LayersError>> {
        let rows = self.embedding_rows.as_ref()?;
        let read = rows.dequantize(tokens.iter().map(|token| token.index()), out);
        Some(read.map_err(|failure| self.error(failure)))
    }

    /// Reads rows of the embedding of layers' own inputs into `out`, `[rows.len(), n_layers · dim]`; `None` if it is pinned.
    pub(in crate::model) fn embed_per_layer(
        &self,
        rows: impl ExactSizeIterator<Item = usize>,
        out: &mut [f32],
    ) -> Option<Result<(), LayersError>> {
        let read = self.per_layer_rows.as_ref()?.dequantize(rows, out);
        Some(read.map_err(|failure| self.error(failure)))
    }

    /// A matrix of the output matrix's type and columns without rows; `None` if the output matrix is pinned.
    pub(in crate::model) fn empty_head(&self) -> Option<Result<PackedMatrix, PackError>> {
        self.head_rows.as_ref().map(RowReader::empty)
    }

    /// Appends a row of the streamed output matrix to `to`; `false` if there is no room or the row cannot be
    /// read.
    pub(in crate::model) fn push_head_row(&self, to: &mut PackedMatrix, row: usize) -> bool {
        // A tied one is the embedding, of which rows may be in memory.
        let embedding = self.embedding_rows.as_ref().filter(|_| self.config.tied_head);
        embedding.or(self.head_rows.as_ref()).expect("the output matrix is streamed").copy_row(to, row)
    }

    /// Calls `f` with each piece of the streamed output matrix in order, and the number of the piece's first
    /// row.
    ///
    /// # Errors
    /// [`ForwardError::Layers`] if a piece cannot be read, [`ForwardError::Cancelled`] if `cancel` is set
    /// before a piece is in memory; `f` was not called for this piece and later ones. [`ForwardError::Reentered`].
    pub(in crate::model) fn for_each_piece(
        &self,
        cancel: &AtomicBool,
        mut f: impl FnMut(usize, &PackedMatrix),
    ) -> Result<(), ForwardError> {
        let _turn = self.turn(cancel)?;
        for piece in &self.head {
            let lease = self.take(piece.extent_idx, cancel)?;
            let matrix = piece.matrix(lease.pages());
            f(piece.first_row, &matrix);
        }
        Ok(())
    }

    /// The time from now on in which a pass that waits for a layer can do other work, before the ring is full or the pass is late: that
    /// of reading the layers of the pass from this one on, as far as the ring has room. Zero before anything was read.
    fn slack(&self, layer_idx: usize) -> Duration {
        let bandwidth = self.flow().bandwidth();
        let bytes = self.bytes_read(&self.layers[layer_idx..]);
        if bandwidth > 0.0 { Duration::from_secs_f64(bytes as f64 / bandwidth) } else { Duration::ZERO }
    }

    /// Bytes that are read until the ring is full. A buffer holds one layer, or a piece of the output matrix. From a huge page on, it
    /// consists of whole ones, so that a layer leaves up to half of it empty.
    pub fn ring_room(&self) -> u64 {
        let n_buffers = self.n_buffers();
        let n_layers = self.layers.iter().filter(|layer| layer.pinned().is_none()).count();
        let n_pieces = n_buffers.saturating_sub(n_layers).min(self.head.len()) as u64;
        self.bytes_read(&self.layers) + n_pieces * self.plan.slot_len
    }

    /// Bytes of the streamed ones of `layers`, from the first on, that the ring has buffers for.
    fn bytes_read(&self, layers: &[StreamedLayer]) -> u64 {
        let streamed = layers.iter().filter(|layer| layer.pinned().is_none());
        streamed.take(self.n_buffers()).map(|layer| layer.section.len).sum()
    }

    fn n_buffers(&self) -> usize {
        self.ring.as_ref().map_or(0, Ring::n_buffers)
    }

    /// Waits for an extent; reads `cancel` before and every few milliseconds.
    fn take(&self, extent_idx: usize, cancel: &AtomicBool) -> Result<Lease, ForwardError> {
        self.ring().take(extent_idx, cancel).map_err(|error| self.take_error(error))
    }

    fn ring(&self) -> &Ring {
        self.ring.as_ref().expect("what is streamed has a ring")
    }

    fn take_error(&self, error: TakeError) -> ForwardError {
        match error {
            TakeError::Cancelled => ForwardError::Cancelled,
            TakeError::Failed(failure) => ForwardError::Layers(self.error(failure)),
        }
    }

    fn error(&self, failure: ReadFailure) -> LayersError {
        LayersError { file: self.file.clone(), problem: failure.into() }
    }
}

impl Pass<'_> {
    /// Waits for a layer, and works `meanwhile`.
    ///
    /// # Errors
    /// [`ForwardError::Layers`] if it could not be read (the next pass reads again),
    /// [`ForwardError::Cancelled`].
    pub(in crate::model) fn layer(
        &self,
        layer_idx: usize,
        cancel: &AtomicBool,
        meanwhile: Option<&mut dyn Meanwhile>,
    ) -> Result<PassLayer, ForwardError> {
        if cancel.load(Ordering::Relaxed) {
            return Err(ForwardError::Cancelled);
        }
        let entry = &self.streamed.layers[layer_idx];
        if let Some(layer) = &*entry.pinned() {
            return Ok(PassLayer::Pinned(Arc::clone(layer)));
        }
        let lease = match meanwhile {
            Some(meanwhile) => {
                let (slack, began) = (self.streamed.slack(layer_idx), Instant::now());
                let work = || meanwhile.work(slack.saturating_sub(began.elapsed()));
                let taken = self.streamed.ring().take_after(layer_idx, cancel, work);
                taken.map_err(|error| self.streamed.take_error(error))?
            }
            None => self.streamed.take(layer_idx, cancel)?,
        };
        Ok(match self.pin_again(layer_idx, &lease) {
            Some(layer) => PassLayer::Pinned(layer),
            None => {
                let sections = std::slice::from_ref(&entry.section);
                let layer =
                    SectionTensors { sections, pages: lease.pages() }.layer(&self.streamed.config, layer_idx);
                PassLayer::Streamed { layer, _lease: lease }
            }
        })
    }

    /// Copies a released layer into memory again, if the plan pins it, there is no pressure, and memory can
    /// be allocated.
    fn pin_again(&self, layer_idx: usize, lease: &Lease) -> Option<Arc<Layer>> {
        let entry = &self.streamed.layers[layer_idx];
        if !entry.is_planned || self.streamed.is_lean.load(Ordering::Relaxed) {
            return None;
        }
        let len = entry.section.len as usize;
        let mut pages = PageBuf::zeroed(len).ok()?;
        pages.bytes_mut().copy_from_slice(&lease.pages().bytes()[..len]);
        let sections = std::slice::from_ref(&entry.section);
        let layer = Arc::new(
            SectionTensors { sections, pages: &Arc::new(pages) }.layer(&self.streamed.config, layer_idx),
        );
        *entry.pinned() = Some(Arc::clone(&layer));
        self.streamed.ring.iter().for_each(|ring| ring.skip(layer_idx));
        Some(layer)
    }
}
