//! The small vector trait that every algorithm is written over: sixteen lanes, whatever the machine's
//! registers.
//!
//! An implementor is a zero-sized value that exists only if the CPU has the instructions, so its methods are
//! safe. Each method documents its result lane by lane, and `scalar.rs` implements exactly that. An
//! instruction set that cannot give exactly the same result must not implement the trait.
//!
//! Code generic over `Simd` is `#[inline(always)]` down to the intrinsics and contains no closures. Only then
//! is all of it compiled inside the one function per instruction set that has `#[target_feature]` (see
//! `Avx512::run`).

use super::aligned::Line;
use super::int8::{Block, RowOrder, RowPair};
use super::layout::{IntLayout, ScaleLanes};

/// Lanes of every vector.
pub(super) const LANES: usize = 16;

/// An instruction set: sixteen lanes of f32 (`F`) and i32 (`I`), and vectors of 64 weight codes.
pub(super) trait Simd: ScaleLanes + Send + Sync {
    /// 64 unsigned bytes: 16 lanes of 4 weight codes.
    type W: Copy;
    /// 16 × 2 × i16: sums of pairs of products. `()` without `SHORT_SUMS`.
    type Short: Copy;
    /// 16 × 2 × i32: the sums of two activation rows, in an order specific to the instruction set. `()`
    /// without `ROW_PAIRS`.
    type Pair: Copy;

    /// The number that `dot_wide` adds to each code: 0 if it multiplies codes as they are, −128 if it reads
    /// them as signed.
    const WIDE_SHIFT: i32;
    /// Whether one instruction processes two activation rows: `pair`, `dot_pair` and `rows_of_pair` are
    /// implemented.
    const ROW_PAIRS: bool = false;
    /// Whether products of narrow codes are added in 16 bits over as many groups as are exact: `no_shorts`, `dot_short` and
    /// `add_shorts` are implemented.
    const SHORT_SUMS: bool = false;
    /// The order of activation rows that `own_tile` reads; `None` without integer tiles of the instruction set's own.
    const OWN_TILES: Option<RowOrder> = None;
    /// Maximum activation rows of a tall tile; 0 without `tall_tile`. Larger batches than `INT_TILE_ROWS` take tall tiles.
    const TALL_ROWS: usize = 0;
    /// Maximum panels of an integer tile of several rows; 1 or 2.
    const INT_TILE_PANELS: usize;
    /// Maximum activation rows that integer tiles keep in registers; at most 4, or 6.
    const INT_TILE_ROWS: usize;
    /// Maximum queries of an attention tile; at most 6.
    const QUERIES: usize;
    /// Whether a single attention tile converts keys and values of 16 bits as it multiplies them, and does not widen them before.
    const CONVERTS_AGAIN: bool = false;
    /// Accumulators of an attention tile.
    const ACCUMULATORS: usize;
    /// Maximum activation rows that float tiles keep in registers.
    const FLOAT_TILE_ROWS: usize;

    /// Runs the work in a function of its own. The time of compiling grows faster than a function's length, and tiles are many.
    fn run_apart<W: Work>(self, work: W) -> W::Output;

    fn load(self, x: &[f32; LANES]) -> Self::F;
    fn store(self, x: Self::F, out: &mut [f32; LANES]);
    /// f32 to f16 bits, to nearest, ties to even.
    fn store_f16(self, x: Self::F, out: &mut [u16; LANES]);
    /// bf16 bits to f32, exactly.
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F;

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b + c, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: a NaN in `a` is ignored, a NaN in `b` is kept.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn abs(self, a: Self::F) -> Self::F;
    /// The largest lane; no lane may be NaN or negative zero.
    fn max_lane(self, x: Self::F) -> f32;
    /// Bit `i` is set if lane `i` of `a` equals that of `b`; never for NaN.
    fn eq_mask(self, a: Self::F, b: Self::F) -> u16;

    /// The lanes, all in −128..=127, as bytes: four per number, the first in the low bits.
    fn store_i8(self, x: Self::I, out: &mut [i32; 4]);
    /// The sum over the lanes. No caller's sum overflows.
    fn sum_i(self, x: Self::I) -> i32;
    fn to_bits(self, a: Self::F) -> Self::I;
    /// To nearest, ties to even; unspecified outside ±2³⁰ and for NaN.
    fn round_to_i(self, a: Self::F) -> Self::I;

    /// Prefetches the cache line at the start of `at` into the first-level cache. A hint: no result depends
    /// on it.
    fn prefetch<T>(self, at: &T);
    fn load_codes(self, x: &[u8; 64]) -> Self::W;
    fn low_nibbles(self, w: Self::W) -> Self::W;
    fn high_nibbles(self, w: Self::W) -> Self::W;
    /// Bits `shift` and `shift + 1` of each byte; `shift` is at most 6.
    fn two_bits(self, w: Self::W, shift: u32) -> Self::W;
    /// The entries of `table` that `nibbles`, all below 16, number.
    fn lookup(self, table: &[u8; 16], nibbles: Self::W) -> Self::W;
    /// Each byte of `nibbles`, or-ed with the byte of `line`, which is first shifted to the left (to the
    /// right by a negative `shift`) and masked with `mask`. The mask removes bits shifted in from a
    /// neighbouring byte.
    fn with_upper_bits(self, nibbles: Self::W, line: Self::W, shift: i32, mask: u8) -> Self::W;
    /// Per lane: acc + Σ₄ code · a. Codes are below 128, and `a` holds four signed bytes other than −128.
    fn dot_narrow(self, acc: Self::I, w: Self::W, a: i32) -> Self::I;
    /// Per lane: acc + Σ₄ (code + `WIDE_SHIFT`) · a, for codes of eight bits.
    fn dot_wide(self, acc: Self::I, w: Self::W, a: i32) -> Self::I;

    /// Sums of nothing.
    fn no_shorts(self) -> Self::Short {
        unreachable!("only with `SHORT_SUMS`")
    }
    /// Per lane and half: acc + Σ₂ code · a, in 16 bits, which must not overflow.
    fn dot_short(self, _acc: Self::Short, _w: Self::W, _a: i32) -> Self::Short {
        unreachable!("only with `SHORT_SUMS`")
    }
    /// Per lane: acc + both halves.
    fn add_shorts(self, _acc: Self::I, _shorts: Self::Short) -> Self::I {
        unreachable!("only with `SHORT_SUMS`")
    }

    /// `starts[r]` in every lane of row `r`.
    fn pair(self, _starts: [i32; 2]) -> Self::Pair {
        unreachable!("only with `ROW_PAIRS`")
    }
    /// Per lane and row: `dot_narrow` (`dot_wide` if `WIDE`) of `w[0]` with `a[row][0]` and of `w[1]` with
    /// `a[row][1]`.
    fn dot_pair<const WIDE: bool>(self, _acc: Self::Pair, _w: [Self::W; 2], _a: [[i32; 2]; 2]) -> Self::Pair {
        unreachable!("only with `ROW_PAIRS`")
    }
    /// The lanes of each row.
    fn rows_of_pair(self, _acc: Self::Pair) -> [Self::I; 2] {
        unreachable!("only with `ROW_PAIRS`")
    }

    /// One panel times the first `R` rows of `pairs`, which are `[pair][block]`: the formula of `matmul.rs`.
    fn own_tile<L: IntLayout, const R: usize>(
        self,
        _panel: &[Line],
        _pairs: &[RowPair],
        _ahead: &Ahead<'_>,
    ) -> [Self::F; R] {
        unreachable!("only with `OWN_TILES`")
    }

    /// One panel times the rows of a group, at most `TALL_ROWS`: the formula of `matmul.rs`. `blocks` are `[block][row]`; `sums`, one
    /// for each row, are zeros.
    fn tall_tile<L: IntLayout>(
        self,
        _panel: &[Line],
        _blocks: &[Block],
        _ahead: &Ahead<'_>,
        _sums: &mut [Line],
    ) {
        unreachable!("only with `TALL_ROWS`")
    }

    /// The sum over the lanes in the fixed tree: i + (i+8), then i + (i+4), i + (i+2), i + (i+1).
    fn sum(self, x: Self::F) -> f32;

    /// The numbers of `x` (at most 16) in the first lanes, `fill` in the others.
    #[inline(always)]
    fn load_partial(self, x: &[f32], fill: f32) -> Self::F {
        let mut lanes = [fill; LANES];
        lanes[..x.len()].copy_from_slice(x);
        self.load(&lanes)
    }

    /// Writes the first lanes to `out` (at most 16 numbers).
    #[inline(always)]
    fn store_partial(self, x: Self::F, out: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        out.copy_from_slice(&lanes[..out.len()]);
    }
}

/// Methods that are one intrinsic: `$apply!` calls it for each register of a vector.
#[allow(unused_macros, reason = "a build may have the scalar kernels alone")]
macro_rules! by_intrinsic {
    ($apply:ident; $($name:ident($($arg:ident: $of:ident),+) -> $result:ident = $intrinsic:expr;)+) => {
        $(
            #[inline(always)]
            fn $name(self, $($arg: Self::$of),+) -> Self::$result {
                $apply!($intrinsic, $($arg),+)
            }
        )+
    };
}
#[allow(unused_imports, reason = "as above")]
pub(super) use by_intrinsic;

/// Work written over the vector trait, to be compiled once per instruction set.
pub(super) trait Work {
    type Output;
    /// Must be `#[inline(always)]`; see the module comment.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// The lines of the next panels, prefetched while the current ones are multiplied.
///
/// All tiles except the first find their panels in a cache, so without prefetching the memory would be idle.
/// If each tile prefetches its share of the next panels, a few rows take the longer of the times for reading
/// and multiplying, not their sum. Lines are prefetched in address order, which is fastest (one row of Q4_0,
/// two threads of a Zen 5: 43 GB/s with a stream per panel, 49 GB/s with one stream), and few at a time: with the lines
/// of eight blocks at once, one row of Q6_K took 1.5 times as long (AVX2, Zen 4).
pub(super) struct Ahead<'a> {
    lines: &'a [Line],
    /// Lines prefetched per part of the work.
    per_part: usize,
}

impl<'a> Ahead<'a> {
    /// The prefetcher for `lines` during a computation of `n_parts` parts.
    #[inline(always)]
    pub(super) fn new(lines: &'a [Line], n_parts: usize) -> Self {
        Ahead { lines, per_part: lines.len().div_ceil(n_parts.max(1)) }
    }

    /// The prefetcher during a product of `n_blocks` blocks, which calls [`at_block`](Self::at_block).
    #[inline(always)]
    pub(super) fn of_blocks(lines: &'a [Line], n_blocks: usize) -> Self {
        Self::new(lines, n_blocks.div_ceil(2))
    }

    /// Prefetches the share of every second block.
    #[inline(always)]
    pub(super) fn at_block<S: Simd>(&self, s: S, block: usize) {
        if block.is_multiple_of(2) {
            self.prefetch(s, block / 2);
        }
    }

    /// Prefetches the next share. Called for each part of the computation.
    #[inline(always)]
    pub(super) fn prefetch<S: Simd>(&self, s: S, part: usize) {
        let start = self.lines.len().min(part * self.per_part);
        let end = self.lines.len().min(start + self.per_part);
        for line in &self.lines[start..end] {
            s.prefetch(line);
        }
    }
}

/// The unsigned levels of a group of four columns, from the lines of their block (see `layout.rs`).
#[inline(always)]
pub(super) fn codes<S: Simd, L: IntLayout>(s: S, block: &[Line], group: usize) -> S::W {
    if L::BITS == 8 {
        return s.load_codes(&block[group].0);
    }
    if L::BITS < 4 {
        let codes = s.two_bits(s.load_codes(&block[group / 4].0), 2 * (group as u32 % 4));
        if L::BITS == 2 {
            return codes;
        }
        return s.with_upper_bits(codes, s.load_codes(&block[2].0), 2 - group as i32, 4);
    }
    let line = s.load_codes(&block[group % 4].0);
    let nibbles = if group < 4 { s.low_nibbles(line) } else { s.high_nibbles(line) };
    match L::BITS {
        4 if L::TABLE.is_some() => s.lookup(&L::LEVELS, nibbles),
        4 => nibbles,
        5 => s.with_upper_bits(nibbles, s.load_codes(&block[4].0), 4 - group as i32, 0x10),
        _ => s.with_upper_bits(
            nibbles,
            s.load_codes(&block[4 + group / 4].0),
            4 - 2 * (group as i32 % 4),
            0x30,
        ),
    }
}
