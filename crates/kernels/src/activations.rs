//! Activations in the forms that the matmul kernels read: prepared once, used by several matrices.

use std::ops::Range;

use super::Kernels;
use super::int8::{Block, RowPair};
use super::pool::{Pool, SharedMut};
use super::simd::{LANES, Simd, Work};

/// The form of activations that a matrix is multiplied with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ActivationForm {
    /// As f32, for float matrices.
    F32,
    /// Blocks of 32 values rounded to 8 bits, for integer matrices.
    Int8,
    /// Both forms, for rows that are multiplied with matrices of both kinds.
    Both,
}

impl ActivationForm {
    /// The form that contains both `self` and `other`.
    pub fn with(self, other: Self) -> Self {
        if self == other { self } else { ActivationForm::Both }
    }

    fn has(self, other: Self) -> bool {
        self == other || self == ActivationForm::Both
    }
}

/// Maximum rows of a tall tile on any instruction set.
pub(super) const TALL_ROWS_MAX: usize = 16;

/// Activations `[n_rows, n_cols]`. The buffers are kept and grow to exactly the largest size used.
#[derive(Default)]
pub struct Activations {
    n_rows: usize,
    n_cols: usize,
    form: Option<ActivationForm>,
    /// `[n_rows, n_cols]`
    floats: Vec<f32>,
    /// `[n_rows, n_cols / 32]`; with groups `[row][block]` becomes `[group][block][row of the group]`.
    blocks: Vec<Block>,
    /// Groups of rows for tall tiles; 0 if the kernels have none or the rows are few.
    n_groups: usize,
    /// `[n_rows / 2, n_cols / 32]`, rounded up: instead of `blocks` if the instruction set reads pairs.
    pairs: Vec<RowPair>,
}

impl Activations {
    /// No rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Prepares the rows `x`, `[n_rows, n_cols]`. Allocates only if the buffers are smaller than needed.
    ///
    /// # Panics
    /// If `x` has another length, or the form has 8-bit blocks and `n_cols` is not a multiple of 32.
    pub fn set(
        &mut self,
        k: Kernels,
        pool: &Pool,
        x: &[f32],
        n_rows: usize,
        n_cols: usize,
        form: ActivationForm,
    ) {
        assert_eq!(Some(x.len()), n_rows.checked_mul(n_cols), "{n_rows} rows of {n_cols}");
        let row = |row: usize| &x[row * n_cols..][..n_cols];
        self.prepare(k, pool, (n_rows, n_cols), form, (x.len(), true), &row);
    }

    /// Prepares the rows of `x`, `[_, n_cols]`, that `rows` names, in their order, for
    /// [products by groups](super::matmul_groups).
    ///
    /// # Panics
    /// If there is no such row, or the form has 8-bit blocks and `n_cols` is not a multiple of 32.
    pub fn set_gathered(
        &mut self,
        k: Kernels,
        pool: &Pool,
        x: &[f32],
        rows: &[u32],
        n_cols: usize,
        form: ActivationForm,
    ) {
        let work = rows.len().saturating_mul(n_cols);
        let row = |i: usize| &x[rows[i] as usize * n_cols..][..n_cols];
        self.prepare(k, pool, (rows.len(), n_cols), form, (work, false), &row);
    }

    /// The rows of a [group](super::RowGroup) begin at a multiple of this number: 2 if the instruction set reads pairs of
    /// rows, otherwise 1.
    pub fn group_step(k: Kernels) -> usize {
        if k.run_codes(ReadsPairs) { 2 } else { 1 }
    }

    /// Calls `compute(row, x_row)` for each row of `x` and prepares the result while it is in a cache, in one parallel
    /// section.
    ///
    /// # Panics
    /// If `x` is no whole number of rows; as [`set`](Self::set) and [`Pool::run`].
    pub fn set_computed(
        &mut self,
        k: Kernels,
        pool: &Pool,
        x: &mut [f32],
        n_cols: usize,
        form: ActivationForm,
        compute: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        self.prepare_computed(k, pool, x, n_cols, form, true, compute);
    }

    /// As [`set_computed`](Self::set_computed), for [products by groups](super::matmul_groups).
    ///
    /// # Panics
    /// As [`set_computed`](Self::set_computed).
    pub fn set_computed_for_groups(
        &mut self,
        k: Kernels,
        pool: &Pool,
        x: &mut [f32],
        n_cols: usize,
        form: ActivationForm,
        compute: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        self.prepare_computed(k, pool, x, n_cols, form, false, compute);
    }

    #[allow(clippy::too_many_arguments, reason = "those of `set_computed`, and the layout")]
    fn prepare_computed(
        &mut self,
        k: Kernels,
        pool: &Pool,
        x: &mut [f32],
        n_cols: usize,
        form: ActivationForm,
        tall: bool,
        compute: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        assert!(n_cols > 0 && x.len().is_multiple_of(n_cols), "{} numbers, rows of {n_cols}", x.len());
        let (n_rows, work) = (x.len() / n_cols, x.len().saturating_mul(2));
        let x = SharedMut::new(x);
        self.prepare(k, pool, (n_rows, n_cols), form, (work, tall), &|row| {
            // SAFETY: `prepare` calls this once for each row, so the parts are disjoint; it ends before `x`.
            let x = unsafe { x.slice(row * n_cols, n_cols) };
            compute(row, x);
            x
        });
    }

    /// Prepares the rows that `row` gives. It is called once for each. `tall`: blocks may be laid out for tall tiles, which read
    /// all rows.
    fn prepare<'x>(
        &mut self,
        k: Kernels,
        pool: &Pool,
        (n_rows, n_cols): (usize, usize),
        form: ActivationForm,
        (work, tall): (usize, bool),
        row: &(dyn Fn(usize) -> &'x [f32] + Sync),
    ) {
        (self.n_rows, self.n_cols, self.form) = (n_rows, n_cols, Some(form));
        let [as_floats, as_blocks] = [ActivationForm::F32, ActivationForm::Int8].map(|own| form.has(own));
        assert!(!as_blocks || n_cols.is_multiple_of(32), "{n_cols} columns are not whole blocks of 32");
        let (n_blocks, in_pairs) = (n_cols / 32, as_blocks && k.run_codes(ReadsPairs));
        self.n_groups = if tall { k.run_codes(TallGroups { n_rows }) } else { 0 };
        let item_rows = if in_pairs { 2 } else { 1 };
        let n_items = n_rows.div_ceil(item_rows);
        // (Lengths of buffers that the form does not need are not changed.)
        if as_floats {
            resize_exact(&mut self.floats, n_rows * n_cols);
        }
        if in_pairs {
            resize_exact(&mut self.pairs, n_items * n_blocks);
        } else if as_blocks {
            resize_exact(&mut self.blocks, n_items * n_blocks);
        }
        let floats = SharedMut::new(&mut self.floats);
        let (blocks, pairs) = (SharedMut::new(&mut self.blocks), SharedMut::new(&mut self.pairs));
        let n_groups = self.n_groups;
        pool.run_sized(work, n_items, 1, &|_, items| {
            for item in items {
                let first = item_rows * item;
                let rows = [Some(first), Some(first + 1).filter(|&row| in_pairs && row < n_rows)]
                    .map(|i| i.map(row));
                if as_floats {
                    for (i, x) in rows.into_iter().flatten().enumerate() {
                        // SAFETY: rows are disjoint, and the floats outlive the section.
                        unsafe { floats.slice((first + i) * n_cols, n_cols) }.copy_from_slice(x);
                    }
                }
                let [one, other] = rows.map(Option::unwrap_or_default);
                if in_pairs {
                    // SAFETY: the ranges of pairs are disjoint, and the pairs outlive the section.
                    let out = unsafe { pairs.slice(item * n_blocks, n_blocks) };
                    k.run_codes(QuantizePair { one, other, out });
                } else if as_blocks {
                    let group = group_of(item, n_rows, n_groups);
                    let (first, stride) = (group.start * n_blocks + item - group.start, group.len());
                    k.run(Quantize { x: one, out: blocks, first, stride });
                }
            }
        });
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Columns of each row.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Whether the rows are prepared in the given form.
    pub fn has(&self, form: ActivationForm) -> bool {
        self.form.is_some_and(|own| own.has(form))
    }

    pub(super) fn float_rows(&self) -> &[f32] {
        &self.floats
    }

    pub(super) fn block_rows(&self) -> &[Block] {
        &self.blocks
    }

    /// Groups of rows for tall tiles; 0 if rows are not grouped.
    pub(super) fn n_groups(&self) -> usize {
        self.n_groups
    }

    /// The number of rows of the group that begins with `row`, and their blocks, `[block][row]`.
    pub(super) fn group(&self, row: usize) -> (usize, &[Block]) {
        let (group, n_blocks) = (group_of(row, self.n_rows, self.n_groups), self.n_cols / 32);
        debug_assert_eq!(group.start, row);
        (group.len(), &self.blocks[group.start * n_blocks..group.end * n_blocks])
    }

    pub(super) fn row_pairs(&self) -> &[RowPair] {
        &self.pairs
    }
}

/// Whether the instruction set reads [`RowPair`]s.
struct ReadsPairs;

impl Work for ReadsPairs {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, _s: S) -> bool {
        S::OWN_TILES.is_some()
    }
}

/// Two rows; the second is empty if there is none.
struct QuantizePair<'a> {
    one: &'a [f32],
    other: &'a [f32],
    out: &'a mut [RowPair],
}

impl Work for QuantizePair<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Some(order) = S::OWN_TILES else { return };
        let (one, other) = (self.one.as_chunks::<32>().0, self.other.as_chunks::<32>().0);
        for (block, out) in self.out.iter_mut().enumerate() {
            let mut rows = [quantize_block(s, &one[block]), Block::default()];
            if let Some(other) = other.get(block) {
                rows[1] = quantize_block(s, other);
            }
            *out = RowPair::new(order, rows);
        }
    }
}

/// The number of groups for tall tiles.
struct TallGroups {
    n_rows: usize,
}

impl Work for TallGroups {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _s: S) -> usize {
        const { assert!(S::TALL_ROWS <= TALL_ROWS_MAX) };
        if S::TALL_ROWS > 0 && self.n_rows > S::INT_TILE_ROWS {
            self.n_rows.div_ceil(S::TALL_ROWS)
        } else {
            0
        }
    }
}

/// The rows of the group that holds `row`. Groups differ by one row at most. Without groups, the row alone.
fn group_of(row: usize, n_rows: usize, n_groups: usize) -> Range<usize> {
    if n_groups == 0 {
        return row..row + 1;
    }
    let start = |group: usize| group * n_rows / n_groups;
    // The last group that begins at the row or before.
    let group = ((row + 1) * n_groups - 1) / n_rows;
    start(group)..start(group + 1)
}

/// Rounds a row to the blocks `first`, `first + stride`, … of `out`, which belong to it alone.
struct Quantize<'a> {
    x: &'a [f32],
    out: SharedMut<Block>,
    first: usize,
    stride: usize,
}

impl Work for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (i, x) in self.x.as_chunks::<32>().0.iter().enumerate() {
            // SAFETY: no other row has these blocks, and they outlive the section.
            let out = unsafe { self.out.slice(self.first + i * self.stride, 1) };
            out[0] = quantize_block(s, x);
        }
    }
}

#[inline(always)]
pub(super) fn quantize_block<S: Simd>(s: S, x: &[f32; 32]) -> Block {
    let halves = x.as_chunks::<LANES>().0;
    let (low, high) = (s.load(&halves[0]), s.load(&halves[1]));
    let zero = s.splat(0.0);
    // 0 · x is 0 unless x is NaN or infinite.
    let probe = s.sum(s.fma(high, zero, s.mul(low, zero)));
    if probe.is_nan() {
        return Block {
            scale: f32::NAN,
            scaled_sum: f32::NAN,
            scaled_halves: [f32::NAN; 2],
            ..Block::default()
        };
    }
    let scale = s.max_lane(s.max(s.abs(low), s.abs(high))) / 127.0;
    let inverse = 1.0 / scale;
    if inverse.is_infinite() {
        return Block::default();
    }
    let inverse = s.splat(inverse);
    // |x / scale| exceeds 127 by rounding errors only, far below the half that would make it 128.
    let rounded = [s.round_to_i(s.mul(low, inverse)), s.round_to_i(s.mul(high, inverse))];
    let mut block = Block { scale, ..Block::default() };
    let (low, high) = block.q.split_at_mut(4);
    s.store_i8(rounded[0], low.try_into().expect("four groups"));
    s.store_i8(rounded[1], high.try_into().expect("four groups"));
    let sums = rounded.map(|half| s.sum_i(half));
    let sum = sums[0] + sums[1];
    block.starts = [-8 * sum, -128 * sum];
    block.split_starts = [-32 * sums[0], -32 * sums[1]];
    block.scaled_sum = scale * sum as f32;
    block.scaled_halves = [scale * sums[0] as f32, scale * sums[1] as f32];
    block
}

/// Resizes `buffer` to `len` without spare capacity. If it grows, its values are lost.
pub fn resize_exact<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.capacity() < len {
        // Freed first, so that both buffers never exist at once.
        *buffer = Vec::new();
        buffer.reserve_exact(len);
    }
    buffer.resize(len, T::default());
}
