//! The portable instruction set. It defines each vector operation lane by lane and is the oracle of all
//! others.
//!
//! No `unsafe`, no intrinsics. The vector implementations are compared with this one bit for bit.

use half::{bf16, f16};

use super::fused;
use super::layout::ScaleLanes;
use super::simd::{LANES, Simd, Work};

/// Requires no CPU feature.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scalar;

macro_rules! lanewise {
    ($a:ident, $b:ident, $result:expr) => {{
        let mut out = [Default::default(); LANES];
        for i in 0..LANES {
            let ($a, $b) = ($a[i], $b[i]);
            out[i] = $result;
        }
        out
    }};
    ($a:ident, $result:expr) => {{
        let mut out = [Default::default(); LANES];
        for i in 0..LANES {
            let $a = $a[i];
            out[i] = $result;
        }
        out
    }};
}

impl ScaleLanes for Scalar {
    type F = [f32; LANES];
    type I = [i32; LANES];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::F {
        lanewise!(x, f16::from_bits(x).to_f32())
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; LANES]) -> Self::I {
        lanewise!(x, i32::from(x))
    }
    #[inline(always)]
    fn load_i8(self, x: &[u8; LANES]) -> Self::F {
        lanewise!(x, f32::from(x as i8))
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        lanewise!(a, b, a * b)
    }
    #[inline(always)]
    fn splat_i(self, x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I {
        lanewise!(a, b, i32::wrapping_add(a, b))
    }
    #[inline(always)]
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I {
        lanewise!(a, b, i32::wrapping_sub(a, b))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Self::I) -> Self::I {
        lanewise!(a, a << N)
    }
    #[inline(always)]
    fn sar<const N: u32>(self, a: Self::I) -> Self::I {
        lanewise!(a, a >> N)
    }
    #[inline(always)]
    fn of_bits(self, a: Self::I) -> Self::F {
        lanewise!(a, f32::from_bits(a as u32))
    }
    #[inline(always)]
    fn to_f(self, a: Self::I) -> Self::F {
        lanewise!(a, a as f32)
    }
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        self.sub(self.splat(-0.0), a)
    }
}

impl Simd for Scalar {
    type W = [u8; 64];
    type Short = ();
    type Pair = ();

    const WIDE_SHIFT: i32 = 0;
    const INT_TILE_PANELS: usize = 1;
    const INT_TILE_ROWS: usize = 1;
    // Speed is secondary here: tiles of one query keep the code small on machines without vectors.
    const QUERIES: usize = 1;
    const ACCUMULATORS: usize = 1;
    const FLOAT_TILE_ROWS: usize = 1;

    #[inline(never)]
    fn run_apart<W: Work>(self, work: W) -> W::Output {
        work.run(self)
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        *x
    }
    #[inline(always)]
    fn store(self, x: Self::F, out: &mut [f32; LANES]) {
        *out = x;
    }
    #[inline(always)]
    fn store_f16(self, x: Self::F, out: &mut [u16; LANES]) {
        *out = lanewise!(x, f16::from_f32(x).to_bits());
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F {
        lanewise!(x, bf16::from_bits(x).to_f32())
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        lanewise!(a, b, a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        lanewise!(a, b, a - b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        lanewise!(a, b, a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        let mut out = c;
        for i in 0..LANES {
            out[i] = fused::fma(a[i], b[i], c[i]);
        }
        out
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        lanewise!(a, b, if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        lanewise!(a, b, if a < b { a } else { b })
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        lanewise!(a, a.abs())
    }
    #[inline(always)]
    fn max_lane(self, x: Self::F) -> f32 {
        x.iter().fold(f32::NEG_INFINITY, |max, &lane| max.max(lane))
    }
    #[inline(always)]
    fn eq_mask(self, a: Self::F, b: Self::F) -> u16 {
        let mut mask = 0;
        for i in 0..LANES {
            mask |= u16::from(a[i] == b[i]) << i;
        }
        mask
    }

    #[inline(always)]
    fn store_i8(self, x: Self::I, out: &mut [i32; 4]) {
        for (out, lanes) in out.iter_mut().zip(x.as_chunks::<4>().0) {
            *out = i32::from_le_bytes(lanes.map(|lane| lane as u8));
        }
    }
    #[inline(always)]
    fn sum_i(self, x: Self::I) -> i32 {
        x.iter().sum()
    }
    #[inline(always)]
    fn to_bits(self, a: Self::F) -> Self::I {
        lanewise!(a, a.to_bits() as i32)
    }
    #[inline(always)]
    fn round_to_i(self, a: Self::F) -> Self::I {
        lanewise!(a, a.round_ties_even() as i32)
    }

    #[inline(always)]
    fn prefetch<T>(self, _at: &T) {}
    #[inline(always)]
    fn load_codes(self, x: &[u8; 64]) -> Self::W {
        *x
    }
    #[inline(always)]
    fn low_nibbles(self, mut w: Self::W) -> Self::W {
        for code in &mut w {
            *code &= 0xF;
        }
        w
    }
    #[inline(always)]
    fn high_nibbles(self, mut w: Self::W) -> Self::W {
        for code in &mut w {
            *code >>= 4;
        }
        w
    }
    #[inline(always)]
    fn two_bits(self, mut w: Self::W, shift: u32) -> Self::W {
        for code in &mut w {
            *code = *code >> shift & 3;
        }
        w
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], mut nibbles: Self::W) -> Self::W {
        for code in &mut nibbles {
            *code = table[usize::from(*code & 0xF)];
        }
        nibbles
    }
    #[inline(always)]
    fn with_upper_bits(self, mut nibbles: Self::W, line: Self::W, shift: i32, mask: u8) -> Self::W {
        for (code, byte) in nibbles.iter_mut().zip(line) {
            *code |= if shift >= 0 { byte << shift } else { byte >> -shift } & mask;
        }
        nibbles
    }
    #[inline(always)]
    fn dot_narrow(self, acc: Self::I, w: Self::W, a: i32) -> Self::I {
        self.dot_wide(acc, w, a)
    }
    #[inline(always)]
    fn dot_wide(self, mut acc: Self::I, w: Self::W, a: i32) -> Self::I {
        let a = a.to_le_bytes();
        for i in 0..LANES {
            for j in 0..4 {
                acc[i] += i32::from(w[4 * i + j]) * i32::from(a[j] as i8);
            }
        }
        acc
    }

    #[inline(always)]
    fn sum(self, mut x: Self::F) -> f32 {
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                x[i] += x[i + width];
            }
        }
        x[0]
    }
}
