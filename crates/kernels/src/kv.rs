//! Keys and values of one layer.
//!
//! Attention reads keys and values in different ways, so their layouts differ:
//!
//! ```text
//! keys    panels of 16 slots, as a weight matrix with a row per slot (`layout.rs`): a lane is a slot, so scores need
//!         no sum across lanes                                        [n_kv_heads, n_slots / 16, panel_lines]
//! values  a row per slot: a lane is an element of the output         [n_kv_heads, n_slots, head_chunks, 16]
//! scales  of values in 8 or 4 bits, one per 32 elements, f32         [n_kv_heads, n_slots, head_dim / 32]
//! ```
//!
//! Values in 4 bits have chunks of 8 bytes: the low nibbles are the first 8 of 16 elements, the high nibbles the others.
//!
//! A layer holds all slots of a sequence, or the newest ones in a ring of whole blocks of attention. Slot `s` of a ring is at
//! place `s % n_slots`, so that the slots of a block stay together and have the same lanes as in a layer of all slots.

use std::ops::Range;

use half::f16;

use super::Kernels;
use super::activations::quantize_block;
use super::aligned::{AlignedBuf, AllocError, Line};
use super::block::BlockType;
use super::layout::PANEL_ROWS;
use super::quantize::q4_0_codes;
use super::simd::{LANES, Simd, Work};

/// Logical positions of a block. A change of it changes the bits of results.
pub(super) const BLOCK_LEN: usize = 256;

/// Element type of a KV cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum KvType {
    /// Half precision, rounded to nearest: half the memory and bandwidth of F32.
    F16,
    /// Single precision.
    F32,
    /// Blocks of 32 elements in 8 bits with a scale: a little more than half of F16. Heads must be multiples
    /// of 32 elements.
    Q8_0,
    /// Blocks of 32 elements in 4 bits with a scale, rounded as ggml's Q4_0: about 0.3 of F16. Heads must be multiples
    /// of 32 elements.
    Q4_0,
}

impl KvType {
    /// All types.
    pub const ALL: &[KvType] = &[KvType::F16, KvType::F32, KvType::Q8_0, KvType::Q4_0];

    /// The name used in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
            KvType::Q8_0 => "q8_0",
            KvType::Q4_0 => "q4_0",
        }
    }

    /// Whether the type can hold heads of `head_dim` elements.
    pub fn holds(self, head_dim: usize) -> bool {
        !self.has_blocks() || head_dim.is_multiple_of(BLOCK)
    }

    /// Bytes of one slot of one KV head, key and value together.
    pub fn slot_bytes(self, head_dim: usize) -> u64 {
        let key_lines = self.panel_type().panel_lines(head_dim).unwrap_or(usize::MAX) as u64;
        let key = key_lines.saturating_mul(64 / PANEL_ROWS as u64);
        key.saturating_add((self.value_bytes(head_dim) + self.scale_bytes(head_dim)) as u64)
    }

    /// Whether elements are codes in blocks with a scale.
    pub(super) fn has_blocks(self) -> bool {
        matches!(self, KvType::Q8_0 | KvType::Q4_0)
    }

    /// The weight type whose panels hold the keys.
    fn panel_type(self) -> BlockType {
        match self {
            KvType::F16 => BlockType::F16,
            KvType::F32 => BlockType::F32,
            KvType::Q8_0 => BlockType::Q8_0,
            KvType::Q4_0 => BlockType::Q4_0,
        }
    }
}

impl std::fmt::Display for KvType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Elements that share a scale.
const BLOCK: usize = 32;

/// Keys and values of one layer.
pub struct KvLayer {
    ty: KvType,
    n_kv_heads: usize,
    n_slots: usize,
    head_dim: usize,
    /// Whether slots behind the last place go on at the first.
    is_ring: bool,
    key_panel_lines: usize,
    keys: AlignedBuf,
    values: AlignedBuf,
    scales: AlignedBuf,
}

impl KvLayer {
    /// A layer of zeros that holds the slots `0..n_slots`.
    ///
    /// # Errors
    /// [`AllocError`]: the memory could not be allocated.
    ///
    /// # Panics
    /// If a dimension other than `n_slots` is zero, or the type cannot [hold](KvType::holds) such heads.
    pub fn new(ty: KvType, n_kv_heads: usize, n_slots: usize, head_dim: usize) -> Result<Self, AllocError> {
        assert!(n_kv_heads > 0 && head_dim > 0, "{n_kv_heads} heads of {head_dim}");
        assert!(ty.holds(head_dim), "heads of {head_dim} elements in {ty:?}");
        let n_lines = |per_head: Option<usize>| Some(per_head?.checked_mul(n_kv_heads)?.div_ceil(64));
        let key_panel_lines = ty.panel_type().panel_lines(head_dim);
        let panel_bytes = key_panel_lines.and_then(|n| n.checked_mul(64));
        let keys = n_lines(panel_bytes.and_then(|n| n.checked_mul(n_slots.div_ceil(PANEL_ROWS))));
        // A panel has at least the bytes of sixteen values.
        let values = n_lines(panel_bytes.and_then(|_| ty.value_bytes(head_dim).checked_mul(n_slots)));
        let scales = n_lines(panel_bytes.and_then(|_| ty.scale_bytes(head_dim).checked_mul(n_slots)));
        let too_large = || AllocError { bytes: usize::MAX };
        Ok(KvLayer {
            ty,
            n_kv_heads,
            n_slots,
            head_dim,
            is_ring: false,
            key_panel_lines: key_panel_lines.ok_or_else(too_large)?,
            keys: AlignedBuf::zeroed(keys.ok_or_else(too_large)?)?,
            values: AlignedBuf::zeroed(values.ok_or_else(too_large)?)?,
            scales: AlignedBuf::zeroed(scales.ok_or_else(too_large)?)?,
        })
    }

    /// Whether the system would allocate this number of bytes at once. Memory is taken when it is written, so a system may
    /// allocate parts whose sum it does not have.
    ///
    /// # Errors
    /// [`AllocError`]: it would not. Nothing stays allocated.
    pub fn check_room(bytes: u64) -> Result<(), AllocError> {
        let too_large = AllocError { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) };
        let n_lines = usize::try_from(bytes.div_ceil(64)).map_err(|_| too_large)?;
        // A compiler may leave out an allocation that nobody looks at.
        std::hint::black_box(AlignedBuf::zeroed(n_lines)?);
        Ok(())
    }

    /// A layer of zeros that holds the newest [`ring_len(n_slots)`](Self::ring_len) slots of a sequence of any length: each slot
    /// that is written overwrites the one that many slots before it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn ring(ty: KvType, n_kv_heads: usize, n_slots: usize, head_dim: usize) -> Result<Self, AllocError> {
        let layer = Self::new(ty, n_kv_heads, Self::ring_len(n_slots), head_dim)?;
        Ok(KvLayer { is_ring: true, ..layer })
    }

    /// Slots of a ring for `n_slots` slots: whole blocks of attention, at least one. Saturates at whole blocks.
    pub fn ring_len(n_slots: usize) -> usize {
        n_slots.div_ceil(BLOCK_LEN).clamp(1, usize::MAX / BLOCK_LEN) * BLOCK_LEN
    }

    /// Whether the layer is a [ring](Self::ring).
    pub fn is_ring(&self) -> bool {
        self.is_ring
    }

    /// Element type.
    pub fn kv_type(&self) -> KvType {
        self.ty
    }

    /// Slots that are held at a time.
    pub fn n_slots(&self) -> usize {
        self.n_slots
    }

    /// Memory held.
    pub fn size_bytes(&self) -> usize {
        self.keys.size_bytes() + self.values.size_bytes() + self.scales.size_bytes()
    }

    /// Writes one slot; `key` and `value` are `[n_kv_heads, head_dim]`.
    ///
    /// # Panics
    /// If there is no such slot, or a length is wrong.
    pub fn write(&mut self, k: Kernels, slot: usize, key: &[f32], value: &[f32]) {
        let slot = self.place(slot);
        assert!(slot < self.n_slots, "slot {slot} of {}", self.n_slots);
        assert_eq!(key.len(), self.n_kv_heads * self.head_dim);
        assert_eq!(value.len(), self.n_kv_heads * self.head_dim);
        k.run(Write { layer: self, slot, key, value });
    }

    /// Copies slot `from` over slot `to`, to close the gap of rejected slots.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        let (from, to) = (self.place(from), self.place(to));
        assert!(from < self.n_slots && to < self.n_slots, "slots {from}, {to} of {}", self.n_slots);
        for head in 0..self.n_kv_heads {
            let (from_line, to_line) = (self.key_line(head, from), self.key_line(head, to));
            for line in 0..self.key_panel_lines {
                let source = self.keys.lines()[from_line + line];
                let target = &mut self.keys.lines_mut()[to_line + line].0;
                self.ty.copy_lane(line, &source.0, from % PANEL_ROWS, target, to % PANEL_ROWS);
            }
            for (buf, width) in [
                (&mut self.values, self.ty.value_bytes(self.head_dim)),
                (&mut self.scales, self.ty.scale_bytes(self.head_dim)),
            ] {
                let start = |slot: usize| (head * self.n_slots + slot) * width;
                buf.cast_mut::<u8>().copy_within(start(from)..start(from) + width, start(to));
            }
        }
    }

    /// Copies slot `from` of a layer of the same shape over slot `to`.
    ///
    /// # Panics
    /// If the shapes differ, or there is no such slot.
    pub fn copy_slot_of(&mut self, other: &KvLayer, from: usize, to: usize) {
        assert_eq!((self.ty, self.n_kv_heads, self.head_dim), (other.ty, other.n_kv_heads, other.head_dim));
        let (from, to) = (other.place(from), self.place(to));
        assert!(from < other.n_slots && to < self.n_slots, "slots {from}, {to} of {}", self.n_slots);
        for head in 0..self.n_kv_heads {
            let (from_line, to_line) = (other.key_line(head, from), self.key_line(head, to));
            for line in 0..self.key_panel_lines {
                let source = &other.keys.lines()[from_line + line].0;
                let target = &mut self.keys.lines_mut()[to_line + line].0;
                self.ty.copy_lane(line, source, from % PANEL_ROWS, target, to % PANEL_ROWS);
            }
            let widths = [self.ty.value_bytes(self.head_dim), self.ty.scale_bytes(self.head_dim)];
            let bufs = [(&mut self.values, &other.values), (&mut self.scales, &other.scales)];
            for ((to_buf, from_buf), width) in bufs.into_iter().zip(widths) {
                let (to, start) = ((head * self.n_slots + to) * width, (head * other.n_slots + from) * width);
                to_buf.cast_mut::<u8>()[to..][..width]
                    .copy_from_slice(&from_buf.cast::<u8>()[start..][..width]);
            }
        }
    }

    /// Copies the first `n_slots` slots of a layer of the same shape. The layers may have different numbers
    /// of slots: a fork, or a larger cache. Of a ring, copies the slots that it still holds.
    ///
    /// # Panics
    /// If the shapes differ, either layer has fewer slots, or one layer is a ring and the other is none of the same length.
    pub fn copy_prefix(&mut self, from: &KvLayer, n_slots: usize) {
        let ring_len = |layer: &KvLayer| layer.is_ring.then_some(layer.n_slots);
        assert_eq!(ring_len(self), ring_len(from), "slots of rings");
        let n_slots = ring_len(self).map_or(n_slots, |ring_len| n_slots.min(ring_len));
        assert!(n_slots <= self.n_slots && n_slots <= from.n_slots, "{n_slots} slots");
        assert_eq!((self.ty, self.n_kv_heads, self.head_dim), (from.ty, from.n_kv_heads, from.head_dim));
        // The last panel may contain slots without committed tokens; they are never read.
        let n_lines = n_slots.div_ceil(PANEL_ROWS) * self.key_panel_lines;
        for head in 0..self.n_kv_heads {
            let (to, start) = (self.key_line(head, 0), from.key_line(head, 0));
            self.keys.lines_mut()[to..to + n_lines]
                .copy_from_slice(&from.keys.lines()[start..start + n_lines]);
            let widths = [self.ty.value_bytes(self.head_dim), self.ty.scale_bytes(self.head_dim)];
            let bufs = [(&mut self.values, &from.values), (&mut self.scales, &from.scales)];
            for ((to_buf, from_buf), width) in bufs.into_iter().zip(widths) {
                let (to, start) = (head * self.n_slots * width, head * from.n_slots * width);
                to_buf.cast_mut::<u8>()[to..][..n_slots * width]
                    .copy_from_slice(&from_buf.cast::<u8>()[start..][..n_slots * width]);
            }
        }
    }

    /// Bytes of the [state](Self::write_state) of `n` slots.
    pub fn state_bytes(&self, n: usize) -> u64 {
        let panels = (n.div_ceil(PANEL_ROWS) as u64).saturating_mul(64 * self.key_panel_lines as u64);
        let rows = self.ty.value_bytes(self.head_dim) + self.ty.scale_bytes(self.head_dim);
        panels.saturating_add((n as u64).saturating_mul(rows as u64)).saturating_mul(self.n_kv_heads as u64)
    }

    /// Appends the keys and values of `slots` to `out`, [`state_bytes`](Self::state_bytes) of them: for each head its
    /// panels of keys, the first lane for the first slot and unused lanes zero, then rows of values, then rows of
    /// scales.
    ///
    /// # Panics
    /// If there are no such slots, or the layer is a ring.
    pub fn write_state(&self, slots: Range<usize>, out: &mut Vec<u8>) {
        assert!(!self.is_ring, "a ring does not hold every slot");
        assert!(slots.start <= slots.end && slots.end <= self.n_slots, "{slots:?} of {}", self.n_slots);
        let panel_bytes = 64 * self.key_panel_lines;
        for head in 0..self.n_kv_heads {
            let keys = Line::bytes_of(self.head_keys(head));
            let (start, mut slot) = (out.len(), slots.start);
            out.resize(start + slots.len().div_ceil(PANEL_ROWS) * panel_bytes, 0);
            while slot < slots.end {
                let at = slot - slots.start;
                let from = &keys[slot / PANEL_ROWS * panel_bytes..][..panel_bytes];
                let to = &mut out[start + at / PANEL_ROWS * panel_bytes..][..panel_bytes];
                if slot.is_multiple_of(PANEL_ROWS)
                    && at.is_multiple_of(PANEL_ROWS)
                    && slot + PANEL_ROWS <= slots.end
                {
                    to.copy_from_slice(from);
                    slot += PANEL_ROWS;
                } else {
                    copy_key(self.ty, from, slot % PANEL_ROWS, to, at % PANEL_ROWS);
                    slot += 1;
                }
            }
            for (buf, width) in [
                (&self.values, self.ty.value_bytes(self.head_dim)),
                (&self.scales, self.ty.scale_bytes(self.head_dim)),
            ] {
                let first = (head * self.n_slots + slots.start) * width;
                out.extend_from_slice(&buf.cast::<u8>()[first..first + slots.len() * width]);
            }
        }
    }

    /// Restores `slots` from the state of `n` slots from `first` on. Slots behind them in the same panel are
    /// overwritten too.
    ///
    /// # Panics
    /// If there are no such slots, the state does not contain them, its length is wrong, or the layer is a ring.
    pub fn read_state(&mut self, slots: Range<usize>, first: usize, n: usize, state: &[u8]) {
        assert!(!self.is_ring, "a ring does not hold every slot");
        assert!(first <= slots.start && slots.end <= self.n_slots, "{slots:?} of {}", self.n_slots);
        assert!(slots.end <= first + n, "{slots:?} from {n} slots at {first}");
        assert_eq!(state.len() as u64, self.state_bytes(n));
        let panel_bytes = 64 * self.key_panel_lines;
        let mut rest = state;
        for head in 0..self.n_kv_heads {
            let keys = take(&mut rest, n.div_ceil(PANEL_ROWS) * panel_bytes);
            let head_line = self.key_line(head, 0);
            let mut slot = slots.start;
            while slot < slots.end {
                let at = slot - first;
                let from = &keys[at / PANEL_ROWS * panel_bytes..][..panel_bytes];
                let line = head_line + slot / PANEL_ROWS * self.key_panel_lines;
                let to = Line::bytes_of_mut(&mut self.keys.lines_mut()[line..line + self.key_panel_lines]);
                if slot.is_multiple_of(PANEL_ROWS) && at.is_multiple_of(PANEL_ROWS) {
                    to.copy_from_slice(from);
                    slot += PANEL_ROWS;
                } else {
                    copy_key(self.ty, from, at % PANEL_ROWS, to, slot % PANEL_ROWS);
                    slot += 1;
                }
            }
            for (buf, width) in [
                (&mut self.values, self.ty.value_bytes(self.head_dim)),
                (&mut self.scales, self.ty.scale_bytes(self.head_dim)),
            ] {
                let from =
                    &take(&mut rest, n * width)[(slots.start - first) * width..][..slots.len() * width];
                let to = (head * self.n_slots + slots.start) * width;
                buf.cast_mut::<u8>()[to..to + from.len()].copy_from_slice(from);
            }
        }
    }

    /// Key and value heads.
    pub fn n_kv_heads(&self) -> usize {
        self.n_kv_heads
    }

    /// Values of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Where a slot is: its place among the `n_slots` that are held. A place behind the last one does not exist.
    #[inline(always)]
    pub(super) fn place(&self, slot: usize) -> usize {
        if self.is_ring { slot % self.n_slots } else { slot }
    }

    /// 16-element chunks of each slot's value.
    pub(super) fn head_chunks(&self) -> usize {
        self.head_dim.div_ceil(LANES)
    }

    /// Lines of a panel of keys.
    pub(super) fn key_panel_lines(&self) -> usize {
        self.key_panel_lines
    }

    /// A head's panels of keys, contiguous.
    pub(super) fn head_keys(&self, head: usize) -> &[Line] {
        &self.keys.lines()[self.key_line(head, 0)..self.key_line(head + 1, 0)]
    }

    /// A head's values, `[n_slots, head_chunks]`. `E` is 16 elements of the layer's type.
    pub(super) fn head_values<E: super::aligned::Plain>(&self, head: usize) -> &[E] {
        let len = self.n_slots * self.head_chunks();
        &self.values.cast::<E>()[head * len..][..len]
    }

    /// A head's scales, `[n_slots, head_dim / 32]`; empty if values have no scales.
    pub(super) fn head_scales(&self, head: usize) -> &[f32] {
        let len = self.n_slots * self.ty.scale_bytes(self.head_dim) / 4;
        &self.scales.cast::<f32>()[head * len..][..len]
    }

    /// The first line of the panel that holds a slot.
    fn key_line(&self, head: usize, slot: usize) -> usize {
        (head * self.n_slots.div_ceil(PANEL_ROWS) + slot / PANEL_ROWS) * self.key_panel_lines
    }
}

impl KvType {
    /// Bytes of a slot's value in one head.
    fn value_bytes(self, head_dim: usize) -> usize {
        let chunk = match self {
            KvType::F16 => 32,
            KvType::F32 => 64,
            KvType::Q8_0 => 16,
            KvType::Q4_0 => 8,
        };
        head_dim.div_ceil(LANES) * chunk
    }

    /// Bytes of a slot's scales in one head.
    fn scale_bytes(self, head_dim: usize) -> usize {
        if self.has_blocks() { head_dim / BLOCK * 4 } else { 0 }
    }

    /// Copies the bytes of lane `from` of line `line` of a key panel to lane `to` of the same line of a panel.
    fn copy_lane(self, line: usize, source: &[u8; 64], from: usize, target: &mut [u8; 64], to: usize) {
        let in_halves = match self {
            KvType::F16 => true,
            KvType::F32 => false,
            // A unit: the codes of two blocks, a line for each bit, and their scales.
            KvType::Q8_0 => line % 17 == 16,
            KvType::Q4_0 => line % 9 == 8,
        };
        // Two halves of 16 lanes each, or four bytes per lane.
        let places =
            |lane: usize| if in_halves { [2 * lane, 32 + 2 * lane] } else { [4 * lane, 4 * lane + 2] };
        for (from, to) in places(from).into_iter().zip(places(to)) {
            target[to..to + 2].copy_from_slice(&source[from..from + 2]);
        }
    }
}

/// Splits `n` bytes off the front.
fn take<'a>(bytes: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(n);
    *bytes = rest;
    taken
}

/// Copies the key of lane `from` of a panel to lane `to` of another.
fn copy_key(ty: KvType, source: &[u8], from: usize, target: &mut [u8], to: usize) {
    for (line, (source, target)) in source.as_chunks().0.iter().zip(target.as_chunks_mut().0).enumerate() {
        ty.copy_lane(line, source, from, target, to);
    }
}

/// 32 elements as codes of 4 bits, the scale NaN if an element is not finite.
fn quantize_key_or_value(x: &[f32; BLOCK]) -> (f32, [u8; BLOCK]) {
    let (scale, codes) = q4_0_codes(x);
    (if x.iter().all(|x| x.is_finite()) { scale } else { f32::NAN }, codes)
}

/// Codes of 4 bits in bytes: those of the first half in the low nibbles, the others in the high ones.
fn nibbles<const N: usize, const BYTES: usize>(codes: &[u8; N]) -> [u8; BYTES] {
    std::array::from_fn(|i| codes[i] | codes[i + BYTES] << 4)
}

/// One slot of every head.
struct Write<'a> {
    layer: &'a mut KvLayer,
    slot: usize,
    key: &'a [f32],
    value: &'a [f32],
}

impl Work for Write<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let KvLayer { ty, head_dim, n_slots, key_panel_lines, .. } = *self.layer;
        let chunks = self.layer.head_chunks();
        for head in 0..self.layer.n_kv_heads {
            let key = &self.key[head * head_dim..][..head_dim];
            let value = &self.value[head * head_dim..][..head_dim];
            let first = self.layer.key_line(head, self.slot);
            let panel = &mut self.layer.keys.lines_mut()[first..first + key_panel_lines];
            let lane = self.slot % PANEL_ROWS;
            let row = (head * n_slots + self.slot) * chunks;
            match ty {
                KvType::F32 => {
                    for (line, x) in panel.iter_mut().zip(key) {
                        line.floats_mut()[lane] = *x;
                    }
                    let values = self.layer.values.cast_mut::<f32>();
                    values[row * LANES..][..head_dim].copy_from_slice(value);
                }
                KvType::F16 => {
                    let mut half = [0; LANES];
                    for (chunk, x) in key.chunks(LANES).enumerate() {
                        s.store_f16(s.load_partial(x, 0.0), &mut half);
                        for (i, bits) in half.iter().enumerate().take(x.len()) {
                            let column = chunk * LANES + i;
                            panel[column / 2].halves_mut()[column % 2][lane] = *bits;
                        }
                    }
                    let values = self.layer.values.cast_mut::<u16>().as_chunks_mut().0;
                    for (x, out) in value.chunks(LANES).zip(&mut values[row..][..chunks]) {
                        s.store_f16(s.load_partial(x, 0.0), out);
                    }
                }
                KvType::Q8_0 => {
                    for (i, x) in key.as_chunks::<BLOCK>().0.iter().enumerate() {
                        let block = quantize_block(s, x);
                        let unit = &mut panel[i / 2 * 17..][..17];
                        unit[16].halves_mut()[i % 2][lane] = f16::from_f32(block.scale).to_bits();
                        for (line, q) in unit[i % 2 * 8..][..8].iter_mut().zip(block.q) {
                            // Codes are unsigned, biased by 128.
                            line.0[4 * lane..][..4]
                                .copy_from_slice(&(q ^ 0x8080_8080_u32 as i32).to_le_bytes());
                        }
                    }
                    let n_scales = head_dim / BLOCK;
                    for (i, x) in value.as_chunks::<BLOCK>().0.iter().enumerate() {
                        let block = quantize_block(s, x);
                        let scale = (head * n_slots + self.slot) * n_scales + i;
                        self.layer.scales.cast_mut::<f32>()[scale] = block.scale;
                        let codes =
                            &mut self.layer.values.cast_mut::<u8>()[row * LANES + i * BLOCK..][..BLOCK];
                        for (out, q) in codes.as_chunks_mut::<4>().0.iter_mut().zip(block.q) {
                            *out = q.to_le_bytes();
                        }
                    }
                }
                KvType::Q4_0 => {
                    for (i, x) in key.as_chunks::<BLOCK>().0.iter().enumerate() {
                        let (scale, codes) = quantize_key_or_value(x);
                        let unit = &mut panel[i / 2 * 9..][..9];
                        unit[8].halves_mut()[i % 2][lane] = f16::from_f32(scale).to_bits();
                        // The low nibbles are columns 0..16, the high ones 16..32.
                        for (line, codes) in unit[i % 2 * 4..][..4]
                            .iter_mut()
                            .zip(nibbles::<32, 16>(&codes).as_chunks::<4>().0)
                        {
                            line.0[4 * lane..][..4].copy_from_slice(codes);
                        }
                    }
                    let n_scales = head_dim / BLOCK;
                    for (i, x) in value.as_chunks::<BLOCK>().0.iter().enumerate() {
                        let (scale, codes) = quantize_key_or_value(x);
                        let at = (head * n_slots + self.slot) * n_scales + i;
                        self.layer.scales.cast_mut::<f32>()[at] = scale;
                        let out = &mut self.layer.values.cast_mut::<[u8; 8]>()[row + 2 * i..][..2];
                        for (out, codes) in out.iter_mut().zip(codes.as_chunks::<LANES>().0) {
                            *out = nibbles(codes);
                        }
                    }
                }
            }
        }
    }
}
