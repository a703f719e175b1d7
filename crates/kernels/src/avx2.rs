//! AVX2 with FMA and F16C: two 256-bit registers per vector.
//!
//! AVX2 has no dot product of bytes into 32 bits. `vpmaddubsw` multiplies unsigned by signed bytes and adds
//! pairs in *saturating* 16 bits. This is exact for codes below 128 (2 · 127 · 127 < 2¹⁵), and sums of several pairs are exact for
//! narrower codes (eight of four bits: 8 · 2 · 15 · 127 < 2¹⁵), but not for codes of eight bits. Wide codes are therefore read as signed (code − 128), and the sign moves to the
//! activations: |w| ≤ 128, |a| ≤ 127, and 2 · 128 · 127 = 32 512 still fits. AVX-VNNI (`VNNI`) has the dot
//! product, `vpdpbusd`, which multiplies codes as they are.

use std::arch::x86_64::*;

use super::aligned::Line;
use super::int8::Block;
use super::layout::{IntLayout, ScaleLanes};
use super::simd::{Ahead, LANES, Simd, Work, by_intrinsic};

/// Proof that the CPU has AVX2, FMA and F16C, and AVX-VNNI if `VNNI`. `new`, the only constructor, checks it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    pub(super) fn new() -> Option<Self> {
        let has_all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && (!VNNI || is_x86_feature_detected!("avxvnni"));
        has_all.then_some(Avx2(()))
    }

    /// Without AVX-VNNI.
    pub(super) fn plain(self) -> Avx2<false> {
        Avx2(())
    }

    pub(super) fn run<W: Work>(self, work: W) -> W::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        #[inline(never)]
        fn with_features<W: Work>(isa: Avx2<false>, work: W) -> W::Output {
            work.run(isa)
        }
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        #[inline(never)]
        fn with_vnni<W: Work>(isa: Avx2<true>, work: W) -> W::Output {
            work.run(isa)
        }
        // SAFETY: `self` proves that the CPU has these features.
        unsafe { if VNNI { with_vnni(Avx2(()), work) } else { with_features(Avx2(()), work) } }
    }
}

/// Wraps the intrinsics below. They need only features that `Avx2` proves, and access memory only through
/// references.
macro_rules! proven {
    ($($body:tt)*) => {
        // SAFETY: a value of `Avx2` exists only if the CPU has the features (`dot_vnni` is called with
        // `VNNI` only); pointers come from references to whole vectors.
        unsafe { $($body)* }
    };
}

/// The same intrinsic on both halves.
macro_rules! both {
    ($f:expr, $a:expr) => {
        proven!([$f($a[0]), $f($a[1])])
    };
    ($f:expr, $a:expr, $b:expr) => {
        proven!([$f($a[0], $b[0]), $f($a[1], $b[1])])
    };
    ($f:expr, $a:expr, $b:expr, $c:expr) => {
        proven!([$f($a[0], $b[0], $c[0]), $f($a[1], $b[1], $c[1])])
    };
}

mod tall;

impl<const VNNI: bool> Avx2<VNNI> {
    #[inline(always)]
    fn dot_vnni(self, acc: [__m256i; 2], w: [__m256i; 2], a: i32) -> [__m256i; 2] {
        debug_assert!(VNNI);
        proven! {
            let a = _mm256_set1_epi32(a);
            [_mm256_dpbusd_avx_epi32(acc[0], w[0], a), _mm256_dpbusd_avx_epi32(acc[1], w[1], a)]
        }
    }
}

impl<const VNNI: bool> ScaleLanes for Avx2<VNNI> {
    type F = [__m256; 2];
    type I = [__m256i; 2];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        proven!([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::F {
        proven! {
            let bits: *const __m128i = x.as_ptr().cast();
            [_mm256_cvtph_ps(_mm_loadu_si128(bits)), _mm256_cvtph_ps(_mm_loadu_si128(bits.add(1)))]
        }
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; LANES]) -> Self::I {
        proven! {
            let bytes = _mm_loadu_si128(x.as_ptr().cast());
            [_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes))]
        }
    }
    #[inline(always)]
    fn load_i8(self, x: &[u8; LANES]) -> Self::F {
        proven! {
            let bytes = _mm_loadu_si128(x.as_ptr().cast());
            self.to_f([_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))])
        }
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> Self::I {
        proven!([_mm256_set1_epi32(x); 2])
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Self::I) -> Self::I {
        proven! {
            let count = _mm_cvtsi32_si128(N as i32);
            [_mm256_sll_epi32(a[0], count), _mm256_sll_epi32(a[1], count)]
        }
    }
    #[inline(always)]
    fn sar<const N: u32>(self, a: Self::I) -> Self::I {
        proven! {
            let count = _mm_cvtsi32_si128(N as i32);
            [_mm256_sra_epi32(a[0], count), _mm256_sra_epi32(a[1], count)]
        }
    }
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        self.sub(self.splat(-0.0), a)
    }

    by_intrinsic! { both;
        mul(a: F, b: F) -> F = _mm256_mul_ps;
        add_i(a: I, b: I) -> I = _mm256_add_epi32;
        sub_i(a: I, b: I) -> I = _mm256_sub_epi32;
        of_bits(a: I) -> F = _mm256_castsi256_ps;
        to_f(a: I) -> F = _mm256_cvtepi32_ps;
    }
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type W = [__m256i; 2];
    type Short = [__m256i; 2];
    type Pair = ();

    const WIDE_SHIFT: i32 = if VNNI { 0 } else { -128 };
    const SHORT_SUMS: bool = !VNNI;
    const TALL_ROWS: usize = if VNNI { 0 } else { 16 };
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
        proven!([_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))])
    }
    #[inline(always)]
    fn store(self, x: Self::F, out: &mut [f32; LANES]) {
        proven! {
            _mm256_storeu_ps(out.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), x[1]);
        }
    }
    #[inline(always)]
    fn store_f16(self, x: Self::F, out: &mut [u16; LANES]) {
        proven! {
            let bits: *mut __m128i = out.as_mut_ptr().cast();
            _mm_storeu_si128(bits, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]));
            _mm_storeu_si128(bits.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]));
        }
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F {
        proven! {
            let bits: *const __m128i = x.as_ptr().cast();
            let wide = [_mm256_cvtepu16_epi32(_mm_loadu_si128(bits)), _mm256_cvtepu16_epi32(_mm_loadu_si128(bits.add(1)))];
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide[0])), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide[1]))]
        }
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        proven! {
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_andnot_ps(sign, a[0]), _mm256_andnot_ps(sign, a[1])]
        }
    }
    #[inline(always)]
    fn max_lane(self, x: Self::F) -> f32 {
        proven! {
            let x8 = _mm256_max_ps(x[0], x[1]);
            let x4 = _mm_max_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps::<1>(x8));
            let x2 = _mm_max_ps(x4, _mm_movehl_ps(x4, x4));
            _mm_cvtss_f32(_mm_max_ss(x2, _mm_movehdup_ps(x2)))
        }
    }
    #[inline(always)]
    fn eq_mask(self, a: Self::F, b: Self::F) -> u16 {
        proven! {
            let low = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_EQ_OQ>(a[0], b[0]));
            let high = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_EQ_OQ>(a[1], b[1]));
            (low | high << 8) as u16
        }
    }

    #[inline(always)]
    fn store_i8(self, x: Self::I, out: &mut [i32; 4]) {
        proven! {
            // Packing works within halves of a register: [0..4, 8..12 | 4..8, 12..16], put in order by the
            // permutation.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(x[0], x[1]));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes)
        }
    }
    #[inline(always)]
    fn sum_i(self, x: Self::I) -> i32 {
        proven! {
            let x8 = _mm256_add_epi32(x[0], x[1]);
            let x4 = _mm_add_epi32(_mm256_castsi256_si128(x8), _mm256_extracti128_si256::<1>(x8));
            let x2 = _mm_add_epi32(x4, _mm_unpackhi_epi64(x4, x4));
            _mm_cvtsi128_si32(_mm_add_epi32(x2, _mm_shuffle_epi32::<1>(x2)))
        }
    }
    #[inline(always)]
    fn prefetch<T>(self, at: &T) {
        proven!(_mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast()))
    }
    #[inline(always)]
    fn load_codes(self, x: &[u8; 64]) -> Self::W {
        proven! {
            let codes: *const __m256i = x.as_ptr().cast();
            [_mm256_loadu_si256(codes), _mm256_loadu_si256(codes.add(1))]
        }
    }
    #[inline(always)]
    fn low_nibbles(self, w: Self::W) -> Self::W {
        proven! {
            let mask = _mm256_set1_epi8(0xF);
            [_mm256_and_si256(w[0], mask), _mm256_and_si256(w[1], mask)]
        }
    }
    #[inline(always)]
    fn high_nibbles(self, w: Self::W) -> Self::W {
        self.low_nibbles(proven!([_mm256_srli_epi16::<4>(w[0]), _mm256_srli_epi16::<4>(w[1])]))
    }
    #[inline(always)]
    fn two_bits(self, w: Self::W, shift: u32) -> Self::W {
        proven! {
            let (count, mask) = (_mm_cvtsi32_si128(shift as i32), _mm256_set1_epi8(3));
            [
                _mm256_and_si256(_mm256_srl_epi16(w[0], count), mask),
                _mm256_and_si256(_mm256_srl_epi16(w[1], count), mask),
            ]
        }
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], nibbles: Self::W) -> Self::W {
        proven! {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, nibbles[0]), _mm256_shuffle_epi8(table, nibbles[1])]
        }
    }
    #[inline(always)]
    fn with_upper_bits(self, nibbles: Self::W, line: Self::W, shift: i32, mask: u8) -> Self::W {
        proven! {
            let (count, mask) = (_mm_cvtsi32_si128(shift.abs()), _mm256_set1_epi8(mask as i8));
            let mut out = nibbles;
            for i in 0..2 {
                let upper =
                    if shift >= 0 { _mm256_sll_epi16(line[i], count) } else { _mm256_srl_epi16(line[i], count) };
                out[i] = _mm256_or_si256(nibbles[i], _mm256_and_si256(upper, mask));
            }
            out
        }
    }
    #[inline(always)]
    fn dot_narrow(self, acc: Self::I, w: Self::W, a: i32) -> Self::I {
        if VNNI {
            return self.dot_vnni(acc, w, a);
        }
        proven! {
            let a = _mm256_set1_epi32(a);
            let ones = _mm256_set1_epi16(1);
            let low = _mm256_madd_epi16(_mm256_maddubs_epi16(w[0], a), ones);
            let high = _mm256_madd_epi16(_mm256_maddubs_epi16(w[1], a), ones);
            [_mm256_add_epi32(acc[0], low), _mm256_add_epi32(acc[1], high)]
        }
    }
    #[inline(always)]
    fn dot_wide(self, acc: Self::I, w: Self::W, a: i32) -> Self::I {
        if VNNI {
            return self.dot_vnni(acc, w, a);
        }
        proven! {
            let a = _mm256_set1_epi32(a);
            let ones = _mm256_set1_epi16(1);
            let flip = _mm256_set1_epi8(-128);
            let mut out = acc;
            for i in 0..2 {
                let signed = _mm256_xor_si256(w[i], flip);
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(a, signed));
                out[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(pairs, ones));
            }
            out
        }
    }

    #[inline(always)]
    fn no_shorts(self) -> Self::Short {
        proven!([_mm256_setzero_si256(); 2])
    }
    #[inline(always)]
    fn dot_short(self, acc: Self::Short, w: Self::W, a: i32) -> Self::Short {
        proven! {
            let a = _mm256_set1_epi32(a);
            [
                _mm256_add_epi16(acc[0], _mm256_maddubs_epi16(w[0], a)),
                _mm256_add_epi16(acc[1], _mm256_maddubs_epi16(w[1], a)),
            ]
        }
    }
    #[inline(always)]
    fn add_shorts(self, acc: Self::I, shorts: Self::Short) -> Self::I {
        proven! {
            let ones = _mm256_set1_epi16(1);
            [
                _mm256_add_epi32(acc[0], _mm256_madd_epi16(shorts[0], ones)),
                _mm256_add_epi32(acc[1], _mm256_madd_epi16(shorts[1], ones)),
            ]
        }
    }

    #[inline(always)]
    fn tall_tile<L: IntLayout>(self, panel: &[Line], blocks: &[Block], ahead: &Ahead<'_>, sums: &mut [Line]) {
        debug_assert!(!VNNI);
        tall::tile::<L>(self.plain(), panel, blocks, ahead, sums);
    }

    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        proven! {
            let x8 = _mm256_add_ps(x[0], x[1]);
            let x4 = _mm_add_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps::<1>(x8));
            let x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
            _mm_cvtss_f32(_mm_add_ss(x2, _mm_movehdup_ps(x2)))
        }
    }

    by_intrinsic! { both;
        add(a: F, b: F) -> F = _mm256_add_ps;
        sub(a: F, b: F) -> F = _mm256_sub_ps;
        div(a: F, b: F) -> F = _mm256_div_ps;
        fma(a: F, b: F, c: F) -> F = _mm256_fmadd_ps;
        max(a: F, b: F) -> F = _mm256_max_ps;
        min(a: F, b: F) -> F = _mm256_min_ps;
        to_bits(a: F) -> I = _mm256_castps_si256;
        round_to_i(a: F) -> I = _mm256_cvtps_epi32;
    }
}
