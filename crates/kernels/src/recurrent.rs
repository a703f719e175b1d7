//! Recurrent layers: steps of a matrix state, and the short convolution, over the rows of a draft tree.
//!
//! A head's state `S` is a matrix `[key_dim, value_dim]`. A row changes the state of its parent:
//!
//! ```text
//! gated delta rule     d[j] = fma(S[i][j], k[i], ·) over i in order, from 0
//!                      u[j] = fma(−decay, d[j], v[j]) · gain
//! Mamba-2              u[j] = v[j] · gain
//! both                 S'[i][j] = fma(k[i], u[j], S[i][j] · decay)
//!                      out[j] = fma(S'[i][j], q[i], ·) over i in order, from 0
//!
//! convolution          out[c] = fma(weight[t][c], x[t][c], ·) over the taps t, the oldest first, from the bias or 0
//! ```
//!
//! A lane is one element `j` of the value (or one column `c`), so there is no sum across lanes. Lanes are independent of each
//! other: an item of work is a head and up to 64 of its lanes, and walks the whole tree.
//!
//! States lie in panels of 16 lanes, `[n_heads, value_dim / 16, key_dim, 16]`. A step reads a tile of 4 panels (2 with 16 registers)
//! twice and writes it once. With 128 keys it takes 32 KiB, so that it stays in the first-level cache from the first row of a
//! tree to the last, and costs the bandwidth of memory once per pass and not once per row.

use std::marker::PhantomData;
use std::ops::Range;

use super::Kernels;
use super::aligned::{AlignedBuf, AllocError, Line};
use super::pool::{Pool, SharedMut};
use super::simd::{LANES, Simd, Work};

/// How a row changes the state of a head; the formulas are in the module comment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum StateRule {
    /// The gated delta rule (Yang et al. 2024, "Gated Delta Networks"): `gain` is β.
    Delta,
    /// Mamba-2 (Dao and Gu 2024): keys are B, queries C, values x, and `gain` is the time step.
    Ssd,
}

/// The key head that a head reads if there are fewer of them, `r` heads for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum KeySharing {
    /// Adjacent heads share: head `h` reads key head `h / r`.
    #[default]
    Adjacent,
    /// The order of heads repeats: head `h` reads key head `h % n_key_heads`.
    Strided,
}

/// The states of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct StateShape {
    /// The rule of the layer.
    pub rule: StateRule,
    /// Heads, each with a state.
    pub n_heads: usize,
    /// Heads of keys and queries (groups of B and C); `n_heads` is a multiple.
    pub n_key_heads: usize,
    /// Which of them a head reads.
    pub sharing: KeySharing,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
}

impl StateShape {
    /// Numbers of a row of keys, or of queries.
    pub fn key_len(&self) -> usize {
        self.n_key_heads * self.key_dim
    }

    /// Numbers of a row of values, or of outputs.
    pub fn value_len(&self) -> usize {
        self.n_heads * self.value_dim
    }

    /// Numbers of a record: keys, values, decays and gains of a row.
    pub fn record_len(&self) -> usize {
        self.key_len() + self.value_len() + 2 * self.n_heads
    }

    /// Bytes of the states in memory, saturating.
    pub fn bytes(&self) -> u64 {
        self.n_lines().map_or(u64::MAX, |n_lines| (n_lines as u64).saturating_mul(64))
    }

    /// Bytes of the states in the form of [`StateBuf::write_bytes`], saturating.
    pub fn written_bytes(&self) -> u64 {
        let numbers = (self.n_heads as u64).saturating_mul(self.key_dim as u64);
        numbers.saturating_mul(self.value_dim as u64).saturating_mul(size_of::<f32>() as u64)
    }

    fn n_panels(&self) -> usize {
        self.value_dim.div_ceil(LANES)
    }

    /// `None` if the number overflows.
    fn n_lines(&self) -> Option<usize> {
        self.n_heads.checked_mul(self.n_panels())?.checked_mul(self.key_dim)
    }

    #[inline(always)]
    fn key_head(&self, head: usize) -> usize {
        match self.sharing {
            KeySharing::Adjacent => head / (self.n_heads / self.n_key_heads),
            KeySharing::Strided => head % self.n_key_heads,
        }
    }

    /// The first head that reads the same keys as `head`.
    #[inline(always)]
    fn first_sharer(&self, head: usize) -> usize {
        match self.sharing {
            KeySharing::Adjacent => {
                head / (self.n_heads / self.n_key_heads) * (self.n_heads / self.n_key_heads)
            }
            KeySharing::Strided => head % self.n_key_heads,
        }
    }
}

/// The states of a layer's heads, `[n_heads, value_dim / 16, key_dim, 16]`. Lanes behind `value_dim` are never read.
pub struct StateBuf {
    shape: StateShape,
    buf: AlignedBuf,
}

impl StateBuf {
    /// States of zeros.
    ///
    /// # Errors
    /// [`AllocError`]: the memory could not be allocated.
    ///
    /// # Panics
    /// If a dimension is zero, or `n_heads` is no multiple of `n_key_heads`.
    pub fn zeroed(shape: StateShape) -> Result<Self, AllocError> {
        let StateShape { n_heads, n_key_heads, key_dim, value_dim, .. } = shape;
        assert!(n_heads > 0 && key_dim > 0 && value_dim > 0, "{shape:?}");
        assert!(n_key_heads > 0 && n_heads.is_multiple_of(n_key_heads), "{n_heads} heads over {n_key_heads}");
        let n_lines = shape.n_lines().ok_or(AllocError { bytes: usize::MAX })?;
        Ok(Self { shape, buf: AlignedBuf::zeroed(n_lines)? })
    }

    /// The dimensions.
    pub fn shape(&self) -> &StateShape {
        &self.shape
    }

    /// Memory held.
    pub fn size_bytes(&self) -> usize {
        self.buf.size_bytes()
    }

    /// Sets all states to zero.
    pub fn clear(&mut self) {
        self.buf.lines_mut().fill(Line([0; 64]));
    }

    /// Copies the states of another buffer.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn copy_from(&mut self, from: &Self) {
        assert_eq!(self.shape, from.shape);
        self.buf.lines_mut().copy_from_slice(from.buf.lines());
    }

    /// Appends the states to `out` as f32 in the machine's byte order, `[n_heads, key_dim, value_dim]`.
    pub fn write_bytes(&self, out: &mut Vec<u8>) {
        let StateShape { n_heads, key_dim, value_dim, .. } = self.shape;
        let lines = self.buf.lines();
        for head in 0..n_heads {
            for key in 0..key_dim {
                for start in (0..value_dim).step_by(LANES) {
                    let line = &lines[(head * self.shape.n_panels() + start / LANES) * key_dim + key];
                    out.extend_from_slice(&line.0[..size_of::<f32>() * LANES.min(value_dim - start)]);
                }
            }
        }
    }

    /// Takes the states from the bytes of [`write_bytes`](Self::write_bytes).
    ///
    /// # Panics
    /// If the number of bytes is not [`StateShape::written_bytes`].
    pub fn read_bytes(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len() as u64, self.shape.written_bytes());
        let StateShape { n_heads, key_dim, value_dim, .. } = self.shape;
        let n_panels = self.shape.n_panels();
        let lines = self.buf.lines_mut();
        let mut rest = bytes;
        for head in 0..n_heads {
            for key in 0..key_dim {
                for start in (0..value_dim).step_by(LANES) {
                    let (lanes, others) = rest.split_at(size_of::<f32>() * LANES.min(value_dim - start));
                    let line = &mut lines[(head * n_panels + start / LANES) * key_dim + key];
                    line.0[..lanes.len()].copy_from_slice(lanes);
                    rest = others;
                }
            }
        }
    }
}

/// A ring of rows of numbers: the first ones can be dropped without moving the others.
pub struct RowRing {
    buf: AlignedBuf,
    row_len: usize,
    n_rows: usize,
    /// Where row 0 is.
    first: usize,
}

impl RowRing {
    /// `n_rows` rows of zeros.
    ///
    /// # Errors
    /// [`AllocError`]: the memory could not be allocated.
    pub fn zeroed(n_rows: usize, row_len: usize) -> Result<Self, AllocError> {
        let n_numbers = n_rows.checked_mul(row_len).ok_or(AllocError { bytes: usize::MAX })?;
        Ok(Self { buf: AlignedBuf::zeroed(n_numbers.div_ceil(LANES))?, row_len, n_rows, first: 0 })
    }

    /// Bytes of a ring, saturating.
    pub fn bytes(n_rows: usize, row_len: usize) -> u64 {
        let n_numbers = (n_rows as u64).saturating_mul(row_len as u64);
        n_numbers.div_ceil(LANES as u64).saturating_mul(64)
    }

    /// Memory held.
    pub fn size_bytes(&self) -> usize {
        self.buf.size_bytes()
    }

    /// Rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Numbers of a row.
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// A row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &[f32] {
        let start = self.start(row);
        &self.buf.cast::<f32>()[start..start + self.row_len]
    }

    /// A row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let (start, row_len) = (self.start(row), self.row_len);
        &mut self.buf.cast_mut::<f32>()[start..start + row_len]
    }

    /// Copies row `from` over row `to`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn copy_row(&mut self, from: usize, to: usize) {
        let (from, to) = (self.start(from), self.start(to));
        self.buf.cast_mut::<f32>().copy_within(from..from + self.row_len, to);
    }

    /// Drops the first `n` rows: row `n` becomes row 0. The last rows then have any values.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn drop_first(&mut self, n: usize) {
        assert!(n <= self.n_rows, "{n} of {} rows", self.n_rows);
        self.first = (self.first + n).checked_rem(self.n_rows).unwrap_or(0);
    }

    fn start(&self, row: usize) -> usize {
        assert!(row < self.n_rows, "row {row} of {}", self.n_rows);
        (self.first + row) % self.n_rows * self.row_len
    }

    fn shared(&mut self) -> SharedRing<'_> {
        let (row_len, n_rows, first) = (self.row_len, self.n_rows, self.first);
        let numbers = self.buf.cast_mut::<f32>();
        SharedRing { ptr: numbers.as_mut_ptr(), row_len, n_rows, first, ring: PhantomData }
    }

    /// A ring that is only read.
    fn shared_to_read(&self) -> SharedRing<'_> {
        let (row_len, n_rows, first) = (self.row_len, self.n_rows, self.first);
        let ptr = self.buf.cast::<f32>().as_ptr().cast_mut();
        SharedRing { ptr, row_len, n_rows, first, ring: PhantomData }
    }
}

/// A ring of which the workers of a section read some rows and write others.
#[derive(Clone, Copy)]
struct SharedRing<'a> {
    ptr: *mut f32,
    row_len: usize,
    n_rows: usize,
    first: usize,
    ring: PhantomData<&'a mut [f32]>,
}

// SAFETY: all access goes through `read` and `write`, whose callers keep written parts apart.
unsafe impl Send for SharedRing<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedRing<'_> {}

impl<'a> SharedRing<'a> {
    #[inline(always)]
    fn start(self, row: usize, part: &Range<usize>) -> usize {
        assert!(row < self.n_rows && part.start <= part.end && part.end <= self.row_len);
        let at = self.first + row;
        (if at < self.n_rows { at } else { at - self.n_rows }) * self.row_len + part.start
    }

    /// A part of a row.
    ///
    /// # Safety
    /// No overlapping part is written while the result is alive.
    #[inline(always)]
    unsafe fn read(self, row: usize, part: Range<usize>) -> &'a [f32] {
        let start = self.start(row, &part);
        // SAFETY: inside the ring, which is borrowed for `'a`; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.ptr.add(start), part.len()) }
    }

    /// A part of a row.
    ///
    /// # Safety
    /// The ring is not one that is only read, and no overlapping part is read or written while the result is alive.
    #[inline(always)]
    unsafe fn write(self, row: usize, part: Range<usize>) -> &'a mut [f32] {
        let start = self.start(row, &part);
        // SAFETY: inside the ring, which is borrowed mutably for `'a`; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), part.len()) }
    }
}

/// Some columns of each row of a matrix: a part of a wider projection need not be copied.
#[derive(Clone, Copy, Debug)]
pub struct RowPart<'a> {
    x: &'a [f32],
    row_len: usize,
    start: usize,
}

impl<'a> RowPart<'a> {
    /// All columns of `x`, `[n_rows, row_len]`.
    pub fn all(x: &'a [f32], row_len: usize) -> Self {
        Self { x, row_len, start: 0 }
    }

    /// The columns of `x`, `[n_rows, row_len]`, from `start` on.
    pub fn from(x: &'a [f32], row_len: usize, start: usize) -> Self {
        Self { x, row_len, start }
    }

    /// Columns `columns` of a row, counted from the first column of the part.
    #[inline(always)]
    fn get(&self, row: usize, columns: Range<usize>) -> &'a [f32] {
        let start = row * self.row_len + self.start;
        &self.x[start + columns.start..start + columns.end]
    }

    /// Panics if `n_rows` rows do not have `n_columns` columns.
    fn check(&self, n_rows: usize, n_columns: usize) {
        let (numbers, row_len, start) = (self.x.len(), self.row_len, self.start);
        assert!(
            n_rows == 0 || start <= row_len && n_columns <= row_len - start && numbers >= n_rows * row_len,
            "{n_rows} rows of {n_columns} columns in {numbers} numbers, rows of {row_len} from {start} on"
        );
    }
}

/// A state that a row starts from or leaves, in the terms of one walk over a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatePlace {
    /// The resulting state: that of the root, or of the last row of a chain that is committed as a whole.
    Result,
    /// A level of scratch memory.
    Level(u32),
    /// Nowhere: no row starts from the state.
    None,
}

/// One row of a walk over a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateStep {
    /// The row, by its number among the rows of the call.
    pub row: u32,
    /// Where the parent's state is. The first step of a walk starts from the committed state.
    pub from: StatePlace,
    /// Where the row's state goes: the place that it came from, a higher level, or nowhere. The first step goes to
    /// [`StatePlace::Result`].
    pub to: StatePlace,
}

/// Inputs of rows.
#[derive(Clone, Copy, Debug)]
pub struct StateInputs<'a> {
    /// `[n_rows, n_key_heads, key_dim]`
    pub queries: RowPart<'a>,
    /// `[n_rows, n_key_heads, key_dim]`
    pub keys: RowPart<'a>,
    /// `[n_rows, n_heads, value_dim]`
    pub values: RowPart<'a>,
    /// `[n_rows, n_heads]`: factors of the state.
    pub decay: RowPart<'a>,
    /// `[n_rows, n_heads]`: β or the time step.
    pub gain: RowPart<'a>,
}

/// The walk of a call over a tree.
#[derive(Clone, Copy, Debug)]
pub struct StateWalk<'a> {
    /// Every row once, a parent before its children.
    pub steps: &'a [StateStep],
    /// Levels of scratch memory.
    pub n_levels: usize,
    /// The number of each row in its batch, `[n_rows]`, strictly rising.
    pub numbers: &'a [u32],
    /// Rows with lower numbers are not recorded.
    pub skipped: usize,
}

/// Scratch memory of [`advance_states`]: for each worker the states of one tile at all levels.
#[derive(Default)]
pub struct StateScratch {
    lines: Vec<Line>,
}

impl StateScratch {
    /// Empty scratch memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maximum bytes for trees of `n_rows` rows with `n_threads` threads.
    pub fn bytes(shape: &StateShape, n_threads: usize, n_rows: usize) -> u64 {
        // Levels are the Strahler numbers of trees, which at least double the rows with each level.
        let n_levels = usize::BITS - n_rows.leading_zeros();
        let tile_bytes = (64 * GROUP_PANELS as u64).saturating_mul(shape.key_dim as u64);
        tile_bytes.saturating_mul(u64::from(n_levels)).saturating_mul(n_threads as u64)
    }

    /// Memory held.
    pub fn size_bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }
}

/// Panels of an item. An item takes tiles of at most so many.
const GROUP_PANELS: usize = 4;

/// Applies the first `n_folded` of `records` to the states `from`, and then walks over a tree of rows.
///
/// `result` receives the state at [`StatePlace::Result`]. Row `r` of the batch is recorded as row `n_folded + r − walk.skipped` of
/// `records`, unless it is skipped. `out` is `[n_rows, n_heads, value_dim]`; its rows are those of `walk.numbers`.
///
/// # Panics
/// If a shape does not fit the states, the walk breaks the rules of [`StateStep`], or the records do not hold the rows.
#[allow(clippy::too_many_arguments, reason = "the arguments of one call")]
pub fn advance_states(
    k: Kernels,
    pool: &Pool,
    from: &StateBuf,
    result: &mut StateBuf,
    records: &mut RowRing,
    n_folded: usize,
    inputs: StateInputs<'_>,
    walk: StateWalk<'_>,
    scratch: &mut StateScratch,
    out: &mut [f32],
) {
    let shape = &from.shape;
    let n_rows = walk.numbers.len();
    for (part, n_columns) in [
        (inputs.queries, shape.key_len()),
        (inputs.keys, shape.key_len()),
        (inputs.values, shape.value_len()),
        (inputs.decay, shape.n_heads),
        (inputs.gain, shape.n_heads),
    ] {
        part.check(n_rows, n_columns);
    }
    assert_eq!(walk.steps.len(), n_rows, "a step for each row");
    for (i, step) in walk.steps.iter().enumerate() {
        check_step(i, step, &walk);
    }
    assert_eq!(out.len(), n_rows * shape.value_len());
    let n_new = walk.numbers.last().map_or(0, |&last| (last as usize + 1).saturating_sub(walk.skipped));
    assert!(
        n_folded <= records.n_rows && n_new <= records.n_rows - n_folded,
        "{n_new} records after {n_folded} of {}",
        records.n_rows
    );
    run_items(k, pool, from, result, records.shared(), n_folded, inputs, walk, scratch, out);
}

/// Applies the first `n_folded` of `records` to the states `from`, and writes the states after them to `result`.
///
/// # Panics
/// If the shapes differ, or there are fewer records.
pub fn fold_states(
    k: Kernels,
    pool: &Pool,
    from: &StateBuf,
    result: &mut StateBuf,
    records: &RowRing,
    n_folded: usize,
) {
    assert!(n_folded <= records.n_rows, "{n_folded} of {} records", records.n_rows);
    if n_folded == 0 {
        return result.copy_from(from);
    }
    let none = RowPart::all(&[], 0);
    let inputs = StateInputs { queries: none, keys: none, values: none, decay: none, gain: none };
    let walk = StateWalk { steps: &[], n_levels: 0, numbers: &[], skipped: 0 };
    let (mut scratch, out) = (StateScratch::new(), &mut []);
    run_items(k, pool, from, result, records.shared_to_read(), n_folded, inputs, walk, &mut scratch, out);
}

#[allow(clippy::too_many_arguments, reason = "the arguments of one call")]
fn run_items(
    k: Kernels,
    pool: &Pool,
    from: &StateBuf,
    result: &mut StateBuf,
    records: SharedRing<'_>,
    n_folded: usize,
    inputs: StateInputs<'_>,
    walk: StateWalk<'_>,
    scratch: &mut StateScratch,
    out: &mut [f32],
) {
    let shape = from.shape;
    assert_eq!(shape, result.shape);
    let own_len = walk.n_levels * GROUP_PANELS * shape.key_dim;
    if scratch.lines.len() < pool.n_threads() * own_len {
        // Freed first, because its contents are not needed.
        scratch.lines = Vec::new();
        scratch.lines.resize(pool.n_threads() * own_len, Line([0; 64]));
    }
    let workers = SharedMut::new(&mut scratch.lines);
    let n_groups = shape.n_panels().div_ceil(GROUP_PANELS);
    let (result, out) = (SharedMut::new(result.buf.lines_mut()), SharedMut::new(out));
    let work = shape.n_heads * shape.key_dim * shape.value_dim * (n_folded + walk.steps.len());
    pool.run_sized(work, shape.n_heads * n_groups, 1, &|worker, items| {
        // SAFETY: each worker has its own part, and the scratch outlives the section.
        let levels = unsafe { workers.slice(worker * own_len, own_len) };
        let from = from.buf.lines();
        k.run(Items { shape, from, result, records, n_folded, inputs, walk, levels, out, n_groups, items });
    });
}

fn check_step(i: usize, step: &StateStep, walk: &StateWalk<'_>) {
    assert!((step.row as usize) < walk.numbers.len(), "row {} of {}", step.row, walk.numbers.len());
    let fits = match (step.from, step.to) {
        (_, StatePlace::Result) if i == 0 => true,
        _ if i == 0 => false,
        (StatePlace::None, _) => false,
        (StatePlace::Level(from), StatePlace::Level(to)) => from <= to && (to as usize) < walk.n_levels,
        (StatePlace::Level(from), StatePlace::None) => (from as usize) < walk.n_levels,
        (StatePlace::Level(_), StatePlace::Result) => false,
        (StatePlace::Result, StatePlace::Level(to)) => (to as usize) < walk.n_levels,
        (StatePlace::Result, _) => true,
    };
    assert!(fits, "step {i} of {} levels: {step:?}", walk.n_levels);
}

/// Items of [`advance_states`].
struct Items<'a> {
    shape: StateShape,
    /// `[n_heads, n_panels, key_dim]`
    from: &'a [Line],
    /// `[n_heads, n_panels, key_dim]`
    result: SharedMut<Line>,
    records: SharedRing<'a>,
    n_folded: usize,
    inputs: StateInputs<'a>,
    walk: StateWalk<'a>,
    /// `[n_levels, GROUP_PANELS, key_dim]`
    levels: &'a mut [Line],
    out: SharedMut<f32>,
    n_groups: usize,
    items: Range<usize>,
}

impl Work for Items<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        match self.shape.rule {
            StateRule::Delta => self.run_rule::<S, true>(s),
            StateRule::Ssd => self.run_rule::<S, false>(s),
        }
    }
}

/// Lanes of a head: the panels from `panel` on, and the elements of the value in them.
#[derive(Clone)]
struct Tile {
    head: usize,
    panel: usize,
    values: Range<usize>,
}

/// Inputs of a row for one tile.
struct RowOfTile<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    decay: f32,
    gain: f32,
}

impl Items<'_> {
    #[inline(always)]
    fn run_rule<S: Simd, const DELTA: bool>(&mut self, s: S) {
        let n_panels = self.shape.n_panels();
        for item in self.items.clone() {
            let head = item / self.n_groups;
            let mut panel = item % self.n_groups * GROUP_PANELS;
            let end = n_panels.min(panel + GROUP_PANELS);
            self.record(&self.tile(head, panel, end - panel), panel == 0);
            // Sixteen accumulators: a vector is one of 32 registers.
            while S::ACCUMULATORS >= 16 && panel + 4 <= end {
                self.walk::<S, DELTA, 4>(s, &self.tile(head, panel, 4));
                panel += 4;
            }
            while panel + 2 <= end {
                self.walk::<S, DELTA, 2>(s, &self.tile(head, panel, 2));
                panel += 2;
            }
            while panel < end {
                self.walk::<S, DELTA, 1>(s, &self.tile(head, panel, 1));
                panel += 1;
            }
        }
    }

    #[inline(always)]
    fn tile(&self, head: usize, panel: usize, n: usize) -> Tile {
        let first = head * self.shape.value_dim;
        let end = self.shape.value_dim.min((panel + n) * LANES);
        Tile { head, panel, values: first + panel * LANES..first + end }
    }

    /// Records the item's part of all rows. `first` is whether the item is the first one of its head.
    #[inline(always)]
    fn record(&self, item: &Tile, first: bool) {
        let shape = &self.shape;
        let key_head = shape.key_head(item.head);
        let keys = key_head * shape.key_dim..(key_head + 1) * shape.key_dim;
        let (values_at, decay_at) = (shape.key_len(), shape.key_len() + shape.value_len());
        let owns_keys = first && shape.first_sharer(item.head) == item.head;
        for (row, &number) in self.walk.numbers.iter().enumerate() {
            let Some(record) = (number as usize).checked_sub(self.walk.skipped) else { continue };
            let record = self.n_folded + record;
            let values = values_at + item.values.start..values_at + item.values.end;
            // SAFETY: one item writes these lanes of the row's record, and nothing reads records of new rows. There are new
            // rows only in `advance_states`, which borrows the ring mutably.
            let to = unsafe { self.records.write(record, values) };
            to.copy_from_slice(self.inputs.values.get(row, item.values.clone()));
            if owns_keys {
                // SAFETY: as above; of the heads that share keys, only the first one's first item is here.
                let to = unsafe { self.records.write(record, keys.clone()) };
                to.copy_from_slice(self.inputs.keys.get(row, keys.clone()));
            }
            if first {
                for (part, at) in
                    [(self.inputs.decay, decay_at), (self.inputs.gain, decay_at + shape.n_heads)]
                {
                    // SAFETY: as above; only the head's first item is here.
                    let to = unsafe { self.records.write(record, at + item.head..at + item.head + 1) };
                    to.copy_from_slice(part.get(row, item.head..item.head + 1));
                }
            }
        }
    }

    #[inline(always)]
    fn folded_row(&self, record: usize, tile: &Tile) -> RowOfTile<'_> {
        let shape = &self.shape;
        let key = shape.key_head(tile.head) * shape.key_dim;
        let (values, decay) = (shape.key_len(), shape.key_len() + shape.value_len());
        // SAFETY: records of new rows are written only, and folded ones are read only.
        let read = |part: Range<usize>| unsafe { self.records.read(record, part) };
        let key = read(key..key + shape.key_dim);
        let (decay, gain) = (decay + tile.head, decay + shape.n_heads + tile.head);
        RowOfTile {
            // The output is not used.
            query: key,
            key,
            value: read(values + tile.values.start..values + tile.values.end),
            decay: read(decay..decay + 1)[0],
            gain: read(gain..gain + 1)[0],
        }
    }

    #[inline(always)]
    fn new_row(&self, row: usize, tile: &Tile) -> RowOfTile<'_> {
        let key_head = self.shape.key_head(tile.head);
        let keys = key_head * self.shape.key_dim..(key_head + 1) * self.shape.key_dim;
        RowOfTile {
            query: self.inputs.queries.get(row, keys.clone()),
            key: self.inputs.keys.get(row, keys),
            value: self.inputs.values.get(row, tile.values.clone()),
            decay: self.inputs.decay.get(row, tile.head..tile.head + 1)[0],
            gain: self.inputs.gain.get(row, tile.head..tile.head + 1)[0],
        }
    }

    /// Folds the records into `P` panels, and walks over the tree.
    #[inline(always)]
    fn walk<S: Simd, const DELTA: bool, const P: usize>(&mut self, s: S, tile: &Tile) {
        let tile_len = P * self.shape.key_dim;
        let start = (tile.head * self.shape.n_panels() + tile.panel) * self.shape.key_dim;
        let from = &self.from[start..start + tile_len];
        // SAFETY: each tile belongs to one item, and the result outlives the section.
        let result = unsafe { self.result.slice(start, tile_len) };
        // The levels are borrowed apart from the inputs.
        let levels = std::mem::take(&mut self.levels);
        for i in 0..self.n_folded + self.walk.steps.len() {
            let step = i.checked_sub(self.n_folded).map(|i| self.walk.steps[i]);
            let row = match step {
                None => self.folded_row(i, tile),
                Some(step) => self.new_row(step.row as usize, tile),
            };
            let places = match step {
                Some(step) if i > self.n_folded => (step.from, step.to),
                _ => (StatePlace::Result, StatePlace::Result),
            };
            let level = |level: u32| level as usize * tile_len;
            let mut panels: Panels<'_, P> = match places {
                (StatePlace::Result, StatePlace::Result) if i == 0 => Panels::apart(from, result),
                (StatePlace::Result, StatePlace::Result) => Panels::in_place(result),
                (StatePlace::Result, StatePlace::None) => Panels::read(result),
                (StatePlace::Result, StatePlace::Level(to)) => {
                    Panels::apart(result, &mut levels[level(to)..level(to) + tile_len])
                }
                (StatePlace::Level(from), StatePlace::None) => {
                    Panels::read(&levels[level(from)..level(from) + tile_len])
                }
                (StatePlace::Level(from), StatePlace::Level(to)) if from == to => {
                    Panels::in_place(&mut levels[level(to)..level(to) + tile_len])
                }
                (StatePlace::Level(from), StatePlace::Level(to)) => {
                    let (low, high) = levels.split_at_mut(level(to));
                    Panels::apart(&low[level(from)..level(from) + tile_len], &mut high[..tile_len])
                }
                (StatePlace::None, _) | (StatePlace::Level(_), StatePlace::Result) => {
                    unreachable!("`check_step` refuses it")
                }
            };
            let sums = match &mut panels {
                Panels::InPlace(panels) => row.step::<S, _, DELTA, P>(s, panels),
                Panels::Apart(panels) => row.step::<S, _, DELTA, P>(s, panels),
                Panels::Read(panels) => row.step::<S, _, DELTA, P>(s, panels),
            };
            if let Some(step) = step {
                let values = step.row as usize * self.shape.value_len() + tile.values.start;
                // SAFETY: each row's lanes belong to one item, and the output outlives the section.
                let out = unsafe { self.out.slice(values, tile.values.len()) };
                store_lanes(s, &sums, out);
            }
        }
        self.levels = levels;
    }
}

#[inline(always)]
fn load_lanes<S: Simd, const P: usize>(s: S, x: &[f32]) -> [S::F; P] {
    let mut lanes = [s.splat(0.0); P];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for (lanes, chunk) in lanes.iter_mut().zip(chunks) {
        *lanes = s.load(chunk);
    }
    if !tail.is_empty() {
        lanes[chunks.len()] = s.load_partial(tail, 0.0);
    }
    lanes
}

#[inline(always)]
fn store_lanes<S: Simd, const P: usize>(s: S, lanes: &[S::F; P], out: &mut [f32]) {
    let (chunks, tail) = out.as_chunks_mut::<LANES>();
    let n_chunks = chunks.len();
    for (lanes, chunk) in lanes.iter().zip(chunks) {
        s.store(*lanes, chunk);
    }
    if !tail.is_empty() {
        s.store_partial(lanes[n_chunks], tail);
    }
}

impl RowOfTile<'_> {
    /// The step of one row over `P` panels: returns the outputs.
    #[inline(always)]
    fn step<S: Simd, T: PanelsOf<P>, const DELTA: bool, const P: usize>(
        &self,
        s: S,
        panels: &mut T,
    ) -> [S::F; P] {
        let key_dim = self.key.len();
        let query = &self.query[..key_dim];
        panels.check(key_dim);
        let decay = s.splat(self.decay);
        let gain = s.splat(self.gain);
        let mut updates = load_lanes::<S, P>(s, self.value);
        if DELTA {
            let mut dots = [s.splat(0.0); P];
            for i in 0..key_dim {
                let key = s.splat(self.key[i]);
                for p in 0..P {
                    dots[p] = s.fma(s.load(panels.get(p, i)), key, dots[p]);
                }
            }
            let negated = s.splat(-self.decay);
            for p in 0..P {
                updates[p] = s.fma(negated, dots[p], updates[p]);
            }
        }
        for p in 0..P {
            updates[p] = s.mul(updates[p], gain);
        }
        let mut sums = [s.splat(0.0); P];
        for i in 0..key_dim {
            let (key, query) = (s.splat(self.key[i]), s.splat(query[i]));
            for p in 0..P {
                let x = s.fma(key, updates[p], s.mul(s.load(panels.get(p, i)), decay));
                sums[p] = s.fma(x, query, sums[p]);
                if T::STORES {
                    s.store(x, panels.get_mut(p, i));
                }
            }
        }
        sums
    }
}

/// `P` panels of state before and after a row.
trait PanelsOf<const P: usize> {
    const STORES: bool;
    /// Panics unless each panel has `key_dim` lines.
    fn check(&self, key_dim: usize);
    fn get(&self, panel: usize, key: usize) -> &[f32; LANES];
    fn get_mut(&mut self, panel: usize, key: usize) -> &mut [f32; LANES];
}

enum Panels<'a, const P: usize> {
    InPlace(InPlace<'a, P>),
    Apart(Apart<'a, P>),
    Read(Read<'a, P>),
}

impl<'a, const P: usize> Panels<'a, P> {
    #[inline(always)]
    fn in_place(lines: &'a mut [Line]) -> Self {
        Self::InPlace(InPlace(split_mut(lines)))
    }

    #[inline(always)]
    fn apart(from: &'a [Line], to: &'a mut [Line]) -> Self {
        Self::Apart(Apart(split(from), split_mut(to)))
    }

    #[inline(always)]
    fn read(lines: &'a [Line]) -> Self {
        Self::Read(Read(split(lines)))
    }
}

#[inline(always)]
fn split<const P: usize>(lines: &[Line]) -> [&[Line]; P] {
    let len = lines.len() / P;
    std::array::from_fn(|p| &lines[p * len..(p + 1) * len])
}

#[inline(always)]
fn split_mut<const P: usize>(mut lines: &mut [Line]) -> [&mut [Line]; P] {
    let len = lines.len() / P;
    std::array::from_fn(|_| {
        let (panel, others) = std::mem::take(&mut lines).split_at_mut(len);
        lines = others;
        panel
    })
}

/// The state of the row replaces that of its parent.
struct InPlace<'a, const P: usize>([&'a mut [Line]; P]);

impl<const P: usize> PanelsOf<P> for InPlace<'_, P> {
    const STORES: bool = true;
    #[inline(always)]
    fn check(&self, key_dim: usize) {
        for p in 0..P {
            assert_eq!(self.0[p].len(), key_dim);
        }
    }
    #[inline(always)]
    fn get(&self, panel: usize, key: usize) -> &[f32; LANES] {
        self.0[panel][key].floats()
    }
    #[inline(always)]
    fn get_mut(&mut self, panel: usize, key: usize) -> &mut [f32; LANES] {
        self.0[panel][key].floats_mut()
    }
}

/// The parent's state stays, because other rows start from it.
struct Apart<'a, const P: usize>([&'a [Line]; P], [&'a mut [Line]; P]);

impl<const P: usize> PanelsOf<P> for Apart<'_, P> {
    const STORES: bool = true;
    #[inline(always)]
    fn check(&self, key_dim: usize) {
        for p in 0..P {
            assert_eq!((self.0[p].len(), self.1[p].len()), (key_dim, key_dim));
        }
    }
    #[inline(always)]
    fn get(&self, panel: usize, key: usize) -> &[f32; LANES] {
        self.0[panel][key].floats()
    }
    #[inline(always)]
    fn get_mut(&mut self, panel: usize, key: usize) -> &mut [f32; LANES] {
        self.1[panel][key].floats_mut()
    }
}

/// The state of the row is not needed.
struct Read<'a, const P: usize>([&'a [Line]; P]);

impl<const P: usize> PanelsOf<P> for Read<'_, P> {
    const STORES: bool = false;
    #[inline(always)]
    fn check(&self, key_dim: usize) {
        for p in 0..P {
            assert_eq!(self.0[p].len(), key_dim);
        }
    }
    #[inline(always)]
    fn get(&self, panel: usize, key: usize) -> &[f32; LANES] {
        self.0[panel][key].floats()
    }
    #[inline(always)]
    fn get_mut(&mut self, _: usize, _: usize) -> &mut [f32; LANES] {
        unreachable!("nothing is stored")
    }
}

/// Maximum taps of a [convolution](convolve): four times those of the longest in use.
pub const CONV_LEN_MAX: usize = 16;

/// The parent of a row without one.
pub const NO_PARENT: u32 = u32::MAX;

/// Rows of a depthwise convolution.
#[derive(Clone, Copy, Debug)]
pub struct ConvRows<'a> {
    /// `[n_rows, conv_dim]`
    pub x: RowPart<'a>,
    /// The parent of each row among the rows of the call, or [`NO_PARENT`]: its ancestors are the committed inputs.
    pub parents: &'a [u32],
    /// The number of each row in its batch, `[n_rows]`, strictly rising.
    pub numbers: &'a [u32],
    /// Rows with lower numbers are not recorded.
    pub skipped: usize,
}

/// Columns of an item of a convolution: their inputs, weights and outputs take a quarter of the first-level cache.
const CONV_COLUMNS: usize = 512;

/// Depthwise causal convolution of each row over its own ancestors' inputs: the formula of the module comment.
///
/// `weight` is `[conv_len, conv_dim]`, the newest tap last; `bias`, `[conv_dim]`, is the first summand, if there is one. The first
/// `n_committed` rows of `inputs`, rows of `conv_dim`, are the inputs before the batch, at least `conv_len − 1`; row `r` of the batch is
/// recorded as row `n_committed + r − rows.skipped`, unless it is skipped. `out` is `[n_rows, conv_dim]`.
///
/// # Panics
/// If a length is wrong, `conv_len` is 0 or exceeds [`CONV_LEN_MAX`], a parent does not come before its child, or the inputs do not
/// hold the rows.
#[allow(clippy::too_many_arguments, reason = "the arguments of one call")]
pub fn convolve(
    k: Kernels,
    pool: &Pool,
    weight: &[f32],
    bias: Option<&[f32]>,
    inputs: &mut RowRing,
    n_committed: usize,
    rows: ConvRows<'_>,
    out: &mut [f32],
) {
    let conv_dim = inputs.row_len;
    assert!(conv_dim > 0 && weight.len().is_multiple_of(conv_dim), "{} weights of {conv_dim}", weight.len());
    let conv_len = weight.len() / conv_dim;
    assert!((1..=CONV_LEN_MAX).contains(&conv_len), "{conv_len} taps");
    assert!(bias.is_none_or(|bias| bias.len() == conv_dim));
    let n_rows = rows.numbers.len();
    assert_eq!(rows.parents.len(), n_rows, "one parent per row");
    assert_eq!(out.len(), n_rows * conv_dim);
    rows.x.check(n_rows, conv_dim);
    for (row, &parent) in rows.parents.iter().enumerate() {
        assert!(parent == NO_PARENT || (parent as usize) < row, "row {row} with parent {parent}");
    }
    // Rows with one number would write one slot at the same time.
    assert!(rows.numbers.is_sorted_by(|a, b| a < b), "numbers rise strictly");
    assert!(
        conv_len - 1 <= n_committed && n_committed <= inputs.n_rows,
        "{n_committed} inputs before the batch"
    );
    let n_new = rows.numbers.last().map_or(0, |&last| (last as usize + 1).saturating_sub(rows.skipped));
    assert!(n_new <= inputs.n_rows - n_committed, "{n_new} rows after {n_committed} of {}", inputs.n_rows);
    let n_chunks = conv_dim.div_ceil(CONV_COLUMNS);
    let (inputs, out) = (inputs.shared(), SharedMut::new(out));
    pool.run_sized(n_rows * weight.len(), n_rows * n_chunks, 1, &|_, items| {
        k.run(ConvItems {
            weight,
            bias,
            conv_dim,
            conv_len,
            inputs,
            n_committed,
            rows,
            out,
            n_chunks,
            items,
        });
    });
}

/// Items of [`convolve`]: some columns of a row each.
struct ConvItems<'a> {
    /// `[conv_len, conv_dim]`
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    conv_dim: usize,
    conv_len: usize,
    inputs: SharedRing<'a>,
    n_committed: usize,
    rows: ConvRows<'a>,
    out: SharedMut<f32>,
    n_chunks: usize,
    items: Range<usize>,
}

impl Work for ConvItems<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for item in self.items.clone() {
            let (row, start) = (item / self.n_chunks, item % self.n_chunks * CONV_COLUMNS);
            let columns = start..self.conv_dim.min(start + CONV_COLUMNS);
            // The inputs and the weights of the taps.
            let mut taps = [(&[][..], &[][..]); CONV_LEN_MAX];
            let (mut ancestor, mut n_back) = (Some(row), 0);
            for tap in (0..self.conv_len).rev() {
                let x = match ancestor {
                    Some(row) => self.rows.x.get(row, columns.clone()),
                    None => {
                        n_back += 1;
                        // SAFETY: rows before the batch are read only.
                        unsafe { self.inputs.read(self.n_committed - n_back, columns.clone()) }
                    }
                };
                let weight = &self.weight[tap * self.conv_dim..][columns.clone()];
                taps[tap] = (x, weight);
                ancestor = match ancestor {
                    Some(row) if self.rows.parents[row] != NO_PARENT => Some(self.rows.parents[row] as usize),
                    _ => None,
                };
            }
            if let Some(slot) = (self.rows.numbers[row] as usize).checked_sub(self.rows.skipped) {
                // SAFETY: each row has its own slot behind those before the batch, and each item its own columns.
                let slot = unsafe { self.inputs.write(self.n_committed + slot, columns.clone()) };
                slot.copy_from_slice(self.rows.x.get(row, columns.clone()));
            }
            // SAFETY: each item has its own part, and the output outlives the section.
            let out = unsafe { self.out.slice(row * self.conv_dim + columns.start, columns.len()) };
            let bias = self.bias.map(|bias| &bias[columns]);
            convolve_columns(s, &taps[..self.conv_len], bias, out);
        }
    }
}

/// The sum of the taps, pairs of inputs and weights, for the columns of `out`.
#[inline(always)]
fn convolve_columns<S: Simd>(s: S, taps: &[(&[f32], &[f32])], bias: Option<&[f32]>, out: &mut [f32]) {
    let (chunks, tail) = out.as_chunks_mut::<LANES>();
    for (i, chunk) in chunks.iter_mut().enumerate() {
        let mut sum = match bias {
            Some(bias) => s.load(&bias.as_chunks().0[i]),
            None => s.splat(0.0),
        };
        for (x, weight) in taps {
            sum = s.fma(s.load(&weight.as_chunks().0[i]), s.load(&x.as_chunks().0[i]), sum);
        }
        s.store(sum, chunk);
    }
    if !tail.is_empty() {
        let mut sum = match bias {
            Some(bias) => s.load_partial(bias.as_chunks::<LANES>().1, 0.0),
            None => s.splat(0.0),
        };
        for (x, weight) in taps {
            let (x, weight) = (x.as_chunks::<LANES>().1, weight.as_chunks::<LANES>().1);
            sum = s.fma(s.load_partial(weight, 0.0), s.load_partial(x, 0.0), sum);
        }
        s.store_partial(sum, tail);
    }
}
