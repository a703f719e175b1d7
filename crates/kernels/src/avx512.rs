//! AVX-512: one 512-bit register per vector, and VNNI's `vpdpbusd` for the integer dot products.

use std::arch::x86_64::*;

use super::layout::ScaleLanes;
use super::simd::{LANES, Simd, Work, by_intrinsic};

/// Proof that the CPU has AVX-512 F, BW, VL, DQ and VNNI, FMA and F16C. `new`, the only constructor, checks
/// it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn new() -> Option<Self> {
        let has_all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has_all.then_some(Avx512(()))
    }

    pub(super) fn run<W: Work>(self, work: W) -> W::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
        #[inline(never)]
        fn with_features<W: Work>(isa: Avx512, work: W) -> W::Output {
            work.run(isa)
        }
        // SAFETY: `self` proves that the CPU has these features.
        unsafe { with_features(self, work) }
    }
}

/// Wraps the intrinsics below. They need only features that `Avx512` proves, and access memory only through
/// references.
macro_rules! proven {
    ($($body:tt)*) => {
        // SAFETY: a value of `Avx512` exists only if the CPU has the features; pointers come from
        // references to whole vectors.
        unsafe { $($body)* }
    };
}

/// The intrinsic on the register of a vector.
macro_rules! one {
    ($f:expr, $($a:expr),+) => {
        proven!($f($($a),+))
    };
}

impl ScaleLanes for Avx512 {
    type F = __m512;
    type I = __m512i;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        proven!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::F {
        proven!(_mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; LANES]) -> Self::I {
        proven!(_mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_i8(self, x: &[u8; LANES]) -> Self::F {
        proven!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))))
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> Self::I {
        proven!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Self::I) -> Self::I {
        proven!(_mm512_slli_epi32::<N>(a))
    }
    #[inline(always)]
    fn sar<const N: u32>(self, a: Self::I) -> Self::I {
        proven!(_mm512_srai_epi32::<N>(a))
    }
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        self.sub(self.splat(-0.0), a)
    }

    by_intrinsic! { one;
        mul(a: F, b: F) -> F = _mm512_mul_ps;
        add_i(a: I, b: I) -> I = _mm512_add_epi32;
        sub_i(a: I, b: I) -> I = _mm512_sub_epi32;
        of_bits(a: I) -> F = _mm512_castsi512_ps;
        to_f(a: I) -> F = _mm512_cvtepi32_ps;
    }
}

impl Simd for Avx512 {
    type W = __m512i;
    type Short = ();
    type Pair = ();

    const WIDE_SHIFT: i32 = 0;
    const INT_TILE_PANELS: usize = 2;
    const INT_TILE_ROWS: usize = 6;
    const QUERIES: usize = 6;
    const CONVERTS_AGAIN: bool = true;
    const ACCUMULATORS: usize = 24;
    const FLOAT_TILE_ROWS: usize = 4;

    #[inline(always)]
    fn run_apart<W: Work>(self, work: W) -> W::Output {
        self.run(work)
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        proven!(_mm512_loadu_ps(x.as_ptr()))
    }
    #[inline(always)]
    fn store(self, x: Self::F, out: &mut [f32; LANES]) {
        proven!(_mm512_storeu_ps(out.as_mut_ptr(), x))
    }
    #[inline(always)]
    fn store_f16(self, x: Self::F, out: &mut [u16; LANES]) {
        proven!(_mm256_storeu_si256(
            out.as_mut_ptr().cast(),
            _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
        ))
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F {
        proven! {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    fn max_lane(self, x: Self::F) -> f32 {
        proven!(_mm512_reduce_max_ps(x))
    }
    #[inline(always)]
    fn eq_mask(self, a: Self::F, b: Self::F) -> u16 {
        proven!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b))
    }

    #[inline(always)]
    fn store_i8(self, x: Self::I, out: &mut [i32; 4]) {
        proven!(_mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(x)))
    }
    #[inline(always)]
    fn sum_i(self, x: Self::I) -> i32 {
        proven!(_mm512_reduce_add_epi32(x))
    }
    #[inline(always)]
    fn prefetch<T>(self, at: &T) {
        proven!(_mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast()))
    }
    #[inline(always)]
    fn load_codes(self, x: &[u8; 64]) -> Self::W {
        proven!(_mm512_loadu_si512(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn low_nibbles(self, w: Self::W) -> Self::W {
        proven!(_mm512_and_si512(w, _mm512_set1_epi8(0xF)))
    }
    #[inline(always)]
    fn high_nibbles(self, w: Self::W) -> Self::W {
        proven!(_mm512_and_si512(_mm512_srli_epi16::<4>(w), _mm512_set1_epi8(0xF)))
    }
    #[inline(always)]
    fn two_bits(self, w: Self::W, shift: u32) -> Self::W {
        proven! {
            let shifted = _mm512_srl_epi16(w, _mm_cvtsi32_si128(shift as i32));
            _mm512_and_si512(shifted, _mm512_set1_epi8(3))
        }
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], nibbles: Self::W) -> Self::W {
        proven!(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), nibbles))
    }
    #[inline(always)]
    fn with_upper_bits(self, nibbles: Self::W, line: Self::W, shift: i32, mask: u8) -> Self::W {
        proven! {
            let count = _mm_cvtsi32_si128(shift.abs());
            let upper = if shift >= 0 { _mm512_sll_epi16(line, count) } else { _mm512_srl_epi16(line, count) };
            _mm512_or_si512(nibbles, _mm512_and_si512(upper, _mm512_set1_epi8(mask as i8)))
        }
    }
    #[inline(always)]
    fn dot_narrow(self, acc: Self::I, w: Self::W, a: i32) -> Self::I {
        self.dot_wide(acc, w, a)
    }
    #[inline(always)]
    fn dot_wide(self, acc: Self::I, w: Self::W, a: i32) -> Self::I {
        proven!(_mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(a)))
    }

    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        proven! {
            let x8 = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let x4 = _mm_add_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps::<1>(x8));
            let x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
            _mm_cvtss_f32(_mm_add_ss(x2, _mm_movehdup_ps(x2)))
        }
    }

    by_intrinsic! { one;
        add(a: F, b: F) -> F = _mm512_add_ps;
        sub(a: F, b: F) -> F = _mm512_sub_ps;
        div(a: F, b: F) -> F = _mm512_div_ps;
        fma(a: F, b: F, c: F) -> F = _mm512_fmadd_ps;
        max(a: F, b: F) -> F = _mm512_max_ps;
        min(a: F, b: F) -> F = _mm512_min_ps;
        abs(a: F) -> F = _mm512_abs_ps;
        to_bits(a: F) -> I = _mm512_castps_si512;
        round_to_i(a: F) -> I = _mm512_cvtps_epi32;
    }
}
