//! Attention of a batch of rows over one layer's KV cache, under a tree attention mask.
//!
//! A row sees the slots `0..prefix_len` and then the `extra` slots of its ancestors, in the order of their
//! *logical positions*. The arithmetic depends on positions only. A row therefore has the same bits whether
//! its ancestors' keys are in draft slots or have been committed to the prefix. Masked slots do not affect a
//! row's result, because each lane is one slot.
//!
//! ```text
//! score[p] = (fma(q[i], key[p][i], ·) over i in order) · 1/√head_dim            keys in 8 bits: as a Q8_0 matrix row
//! e[p]     = exp(score[p] − max);  sum: 16 lanes by p%16, fixed tree
//! out[i]   = (fma(e[p], value[p][i], ·) over p in order) · (1 / sum)            values in 8 bits: fma(e[p] · scale, code, ·)
//! ```
//!
//! The work is split into tiles of up to `TILE` queries that share a KV head: the query heads of a GQA group,
//! and neighbouring rows. A tile loads each key once. It loads a value once if all of its rows see that
//! value. Scores are computed for whole panels of 16 slots; scores of masked slots are ignored.

mod keys;
mod values;

use std::ops::Range;

use super::Kernels;
use super::activations::Block;
use super::kv::{KvLayer, KvType};
use super::layout::PANEL_ROWS;
use super::math::{exp_shifted_in_place, max_of};
use super::matmul::{F16Columns, F32Columns};
use super::pool::{Pool, SharedMut};
use super::simd::{LANES, Simd, Work};
use keys::{FloatKeys, IntKeys, KeyPanels, score_panels};
use values::{ValueElement, Weighted};

/// The slots that a row sees, by logical position: `0..prefix_len`, then `extra` (its ancestors, then
/// itself).
#[derive(Clone, Copy, Debug)]
pub struct Visible<'a> {
    /// Slots of the committed prefix; in a verification batch, all of them.
    pub prefix_len: usize,
    /// Slots after the prefix, in order of position.
    pub extra: &'a [u32],
}

impl Visible<'_> {
    fn len(&self) -> usize {
        self.prefix_len + self.extra.len()
    }

    /// A range that contains all visible slots.
    fn slots(&self) -> Range<usize> {
        let first = self.extra.iter().min().map_or(0, |&slot| slot as usize);
        let end = self.extra.iter().max().map_or(0, |&slot| slot as usize + 1);
        if self.prefix_len == 0 { first..end } else { 0..end.max(self.prefix_len) }
    }

    #[inline(always)]
    fn slot(&self, position: usize) -> usize {
        if position < self.prefix_len { position } else { self.extra[position - self.prefix_len] as usize }
    }
}

/// The heads of an attention layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; `n_heads` is a multiple.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// Scratch memory of [`attention`]: the scores and rounded queries of one tile per worker. Grows with the context.
#[derive(Default)]
pub struct AttentionScratch {
    scores: Vec<f32>,
    queries: Vec<Block>,
}

impl AttentionScratch {
    /// Empty scratch memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maximum bytes for batches of `n_rows` rows over `n_slots` slots with `n_threads` threads.
    pub(crate) fn bytes(n_threads: usize, n_slots: usize, n_rows: usize, head_dim: usize) -> u64 {
        let scores_len = TILE.saturating_mul(n_slots.next_multiple_of(LANES)).saturating_add(n_rows);
        let blocks_bytes = TILE * head_dim.div_ceil(32) * size_of::<Block>();
        let worker_bytes = scores_len.saturating_mul(size_of::<f32>()).saturating_add(blocks_bytes);
        (worker_bytes as u64).saturating_mul(n_threads as u64)
    }

    /// Memory held.
    pub fn size_bytes(&self) -> usize {
        self.scores.capacity() * size_of::<f32>() + self.queries.capacity() * size_of::<Block>()
    }
}

/// The first `len` elements, of any value. If the buffer is too short, doubles it, but not beyond `len_max`,
/// which is at least `len`. A growing context therefore seldom allocates.
fn reserve<T: Clone + Default>(buf: &mut Vec<T>, len: usize, len_max: usize) -> &mut [T] {
    if buf.len() < len {
        let grown = len.max((2 * buf.len()).min(len_max));
        // The old buffer is freed first, because its contents are not needed.
        *buf = Vec::new();
        buf.reserve_exact(grown);
        buf.resize(grown, T::default());
    }
    &mut buf[..len]
}

/// Maximum queries of a tile. With 2 panels of keys each, they use 16 accumulators: half of AVX-512's vector
/// registers.
const TILE: usize = 8;

/// `out = softmax(q · keyᵀ / √head_dim) · value` over the slots that each row sees (Vaswani et al. 2017, eq. 1).
///
/// # Shapes
/// `q` and `out` are `[n_rows, n_heads, head_dim]`; `visible` has one entry per row. The output of a row that
/// sees no slot is zero.
///
/// # Panics
/// If a shape does not fit the layer, or a row's slot does not exist.
#[allow(clippy::too_many_arguments)]
pub fn attention(
    k: Kernels,
    pool: &Pool,
    shape: AttentionShape,
    q: &[f32],
    kv: &KvLayer,
    visible: &[Visible<'_>],
    scratch: &mut AttentionScratch,
    out: &mut [f32],
) {
    let AttentionShape { n_heads, n_kv_heads, head_dim } = shape;
    assert_eq!(
        (n_kv_heads, head_dim),
        (kv.n_kv_heads(), kv.head_dim()),
        "KV heads and head_dim of the cache"
    );
    assert!(n_heads > 0 && n_heads.is_multiple_of(n_kv_heads), "{n_heads} heads over {n_kv_heads} KV heads");
    assert_eq!(q.len(), visible.len() * n_heads * head_dim);
    assert_eq!(out.len(), q.len());
    let (mut seen, mut slots_max, mut extra_max) = (0, 0, 0);
    for row in visible {
        assert!(row.prefix_len <= kv.n_slots(), "prefix {} of {} slots", row.prefix_len, kv.n_slots());
        for &slot in row.extra {
            assert!((slot as usize) < kv.n_slots(), "slot {slot} of {}", kv.n_slots());
        }
        seen += row.len();
        slots_max = slots_max.max(row.slots().end).max(row.len());
        extra_max = extra_max.max(row.extra.len());
    }
    let group = n_heads / n_kv_heads;
    let n_queries = visible.len() * group;
    // Smaller tiles if there are fewer tiles than threads. Results do not depend on the tile.
    let mut tile_len = TILE;
    while tile_len > 1 && n_kv_heads * n_queries.div_ceil(tile_len) < pool.n_threads() {
        tile_len = tile_len.div_ceil(2);
    }
    let n_tiles = n_queries.div_ceil(tile_len);
    let scores_stride = slots_max.next_multiple_of(LANES);
    let scores_len = TILE * scores_stride + extra_max;
    let scores_len_max = TILE * kv.n_slots().next_multiple_of(LANES) + extra_max;
    let blocks_len = if kv.kv_type() == KvType::Q8_0 { TILE * head_dim / 32 } else { 0 };
    let scores = SharedMut::new(reserve(
        &mut scratch.scores,
        pool.n_threads() * scores_len,
        pool.n_threads() * scores_len_max,
    ));
    let blocks_len_all = pool.n_threads() * blocks_len;
    let blocks = SharedMut::new(reserve(&mut scratch.queries, blocks_len_all, blocks_len_all));
    let out = SharedMut::new(out);
    pool.run_sized(seen * n_heads * head_dim, n_kv_heads * n_tiles, 1, &|worker, items| {
        // SAFETY: each worker has its own part, and the scratch outlives the section.
        let scores = unsafe { scores.slice(worker * scores_len, scores_len) };
        // SAFETY: as above.
        let blocks = unsafe { blocks.slice(worker * blocks_len, blocks_len) };
        let (scores, own) = scores.split_at_mut(TILE * scores_stride);
        let tiles = Tiles {
            shape,
            group,
            tile_len,
            n_tiles,
            q,
            kv,
            visible,
            scores,
            scores_stride,
            own,
            blocks,
            out,
        };
        match kv.kv_type() {
            KvType::F16 => k.run(TilesOf::<FloatKeys<F16Columns>, u16>::new(tiles, items)),
            KvType::F32 => k.run(TilesOf::<FloatKeys<F32Columns>, f32>::new(tiles, items)),
            KvType::Q8_0 => k.run(TilesOf::<IntKeys, u8>::new(tiles, items)),
        }
    });
}

/// One worker's view of a call.
struct Tiles<'a> {
    shape: AttentionShape,
    /// Query heads per KV head.
    group: usize,
    /// Queries per tile.
    tile_len: usize,
    /// Tiles per KV head.
    n_tiles: usize,
    q: &'a [f32],
    kv: &'a KvLayer,
    visible: &'a [Visible<'a>],
    /// `[TILE, scores_stride]`
    scores: &'a mut [f32],
    scores_stride: usize,
    /// The scores of one row's extra slots.
    own: &'a mut [f32],
    /// `[TILE, head_dim / 32]` if keys are in 8 bits.
    blocks: &'a mut [Block],
    out: SharedMut<f32>,
}

struct TilesOf<'a, K, V> {
    tiles: Tiles<'a>,
    items: Range<usize>,
    types: std::marker::PhantomData<(K, V)>,
}

impl<'a, K, V> TilesOf<'a, K, V> {
    fn new(tiles: Tiles<'a>, items: Range<usize>) -> Self {
        TilesOf { tiles, items, types: std::marker::PhantomData }
    }
}

impl<K: KeyPanels, V: ValueElement> Work for TilesOf<'_, K, V> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for item in self.items {
            let (kv_head, tile) = (item / self.tiles.n_tiles, item % self.tiles.n_tiles);
            let n_queries = self.tiles.visible.len() * self.tiles.group;
            let mut first = tile * self.tiles.tile_len;
            let end = n_queries.min(first + self.tiles.tile_len);
            while first < end {
                first += match (end - first).min(S::QUERIES) {
                    2 if S::QUERIES >= 2 => self.tiles.tile::<S, K, V, 2>(s, kv_head, first),
                    3 if S::QUERIES >= 3 => self.tiles.tile::<S, K, V, 3>(s, kv_head, first),
                    4 if S::QUERIES >= 4 => self.tiles.tile::<S, K, V, 4>(s, kv_head, first),
                    5 if S::QUERIES >= 5 => self.tiles.tile::<S, K, V, 5>(s, kv_head, first),
                    6 if S::QUERIES >= 6 => self.tiles.tile::<S, K, V, 6>(s, kv_head, first),
                    7 if S::QUERIES >= 7 => self.tiles.tile::<S, K, V, 7>(s, kv_head, first),
                    8 if S::QUERIES >= 8 => self.tiles.tile::<S, K, V, 8>(s, kv_head, first),
                    _ => self.tiles.tile::<S, K, V, 1>(s, kv_head, first),
                };
            }
        }
    }
}

impl<'a> Tiles<'a> {
    /// `N` queries of a KV head, numbered row by row, the heads of the group within each row; returns `N`.
    #[inline(always)]
    fn tile<S: Simd, K: KeyPanels, V: ValueElement, const N: usize>(
        &mut self,
        s: S,
        kv_head: usize,
        first: usize,
    ) -> usize {
        let head_dim = self.shape.head_dim;
        let mut visible = [self.visible[first / self.group]; N];
        let mut offsets = [0; N];
        for n in 0..N {
            let (row, head) = ((first + n) / self.group, (first + n) % self.group);
            visible[n] = self.visible[row];
            offsets[n] = (row * self.shape.n_heads + kv_head * self.group + head) * head_dim;
        }
        self.score::<S, K, N>(s, kv_head, &visible, offsets);
        let mut inverse = [0.0; N];
        for n in 0..N {
            let scores = &mut self.scores[n * self.scores_stride..][..self.scores_stride];
            let Visible { prefix_len, extra } = visible[n];
            // Copied first, because the destination of the scores may contain extra slots.
            for (own, &slot) in self.own.iter_mut().zip(extra) {
                *own = scores[slot as usize];
            }
            let scores = &mut scores[..visible[n].len()];
            scores[prefix_len..].copy_from_slice(&self.own[..extra.len()]);
            let max = max_of(s, scores);
            let sum = exp_shifted_in_place(s, scores, max);
            inverse[n] = if scores.is_empty() { 0.0 } else { 1.0 / sum };
        }
        let outs = offsets.map(|offset| {
            // SAFETY: a query's output belongs to one item, and `out` outlives the section.
            unsafe { self.out.slice(offset, head_dim) }
        });
        let mut weighted = Weighted {
            values: self.kv.head_values::<V>(kv_head),
            scales: self.kv.head_scales(kv_head),
            n_chunks: self.kv.head_chunks(),
            scores: self.scores,
            stride: self.scores_stride,
            shared: visible.iter().map(|v| v.prefix_len).min().unwrap_or(0),
            visible,
            inverse,
            outs,
        };
        for out in &mut weighted.outs {
            out.fill(0.0);
        }
        let mut position = 0;
        while position < weighted.shared {
            let end = weighted.shared.min(position + weighted.positions_per_pass());
            let mut chunk = 0;
            while chunk < weighted.n_chunks {
                chunk += match (weighted.n_chunks - chunk).min(S::ACCUMULATORS / N) {
                    4.. => weighted.sum::<S, 4>(s, position..end, chunk),
                    2.. => weighted.sum::<S, 2>(s, position..end, chunk),
                    _ => weighted.sum::<S, 1>(s, position..end, chunk),
                };
            }
            position = end;
        }
        for n in 0..N {
            for chunk in 0..weighted.n_chunks {
                weighted.finish(s, n, chunk);
            }
        }
        N
    }

    /// The scores of all slots that at least one query of the tile sees, by slot.
    #[inline(always)]
    fn score<S: Simd, K: KeyPanels, const N: usize>(
        &mut self,
        s: S,
        kv_head: usize,
        visible: &[Visible<'a>; N],
        offsets: [usize; N],
    ) {
        let head_dim = self.shape.head_dim;
        let (mut start, mut end) = (usize::MAX, 0);
        let mut queries: [&[f32]; N] = [&[]; N];
        for n in 0..N {
            let slots = visible[n].slots();
            (start, end) = (start.min(slots.start), end.max(slots.end));
            queries[n] = &self.q[offsets[n]..][..head_dim];
        }
        let queries = K::queries::<S, N>(s, queries, self.blocks);
        let (keys, panel_lines) = (self.kv.head_keys(kv_head), self.kv.key_panel_lines());
        let scale = s.splat(1.0 / (head_dim as f32).sqrt());
        let mut panel = start.min(end) / PANEL_ROWS;
        let end = end.div_ceil(PANEL_ROWS);
        while panel < end {
            let keys = &keys[panel * panel_lines..];
            let scores = &mut self.scores[panel * PANEL_ROWS..];
            panel += match (end - panel).min(S::ACCUMULATORS / N) {
                4.. => score_panels::<S, K, N, 4>(
                    s,
                    keys,
                    panel_lines,
                    queries,
                    scale,
                    scores,
                    self.scores_stride,
                ),
                2.. => score_panels::<S, K, N, 2>(
                    s,
                    keys,
                    panel_lines,
                    queries,
                    scale,
                    scores,
                    self.scores_stride,
                ),
                _ => score_panels::<S, K, N, 1>(
                    s,
                    keys,
                    panel_lines,
                    queries,
                    scale,
                    scores,
                    self.scores_stride,
                ),
            };
        }
    }
}
