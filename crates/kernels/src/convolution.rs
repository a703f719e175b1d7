//! The short convolution of recurrent layers, over the rows of a draft tree.
//!
//! ```text
//! out[c] = fma(weight[t][c], x[t][c], ·) over the taps t, the oldest first, from the bias or 0
//! ```
//!
//! A lane is one column `c`. An item of work is a row and some of its columns.

use std::ops::Range;

use super::Kernels;
use super::pool::{Pool, SharedMut};
use super::recurrent::RowPart;
use super::ring::{RowRing, SharedRing};
use super::simd::{LANES, Simd, Work};

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
    let conv_dim = inputs.row_len();
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
        conv_len - 1 <= n_committed && n_committed <= inputs.n_rows(),
        "{n_committed} inputs before the batch"
    );
    let n_new = rows.numbers.last().map_or(0, |&last| (last as usize + 1).saturating_sub(rows.skipped));
    assert!(
        n_new <= inputs.n_rows() - n_committed,
        "{n_new} rows after {n_committed} of {}",
        inputs.n_rows()
    );
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
