//! NEON: four 128-bit registers per vector. If the CPU has them, `sdot` computes the integer dot products
//! (`DOT` and above), and `smmla` those of two activation rows (`I8MM`).
//!
//! `sdot` multiplies signed bytes. Codes of eight bits are therefore read as signed (code − 128), and the
//! sums have another initial value (`WIDE_SHIFT`); codes below 128 are the same either way. CPUs before
//! ARMv8.2 widen to 16 bits and add in pairs, which is exact as well: |w · a| ≤ 128 · 127 fits.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::aligned::Line;
use super::int8::{RowOrder, RowPair};
use super::layout::{IntLayout, ScaleLanes};
use super::simd::{Ahead, LANES, Simd, Work, by_intrinsic};

mod tile;

/// A level of [`Neon`]: NEON without extensions.
pub(super) const PLAIN: u8 = 0;
/// With dot products (ARMv8.2 dotprod).
pub(super) const DOT: u8 = 1;
/// With dot products and products of small matrices (ARMv8.6 i8mm).
pub(super) const I8MM: u8 = 2;

/// Proof that the CPU has NEON and the extension that `LEVEL` names: `new`, the only constructor, checks it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neon<const LEVEL: u8>(());

/// Wraps the intrinsics below. They need only features that `Neon` proves, and access memory only through
/// references.
macro_rules! proven {
    ($($body:tt)*) => {
        // SAFETY: a value of `Neon` exists only if the CPU has the features; pointers come from references
        // to whole vectors.
        unsafe { $($body)* }
    };
}
impl<const LEVEL: u8> Neon<LEVEL> {
    pub(super) fn new() -> Option<Self> {
        let has_all = is_aarch64_feature_detected!("neon")
            && (LEVEL < DOT || is_aarch64_feature_detected!("dotprod"))
            && (LEVEL < I8MM || is_aarch64_feature_detected!("i8mm"));
        has_all.then_some(Neon(()))
    }

    /// Without dot products.
    pub(super) fn plain(self) -> Neon<PLAIN> {
        Neon(())
    }

    pub(super) fn run<W: Work>(self, work: W) -> W::Output {
        #[target_feature(enable = "neon")]
        #[inline(never)]
        fn with_features<W: Work>(isa: Neon<PLAIN>, work: W) -> W::Output {
            work.run(isa)
        }
        #[target_feature(enable = "neon,dotprod")]
        #[inline(never)]
        fn with_dot<W: Work>(isa: Neon<DOT>, work: W) -> W::Output {
            work.run(isa)
        }
        #[target_feature(enable = "neon,dotprod,i8mm")]
        #[inline(never)]
        fn with_i8mm<W: Work>(isa: Neon<I8MM>, work: W) -> W::Output {
            work.run(isa)
        }
        // SAFETY: `self` proves that the CPU has these features.
        unsafe {
            match LEVEL {
                PLAIN => with_features(Neon(()), work),
                DOT => with_dot(Neon(()), work),
                _ => with_i8mm(Neon(()), work),
            }
        }
    }

    /// Per lane: acc + Σ₄ w · a, all bytes signed.
    #[inline(always)]
    fn dot(self, mut acc: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
        if LEVEL >= DOT {
            // SAFETY: the level proves `sdot`, which reads and writes registers only. (Its intrinsic is not
            // stable yet.)
            unsafe {
                asm!(
                    "sdot {acc:v}.4s, {w:v}.16b, {a:v}.16b",
                    acc = inout(vreg) acc,
                    w = in(vreg) w,
                    a = in(vreg) a,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            return acc;
        }
        proven! {
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(a)));
            let high = vpaddlq_s16(vmull_high_s8(w, a));
            vaddq_s32(acc, vpaddq_s32(low, high))
        }
    }

    /// acc[i][j] + Σ₈ w[i] · a[j] for two rows of eight signed bytes each; only with `I8MM`.
    #[inline(always)]
    fn dot_matrix(self, mut acc: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
        assert!(LEVEL >= I8MM);
        // SAFETY: the level proves `smmla`, which reads and writes registers only. (Its intrinsic is not stable yet.)
        unsafe {
            asm!(
                "smmla {acc:v}.4s, {w:v}.16b, {a:v}.16b",
                acc = inout(vreg) acc,
                w = in(vreg) w,
                a = in(vreg) a,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        acc
    }
}

/// The same intrinsic on all four registers.
macro_rules! four {
    ($f:expr, $a:expr) => {
        proven!([$f($a[0]), $f($a[1]), $f($a[2]), $f($a[3])])
    };
    ($f:expr, $a:expr, $b:expr) => {
        proven!([$f($a[0], $b[0]), $f($a[1], $b[1]), $f($a[2], $b[2]), $f($a[3], $b[3])])
    };
    ($f:expr, $a:expr, $b:expr, $c:expr) => {
        proven!([
            $f($a[0], $b[0], $c[0]),
            $f($a[1], $b[1], $c[1]),
            $f($a[2], $b[2], $c[2]),
            $f($a[3], $b[3], $c[3]),
        ])
    };
}

impl<const LEVEL: u8> ScaleLanes for Neon<LEVEL> {
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        proven!([vdupq_n_f32(x); 4])
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::F {
        let x = x.as_ptr();
        proven! {
            let bits = [vld1_u16(x), vld1_u16(x.add(4)), vld1_u16(x.add(8)), vld1_u16(x.add(12))];
            bits.map(|bits| vcvt_f32_f16(vreinterpret_f16_u16(bits)))
        }
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; LANES]) -> Self::I {
        proven! {
            let bytes = vld1q_u8(x.as_ptr());
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            [vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)]
                .map(|lanes| vreinterpretq_s32_u32(lanes))
        }
    }
    #[inline(always)]
    fn load_i8(self, x: &[u8; LANES]) -> Self::F {
        proven! {
            let bytes = vreinterpretq_s8_u8(vld1q_u8(x.as_ptr()));
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
                .map(|lanes| vcvtq_f32_s32(lanes))
        }
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> Self::I {
        proven!([vdupq_n_s32(x); 4])
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Self::I) -> Self::I {
        proven! {
            let count = vdupq_n_s32(N as i32);
            a.map(|a| vshlq_s32(a, count))
        }
    }
    #[inline(always)]
    fn sar<const N: u32>(self, a: Self::I) -> Self::I {
        proven! {
            let count = vdupq_n_s32(-(N as i32));
            a.map(|a| vshlq_s32(a, count))
        }
    }
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        self.sub(self.splat(-0.0), a)
    }

    by_intrinsic! { four;
        mul(a: F, b: F) -> F = vmulq_f32;
        add_i(a: I, b: I) -> I = vaddq_s32;
        sub_i(a: I, b: I) -> I = vsubq_s32;
        of_bits(a: I) -> F = vreinterpretq_f32_s32;
        to_f(a: I) -> F = vcvtq_f32_s32;
    }
}

impl<const LEVEL: u8> Simd for Neon<LEVEL> {
    type W = [uint8x16_t; 4];
    /// Register `i` holds lanes 2i and 2i + 1, each with both rows.
    type Short = ();
    type Pair = [int32x4_t; 8];

    const WIDE_SHIFT: i32 = -128;
    const ROW_PAIRS: bool = LEVEL >= I8MM;
    const OWN_TILES: Option<RowOrder> = match LEVEL {
        PLAIN => None,
        DOT => Some(RowOrder::Apart),
        _ => Some(RowOrder::Woven),
    };
    const INT_TILE_PANELS: usize = 1;
    const INT_TILE_ROWS: usize = 4;
    const QUERIES: usize = 6;
    const ACCUMULATORS: usize = 6;
    const FLOAT_TILE_ROWS: usize = 2;

    #[inline(always)]
    fn run_apart<W: Work>(self, work: W) -> W::Output {
        self.run(work)
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        let x = x.as_ptr();
        proven!([vld1q_f32(x), vld1q_f32(x.add(4)), vld1q_f32(x.add(8)), vld1q_f32(x.add(12))])
    }
    #[inline(always)]
    fn store(self, x: Self::F, out: &mut [f32; LANES]) {
        for (out, x) in out.as_chunks_mut::<4>().0.iter_mut().zip(x) {
            proven!(vst1q_f32(out.as_mut_ptr(), x));
        }
    }
    #[inline(always)]
    fn store_f16(self, x: Self::F, out: &mut [u16; LANES]) {
        for (out, x) in out.as_chunks_mut::<4>().0.iter_mut().zip(x) {
            proven!(vst1_u16(out.as_mut_ptr(), vreinterpret_u16_f16(vcvt_f16_f32(x))));
        }
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F {
        let x = x.as_ptr();
        proven! {
            let bits = [vld1_u16(x), vld1_u16(x.add(4)), vld1_u16(x.add(8)), vld1_u16(x.add(12))];
            bits.map(|bits| vreinterpretq_f32_u32(vshll_n_u16::<16>(bits)))
        }
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        four!(vfmaq_f32, c, a, b)
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // `vmaxq` would return NaN if either operand is NaN.
        let greater = four!(vcgtq_f32, a, b);
        four!(vbslq_f32, greater, a, b)
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        let less = four!(vcltq_f32, a, b);
        four!(vbslq_f32, less, a, b)
    }
    #[inline(always)]
    fn max_lane(self, x: Self::F) -> f32 {
        proven!(vmaxvq_f32(vmaxq_f32(vmaxq_f32(x[0], x[1]), vmaxq_f32(x[2], x[3]))))
    }
    #[inline(always)]
    fn eq_mask(self, a: Self::F, b: Self::F) -> u16 {
        let equal = four!(vceqq_f32, a, b);
        let bits = [1u32, 2, 4, 8];
        let mut mask = 0;
        for (i, equal) in equal.into_iter().enumerate() {
            mask |= proven!(vaddvq_u32(vandq_u32(equal, vld1q_u32(bits.as_ptr())))) << (4 * i);
        }
        mask as u16
    }

    #[inline(always)]
    fn store_i8(self, x: Self::I, out: &mut [i32; 4]) {
        proven! {
            let low = vcombine_s16(vmovn_s32(x[0]), vmovn_s32(x[1]));
            let high = vcombine_s16(vmovn_s32(x[2]), vmovn_s32(x[3]));
            let bytes = vcombine_s8(vmovn_s16(low), vmovn_s16(high));
            vst1q_s32(out.as_mut_ptr(), vreinterpretq_s32_s8(bytes))
        }
    }
    #[inline(always)]
    fn sum_i(self, x: Self::I) -> i32 {
        proven!(vaddvq_s32(vaddq_s32(vaddq_s32(x[0], x[1]), vaddq_s32(x[2], x[3]))))
    }
    #[inline(always)]
    fn prefetch<T>(self, at: &T) {
        // SAFETY: a hint, which cannot fault and changes no visible state.
        unsafe {
            asm!("prfm pldl1keep, [{0}]", in(reg) std::ptr::from_ref(at), options(nostack, preserves_flags, readonly));
        }
    }
    #[inline(always)]
    fn load_codes(self, x: &[u8; 64]) -> Self::W {
        let x = x.as_ptr();
        proven!([vld1q_u8(x), vld1q_u8(x.add(16)), vld1q_u8(x.add(32)), vld1q_u8(x.add(48))])
    }
    #[inline(always)]
    fn low_nibbles(self, w: Self::W) -> Self::W {
        proven! {
            let mask = vdupq_n_u8(0xF);
            w.map(|w| vandq_u8(w, mask))
        }
    }
    #[inline(always)]
    fn high_nibbles(self, w: Self::W) -> Self::W {
        proven!(w.map(|w| vshrq_n_u8::<4>(w)))
    }
    #[inline(always)]
    fn two_bits(self, w: Self::W, shift: u32) -> Self::W {
        proven! {
            let (count, mask) = (vdupq_n_s8(-(shift as i8)), vdupq_n_u8(3));
            w.map(|w| vandq_u8(vshlq_u8(w, count), mask))
        }
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], nibbles: Self::W) -> Self::W {
        proven! {
            let table = vld1q_u8(table.as_ptr());
            nibbles.map(|nibbles| vqtbl1q_u8(table, nibbles))
        }
    }
    #[inline(always)]
    fn with_upper_bits(self, nibbles: Self::W, line: Self::W, shift: i32, mask: u8) -> Self::W {
        proven! {
            let (shift, mask) = (vdupq_n_s8(shift as i8), vdupq_n_u8(mask));
            let mut out = nibbles;
            for i in 0..4 {
                out[i] = vorrq_u8(nibbles[i], vandq_u8(vshlq_u8(line[i], shift), mask));
            }
            out
        }
    }
    #[inline(always)]
    fn dot_narrow(self, acc: Self::I, w: Self::W, a: i32) -> Self::I {
        let a = proven!(vreinterpretq_s8_s32(vdupq_n_s32(a)));
        let mut out = acc;
        for i in 0..4 {
            out[i] = self.dot(acc[i], proven!(vreinterpretq_s8_u8(w[i])), a);
        }
        out
    }
    #[inline(always)]
    fn dot_wide(self, acc: Self::I, w: Self::W, a: i32) -> Self::I {
        let flip = proven!(vdupq_n_u8(0x80));
        let mut signed = w;
        for i in 0..4 {
            signed[i] = proven!(veorq_u8(w[i], flip));
        }
        self.dot_narrow(acc, signed, a)
    }

    #[inline(always)]
    fn pair(self, starts: [i32; 2]) -> Self::Pair {
        let starts = [starts[0], starts[1], starts[0], starts[1]];
        proven!([vld1q_s32(starts.as_ptr()); 8])
    }
    #[inline(always)]
    fn dot_pair<const WIDE: bool>(
        self,
        mut acc: Self::Pair,
        w: [Self::W; 2],
        a: [[i32; 2]; 2],
    ) -> Self::Pair {
        proven! {
            let a = vreinterpretq_s8_s32(vld1q_s32(a.as_flattened().as_ptr()));
            let flip = vdupq_n_u8(if WIDE { 0x80 } else { 0 });
            for i in 0..4 {
                let [g, h] = [w[0][i], w[1][i]].map(|w| vreinterpretq_u32_u8(veorq_u8(w, flip)));
                // Each lane's eight codes are contiguous, two lanes in a register.
                acc[2 * i] = self.dot_matrix(acc[2 * i], vreinterpretq_s8_u32(vzip1q_u32(g, h)), a);
                acc[2 * i + 1] = self.dot_matrix(acc[2 * i + 1], vreinterpretq_s8_u32(vzip2q_u32(g, h)), a);
            }
            acc
        }
    }
    #[inline(always)]
    fn rows_of_pair(self, acc: Self::Pair) -> [Self::I; 2] {
        proven! {
            let mut rows = [[vdupq_n_s32(0); 4]; 2];
            for i in 0..4 {
                rows[0][i] = vuzp1q_s32(acc[2 * i], acc[2 * i + 1]);
                rows[1][i] = vuzp2q_s32(acc[2 * i], acc[2 * i + 1]);
            }
            rows
        }
    }

    #[inline(always)]
    fn own_tile<L: IntLayout, const R: usize>(
        self,
        panel: &[Line],
        pairs: &[RowPair],
        ahead: &Ahead<'_>,
    ) -> [Self::F; R] {
        self.tile::<L, R>(panel, pairs, ahead)
    }

    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        proven! {
            // i + (i+8), i + (i+4), i + (i+2), i + (i+1).
            let x4 = vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3]));
            let x2 = vadd_f32(vget_low_f32(x4), vget_high_f32(x4));
            vget_lane_f32::<0>(x2) + vget_lane_f32::<1>(x2)
        }
    }

    by_intrinsic! { four;
        add(a: F, b: F) -> F = vaddq_f32;
        sub(a: F, b: F) -> F = vsubq_f32;
        div(a: F, b: F) -> F = vdivq_f32;
        abs(a: F) -> F = vabsq_f32;
        to_bits(a: F) -> I = vreinterpretq_s32_f32;
        round_to_i(a: F) -> I = vcvtnq_s32_f32;
    }
}
