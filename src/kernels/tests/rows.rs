//! Compares row-wise functions with plain loops, and every instruction set with scalar code.

use proptest::prelude::*;

use super::{Random, assert_bits, tree};
use crate::kernels::math::exp_lanes;
use crate::kernels::scalar::Scalar;
use crate::kernels::simd::{Simd, Work};
use crate::kernels::*;

fn scalar() -> Kernels {
    Kernels::with_isa(IsaKind::Scalar).unwrap()
}

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
    out.push(log_sum_exp(k, x));
    out.push(dot(k, x, y));
    if n > 0 {
        out.push(argmax(k, x) as f32);
        let mut heads = [x, x, y, y].concat();
        rope(k, &mut heads, 2 * n, x, y);
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
