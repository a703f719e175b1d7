//! Row-wise functions: norms, rotary embedding, activation, softmax, argmax.
//!
//! Sums run over 16 lanes by index, and the lanes are added in one fixed tree; everything else is element by
//! element. Each function states its operations and is one algorithm over the vector trait.

use super::Kernels;
use super::math::{exp_lanes, exp_shifted_in_place, max_of};
use super::simd::{LANES, Simd, Work};

/// Root-mean-square norm of one row (Zhang and Sennrich 2019): `out = (x · 1/√(mean(x²) + eps)) · weight`.
///
/// # Panics
/// If the lengths differ.
pub fn rms_norm(k: Kernels, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len());
    out.copy_from_slice(x);
    rms_norm_in_place(k, out, weight, eps);
}

/// [`rms_norm`] in place, for example for the heads of a QK-norm.
///
/// # Panics
/// If the lengths differ.
pub fn rms_norm_in_place(k: Kernels, x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len());
    k.run(RmsNorm { x, weight, eps });
}

struct RmsNorm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Work for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut squares = s.splat(0.0);
        let (chunks, tail) = self.x.as_chunks::<LANES>();
        for chunk in chunks {
            let x = s.load(chunk);
            squares = s.fma(x, x, squares);
        }
        let x = s.load_partial(tail, 0.0);
        squares = s.fma(x, x, squares);
        let mean = s.sum(squares) / self.x.len() as f32;
        let scale = s.splat(1.0 / (mean + self.eps).sqrt());
        let (chunks, tail) = self.x.as_chunks_mut::<LANES>();
        let (weights, weights_tail) = self.weight.as_chunks::<LANES>();
        for (chunk, weight) in chunks.iter_mut().zip(weights) {
            s.store(s.mul(s.mul(s.load(chunk), scale), s.load(weight)), chunk);
        }
        let x = s.mul(s.mul(s.load_partial(tail, 0.0), scale), s.load_partial(weights_tail, 0.0));
        s.store_partial(x, tail);
    }
}

/// Rotary position embedding of every head of one row, in the half-split pairing: element `i` is rotated with
/// `i + head_dim/2`.
///
/// `x` is `[n_heads, head_dim]`; `cos` and `sin` are those of the row's position, `[head_dim / 2]`.
/// `a' = fma(a, cos, −(b · sin))`, `b' = fma(b, cos, a · sin)`.
///
/// # Panics
/// If `head_dim` is odd or zero, or the lengths do not match.
pub fn rope(k: Kernels, x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    assert!(head_dim > 0 && head_dim.is_multiple_of(2), "head_dim {head_dim}");
    assert!(x.len().is_multiple_of(head_dim), "{} numbers, heads of {head_dim}", x.len());
    assert_eq!(cos.len(), head_dim / 2);
    assert_eq!(sin.len(), head_dim / 2);
    k.run(Rope { x, cos, sin });
}

struct Rope<'a> {
    x: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Work for Rope<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let half = self.cos.len();
        let full = half / LANES * LANES;
        for head in self.x.chunks_exact_mut(2 * half) {
            let (a, b) = head.split_at_mut(half);
            let (a, a_tail) = a.as_chunks_mut::<LANES>();
            let (b, b_tail) = b.as_chunks_mut::<LANES>();
            let (cos, sin) = (self.cos.as_chunks::<LANES>().0, self.sin.as_chunks::<LANES>().0);
            for i in 0..a.len() {
                let (x, y) = rotate(s, s.load(&a[i]), s.load(&b[i]), s.load(&cos[i]), s.load(&sin[i]));
                s.store(x, &mut a[i]);
                s.store(y, &mut b[i]);
            }
            if half > full {
                let cos = s.load_partial(&self.cos[full..], 0.0);
                let sin = s.load_partial(&self.sin[full..], 0.0);
                let (x, y) = rotate(s, s.load_partial(a_tail, 0.0), s.load_partial(b_tail, 0.0), cos, sin);
                s.store_partial(x, a_tail);
                s.store_partial(y, b_tail);
            }
        }
    }
}

#[inline(always)]
fn rotate<S: Simd>(s: S, a: S::F, b: S::F, cos: S::F, sin: S::F) -> (S::F, S::F) {
    let minus = s.sub(s.splat(-0.0), s.mul(b, sin));
    (s.fma(a, cos, minus), s.fma(b, cos, s.mul(a, sin)))
}

/// `gate = silu(gate) · up` with `silu(x) = x / (1 + exp(−x))`: the gated activation of the feed-forward layer.
///
/// # Panics
/// If the lengths differ.
pub fn silu_mul(k: Kernels, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    k.run(Pairwise::<SiluMul> { x: gate, y: up, function: SiluMul });
}

/// `x += y`.
///
/// # Panics
/// If the lengths differ.
pub fn add(k: Kernels, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    k.run(Pairwise::<Add> { x, y, function: Add });
}

/// `x[i] = f(x[i], y[i])`.
struct Pairwise<'a, F> {
    x: &'a mut [f32],
    y: &'a [f32],
    function: F,
}

trait PairFunction: Copy {
    fn apply<S: Simd>(self, s: S, x: S::F, y: S::F) -> S::F;
}

#[derive(Clone, Copy)]
struct Add;

impl PairFunction for Add {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::F, y: S::F) -> S::F {
        s.add(x, y)
    }
}

#[derive(Clone, Copy)]
struct SiluMul;

impl PairFunction for SiluMul {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::F, y: S::F) -> S::F {
        let e = exp_lanes(s, s.sub(s.splat(-0.0), x));
        s.mul(s.div(x, s.add(s.splat(1.0), e)), y)
    }
}

impl<F: PairFunction> Work for Pairwise<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x, x_tail) = self.x.as_chunks_mut::<LANES>();
        let (y, y_tail) = self.y.as_chunks::<LANES>();
        for (x, y) in x.iter_mut().zip(y) {
            s.store(self.function.apply(s, s.load(x), s.load(y)), x);
        }
        if !x_tail.is_empty() {
            let tail = self.function.apply(s, s.load_partial(x_tail, 0.0), s.load_partial(y_tail, 0.0));
            s.store_partial(tail, x_tail);
        }
    }
}

/// Softmax in place: `exp(x − max) · (1 / Σ exp(x − max))`. An empty row stays empty.
///
/// −∞ gives 0. If all elements are −∞, or one is NaN or +∞, the results are NaN.
pub fn softmax(k: Kernels, x: &mut [f32]) {
    k.run(Softmax { x });
}

struct Softmax<'a> {
    x: &'a mut [f32],
}

impl Work for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let max = max_of(s, self.x);
        let sum = exp_shifted_in_place(s, self.x, max);
        let scale = s.splat(1.0 / sum);
        let (chunks, tail) = self.x.as_chunks_mut::<LANES>();
        for chunk in chunks {
            s.store(s.mul(s.load(chunk), scale), chunk);
        }
        let x = s.mul(s.load_partial(tail, 0.0), scale);
        s.store_partial(x, tail);
    }
}

/// `ln Σ exp(x)`, computed as `max + ln Σ exp(x − max)`; −∞ if the row is empty or all its elements are −∞.
pub fn log_sum_exp(k: Kernels, x: &[f32]) -> f32 {
    k.run(LogSumExp { x })
}

struct LogSumExp<'a> {
    x: &'a [f32],
}

impl Work for LogSumExp<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let max = max_of(s, self.x);
        if max == f32::INFINITY {
            return max;
        }
        // If there is no largest number, any shift is correct. 0 keeps NaN, and gives ln 0 = −∞ if all
        // elements are −∞.
        let max = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let shift = s.splat(max);
        let mut sum = s.splat(0.0);
        let (chunks, tail) = self.x.as_chunks::<LANES>();
        for chunk in chunks {
            sum = s.add(sum, exp_lanes(s, s.sub(s.load(chunk), shift)));
        }
        let tail = s.load_partial(tail, f32::NEG_INFINITY);
        sum = s.add(sum, exp_lanes(s, s.sub(tail, shift)));
        // The logarithm from libm: the same bits on every platform.
        max + libm::logf(s.sum(sum))
    }
}

/// The index of the largest number; the lowest index if several are equal. NaN is ignored; 0 if all are NaN.
///
/// # Panics
/// If `x` is empty.
pub fn argmax(k: Kernels, x: &[f32]) -> usize {
    assert!(!x.is_empty(), "argmax of nothing");
    k.run(ArgMax { x })
}

struct ArgMax<'a> {
    x: &'a [f32],
}

impl Work for ArgMax<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let max = s.splat(max_of(s, self.x));
        let (chunks, tail) = self.x.as_chunks::<LANES>();
        for (i, chunk) in chunks.iter().enumerate() {
            let mask = s.eq_mask(s.load(chunk), max);
            if mask != 0 {
                return i * LANES + mask.trailing_zeros() as usize;
            }
        }
        let mask = s.eq_mask(s.load_partial(tail, f32::NAN), max);
        if mask != 0 { chunks.len() * LANES + mask.trailing_zeros() as usize } else { 0 }
    }
}
