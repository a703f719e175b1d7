//! WebAssembly's vectors (SIMD128): four 128-bit registers per vector.
//!
//! There is no choice at run time: an engine without these instructions refuses a module that contains them, so they are compiled if
//! the build has them (`-C target-feature=+simd128`). The relaxed instructions are not used, because their results differ between
//! engines.
//!
//! Codes are separated into even and odd bytes, in 16 bits. `i32x4.dot_i16x8` adds the products of two columns of a lane, so no sum
//! crosses lanes, and codes of eight bits are multiplied as they are.
//!
//! There is no fused multiply-add. It is computed in f64, in which the product of two f32 is exact, and rounded to f32. Rounding twice
//! gives another number than rounding once only if the sum in f64 lies halfway between two f32. Such sums, and subnormal results,
//! whose halves lie elsewhere, are computed lane by lane (`fused.rs`). Four lanes take about 25 instructions instead of one: most of
//! the time of attention and of float matrices, and a third of that of quantised ones.

use std::arch::wasm32::*;

use super::fused;
use super::layout::ScaleLanes;
use super::simd::{LANES, Simd, Work, by_intrinsic};

/// The vectors of WebAssembly, which the build has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Simd128;

impl Simd128 {
    #[inline(never)]
    pub(super) fn run<W: Work>(self, work: W) -> W::Output {
        work.run(self)
    }
}

/// The same instruction on all four registers.
macro_rules! four {
    ($f:expr, $a:expr) => {
        [$f($a[0]), $f($a[1]), $f($a[2]), $f($a[3])]
    };
    ($f:expr, $a:expr, $b:expr) => {
        [$f($a[0], $b[0]), $f($a[1], $b[1]), $f($a[2], $b[2]), $f($a[3], $b[3])]
    };
    ($f:expr, $a:expr, $b:expr, $c:expr) => {
        [$f($a[0], $b[0], $c[0]), $f($a[1], $b[1], $c[1]), $f($a[2], $b[2], $c[2]), $f($a[3], $b[3], $c[3])]
    };
}

/// Four numbers.
#[inline(always)]
fn load_four(x: &[f32; 4]) -> v128 {
    // SAFETY: the reference is to a whole register; `v128.load` needs no alignment.
    unsafe { v128_load(x.as_ptr().cast()) }
}

/// Sixteen bytes.
#[inline(always)]
fn load_bytes(x: &[u8; 16]) -> v128 {
    // SAFETY: as above.
    unsafe { v128_load(x.as_ptr().cast()) }
}

/// Eight numbers of 16 bits.
#[inline(always)]
fn load_halves(x: &[u16; 8]) -> v128 {
    // SAFETY: as above.
    unsafe { v128_load(x.as_ptr().cast()) }
}

/// 16 numbers of 16 bits in four registers, with zeros above them.
#[inline(always)]
fn widen_halves(x: &[u16; LANES]) -> [v128; 4] {
    let halves = x.as_chunks::<8>().0;
    let (low, high) = (load_halves(&halves[0]), load_halves(&halves[1]));
    [
        u32x4_extend_low_u16x8(low),
        u32x4_extend_high_u16x8(low),
        u32x4_extend_low_u16x8(high),
        u32x4_extend_high_u16x8(high),
    ]
}

/// f16 bits to f32. Subnormal numbers become normal ones.
#[inline(always)]
fn of_f16(x: v128) -> v128 {
    let size = v128_and(x, i32x4_splat(0x7fff));
    let sign = u32x4_shl(v128_xor(x, size), 16);
    // The exponents differ by 112.
    let scaled = f32x4_mul(u32x4_shl(size, 13), f32x4_splat(f32::from_bits((127 + 112) << 23)));
    // The exponent of infinities and NaN has all bits, in both.
    let above = v128_and(i32x4_gt(size, i32x4_splat(0x7bff)), i32x4_splat(0x7f80_0000));
    v128_or(v128_or(scaled, above), sign)
}

/// f32 to f16 bits, to nearest, ties to even.
#[inline(always)]
fn to_f16(x: v128) -> v128 {
    let size = v128_and(x, i32x4_splat(0x7fff_ffff));
    let sign = u32x4_shr(v128_xor(x, size), 16);
    // Less 112 in the exponent, and half of the 13 bits that are dropped; just less if the last bit is even.
    let is_odd = v128_and(u32x4_shr(size, 13), i32x4_splat(1));
    let rounded = i32x4_add(i32x4_add(size, i32x4_splat(0xfff - (112 << 23))), is_odd);
    let normal = u32x4_shr(rounded, 13);
    // The last bit of a half is that of a subnormal result, 2⁻²⁴.
    let half = f32x4_splat(0.5);
    let subnormal = i32x4_sub(f32x4_add(size, half), half);
    let is_subnormal = i32x4_lt(size, i32x4_splat(113 << 23));
    let finite = v128_bitselect(subnormal, normal, is_subnormal);
    let is_nan = i32x4_gt(size, i32x4_splat(0x7f80_0000));
    let above = v128_bitselect(i32x4_splat(0x7e00), i32x4_splat(0x7c00), is_nan);
    let is_above = i32x4_gt(size, i32x4_splat((143 << 23) - 1));
    v128_or(v128_bitselect(above, finite, is_above), sign)
}

/// The upper two lanes, twice.
#[inline(always)]
fn upper(x: v128) -> v128 {
    i64x2_shuffle::<1, 1>(x, x)
}

/// a · b + c of the lower two lanes, in f64: an exact product, and a sum rounded to f64.
#[inline(always)]
fn wide_sum(a: v128, b: v128, c: v128) -> v128 {
    let product = f64x2_mul(f64x2_promote_low_f32x4(a), f64x2_promote_low_f32x4(b));
    f64x2_add(product, f64x2_promote_low_f32x4(c))
}

/// a · b + c, rounded once.
#[inline(always)]
fn fma_four(a: v128, b: v128, c: v128) -> v128 {
    let (low, high) = (wide_sum(a, b, c), wide_sum(upper(a), upper(b), upper(c)));
    let rounded = i64x2_shuffle::<0, 2>(f32x4_demote_f64x2_zero(low), f32x4_demote_f64x2_zero(high));
    // f32 drops 29 bits. They are in the lower words of the sums.
    let dropped = v128_and(i32x4_shuffle::<0, 2, 4, 6>(low, high), i32x4_splat(0x1fff_ffff));
    let is_half = i32x4_eq(dropped, i32x4_splat(0x1000_0000));
    // Above zero, and at most the least normal number: `size - 1` is below its bits, as unsigned numbers.
    let size = v128_and(rounded, i32x4_splat(0x7fff_ffff));
    let shifted = i32x4_add(size, i32x4_splat(i32::MAX));
    let is_small = i32x4_lt(shifted, i32x4_splat(i32::MIN + 0x0080_0000));
    if v128_any_true(v128_or(is_half, is_small)) {
        return fma_by_lane(a, b, c);
    }
    rounded
}

#[cold]
#[inline(never)]
fn fma_by_lane(a: v128, b: v128, c: v128) -> v128 {
    f32x4(
        fused::fma(f32x4_extract_lane::<0>(a), f32x4_extract_lane::<0>(b), f32x4_extract_lane::<0>(c)),
        fused::fma(f32x4_extract_lane::<1>(a), f32x4_extract_lane::<1>(b), f32x4_extract_lane::<1>(c)),
        fused::fma(f32x4_extract_lane::<2>(a), f32x4_extract_lane::<2>(b), f32x4_extract_lane::<2>(c)),
        fused::fma(f32x4_extract_lane::<3>(a), f32x4_extract_lane::<3>(b), f32x4_extract_lane::<3>(c)),
    )
}

impl ScaleLanes for Simd128 {
    type F = [v128; 4];
    type I = [v128; 4];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [f32x4_splat(x); 4]
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::F {
        let bits = widen_halves(x);
        four!(of_f16, bits)
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; LANES]) -> Self::I {
        let bytes = load_bytes(x);
        let (low, high) = (u16x8_extend_low_u8x16(bytes), u16x8_extend_high_u8x16(bytes));
        [
            u32x4_extend_low_u16x8(low),
            u32x4_extend_high_u16x8(low),
            u32x4_extend_low_u16x8(high),
            u32x4_extend_high_u16x8(high),
        ]
    }
    #[inline(always)]
    fn load_i8(self, x: &[u8; LANES]) -> Self::F {
        let bytes = load_bytes(x);
        let (low, high) = (i16x8_extend_low_i8x16(bytes), i16x8_extend_high_i8x16(bytes));
        self.to_f([
            i32x4_extend_low_i16x8(low),
            i32x4_extend_high_i16x8(low),
            i32x4_extend_low_i16x8(high),
            i32x4_extend_high_i16x8(high),
        ])
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> Self::I {
        [i32x4_splat(x); 4]
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Self::I) -> Self::I {
        [i32x4_shl(a[0], N), i32x4_shl(a[1], N), i32x4_shl(a[2], N), i32x4_shl(a[3], N)]
    }
    #[inline(always)]
    fn sar<const N: u32>(self, a: Self::I) -> Self::I {
        [i32x4_shr(a[0], N), i32x4_shr(a[1], N), i32x4_shr(a[2], N), i32x4_shr(a[3], N)]
    }
    #[inline(always)]
    fn of_bits(self, a: Self::I) -> Self::F {
        a
    }

    by_intrinsic! { four;
        neg(a: F) -> F = f32x4_neg;
        mul(a: F, b: F) -> F = f32x4_mul;
        add_i(a: I, b: I) -> I = i32x4_add;
        sub_i(a: I, b: I) -> I = i32x4_sub;
        to_f(a: I) -> F = f32x4_convert_i32x4;
    }
}

impl Simd for Simd128 {
    type W = [v128; 4];
    type Short = ();
    type Pair = ();

    const WIDE_SHIFT: i32 = 0;
    const INT_TILE_PANELS: usize = 1;
    // Two rows fill half of the 16 registers of an x86 processor, which an engine maps these to.
    const INT_TILE_ROWS: usize = 2;
    const QUERIES: usize = 2;
    const ACCUMULATORS: usize = 2;
    const FLOAT_TILE_ROWS: usize = 2;

    #[inline(always)]
    fn run_apart<W: Work>(self, work: W) -> W::Output {
        self.run(work)
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        let x = x.as_chunks::<4>().0;
        [load_four(&x[0]), load_four(&x[1]), load_four(&x[2]), load_four(&x[3])]
    }
    #[inline(always)]
    fn store(self, x: Self::F, out: &mut [f32; LANES]) {
        for (out, x) in out.as_chunks_mut::<4>().0.iter_mut().zip(x) {
            // SAFETY: the reference is to a whole register; `v128.store` needs no alignment.
            unsafe { v128_store(out.as_mut_ptr().cast(), x) };
        }
    }
    #[inline(always)]
    fn store_f16(self, x: Self::F, out: &mut [u16; LANES]) {
        let bits = four!(to_f16, x);
        let halves = [u16x8_narrow_i32x4(bits[0], bits[1]), u16x8_narrow_i32x4(bits[2], bits[3])];
        for (out, x) in out.as_chunks_mut::<8>().0.iter_mut().zip(halves) {
            // SAFETY: as above.
            unsafe { v128_store(out.as_mut_ptr().cast(), x) };
        }
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F {
        self.shl::<16>(widen_halves(x))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // `f32x4.pmax(b, a)` is `if b < a { a } else { b }`.
        four!(f32x4_pmax, b, a)
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        four!(f32x4_pmin, b, a)
    }
    #[inline(always)]
    fn max_lane(self, x: Self::F) -> f32 {
        let x4 = f32x4_max(f32x4_max(x[0], x[1]), f32x4_max(x[2], x[3]));
        let x2 = f32x4_max(x4, upper(x4));
        f32x4_extract_lane::<0>(x2).max(f32x4_extract_lane::<1>(x2))
    }
    #[inline(always)]
    fn eq_mask(self, a: Self::F, b: Self::F) -> u16 {
        let equal = four!(f32x4_eq, a, b);
        let bits = four!(i32x4_bitmask, equal);
        u16::from(bits[0] | bits[1] << 4) | u16::from(bits[2] | bits[3] << 4) << 8
    }

    #[inline(always)]
    fn store_i8(self, x: Self::I, out: &mut [i32; 4]) {
        let bytes = i8x16_narrow_i16x8(i16x8_narrow_i32x4(x[0], x[1]), i16x8_narrow_i32x4(x[2], x[3]));
        // SAFETY: as above.
        unsafe { v128_store(out.as_mut_ptr().cast(), bytes) };
    }
    #[inline(always)]
    fn sum_i(self, x: Self::I) -> i32 {
        let x4 = i32x4_add(i32x4_add(x[0], x[1]), i32x4_add(x[2], x[3]));
        let x2 = i32x4_add(x4, upper(x4));
        i32x4_extract_lane::<0>(x2) + i32x4_extract_lane::<1>(x2)
    }
    #[inline(always)]
    fn to_bits(self, a: Self::F) -> Self::I {
        a
    }
    #[inline(always)]
    fn round_to_i(self, a: Self::F) -> Self::I {
        let rounded = four!(f32x4_nearest, a);
        four!(i32x4_trunc_sat_f32x4, rounded)
    }

    #[inline(always)]
    fn prefetch<T>(self, _at: &T) {}
    #[inline(always)]
    fn load_codes(self, x: &[u8; 64]) -> Self::W {
        let x = x.as_chunks::<16>().0;
        [load_bytes(&x[0]), load_bytes(&x[1]), load_bytes(&x[2]), load_bytes(&x[3])]
    }
    #[inline(always)]
    fn low_nibbles(self, w: Self::W) -> Self::W {
        four!(v128_and, w, [u8x16_splat(0xf); 4])
    }
    #[inline(always)]
    fn high_nibbles(self, w: Self::W) -> Self::W {
        self.low_nibbles([u16x8_shr(w[0], 4), u16x8_shr(w[1], 4), u16x8_shr(w[2], 4), u16x8_shr(w[3], 4)])
    }
    #[inline(always)]
    fn two_bits(self, w: Self::W, shift: u32) -> Self::W {
        let mut out = w;
        for i in 0..4 {
            out[i] = v128_and(u16x8_shr(w[i], shift), u8x16_splat(3));
        }
        out
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], nibbles: Self::W) -> Self::W {
        four!(u8x16_swizzle, [load_bytes(table); 4], nibbles)
    }
    #[inline(always)]
    fn with_upper_bits(self, nibbles: Self::W, line: Self::W, shift: i32, mask: u8) -> Self::W {
        let mut out = nibbles;
        for i in 0..4 {
            let upper = if shift >= 0 {
                u16x8_shl(line[i], shift.unsigned_abs())
            } else {
                u16x8_shr(line[i], shift.unsigned_abs())
            };
            out[i] = v128_or(nibbles[i], v128_and(upper, u8x16_splat(mask)));
        }
        out
    }
    #[inline(always)]
    fn dot_narrow(self, acc: Self::I, w: Self::W, a: i32) -> Self::I {
        self.dot_wide(acc, w, a)
    }
    #[inline(always)]
    fn dot_wide(self, acc: Self::I, w: Self::W, a: i32) -> Self::I {
        let a = i32x4_splat(a);
        // Columns 0 and 2, and 1 and 3, with their signs in 16 bits.
        let (even, odd) = (i16x8_shr(i16x8_shl(a, 8), 8), i16x8_shr(a, 8));
        let mut out = acc;
        for i in 0..4 {
            let evens = i32x4_dot_i16x8(v128_and(w[i], u16x8_splat(0xff)), even);
            let odds = i32x4_dot_i16x8(u16x8_shr(w[i], 8), odd);
            out[i] = i32x4_add(acc[i], i32x4_add(evens, odds));
        }
        out
    }

    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        // i + (i+8), i + (i+4), i + (i+2), i + (i+1).
        let x4 = f32x4_add(f32x4_add(x[0], x[2]), f32x4_add(x[1], x[3]));
        let x2 = f32x4_add(x4, upper(x4));
        f32x4_extract_lane::<0>(x2) + f32x4_extract_lane::<1>(x2)
    }

    by_intrinsic! { four;
        add(a: F, b: F) -> F = f32x4_add;
        sub(a: F, b: F) -> F = f32x4_sub;
        div(a: F, b: F) -> F = f32x4_div;
        fma(a: F, b: F, c: F) -> F = fma_four;
        abs(a: F) -> F = f32x4_abs;
    }
}
