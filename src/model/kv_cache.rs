//! The KV cache of one session: keys and values per layer, committed prefix first.
//!
//! ```text
//! slots   0 ……………………… len−1 │ len ……… len+rows−1 │ ……… │ n_slots−1
//!         committed prefix   │ the batch at hand    │ free
//! ```
//!
//! A session sizes it for its context and a verification batch together, so that a batch of any shape fits behind any prefix; the slots
//! behind the prefix are written anew by every step. Nothing wraps around: a sliding window would change the output.

use thiserror::Error;

use crate::kernels::{Kernels, KvLayer, KvType};
use crate::model::batch::Batch;
use crate::model::config::ModelConfig;

/// Keys and values of every layer, `[n_layers]` of `[n_kv_heads, n_slots, head_dim]`.
///
/// # Invariants
/// - the slots `0..len()` hold the committed prefix in order of position;
/// - the slots after it are scratch for one batch: written by a forward pass, then kept by [`KvCache::commit`] or
///   forgotten by the next pass.
pub struct KvCache {
    layers: Vec<KvLayer>,
    len: usize,
    n_slots: usize,
    kv_type: KvType,
}

/// Why a cache could not be made.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvCacheError {
    /// The size does not fit the address space or was refused by the allocator.
    #[error(
        "a KV cache of {n_slots} slots needs {bytes} bytes, which could not be allocated; ask for a shorter context"
    )]
    TooLarge {
        /// Slots asked for.
        n_slots: usize,
        /// Bytes that they need (saturating).
        bytes: u64,
    },
    /// The element type cannot hold heads of this size.
    #[error(
        "a KV cache in {kv_type} needs heads of a multiple of 32 elements, the model's have {head_dim}; choose f16"
    )]
    HeadDim {
        /// The type asked for.
        kv_type: KvType,
        /// Elements of the model's heads.
        head_dim: usize,
    },
}

impl KvCache {
    /// A cache of `n_slots` slots, all free.
    ///
    /// # Errors
    /// [`KvCacheError::TooLarge`] when the memory cannot be had, [`KvCacheError::HeadDim`] when the type does not fit the
    /// model; nothing stays allocated.
    pub fn new(config: &ModelConfig, kv_type: KvType, n_slots: usize) -> Result<Self, KvCacheError> {
        if !kv_type.holds(config.head_dim) {
            return Err(KvCacheError::HeadDim { kv_type, head_dim: config.head_dim });
        }
        let layers: Result<Vec<KvLayer>, _> = (0..config.n_layers)
            .map(|_| KvLayer::new(kv_type, config.n_kv_heads, n_slots, config.head_dim))
            .collect();
        let layers = layers.map_err(|_| KvCacheError::TooLarge {
            n_slots,
            bytes: Self::bytes_per_slot(config, kv_type).saturating_mul(n_slots as u64),
        })?;
        Ok(Self { layers, len: 0, n_slots, kv_type })
    }

    /// Bytes that one slot takes over all layers.
    pub fn bytes_per_slot(config: &ModelConfig, kv_type: KvType) -> u64 {
        let heads = config.n_layers as u64 * config.n_kv_heads as u64;
        heads.saturating_mul(kv_type.slot_bytes(config.head_dim))
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

    /// Writes `row`, `[n_kv_heads, head_dim]`, as key and value to every slot. To the system, memory that was never written
    /// is one page of zeros that costs nothing to read, so whoever measures writes first.
    pub(crate) fn fill(&mut self, kernels: Kernels, row: &[f32]) {
        for layer in &mut self.layers {
            (0..self.n_slots).for_each(|slot| layer.write(kernels, slot, row, row));
        }
    }

    /// Commits the rows `path` of the last batch, closing the gaps between them; all other rows are rolled back.
    ///
    /// `path` gives row indices of that batch, strictly rising, the root first. With `0, 1, …` nothing moves.
    ///
    /// # Panics
    /// When `path` does not rise or runs past the slots.
    pub fn commit(&mut self, path: impl IntoIterator<Item = usize>) {
        let base = self.len;
        for (depth, row) in path.into_iter().enumerate() {
            // A rising path never writes a slot that it has still to read.
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

    /// Takes over the committed prefix of a cache of the same model.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn copy_from(&mut self, other: &Self) {
        for (layer, from) in self.layers.iter_mut().zip(&other.layers) {
            layer.copy_prefix(from, other.len);
        }
        self.len = other.len;
    }

    /// Forgets everything from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}
