//! The state of one sequence: for each layer keys and values, or the state of a recurrent layer.
//!
//! Keys and values lie in slots, committed prefix first:
//!
//! ```text
//! slots   0 ……………………… len−1 │ len ……… len+rows−1 │ ……… │ n_slots−1
//!         committed prefix   │ the batch at hand    │ free
//! ```
//!
//! A session allocates slots for its context and for its longest verification batch, so that any batch fits
//! behind any prefix. Every step overwrites the slots behind the prefix.
//!
//! Layers with a window read its slots only. They hold all slots, or with [`WindowBound`] a ring of the newest ones:
//!
//! ```text
//!                                 │ len − window …… len−1 │ len …… len+rows−1 │
//!         overwritten   │ reserve │ the window            │ the batch at hand │
//!                       └──────── the slots of a ring: those before `written_end`
//! ```
//!
//! A truncation within the reserve is exact. After a longer one the window has lost slots, and the cache is empty.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::kernels::{AllocError, Kernels, KeySharing, KvLayer, KvType, StateRule, StateShape};
use crate::model::batch::Batch;
use crate::model::compute::Compute;
use crate::model::config::{Attention, KvSource, LayerPlan, Mixer, ModelConfig};
use crate::model::state::{
    CheckpointPolicy, Purpose, RecurrentError, RecurrentLayer, RecurrentShape, TreeRows,
};
use refrain_files::{ErrorKind, Facts, Fault};

/// The state of every layer: keys and values, `[n_kv_heads, n_slots, head_dim]`, or a [`RecurrentLayer`].
///
/// # Invariants
/// - The slots `0..len()` hold the committed prefix in order of position; in rings, those of the windows of all rows that
///   a batch behind the prefix may have.
/// - The slots after it are scratch memory for one batch: a forward pass writes them, and [`KvCache::commit`]
///   keeps some of them.
pub struct KvCache {
    layers: Vec<LayerState>,
    len: usize,
    /// The end of the slots that passes have written since the cache was empty: a ring holds those before it.
    written_end: usize,
    n_slots: usize,
    context_len: usize,
    kv_type: KvType,
    /// Rows of the longest pass, if a layer is a ring.
    pass_rows_max: Option<usize>,
}

/// The state of one layer.
enum LayerState {
    Kv(Box<KvLayer>),
    /// The newest slots, and the longest window that reads them.
    Ring(Box<KvLayer>, usize),
    /// The keys and values of this earlier layer.
    Shared(usize),
    Recurrent(Box<RecurrentLayer>),
}

impl LayerState {
    /// The empty state of a layer.
    fn new(config: &ModelConfig, layer_idx: usize, size: CacheSize) -> Result<Self, KvCacheError> {
        let CacheSize { kv_type, n_slots, tree_rows_max, .. } = size;
        let too_large = |_| KvCacheError::TooLarge { n_slots, bytes: KvCache::bytes(config, size) };
        Ok(match &config.layers[layer_idx].mixer {
            Mixer::Attention(Attention { kv: KvSource::Layer(source_idx), .. }) => Self::Shared(*source_idx),
            Mixer::Attention(attention) => {
                let Attention { n_kv_heads, head_dim, .. } = *attention;
                if !kv_type.holds(head_dim) {
                    return Err(KvCacheError::HeadDim { kv_type, head_dim });
                }
                let window = longest_window(config, layer_idx);
                match window.zip(size.ring_len(window)) {
                    Some((window, ring_len)) => {
                        let layer = KvLayer::ring(kv_type, n_kv_heads, ring_len, head_dim);
                        Self::Ring(Box::new(layer.map_err(too_large)?), window)
                    }
                    None => {
                        let layer = KvLayer::new(kv_type, n_kv_heads, n_slots, head_dim);
                        Self::Kv(Box::new(layer.map_err(too_large)?))
                    }
                }
            }
            mixer => {
                let shape = recurrent_shape(mixer).expect("every other mixer is recurrent");
                let state = RecurrentLayer::new(shape, tree_rows_max.max(1), CheckpointPolicy::default());
                Self::Recurrent(Box::new(state.map_err(too_large)?))
            }
        })
    }
}

/// Slots that [`KvCache::extend_from`] copies one by one at most.
const COPIED_SLOTS_MAX: usize = 64;

/// Rows of a verification batch that a cache is made for if nothing else is said.
const ROWS_DEFAULT: usize = 64;

/// Which keys and values layers with a window keep. No choice changes the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum WindowCache {
    /// Those of all tokens. A session can be truncated to any length at no cost, and its state can be kept.
    #[default]
    Full,
    /// Those of the window, of the rows of a pass, and of [`WINDOW_RESERVE`] tokens before them. If more tokens than that are
    /// taken back, the next pass computes the whole text again. The state of a session cannot be kept.
    Bounded,
}

/// Tokens that can be taken back from a session with [`WindowCache::Bounded`] at no cost: an answer of 512 tokens, the default
/// limit, and the turn before it.
pub const WINDOW_RESERVE: usize = 768;

/// The bound of caches of layers with a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowBound {
    /// Rows of the longest pass: of a prefill chunk or a verification batch.
    pub pass_rows_max: usize,
    /// Positions that a truncation may go back without losing a window.
    pub reserve: usize,
}

/// The size of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSize {
    /// Element type of keys and values.
    pub kv_type: KvType,
    /// Slots of layers without a window: of the context and of a batch.
    pub n_slots: usize,
    /// Rows of the longest batch of which a path is committed.
    pub tree_rows_max: usize,
    /// `None`: layers with a window have as many slots as the others.
    pub windows: Option<WindowBound>,
}

impl CacheSize {
    /// `n_slots` slots in every layer, for batches of up to 64 rows.
    pub fn full(kv_type: KvType, n_slots: usize) -> Self {
        CacheSize { kv_type, n_slots, tree_rows_max: ROWS_DEFAULT, windows: None }
    }

    /// Slots of a ring for windows of up to `window` positions; `None` if a layer of all slots is no longer.
    fn ring_len(&self, window: Option<usize>) -> Option<usize> {
        let (window, WindowBound { pass_rows_max, reserve }) = (window?, self.windows?);
        let n_needed = window.saturating_add(reserve).saturating_add(pass_rows_max.max(1) - 1);
        Some(KvLayer::ring_len(n_needed)).filter(|&ring_len| ring_len < self.n_slots)
    }
}

/// A cache could not be allocated.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvCacheError {
    /// The size exceeds the address space or was refused by the allocator.
    #[error(
        "a KV cache of {n_slots} slots needs {bytes} bytes, which could not be allocated; ask for a shorter context"
    )]
    TooLarge {
        /// Requested slots.
        n_slots: usize,
        /// Bytes that they need (saturating).
        bytes: u64,
    },
    /// The element type cannot hold heads of this size.
    #[error(
        "a KV cache in {kv_type} needs heads of a multiple of 32 elements, the model's have {head_dim}; choose f16"
    )]
    HeadDim {
        /// The requested type.
        kv_type: KvType,
        /// Elements of a head.
        head_dim: usize,
    },
}

impl Fault for KvCacheError {
    fn facts(&self) -> Facts<'_> {
        match self {
            Self::TooLarge { bytes, .. } => Facts::new(ErrorKind::OutOfMemory).value(*bytes),
            Self::HeadDim { .. } => Facts::new(ErrorKind::Unsupported).field("kv_type"),
        }
    }
}

impl KvCache {
    /// A cache of `n_slots` slots in every layer, all free.
    ///
    /// # Errors
    /// As [`sized`](Self::sized).
    pub fn new(config: &ModelConfig, kv_type: KvType, n_slots: usize) -> Result<Self, KvCacheError> {
        Self::sized(config, CacheSize::full(kv_type, n_slots))
    }

    /// An empty cache. Slots take memory when they are written.
    ///
    /// # Errors
    /// [`KvCacheError::TooLarge`] if the system does not have the memory for all slots (where it says so: Linux compares with
    /// memory and swap unless it is told to allocate anything), [`KvCacheError::HeadDim`] if the type cannot hold
    /// the model's heads; nothing stays allocated.
    pub fn sized(config: &ModelConfig, size: CacheSize) -> Result<Self, KvCacheError> {
        let CacheSize { kv_type, n_slots, .. } = size;
        let bytes = Self::bytes(config, size);
        KvLayer::check_room(bytes).map_err(|_| KvCacheError::TooLarge { n_slots, bytes })?;
        let layers = (0..config.n_layers()).map(|layer_idx| LayerState::new(config, layer_idx, size));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let has_ring = layers.iter().any(|layer| matches!(layer, LayerState::Ring(..)));
        let pass_rows_max = size.windows.filter(|_| has_ring).map(|bound| bound.pass_rows_max.max(1));
        Ok(Self { layers, len: 0, written_end: 0, n_slots, context_len: n_slots, kv_type, pass_rows_max })
    }

    /// Removes all tokens and frees their memory: each layer is allocated again, which takes no memory until slots are written. A layer that
    /// cannot be allocated keeps its memory. `config` and `size` are those of the cache.
    pub(crate) fn release(&mut self, config: &ModelConfig, size: CacheSize) {
        self.truncate(0);
        for (layer_idx, layer) in self.layers.iter_mut().enumerate() {
            if let Ok(new) = LayerState::new(config, layer_idx, size) {
                *layer = new;
            }
        }
    }

    /// States the context that the session may fill, if it is shorter than the slots: it decides between two sets of
    /// rotations in models that have them ([`RopeScaling::LongRope`](crate::model::config::RopeScaling)).
    pub(crate) fn with_context(mut self, context_len: usize) -> Self {
        self.context_len = context_len;
        self
    }

    /// The context that the session may fill.
    pub(crate) fn context_len(&self) -> usize {
        self.context_len
    }

    /// Bytes that one slot takes over all layers, each with all slots.
    pub fn bytes_per_slot(config: &ModelConfig, kv_type: KvType) -> u64 {
        Self::kv_bytes(config, CacheSize::full(kv_type, 1))
    }

    /// Bytes of keys and values.
    pub fn kv_bytes(config: &ModelConfig, size: CacheSize) -> u64 {
        let bytes = |(layer_idx, layer): (usize, &LayerPlan)| match &layer.mixer {
            Mixer::Attention(attention) if attention.kv_layer().is_none() => {
                let n_slots = size.ring_len(longest_window(config, layer_idx)).unwrap_or(size.n_slots);
                let of_head = size.kv_type.slot_bytes(attention.head_dim).saturating_mul(n_slots as u64);
                of_head.saturating_mul(attention.n_kv_heads as u64)
            }
            _ => 0,
        };
        config.layers.iter().enumerate().map(bytes).fold(0, u64::saturating_add)
    }

    /// Bytes of the recurrent layers for batches of up to `n_rows_max` rows, at any length of the sequence.
    pub fn recurrent_bytes(config: &ModelConfig, n_rows_max: usize) -> u64 {
        let shapes = config.layers.iter().filter_map(|layer| recurrent_shape(&layer.mixer));
        shapes.fold(0, |bytes, shape| {
            let of_layer = RecurrentLayer::bytes(&shape, n_rows_max.max(1), CheckpointPolicy::default());
            of_layer.saturating_add(bytes)
        })
    }

    /// Bytes of a cache.
    pub fn bytes(config: &ModelConfig, size: CacheSize) -> u64 {
        Self::kv_bytes(config, size).saturating_add(Self::recurrent_bytes(config, size.tree_rows_max))
    }

    /// Committed tokens in the cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is committed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Slots of layers without a window, committed and free.
    pub fn n_slots(&self) -> usize {
        self.n_slots
    }

    /// The element type of keys and values.
    pub fn kv_type(&self) -> KvType {
        self.kv_type
    }

    /// Bytes held by keys and values.
    pub fn memory_usage(&self) -> usize {
        let bytes = |layer: &LayerState| match layer {
            LayerState::Kv(layer) | LayerState::Ring(layer, _) => layer.size_bytes(),
            LayerState::Shared(_) => 0,
            LayerState::Recurrent(layer) => layer.memory_usage(),
        };
        self.layers.iter().map(bytes).sum()
    }

    /// Whether a layer is recurrent.
    pub fn is_recurrent(&self) -> bool {
        self.recurrent().next().is_some()
    }

    /// Whether a layer holds the newest slots only.
    pub fn is_bounded(&self) -> bool {
        self.pass_rows_max.is_some()
    }

    /// Whether a pass may run each layer over a long chain before the next layer: no layer reads the ring of an earlier layer, which then
    /// holds the newest rows of the chain only.
    pub(crate) fn is_swept(&self) -> bool {
        let reads_ring = |layer: &LayerState| match layer {
            LayerState::Shared(source_idx) => matches!(self.layers[*source_idx], LayerState::Ring(..)),
            LayerState::Kv(_) | LayerState::Ring(..) | LayerState::Recurrent(_) => false,
        };
        !self.layers.iter().any(reads_ring)
    }

    /// Rows of the longest pass, if they are limited.
    pub(crate) fn pass_rows_max(&self) -> Option<usize> {
        self.pass_rows_max
    }

    fn recurrent(&self) -> impl Iterator<Item = &RecurrentLayer> {
        self.layers.iter().filter_map(|layer| match layer {
            LayerState::Kv(_) | LayerState::Ring(..) | LayerState::Shared(_) => None,
            LayerState::Recurrent(layer) => Some(&**layer),
        })
    }

    fn recurrent_mut(&mut self) -> impl Iterator<Item = &mut RecurrentLayer> {
        self.layers.iter_mut().filter_map(|layer| match layer {
            LayerState::Kv(_) | LayerState::Ring(..) | LayerState::Shared(_) => None,
            LayerState::Recurrent(layer) => Some(&mut **layer),
        })
    }

    fn kv(&self) -> impl Iterator<Item = &KvLayer> {
        self.layers.iter().filter_map(|layer| match layer {
            LayerState::Kv(layer) | LayerState::Ring(layer, _) => Some(&**layer),
            LayerState::Shared(_) | LayerState::Recurrent(_) => None,
        })
    }

    fn kv_mut(&mut self) -> impl Iterator<Item = &mut KvLayer> {
        self.layers.iter_mut().filter_map(|layer| match layer {
            LayerState::Kv(layer) | LayerState::Ring(layer, _) => Some(&mut **layer),
            LayerState::Shared(_) | LayerState::Recurrent(_) => None,
        })
    }

    /// Keys and values of a layer, to be read and written by the forward pass; of a layer that shares those of an earlier
    /// layer, to be read only.
    pub(crate) fn layer_mut(&mut self, layer_idx: usize) -> &mut KvLayer {
        let layer_idx = match self.layers[layer_idx] {
            LayerState::Shared(source_idx) => source_idx,
            LayerState::Kv(_) | LayerState::Ring(..) | LayerState::Recurrent(_) => layer_idx,
        };
        match &mut self.layers[layer_idx] {
            LayerState::Kv(layer) | LayerState::Ring(layer, _) => layer,
            LayerState::Shared(_) => panic!("layer {layer_idx} has no keys and values of its own"),
            LayerState::Recurrent(_) => panic!("layer {layer_idx} is recurrent"),
        }
    }

    /// The state of a recurrent layer, to be read and written by the forward pass.
    pub(crate) fn recurrent_layer_mut(&mut self, layer_idx: usize) -> &mut RecurrentLayer {
        match &mut self.layers[layer_idx] {
            LayerState::Recurrent(layer) => layer,
            LayerState::Kv(_) | LayerState::Ring(..) | LayerState::Shared(_) => {
                panic!("layer {layer_idx} has keys and values")
            }
        }
    }

    /// Notes that a pass writes `n_rows` rows behind the committed prefix.
    pub(crate) fn note_written(&mut self, n_rows: usize) {
        self.written_end = self.written_end.max(self.len + n_rows);
    }

    /// Begins a pass of recurrent layers over the rows of a batch behind the committed prefix.
    ///
    /// # Errors
    /// [`RecurrentError`]: the batch has more rows than recurrent layers were made for; nothing is changed.
    pub(crate) fn begin(&mut self, rows: &TreeRows) -> Result<(), RecurrentError> {
        self.recurrent_mut().try_for_each(|layer| layer.begin(rows))
    }

    /// Remembers the state of recurrent layers at the committed length, so that [`truncate`](Self::truncate) to it is
    /// exact, and that it can be [written](Self::write_recurrent_state) later.
    pub(crate) fn checkpoint(&mut self, compute: Compute<'_>, purpose: Purpose) {
        self.recurrent_mut().for_each(|layer| layer.checkpoint(compute, purpose));
    }

    /// Takes `len` tokens for committed, whatever the layers hold: for measurements.
    pub(crate) fn assume_len(&mut self, len: usize) {
        assert!(len <= self.n_slots, "{len} of {} slots", self.n_slots);
        self.recurrent_mut().for_each(|layer| layer.assume_len(len));
        (self.len, self.written_end) = (len, len);
    }

    /// Writes `value` to all elements of every slot. For measurements: memory that was never written is one shared page
    /// of zeros, which is read faster.
    pub(crate) fn fill(&mut self, kernels: Kernels, value: f32) {
        let is_own = |&layer_idx: &usize| !matches!(self.layers[layer_idx], LayerState::Shared(_));
        let own: Vec<usize> = (0..self.layers.len()).filter(is_own).collect();
        self.fill_layers(&own, kernels, value);
    }

    /// As `fill`, of what these layers read.
    pub(crate) fn fill_layers(&mut self, layers: &[usize], kernels: Kernels, value: f32) {
        for &layer_idx in layers {
            let source_idx = match self.layers[layer_idx] {
                LayerState::Shared(source_idx) => source_idx,
                _ => layer_idx,
            };
            let (LayerState::Kv(layer) | LayerState::Ring(layer, _)) = &mut self.layers[source_idx] else {
                continue;
            };
            let row = vec![value; layer.n_kv_heads() * layer.head_dim()];
            (0..layer.n_slots()).for_each(|slot| layer.write(kernels, slot, &row, &row));
        }
    }

    /// Commits the rows `path` of the last batch and closes the gaps between them. All other rows are rolled
    /// back.
    ///
    /// `path` gives row indices of that batch, strictly rising, the root first. The path `0, 1, …` moves
    /// nothing.
    ///
    /// # Panics
    /// If `path` does not rise or exceeds the slots; with recurrent layers, if it is no path from the root, or a part of a
    /// chain that is committed as a whole.
    pub fn commit(&mut self, path: impl IntoIterator<Item = usize, IntoIter: Clone>) {
        let (base, path) = (self.len, path.into_iter());
        for (depth, row) in path.clone().enumerate() {
            // The path rises, so no slot is overwritten before it is copied.
            assert!(
                row >= depth && base + row < self.n_slots,
                "row {row} at depth {depth} after {base} slots"
            );
            if row != depth {
                for layer in self.kv_mut() {
                    layer.copy_slot(base + row, base + depth);
                }
            }
            self.len = base + depth + 1;
        }
        self.recurrent_mut().for_each(|layer| layer.commit(path.clone()));
    }

    /// Commits every row of a chain.
    pub fn commit_all(&mut self, chain: &Batch) {
        let end = self.len + chain.len();
        assert!(end <= self.n_slots, "{} + {} rows exceed {} slots", self.len, chain.len(), self.n_slots);
        self.recurrent_mut().for_each(RecurrentLayer::commit_all);
        self.len = end;
    }

    /// Copies the committed prefix of a cache of the same model.
    ///
    /// # Panics
    /// If it does not fit, or the rings of the caches have different lengths.
    pub fn copy_from(&mut self, other: &Self) {
        for (layer, from) in self.layers.iter_mut().zip(&other.layers) {
            match (layer, from) {
                (LayerState::Kv(layer), LayerState::Kv(from))
                | (LayerState::Ring(layer, _), LayerState::Ring(from, _)) => {
                    layer.copy_prefix(from, other.len);
                }
                (LayerState::Recurrent(layer), LayerState::Recurrent(from)) => layer.copy_from(from),
                (LayerState::Shared(_), LayerState::Shared(_)) => {}
                _ => panic!("caches of different models or sizes"),
            }
        }
        (self.len, self.written_end) = (other.len, other.written_end);
    }

    /// Copies the committed tokens of `other` from position `len()` to `end` and commits them; `other` is a cache of the same element
    /// type whose first layers are the layers of this one.
    ///
    /// # Panics
    /// If `other` has fewer tokens or [is bounded](Self::is_bounded), a layer is recurrent, or the tokens do not fit.
    pub(crate) fn extend_from(&mut self, other: &Self, end: usize) {
        assert!(end <= other.len && end <= self.n_slots, "{end} of {} tokens", other.len);
        let start = self.len;
        for (layer, from) in self.layers.iter_mut().zip(&other.layers) {
            match (layer, from) {
                // Whole panels are copied faster than single slots.
                (LayerState::Kv(layer), LayerState::Kv(from)) if end > start + COPIED_SLOTS_MAX => {
                    layer.copy_prefix(from, end);
                }
                (LayerState::Kv(layer), LayerState::Kv(from)) => {
                    (start..end).for_each(|slot| layer.copy_slot_of(from, slot, slot));
                }
                (LayerState::Shared(_), LayerState::Shared(_)) => {}
                _ => panic!("caches of other layers"),
            }
        }
        (self.len, self.written_end) = (end, self.written_end.max(end));
    }

    /// Copies slot `from` of `other`, whose layers are the first ones of this cache, over the free slot `to`. Later layers keep theirs.
    ///
    /// # Panics
    /// If `to` is committed, there is no such slot, or a layer is recurrent or of another shape.
    pub(crate) fn copy_slot_of(&mut self, other: &Self, from: usize, to: usize) {
        assert!(to >= self.len, "slot {to} of {} committed tokens", self.len);
        for (layer, from_layer) in self.layers.iter_mut().zip(&other.layers) {
            match (layer, from_layer) {
                (LayerState::Kv(layer) | LayerState::Ring(layer, _), LayerState::Kv(from_layer)) => {
                    layer.copy_slot_of(from_layer, from, to);
                }
                (LayerState::Shared(_), LayerState::Shared(_)) => {}
                _ => panic!("caches of other layers"),
            }
        }
    }

    /// Bytes of the [state](Self::write_state) of `n` slots.
    pub fn state_bytes(&self, n: usize) -> u64 {
        self.kv().fold(0, |bytes, layer| layer.state_bytes(n).saturating_add(bytes))
    }

    /// Appends the keys and values of committed tokens, layer by layer, to `out`.
    ///
    /// # Panics
    /// If the range exceeds the committed tokens, or the cache [is bounded](Self::is_bounded).
    pub fn write_state(&self, range: Range<usize>, out: &mut Vec<u8>) {
        assert!(range.end <= self.len, "{range:?} of {} tokens", self.len);
        self.kv().for_each(|layer| layer.write_state(range.clone(), out));
    }

    /// Takes keys and values for the free slots `slots` from `state`, the state of `n` tokens from position `first` on. They are
    /// not committed: a pass overwrites them, and [`commit_state`](Self::commit_state) keeps them.
    ///
    /// # Panics
    /// If the state does not contain these tokens, its length is wrong, the slots are committed or do not exist, or the cache
    /// [is bounded](Self::is_bounded).
    pub(crate) fn read_state(&mut self, slots: Range<usize>, first: usize, n: usize, mut state: &[u8]) {
        assert!(slots.start >= self.len, "{slots:?} after {} tokens", self.len);
        for layer in self.kv_mut() {
            let (of_layer, rest) = state.split_at(layer.state_bytes(n) as usize);
            layer.read_state(slots.clone(), first, n, of_layer);
            state = rest;
        }
        assert!(state.is_empty(), "{} more bytes of state", state.len());
    }

    /// Commits the tokens before `end`, whose keys and values were [read](Self::read_state), with the state of recurrent
    /// layers from `recurrent`.
    ///
    /// # Panics
    /// If the number of bytes is wrong, or `end` exceeds the slots.
    pub(crate) fn commit_state(&mut self, end: usize, mut recurrent: &[u8]) {
        assert!(self.len <= end && end <= self.n_slots, "{end} of {} slots", self.n_slots);
        for layer in self.recurrent_mut() {
            let (of_layer, rest) = recurrent.split_at(layer.state_bytes() as usize);
            layer.read_state(end, of_layer);
            recurrent = rest;
        }
        assert!(recurrent.is_empty(), "{} more bytes of state", recurrent.len());
        self.len = end;
    }

    /// Bytes of the [state of recurrent layers](Self::write_recurrent_state), at any position; 0 without such layers.
    pub(crate) fn recurrent_state_bytes(&self) -> u64 {
        self.recurrent().fold(0, |bytes, layer| layer.state_bytes().saturating_add(bytes))
    }

    /// Positions whose recurrent state is known, in rising order: those that were asked for, and the committed length.
    /// `None` without recurrent layers.
    pub(crate) fn state_ends(&self) -> Option<Vec<usize>> {
        // All recurrent layers remember the same positions.
        self.recurrent().next().map(RecurrentLayer::state_ends)
    }

    /// Appends the state of the recurrent layers before position `end`, layer by layer, to `out`.
    ///
    /// # Errors
    /// [`AllocError`]: a copy of a state could not be allocated; a part may have been appended.
    ///
    /// # Panics
    /// If `end` is none of the [positions](Self::state_ends).
    pub(crate) fn write_recurrent_state(
        &self,
        compute: Compute<'_>,
        end: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), AllocError> {
        self.recurrent().try_for_each(|layer| layer.write_state(compute, end, out))
    }

    /// Rolls back to the first `len` tokens. Recurrent layers go back to the newest state that they remember before
    /// that, and if a ring has lost a slot of the window there, nothing is left; [`len`](Self::len) then says how many
    /// tokens are left.
    pub fn truncate(&mut self, len: usize) {
        let mut left = self.truncate_recurrent(len.min(self.len));
        if !self.holds_windows(left) {
            left = self.truncate_recurrent(0);
        }
        self.len = left;
        if left == 0 {
            self.written_end = 0;
        }
    }

    /// Rolls recurrent layers back to `len` tokens or fewer, and returns their number.
    fn truncate_recurrent(&mut self, mut len: usize) -> usize {
        loop {
            let left = self.recurrent_mut().map(|layer| layer.truncate(len)).min().unwrap_or(len);
            // All recurrent layers remember the same positions, unless a sweep failed in the middle of the layers.
            if left == len || self.recurrent().all(|layer| layer.len() == left) {
                return left;
            }
            len = left;
        }
    }

    /// Whether all rings hold the slots that a row at position `len` sees.
    fn holds_windows(&self, len: usize) -> bool {
        self.layers.iter().all(|layer| match layer {
            LayerState::Ring(layer, window) => {
                // The row itself is the last position of its window.
                let first = (len + 1).saturating_sub(*window);
                first == len || first + layer.n_slots() >= self.written_end
            }
            LayerState::Kv(_) | LayerState::Shared(_) | LayerState::Recurrent(_) => true,
        })
    }
}

/// The longest window that reads the keys and values of a layer; `None` if it or a layer that shares them sees all positions.
fn longest_window(config: &ModelConfig, layer_idx: usize) -> Option<usize> {
    let own = config.attention(layer_idx)?.window;
    let readers = (layer_idx + 1..config.n_layers()).filter_map(|reader| config.attention(reader));
    let mut readers = readers.filter(|reader| reader.kv_layer() == Some(layer_idx));
    readers.try_fold(own?, |longest, reader| Some(longest.max(reader.window?)))
}

/// The state of a recurrent mixer; `None` for attention.
fn recurrent_shape(mixer: &Mixer) -> Option<RecurrentShape> {
    match mixer {
        Mixer::Attention(_) => None,
        Mixer::ShortConv(conv) => {
            Some(RecurrentShape { conv_dim: conv.conv_dim, conv_len: conv.conv_len, states: None })
        }
        Mixer::DeltaNet(delta) => Some(RecurrentShape {
            conv_dim: delta.conv_dim(),
            conv_len: delta.conv_len,
            states: Some(StateShape {
                rule: StateRule::Delta,
                n_heads: delta.n_value_heads,
                n_key_heads: delta.n_key_heads,
                sharing: if delta.strided { KeySharing::Strided } else { KeySharing::Adjacent },
                key_dim: delta.key_dim,
                value_dim: delta.value_dim,
            }),
        }),
        Mixer::Mamba2(mamba) => Some(RecurrentShape {
            conv_dim: mamba.conv_dim(),
            conv_len: mamba.conv_len,
            states: Some(StateShape {
                rule: StateRule::Ssd,
                n_heads: mamba.n_heads,
                n_key_heads: mamba.n_groups,
                sharing: KeySharing::Adjacent,
                key_dim: mamba.state_dim,
                value_dim: mamba.head_dim,
            }),
        }),
    }
}
