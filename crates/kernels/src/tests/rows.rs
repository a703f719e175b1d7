//! Compares row-wise functions with plain loops, and every instruction set with scalar code.

use proptest::prelude::*;

use super::{Random, assert_bits, tree};
use crate::math::{exp_lanes, tanh_lanes};
use crate::scalar::Scalar;
use crate::simd::{Simd, Work};
use crate::*;

fn scalar() -> Kernels {
    Kernels::with_isa(IsaKind::Scalar).unwrap()
}

/// A function that replaces a row.
type InPlace<'a> = &'a dyn Fn(&mut [f32]);

/// The results of all functions of this module on one input, concatenated.
fn all(k: Kernels, x: &[f32], y: &[f32]) -> Vec<f32> {
    let n = x.len();
    let mut out = vec![0.0; n];
    rms_norm(k, x, y, 1e-5, &mut out);
    let mut sum = x.to_vec();
    add(k, &mut sum, y);
    let mut gate = x.to_vec();
    silu_mul(k, &mut gate, y);
    let mut probabilities = x.to_vec();
    softmax(k, &mut probabilities);
    out.extend(sum.into_iter().chain(gate).chain(probabilities));
    let each: &[InPlace] = &[
        &|x| rms_norm_gated(k, x, y, 1e-5, y),
        &|x| l2_norm_in_place(k, x, 1e-6),
        &|x| layer_norm_in_place(k, x, y, y, 1e-12),
        &|x| gelu(k, x),
        &|x| silu_mul_by(k, x, y),
        &|x| silu(k, x),
        &|x| gelu_mul(k, x, y),
        &|x| swiglu_clamped_mul(k, x, y, 1.702, 0.7),
        &|x| sigmoid_mul(k, x, y),
        &|x| scale(k, x, 0.3),
        &|x| add_scaled(k, x, y, 0.3),
        &|x| softcap(k, x, 0.5),
    ];
    for function in each {
        let mut result = x.to_vec();
        function(&mut result);
        out.extend(result);
    }
    out.push(log_sum_exp(k, x));
    out.push(dot(k, x, y));
    if n > 0 {
        out.push(argmax(k, x) as f32);
        let found = likeliest::<3>(k, x);
        out.extend(found.best().iter().flat_map(|&(x, i)| [x, i as f32]).chain([found.log_sum]));
        let (mut most, mut sums, mut found) = (Vec::new(), Vec::new(), Vec::new());
        block_max(k, x, &mut most);
        block_sums(k, x, 0.7, &mut sums);
        gather_above(k, x, 0.7, 0.4, &mut found);
        let mut weights = x.to_vec();
        let sum = exp_scaled(k, &mut weights, x[argmax(k, x)], 0.6);
        out.extend(most.into_iter().chain(weights).chain([sum]));
        out.extend(sums.into_iter().map(|sum| sum as f32));
        out.extend(found.iter().flat_map(|&(x, i)| [x, i as f32]));
        let mut heads = [x, x, y, y].concat();
        rope(k, &mut heads, 2 * n, x, y);
        out.extend(heads);
        let mut heads = [x, x, y, y, y, x].concat();
        rope(k, &mut heads, 3 * n, x, y);
        out.extend(heads);
    }
    out
}

#[test]
fn a_dot_product_is_that_of_the_lanes() {
    for n in (0..40).chain([1000]) {
        let mut random = Random::new(n as u64 + 5);
        let (x, y) = (random.floats(n), random.floats(n));
        let mut lanes = [0.0f32; 16];
        x.iter().zip(&y).enumerate().for_each(|(i, (x, y))| lanes[i % 16] = x.mul_add(*y, lanes[i % 16]));
        assert_bits(&[dot(scalar(), &x, &y)], &[tree(lanes)], &format!("{n} elements"));
    }
}

#[test]
fn equal_on_every_isa() {
    for n in (0..70).chain([127, 128, 129, 1000]) {
        let mut random = Random::new(n as u64);
        let (mut x, y) = (random.floats(n), random.floats(n));
        for scale in [1.0, 30.0, 1e-20] {
            x.iter_mut().for_each(|x| *x *= scale);
            for k in Kernels::available() {
                assert_bits(&all(k, &x, &y), &all(scalar(), &x, &y), &format!("{n} elements, {}", k.isa()));
            }
        }
    }
}

#[test]
fn equal_on_every_isa_for_special_values() {
    let specials = [
        0.0,
        -0.0,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-45,
        89.5,
        -110.0,
    ];
    for n in [1, 5, 16, 20, 40] {
        for (i, &special) in specials.iter().enumerate() {
            let mut x = Random::new(i as u64).floats(n);
            x[n / 2] = special;
            let y = Random::new(77).floats(n);
            for k in Kernels::available() {
                assert_bits(
                    &all(k, &x, &y),
                    &all(scalar(), &x, &y),
                    &format!("{special} of {n}, {}", k.isa()),
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn equal_on_every_isa_anywhere(x in proptest::collection::vec(-100f32..100.0, 0..200)) {
        let y: Vec<f32> = x.iter().rev().copied().collect();
        for k in Kernels::available() {
            assert_bits(&all(k, &x, &y), &all(scalar(), &x, &y), k.isa().name());
        }
    }
}

struct Exp<'a>(&'a [f32; 16]);

impl Work for Exp<'_> {
    type Output = [f32; 16];
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; 16] {
        let mut out = [0.0; 16];
        s.store(exp_lanes(s, s.load(self.0)), &mut out);
        out
    }
}

/// Distance in representable numbers; both numbers have the same sign.
fn ulps(a: f32, b: f32) -> u32 {
    a.to_bits().abs_diff(b.to_bits())
}

/// `exp` is within 1 ULP, for subnormal results too, and the same on every instruction set.
#[test]
fn exp_is_accurate_and_the_same_everywhere() {
    let mut worst = 0;
    let n = 1_000_000;
    for chunk in 0..n / 16 {
        let x: [f32; 16] = std::array::from_fn(|i| -105.0 + 195.0 * (chunk * 16 + i) as f32 / n as f32);
        let expected = Exp(&x).run(Scalar);
        for k in Kernels::available() {
            assert_bits(&k.run(Exp(&x)), &expected, k.isa().name());
        }
        for (x, e) in x.into_iter().zip(expected) {
            worst = worst.max(ulps(e, f64::from(x).exp() as f32));
        }
    }
    assert!(worst <= 1, "{worst} ULP");
}

#[test]
fn exp_saturates() {
    for (x, expected) in [
        (f32::NEG_INFINITY, 0.0),
        (-1e30, 0.0),
        (-104.5, 0.0),
        (0.0, 1.0),
        (-0.0, 1.0),
        (88.8, f32::INFINITY),
        (1e30, f32::INFINITY),
        (f32::INFINITY, f32::INFINITY),
    ] {
        assert_eq!(exp(x), expected, "exp({x})");
    }
    assert!(exp(f32::NAN).is_nan());
    assert!(exp(88.72).is_finite());
    assert!(exp(-103.0) > 0.0);
}

struct Tanh<'a>(&'a [f32; 16]);

impl Work for Tanh<'_> {
    type Output = [f32; 16];
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; 16] {
        let mut out = [0.0; 16];
        s.store(tanh_lanes(s, s.load(self.0)), &mut out);
        out
    }
}

/// `tanh` is within a few ULP from the smallest arguments to saturation, and the same on every instruction set.
#[test]
fn tanh_is_accurate_and_the_same_everywhere() {
    let mut worst = 0;
    let n = 400_000;
    for chunk in 0..n / 16 {
        // Arguments of both signs, evenly in −12..12 and in all orders of magnitude from 10⁻³⁰.
        let x: [f32; 16] = std::array::from_fn(|i| {
            let share = (chunk * 16 + i) as f32 / n as f32;
            let sign = if i % 4 < 2 { 1.0 } else { -1.0 };
            if i % 2 == 0 { 24.0 * share - 12.0 } else { sign * 10f32.powf(-30.0 + 31.0 * share) }
        });
        let expected = Tanh(&x).run(Scalar);
        for k in Kernels::available() {
            assert_bits(&k.run(Tanh(&x)), &expected, k.isa().name());
        }
        for (x, tanh) in x.into_iter().zip(expected) {
            assert!(tanh.abs() <= 1.0, "tanh({x}) = {tanh}");
            let exact = f64::from(x).tanh();
            assert!((f64::from(tanh) - exact).abs() < 2e-7, "tanh({x}) = {tanh}");
            worst = worst.max(if x == 0.0 { 0 } else { ulps(tanh, exact as f32) });
        }
    }
    assert!(worst <= 4, "{worst} ULP");
    let x = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, 1e-45];
    let got = tanh_lanes(Scalar, std::array::from_fn(|i| x[i % 8]));
    assert_eq!(got[..4], [0.0, 0.0, 1.0, -1.0]);
    assert!(got[4].is_nan());
    assert_eq!(got[5..7], [1.0, -1.0]);
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Without the cancellation of `1 + erf` for negative numbers.
fn exact_gelu(x: f64) -> f64 {
    0.5 * x * libm::erfc(-x / std::f64::consts::SQRT_2)
}

#[test]
fn gelu_is_accurate_and_does_not_overflow() {
    let k = Kernels::detect();
    let x: Vec<f32> = (-60_000..=60_000).map(|i| i as f32 * 2.5e-4).collect();
    let mut got = x.clone();
    gelu(k, &mut got);
    for (x, got) in x.iter().zip(got) {
        let exact = exact_gelu(f64::from(*x));
        assert!(
            (f64::from(got) - exact).abs() <= 1e-7 + 1.2e-7 * exact.abs(),
            "gelu({x}) = {got}, not {exact}"
        );
    }
    let mut x = [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-40, f32::NAN];
    gelu(k, &mut x);
    assert_eq!(x[..4], [f32::INFINITY, 0.0, f32::MAX, 0.0]);
    assert!(x[4] > 0.0 && x[5].is_nan());
}

/// Element-wise functions are their formulas in f64, within the rounding of f32.
#[test]
fn activations_are_close_to_the_formulas() {
    let mut random = Random::new(6);
    let gate: Vec<f32> = (-120..=120).map(|x| x as f32 * 0.1).chain(random.floats(64)).collect();
    let up: Vec<f32> = random.floats(gate.len()).iter().map(|x| 12.0 * x).collect();
    let gelu_tanh =
        |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    let k = Kernels::detect();
    type Case<'a> = (&'a str, &'a dyn Fn(&mut [f32], &[f32]), &'a dyn Fn(f64, f64) -> f64);
    let cases: [Case<'_>; 10] = [
        ("silu", &|x, _| silu(k, x), &|x, _| x * sigmoid(x)),
        ("silu_mul", &|x, y| silu_mul(k, x, y), &|x, y| x * sigmoid(x) * y),
        ("silu_mul_by", &|x, y| silu_mul_by(k, x, y), &|x, y| x * y * sigmoid(y)),
        ("gelu_mul", &|x, y| gelu_mul(k, x, y), &|x, y| gelu_tanh(x) * y),
        ("gelu", &|x, _| gelu(k, x), &|x, _| exact_gelu(x)),
        ("swiglu_clamped_mul", &|x, y| swiglu_clamped_mul(k, x, y, 1.702, 7.0), &|x, y| {
            let (x, y) = (x.min(7.0), y.clamp(-7.0, 7.0));
            (y + 1.0) * x * sigmoid(f64::from(1.702f32) * x)
        }),
        ("sigmoid_mul", &|x, y| sigmoid_mul(k, x, y), &|x, y| x * sigmoid(y)),
        ("scale", &|x, _| scale(k, x, 0.3), &|x, _| x * f64::from(0.3f32)),
        ("add_scaled", &|x, y| add_scaled(k, x, y, 0.3), &|x, y| x + y * f64::from(0.3f32)),
        ("softcap", &|x, _| softcap(k, x, 5.0), &|x, _| 5.0 * (x / 5.0).tanh()),
    ];
    for (name, function, formula) in cases {
        let mut got = gate.clone();
        function(&mut got, &up);
        for ((x, y), got) in gate.iter().zip(&up).zip(got) {
            let exact = formula(f64::from(*x), f64::from(*y));
            let error = (f64::from(got) - exact).abs();
            assert!(error <= 1e-6 + 1e-6 * exact.abs(), "{name}({x}, {y}) = {got}, not {exact}");
        }
    }
}

#[test]
fn norms_are_close_to_the_formulas() {
    let mut random = Random::new(2);
    for n in [1, 15, 16, 33, 128] {
        let (x, w, gate) = (random.floats(n), random.floats(n), random.floats(n));
        let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
        let (mut normed, mut gated) = (x.clone(), x.clone());
        l2_norm_in_place(Kernels::detect(), &mut normed, 1e-6);
        rms_norm_gated(Kernels::detect(), &mut gated, &w, 1e-6, &gate);
        for i in 0..n {
            let x = f64::from(x[i]);
            let exact = x / (squares + 1e-6).sqrt();
            assert!((f64::from(normed[i]) - exact).abs() < 1e-6, "{}, not {exact}", normed[i]);
            let gate = f64::from(gate[i]) * sigmoid(f64::from(gate[i]));
            let exact = x / (squares / n as f64 + 1e-6).sqrt() * f64::from(w[i]) * gate;
            assert!((f64::from(gated[i]) - exact).abs() < 1e-6, "{}, not {exact}", gated[i]);
        }
        let mut centred = x.clone();
        layer_norm_in_place(Kernels::detect(), &mut centred, &w, &gate, 1e-3);
        let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n as f64;
        let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n as f64;
        for i in 0..n {
            let scaled = (f64::from(x[i]) - mean) / (variance + 1e-3).sqrt();
            let exact = scaled * f64::from(w[i]) + f64::from(gate[i]);
            assert!((f64::from(centred[i]) - exact).abs() < 2e-6, "{}, not {exact}", centred[i]);
        }
        let mut lanes = [0.0f32; 16];
        for (i, x) in x.iter().enumerate() {
            lanes[i % 16] = x.mul_add(*x, lanes[i % 16]);
        }
        let factor = 1.0 / (tree(lanes) + 1e-6).sqrt();
        let expected: Vec<f32> = x.iter().map(|x| x * factor).collect();
        assert_bits(&normed, &expected, "l2_norm_in_place");
    }
}

#[test]
fn rms_norm_is_the_formula_in_its_order() {
    let mut random = Random::new(1);
    for n in [1, 16, 50, 100] {
        let (x, w) = (random.floats(n), random.floats(n));
        let mut lanes = [0.0f32; 16];
        for (i, x) in x.iter().enumerate() {
            lanes[i % 16] = x.mul_add(*x, lanes[i % 16]);
        }
        let scale = 1.0 / (tree(lanes) / n as f32 + 1e-6).sqrt();
        let expected: Vec<f32> = x.iter().zip(&w).map(|(x, w)| x * scale * w).collect();
        let mut out = vec![0.0; n];
        rms_norm(Kernels::detect(), &x, &w, 1e-6, &mut out);
        assert_bits(&out, &expected, "rms_norm");
    }
}

#[test]
fn softmax_is_a_distribution() {
    let x: Vec<f32> = Random::new(4).floats(333).iter().map(|x| x * 20.0).collect();
    let mut p = x.clone();
    softmax(Kernels::detect(), &mut p);
    let total: f64 = x.iter().map(|x| f64::from(*x).exp()).sum();
    for (x, p) in x.iter().zip(&p) {
        let expected = f64::from(*x).exp() / total;
        assert!((f64::from(*p) - expected).abs() <= 1e-5 * expected, "{p} is not {expected}");
    }
    let lse = f64::from(log_sum_exp(Kernels::detect(), &x));
    assert!((lse - total.ln()).abs() < 1e-5);
    let mut masked = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
    softmax(Kernels::detect(), &mut masked);
    assert_eq!(masked, [0.0, 1.0, 0.0]);
    assert_eq!(log_sum_exp(Kernels::detect(), &[]), f32::NEG_INFINITY);
    assert_eq!(log_sum_exp(Kernels::detect(), &[f32::NEG_INFINITY; 20]), f32::NEG_INFINITY);
}

proptest! {
    /// Sorting finds the same numbers, and the plain sum is close. The classes make ties and numbers that count as none.
    #[test]
    fn the_likeliest_are_those_of_a_sort(
        classes in proptest::collection::vec(0u32..1200, 0..400),
        spread in prop_oneof![Just(0.01f32), Just(0.3), Just(40.0)],
    ) {
        let of_class = |class: &u32| match class {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            2 => -0.0,
            &class => (class as f32 - 600.0) * spread,
        };
        let x: Vec<f32> = classes.iter().map(of_class).collect();
        let mut expected: Vec<usize> = (0..x.len()).filter(|&i| x[i] > f32::NEG_INFINITY).collect();
        expected.sort_by(|&a, &b| x[b].partial_cmp(&x[a]).unwrap());
        let numbers: Vec<f32> = expected.iter().map(|&i| x[i]).collect();
        let total = log_sum_exp(scalar(), &numbers);
        for k in Kernels::available() {
            let found = likeliest::<8>(k, &x);
            let indices: Vec<usize> = found.best().iter().map(|&(_, i)| i as usize).collect();
            prop_assert_eq!(&indices, &expected[..expected.len().min(8)], "{}", k.isa());
            prop_assert!(found.best().iter().all(|&(number, i)| number.to_bits() == x[i as usize].to_bits()));
            prop_assert!(
                found.log_sum == total || (found.log_sum - total).abs() < 0.007,
                "{}: {} instead of {total}", k.isa(), found.log_sum
            );
        }
    }
}

proptest! {
    #[test]
    fn blocks_are_those_of_plain_loops(
        mut x in proptest::collection::vec(prop_oneof![12 => -3.0f32..3.0, 1 => Just(f32::NEG_INFINITY), 1 => Just(f32::NAN)], 1..400),
        bound in -2.0f32..2.9,
        temperature in 0.1f32..2.0,
    ) {
        for k in Kernels::available() {
            let (mut most, mut found) = (Vec::new(), Vec::new());
            block_max(k, &x, &mut most);
            let expected = x.chunks(BLOCK_LEN).map(|block| block.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            prop_assert_eq!(&most, &expected.collect::<Vec<f32>>());
            gather_above(k, &x, 0.9, bound, &mut found);
            let scaled = x.iter().map(|x| x * 0.9).zip(0u32..);
            prop_assert_eq!(&found, &scaled.filter(|c| c.0 > bound).collect::<Vec<_>>());
        }
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        prop_assume!(max > f32::NEG_INFINITY);
        let mut softmaxed: Vec<f32> = x.iter().map(|x| f32::max((x - max) / temperature, f32::NEG_INFINITY)).collect();
        softmax(scalar(), &mut softmaxed);
        let factor = 1.0 / exp_scaled(scalar(), &mut x, max, temperature);
        let weights: Vec<f32> = x.iter().map(|x| x * factor).collect();
        assert_bits(&weights, &softmaxed, "as softmax");
        let mut sums = Vec::new();
        block_sums(scalar(), &x, factor, &mut sums);
        let expected: f64 = weights.iter().copied().map(f64::from).sum();
        prop_assert!((sums.iter().sum::<f64>() - expected).abs() < 1e-12);
    }
}

#[test]
fn an_infinite_number_is_the_likeliest() {
    for k in Kernels::available() {
        let mut x = vec![0.0; 100];
        x[77] = f32::INFINITY;
        let found = likeliest::<2>(k, &x);
        assert_eq!((found.best(), found.log_sum), (&[(f32::INFINITY, 77), (0.0, 0)][..], f32::INFINITY));
    }
}

#[test]
fn argmax_takes_the_lowest_of_equals() {
    for k in Kernels::available() {
        for n in [1, 15, 16, 17, 40] {
            for best in 0..n {
                let mut x = vec![-1.0; n];
                x[best..].iter_mut().step_by(3).for_each(|x| *x = 2.0);
                assert_eq!(argmax(k, &x), best, "{n}, {}", k.isa());
                x[0] = f32::NAN;
                let expected = if best == 0 { if n > 3 { 3 } else { usize::from(n > 1) } } else { best };
                assert_eq!(argmax(k, &x), expected, "NaN first of {n}, {}", k.isa());
            }
        }
        assert_eq!(argmax(k, &[f32::NAN, f32::NAN]), 0);
        assert_eq!(argmax(k, &[f32::NEG_INFINITY; 33]), 0);
        assert_eq!(argmax(k, &[f32::NAN, f32::NEG_INFINITY]), 1);
        assert_eq!(argmax(k, &[-0.0, 0.0]), 0);
    }
}

#[test]
fn rope_turns_pairs() {
    let angle = 0.7f32;
    let mut x = [1.0, 0.0, 0.0, 1.0, 0.5, 0.0, -0.5, 0.0];
    rope(Kernels::detect(), &mut x, 4, &[angle.cos(), 1.0], &[angle.sin(), 0.0]);
    let expected = [angle.cos(), 0.0, angle.sin(), 1.0];
    assert_bits(&x[..4], &expected, "head 0: element 0 turns with 2, element 1 with 3");
    let a = 0.5f32.mul_add(angle.cos(), 0.5 * angle.sin());
    assert_bits(&x[4..5], &[a], "head 1");
}

/// Partial rotation turns the first elements of each head as a rotation of heads of that length, and leaves the rest.
#[test]
fn rope_turns_the_first_elements() {
    let mut random = Random::new(5);
    for (head_dim, half) in [(1, 0), (7, 3), (8, 2), (40, 20), (64, 16), (80, 17), (128, 48)] {
        let (x, cos, sin) = (random.floats(3 * head_dim), random.floats(half), random.floats(half));
        for k in Kernels::available() {
            let mut got = x.clone();
            rope(k, &mut got, head_dim, &cos, &sin);
            let mut expected = x.clone();
            for head in expected.chunks_mut(head_dim).filter(|_| half > 0) {
                rope(scalar(), &mut head[..2 * half], 2 * half, &cos, &sin);
            }
            assert_bits(&got, &expected, &format!("{half} pairs of {head_dim}, {}", k.isa()));
        }
        for (head, before) in got_heads(&x, head_dim, &cos, &sin).chunks(head_dim).zip(x.chunks(head_dim)) {
            for i in 0..half {
                let (a, b) = (before[i], before[i + half]);
                assert_bits(&head[i..=i], &[a.mul_add(cos[i], -(b * sin[i]))], "first of the pair");
                assert_bits(
                    &head[i + half..=i + half],
                    &[b.mul_add(cos[i], a * sin[i])],
                    "second of the pair",
                );
            }
            assert_bits(&head[2 * half..], &before[2 * half..], "the rest");
        }
    }
}

fn got_heads(x: &[f32], head_dim: usize, cos: &[f32], sin: &[f32]) -> Vec<f32> {
    let mut out = x.to_vec();
    rope(Kernels::detect(), &mut out, head_dim, cos, sin);
    out
}
