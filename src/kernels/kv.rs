//! Keys and values of one layer.

use super::Kernels;
use super::aligned::{AlignedBuf, AllocError};
use super::simd::{LANES, Simd, Work};

/// Element type of a KV cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum KvType {
    /// Half precision, rounded to nearest: half the memory and half the reading.
    F16,
    /// Single precision.
    F32,
}

impl KvType {
    /// Bytes of an element.
    pub fn size_bytes(self) -> usize {
        match self {
            KvType::F16 => 2,
            KvType::F32 => 4,
        }
    }
}

/// Keys and values of one layer: `[n_kv_heads, n_slots, head_stride]` each, a head's slots contiguous.
///
/// `head_stride` is `head_dim` rounded up to 16, the rest zeros.
pub struct KvLayer {
    ty: KvType,
    n_kv_heads: usize,
    n_slots: usize,
    head_dim: usize,
    head_stride: usize,
    keys: AlignedBuf,
    values: AlignedBuf,
}

impl KvLayer {
    /// A layer of zeros.
    ///
    /// # Errors
    /// [`AllocError`]: there is no memory for it.
    ///
    /// # Panics
    /// If a dimension other than `n_slots` is zero.
    pub fn new(ty: KvType, n_kv_heads: usize, n_slots: usize, head_dim: usize) -> Result<Self, AllocError> {
        assert!(n_kv_heads > 0 && head_dim > 0, "{n_kv_heads} heads of {head_dim}");
        let too_large = AllocError { bytes: usize::MAX };
        let head_stride = head_dim.checked_next_multiple_of(LANES).ok_or(too_large.clone())?;
        let n_lines = n_kv_heads
            .checked_mul(n_slots)
            .and_then(|n| n.checked_mul(head_stride))
            .and_then(|n| n.checked_mul(ty.size_bytes()))
            .ok_or(too_large)?
            .div_ceil(64);
        let (keys, values) = (AlignedBuf::zeroed(n_lines)?, AlignedBuf::zeroed(n_lines)?);
        Ok(KvLayer { ty, n_kv_heads, n_slots, head_dim, head_stride, keys, values })
    }

    /// Element type.
    pub fn kv_type(&self) -> KvType {
        self.ty
    }

    /// Slots.
    pub fn n_slots(&self) -> usize {
        self.n_slots
    }

    /// Memory held.
    pub fn size_bytes(&self) -> usize {
        self.keys.size_bytes() + self.values.size_bytes()
    }

    /// Writes one slot; `key` and `value` are `[n_kv_heads, head_dim]`.
    ///
    /// # Panics
    /// If there is no such slot, or a length does not fit.
    pub fn write(&mut self, k: Kernels, slot: usize, key: &[f32], value: &[f32]) {
        assert!(slot < self.n_slots, "slot {slot} of {}", self.n_slots);
        assert_eq!(key.len(), self.n_kv_heads * self.head_dim);
        assert_eq!(value.len(), self.n_kv_heads * self.head_dim);
        for head in 0..self.n_kv_heads {
            let start = self.offset(head, slot);
            let from = head * self.head_dim..(head + 1) * self.head_dim;
            for (buf, x) in [(&mut self.keys, &key[from.clone()]), (&mut self.values, &value[from])] {
                match self.ty {
                    KvType::F32 => buf.cast_mut::<f32>()[start..][..self.head_dim].copy_from_slice(x),
                    KvType::F16 => {
                        let out = &mut buf.cast_mut::<u16>()[start..][..self.head_stride];
                        k.run(ToHalf { x, out: out.as_chunks_mut().0 });
                    }
                }
            }
        }
    }

    /// Copies slot `from` over slot `to`: closes the gap that rejected slots leave.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        assert!(from < self.n_slots && to < self.n_slots, "slots {from}, {to} of {}", self.n_slots);
        for head in 0..self.n_kv_heads {
            let (from, to) = (self.offset(head, from), self.offset(head, to));
            let range = from..from + self.head_stride;
            for buf in [&mut self.keys, &mut self.values] {
                match self.ty {
                    KvType::F32 => buf.cast_mut::<f32>().copy_within(range.clone(), to),
                    KvType::F16 => buf.cast_mut::<u16>().copy_within(range.clone(), to),
                }
            }
        }
    }

    /// Copies the first `n_slots` slots of a layer of the same shape, but for its number of slots: a fork, or a larger cache.
    ///
    /// # Panics
    /// If the shapes differ, or either layer has fewer slots.
    pub fn copy_prefix(&mut self, from: &KvLayer, n_slots: usize) {
        assert!(n_slots <= self.n_slots && n_slots <= from.n_slots, "{n_slots} slots");
        assert_eq!((self.ty, self.n_kv_heads, self.head_dim), (from.ty, from.n_kv_heads, from.head_dim));
        let len = n_slots * self.head_stride;
        for head in 0..self.n_kv_heads {
            let (to, start) = (self.offset(head, 0), from.offset(head, 0));
            for (to_buf, from_buf) in [(&mut self.keys, &from.keys), (&mut self.values, &from.values)] {
                match self.ty {
                    KvType::F32 => {
                        to_buf.cast_mut::<f32>()[to..][..len]
                            .copy_from_slice(&from_buf.cast()[start..][..len]);
                    }
                    KvType::F16 => {
                        to_buf.cast_mut::<u16>()[to..][..len]
                            .copy_from_slice(&from_buf.cast()[start..][..len]);
                    }
                }
            }
        }
    }

    pub(super) fn n_kv_heads(&self) -> usize {
        self.n_kv_heads
    }

    pub(super) fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// 16-element chunks of each slot's head.
    pub(super) fn head_chunks(&self) -> usize {
        self.head_stride / LANES
    }

    /// A head's keys and values, `[n_slots, head_chunks]` each. `E` is the element of [`KvLayer::kv_type`].
    pub(super) fn head<E: KvElement>(&self, head: usize) -> (&[[E; LANES]], &[[E; LANES]]) {
        assert_eq!(E::TYPE, self.ty);
        let range = self.offset(head, 0)..self.offset(head + 1, 0);
        (self.keys.cast::<E>()[range.clone()].as_chunks().0, self.values.cast::<E>()[range].as_chunks().0)
    }

    fn offset(&self, head: usize, slot: usize) -> usize {
        (head * self.n_slots + slot) * self.head_stride
    }
}

/// An element of a KV cache, as the attention kernel loads it.
pub(super) trait KvElement: super::aligned::Plain + Send + Sync {
    const TYPE: KvType;
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F;
}

impl KvElement for f32 {
    const TYPE: KvType = KvType::F32;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load(x)
    }
}

impl KvElement for u16 {
    const TYPE: KvType = KvType::F16;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load_f16(x)
    }
}

/// Rounds to f16; what is missing of the last chunk becomes zero.
struct ToHalf<'a> {
    x: &'a [f32],
    out: &'a mut [[u16; LANES]],
}

impl Work for ToHalf<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x, tail) = self.x.as_chunks::<LANES>();
        for i in 0..x.len() {
            s.store_f16(s.load(&x[i]), &mut self.out[i]);
        }
        if !tail.is_empty() {
            s.store_f16(s.load_partial(tail, 0.0), &mut self.out[x.len()]);
        }
    }
}
