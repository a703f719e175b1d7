//! The KV cache of one session: keys and values per layer, committed prefix first.
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

use crate::kernels::{Kernels, KvLayer, KvType};
use crate::model::batch::Batch;
use crate::model::config::{Attention, LayerPlan, Mixer, ModelConfig};

/// Keys and values of every layer, `[n_layers]` of `[n_kv_heads, n_slots, head_dim]`.
///
/// # Invariants
/// - The slots `0..len()` hold the committed prefix in order of position.
/// - The slots after it are scratch memory for one batch: a forward pass writes them, and [`KvCache::commit`]
///   keeps some of them.
pub struct KvCache {
    layers: Vec<KvLayer>,
    len: usize,
    n_slots: usize,
    context_len: usize,
    kv_type: KvType,
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

impl KvCache {
    /// A cache of `n_slots` slots, all free.
    ///
    /// # Errors
    /// [`KvCacheError::TooLarge`] if the allocation fails, [`KvCacheError::HeadDim`] if the type cannot hold
    /// the model's heads; nothing stays allocated.
    pub fn new(config: &ModelConfig, kv_type: KvType, n_slots: usize) -> Result<Self, KvCacheError> {
        let attentions = || {
            config.layers.iter().filter_map(|layer| match &layer.mixer {
                Mixer::Attention(attention) => Some(attention),
                _ => None,
            })
        };
        if let Some(attention) = attentions().find(|attention| !kv_type.holds(attention.head_dim)) {
            return Err(KvCacheError::HeadDim { kv_type, head_dim: attention.head_dim });
        }
        let layer =
            |attention: &Attention| KvLayer::new(kv_type, attention.n_kv_heads, n_slots, attention.head_dim);
        let layers: Result<Vec<KvLayer>, _> = attentions().map(layer).collect();
        let layers = layers.map_err(|_| KvCacheError::TooLarge {
            n_slots,
            bytes: Self::bytes_per_slot(config, kv_type).saturating_mul(n_slots as u64),
        })?;
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
            Mixer::Attention(attention) => {
                kv_type.slot_bytes(attention.head_dim).saturating_mul(attention.n_kv_heads as u64)
            }
            _ => 0,
        };
        config.layers.iter().map(bytes).fold(0, u64::saturating_add)
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
        self.layers.iter().map(KvLayer::size_bytes).sum()
    }

    /// One layer, to be read and written by the forward pass.
    pub(crate) fn layer_mut(&mut self, layer_idx: usize) -> &mut KvLayer {
        &mut self.layers[layer_idx]
    }

    /// Writes `value` to all elements of every slot. For measurements: memory that was never written is one shared page
    /// of zeros, which is read faster.
    pub(crate) fn fill(&mut self, kernels: Kernels, value: f32) {
        self.fill_layers(usize::MAX, kernels, value);
    }

    /// As `fill`, of the first layers only.
    pub(crate) fn fill_layers(&mut self, n_layers: usize, kernels: Kernels, value: f32) {
        for layer in self.layers.iter_mut().take(n_layers) {
            let row = vec![value; layer.n_kv_heads() * layer.head_dim()];
            (0..self.n_slots).for_each(|slot| layer.write(kernels, slot, &row, &row));
        }
    }

    /// Commits the rows `path` of the last batch and closes the gaps between them. All other rows are rolled
    /// back.
    ///
    /// `path` gives row indices of that batch, strictly rising, the root first. The path `0, 1, …` moves
    /// nothing.
    ///
    /// # Panics
    /// If `path` does not rise or exceeds the slots.
    pub fn commit(&mut self, path: impl IntoIterator<Item = usize>) {
        let base = self.len;
        for (depth, row) in path.into_iter().enumerate() {
            // The path rises, so no slot is overwritten before it is copied.
            assert!(
                row >= depth && base + row < self.n_slots,
                "row {row} at depth {depth} after {base} slots"
            );
            if row != depth {
                for layer in &mut self.layers {
                    layer.copy_slot(base + row, base + depth);
                }
            }
            self.len = base + depth + 1;
        }
    }

    /// Commits every row of a chain.
    pub fn commit_all(&mut self, chain: &Batch) {
        let end = self.len + chain.len();
        assert!(end <= self.n_slots, "{} + {} rows exceed {} slots", self.len, chain.len(), self.n_slots);
        self.len = end;
    }

    /// Copies the committed prefix of a cache of the same model.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn copy_from(&mut self, other: &Self) {
        for (layer, from) in self.layers.iter_mut().zip(&other.layers) {
            layer.copy_prefix(from, other.len);
        }
        self.len = other.len;
    }

    /// Bytes of the [state](Self::write_state) of `n` slots.
    pub fn state_bytes(&self, n: usize) -> u64 {
        self.layers.iter().fold(0, |bytes, layer| layer.state_bytes(n).saturating_add(bytes))
    }

    /// Appends the keys and values of committed tokens, layer by layer, to `out`.
    ///
    /// # Panics
    /// If the range exceeds the committed tokens.
    pub fn write_state(&self, range: Range<usize>, out: &mut Vec<u8>) {
        assert!(range.end <= self.len, "{range:?} of {} tokens", self.len);
        self.layers.iter().for_each(|layer| layer.write_state(range.clone(), out));
    }

    /// Commits the tokens from [`len`](Self::len) to `end` with their keys and values from `state`, the state of `n`
    /// tokens from position `first` on.
    ///
    /// # Panics
    /// If the state does not contain these tokens, its length is wrong, or `end` exceeds the slots.
    pub fn read_state(&mut self, end: usize, first: usize, n: usize, mut state: &[u8]) {
        for layer in &mut self.layers {
            let (of_layer, rest) = state.split_at(layer.state_bytes(n) as usize);
            layer.read_state(self.len..end, first, n, of_layer);
            state = rest;
        }
        assert!(state.is_empty(), "{} more bytes of state", state.len());
        self.len = end;
    }

    /// Rolls back to the first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}
