//! A packed model whose weights are read from flash in every pass, but for those that stay in memory.
//!
//! A pass takes one layer after the other: a pinned one is there, a streamed one is a lease of the
//! [ring](crate::stream), which is given back when the layer has computed. The output matrix is streamed in pieces that fit the
//! ring's buffers, panel by panel, behind the last layer; of the embedding the rows of a batch are read. Norms and biases lie
//! among the matrices and come with them. What is computed, and in which order, is the same as with the model in memory, so every
//! bit of it is.
//!
//! Passes take turns, in the order in which they come: the ring has room for one. Between two passes pinned layers may be given up,
//! when others need the memory ([`Engine::set_memory_pressure`](crate::engine::Engine::set_memory_pressure)); afterwards they are
//! kept again when they next come through the ring.
//!
//! **What is not checked.** A packed file's checksums cover whole sections; comparing them at every pass would read all weights
//! twice. As with a mapped file, `refrain inspect --verify` compares them. A read that fails is an error; wrong bytes are wrong
//! numbers.

mod error;
mod head;
mod open;
mod plan;
mod rows;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::kernels::{PackError, PackedMatrix, PageBuf};
use crate::model::layers::{LayersError, SectionTensors, vectors_bytes};
use crate::model::packed::{PackedFile, PackedSection};
use crate::model::transformer::ForwardError;
use crate::model::weights::{Layer, Weights};
use crate::stream::{
    Flow, Lease, Meter, ReadAt, ReadFailure, ReadMode, Ring, StreamOptions, TakeError, Turn, Turns,
};
use crate::token::TokenId;

pub use error::StreamedError;
use head::Piece;
use plan::{Plan, SLOTS_MIN};
use rows::RowReader;

/// Bytes of a read. Longer ones are no faster on the disks that were measured (`benches/RESULTS.md`), and cancel later.
pub const BLOCK_BYTES: usize = 1 << 20;

/// Reads at a time. The disk may rest between telling that reads have ended and being asked for more, above all while a layer computes:
/// the more there are, the more seldom. A wrong guess of what comes next costs as many (`benches/RESULTS.md`).
pub const N_READS: usize = 24;

/// The weights of a streamed model, where they are and on their way.
pub struct Streamed {
    file: String,
    reader: Arc<dyn ReadAt>,
    meter: Arc<Meter>,
    /// A layer's extent has its number.
    layers: Vec<Home>,
    /// The output matrix; empty where it is pinned.
    head: Vec<Piece>,
    /// Rows of the output matrix, where it is not pinned.
    head_rows: Option<RowReader>,
    /// Rows of the embedding, where it is not pinned.
    embedding_rows: Option<RowReader>,
    /// Not there where everything is pinned.
    ring: Option<Ring>,
    turns: Turns,
    plan: Plan,
    /// What is pinned of embedding and output matrix, in bytes.
    ends_bytes: u64,
    pass_bytes: u64,
    /// Whether pinned layers are to be given up, and whether they have been: changed with the turn.
    lean_wanted: AtomicBool,
    is_lean: AtomicBool,
}

/// Where a layer is.
struct Home {
    section: PackedSection,
    /// Whether it is to stay in memory.
    is_planned: bool,
    /// The layer, while it does. Locked for a moment.
    pinned: Mutex<Option<Arc<Layer>>>,
}

impl Home {
    fn pinned(&self) -> MutexGuard<'_, Option<Arc<Layer>>> {
        // It is replaced as a whole.
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it takes of memory when it is pinned: norms and biases are copied out of it.
    fn pinned_bytes(&self) -> u64 {
        self.section.len + vectors_bytes(std::slice::from_ref(&self.section))
    }
}

/// Memory for weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StreamMemory {
    /// What stays in memory, in bytes.
    pub pinned_bytes: u64,
    /// The ring's buffers, in bytes.
    pub ring_bytes: u64,
    /// Layers that stay in memory.
    pub n_pinned_layers: usize,
    /// Whether the output matrix does.
    pub head_pinned: bool,
    /// Whether the embedding does.
    pub embedding_pinned: bool,
}

impl StreamMemory {
    /// All memory for weights, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.pinned_bytes + self.ring_bytes
    }
}

/// A layer, for as long as a pass computes with it.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub(in crate::model) enum PassLayer {
    Pinned(Arc<Layer>),
    /// The views first: the ring has its buffer back when they are gone.
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

/// A pass over the streamed weights. While it lives there is no other.
pub(in crate::model) struct Pass<'a> {
    streamed: &'a Streamed,
    _turn: Turn<'a>,
}

impl Streamed {
    /// Reads what stays in memory and starts the ring's threads; `progress` is called with (bytes read, bytes to read).
    ///
    /// The [`Weights`] that come with it hold what is pinned but the layers.
    ///
    /// # Errors
    /// [`StreamedError`].
    pub(in crate::model) fn open(
        file: &PackedFile,
        options: &StreamOptions,
        progress: Option<&dyn Fn(u64, u64)>,
    ) -> Result<(Self, Weights), StreamedError> {
        open::open(file, options, progress)
    }

    /// How the file is read.
    pub fn read_mode(&self) -> ReadMode {
        self.ring.as_ref().map_or(self.reader.mode(), Ring::mode)
    }

    /// What has been read and waited for since the model was loaded.
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
            ring_bytes: self.ring_bytes(),
            n_pinned_layers,
            head_pinned: self.plan.head,
            embedding_pinned: self.plan.embedding,
        }
    }

    /// Bytes of the ring's buffers now.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.ring.as_ref().map_or(0, |ring| self.plan.slot_bytes() * ring.n_buffers() as u64)
    }

    /// Gives up the pinned layers and all of the ring but two buffers, or keeps them again as they come by; from any thread. Where a
    /// pass is under way, this happens before the next one. A model that is pinned as a whole stays so: it has no ring.
    pub(crate) fn set_lean(&self, is_lean: bool) {
        self.lean_wanted.store(is_lean, Ordering::Relaxed);
        if let Some(_turn) = self.turns.try_now() {
            self.settle();
        }
    }

    /// Does what was wanted last. The caller has the turn.
    fn settle(&self) {
        let wanted = self.lean_wanted.load(Ordering::Relaxed);
        let Some(ring) =
            self.ring.as_ref().filter(|_| self.is_lean.swap(wanted, Ordering::Relaxed) != wanted)
        else {
            return;
        };
        if wanted {
            self.layers.iter().for_each(|layer| *layer.pinned() = None);
            ring.shrink(SLOTS_MIN);
            ring.expect_all();
            return;
        }
        let n_missing = self.plan.n_slots.saturating_sub(ring.n_buffers());
        // Where there is no memory for them, two will do.
        let buffers = (0..n_missing).map_while(|_| PageBuf::zeroed(self.plan.slot_len as usize).ok());
        ring.grow(buffers.collect());
    }

    /// Bytes that are read for each pass and its projection while everything is pinned that is to be.
    pub fn pass_bytes(&self) -> u64 {
        self.pass_bytes
    }

    /// Begins a pass when its turn has come; `None` where it was cancelled before.
    pub(in crate::model) fn pass(&self, cancel: &AtomicBool) -> Option<Pass<'_>> {
        let turn = self.turns.wait(cancel)?;
        self.settle();
        Some(Pass { streamed: self, _turn: turn })
    }

    /// The embedding of tokens, `[tokens.len(), hidden_dim]`; `None` where the embedding is pinned.
    pub(in crate::model) fn embed(
        &self,
        tokens: &[TokenId],
        out: &mut [f32],
    ) -> Option<Result<(), LayersError>> {
        let rows = self.embedding_rows.as_ref()?;
        let read = rows.dequantize(tokens.iter().map(|token| token.index()), out);
        Some(read.map_err(|failure| self.error(failure)))
    }

    /// A matrix like the output matrix, with no rows but room for `n_rows_max`; `None` where that is pinned.
    pub(in crate::model) fn empty_head(&self) -> Option<Result<PackedMatrix, PackError>> {
        self.head_rows.as_ref().map(RowReader::empty)
    }

    /// Appends a row of the streamed output matrix; `false` where there is no room or it cannot be read.
    pub(in crate::model) fn push_head_row(&self, to: &mut PackedMatrix, row: usize) -> bool {
        let rows = self.head_rows.as_ref().expect("the output matrix is streamed");
        rows.with_row(row, |panel, lane| to.push_row_of(panel, lane)).unwrap_or(false)
    }

    /// Calls `f` with one piece of the streamed output matrix after the other, and the row where each begins.
    ///
    /// # Errors
    /// [`ForwardError::Layers`], and [`ForwardError::Cancelled`] where `cancel` is set before a piece is there; `f` was not called for
    /// that piece and those behind it.
    pub(in crate::model) fn for_each_piece(
        &self,
        cancel: &AtomicBool,
        mut f: impl FnMut(usize, &PackedMatrix),
    ) -> Result<(), ForwardError> {
        let _turn = self.turns.wait(cancel).ok_or(ForwardError::Cancelled)?;
        for piece in &self.head {
            let lease = self.take(piece.extent_idx, cancel)?;
            let matrix = piece.matrix(lease.pages());
            f(piece.first_row, &matrix);
        }
        Ok(())
    }

    /// Waits for an extent. `cancel` is read before, and every few milliseconds.
    fn take(&self, extent_idx: usize, cancel: &AtomicBool) -> Result<Lease, ForwardError> {
        let ring = self.ring.as_ref().expect("what is streamed has a ring");
        ring.take(extent_idx, cancel).map_err(|error| match error {
            TakeError::Cancelled => ForwardError::Cancelled,
            TakeError::Failed(failure) => ForwardError::Layers(self.error(failure)),
        })
    }

    fn error(&self, failure: ReadFailure) -> LayersError {
        LayersError { file: self.file.clone(), problem: failure.into() }
    }
}

impl Pass<'_> {
    /// A layer, once it is there.
    ///
    /// # Errors
    /// [`ForwardError::Layers`]: it could not be read; the next pass tries again. [`ForwardError::Cancelled`].
    pub(in crate::model) fn layer(
        &self,
        layer_idx: usize,
        cancel: &AtomicBool,
    ) -> Result<PassLayer, ForwardError> {
        if cancel.load(Ordering::Relaxed) {
            return Err(ForwardError::Cancelled);
        }
        let home = &self.streamed.layers[layer_idx];
        if let Some(layer) = &*home.pinned() {
            return Ok(PassLayer::Pinned(Arc::clone(layer)));
        }
        let lease = self.streamed.take(layer_idx, cancel)?;
        Ok(match self.pin_again(layer_idx, &lease) {
            Some(layer) => PassLayer::Pinned(layer),
            None => {
                let sections = std::slice::from_ref(&home.section);
                let layer = SectionTensors { sections, pages: lease.pages() }.layer(layer_idx);
                PassLayer::Streamed { layer, _lease: lease }
            }
        })
    }

    /// Keeps a layer that was given up, where it is to stay in memory and there is some.
    fn pin_again(&self, layer_idx: usize, lease: &Lease) -> Option<Arc<Layer>> {
        let home = &self.streamed.layers[layer_idx];
        if !home.is_planned || self.streamed.is_lean.load(Ordering::Relaxed) {
            return None;
        }
        let len = home.section.len as usize;
        let mut pages = PageBuf::zeroed(len).ok()?;
        pages.bytes_mut().copy_from_slice(&lease.pages().bytes()[..len]);
        let sections = std::slice::from_ref(&home.section);
        let layer = Arc::new(SectionTensors { sections, pages: &Arc::new(pages) }.layer(layer_idx));
        *home.pinned() = Some(Arc::clone(&layer));
        self.streamed.ring.iter().for_each(|ring| ring.skip(layer_idx));
        Some(layer)
    }
}
