//! Attention of a batch of rows over one layer's KV cache, under a tree attention mask.
//!
//! A row sees `prefix_len` slots and then the `extra` slots of its ancestors, in this order: that of their *logical positions*.
//! The arithmetic knows positions only, so a row gives the same bits whether its ancestors' keys lie in draft slots or have
//! moved into the prefix. What a row may not see enters nothing of it: each lane is a slot of its own.
//!
//! ```text
//! score[p] = (fma(q[i], key[p][i], ·) over i in order) · 1/√head_dim            keys in 8 bits: as a Q8_0 matrix row
//! e[p]     = exp(score[p] − max);  sum: 16 lanes by p%16, fixed tree
//! out[i]   = (fma(e[p], value[p][i], ·) over p in order) · (1 / sum)            values in 8 bits: fma(e[p] · scale, code, ·)
//! ```
//!
//! Work is split in tiles of up to `TILE` queries that share a KV head (the query heads of a GQA group, and neighbouring rows):
//! each key is loaded once for the tile, and each value as far as all see it. Scores are computed for whole panels of 16
//! slots; what a row does not see is left aside.

use std::ops::Range;

use super::Kernels;
use super::activations::{Block, quantize_block};
use super::aligned::{Line, Plain};
use super::kv::{KvLayer, KvType};
use super::layout::{PANEL_ROWS, Scaled};
use super::math::{exp_shifted_in_place, max_of};
use super::matmul::{Ahead, F16Columns, F32Columns, FloatColumns, int_tile};
use super::pool::{Pool, SharedMut};
use super::simd::{LANES, Simd, Work};

/// What a row may see: slots `0..prefix_len`, then the `extra` slots, in order of logical position (ancestors, then itself).
#[derive(Clone, Copy, Debug)]
pub struct Visible<'a> {
    /// How many slots of the committed prefix (all of it, in a verification batch).
    pub prefix_len: usize,
    /// Slots after the prefix, in order of position.
    pub extra: &'a [u32],
}

impl Visible<'_> {
    fn len(&self) -> usize {
        self.prefix_len + self.extra.len()
    }

    /// The slots that are seen, and perhaps others between them.
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

/// Working memory of [`attention`]: per worker, one tile's scores and rounded queries. Grows with the context, in large steps.
#[derive(Default)]
pub struct AttentionScratch {
    scores: Vec<f32>,
    queries: Vec<Block>,
}

impl AttentionScratch {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Memory held.
    pub fn size_bytes(&self) -> usize {
        self.scores.capacity() * size_of::<f32>() + self.queries.capacity() * size_of::<Block>()
    }
}

/// The first `len` elements; doubles a buffer that is too short, so that a growing context seldom allocates.
fn reserve<T: Clone + Default>(buf: &mut Vec<T>, len: usize) -> &mut [T] {
    if buf.len() < len {
        buf.resize(len.max(2 * buf.len()), T::default());
    }
    &mut buf[..len]
}

/// Queries of a tile at most: with 2 panels of keys each, 16 accumulators, half of the widest machine's vector registers.
const TILE: usize = 8;

/// `out = softmax(q · keyᵀ / √head_dim) · value` over what each row may see (Vaswani et al. 2017, eq. 1).
///
/// # Shapes
/// `q` and `out` are `[n_rows, n_heads, head_dim]`; `visible` has one entry per row. A row that sees nothing gives zeros.
///
/// # Panics
/// If a shape does not fit the layer, or a row may see a slot that does not exist.
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
    // Where there are fewer tiles than threads, smaller ones: who computes a query does not change it.
    let mut tile_len = TILE;
    while tile_len > 1 && n_kv_heads * n_queries.div_ceil(tile_len) < pool.n_threads() {
        tile_len = tile_len.div_ceil(2);
    }
    let n_tiles = n_queries.div_ceil(tile_len);
    let scores_stride = slots_max.next_multiple_of(LANES);
    let scores_len = TILE * scores_stride + extra_max;
    let blocks_len = if kv.kv_type() == KvType::Q8_0 { TILE * head_dim / 32 } else { 0 };
    let scores = SharedMut::new(reserve(&mut scratch.scores, pool.n_threads() * scores_len));
    let blocks = SharedMut::new(reserve(&mut scratch.queries, pool.n_threads() * blocks_len));
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

/// A worker's view of the call.
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
    /// `[TILE, head_dim / 32]` where keys are in 8 bits.
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
    /// `N` queries of a KV head, counted row by row, a group of heads in each; returns `N`.
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
            // Aside first: extra slots may stand where their scores go.
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

    /// The scores of all slots that some query of the tile sees, by slot.
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

/// Scores of the first `C` panels of `keys`; returns `C`.
#[inline(always)]
fn score_panels<S: Simd, K: KeyPanels, const N: usize, const C: usize>(
    s: S,
    keys: &[Line],
    panel_lines: usize,
    queries: [&[K::Query]; N],
    scale: S::F,
    scores: &mut [f32],
    stride: usize,
) -> usize {
    let mut panels: [&[Line]; C] = [&[]; C];
    for c in 0..C {
        panels[c] = &keys[c * panel_lines..][..panel_lines];
    }
    let (first, end) = (keys.len().min(C * panel_lines), keys.len().min(2 * C * panel_lines));
    let dots = K::dots::<S, N, C>(s, panels, queries, &keys[first..end]);
    for n in 0..N {
        let scores = &mut scores[n * stride..][..C * PANEL_ROWS];
        for c in 0..C {
            s.store(s.mul(dots[c][n], scale), &mut scores.as_chunks_mut().0[c]);
        }
    }
    C
}

/// How keys are held, and what their dot products are.
trait KeyPanels {
    /// An element of a query in the form that the keys are multiplied with.
    type Query: Copy;

    /// The queries in that form, in `blocks` if they must be rounded.
    fn queries<'a, S: Simd, const N: usize>(
        s: S,
        queries: [&'a [f32]; N],
        blocks: &'a mut [Block],
    ) -> [&'a [Self::Query]; N];

    /// The dot products of `N` queries with the 16 keys of each panel. `next` are the panels after these.
    fn dots<S: Simd, const N: usize, const C: usize>(
        s: S,
        panels: [&[Line]; C],
        queries: [&[Self::Query]; N],
        next: &[Line],
    ) -> [[S::F; N]; C];
}

/// Keys in panels of floats.
struct FloatKeys<F>(std::marker::PhantomData<F>);

impl<F: FloatColumns> KeyPanels for FloatKeys<F> {
    type Query = f32;

    #[inline(always)]
    fn queries<'a, S: Simd, const N: usize>(
        _s: S,
        queries: [&'a [f32]; N],
        _blocks: &'a mut [Block],
    ) -> [&'a [f32]; N] {
        queries
    }

    #[inline(always)]
    fn dots<S: Simd, const N: usize, const C: usize>(
        s: S,
        panels: [&[Line]; C],
        queries: [&[f32]; N],
        next: &[Line],
    ) -> [[S::F; N]; C] {
        let mut acc = [[s.splat(0.0); N]; C];
        let ahead = Ahead::new(next, queries[0].len());
        for i in 0..queries[0].len() {
            ahead.prefetch(s, i);
            let mut keys = [s.splat(0.0); C];
            for c in 0..C {
                keys[c] = F::column(s, panels[c], i);
            }
            for n in 0..N {
                let q = s.splat(queries[n][i]);
                for c in 0..C {
                    acc[c][n] = s.fma(q, keys[c], acc[c][n]);
                }
            }
        }
        acc
    }
}

/// Keys in panels of 8-bit blocks, like the rows of a Q8_0 matrix.
struct IntKeys;

impl KeyPanels for IntKeys {
    type Query = Block;

    #[inline(always)]
    fn queries<'a, S: Simd, const N: usize>(
        s: S,
        queries: [&'a [f32]; N],
        blocks: &'a mut [Block],
    ) -> [&'a [Block]; N] {
        let n_blocks = queries[0].len() / 32;
        for n in 0..N {
            for (x, block) in queries[n].as_chunks::<32>().0.iter().zip(&mut blocks[n * n_blocks..]) {
                *block = quantize_block(s, x);
            }
        }
        let mut out: [&[Block]; N] = [&[]; N];
        for n in 0..N {
            out[n] = &blocks[n * n_blocks..][..n_blocks];
        }
        out
    }

    #[inline(always)]
    fn dots<S: Simd, const N: usize, const C: usize>(
        s: S,
        panels: [&[Line]; C],
        queries: [&[Block]; N],
        next: &[Line],
    ) -> [[S::F; N]; C] {
        let ahead = Ahead::new(next, queries[0].len().div_ceil(2));
        int_tile::<S, Scaled<false, 128>, C, N>(s, panels, queries, &ahead)
    }
}

/// An element of the values as the kernel loads it.
trait ValueElement: Plain {
    /// Values are codes, with a scale for each 32 of them.
    const SCALED: bool;
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F;
}

impl ValueElement for f32 {
    const SCALED: bool = false;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load(x)
    }
}

impl ValueElement for u16 {
    const SCALED: bool = false;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load_f16(x)
    }
}

impl ValueElement for u8 {
    const SCALED: bool = true;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load_i8(x)
    }
}

/// The second pass: values weighted by `e[p]`.
struct Weighted<'a, E, const N: usize> {
    /// `[n_slots, n_chunks]`
    values: &'a [[E; LANES]],
    /// `[n_slots, n_chunks / 2]` if values are scaled.
    scales: &'a [f32],
    n_chunks: usize,
    /// `[N, stride]`: e[p]
    scores: &'a [f32],
    stride: usize,
    visible: [Visible<'a>; N],
    /// Positions that all queries see.
    shared: usize,
    /// 1 / Σ e[p]
    inverse: [f32; N],
    /// `[head_dim]` each
    outs: [&'a mut [f32]; N],
}

impl<E: ValueElement, const N: usize> Weighted<'_, E, N> {
    /// Positions whose values stay in the first-level cache while all their chunks are summed.
    #[inline(always)]
    fn positions_per_pass(&self) -> usize {
        (16 * 1024 / (self.n_chunks * size_of::<[E; LANES]>())).max(1)
    }

    /// Adds the values at `positions`, which all queries see, to chunks `chunk .. chunk + C` of the outputs; returns `C`.
    #[inline(always)]
    fn sum<S: Simd, const C: usize>(&mut self, s: S, positions: Range<usize>, chunk: usize) -> usize {
        let mut acc = [[s.splat(0.0); C]; N];
        for n in 0..N {
            for c in 0..C {
                acc[n][c] = s.load_partial(chunk_of(self.outs[n], chunk + c), 0.0);
            }
        }
        // The first chunks bring what the others will read as well, a pass before it is needed.
        let (start, end) = (positions.start * self.n_chunks, positions.end * self.n_chunks);
        let next = if chunk == 0 { &self.values[end..self.values.len().min(2 * end - start)] } else { &[] };
        let mut next = next.chunks(self.n_chunks);
        for position in positions {
            for line in next.next().unwrap_or(&[]).iter().step_by(64 / size_of::<[E; LANES]>()) {
                s.prefetch(line);
            }
            let value = &self.values[position * self.n_chunks + chunk..][..C];
            let mut values = [s.splat(0.0); C];
            for c in 0..C {
                values[c] = E::load(s, &value[c]);
            }
            for n in 0..N {
                let e = self.scores[n * self.stride + position];
                self.add(s, e, position, chunk, &values, &mut acc[n]);
            }
        }
        for n in 0..N {
            for c in 0..C {
                s.store_partial(acc[n][c], chunk_of_mut(self.outs[n], chunk + c));
            }
        }
        C
    }

    /// Adds what query `n` alone sees to one chunk of its output, and divides by the sum of the weights.
    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S, n: usize, chunk: usize) {
        let mut acc = [s.load_partial(chunk_of(self.outs[n], chunk), 0.0)];
        for position in self.shared..self.visible[n].len() {
            let slot = self.visible[n].slot(position);
            let values = [E::load(s, &self.values[slot * self.n_chunks + chunk])];
            let e = self.scores[n * self.stride + position];
            self.add(s, e, slot, chunk, &values, &mut acc);
        }
        s.store_partial(s.mul(acc[0], s.splat(self.inverse[n])), chunk_of_mut(self.outs[n], chunk));
    }

    /// `acc += e · values` of a slot, the scale being part of `e` where values have one.
    #[inline(always)]
    fn add<S: Simd, const C: usize>(
        &self,
        s: S,
        e: f32,
        slot: usize,
        chunk: usize,
        values: &[S::F; C],
        acc: &mut [S::F; C],
    ) {
        let mut weight = s.splat(e);
        for c in 0..C {
            if E::SCALED && (c == 0 || (chunk + c).is_multiple_of(2)) {
                weight = s.splat(e * self.scales[slot * (self.n_chunks / 2) + (chunk + c) / 2]);
            }
            acc[c] = s.fma(weight, values[c], acc[c]);
        }
    }
}

/// Chunk `chunk` of a head's output; the last one may be shorter.
#[inline(always)]
fn chunk_of(out: &[f32], chunk: usize) -> &[f32] {
    &out[chunk * LANES..out.len().min((chunk + 1) * LANES)]
}

/// The same, to write.
#[inline(always)]
fn chunk_of_mut(out: &mut [f32], chunk: usize) -> &mut [f32] {
    let end = out.len().min((chunk + 1) * LANES);
    &mut out[chunk * LANES..end]
}
