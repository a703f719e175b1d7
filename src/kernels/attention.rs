//! Attention of a batch of rows over one layer's KV cache, under a tree attention mask.
//!
//! A row sees `prefix_len` slots and then the `extra` slots of its ancestors, in this order: that of their *logical positions*.
//! The arithmetic knows positions only, so a row gives the same bits whether its ancestors' keys lie in draft slots or have
//! moved into the prefix. What a row may not see is not read.
//!
//! ```text
//! score[p] = sum16(lanes i%16: fma(q[i], key[p][i], ·)) · 1/√head_dim
//! e[p]     = exp(score[p] − max);  sum: 16 lanes by p%16, fixed tree
//! out[i]   = (fma(e[p], value[p][i], ·) over p in order) · (1 / sum)
//! ```
//!
//! Work is split in tiles of up to `TILE` queries that share a KV head (the query heads of a GQA group, and neighbouring rows):
//! as far as all see the prefix, each key and value is loaded and converted once for the tile.

use super::Kernels;
use super::kv::{KvElement, KvLayer, KvType};
use super::math::{exp_shifted_in_place, max_of};
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

/// Working memory of [`attention`]: per worker, one tile's padded queries and scores. Grows with the context, in large steps.
#[derive(Default)]
pub struct AttentionScratch {
    buf: Vec<f32>,
}

impl AttentionScratch {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Memory held.
    pub fn size_bytes(&self) -> usize {
        self.buf.capacity() * size_of::<f32>()
    }

    /// Makes room for `n_workers` parts of `part_len` numbers; doubles, so that a growing context seldom allocates.
    fn reserve(&mut self, n_workers: usize, part_len: usize) -> &mut [f32] {
        let len = n_workers * part_len;
        if self.buf.len() < len {
            self.buf.resize(len.max(2 * self.buf.len()), 0.0);
        }
        &mut self.buf[..len]
    }
}

/// Queries of a tile: with 4 chunks of a head each, 16 accumulators, half of the vector registers.
const TILE: usize = 4;

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
    let mut seen = 0;
    let mut seen_max = 0;
    for row in visible {
        assert!(row.prefix_len <= kv.n_slots(), "prefix {} of {} slots", row.prefix_len, kv.n_slots());
        for &slot in row.extra {
            assert!((slot as usize) < kv.n_slots(), "slot {slot} of {}", kv.n_slots());
        }
        seen += row.len();
        seen_max = seen_max.max(row.len());
    }
    let group = n_heads / n_kv_heads;
    let n_tiles = (visible.len() * group).div_ceil(TILE);
    let scores_stride = seen_max.next_multiple_of(LANES);
    let q_stride = kv.head_chunks() * LANES;
    let part_len = TILE * (scores_stride + q_stride);
    let parts = SharedMut::new(scratch.reserve(pool.n_threads(), part_len));
    let out = SharedMut::new(out);
    pool.run_sized(seen * n_heads * head_dim, n_kv_heads * n_tiles, &|worker, items| {
        // SAFETY: each worker has its own part, and the scratch outlives the section.
        let part = unsafe { parts.slice(worker * part_len, part_len) };
        let (queries, scores) = part.split_at_mut(TILE * q_stride);
        let tiles = Tiles { shape, group, n_tiles, q, kv, visible, queries, scores, scores_stride, out };
        match kv.kv_type() {
            KvType::F16 => k.run(TilesOf::<u16> { tiles, items, element: Default::default() }),
            KvType::F32 => k.run(TilesOf::<f32> { tiles, items, element: Default::default() }),
        }
    });
}

/// A worker's view of the call.
struct Tiles<'a> {
    shape: AttentionShape,
    /// Query heads per KV head.
    group: usize,
    /// Tiles per KV head.
    n_tiles: usize,
    q: &'a [f32],
    kv: &'a KvLayer,
    visible: &'a [Visible<'a>],
    /// `[TILE, head_stride]`, padded with zeros.
    queries: &'a mut [f32],
    /// `[TILE, scores_stride]`
    scores: &'a mut [f32],
    scores_stride: usize,
    out: SharedMut<f32>,
}

struct TilesOf<'a, E> {
    tiles: Tiles<'a>,
    items: std::ops::Range<usize>,
    element: std::marker::PhantomData<E>,
}

impl<E: KvElement> Work for TilesOf<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for item in self.items {
            let (kv_head, tile) = (item / self.tiles.n_tiles, item % self.tiles.n_tiles);
            let n_queries = self.tiles.visible.len() * self.tiles.group;
            let first = tile * TILE;
            match (n_queries - first).min(TILE) {
                1 => self.tiles.tile::<S, E, 1>(s, kv_head, first),
                2 => self.tiles.tile::<S, E, 2>(s, kv_head, first),
                3 => self.tiles.tile::<S, E, 3>(s, kv_head, first),
                _ => self.tiles.tile::<S, E, 4>(s, kv_head, first),
            }
        }
    }
}

impl Tiles<'_> {
    /// `N` queries of a KV head, counted row by row, a group of heads in each.
    #[inline(always)]
    fn tile<S: Simd, E: KvElement, const N: usize>(&mut self, s: S, kv_head: usize, first: usize) {
        let head_dim = self.shape.head_dim;
        let q_stride = self.kv.head_chunks() * LANES;
        let (keys, values) = self.kv.head::<E>(kv_head);
        let mut visible = [self.visible[first / self.group]; N];
        let mut offsets = [0; N];
        let mut shared = usize::MAX;
        for n in 0..N {
            let (row, head) = ((first + n) / self.group, (first + n) % self.group);
            visible[n] = self.visible[row];
            shared = shared.min(visible[n].prefix_len);
            offsets[n] = (row * self.shape.n_heads + kv_head * self.group + head) * head_dim;
            let query = &mut self.queries[n * q_stride..][..q_stride];
            query[..head_dim].copy_from_slice(&self.q[offsets[n]..][..head_dim]);
            query[head_dim..].fill(0.0);
        }
        let queries = self.queries.as_chunks::<LANES>().0;
        let scores = &mut *self.scores;
        score_shared::<S, E, N>(
            s,
            queries,
            &keys[..shared * self.kv.head_chunks()],
            scores,
            self.scores_stride,
        );
        let mut inverse = [0.0; N];
        for n in 0..N {
            let scores = &mut scores[n * self.scores_stride..][..visible[n].len()];
            let query = &queries[n * self.kv.head_chunks()..][..self.kv.head_chunks()];
            score_own::<S, E>(s, query, keys, visible[n], shared, scores);
            scale(s, scores, 1.0 / (head_dim as f32).sqrt());
            let max = max_of(s, scores);
            inverse[n] = 1.0 / exp_shifted_in_place(s, scores, max);
            if visible[n].len() == 0 {
                inverse[n] = 0.0;
            }
        }
        let outs = offsets.map(|offset| {
            // SAFETY: a query's output belongs to one item, and `out` outlives the section.
            unsafe { self.out.slice(offset, head_dim) }
        });
        let mut weighted =
            Weighted { values, scores, stride: self.scores_stride, visible, shared, inverse, outs };
        let mut chunk = 0;
        while chunk < self.kv.head_chunks() {
            chunk += match self.kv.head_chunks() - chunk {
                1 => weighted.sum::<S, 1>(s, self.kv.head_chunks(), chunk),
                2 => weighted.sum::<S, 2>(s, self.kv.head_chunks(), chunk),
                3 => weighted.sum::<S, 3>(s, self.kv.head_chunks(), chunk),
                _ => weighted.sum::<S, 4>(s, self.kv.head_chunks(), chunk),
            };
        }
    }
}

/// `q · key` of all queries for the keys that all of them see.
#[inline(always)]
fn score_shared<S: Simd, E: KvElement, const N: usize>(
    s: S,
    queries: &[[f32; LANES]],
    keys: &[[E; LANES]],
    scores: &mut [f32],
    stride: usize,
) {
    let n_chunks = queries.len() / TILE;
    for (position, key) in keys.chunks_exact(n_chunks).enumerate() {
        let mut acc = [s.splat(0.0); N];
        for c in 0..n_chunks {
            let key = E::load(s, &key[c]);
            for n in 0..N {
                acc[n] = s.fma(s.load(&queries[n * n_chunks + c]), key, acc[n]);
            }
        }
        for n in 0..N {
            scores[n * stride + position] = s.sum(acc[n]);
        }
    }
}

/// `q · key` of one query for the positions from `shared` on.
#[inline(always)]
fn score_own<S: Simd, E: KvElement>(
    s: S,
    query: &[[f32; LANES]],
    keys: &[[E; LANES]],
    visible: Visible<'_>,
    shared: usize,
    scores: &mut [f32],
) {
    for position in shared..visible.len() {
        let key = &keys[visible.slot(position) * query.len()..][..query.len()];
        let mut acc = s.splat(0.0);
        for c in 0..query.len() {
            acc = s.fma(s.load(&query[c]), E::load(s, &key[c]), acc);
        }
        scores[position] = s.sum(acc);
    }
}

#[inline(always)]
fn scale<S: Simd>(s: S, x: &mut [f32], factor: f32) {
    let factor = s.splat(factor);
    let (chunks, tail) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        s.store(s.mul(s.load(chunk), factor), chunk);
    }
    let last = s.mul(s.load_partial(tail, 0.0), factor);
    s.store_partial(last, tail);
}

/// The second pass: values weighted by `e[p]`.
struct Weighted<'a, E, const N: usize> {
    /// `[n_slots, head_chunks]`
    values: &'a [[E; LANES]],
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

impl<E: KvElement, const N: usize> Weighted<'_, E, N> {
    /// Chunks `chunk .. chunk + C` of the outputs; returns `C`.
    #[inline(always)]
    fn sum<S: Simd, const C: usize>(&mut self, s: S, n_chunks: usize, chunk: usize) -> usize {
        let mut acc = [[s.splat(0.0); C]; N];
        for position in 0..self.shared {
            let value = &self.values[position * n_chunks + chunk..][..C];
            let mut weight = [s.splat(0.0); N];
            for n in 0..N {
                weight[n] = s.splat(self.scores[n * self.stride + position]);
            }
            for c in 0..C {
                let value = E::load(s, &value[c]);
                for n in 0..N {
                    acc[n][c] = s.fma(weight[n], value, acc[n][c]);
                }
            }
        }
        for n in 0..N {
            for position in self.shared..self.visible[n].len() {
                let value = &self.values[self.visible[n].slot(position) * n_chunks + chunk..][..C];
                let weight = s.splat(self.scores[n * self.stride + position]);
                for c in 0..C {
                    acc[n][c] = s.fma(weight, E::load(s, &value[c]), acc[n][c]);
                }
            }
            for c in 0..C {
                let out = &mut self.outs[n][(chunk + c) * LANES..];
                let len = out.len().min(LANES);
                s.store_partial(s.mul(acc[n][c], s.splat(self.inverse[n])), &mut out[..len]);
            }
        }
        C
    }
}
