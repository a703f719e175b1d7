//! The fused multiply-add of single numbers.
//!
//! WebAssembly has no instruction for it, and the `fmaf` that its targets link rounds twice where the result is subnormal. There it is
//! computed in double precision, rounded to odd: the product of two f32 is exact in f64, and a sum that keeps a trace of what it
//! lacks is rounded to f32 as the exact sum would be (Boldo and Melquiond 2008), because 53 bits are more than 24 + 1.

/// a · b + c, rounded once.
#[inline(always)]
pub(super) fn fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(target_family = "wasm") { by_doubles(a, b, c) } else { a.mul_add(b, c) }
}

/// Not inlined: every operation of the scalar kernels would hold sixteen copies.
#[inline(never)]
fn by_doubles(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // What the rounded sum lacks, exactly (Knuth's two-sum); NaN if the sum is infinite or NaN.
    let of_c = sum - product;
    let lack = (product - (sum - of_c)) + (c - of_c);
    let bits = sum.to_bits();
    let is_even = bits & 1 == 0;
    // The exact sum lies between an even and an odd number; the odd one stands for everything between.
    let odd = if is_even && lack > 0.0 {
        if sum > 0.0 { bits + 1 } else { bits - 1 }
    } else if is_even && lack < 0.0 {
        if sum > 0.0 { bits - 1 } else { bits + 1 }
    } else {
        bits
    };
    f64::from_bits(odd) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_bits;

    /// Compares with the system's function, which is an instruction of the CPU or rounds correctly.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    fn check(a: f32, b: f32, c: f32) {
        let (got, expected) = (by_doubles(a, b, c), a.mul_add(b, c));
        let is_same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        assert!(is_same, "{a:e} · {b:e} + {c:e} is {got:e}, not {expected:e}");
    }

    #[cfg(not(target_family = "wasm"))]
    #[test]
    fn equals_the_instruction() {
        let mut random = crate::tests::Random::new(11);
        for _ in 0..if cfg!(miri) { 200 } else { 300_000 } {
            let [a, b, c] = std::array::from_fn(|_| f32::from_bits(random.next() as u32));
            check(a, b, c);
            // Of about one size: sums that cancel.
            let [a, b, c] = std::array::from_fn(|_| {
                random.float() * f32::from_bits((120 + random.next() as u32 % 14) << 23)
            });
            check(a, b, c);
            check(a, b, -a * b);
            check(a, b, f32::from_bits((a * b).to_bits() ^ (1 << 31 | 1)));
            // A product of half of the last bit, or about so; of numbers of all sizes, subnormal ones too.
            let c = f32::from_bits(random.next() as u32 & 0xbfff_ffff);
            let half = 2f32.powi((c.to_bits() >> 23 & 0xff).max(1) as i32 - 151 + 40);
            let near = [1.0, 1.0 + f32::EPSILON, 1.0 - f32::EPSILON, 3.0];
            let [a, b] = std::array::from_fn(|_| near[random.next() as usize % 4]);
            check(a * 2f32.powi(-40), b * half, c);
            check(-a * 2f32.powi(-40), b * half, c);
        }
    }

    #[test]
    fn ties_are_decided_by_the_smallest_trace() {
        let power = |n: i32| 2f32.powi(n);
        let (above, below) = (1.0 + f32::EPSILON, 1.0 - f32::EPSILON);
        // (1 + 2⁻²³) · (1 − 2⁻²³) is 1 − 2⁻⁴⁶. So the product is just less than half of the last bit of `c`, and f64 shows a half.
        for (half, c) in [(-24, above), (-150, f32::from_bits(power(-127).to_bits() | 1))] {
            let next = f32::from_bits(c.to_bits() + 1);
            let (a, b) = (power(half / 2) * above, power(half / 2) * below);
            assert_bits(&[by_doubles(a, b, c)], &[c], "less than a tie");
            assert_bits(&[by_doubles(-a, b, -c)], &[-c], "less than a tie");
            assert_bits(&[by_doubles(power(half / 2), power(half / 2), c)], &[next], "a tie");
            assert_bits(&[by_doubles(a, power(half / 2) * above, c)], &[next], "more than a tie");
        }
        // Half of the smallest number beside nothing, and beside the greatest.
        assert_bits(&[by_doubles(power(-75), power(-75), 0.0)], &[0.0], "half of the smallest");
        assert_bits(&[by_doubles(above * power(-75), power(-75), 0.0)], &[f32::from_bits(1)], "more than it");
        assert_bits(&[by_doubles(power(60), power(43), f32::MAX)], &[f32::INFINITY], "a tie with infinity");
        assert_bits(&[by_doubles(power(60), -power(20), f32::INFINITY)], &[f32::INFINITY], "infinity");
        assert!(by_doubles(f32::INFINITY, 0.0, 1.0).is_nan());
        assert_bits(&[by_doubles(-0.0, 0.0, -0.0)], &[-0.0], "negative zero");
    }
}
