//! Activations in the forms that the matmul kernels read: prepared once, used by several matrices.

use super::Kernels;
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

/// 32 activations as `scale · q`, `q` in −127..=127.
///
/// `scale = amax / 127` and `q = x · (1 / scale)`, to nearest, ties to even. A block of zeros, or of numbers
/// so small that `1 / scale` overflows, has scale 0. A block with a NaN or an infinity has scale NaN, so all
/// outputs that use it are NaN, on every instruction set.
///
/// A block is one cache line; the kernels broadcast its numbers as operands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub(super) struct Block {
    /// Eight groups of four signed bytes, the first in the low bits.
    pub(super) q: [i32; 8],
    pub(super) scale: f32,
    /// `scale · Σ q`: the factor of a format's minimum.
    pub(super) scaled_sum: f32,
    /// The same for the first and the last 16 `q`.
    pub(super) scaled_halves: [f32; 2],
    /// −8 and −128 times Σ q: the initial value of the dot product of a format with this bias.
    starts: [i32; 2],
    /// −32 times the sums of the first and of the last 16 `q`.
    split_starts: [i32; 2],
}

impl Block {
    /// The initial value of the dot product with codes that have the bias `bias`.
    #[inline(always)]
    pub(super) fn start(&self, bias: i32) -> i32 {
        match bias {
            0 => 0,
            1 => self.starts[0] >> 3,
            8 => self.starts[0],
            16 => self.starts[0] << 1,
            128 => self.starts[1],
            _ => unreachable!("no format has this bias"),
        }
    }

    /// The initial value for columns `16 · half ..`, for formats with a scale per 16 columns.
    #[inline(always)]
    pub(super) fn split_start(&self, bias: i32, half: usize) -> i32 {
        match bias {
            0 => 0,
            4 => self.split_starts[half] >> 3,
            32 => self.split_starts[half],
            _ => unreachable!("no split format has this bias"),
        }
    }
}

/// Activations `[n_rows, n_cols]`. The buffers are kept and grow to exactly the largest size used.
#[derive(Default)]
pub struct Activations {
    n_rows: usize,
    n_cols: usize,
    form: Option<ActivationForm>,
    /// `[n_rows, n_cols]`
    floats: Vec<f32>,
    /// `[n_rows, n_cols / 32]`
    blocks: Vec<Block>,
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
        (self.n_rows, self.n_cols, self.form) = (n_rows, n_cols, Some(form));
        if form.has(ActivationForm::F32) {
            self.floats.clear();
            self.floats.reserve_exact(x.len());
            self.floats.extend_from_slice(x);
        }
        if form.has(ActivationForm::Int8) {
            assert!(n_cols.is_multiple_of(32), "{n_cols} columns are not whole blocks of 32");
            let n_blocks = n_cols / 32;
            self.blocks.reserve_exact((n_rows * n_blocks).saturating_sub(self.blocks.len()));
            self.blocks.resize(n_rows * n_blocks, Block::default());
            let blocks = SharedMut::new(&mut self.blocks);
            pool.run_sized(x.len(), n_rows, 1, &|_, rows| {
                let x = &x[rows.start * n_cols..rows.end * n_cols];
                // SAFETY: the ranges of rows are disjoint, and the blocks outlive the section.
                let out = unsafe { blocks.slice(rows.start * n_blocks, rows.len() * n_blocks) };
                k.run(Quantize { x, out });
            });
        }
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
}

struct Quantize<'a> {
    x: &'a [f32],
    out: &'a mut [Block],
}

impl Work for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, out) in self.x.as_chunks::<32>().0.iter().zip(self.out) {
            *out = quantize_block(s, x);
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
