//! Results of blocks, and their merging.
//!
//! A result is a line for each 16 sums of values, and then a line with the greatest score and the sum of exponentials.

use super::super::aligned::Line;
use super::super::math::exp_lanes;
use super::super::simd::{LANES, Simd};

/// Lines of the result of one block for one query.
pub(super) fn partial_lines(head_dim: usize) -> usize {
    head_dim.div_ceil(LANES) + 1
}

/// The result of a query.
#[inline(always)]
pub(super) fn partial_of(results: &mut [Line], query: usize, head_dim: usize) -> &mut [Line] {
    let lines = partial_lines(head_dim);
    &mut results[query * lines..][..lines]
}

/// Notes the greatest score and the sum of exponentials.
#[inline(always)]
pub(super) fn set_totals(result: &mut [Line], max: f32, sum: f32) {
    let totals = result[result.len() - 1].floats_mut();
    (totals[0], totals[1]) = (max, sum);
}

#[inline(always)]
fn totals(result: &[Line]) -> (f32, f32) {
    let totals = result[result.len() - 1].floats();
    (totals[0], totals[1])
}

/// Sets the sums of values to zero.
#[inline(always)]
pub(super) fn clear<S: Simd>(s: S, result: &mut [Line]) {
    let n_chunks = result.len() - 1;
    for line in &mut result[..n_chunks] {
        s.store(s.splat(0.0), line.floats_mut());
    }
}

/// Merges the result of the next block into that of the blocks before: the formula of `attention.rs`.
#[inline(always)]
pub(super) fn fold<S: Simd>(s: S, folded: &mut [Line], result: &[Line]) {
    let ((old_max, old_sum), (new_max, new_sum)) = (totals(folded), totals(result));
    // A NaN is ignored, as in the maximum of a block.
    let max = if new_max > old_max { new_max } else { old_max };
    let mut shifted = [0.0; LANES];
    (shifted[0], shifted[1]) = (old_max - max, new_max - max);
    let mut factors = [0.0; LANES];
    s.store(exp_lanes(s, s.load(&shifted)), &mut factors);
    let (old, new) = (s.splat(factors[0]), s.splat(factors[1]));
    let n_chunks = result.len() - 1;
    for chunk in 0..n_chunks {
        let sum = s.mul(old, s.load(folded[chunk].floats()));
        let sum = s.fma(new, s.load(result[chunk].floats()), sum);
        s.store(sum, folded[chunk].floats_mut());
    }
    // Also fused, like every lane above.
    let sums = s.fma(new, s.splat(new_sum), s.mul(old, s.splat(old_sum)));
    let mut sum = [0.0; LANES];
    s.store(sums, &mut sum);
    set_totals(folded, max, sum[0]);
}

/// The output: the sums of values over the sum of exponentials, to which the sink adds its own; zeros if the row saw nothing.
#[inline(always)]
pub(super) fn finish<S: Simd>(s: S, folded: &[Line], sink: Option<f32>, out: &mut [f32]) {
    let (max, sum) = totals(folded);
    // Without a sink, the factor leaves the sums of values as they are.
    let (factor, total) = match sink {
        Some(sink) if sum != 0.0 => with_sink(s, max, sum, sink),
        _ => (1.0, sum),
    };
    let factor = s.splat(factor);
    let inverse = s.splat(if total == 0.0 { 0.0 } else { 1.0 / total });
    for (chunk, out) in out.chunks_mut(LANES).enumerate() {
        let out_lanes = s.mul(s.mul(factor, s.load(folded[chunk].floats())), inverse);
        match out.as_chunks_mut().0.first_mut() {
            Some(out) => s.store(out_lanes, out),
            None => s.store_partial(out_lanes, out),
        }
    }
}

/// The factor of the sums of values, and the sum of exponentials with that of the sink: the formula of `attention.rs`.
#[inline(always)]
fn with_sink<S: Simd>(s: S, max: f32, sum: f32, sink: f32) -> (f32, f32) {
    let both = if sink > max { sink } else { max };
    let mut shifted = [0.0; LANES];
    (shifted[0], shifted[1]) = (max - both, sink - both);
    let mut factors = [0.0; LANES];
    s.store(exp_lanes(s, s.load(&shifted)), &mut factors);
    (factors[0], factors[0] * sum + factors[1])
}
