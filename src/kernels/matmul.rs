//! Activations times a packed matrix: where nearly all the time of a forward pass goes.
//!
//! One kernel per kind of weights computes a *tile*: 16 outputs (a panel, one lane each) of 1 to 8 activation rows. The
//! order of each output's sum is the oracle of this module, and no tile shape changes it:
//!
//! ```text
//! integer codes:  acc = 0
//!                 for each block of 32 columns:
//!                     acc = fma(scale · a.scale, Σ (code − bias) · a.q, acc)      Σ exact in i32; per 16 columns if split
//!                     acc = fma(min, a.scale · Σ a.q, acc)                        if the format has minima
//! floats:         acc[c % 4] = fma(w[c], x[c], acc[c % 4]);  out = (acc[0] + acc[1]) + (acc[2] + acc[3])
//! ```
//!
//! `vpdpbusd` multiplies unsigned by signed bytes, so codes are kept unsigned and Σ starts from −bias · Σ a.q: the
//! correction costs nothing and is exact.
//!
//! Cost sketch: one row reads every weight once, 0.53 bytes (Q4_0) to 1.06 (Q8_0) each, so it runs at memory speed. With
//! more rows a panel (24 KiB of Q8_0 at 1536 columns) stays in the first-level cache while all row tiles pass over it.

use super::Kernels;
use super::activations::{ActivationForm, Activations, Block};
use super::aligned::Line;
use super::block::BlockType;
use super::layout::{IntLayout, PANEL_ROWS, Scaled, ScaledMin, Super16, SuperMin};
use super::packed::PackedMatrix;
use super::pool::{Pool, SharedMut};
use super::simd::{Simd, Work};

/// One product of a [`matmul`]: `out[r, o] = Σ_c w[o, c] · x[r, c]`.
pub struct MatMul<'a> {
    /// The weights, `[n_outputs, n_cols]`.
    pub w: &'a PackedMatrix,
    /// `[n_act_rows, n_outputs]`, row-major; overwritten.
    pub out: &'a mut [f32],
}

/// Jobs of one call: q, k, v is three.
const JOBS_MAX: usize = 8;

/// Multiplies the activations with each matrix, in one parallel section.
///
/// The split is by panels, all jobs counted through; activations must have been [set](Activations::set) in the form that each
/// matrix [wants](PackedMatrix::activation_form).
///
/// # Panics
/// If a shape or a form does not fit, or there are more than 8 jobs.
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
    pool.run_sized(bytes * x.n_rows(), n_panels, &|_, range| {
        let mut first = 0;
        for (job, &out) in jobs.iter().zip(&outs) {
            let panels = range.start.max(first)..range.end.min(first + job.w.n_panels());
            if !panels.is_empty() {
                k.run(Panels { w: job.w, x, out, panels: panels.start - first..panels.end - first });
            }
            first += job.w.n_panels();
        }
    });
}

/// A worker's panels of one job.
struct Panels<'a> {
    w: &'a PackedMatrix,
    x: &'a Activations,
    out: SharedMut<f32>,
    panels: std::ops::Range<usize>,
}

impl Work for Panels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.w.block_type() {
            BlockType::Q8_0 => self.int_panels::<S, Scaled<false, 128>>(s),
            BlockType::Q5_0 => self.int_panels::<S, Scaled<false, 16>>(s),
            BlockType::Q4_0 => self.int_panels::<S, Scaled<true, 8>>(s),
            BlockType::Q4_1 => self.int_panels::<S, ScaledMin<true>>(s),
            BlockType::Q5_1 => self.int_panels::<S, ScaledMin<false>>(s),
            BlockType::Q4K => self.int_panels::<S, SuperMin<true>>(s),
            BlockType::Q5K => self.int_panels::<S, SuperMin<false>>(s),
            BlockType::Q6K => self.int_panels::<S, Super16>(s),
            BlockType::F32 => self.float_panels::<S, F32Columns>(s),
            BlockType::F16 => self.float_panels::<S, F16Columns>(s),
            BlockType::BF16 => self.float_panels::<S, BF16Columns>(s),
        }
    }
}

impl Panels<'_> {
    #[inline(always)]
    fn int_panels<S: Simd, L: IntLayout>(&self, s: S) {
        debug_assert!(self.x.has(ActivationForm::Int8));
        let n_rows = self.x.n_rows();
        for panel in self.panels.clone() {
            let mut row = 0;
            while row < n_rows {
                row += match n_rows - row {
                    8.. if S::INT_TILE_ROWS >= 8 => self.int_tile::<S, L, 8>(s, panel, row),
                    4.. if S::INT_TILE_ROWS >= 4 => self.int_tile::<S, L, 4>(s, panel, row),
                    2.. => self.int_tile::<S, L, 2>(s, panel, row),
                    _ => self.int_tile::<S, L, 1>(s, panel, row),
                };
            }
        }
    }

    #[inline(always)]
    fn int_tile<S: Simd, L: IntLayout, const R: usize>(&self, s: S, panel: usize, row: usize) -> usize {
        let n_blocks = self.x.n_cols() / 32;
        let mut rows: [&[Block]; R] = [&[]; R];
        for r in 0..R {
            rows[r] = &self.x.block_rows()[(row + r) * n_blocks..][..n_blocks];
        }
        let acc = int_tile::<S, L, R>(s, self.w.panel(panel), rows);
        self.store(s, panel, row, acc)
    }

    #[inline(always)]
    fn float_panels<S: Simd, C: FloatColumns>(&self, s: S) {
        let n_rows = self.x.n_rows();
        for panel in self.panels.clone() {
            let mut row = 0;
            while row < n_rows {
                row += match n_rows - row {
                    4.. if S::FLOAT_TILE_ROWS >= 4 => self.float_tile::<S, C, 4>(s, panel, row),
                    2.. if S::FLOAT_TILE_ROWS >= 2 => self.float_tile::<S, C, 2>(s, panel, row),
                    _ => self.float_tile::<S, C, 1>(s, panel, row),
                };
            }
        }
    }

    #[inline(always)]
    fn float_tile<S: Simd, C: FloatColumns, const R: usize>(&self, s: S, panel: usize, row: usize) -> usize {
        let n_cols = self.x.n_cols();
        let mut rows: [&[f32]; R] = [&[]; R];
        for r in 0..R {
            rows[r] = &self.x.float_rows()[(row + r) * n_cols..][..n_cols];
        }
        let acc = float_tile::<S, C, R>(s, self.w.panel(panel), rows, n_cols);
        self.store(s, panel, row, acc)
    }

    /// Writes a tile's outputs and returns how many rows it had.
    #[inline(always)]
    fn store<S: Simd, const R: usize>(&self, s: S, panel: usize, row: usize, acc: [S::F; R]) -> usize {
        let n_outputs = self.w.n_rows();
        let start = panel * PANEL_ROWS;
        let len = PANEL_ROWS.min(n_outputs - start);
        for r in 0..R {
            // SAFETY: a panel belongs to one worker, so no two workers have overlapping parts; the section ends before `out`.
            let out = unsafe { self.out.slice((row + r) * n_outputs + start, len) };
            match out.as_chunks_mut().0.first_mut() {
                Some(out) => s.store(acc[r], out),
                None => s.store_partial(acc[r], out),
            }
        }
        R
    }
}

/// One panel times `R` rows of 8-bit blocks.
#[inline(always)]
fn int_tile<S: Simd, L: IntLayout, const R: usize>(s: S, panel: &[Line], rows: [&[Block]; R]) -> [S::F; R] {
    let mut acc = [s.splat(0.0); R];
    let n_blocks = rows[0].len();
    for (u, unit) in panel.chunks_exact(L::UNIT_LINES).enumerate() {
        let (codes, scale_lines) = unit.split_at(L::UNIT_BLOCKS * L::BLOCK_LINES);
        let first = u * L::UNIT_BLOCKS;
        for b in 0..L::UNIT_BLOCKS.min(n_blocks - first) {
            let mut a = [&rows[0][0]; R];
            for r in 0..R {
                a[r] = &rows[r][first + b];
            }
            let codes = &codes[b * L::BLOCK_LINES..][..L::BLOCK_LINES];
            int_block::<S, L, R>(s, codes, L::scales(s, scale_lines, b), a, &mut acc);
        }
    }
    acc
}

/// One block of 32 columns: the module's formula.
#[inline(always)]
fn int_block<S: Simd, L: IntLayout, const R: usize>(
    s: S,
    codes: &[Line],
    scales: super::layout::Scales<S>,
    a: [&Block; R],
    acc: &mut [S::F; R],
) {
    let bias = L::BIAS + if L::WIDE { S::WIDE_SHIFT } else { 0 };
    if L::SPLIT {
        for half in 0..2 {
            let mut dots = [s.splat_i(0); R];
            for r in 0..R {
                dots[r] = s.splat_i(-bias * a[r].sums[half]);
            }
            for g in 0..4 {
                dot_group::<S, L, R>(s, s.load_codes(&codes[4 * half + g].0), 4 * half + g, &a, &mut dots);
            }
            let scale = if half == 0 { scales.first } else { scales.second };
            for r in 0..R {
                acc[r] = s.fma(s.mul(scale, s.splat(a[r].scale)), s.to_f(dots[r]), acc[r]);
            }
        }
        return;
    }
    let mut dots = [s.splat_i(0); R];
    for r in 0..R {
        dots[r] = s.splat_i(-bias * (a[r].sums[0] + a[r].sums[1]));
    }
    if L::NIBBLES {
        for g in 0..4 {
            let pair = s.load_codes(&codes[g].0);
            dot_group::<S, L, R>(s, s.low_nibbles(pair), g, &a, &mut dots);
            dot_group::<S, L, R>(s, s.high_nibbles(pair), g + 4, &a, &mut dots);
        }
    } else {
        for g in 0..8 {
            dot_group::<S, L, R>(s, s.load_codes(&codes[g].0), g, &a, &mut dots);
        }
    }
    for r in 0..R {
        acc[r] = s.fma(s.mul(scales.first, s.splat(a[r].scale)), s.to_f(dots[r]), acc[r]);
    }
    if L::MIN {
        for r in 0..R {
            acc[r] = s.fma(scales.min, s.splat(a[r].scaled_sum), acc[r]);
        }
    }
}

/// Four columns of the block, for all rows of the tile.
#[inline(always)]
fn dot_group<S: Simd, L: IntLayout, const R: usize>(
    s: S,
    w: S::W,
    group: usize,
    a: &[&Block; R],
    dots: &mut [S::I; R],
) {
    for r in 0..R {
        let q = a[r].q[group];
        dots[r] = if L::WIDE { s.dot_wide(dots[r], w, q) } else { s.dot_narrow(dots[r], w, q) };
    }
}

/// How a float panel holds its columns.
trait FloatColumns {
    fn column<S: Simd>(s: S, panel: &[Line], col: usize) -> S::F;
}

struct F32Columns;
struct F16Columns;
struct BF16Columns;

impl FloatColumns for F32Columns {
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
    n_cols: usize,
) -> [S::F; R] {
    let mut acc = [[s.splat(0.0); 4]; R];
    for quad in 0..n_cols / 4 {
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
