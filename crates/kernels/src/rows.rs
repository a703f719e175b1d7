//! Row-wise functions: norms, rotary embedding, activations, softmax.
//!
//! Sums run over 16 lanes by index, and the lanes are added in one fixed tree; everything else is element by
//! element. Each function states its operations and is one algorithm over the vector trait.

use super::Kernels;
use super::math::{
    exp_lanes, exp_shifted_in_place, gelu_lanes, max_of, one_plus_exp_of_minus, softcap_in_place,
};
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

/// Gated [`rms_norm_in_place`]: `x = ((x · 1/√(mean(x²) + eps)) · weight) · silu(gate)`, as the gated delta rule and Mamba-2
/// with the norm before the gate have it.
///
/// # Panics
/// If the lengths differ.
pub fn rms_norm_gated(k: Kernels, x: &mut [f32], weight: &[f32], eps: f32, gate: &[f32]) {
    rms_norm_in_place(k, x, weight, eps);
    silu_mul_by(k, x, gate);
}

/// Divides one row by its Euclidean length: `x = x · 1/√(Σ x² + eps)`.
pub fn l2_norm_in_place(k: Kernels, x: &mut [f32], eps: f32) {
    k.run(L2Norm { x, eps });
}

struct L2Norm<'a> {
    x: &'a mut [f32],
    eps: f32,
}

impl Work for L2Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = 1.0 / (s.sum(squares(s, self.x)) + self.eps).sqrt();
        map(s, self.x, Scale(factor));
    }
}

/// The squares of a row, added in 16 lanes by index.
#[inline(always)]
fn squares<S: Simd>(s: S, x: &[f32]) -> S::F {
    let mut squares = s.splat(0.0);
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        let x = s.load(chunk);
        squares = s.fma(x, x, squares);
    }
    let x = s.load_partial(tail, 0.0);
    s.fma(x, x, squares)
}

/// `Σ x[i] · y[i]`.
///
/// # Panics
/// If the lengths differ.
pub fn dot(k: Kernels, x: &[f32], y: &[f32]) -> f32 {
    assert_eq!(x.len(), y.len());
    k.run(Dot { x, y })
}

struct Dot<'a> {
    x: &'a [f32],
    y: &'a [f32],
}

impl Work for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut acc = s.splat(0.0);
        let (x, x_tail) = self.x.as_chunks::<LANES>();
        let (y, y_tail) = self.y.as_chunks::<LANES>();
        for (x, y) in x.iter().zip(y) {
            acc = s.fma(s.load(x), s.load(y), acc);
        }
        s.sum(s.fma(s.load_partial(x_tail, 0.0), s.load_partial(y_tail, 0.0), acc))
    }
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
        let mean = s.sum(squares(s, self.x)) / self.x.len() as f32;
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

/// Layer norm of one row (Ba, Kiros and Hinton 2016), in place: `x = fma((x − mean) · 1/√(mean((x − mean)²) + eps), weight, bias)`.
///
/// # Panics
/// If the lengths differ.
pub fn layer_norm_in_place(k: Kernels, x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len());
    assert_eq!(x.len(), bias.len());
    k.run(LayerNorm { x, weight, bias, eps });
}

struct LayerNorm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
}

impl Work for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.x.len() as f32;
        let (chunks, tail) = self.x.as_chunks_mut::<LANES>();
        let mut sum = s.splat(0.0);
        for chunk in chunks.iter() {
            sum = s.add(sum, s.load(chunk));
        }
        let mean = s.sum(s.add(sum, s.load_partial(tail, 0.0))) / n;
        let shift = s.splat(mean);
        let mut squares = s.splat(0.0);
        for chunk in chunks.iter() {
            let x = s.sub(s.load(chunk), shift);
            squares = s.fma(x, x, squares);
        }
        // Lanes behind the end are at the mean.
        let x = s.sub(s.load_partial(tail, mean), shift);
        let scale = s.splat(1.0 / (s.sum(s.fma(x, x, squares)) / n + self.eps).sqrt());
        let (weights, weights_tail) = self.weight.as_chunks::<LANES>();
        let (biases, biases_tail) = self.bias.as_chunks::<LANES>();
        for ((chunk, weight), bias) in chunks.iter_mut().zip(weights).zip(biases) {
            let x = s.mul(s.sub(s.load(chunk), shift), scale);
            s.store(s.fma(x, s.load(weight), s.load(bias)), chunk);
        }
        let weight = s.load_partial(weights_tail, 0.0);
        let x = s.fma(s.mul(x, scale), weight, s.load_partial(biases_tail, 0.0));
        s.store_partial(x, tail);
    }
}

/// Rotary position embedding of every head of one row, in the half-split pairing: element `i` is rotated with
/// `i + rotary_dim/2`, for `i` below `rotary_dim/2`. Elements from `rotary_dim` on stay as they are.
///
/// `x` is `[n_heads, head_dim]`; `cos` and `sin` are those of the row's position, `[rotary_dim / 2]`.
/// `a' = fma(a, cos, −(b · sin))`, `b' = fma(b, cos, a · sin)`.
///
/// # Panics
/// If `head_dim` is zero, `rotary_dim` is greater than `head_dim`, or the lengths do not match.
pub fn rope(k: Kernels, x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    assert!(head_dim > 0, "head_dim {head_dim}");
    assert!(x.len().is_multiple_of(head_dim), "{} numbers, heads of {head_dim}", x.len());
    assert!(2 * cos.len() <= head_dim, "{} rotated pairs, heads of {head_dim}", cos.len());
    assert_eq!(sin.len(), cos.len());
    k.run(Rope { x, head_dim, cos, sin });
}

struct Rope<'a> {
    x: &'a mut [f32],
    head_dim: usize,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Work for Rope<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let half = self.cos.len();
        let full = half / LANES * LANES;
        for head in self.x.chunks_exact_mut(self.head_dim) {
            let (a, b) = head[..2 * half].split_at_mut(half);
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
    pairwise(k, gate, up, SiluMul);
}

/// `x = silu(gate) · x`: [`silu_mul`] with its result in the other row.
///
/// # Panics
/// If the lengths differ.
pub fn silu_mul_by(k: Kernels, x: &mut [f32], gate: &[f32]) {
    pairwise(k, x, gate, SiluMulBy);
}

/// `x = x / (1 + exp(−x))`.
pub fn silu(k: Kernels, x: &mut [f32]) {
    k.run(Each { x, function: Silu });
}

/// `gate = gelu(gate) · up` with the tanh form of GELU (Hendrycks and Gimpel 2016, section 2),
/// `0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))`, which is `x / (1 + exp(x · fma(x · x, −2√(2/π) · 0.044715, −2√(2/π))))`.
///
/// # Panics
/// If the lengths differ.
pub fn gelu_mul(k: Kernels, gate: &mut [f32], up: &[f32]) {
    pairwise(k, gate, up, GeluMul);
}

/// `x = gelu(x)` with the exact form of GELU (Hendrycks and Gimpel 2016, section 2), `x · Φ(x)` with the distribution function Φ of the
/// normal distribution, as `math.rs` computes it.
pub fn gelu(k: Kernels, x: &mut [f32]) {
    k.run(Each { x, function: Gelu });
}

/// The clamped gated activation of gpt-oss: `gate = (g / (1 + exp(−(alpha · g)))) · (u + 1)` with `g = min(gate, limit)` and `u = up`
/// within `±limit`.
///
/// # Panics
/// If the lengths differ.
pub fn swiglu_clamped_mul(k: Kernels, gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) {
    pairwise(k, gate, up, SwigluClampedMul { alpha, limit });
}

/// `x = x / (1 + exp(−gate))`: `x` times the sigmoid of the gate.
///
/// # Panics
/// If the lengths differ.
pub fn sigmoid_mul(k: Kernels, x: &mut [f32], gate: &[f32]) {
    pairwise(k, x, gate, SigmoidMul);
}

/// `x *= factor`.
pub fn scale(k: Kernels, x: &mut [f32], factor: f32) {
    k.run(Each { x, function: Scale(factor) });
}

/// `x = cap · tanh(x / cap)`, with `tanh` from `exp` as `math.rs` states: bounds logits to `±cap`.
pub fn softcap(k: Kernels, x: &mut [f32], cap: f32) {
    k.run(Softcap { x, cap });
}

/// `x = fma(y, factor, x)`.
///
/// # Panics
/// If the lengths differ.
pub fn add_scaled(k: Kernels, x: &mut [f32], y: &[f32], factor: f32) {
    pairwise(k, x, y, AddScaled(factor));
}

/// `x *= y`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn mul(k: Kernels, x: &mut [f32], y: &[f32]) {
    pairwise(k, x, y, Mul);
}

/// `x += y`.
///
/// # Panics
/// If the lengths differ.
pub fn add(k: Kernels, x: &mut [f32], y: &[f32]) {
    pairwise(k, x, y, Add);
}

fn pairwise(k: Kernels, x: &mut [f32], y: &[f32], function: impl PairFunction) {
    assert_eq!(x.len(), y.len());
    k.run(Pairwise { x, y, function });
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

/// Functions without parameters.
macro_rules! pair_functions {
    ($($name:ident = |$s:ident, $x:ident, $y:ident| $result:expr;)+) => {
        $(
            #[derive(Clone, Copy)]
            struct $name;

            impl PairFunction for $name {
                #[inline(always)]
                fn apply<S: Simd>(self, $s: S, $x: S::F, $y: S::F) -> S::F {
                    $result
                }
            }
        )+
    };
}

pair_functions! {
    Mul = |s, x, y| s.mul(x, y);
    Add = |s, x, y| s.add(x, y);
    SiluMul = |s, x, y| s.mul(Silu.apply(s, x), y);
    SiluMulBy = |s, x, y| s.mul(Silu.apply(s, y), x);
    SigmoidMul = |s, x, y| s.div(x, one_plus_exp_of_minus(s, y));
}

#[derive(Clone, Copy)]
struct AddScaled(f32);

impl PairFunction for AddScaled {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::F, y: S::F) -> S::F {
        s.fma(y, s.splat(self.0), x)
    }
}

#[derive(Clone, Copy)]
struct GeluMul;

impl PairFunction for GeluMul {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::F, y: S::F) -> S::F {
        // −2√(2/π), and 0.044715 times that.
        const LINEAR: f32 = -1.595_769;
        const CUBIC: f32 = -0.071_354_814;
        let slope = s.fma(s.mul(x, x), s.splat(CUBIC), s.splat(LINEAR));
        let e = exp_lanes(s, s.mul(x, slope));
        s.mul(s.div(x, s.add(s.splat(1.0), e)), y)
    }
}

#[derive(Clone, Copy)]
struct SwigluClampedMul {
    alpha: f32,
    limit: f32,
}

impl PairFunction for SwigluClampedMul {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::F, y: S::F) -> S::F {
        // The operand order keeps NaN.
        let gate = s.min(s.splat(self.limit), x);
        let up = s.max(s.splat(-self.limit), s.min(s.splat(self.limit), y));
        let glu = s.div(gate, one_plus_exp_of_minus(s, s.mul(s.splat(self.alpha), gate)));
        s.mul(glu, s.add(up, s.splat(1.0)))
    }
}

/// `x[i] = f(x[i])`.
struct Each<'a, F> {
    x: &'a mut [f32],
    function: F,
}

trait Function: Copy {
    fn apply<S: Simd>(self, s: S, x: S::F) -> S::F;
}

#[derive(Clone, Copy)]
struct Scale(f32);

impl Function for Scale {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::F) -> S::F {
        s.mul(x, s.splat(self.0))
    }
}

#[derive(Clone, Copy)]
struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::F) -> S::F {
        s.div(x, one_plus_exp_of_minus(s, x))
    }
}

#[derive(Clone, Copy)]
struct Gelu;

impl Function for Gelu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::F) -> S::F {
        gelu_lanes(s, x)
    }
}

impl<F: Function> Work for Each<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        map(s, self.x, self.function);
    }
}

/// Applies a function to each number.
#[inline(always)]
fn map<S: Simd, F: Function>(s: S, x: &mut [f32], function: F) {
    let (chunks, tail) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        s.store(function.apply(s, s.load(chunk)), chunk);
    }
    if !tail.is_empty() {
        let x = function.apply(s, s.load_partial(tail, 0.0));
        s.store_partial(x, tail);
    }
}

struct Softcap<'a> {
    x: &'a mut [f32],
    cap: f32,
}

impl Work for Softcap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        softcap_in_place(s, self.x, self.cap);
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
