//! `exp` and functions built on it, over sixteen lanes.

use super::scalar::Scalar;
use super::simd::{LANES, Simd};

/// eˣ: the scalar form of the computation in every vector kernel.
///
/// Within 1 ULP of the true value (a test measures it on a million points). Saturates: 0 below −104, infinity
/// above 88.73; results below the smallest normal number are rounded to subnormal ones. NaN gives NaN.
///
/// ```
/// assert_eq!(refrain_kernels::exp(0.0), 1.0);
/// assert_eq!(refrain_kernels::exp(f32::NEG_INFINITY), 0.0);
/// ```
pub fn exp(x: f32) -> f32 {
    exp_lanes(Scalar, [x; LANES])[0]
}

/// Cephes' `expf`: x = n·ln2 + r with |r| ≤ ln2/2 (Cody–Waite, two parts of ln2), a polynomial of degree 5 for
/// (eʳ − 1 − r)/r², and 2ⁿ applied in two steps so that neither factor overflows before the product does.
#[inline(always)]
pub(super) fn exp_lanes<S: Simd>(s: S, x: S::F) -> S::F {
    // Beyond these bounds the result is 0 or infinite anyway. The operand order keeps NaN.
    let x = s.min(s.splat(89.0), s.max(s.splat(-104.5), x));
    let (p, n) = reduced(s, x);
    let p = s.add(p, s.splat(1.0));
    let half = s.sar::<1>(n);
    let low = power_of_two(s, half);
    let high = power_of_two(s, s.sub_i(n, half));
    s.mul(s.mul(p, low), high)
}

/// eʳ − 1 and n of x = n·ln2 + r.
#[inline(always)]
fn reduced<S: Simd>(s: S, x: S::F) -> (S::F, S::I) {
    // Adding 1.5·2²³ leaves n, to nearest, in the low bits of the sum. This needs no rounding instruction and
    // is the same on every instruction set.
    let magic = s.splat(12_582_912.0);
    let shifted = s.fma(x, s.splat(std::f32::consts::LOG2_E), magic);
    let n = s.sub(shifted, magic);
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = s.fma(p, r, s.splat(coefficient));
    }
    (s.fma(s.mul(p, r), r, r), s.sub_i(s.to_bits(shifted), s.to_bits(magic)))
}

/// The hyperbolic tangent: m / (m + 2) with m = e²ˣ − 1 = fma(p, 2ⁿ, 2ⁿ − 1), where p = eʳ − 1 and 2x = n·ln2 + r as in `exp`.
///
/// Neither m nor the sum cancels, so the relative error is a few ULP for arguments near 0 too (a test measures it). NaN gives NaN.
#[inline(always)]
pub(super) fn tanh_lanes<S: Simd>(s: S, x: S::F) -> S::F {
    // Beyond these bounds the result is rounded to ±1 anyway. The operand order keeps NaN.
    let x = s.min(s.splat(20.0), s.max(s.splat(-20.0), s.add(x, x)));
    let (p, n) = reduced(s, x);
    let power = power_of_two(s, n);
    let m = s.fma(p, power, s.sub(power, s.splat(1.0)));
    s.div(m, s.add(m, s.splat(2.0)))
}

/// `cap · tanh(x / cap)`.
#[inline(always)]
pub(super) fn softcap_lanes<S: Simd>(s: S, x: S::F, cap: S::F) -> S::F {
    s.mul(cap, tanh_lanes(s, s.div(x, cap)))
}

/// Replaces each number by `cap · tanh(x / cap)`.
#[inline(always)]
pub(super) fn softcap_in_place<S: Simd>(s: S, x: &mut [f32], cap: f32) {
    let cap = s.splat(cap);
    let (chunks, tail) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        s.store(softcap_lanes(s, s.load(chunk), cap), chunk);
    }
    if !tail.is_empty() {
        let x = softcap_lanes(s, s.load_partial(tail, 0.0), cap);
        s.store_partial(x, tail);
    }
}

/// x · Φ(x), Φ the distribution function of the normal distribution: max(x, 0) − t · Φ(−t) with t = |x|, and Φ(−t) = ½ · exp(−t · p(t)).
///
/// p is a polynomial of degree 9 for −ln(2Φ(−t)) / t on 0 ≤ t ≤ 6 (interpolated at the zeros of a Chebyshev polynomial), and its value at 6
/// behind. Within 6e-8 of the true value up to |x| = 6 and beyond (a test measures it); no sum cancels for negative numbers. NaN gives NaN.
#[inline(always)]
pub(super) fn gelu_lanes<S: Simd>(s: S, x: S::F) -> S::F {
    // The exponential is 0 from about 30 on. The operand order keeps NaN.
    let t = s.min(s.splat(40.0), s.abs(x));
    let near = s.min(s.splat(6.0), t);
    let mut p = s.splat(1.312_937_9e-8);
    for coefficient in [
        -4.220_954_4e-7,
        5.788_455e-6,
        -4.282_195_4e-5,
        1.608_523_9e-4,
        6.219_006e-5,
        -4.880_13e-3,
        3.638_283e-2,
        3.183_012e-1,
        7.978_848e-1,
    ] {
        p = s.fma(p, near, s.splat(coefficient));
    }
    let tail = s.mul(s.splat(0.5), exp_lanes(s, s.sub(s.splat(-0.0), s.mul(t, p))));
    s.sub(s.max(s.splat(0.0), x), s.mul(t, tail))
}

/// 1 + e⁻ˣ: the divisor that makes a sigmoid.
#[inline(always)]
pub(super) fn one_plus_exp_of_minus<S: Simd>(s: S, x: S::F) -> S::F {
    s.add(s.splat(1.0), exp_lanes(s, s.sub(s.splat(-0.0), x)))
}

/// 2ⁿ for lanes in −126..=127.
#[inline(always)]
fn power_of_two<S: Simd>(s: S, n: S::I) -> S::F {
    s.of_bits(s.shl::<23>(s.add_i(n, s.splat_i(127))))
}

/// The largest lane, ignoring NaN lanes; −∞ if there is none.
#[inline(always)]
pub(super) fn max_across<S: Simd>(s: S, x: S::F) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(x, &mut lanes);
    let mut max = f32::NEG_INFINITY;
    for lane in lanes {
        if lane > max {
            max = lane;
        }
    }
    max
}

/// The largest number of `x`, ignoring NaN; −∞ if there is none.
#[inline(always)]
pub(super) fn max_of<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let mut max = s.splat(f32::NEG_INFINITY);
    for chunk in chunks {
        max = s.max(s.load(chunk), max);
    }
    max_across(s, s.max(s.load_partial(tail, f32::NEG_INFINITY), max))
}

/// Replaces each number by exp(x − max) and returns the sum of the results: 16 lanes by index, then the fixed
/// tree of additions.
#[inline(always)]
pub(super) fn exp_shifted_in_place<S: Simd>(s: S, x: &mut [f32], max: f32) -> f32 {
    let max = s.splat(max);
    let mut sum = s.splat(0.0);
    let (chunks, tail) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        let e = exp_lanes(s, s.sub(s.load(chunk), max));
        s.store(e, chunk);
        sum = s.add(sum, e);
    }
    if !tail.is_empty() {
        let e = exp_lanes(s, s.sub(s.load_partial(tail, f32::NEG_INFINITY), max));
        s.store_partial(e, tail);
        // Lanes past the end add exp(−∞) = 0, which changes no sum of non-negative numbers.
        sum = s.add(sum, e);
    }
    s.sum(sum)
}
