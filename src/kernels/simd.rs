//! The small vector trait that every algorithm is written over: sixteen lanes, whatever the machine's registers.
//!
//! An implementor is a capability: a zero-sized value that exists only where the CPU has the instructions, so its methods
//! are safe. Each method states its result lane by lane, and `scalar.rs` spells it out; an instruction set that cannot give
//! exactly that must not implement the trait.
//!
//! Code generic over `Simd` is `#[inline(always)]` down to the intrinsics and holds no closures: only then does everything end
//! up inside the one function per instruction set that carries `#[target_feature]` (see `Avx512::run`).

/// Lanes of every vector.
pub(super) const LANES: usize = 16;

/// An instruction set, as sixteen lanes of f32 and i32, and vectors of 64 weight codes.
pub(super) trait Simd: Copy + Send + Sync {
    /// 16 × f32.
    type F: Copy;
    /// 16 × i32.
    type I: Copy;
    /// 64 unsigned bytes: 16 lanes of 4 weight codes.
    type W: Copy;

    /// What `dot_wide` adds to each code: 0 if it multiplies codes as they are, −128 if it reads them as signed.
    const WIDE_SHIFT: i32;
    /// The most panels that an integer tile of several rows spans; 1 or 2.
    const INT_TILE_PANELS: usize;
    /// The most activation rows that integer tiles keep in registers, at most 4.
    const INT_TILE_ROWS: usize;
    /// The most queries of an attention tile, at most 8.
    const QUERIES: usize;
    /// Accumulators of an attention tile.
    const ACCUMULATORS: usize;
    /// The most activation rows that float tiles keep in registers.
    const FLOAT_TILE_ROWS: usize;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, x: &[f32; LANES]) -> Self::F;
    fn store(self, x: Self::F, out: &mut [f32; LANES]);
    /// f16 bits to f32, exactly; a signalling NaN becomes quiet.
    fn load_f16(self, x: &[u16; LANES]) -> Self::F;
    /// f32 to f16 bits, to nearest, ties to even.
    fn store_f16(self, x: Self::F, out: &mut [u16; LANES]);
    /// bf16 bits to f32, exactly.
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F;
    fn load_u8(self, x: &[u8; LANES]) -> Self::F;
    /// Bytes as two's complement.
    fn load_i8(self, x: &[u8; LANES]) -> Self::F;

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b + c, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: a NaN in `a` loses, a NaN in `b` stays.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn abs(self, a: Self::F) -> Self::F;
    /// The largest lane, of lanes that hold no NaN and no negative zero.
    fn max_lane(self, x: Self::F) -> f32;
    /// Bit `i` is set where lane `i` of `a` equals that of `b`; never for NaN.
    fn eq_mask(self, a: Self::F, b: Self::F) -> u16;

    fn splat_i(self, x: i32) -> Self::I;
    /// The lanes, all in −128..=127, as bytes: four to a number, the first in the low bits.
    fn store_i8(self, x: Self::I, out: &mut [i32; 4]);
    /// The sum over the lanes; it does not overflow where it is used.
    fn sum_i(self, x: Self::I) -> i32;
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn shl<const N: u32>(self, a: Self::I) -> Self::I;
    /// Arithmetic shift right.
    fn sar<const N: u32>(self, a: Self::I) -> Self::I;
    fn to_bits(self, a: Self::F) -> Self::I;
    fn of_bits(self, a: Self::I) -> Self::F;
    /// To f32, to nearest.
    fn to_f(self, a: Self::I) -> Self::F;
    /// To nearest, ties to even; unspecified outside of ±2³⁰ and for NaN.
    fn round_to_i(self, a: Self::F) -> Self::I;

    /// Asks for the cache line that `at` begins in to be brought into the first-level cache. A hint: no result depends on it.
    fn prefetch<T>(self, at: &T);
    fn load_codes(self, x: &[u8; 64]) -> Self::W;
    fn low_nibbles(self, w: Self::W) -> Self::W;
    fn high_nibbles(self, w: Self::W) -> Self::W;
    /// Per lane: acc + Σ₄ code · a, where the codes are below 128 and `a` holds four signed bytes other than −128.
    fn dot_narrow(self, acc: Self::I, w: Self::W, a: i32) -> Self::I;
    /// Per lane: acc + Σ₄ (code + `WIDE_SHIFT`) · a, for codes of all eight bits.
    fn dot_wide(self, acc: Self::I, w: Self::W, a: i32) -> Self::I;

    /// The sum over the lanes in the fixed tree: i + (i+8), then i + (i+4), i + (i+2), i + (i+1).
    fn sum(self, x: Self::F) -> f32;

    /// The first lanes from `x` (at most 16 numbers), the others `fill`.
    #[inline(always)]
    fn load_partial(self, x: &[f32], fill: f32) -> Self::F {
        let mut lanes = [fill; LANES];
        lanes[..x.len()].copy_from_slice(x);
        self.load(&lanes)
    }

    /// The first lanes, as many as `out` is long (at most 16).
    #[inline(always)]
    fn store_partial(self, x: Self::F, out: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        out.copy_from_slice(&lanes[..out.len()]);
    }
}

/// Work written over the vector trait, to be compiled once per instruction set.
pub(super) trait Work {
    type Output;
    /// Must be `#[inline(always)]`, see the module's comment.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}
