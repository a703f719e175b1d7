//! Recurrent layers: steps of a matrix state over the rows of a draft tree. `convolution.rs` has the convolution before them.
//!
//! A head's state `S` is a matrix `[key_dim, value_dim]`. A row changes the state of its parent:
//!
//! ```text
//! gated delta rule     d[j] = fma(S[i][j], k[i], ·) over i in order, from 0
//!                      u[j] = fma(−decay, d[j], v[j]) · gain
//! Mamba-2              u[j] = v[j] · gain
//! both                 S'[i][j] = fma(k[i], u[j], S[i][j] · decay)
//!                      out[j] = fma(S'[i][j], q[i], ·) over i in order, from 0
//! ```
//!
//! A lane is one element `j` of the value, so there is no sum across lanes. Lanes are independent of each
//! other: an item of work is a head and up to 64 of its lanes, and walks the whole tree.
//!
//! States lie in panels of 16 lanes, `[n_heads, value_dim / 16, key_dim, 16]`. A step reads a tile of 4 panels (2 with 16 registers)
//! twice and writes it once. With 128 keys it takes 32 KiB, so that it stays in the first-level cache from the first row of a
//! tree to the last, and costs the bandwidth of memory once per pass and not once per row.

use std::ops::Range;

use super::Kernels;
use super::aligned::{AlignedBuf, AllocError, Line};
use super::pool::{Pool, SharedMut};
use super::ring::{RowRing, SharedRing};
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
    pub(super) fn get(&self, row: usize, columns: Range<usize>) -> &'a [f32] {
        let start = row * self.row_len + self.start;
        &self.x[start + columns.start..start + columns.end]
    }

    /// Panics if `n_rows` rows do not have `n_columns` columns.
    pub(super) fn check(&self, n_rows: usize, n_columns: usize) {
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
        n_folded <= records.n_rows() && n_new <= records.n_rows() - n_folded,
        "{n_new} records after {n_folded} of {}",
        records.n_rows()
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
    assert!(n_folded <= records.n_rows(), "{n_folded} of {} records", records.n_rows());
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
