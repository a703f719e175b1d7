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
//! behind any prefix. Every step overwrites the slots behind the prefix. The cache does not wrap around: layers with a
//! window keep all slots and read those of the window.

use std::ops::Range;

use thiserror::Error;

use crate::kernels::{AllocError, Kernels, KeySharing, KvLayer, KvType, StateRule, StateShape};
use crate::model::batch::Batch;
use crate::model::config::{Attention, KvSource, LayerPlan, Mixer, ModelConfig};
use crate::model::state::{
    CheckpointPolicy, Purpose, RecurrentError, RecurrentLayer, RecurrentShape, TreeRows,
};
use crate::model::transformer::Compute;

/// The state of every layer: keys and values, `[n_kv_heads, n_slots, head_dim]`, or a [`RecurrentLayer`].
///
/// # Invariants
/// - The slots `0..len()` hold the committed prefix in order of position.
/// - The slots after it are scratch memory for one batch: a forward pass writes them, and [`KvCache::commit`]
///   keeps some of them.
pub struct KvCache {
    layers: Vec<LayerState>,
    len: usize,
    n_slots: usize,
    context_len: usize,
    kv_type: KvType,
}

/// The state of one layer.
enum LayerState {
    Kv(Box<KvLayer>),
    /// The keys and values of this earlier layer.
    Shared(usize),
    Recurrent(Box<RecurrentLayer>),
}

/// Rows of a verification batch that a cache is made for if nothing else is said.
const ROWS_DEFAULT: usize = 64;

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

impl KvCache {
    /// A cache of `n_slots` slots, all free.
    ///
    /// # Errors
    /// [`KvCacheError::TooLarge`] if the allocation fails, [`KvCacheError::HeadDim`] if the type cannot hold
    /// the model's heads; nothing stays allocated.
    pub fn new(config: &ModelConfig, kv_type: KvType, n_slots: usize) -> Result<Self, KvCacheError> {
        Self::for_rows(config, kv_type, n_slots, ROWS_DEFAULT)
    }

    /// As [`new`](Self::new), for batches of up to `n_rows_max` rows of which a path is committed.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn for_rows(
        config: &ModelConfig,
        kv_type: KvType,
        n_slots: usize,
        n_rows_max: usize,
    ) -> Result<Self, KvCacheError> {
        let too_large =
            |_| KvCacheError::TooLarge { n_slots, bytes: Self::bytes(config, kv_type, n_slots, n_rows_max) };
        let mut layers = Vec::with_capacity(config.layers.len());
        for layer in &config.layers {
            layers.push(match &layer.mixer {
                Mixer::Attention(Attention { kv: KvSource::Layer(source_idx), .. }) => {
                    LayerState::Shared(*source_idx)
                }
                Mixer::Attention(attention) => {
                    let Attention { n_kv_heads, head_dim, .. } = *attention;
                    if !kv_type.holds(head_dim) {
                        return Err(KvCacheError::HeadDim { kv_type, head_dim });
                    }
                    let layer = KvLayer::new(kv_type, n_kv_heads, n_slots, head_dim);
                    LayerState::Kv(Box::new(layer.map_err(too_large)?))
                }
                mixer => {
                    let shape = recurrent_shape(mixer).expect("every other mixer is recurrent");
                    let state = RecurrentLayer::new(shape, n_rows_max.max(1), CheckpointPolicy::default());
                    LayerState::Recurrent(Box::new(state.map_err(too_large)?))
                }
            });
        }
        Ok(Self { layers, len: 0, n_slots, context_len: n_slots, kv_type })
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

    /// Bytes that one slot takes over all layers.
    pub fn bytes_per_slot(config: &ModelConfig, kv_type: KvType) -> u64 {
        let bytes = |layer: &LayerPlan| match &layer.mixer {
            Mixer::Attention(attention) if attention.kv_layer().is_none() => {
                kv_type.slot_bytes(attention.head_dim).saturating_mul(attention.n_kv_heads as u64)
            }
            _ => 0,
        };
        config.layers.iter().map(bytes).fold(0, u64::saturating_add)
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
    pub fn bytes(config: &ModelConfig, kv_type: KvType, n_slots: usize, n_rows_max: usize) -> u64 {
        Self::bytes_per_slot(config, kv_type)
            .saturating_mul(n_slots as u64)
            .saturating_add(Self::recurrent_bytes(config, n_rows_max))
    }

    /// Committed tokens in the cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is committed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Slots, committed and free.
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
            LayerState::Kv(layer) => layer.size_bytes(),
            LayerState::Shared(_) => 0,
            LayerState::Recurrent(layer) => layer.memory_usage(),
        };
        self.layers.iter().map(bytes).sum()
    }

    /// Whether a layer is recurrent.
    pub fn is_recurrent(&self) -> bool {
        self.recurrent().next().is_some()
    }

    fn recurrent(&self) -> impl Iterator<Item = &RecurrentLayer> {
        self.layers.iter().filter_map(|layer| match layer {
            LayerState::Kv(_) | LayerState::Shared(_) => None,
            LayerState::Recurrent(layer) => Some(&**layer),
        })
    }

    fn recurrent_mut(&mut self) -> impl Iterator<Item = &mut RecurrentLayer> {
        self.layers.iter_mut().filter_map(|layer| match layer {
            LayerState::Kv(_) | LayerState::Shared(_) => None,
            LayerState::Recurrent(layer) => Some(&mut **layer),
        })
    }

    fn kv(&self) -> impl Iterator<Item = &KvLayer> {
        self.layers.iter().filter_map(|layer| match layer {
            LayerState::Kv(layer) => Some(&**layer),
            LayerState::Shared(_) | LayerState::Recurrent(_) => None,
        })
    }

    fn kv_mut(&mut self) -> impl Iterator<Item = &mut KvLayer> {
        self.layers.iter_mut().filter_map(|layer| match layer {
            LayerState::Kv(layer) => Some(&mut **layer),
            LayerState::Shared(_) | LayerState::Recurrent(_) => None,
        })
    }

    /// Keys and values of a layer, to be read and written by the forward pass; of a layer that shares those of an earlier
    /// layer, to be read only.
    pub(crate) fn layer_mut(&mut self, layer_idx: usize) -> &mut KvLayer {
        let layer_idx = match self.layers[layer_idx] {
            LayerState::Shared(source_idx) => source_idx,
            LayerState::Kv(_) | LayerState::Recurrent(_) => layer_idx,
        };
        match &mut self.layers[layer_idx] {
            LayerState::Kv(layer) => layer,
            LayerState::Shared(_) => panic!("layer {layer_idx} has no keys and values of its own"),
            LayerState::Recurrent(_) => panic!("layer {layer_idx} is recurrent"),
        }
    }

    /// The state of a recurrent layer, to be read and written by the forward pass.
    pub(crate) fn recurrent_layer_mut(&mut self, layer_idx: usize) -> &mut RecurrentLayer {
        match &mut self.layers[layer_idx] {
            LayerState::Recurrent(layer) => layer,
            LayerState::Kv(_) | LayerState::Shared(_) => panic!("layer {layer_idx} has keys and values"),
        }
    }

    /// Begins a pass over the rows of a batch behind the committed prefix.
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
        self.len = len;
    }

    /// Writes `value` to all elements of every slot. For measurements: memory that was never written is one shared page
    /// of zeros, which is read faster.
    pub(crate) fn fill(&mut self, kernels: Kernels, value: f32) {
        self.fill_layers(usize::MAX, kernels, value);
    }

    /// As `fill`, of the first layers only.
    pub(crate) fn fill_layers(&mut self, n_layers: usize, kernels: Kernels, value: f32) {
        let n_slots = self.n_slots;
        for layer in self.layers.iter_mut().take(n_layers) {
            let LayerState::Kv(layer) = layer else { continue };
            let row = vec![value; layer.n_kv_heads() * layer.head_dim()];
            (0..n_slots).for_each(|slot| layer.write(kernels, slot, &row, &row));
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
    /// If it does not fit.
    pub fn copy_from(&mut self, other: &Self) {
        for (layer, from) in self.layers.iter_mut().zip(&other.layers) {
            match (layer, from) {
                (LayerState::Kv(layer), LayerState::Kv(from)) => layer.copy_prefix(from, other.len),
                (LayerState::Recurrent(layer), LayerState::Recurrent(from)) => layer.copy_from(from),
                (LayerState::Shared(_), LayerState::Shared(_)) => {}
                _ => panic!("caches of different models"),
            }
        }
        self.len = other.len;
    }

    /// Bytes of the [state](Self::write_state) of `n` slots.
    pub fn state_bytes(&self, n: usize) -> u64 {
        self.kv().fold(0, |bytes, layer| layer.state_bytes(n).saturating_add(bytes))
    }

    /// Appends the keys and values of committed tokens, layer by layer, to `out`.
    ///
    /// # Panics
    /// If the range exceeds the committed tokens.
    pub fn write_state(&self, range: Range<usize>, out: &mut Vec<u8>) {
        assert!(range.end <= self.len, "{range:?} of {} tokens", self.len);
        self.kv().for_each(|layer| layer.write_state(range.clone(), out));
    }

    /// Takes keys and values for the free slots `slots` from `state`, the state of `n` tokens from position `first` on. They are
    /// not committed: a pass overwrites them, and [`commit_state`](Self::commit_state) keeps them.
    ///
    /// # Panics
    /// If the state does not contain these tokens, its length is wrong, or the slots are committed or do not exist.
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
    /// that; [`len`](Self::len) then says how many tokens are left.
    pub fn truncate(&mut self, len: usize) {
        let len = len.min(self.len);
        // All recurrent layers remember the same positions.
        self.len = self.recurrent_mut().map(|layer| layer.truncate(len)).min().unwrap_or(len);
    }
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
