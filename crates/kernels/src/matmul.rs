//! Products of activations and packed matrices. They take nearly all the time of a forward pass.
//!
//! One kernel per kind of weights computes a *tile*: one or two panels (16 outputs each, one per lane) of 1
//! to 6 activation rows, or of up to 16 rows in *tall tiles* (`avx2/tall.rs`). This module defines the order of each
//! output's sum, and no tile shape changes it:
//!
//! ```text
//! integer codes:  acc = 0
//!                 for each block of 32 columns:
//!                     acc = fma(scale · a.scale, Σ level · a.q, acc)              Σ exact in i32; level = code − bias, or of a table
//!                     acc = fma(min, a.scale · Σ a.q, acc)                        if the format has minima
//!                 the same for each 16 columns if they have their own scale
//! floats:         acc[c % 4] = fma(w[c], x[c], acc[c % 4]);  out = (acc[0] + acc[1]) + (acc[2] + acc[3])
//! ```
//!
//! `vpdpbusd` multiplies unsigned by signed bytes, so codes are stored unsigned and Σ starts from −bias · Σ
//! a.q. The correction costs nothing and is exact. Levels of a table are looked up by a byte shuffle, unsigned too.
//!
//! Cost sketch: one row reads every weight once, 0.27 bytes (TQ2_0) to 1.06 (Q8_0) each, so it runs at memory
//! speed. With more rows, a panel (24 KiB of Q8_0 at 1536 columns) stays in the first-level cache while all
//! row tiles use it.

use std::marker::PhantomData;
use std::ops::Range;

use super::Kernels;
use super::activations::{ActivationForm, Activations, TALL_ROWS_MAX};
use super::aligned::Line;
use super::block::{BlockFormat, BlockType, with_format};
use super::int8::{Block, RowOrder};
use super::layout::{IntLayout, PANEL_ROWS, Scales};
use super::packed::{PackedMatrix, PackedRows};
use super::pool::{Pool, SharedMut};
use super::simd::{Ahead, Simd, Work, codes};

/// One product of a [`matmul`]: `out[r, o] = Σ_c w[o, c] · x[r, c]`.
pub struct MatMul<'a> {
    /// The weights, `[n_outputs, n_cols]`.
    pub w: &'a PackedMatrix,
    /// `[n_act_rows, n_outputs]`, row-major; overwritten.
    pub out: &'a mut [f32],
}

/// Panels that a worker takes at a time, as for the widest tile.
const TILE_PANELS: usize = 2;

/// Maximum jobs of one call: q, k and v are three.
const JOBS_MAX: usize = 8;

/// Multiplies the activations with each matrix, in one parallel section.
///
/// The work is split by the panels of all jobs. The activations must have been [set](Activations::set) in
/// each matrix's [form](PackedMatrix::activation_form) for the same instruction set.
///
/// # Panics
/// If a shape or a form does not match, or there are more than 8 jobs.
pub fn matmul(k: Kernels, pool: &Pool, x: &Activations, jobs: &mut [MatMul<'_>]) {
    assert!(jobs.len() <= JOBS_MAX, "{} jobs in one call", jobs.len());
    let mut outs = [SharedMut::empty(); JOBS_MAX];
    let (mut n_panels, mut bytes) = (0, 0);
    for (job, out) in jobs.iter_mut().zip(&mut outs) {
        assert_eq!(job.w.n_cols(), x.n_cols(), "columns of the matrix and of the activations");
        assert_eq!(job.out.len(), job.w.n_rows() * x.n_rows(), "outputs");
        assert!(
            x.has(job.w.activation_form()),
            "the activations lack the form {:?}",
            job.w.activation_form()
        );
        *out = SharedMut::new(job.out);
        n_panels += job.w.n_panels();
        bytes += job.w.size_bytes();
    }
    if x.n_rows() == 0 {
        return;
    }
    let jobs: &[MatMul<'_>] = jobs;
    pool.run_sized(bytes.saturating_mul(x.n_rows()), n_panels, TILE_PANELS, &|_, range| {
        let mut first = 0;
        for (job, &out) in jobs.iter().zip(&outs) {
            let panels = range.start.max(first)..range.end.min(first + job.w.n_panels());
            if !panels.is_empty() {
                let panels = panels.start - first..panels.end - first;
                Panels { w: job.w.all(), x, rows: 0..x.n_rows(), out, panels }.multiply(k);
            }
            first += job.w.n_panels();
        }
    });
}

/// Rows of activations that are multiplied with one matrix of several, for example with an expert's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowGroup {
    /// The first row; a multiple of [`Activations::group_step`].
    pub first_row: usize,
    /// Number of rows.
    pub n_rows: usize,
    /// The row of the outputs that the first row's outputs go to.
    pub first_out: usize,
}

/// One product of a [`matmul_groups`]: `out[r, o] = Σ_c w(group of r)[o, c] · x[r, c]`.
pub struct GroupedMatMul<'a> {
    /// The weights of a group, `[n_outputs, n_cols]`.
    pub w: &'a (dyn Fn(usize) -> PackedRows<'a> + Sync),
    /// `[n_out_rows, n_outputs]`, row-major; rows of no group are kept.
    pub out: &'a mut [f32],
}

/// Multiplies groups of rows, each with its own matrix, in one parallel section. An output has the bits of a
/// [`matmul`] with its row and its matrix.
///
/// The matrices of a product have the same shape, and the products the same number of outputs. The activations must have
/// been set in each matrix's form. Output rows of groups must not overlap.
///
/// # Panics
/// If a shape, a form or a group does not match, or there are more than 8 jobs.
pub fn matmul_groups(
    k: Kernels,
    pool: &Pool,
    x: &Activations,
    groups: &[RowGroup],
    n_outputs: usize,
    jobs: &mut [GroupedMatMul<'_>],
) {
    assert!(jobs.len() <= JOBS_MAX, "{} jobs in one call", jobs.len());
    assert_eq!(x.n_groups(), 0, "the activations are laid out for products of all rows");
    let step = Activations::group_step(k);
    let mut end_out = 0;
    for group in groups {
        assert!(group.first_row.is_multiple_of(step), "row {} in steps of {step}", group.first_row);
        assert!(group.first_row + group.n_rows <= x.n_rows(), "{group:?} of {} rows", x.n_rows());
        assert!(end_out <= group.first_out, "{group:?} overlaps the group before it");
        end_out = group.first_out + group.n_rows;
    }
    let mut outs = [SharedMut::empty(); JOBS_MAX];
    for (job, out) in jobs.iter_mut().zip(&mut outs) {
        assert!(end_out * n_outputs <= job.out.len(), "outputs");
        *out = SharedMut::new(job.out);
    }
    let (n_jobs, n_panels) = (jobs.len(), n_outputs.div_ceil(PANEL_ROWS));
    // A group's panels of one product, and then those of the next: they share the rows of the group.
    let n_items = groups.len() * n_jobs * n_panels;
    let work = n_items.saturating_mul(PANEL_ROWS).saturating_mul(x.n_cols());
    let jobs: &[GroupedMatMul<'_>] = jobs;
    pool.run_sized(work, n_items, TILE_PANELS, &|_, items| {
        let mut item = items.start;
        while item < items.end {
            let (product, first) = (item / n_panels, item % n_panels);
            let n = (n_panels - first).min(items.end - item);
            let (group_idx, job_idx) = (product / n_jobs, product % n_jobs);
            let (group, w) = (groups[group_idx], (jobs[job_idx].w)(group_idx));
            assert_eq!((w.n_rows(), w.n_cols()), (n_outputs, x.n_cols()), "the matrix of group {group_idx}");
            let form = w.activation_form();
            assert!(x.has(form), "the activations lack the form {form:?}");
            // The output rows of groups do not overlap, so those of two workers' panels do not either.
            let out = outs[job_idx].part(group.first_out * n_outputs, group.n_rows * n_outputs);
            let rows = group.first_row..group.first_row + group.n_rows;
            if group.n_rows > 0 {
                Panels { w, x, rows, out, panels: first..first + n }.multiply(k);
            }
            item += n;
        }
    });
}

/// The rows of the next tile if `n` are left: 1, 2, 3, 4 or 6, at most `max`, so that the tiles are of about the same height.
#[inline(always)]
fn tile_rows(n: usize, max: usize) -> usize {
    match n.div_ceil(n.div_ceil(max)) {
        5 if max > 5 => {
            if n == 5 {
                3
            } else {
                6
            }
        }
        height => height,
    }
}

/// A worker's panels of one job.
struct Panels<'a> {
    w: PackedRows<'a>,
    x: &'a Activations,
    /// The rows of the activations.
    rows: Range<usize>,
    /// `[rows.len(), n_outputs]`
    out: SharedMut<f32>,
    panels: Range<usize>,
}

/// Panels of integer codes.
struct IntPanels<'a>(Panels<'a>);

impl Work for IntPanels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_format!(
            self.0.w.block_type(),
            F => self.0.int_panels::<S, <F as BlockFormat>::Layout>(s),
            _ => unreachable!("{} has no codes", self.0.w.block_type())
        );
    }
}

/// Panels of floats.
struct FloatPanels<'a>(Panels<'a>);

impl Work for FloatPanels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.0.w.block_type() {
            BlockType::F32 => self.0.float_panels::<S, F32Columns>(s),
            BlockType::F16 => self.0.float_panels::<S, F16Columns>(s),
            BlockType::BF16 => self.0.float_panels::<S, BF16Columns>(s),
            ty => unreachable!("{ty} has codes"),
        }
    }
}

/// A tile of `P` panels and `R` rows of integer codes; its run returns `R`.
struct IntTile<'a, L, const P: usize, const R: usize> {
    panels: &'a Panels<'a>,
    panel: usize,
    row: usize,
    next: &'a [Line],
    layout: PhantomData<L>,
}

impl<'a, L, const P: usize, const R: usize> IntTile<'a, L, P, R> {
    #[inline(always)]
    fn new(panels: &'a Panels<'a>, panel: usize, row: usize, next: &'a [Line]) -> Self {
        IntTile { panels, panel, row, next, layout: PhantomData }
    }
}

impl<L: IntLayout, const P: usize, const R: usize> Work for IntTile<'_, L, P, R> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        self.panels.int_tile::<S, L, P, R>(s, self.panel, self.row, self.next)
    }
}

/// A tall tile of the group of rows that begins with `row`; its run returns the rows of the group.
struct TallTile<'a, L> {
    all: &'a Panels<'a>,
    panel: usize,
    row: usize,
    next: &'a [Line],
    layout: PhantomData<L>,
}

impl<L: IntLayout> Work for TallTile<'_, L> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        self.all.tall_tile::<S, L>(s, self.panel, self.row, self.next)
    }
}

impl Panels<'_> {
    fn multiply(self, k: Kernels) {
        if self.w.block_type().is_float() {
            k.run(FloatPanels(self));
        } else {
            k.run_codes(IntPanels(self));
        }
    }

    #[inline(always)]
    fn int_panels<S: Simd, L: IntLayout>(&self, s: S) {
        debug_assert!(self.x.has(ActivationForm::Int8));
        if S::OWN_TILES.is_some() {
            for panel in self.panels.clone() {
                self.own_rows::<S, L>(s, panel);
            }
            return;
        }
        if S::TALL_ROWS > 0 && self.x.n_groups() > 0 {
            for panel in self.panels.clone() {
                self.tall_rows::<S, L>(s, panel);
            }
            return;
        }
        assert!(self.x.n_groups() == 0, "the activations were set for another instruction set");
        // A single row is limited by reading, and a single stream is read fastest.
        let widest = if self.rows.len() == 1 { 1 } else { S::INT_TILE_PANELS };
        let mut panel = self.panels.start;
        while panel < self.panels.end {
            panel += match self.panels.end - panel {
                2.. if S::INT_TILE_PANELS >= 2 && widest >= 2 => self.int_rows::<S, L, 2>(s, panel),
                _ => self.int_rows::<S, L, 1>(s, panel),
            };
        }
    }

    /// `P` panels for all rows, in tiles of about the same height; returns `P`.
    #[inline(always)]
    fn int_rows<S: Simd, L: IntLayout, const P: usize>(&self, s: S, panel: usize) -> usize {
        let n_rows = self.rows.len();
        let next = self.next(panel + P, P);
        // Each row tile prefetches its share.
        let share = next.len().div_ceil(n_rows.div_ceil(S::INT_TILE_ROWS));
        let mut shares = next.chunks(share.max(1));
        let mut row = 0;
        while row < n_rows {
            let lines = shares.next().unwrap_or(&[]);
            row += match tile_rows(n_rows - row, S::INT_TILE_ROWS) {
                6 if S::INT_TILE_ROWS >= 6 => s.run_apart(IntTile::<L, P, 6>::new(self, panel, row, lines)),
                4 if S::INT_TILE_ROWS >= 4 => s.run_apart(IntTile::<L, P, 4>::new(self, panel, row, lines)),
                3 if S::INT_TILE_ROWS >= 3 => s.run_apart(IntTile::<L, P, 3>::new(self, panel, row, lines)),
                2 if S::INT_TILE_ROWS >= 2 => s.run_apart(IntTile::<L, P, 2>::new(self, panel, row, lines)),
                _ => s.run_apart(IntTile::<L, P, 1>::new(self, panel, row, lines)),
            };
        }
        P
    }

    /// A panel for all groups of rows.
    #[inline(always)]
    fn tall_rows<S: Simd, L: IntLayout>(&self, s: S, panel: usize) {
        let next = self.next(panel + 1, 1);
        let mut shares = next.chunks(next.len().div_ceil(self.x.n_groups()).max(1));
        let mut row = 0;
        while row < self.x.n_rows() {
            let next = shares.next().unwrap_or(&[]);
            row += s.run_apart(TallTile::<L> { all: self, panel, row, next, layout: PhantomData });
        }
    }

    /// A panel for the group of rows that begins with `row`; returns its number of rows.
    #[inline(always)]
    fn tall_tile<S: Simd, L: IntLayout>(&self, s: S, panel: usize, row: usize, next: &[Line]) -> usize {
        let (n_rows, blocks) = self.x.group(row);
        let lines = self.w.panel(panel);
        let ahead = Ahead::of_blocks(next, self.x.n_cols() / 32);
        let mut sums = [Line([0; 64]); TALL_ROWS_MAX];
        let sums = &mut sums[..n_rows];
        s.tall_tile::<L>(lines, blocks, &ahead, sums);
        for (r, sum) in sums.iter().enumerate() {
            self.store(s, panel, row + r, [s.load(sum.floats())]);
        }
        n_rows
    }

    /// A panel for all rows, in the instruction set's own tiles.
    #[inline(always)]
    fn own_rows<S: Simd, L: IntLayout>(&self, s: S, panel: usize) {
        let n_rows = self.rows.len();
        let next = self.next(panel + 1, 1);
        let share = next.len().div_ceil(n_rows.div_ceil(8));
        let mut shares = next.chunks(share.max(1));
        let mut row = 0;
        while row < n_rows {
            let lines = shares.next().unwrap_or(&[]);
            let left = n_rows - row;
            // Tiles begin with a pair. Woven rows are multiplied in pairs, if need be with a row of zeros.
            row += match (left, S::OWN_TILES) {
                (1, _) => self.own_tile::<S, L, 1>(s, panel, row, lines),
                (2, _) => self.own_tile::<S, L, 2>(s, panel, row, lines),
                (3, Some(RowOrder::Apart)) => self.own_tile::<S, L, 3>(s, panel, row, lines),
                (5 | 7, Some(RowOrder::Apart)) | (..=4, _) => self.own_tile::<S, L, 4>(s, panel, row, lines),
                (5 | 6, _) => self.own_tile::<S, L, 6>(s, panel, row, lines),
                _ => self.own_tile::<S, L, 8>(s, panel, row, lines),
            };
        }
    }

    /// A panel for `R` rows or as many as there are; returns `R`.
    #[inline(always)]
    fn own_tile<S: Simd, L: IntLayout, const R: usize>(
        &self,
        s: S,
        panel: usize,
        row: usize,
        next: &[Line],
    ) -> usize {
        let n_blocks = self.x.n_cols() / 32;
        let pairs = &self.x.row_pairs()[(self.rows.start + row) / 2 * n_blocks..][..R.div_ceil(2) * n_blocks];
        let ahead = Ahead::new(next, n_blocks.div_ceil(8));
        let acc = s.own_tile::<L, R>(self.w.panel(panel), pairs, &ahead);
        self.store(s, panel, row, acc);
        R
    }

    /// Up to `n` panels from `first` on: usually those that this worker computes next.
    #[inline(always)]
    fn next(&self, first: usize, n: usize) -> &[Line] {
        let end = self.w.n_panels();
        self.w.panels(first.min(end)..(first + n).min(end))
    }

    /// `P` panels for `R` rows; returns `R`.
    #[inline(always)]
    fn int_tile<S: Simd, L: IntLayout, const P: usize, const R: usize>(
        &self,
        s: S,
        panel: usize,
        row: usize,
        next: &[Line],
    ) -> usize {
        let n_blocks = self.x.n_cols() / 32;
        let mut rows: [&[Block]; R] = [&[]; R];
        for r in 0..R {
            rows[r] = &self.x.block_rows()[(self.rows.start + row + r) * n_blocks..][..n_blocks];
        }
        let mut panels: [&[Line]; P] = [&[]; P];
        for p in 0..P {
            panels[p] = self.w.panel(panel + p);
        }
        let ahead = Ahead::of_blocks(next, n_blocks);
        let acc = int_tile::<S, L, P, R>(s, panels, rows, &ahead);
        for p in 0..P {
            self.store(s, panel + p, row, acc[p]);
        }
        R
    }

    #[inline(always)]
    fn float_panels<S: Simd, C: FloatColumns>(&self, s: S) {
        let n_rows = self.rows.len();
        for panel in self.panels.clone() {
            let next = self.next(panel + 1, 1);
            let share = next.len().div_ceil(n_rows.div_ceil(S::FLOAT_TILE_ROWS));
            let mut shares = next.chunks(share.max(1));
            let mut row = 0;
            while row < n_rows {
                let lines = shares.next().unwrap_or(&[]);
                row += match n_rows - row {
                    4.. if S::FLOAT_TILE_ROWS >= 4 => self.float_tile::<S, C, 4>(s, panel, row, lines),
                    2.. if S::FLOAT_TILE_ROWS >= 2 => self.float_tile::<S, C, 2>(s, panel, row, lines),
                    _ => self.float_tile::<S, C, 1>(s, panel, row, lines),
                };
            }
        }
    }

    #[inline(always)]
    fn float_tile<S: Simd, C: FloatColumns, const R: usize>(
        &self,
        s: S,
        panel: usize,
        row: usize,
        next: &[Line],
    ) -> usize {
        let n_cols = self.x.n_cols();
        let mut rows: [&[f32]; R] = [&[]; R];
        for r in 0..R {
            rows[r] = &self.x.float_rows()[(self.rows.start + row + r) * n_cols..][..n_cols];
        }
        let ahead = Ahead::new(next, n_cols.div_ceil(4));
        let acc = float_tile::<S, C, R>(s, self.w.panel(panel), rows, &ahead);
        self.store(s, panel, row, acc);
        R
    }

    /// Writes the outputs of one panel of a tile.
    #[inline(always)]
    fn store<S: Simd, const R: usize>(&self, s: S, panel: usize, row: usize, acc: [S::F; R]) {
        let n_outputs = self.w.n_rows();
        let start = panel * PANEL_ROWS;
        let len = PANEL_ROWS.min(n_outputs - start);
        // (A tile may have a row more than there are.)
        for r in 0..R.min(self.rows.len() - row) {
            // SAFETY: a panel belongs to one worker, so parts of two workers do not overlap; the section ends
            // before `out`.
            let out = unsafe { self.out.slice((row + r) * n_outputs + start, len) };
            match out.as_chunks_mut().0.first_mut() {
                Some(out) => s.store(acc[r], out),
                None => s.store_partial(acc[r], out),
            }
        }
    }
}

/// `P` panels times `R` rows of 8-bit blocks.
#[inline(always)]
pub(super) fn int_tile<S: Simd, L: IntLayout, const P: usize, const R: usize>(
    s: S,
    panels: [&[Line]; P],
    rows: [&[Block]; R],
    ahead: &Ahead<'_>,
) -> [[S::F; R]; P] {
    let mut acc = [[s.splat(0.0); R]; P];
    let n_blocks = rows[0].len();
    for unit in 0..panels[0].len() / L::UNIT_LINES {
        let mut units: [&[Line]; P] = [&[]; P];
        for p in 0..P {
            units[p] = &panels[p][unit * L::UNIT_LINES..][..L::UNIT_LINES];
        }
        let mut factors = [[s.splat(0.0); 2]; P];
        for p in 0..P {
            factors[p] = L::factors(s, &units[p][L::UNIT_BLOCKS * L::BLOCK_LINES..]);
        }
        let first = unit * L::UNIT_BLOCKS;
        for b in 0..L::UNIT_BLOCKS.min(n_blocks - first) {
            ahead.at_block(s, first + b);
            let mut a = [&rows[0][0]; R];
            for r in 0..R {
                a[r] = &rows[r][first + b];
            }
            int_block::<S, L, P, R>(s, units, factors, b, a, &mut acc);
        }
    }
    acc
}

/// Block `b` of the unit, 32 columns: the module's formula.
#[inline(always)]
fn int_block<S: Simd, L: IntLayout, const P: usize, const R: usize>(
    s: S,
    units: [&[Line]; P],
    factors: [[S::F; 2]; P],
    b: usize,
    a: [&Block; R],
    acc: &mut [[S::F; R]; P],
) {
    let first_line = b * L::BLOCK_LINES;
    let mut blocks: [&[Line]; P] = [&[]; P];
    let mut scale_lines: [&[Line]; P] = [&[]; P];
    for p in 0..P {
        blocks[p] = &units[p][first_line..][..L::BLOCK_LINES];
        scale_lines[p] = &units[p][L::UNIT_BLOCKS * L::BLOCK_LINES..];
    }
    let scales = |p: usize, half| L::scales(s, scale_lines[p], factors[p], b, half);
    if L::SPLIT {
        // No loop: it would compute the codes of both halves first, and keep them in memory.
        int_groups::<S, L, P, R, 4>(s, blocks, [0, 1, 2, 3], 0, |p| scales(p, 0), a, acc);
        int_groups::<S, L, P, R, 4>(s, blocks, [4, 5, 6, 7], 1, |p| scales(p, 1), a, acc);
    } else {
        // Groups that share a line are consecutive, so the line is loaded once.
        let groups = if L::BITS < 4 { [0, 1, 2, 3, 4, 5, 6, 7] } else { [0, 4, 1, 5, 2, 6, 3, 7] };
        int_groups::<S, L, P, R, 8>(s, blocks, groups, 0, |p| scales(p, 0), a, acc);
    }
}

/// The groups of a block, or of the half of a block, that share a scale.
#[inline(always)]
fn int_groups<S: Simd, L: IntLayout, const P: usize, const R: usize, const G: usize>(
    s: S,
    blocks: [&[Line]; P],
    groups: [usize; G],
    half: usize,
    scales: impl Fn(usize) -> Scales<S>,
    a: [&Block; R],
    acc: &mut [[S::F; R]; P],
) {
    let bias = L::BIAS + if L::WIDE { S::WIDE_SHIFT } else { 0 };
    let mut starts = [0; R];
    for r in 0..R {
        starts[r] = if L::SPLIT { a[r].split_start(bias, half) } else { a[r].start(bias) };
    }
    let dots = dot_groups::<S, L, P, R, G>(s, blocks, groups, &a, starts);
    for p in 0..P {
        let scales = scales(p);
        for r in 0..R {
            let scale = s.mul(scales.scale, s.splat(a[r].scale));
            acc[p][r] = s.fma(scale, s.to_f(dots[p][r]), acc[p][r]);
            if L::MIN {
                let scaled_sum = if L::SPLIT { a[r].scaled_halves[half] } else { a[r].scaled_sum };
                acc[p][r] = s.fma(scales.min, s.splat(scaled_sum), acc[p][r]);
            }
        }
    }
}

/// A call for each `i` below `n`, 4 or 8, with constants for `i`: the compiler unrolls no loop that is so long.
macro_rules! unrolled {
    ($i:ident < $n:ident => $call:expr) => {
        unrolled!(@ $n $i $call, 0 1 2 3 4 5 6 7)
    };
    (@ $n:ident $i:ident $call:expr, $($k:literal)*) => {
        $(if $k < $n {
            const { assert!($n == 4 || $n == 8) };
            let $i = $k;
            $call;
        })*
    };
}

/// The dot products of `G` groups of four columns for all panels and rows, from each row's start. Exact in any order.
#[inline(always)]
fn dot_groups<S: Simd, L: IntLayout, const P: usize, const R: usize, const G: usize>(
    s: S,
    blocks: [&[Line]; P],
    groups: [usize; G],
    a: &[&Block; R],
    starts: [i32; R],
) -> [[S::I; R]; P] {
    let mut dots = [[s.splat_i(0); R]; P];
    let mut first = 0;
    if S::ROW_PAIRS {
        while first + 1 < R {
            let [one, other] = [a[first], a[first + 1]];
            for p in 0..P {
                let mut pair = s.pair([starts[first], starts[first + 1]]);
                for i in 0..G / 2 {
                    let (g, h) = (groups[2 * i], groups[2 * i + 1]);
                    let w = [codes::<S, L>(s, blocks[p], g), codes::<S, L>(s, blocks[p], h)];
                    let q = [[one.q[g], one.q[h]], [other.q[g], other.q[h]]];
                    pair = if L::WIDE {
                        s.dot_pair::<true>(pair, w, q)
                    } else {
                        s.dot_pair::<false>(pair, w, q)
                    };
                }
                [dots[p][first], dots[p][first + 1]] = s.rows_of_pair(pair);
            }
            first += 2;
        }
    }
    for r in first..R {
        for p in 0..P {
            dots[p][r] = s.splat_i(starts[r]);
        }
    }
    if S::SHORT_SUMS && !L::WIDE {
        let mut shorts = [[s.no_shorts(); R]; P];
        unrolled!(i < G => short_group::<S, L, P, R>(s, blocks, a, first, groups[i], (i, G), &mut shorts, &mut dots));
    } else {
        unrolled!(i < G => dot_group::<S, L, P, R>(s, blocks, a, first, groups[i], &mut dots));
    }
    dots
}

/// Adds the products of one group of four columns, for the rows from `first` on.
#[inline(always)]
fn dot_group<S: Simd, L: IntLayout, const P: usize, const R: usize>(
    s: S,
    blocks: [&[Line]; P],
    a: &[&Block; R],
    first: usize,
    group: usize,
    dots: &mut [[S::I; R]; P],
) {
    if first == R {
        return;
    }
    let mut w = [codes::<S, L>(s, blocks[0], group); P];
    for p in 1..P {
        w[p] = codes::<S, L>(s, blocks[p], group);
    }
    for r in first..R {
        let q = a[r].q[group];
        for p in 0..P {
            let dot = &mut dots[p][r];
            *dot = if L::WIDE { s.dot_wide(*dot, w[p], q) } else { s.dot_narrow(*dot, w[p], q) };
        }
    }
}

/// The same for the `i`th of `n` groups by way of 16 bits, which are added to the sums as often as they must.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn short_group<S: Simd, L: IntLayout, const P: usize, const R: usize>(
    s: S,
    blocks: [&[Line]; P],
    a: &[&Block; R],
    first: usize,
    group: usize,
    (i, n): (usize, usize),
    shorts: &mut [[S::Short; R]; P],
    dots: &mut [[S::I; R]; P],
) {
    // 2 · level · 127 per group: eight groups of up to 4 bits, four of 5 and two of 6 stay below 2¹⁵.
    let n_exact = match (1 << 15) / (2 * 127 * L::LEVEL_MAX) {
        8.. => 8,
        4.. => 4,
        _ => 2,
    };
    for p in 0..P {
        let w = codes::<S, L>(s, blocks[p], group);
        for r in first..R {
            if i % n_exact == 0 {
                shorts[p][r] = s.no_shorts();
            }
            shorts[p][r] = s.dot_short(shorts[p][r], w, a[r].q[group]);
            if i % n_exact == n_exact - 1 || i == n - 1 {
                dots[p][r] = s.add_shorts(dots[p][r], shorts[p][r]);
            }
        }
    }
}

/// Columns that attention multiplies at a time, without checks in between.
pub(super) const COLUMNS: usize = 16;

/// How a float panel holds its columns.
pub(super) trait FloatColumns {
    /// Whether a column is converted when it is loaded.
    const WIDENS: bool = true;
    /// The lines of [`COLUMNS`] columns from `first` on, a multiple of it.
    #[inline(always)]
    fn columns(panel: &[Line], first: usize) -> &[Line] {
        &panel[first / 2..][..COLUMNS / 2]
    }
    fn column<S: Simd>(s: S, panel: &[Line], col: usize) -> S::F;
}

pub(super) struct F32Columns;
pub(super) struct F16Columns;
struct BF16Columns;

impl FloatColumns for F32Columns {
    const WIDENS: bool = false;

    #[inline(always)]
    fn columns(panel: &[Line], first: usize) -> &[Line] {
        &panel[first..][..COLUMNS]
    }

    #[inline(always)]
    fn column<S: Simd>(s: S, panel: &[Line], col: usize) -> S::F {
        s.load(panel[col].floats())
    }
}

impl FloatColumns for F16Columns {
    #[inline(always)]
    fn column<S: Simd>(s: S, panel: &[Line], col: usize) -> S::F {
        s.load_f16(&panel[col / 2].halves()[col % 2])
    }
}

impl FloatColumns for BF16Columns {
    #[inline(always)]
    fn column<S: Simd>(s: S, panel: &[Line], col: usize) -> S::F {
        s.load_bf16(&panel[col / 2].halves()[col % 2])
    }
}

/// One panel times `R` rows of f32: the module's formula.
#[inline(always)]
fn float_tile<S: Simd, C: FloatColumns, const R: usize>(
    s: S,
    panel: &[Line],
    rows: [&[f32]; R],
    ahead: &Ahead<'_>,
) -> [S::F; R] {
    let n_cols = rows[0].len();
    let mut acc = [[s.splat(0.0); 4]; R];
    for quad in 0..n_cols / 4 {
        ahead.prefetch(s, quad);
        for c in 0..4 {
            let w = C::column(s, panel, 4 * quad + c);
            for r in 0..R {
                acc[r][c] = s.fma(w, s.splat(rows[r][4 * quad + c]), acc[r][c]);
            }
        }
    }
    for c in 0..n_cols % 4 {
        let col = n_cols / 4 * 4 + c;
        let w = C::column(s, panel, col);
        for r in 0..R {
            acc[r][c] = s.fma(w, s.splat(rows[r][col]), acc[r][c]);
        }
    }
    let mut out = [s.splat(0.0); R];
    for r in 0..R {
        out[r] = s.add(s.add(acc[r][0], acc[r][1]), s.add(acc[r][2], acc[r][3]));
    }
    out
}
