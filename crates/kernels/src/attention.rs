//! Attention of a batch of rows over one layer's KV cache, under a tree attention mask.
//!
//! A row sees the slots `0..prefix_len` and then the `extra` slots of its ancestors, in the order of their
//! *logical positions*. The arithmetic depends on positions only. A row therefore has the same bits whether
//! its ancestors' keys are in draft slots or have been committed to the prefix. Masked slots do not affect a
//! row's result, because each lane is one slot.
//!
//! ```text
//! score[p] = (fma(q[i], key[p][i], ·) over i in order) · scale                   keys in 8 bits: as a Q8_0 matrix row
//!            with a softcap c:  score[p] = c · tanh(score[p] / c)                 tanh of `math.rs`
//!
//! for each block of 256 positions that has positions of the row's window:        p counts from the block's first position,
//!                                                                                over the positions of the window only
//!     m     = max score[p]
//!     e[p]  = exp(score[p] − m);  s: 16 lanes by p%16, fixed tree
//!     v[i]  = (fma(e[p], value[p][i], ·) over p in order)                        values in 8 or 4 bits: fma(e[p] · scale, code, ·)
//! blocks in order, from (M, S, V) = (m, s, v) of the first:
//!     M' = max(M, m);  a = exp(M − M');  b = exp(m − M');  S = fma(b, s, a · S);  V[i] = fma(b, v[i], a · V[i]);  M = M'
//! with a sink, at the end:
//!     M' = max(M, sink);  a = exp(M − M');  b = exp(sink − M');  S = a · S + b;  V[i] = a · V[i]
//! out[i] = V[i] · (1 / S)
//! ```
//!
//! A window of `w` positions ends at the row's own position, so that every row of a batch has its own window. Blocks stay at
//! fixed positions: a window begins anywhere in its first block, and a position has the same lane for every row. Blocks without
//! a position of any row's window are skipped.
//!
//! The blocks are those of Flash-Decoding (Dao et al. 2023), at fixed positions, so that their results do not depend on who
//! computes them. Queries that share a KV head (the heads of a GQA group, and the rows of the batch) are divided into *chunks*,
//! and an item of work is a chunk and its blocks in order. If there are too few chunks for the threads, an item is one
//! block of a chunk, and the blocks are merged at the end.
//!
//! Within a block, the scores of all queries of the chunk are computed panel group by panel group, then the exponentials, then the
//! sums of values, some positions at a time. Keys and values of 16 bits are widened once for all queries, into memory that
//! stays in the first-level cache; a single tile of queries widens them in registers. Scores are computed for whole panels
//! of 16 slots; scores of masked slots are ignored.
//!
//! A layer that is a ring holds whole blocks, each at the place of its first slot. The slots of a block that were overwritten are
//! before every row's window, and masked.

mod fold;
mod keys;
mod rule;
mod values;

use std::marker::PhantomData;
use std::ops::Range;

use super::Kernels;
use super::activations::quantize_block;
use super::aligned::Line;
use super::int8::Block;
use super::kv::{BLOCK_LEN, KvLayer, KvType};
use super::layout::PANEL_ROWS;
use super::math::{exp_shifted_in_place, max_of, softcap_in_place};
use super::matmul::{F16Columns, F32Columns};
use super::pool::{Pool, SharedMut};
use super::simd::{LANES, Simd, Work};
use fold::{clear, finish, fold, partial_lines, partial_of, set_totals};
use keys::{FloatKeys, IntKeys, KeyPanels, score_panels};
pub use rule::AttentionRule;
use values::{GROUP_VALUES, ValueChunk, ValueGroup, scale_weights, sum};

/// The slots that a row sees, by logical position: `0..prefix_len`, then `extra` (its ancestors, then
/// itself).
#[derive(Clone, Copy, Debug)]
pub struct Visible<'a> {
    /// Slots of the committed prefix; in a verification batch, all of them.
    pub prefix_len: usize,
    /// Slots after the prefix, in order of position.
    pub extra: &'a [u32],
}

impl<'a> Visible<'a> {
    fn len(&self) -> usize {
        self.prefix_len + self.extra.len()
    }

    /// The first block with a position of the row's last `window` positions; 0 if it sees nothing.
    #[inline(always)]
    fn first_block(&self, window: usize) -> usize {
        self.len().saturating_sub(window) / BLOCK_LEN
    }

    /// The part of a block that is among the row's last `window` positions.
    #[inline(always)]
    fn in_block(&self, block: usize, window: usize) -> SeenInBlock<'a> {
        let (block_start, block_end) = (block * BLOCK_LEN, (block + 1) * BLOCK_LEN);
        let start = self.len().saturating_sub(window).clamp(block_start, block_end) - block_start;
        let prefix_end = self.prefix_len.clamp(block_start, block_end) - block_start;
        if prefix_end == BLOCK_LEN {
            return SeenInBlock { start, prefix_end, extra: &[] };
        }
        let prefix_end = prefix_end.max(start);
        let first = (block_start + prefix_end).saturating_sub(self.prefix_len).min(self.extra.len());
        let extra = &self.extra[first..];
        SeenInBlock { start, prefix_end, extra: &extra[..extra.len().min(BLOCK_LEN - prefix_end)] }
    }
}

/// The blocks with a position of the window of at least one row; block 0 if no row sees anything.
#[inline(always)]
fn blocks_of(visible: &[Visible<'_>], window: usize) -> Range<usize> {
    let (mut start, mut end) = (usize::MAX, 0);
    for row in visible {
        if row.len() > 0 {
            start = start.min(row.first_block(window));
            end = end.max(row.len().div_ceil(BLOCK_LEN));
        }
    }
    if start < end { start..end } else { 0..1 }
}

/// What a row sees of a block: positions `start..prefix_end` of it, which are in the prefix, then the slots `extra`.
#[derive(Clone, Copy)]
struct SeenInBlock<'a> {
    start: usize,
    prefix_end: usize,
    extra: &'a [u32],
}

impl SeenInBlock<'_> {
    /// The end of the positions.
    #[inline(always)]
    fn end(&self) -> usize {
        self.prefix_end + self.extra.len()
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.start == self.end()
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

/// Scratch memory of [`attention`]: for each worker the scores, sums and rounded queries of a chunk, and the widened keys and values of
/// some positions; the results of the blocks, if items are blocks.
#[derive(Default)]
pub struct AttentionScratch {
    lines: Vec<Line>,
    queries: Vec<Block>,
}

impl AttentionScratch {
    /// Empty scratch memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maximum bytes for batches of `n_rows` rows over `n_slots` slots with `n_threads` threads.
    pub fn bytes(shape: AttentionShape, n_threads: usize, n_slots: usize, n_rows: usize) -> u64 {
        let n_queries = n_rows.saturating_mul(shape.n_heads / shape.n_kv_heads.max(1));
        let chunk_len = n_queries.min(CHUNK_QUERIES);
        let own = WorkerLines::new(shape.head_dim, chunk_len, n_rows.div_ceil(PANEL_ROWS) + 1);
        let blocks_bytes = chunk_len * shape.head_dim.div_ceil(32) * size_of::<Block>();
        // Items are blocks only if there are few queries.
        let n_split = (shape.n_kv_heads.saturating_mul(n_queries)).min(2 * QUERIES_MAX * n_threads);
        let partials =
            n_split.saturating_mul(n_slots.div_ceil(BLOCK_LEN)).saturating_mul(partial_lines(shape.head_dim));
        let worker_bytes = (64 * own.len() + blocks_bytes) as u64;
        worker_bytes.saturating_mul(n_threads as u64).saturating_add(64 * partials as u64)
    }

    /// Memory held.
    pub fn size_bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>() + self.queries.capacity() * size_of::<Block>()
    }
}

/// The first `len` elements, of any value. If the buffer is too short, at least doubles it: a growing context
/// therefore seldom allocates.
fn reserve<T: Clone>(buf: &mut Vec<T>, len: usize, empty: T) -> &mut [T] {
    if buf.len() < len {
        let grown = if buf.is_empty() { len } else { len.max(2 * buf.len()) };
        // The old buffer is freed first, because its contents are not needed.
        *buf = Vec::new();
        buf.reserve_exact(grown);
        buf.resize(grown, empty);
    }
    &mut buf[..len]
}

/// Panels of a block.
const BLOCK_PANELS: usize = BLOCK_LEN / PANEL_ROWS;

/// Maximum queries of a tile on any instruction set.
const QUERIES_MAX: usize = 6;

/// Maximum queries of a chunk. Their scores of one block take 96 KiB.
const CHUNK_QUERIES: usize = 96;

/// Panels of keys that are widened at a time: 32 KiB if heads have 128 elements.
const GROUP_PANELS: usize = 4;

/// `out = softmax(q · keyᵀ · scale) · value` over the slots that each row sees (Vaswani et al. 2017, eq. 1), with the window,
/// softcap and sinks of `rule`.
///
/// # Shapes
/// `q` and `out` are `[n_rows, n_heads, head_dim]`; `visible` has one entry per row. The output of a row that
/// sees no slot is zero.
///
/// # Panics
/// If a shape does not fit the layer, a part of the rule is out of its range, a row's slot does not exist, or the layer is a ring
/// that is shorter than the window.
#[allow(clippy::too_many_arguments)]
pub fn attention(
    k: Kernels,
    pool: &Pool,
    shape: AttentionShape,
    rule: AttentionRule<'_>,
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
    rule.check(n_heads);
    let window = rule.window_len();
    assert!(!kv.is_ring() || window <= kv.n_slots(), "a window of {window} in {} slots", kv.n_slots());
    let n_slots = if kv.is_ring() { usize::MAX } else { kv.n_slots() };
    let mut seen = 0;
    let (mut extra_start, mut extra_end) = (usize::MAX, 0);
    for row in visible {
        assert!(row.prefix_len <= n_slots, "prefix {} of {n_slots} slots", row.prefix_len);
        for &slot in row.extra {
            let slot = slot as usize;
            assert!(slot < n_slots, "slot {slot} of {n_slots}");
            (extra_start, extra_end) = (extra_start.min(slot), extra_end.max(slot + 1));
        }
        seen += row.len().min(window);
    }
    if visible.is_empty() {
        return;
    }
    let blocks = blocks_of(visible, window);
    let plan = Plan::new(shape, visible.len(), blocks, pool.n_threads());
    // The panels with extra slots.
    let extra_panels = panels_of(extra_start, extra_end);
    let own_lines = WorkerLines::new(head_dim, plan.chunk_len, extra_panels.len());
    let partial_lines = partial_lines(head_dim);
    let n_partials = if plan.splits { plan.n_blocks * n_kv_heads * plan.n_queries } else { 0 };
    let workers_len = pool.n_threads() * own_lines.len();
    let lines = reserve(&mut scratch.lines, workers_len + n_partials * partial_lines, Line([0; 64]));
    let (workers, partials) = lines.split_at_mut(workers_len);
    let (workers, partials) = (SharedMut::new(workers), SharedMut::new(partials));
    let blocks_len = if kv.kv_type().has_blocks() { plan.chunk_len * head_dim / 32 } else { 0 };
    let blocks =
        SharedMut::new(reserve(&mut scratch.queries, pool.n_threads() * blocks_len, Block::default()));
    let out = SharedMut::new(out);
    let score_lines = BLOCK_PANELS + extra_panels.len();
    pool.run_sized(seen * n_heads * head_dim, plan.n_items(), 1, &|worker, items| {
        // SAFETY: each worker has its own part, and the scratch outlives the section.
        let lines = unsafe { workers.slice(worker * own_lines.len(), own_lines.len()) };
        // SAFETY: as above.
        let blocks = unsafe { blocks.slice(worker * blocks_len, blocks_len) };
        let own = own_lines.divide(lines, blocks);
        let extra_panel = extra_panels.start;
        let input = Input { shape, rule, window, plan: &plan, q, kv, visible, extra_panel, score_lines };
        let outs = Outs { partials, out };
        match kv.kv_type() {
            KvType::F16 => k.run(Items::<FloatKeys<F16Columns>, [u16; LANES]>::new(&input, own, outs, items)),
            KvType::F32 => k.run(Items::<FloatKeys<F32Columns>, [f32; LANES]>::new(&input, own, outs, items)),
            KvType::Q8_0 => k.run_codes(Items::<IntKeys<8>, [u8; LANES]>::new(&input, own, outs, items)),
            KvType::Q4_0 => k.run_codes(Items::<IntKeys<4>, [u8; LANES / 2]>::new(&input, own, outs, items)),
        }
    });
    if plan.splits {
        let n_queries = n_kv_heads * plan.n_queries;
        pool.run_sized(n_partials * head_dim, n_queries, 1, &|_, queries| {
            k.run(Merge { shape, rule, plan: &plan, visible, outs: Outs { partials, out }, queries });
        });
    }
}

/// The panels that hold slots `start..end`; none if `start` is not below `end`.
#[inline(always)]
fn panels_of(start: usize, end: usize) -> Range<usize> {
    if start < end { start / PANEL_ROWS..end.div_ceil(PANEL_ROWS) } else { 0..0 }
}

/// How the work is divided.
struct Plan {
    /// Query heads per KV head.
    group: usize,
    /// Queries per KV head.
    n_queries: usize,
    /// Maximum queries of a chunk.
    chunk_len: usize,
    /// Chunks per KV head.
    n_chunks: usize,
    n_kv_heads: usize,
    /// The first block that a row sees.
    first_block: usize,
    n_blocks: usize,
    /// An item is a block of a chunk, not a whole chunk.
    splits: bool,
}

impl Plan {
    fn new(shape: AttentionShape, n_rows: usize, blocks: Range<usize>, n_threads: usize) -> Self {
        let group = shape.n_heads / shape.n_kv_heads;
        let n_queries = n_rows * group;
        let n_blocks = blocks.len();
        // Two items for each thread, so that a slow thread delays the others less.
        let n_tiles = n_queries.div_ceil(QUERIES_MAX);
        let n_items = if n_threads == 1 { 1 } else { 2 * n_threads };
        let splits = shape.n_kv_heads * n_tiles < n_items && n_blocks > 1;
        let wanted = if splits { 1 } else { n_items.div_ceil(shape.n_kv_heads).min(n_tiles) };
        let n_chunks = wanted.max(n_queries.div_ceil(CHUNK_QUERIES));
        let chunk_len = n_queries.div_ceil(n_chunks);
        Plan {
            group,
            n_queries,
            chunk_len,
            n_chunks: n_queries.div_ceil(chunk_len),
            n_kv_heads: shape.n_kv_heads,
            first_block: blocks.start,
            n_blocks,
            splits,
        }
    }

    fn n_items(&self) -> usize {
        self.n_kv_heads * self.n_chunks * if self.splits { self.n_blocks } else { 1 }
    }

    /// The KV head of an item, its queries, and its block if items are blocks.
    #[inline(always)]
    fn item(&self, item: usize) -> (usize, Range<usize>, Option<usize>) {
        let (chunk, block) = if self.splits {
            (item / self.n_blocks, Some(self.first_block + item % self.n_blocks))
        } else {
            (item, None)
        };
        let first = chunk % self.n_chunks * self.chunk_len;
        (chunk / self.n_chunks, first..self.n_queries.min(first + self.chunk_len), block)
    }

    /// Where the result of a block is.
    #[inline(always)]
    fn partial(&self, kv_head: usize, query: usize, block: usize) -> usize {
        (kv_head * self.n_queries + query) * self.n_blocks + block - self.first_block
    }
}

/// The lines of a worker's scratch memory.
#[derive(Clone, Copy)]
struct WorkerLines {
    scores: usize,
    sums: usize,
    folded: usize,
    keys: usize,
    values: usize,
    weights: usize,
}

/// A worker's scratch memory.
struct Own<'a> {
    /// `[chunk_len, lines of BLOCK_LEN and the extra slots]`
    scores: &'a mut [Line],
    /// `[chunk_len, partial_lines]`: the results of the current block.
    sums: &'a mut [Line],
    /// `[chunk_len, partial_lines]`: the merged results of the blocks so far.
    folded: &'a mut [Line],
    /// `[GROUP_PANELS, head_dim]`: widened keys.
    keys: &'a mut [Line],
    /// `[GROUP_VALUES, chunks of a head]`: widened values.
    values: &'a mut [Line],
    /// `[QUERIES_MAX + 1, head_dim / 32, GROUP_VALUES]`: weights that include the scales of values, for each query of a tile; the
    /// scales come last.
    weights: &'a mut [Line],
    /// `[chunk_len, head_dim / 32]` if keys are in 8 or 4 bits.
    blocks: &'a mut [Block],
}

impl WorkerLines {
    fn new(head_dim: usize, chunk_len: usize, extra_panels: usize) -> Self {
        WorkerLines {
            scores: chunk_len * (BLOCK_PANELS + extra_panels),
            sums: chunk_len * partial_lines(head_dim),
            folded: chunk_len * partial_lines(head_dim),
            keys: GROUP_PANELS * head_dim,
            values: GROUP_VALUES * head_dim.div_ceil(LANES),
            weights: (QUERIES_MAX + 1) * (head_dim / 32) * GROUP_VALUES / LANES,
        }
    }

    fn len(&self) -> usize {
        self.scores + self.sums + self.folded + self.keys + self.values + self.weights
    }

    fn divide<'a>(self, lines: &'a mut [Line], blocks: &'a mut [Block]) -> Own<'a> {
        let (scores, lines) = lines.split_at_mut(self.scores);
        let (sums, lines) = lines.split_at_mut(self.sums);
        let (folded, lines) = lines.split_at_mut(self.folded);
        let (keys, lines) = lines.split_at_mut(self.keys);
        let (values, weights) = lines.split_at_mut(self.values);
        Own { scores, sums, folded, keys, values, weights, blocks }
    }
}

/// What all workers read.
struct Input<'a> {
    shape: AttentionShape,
    rule: AttentionRule<'a>,
    /// Maximum positions that a row sees. (The compiler reads an option's number before it knows that there is one, which valgrind
    /// reports.)
    window: usize,
    plan: &'a Plan,
    q: &'a [f32],
    kv: &'a KvLayer,
    visible: &'a [Visible<'a>],
    /// The first panel with extra slots.
    extra_panel: usize,
    /// Lines of a query's scores of a block: by position, then by extra slot.
    score_lines: usize,
}

impl Input<'_> {
    /// The blocks that at least one of the queries sees.
    #[inline(always)]
    fn blocks(&self, queries: &Range<usize>) -> Range<usize> {
        let group = self.plan.group;
        let rows = &self.visible[queries.start / group..queries.end.div_ceil(group)];
        blocks_of(rows, self.window)
    }
}

/// What workers write.
#[derive(Clone, Copy)]
struct Outs {
    partials: SharedMut<Line>,
    out: SharedMut<f32>,
}

/// A worker's items.
struct Items<'a, K, V> {
    input: &'a Input<'a>,
    own: Own<'a>,
    outs: Outs,
    items: Range<usize>,
    types: PhantomData<(K, V)>,
}

impl<'a, K, V> Items<'a, K, V> {
    fn new(input: &'a Input<'a>, own: Own<'a>, outs: Outs, items: Range<usize>) -> Self {
        Items { input, own, outs, items, types: PhantomData }
    }
}

impl<K: KeyPanels, V: ValueChunk> Work for Items<'_, K, V> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for item in self.items {
            let (kv_head, queries, block) = self.input.plan.item(item);
            let n_tiles = queries.len().div_ceil(S::QUERIES);
            let blocks = match block {
                Some(block) => block..block + 1,
                None => self.input.blocks(&queries),
            };
            let first_block = blocks.start;
            let mut chunk = Chunk { input: self.input, kv_head, queries, n_tiles, block: first_block };
            chunk.round_queries::<S, K>(s, &mut self.own);
            for block in blocks {
                chunk.block = block;
                chunk.score::<S, K>(s, &mut self.own);
                chunk.exponentials(s, &mut self.own);
                chunk.sum_values::<S, V>(s, &mut self.own);
                for query in 0..chunk.queries.len() {
                    chunk.end_block(s, query, block == first_block, &mut self.own, self.outs);
                }
            }
            if !self.input.plan.splits {
                for query in 0..chunk.queries.len() {
                    chunk.finish(s, query, &self.own, self.outs);
                }
            }
        }
    }
}

/// Queries of a KV head, numbered row by row, the heads of the group within each row; and a block.
struct Chunk<'a> {
    input: &'a Input<'a>,
    kv_head: usize,
    queries: Range<usize>,
    /// Tiles of about the same height.
    n_tiles: usize,
    block: usize,
}

impl<'a> Chunk<'a> {
    /// The queries of a tile, counted from the first of the chunk.
    #[inline(always)]
    fn tile(&self, tile: usize) -> Range<usize> {
        let n = self.queries.len();
        tile * n / self.n_tiles..(tile + 1) * n / self.n_tiles
    }

    /// The row of a query.
    #[inline(always)]
    fn row(&self, query: usize) -> &'a Visible<'a> {
        &self.input.visible[(self.queries.start + query) / self.input.plan.group]
    }

    /// What a query sees of the block.
    #[inline(always)]
    fn seen(&self, query: usize) -> SeenInBlock<'a> {
        self.row(query).in_block(self.block, self.input.window)
    }

    /// Where a query begins in `q` and `out`.
    #[inline(always)]
    fn offset(&self, query: usize) -> usize {
        query_offset(self.input.shape, self.kv_head, self.queries.start + query)
    }

    #[inline(always)]
    fn round_queries<S: Simd, K: KeyPanels>(&self, s: S, own: &mut Own<'_>) {
        let head_dim = self.input.shape.head_dim;
        if K::ROUNDS {
            for query in 0..self.queries.len() {
                let x = &self.input.q[self.offset(query)..][..head_dim];
                let blocks = &mut own.blocks[query * (head_dim / 32)..];
                for (x, block) in x.as_chunks().0.iter().zip(blocks) {
                    *block = quantize_block(s, x);
                }
            }
        }
    }

    /// The scores of all slots of the block that at least one query sees: of the prefix by position, then of the panels
    /// with extra slots.
    #[inline(always)]
    fn score<S: Simd, K: KeyPanels>(&self, s: S, own: &mut Own<'_>) {
        let (mut prefix_start, mut prefix_end) = (usize::MAX, 0);
        let (mut extra_start, mut extra_end) = (usize::MAX, 0);
        let mut query = 0;
        while query < self.queries.len() {
            let seen = self.seen(query);
            if seen.start < seen.prefix_end {
                prefix_start = prefix_start.min(seen.start);
                prefix_end = prefix_end.max(seen.prefix_end);
            }
            for &slot in seen.extra {
                (extra_start, extra_end) = (extra_start.min(slot as usize), extra_end.max(slot as usize + 1));
            }
            // The heads of a row see the same.
            query += self.input.plan.group - (self.queries.start + query) % self.input.plan.group;
        }
        let first = self.block * BLOCK_PANELS;
        let panels = panels_of(prefix_start, prefix_end);
        self.score_panels::<S, K>(s, first + panels.start..first + panels.end, first, 0, own);
        let panels = panels_of(extra_start, extra_end);
        self.score_panels::<S, K>(s, panels, self.input.extra_panel, BLOCK_PANELS, own);
    }

    /// The place of the block's first slot.
    #[inline(always)]
    fn first_place(&self) -> usize {
        self.input.kv.place(self.block * BLOCK_LEN)
    }

    /// The scores of some panels. Those of panel `base` are in line `base_line` of a query's scores.
    #[inline(always)]
    fn score_panels<S: Simd, K: KeyPanels>(
        &self,
        s: S,
        panels: Range<usize>,
        base: usize,
        base_line: usize,
        own: &mut Own<'_>,
    ) {
        let panel_lines = self.input.kv.key_panel_lines();
        let keys = self.input.kv.head_keys(self.kv_head);
        let mut panel = panels.start;
        while panel < panels.end {
            let place = self.input.kv.place(panel * PANEL_ROWS) / PANEL_ROWS;
            // A group ends where a ring does.
            let n_panels = (panels.end - panel).min(GROUP_PANELS).min(keys.len() / panel_lines - place);
            let end = panel + n_panels;
            let place_end = place + n_panels;
            let group = &keys[place * panel_lines..place_end * panel_lines];
            let next =
                &keys[place_end * panel_lines..keys.len().min((place_end + GROUP_PANELS) * panel_lines)];
            let line = base_line + panel - base;
            let Own { scores, keys: wide, blocks, .. } = own;
            if K::WIDENS && (self.n_tiles > 1 || !S::CONVERTS_AGAIN) {
                let head_dim = self.input.shape.head_dim;
                let wide = &mut wide[..(end - panel) * head_dim];
                K::widen(s, group, panel_lines, wide, head_dim);
                self.score_group::<S, K::Wide>(s, wide, head_dim, next, line, scores, blocks);
            } else {
                self.score_group::<S, K>(s, group, panel_lines, next, line, scores, blocks);
            }
            panel = end;
        }
    }

    /// The scores of a group of panels. `next` are the panels that come after it.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn score_group<S: Simd, K: KeyPanels>(
        &self,
        s: S,
        group: &[Line],
        panel_lines: usize,
        next: &[Line],
        line: usize,
        scores: &mut [Line],
        blocks: &[Block],
    ) {
        // Each tile prefetches its share.
        let mut shares = next.chunks(next.len().div_ceil(self.n_tiles).max(1));
        for tile in 0..self.n_tiles {
            let tile = self.tile(tile);
            let scores = &mut scores[tile.start * self.input.score_lines + line..];
            let next = shares.next().unwrap_or(&[]);
            let input =
                ScoreInput { chunk: self, first: tile.start, group, panel_lines, next, scores, blocks };
            match tile.len() {
                1 => s.run_apart(ScoreTile::<K, 1>(input, PhantomData)),
                2 if S::QUERIES >= 2 => s.run_apart(ScoreTile::<K, 2>(input, PhantomData)),
                3 if S::QUERIES >= 3 => s.run_apart(ScoreTile::<K, 3>(input, PhantomData)),
                4 if S::QUERIES >= 4 => s.run_apart(ScoreTile::<K, 4>(input, PhantomData)),
                5 if S::QUERIES >= 5 => s.run_apart(ScoreTile::<K, 5>(input, PhantomData)),
                6 if S::QUERIES >= 6 => s.run_apart(ScoreTile::<K, 6>(input, PhantomData)),
                n => unreachable!("{n} queries in a tile"),
            }
        }
    }

    /// Replaces the scores of each query by their exponentials, and notes their maximum and their sum.
    #[inline(always)]
    fn exponentials<S: Simd>(&self, s: S, own: &mut Own<'_>) {
        let lines = self.input.score_lines;
        for query in 0..self.queries.len() {
            let seen = self.seen(query);
            let scores = Line::floats_of_mut(&mut own.scores[query * lines..][..lines]);
            let (scores, extra) = scores.split_at_mut(BLOCK_LEN);
            for (i, &slot) in seen.extra.iter().enumerate() {
                scores[seen.prefix_end + i] = extra[slot as usize - self.input.extra_panel * PANEL_ROWS];
            }
            // From the first whole vector on, so that a position's lane does not depend on the window. Positions before the
            // window become −∞, whose exponential is 0; no value is multiplied with it.
            let start = seen.start / LANES * LANES;
            let scores = &mut scores[start..seen.end()];
            if let Some(cap) = self.input.rule.softcap {
                softcap_in_place(s, scores, cap);
            }
            scores[..seen.start - start].fill(f32::NEG_INFINITY);
            let max = max_of(s, scores);
            let sum = exp_shifted_in_place(s, scores, max);
            set_totals(partial_of(own.sums, query, self.input.shape.head_dim), max, sum);
        }
    }

    /// Adds up the values of the block, weighted by the exponentials.
    #[inline(always)]
    fn sum_values<S: Simd, V: ValueChunk>(&self, s: S, own: &mut Own<'_>) {
        let Own { scores, sums, values: wide, weights, .. } = own;
        let n_chunks = self.input.kv.head_chunks();
        for query in 0..self.queries.len() {
            clear(s, partial_of(sums, query, self.input.shape.head_dim));
        }
        let source = self.input.kv.head_values::<V>(self.kv_head);
        let first_place = self.first_place();
        let (mut start, mut shared_end) = (BLOCK_LEN, 0);
        for tile in 0..self.n_tiles {
            let tile = self.tile(tile);
            let shared = self.shared(tile.clone());
            if !shared.is_empty() {
                (start, shared_end) = (start.min(shared.start), shared_end.max(shared.end));
            }
            for query in tile {
                let seen = self.seen(query);
                self.sum_apart::<S, V>(s, query, seen.start..shared.start.min(seen.end()), scores, sums);
            }
        }
        while start < shared_end {
            let end = shared_end.min(start + GROUP_VALUES);
            let rows = &source[(first_place + start) * n_chunks..(first_place + end) * n_chunks];
            let next = (first_place + end) * n_chunks;
            let next = &source[next..source.len().min(next + GROUP_VALUES * n_chunks)];
            let mut group = ValueGroup { positions: start..end, next, scores, weights, sums };
            if V::SCALED || V::WIDENS && (self.n_tiles > 1 || !S::CONVERTS_AGAIN) {
                let wide = &mut Line::floats_of_mut(wide).as_chunks_mut().0[..rows.len()];
                for (wide, row) in wide.iter_mut().zip(rows) {
                    s.store(V::load(s, row), wide);
                }
                self.sum_group::<S, V, [f32; LANES]>(s, wide, &mut group);
            } else {
                self.sum_group::<S, V, V>(s, rows, &mut group);
            }
            start = end;
        }
        for tile in 0..self.n_tiles {
            let tile = self.tile(tile);
            let shared = self.shared(tile.clone());
            for query in tile {
                self.sum_apart::<S, V>(s, query, shared.end..self.seen(query).end(), scores, sums);
            }
        }
    }

    /// Positions of the block that all queries of a tile see, all of them in the prefix. If there are none, the range is
    /// empty, and no query's window begins after it.
    #[inline(always)]
    fn shared(&self, tile: Range<usize>) -> Range<usize> {
        let (mut start, mut end) = (0, BLOCK_LEN);
        for query in tile {
            let seen = self.seen(query);
            (start, end) = (start.max(seen.start), end.min(seen.prefix_end));
        }
        start..end.max(start)
    }

    /// Adds the values of some positions for all tiles. `E` is a chunk of `rows`, `V` one of the layer.
    #[inline(always)]
    fn sum_group<S: Simd, V: ValueChunk, E: ValueChunk>(
        &self,
        s: S,
        rows: &[E],
        group: &mut ValueGroup<'_, V>,
    ) {
        if V::SCALED {
            let n_scales = self.input.shape.head_dim / 32;
            let first = (self.first_place() + group.positions.start) * n_scales;
            let scales =
                &self.input.kv.head_scales(self.kv_head)[first..][..group.positions.len() * n_scales];
            let columns = &mut Line::floats_of_mut(group.weights)[QUERIES_MAX * n_scales * GROUP_VALUES..];
            for (position, scales) in scales.chunks(n_scales).enumerate() {
                for (column, &scale) in scales.iter().enumerate() {
                    columns[column * GROUP_VALUES + position] = scale;
                }
            }
        }
        let n_chunks = self.input.kv.head_chunks();
        let share = (group.next.len() / n_chunks).div_ceil(self.n_tiles).max(1) * n_chunks;
        let mut shares = group.next.chunks(share);
        for tile in 0..self.n_tiles {
            let tile = self.tile(tile);
            let shared = self.shared(tile.clone());
            let next = shares.next().unwrap_or(&[]);
            let start = shared.start.max(group.positions.start);
            let end = shared.end.min(group.positions.end);
            if start >= end {
                continue;
            }
            let skipped = start - group.positions.start;
            let rows = &rows[skipped * n_chunks..(end - group.positions.start) * n_chunks];
            let first = tile.start;
            match tile.len() {
                1 => s.run_apart(SumTile::<V, E, 1> { chunk: self, first, skipped, rows, next, group }),
                2 if S::QUERIES >= 2 => {
                    s.run_apart(SumTile::<V, E, 2> { chunk: self, first, skipped, rows, next, group })
                }
                3 if S::QUERIES >= 3 => {
                    s.run_apart(SumTile::<V, E, 3> { chunk: self, first, skipped, rows, next, group })
                }
                4 if S::QUERIES >= 4 => {
                    s.run_apart(SumTile::<V, E, 4> { chunk: self, first, skipped, rows, next, group })
                }
                5 if S::QUERIES >= 5 => {
                    s.run_apart(SumTile::<V, E, 5> { chunk: self, first, skipped, rows, next, group })
                }
                6 if S::QUERIES >= 6 => {
                    s.run_apart(SumTile::<V, E, 6> { chunk: self, first, skipped, rows, next, group })
                }
                n => unreachable!("{n} queries in a tile"),
            }
        }
    }

    /// Adds the values of some positions of the block for one query.
    #[inline(always)]
    fn sum_apart<S: Simd, V: ValueChunk>(
        &self,
        s: S,
        query: usize,
        positions: Range<usize>,
        scores: &[Line],
        sums: &mut [Line],
    ) {
        if positions.is_empty() {
            return;
        }
        let (seen, n_chunks) = (self.seen(query), self.input.kv.head_chunks());
        let first_place = self.first_place();
        let values = self.input.kv.head_values::<V>(self.kv_head);
        let scales = self.input.kv.head_scales(self.kv_head);
        let weights = Line::floats_of(&scores[query * self.input.score_lines..][..BLOCK_PANELS]);
        let sums = partial_of(sums, query, self.input.shape.head_dim);
        for chunk in 0..n_chunks {
            let mut acc = s.load(sums[chunk].floats());
            for position in positions.clone() {
                let place = if position < seen.prefix_end {
                    first_place + position
                } else {
                    self.input.kv.place(seen.extra[position - seen.prefix_end] as usize)
                };
                let mut weight = weights[position];
                if V::SCALED {
                    weight *= scales[place * (n_chunks / 2) + chunk / 2];
                }
                acc = s.fma(s.splat(weight), V::load(s, &values[place * n_chunks + chunk]), acc);
            }
            s.store(acc, sums[chunk].floats_mut());
        }
    }

    /// The result of a block is complete. `is_first` in the first block of the chunk.
    #[inline(always)]
    fn end_block<S: Simd>(&self, s: S, query: usize, is_first: bool, own: &mut Own<'_>, outs: Outs) {
        let result = partial_of(own.sums, query, self.input.shape.head_dim);
        if self.input.plan.splits {
            let at = self.input.plan.partial(self.kv_head, self.queries.start + query, self.block);
            // SAFETY: a query's block belongs to one item, and the partial results outlive the section.
            let out = unsafe { outs.partials.slice(at * result.len(), result.len()) };
            out.copy_from_slice(result);
            return;
        }
        let folded = partial_of(own.folded, query, self.input.shape.head_dim);
        if is_first || self.block <= self.row(query).first_block(self.input.window) {
            folded.copy_from_slice(result);
        } else if !self.seen(query).is_empty() {
            fold(s, folded, result);
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, query: usize, own: &Own<'_>, outs: Outs) {
        let head_dim = self.input.shape.head_dim;
        let lines = partial_lines(head_dim);
        // SAFETY: a query's output belongs to one item, and `out` outlives the section.
        let out = unsafe { outs.out.slice(self.offset(query), head_dim) };
        let sink = sink_of(self.input.shape, self.input.rule, self.kv_head, self.queries.start + query);
        finish(s, &own.folded[query * lines..][..lines], sink, out);
    }
}

/// The queries of a tile from `first` on, and a group of panels. `next` is prefetched.
struct ScoreInput<'a> {
    chunk: &'a Chunk<'a>,
    first: usize,
    group: &'a [Line],
    panel_lines: usize,
    next: &'a [Line],
    scores: &'a mut [Line],
    blocks: &'a [Block],
}

/// The scores of the panels for `N` queries.
struct ScoreTile<'a, K, const N: usize>(ScoreInput<'a>, PhantomData<K>);

impl<K: KeyPanels, const N: usize> Work for ScoreTile<'_, K, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ScoreInput { chunk, first, group, panel_lines, next, scores, blocks } = self.0;
        let head_dim = chunk.input.shape.head_dim;
        let mut queries: [&[K::Query]; N] = [&[]; N];
        for n in 0..N {
            let query = first + n;
            queries[n] = K::query(&chunk.input.q[chunk.offset(query)..][..head_dim], blocks, query);
        }
        let scale = s.splat(chunk.input.rule.scale);
        let (n_panels, stride) = (group.len() / panel_lines, chunk.input.score_lines);
        let (mut panel, mut next) = (0, next);
        while panel < n_panels {
            let keys = &group[panel * panel_lines..];
            let scores = &mut scores[panel..];
            panel += match (n_panels - panel).min(S::ACCUMULATORS / (N * K::ACCUMULATORS)) {
                4.. => score_panels::<S, K, N, 4>(s, keys, panel_lines, queries, scale, scores, stride, next),
                2.. => score_panels::<S, K, N, 2>(s, keys, panel_lines, queries, scale, scores, stride, next),
                _ => score_panels::<S, K, N, 1>(s, keys, panel_lines, queries, scale, scores, stride, next),
            };
            next = &[];
        }
    }
}

/// Adds the values of `rows`, which begin `skipped` positions after the group's first, for `N` queries from `first` on.
struct SumTile<'a, 'g, V, E, const N: usize> {
    chunk: &'a Chunk<'a>,
    first: usize,
    skipped: usize,
    rows: &'a [E],
    next: &'a [V],
    group: &'a mut ValueGroup<'g, V>,
}

impl<V: ValueChunk, E: ValueChunk, const N: usize> Work for SumTile<'_, '_, V, E, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let SumTile { chunk, first, skipped, rows, next, group } = self;
        let (n_chunks, n_lines) = (chunk.input.kv.head_chunks(), chunk.input.score_lines);
        let n_positions = rows.len() / n_chunks;
        let mut weights: [&[f32]; N] = [&[]; N];
        for n in 0..N {
            let scores = Line::floats_of(&group.scores[(first + n) * n_lines..][..BLOCK_PANELS]);
            weights[n] = &scores[group.positions.start + skipped..][..n_positions];
        }
        if V::SCALED {
            let n_scales = chunk.input.shape.head_dim / 32;
            let all = Line::floats_of_mut(group.weights);
            let (own, columns) = all.split_at_mut(QUERIES_MAX * n_scales * GROUP_VALUES);
            for column in 0..n_scales {
                let scales = &columns[column * GROUP_VALUES + skipped..][..n_positions];
                for n in 0..N {
                    let own = &mut own[(n * n_scales + column) * GROUP_VALUES..][..n_positions];
                    scale_weights(s, weights[n], scales, own);
                }
            }
            for n in 0..N {
                weights[n] = &own[n * n_scales * GROUP_VALUES..][..n_scales * GROUP_VALUES];
            }
        }
        let stride = n_chunks + 1;
        let sums = &mut group.sums[first * stride..];
        let (mut chunk, mut next) = (0, next);
        while chunk < n_chunks {
            chunk += match (n_chunks - chunk).min(S::ACCUMULATORS / N) {
                4.. => sum::<S, V, E, N, 4>(s, rows, n_chunks, chunk, weights, sums, next),
                2.. => sum::<S, V, E, N, 2>(s, rows, n_chunks, chunk, weights, sums, next),
                _ => sum::<S, V, E, N, 1>(s, rows, n_chunks, chunk, weights, sums, next),
            };
            next = &[];
        }
    }
}

/// Where a query of a KV head begins in `q` and `out`.
#[inline(always)]
fn query_offset(shape: AttentionShape, kv_head: usize, query: usize) -> usize {
    let group = shape.n_heads / shape.n_kv_heads;
    (query / group * shape.n_heads + kv_head * group + query % group) * shape.head_dim
}

/// The sink of a query of a KV head.
#[inline(always)]
fn sink_of(shape: AttentionShape, rule: AttentionRule<'_>, kv_head: usize, query: usize) -> Option<f32> {
    let group = shape.n_heads / shape.n_kv_heads;
    rule.sinks.map(|sinks| sinks[kv_head * group + query % group])
}

/// Merges the results of the blocks of some queries, if items were blocks.
struct Merge<'a> {
    shape: AttentionShape,
    rule: AttentionRule<'a>,
    plan: &'a Plan,
    visible: &'a [Visible<'a>],
    outs: Outs,
    queries: Range<usize>,
}

impl Work for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Plan { group, n_queries, first_block, n_blocks, .. } = *self.plan;
        let (lines, window) = (partial_lines(self.shape.head_dim), self.rule.window_len());
        for index in self.queries {
            let (kv_head, query) = (index / n_queries, index % n_queries);
            let row = &self.visible[query / group];
            // A row that sees nothing begins with an empty block.
            let own_block = row.first_block(window).max(first_block);
            let own_blocks = first_block + n_blocks - own_block;
            let at = self.plan.partial(kv_head, query, own_block) * lines;
            // SAFETY: a query belongs to one range, and the partial results outlive the section.
            let blocks = unsafe { self.outs.partials.slice(at, own_blocks * lines) };
            let (folded, blocks) = blocks.split_at_mut(lines);
            for (block, result) in blocks.chunks(lines).enumerate() {
                if !row.in_block(own_block + 1 + block, window).is_empty() {
                    fold(s, folded, result);
                }
            }
            // SAFETY: as above, with the output.
            let out =
                unsafe { self.outs.out.slice(query_offset(self.shape, kv_head, query), self.shape.head_dim) };
            finish(s, folded, sink_of(self.shape, self.rule, kv_head, query), out);
        }
    }
}
