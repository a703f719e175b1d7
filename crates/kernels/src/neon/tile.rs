//! The integer tiles of the NEON kernels that have dot products: 4, 8 or 16 outputs of 1 to 8 activation rows.
//!
//! 32 registers hold the sums of at most 64 outputs, half of them integers and half floats. A tile of eight rows
//! therefore has four outputs, a *quad*: each register of codes serves eight rows, and no register is spilled.
//! The quads of a panel take turns every [`CHUNK`] blocks; the lines of a chunk and the rows of the tile are then in
//! the first-level cache, and only the floats of the other quads wait in memory.
//!
//! Activations come in [`RowPair`]s. `sdot` takes four of a row's columns from a lane of a register ("by element"), so
//! a load serves 16 columns. `smmla` takes eight columns of two rows and gives a 2 × 2 matrix; the floats of a pair of
//! rows stay in this form until the tile ends.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::aligned::Line;
use super::super::int8::RowPair;
use super::super::layout::{IntLayout, ScaleLanes, Scales};
use super::super::simd::{Ahead, LANES, by_intrinsic};
use super::{DOT, I8MM, Neon};

/// Blocks of 32 columns after which the next quad has its turn: the largest unit of the layouts.
const CHUNK: usize = 8;
const QUADS: usize = LANES / 4;

/// The lanes of scales that belong to four outputs of a panel, the quad with this number.
#[derive(Clone, Copy)]
struct Quad(usize);

impl<const LEVEL: u8> Neon<LEVEL> {
    /// One panel times rows 0..`R` of `pairs`, which are `[pair][block]`; the formula of `matmul.rs`. If `LEVEL` has
    /// `smmla`, `R` is 1 or even.
    ///
    /// # Panics
    /// If `pairs` are too few for `R` rows, or the panel for their blocks.
    #[inline(always)]
    pub(super) fn tile<L: IntLayout, const R: usize>(
        self,
        panel: &[Line],
        pairs: &[RowPair],
        ahead: &Ahead<'_>,
    ) -> [[float32x4_t; QUADS]; R] {
        // Functions of their own: all tiles in one function would take minutes to compile.
        #[target_feature(enable = "neon,dotprod")]
        #[inline(never)]
        fn with_dot<L: IntLayout, const R: usize>(
            isa: Neon<DOT>,
            panel: &[Line],
            pairs: &[RowPair],
            ahead: &Ahead<'_>,
        ) -> [[float32x4_t; QUADS]; R] {
            isa.tile_in_quads::<L, R>(panel, pairs, ahead)
        }
        #[target_feature(enable = "neon,dotprod,i8mm")]
        #[inline(never)]
        fn with_i8mm<L: IntLayout, const R: usize>(
            isa: Neon<I8MM>,
            panel: &[Line],
            pairs: &[RowPair],
            ahead: &Ahead<'_>,
        ) -> [[float32x4_t; QUADS]; R] {
            isa.tile_in_quads::<L, R>(panel, pairs, ahead)
        }
        // SAFETY: `self` proves that the CPU has these features.
        unsafe {
            match LEVEL {
                DOT => with_dot::<L, R>(Neon(()), panel, pairs, ahead),
                I8MM => with_i8mm::<L, R>(Neon(()), panel, pairs, ahead),
                _ => unreachable!("without dot products"),
            }
        }
    }

    #[inline(always)]
    fn tile_in_quads<L: IntLayout, const R: usize>(
        self,
        panel: &[Line],
        pairs: &[RowPair],
        ahead: &Ahead<'_>,
    ) -> [[float32x4_t; QUADS]; R] {
        match R {
            1 => self.quads_of_tile::<L, R, 4>(panel, pairs, ahead),
            2 | 3 => self.quads_of_tile::<L, R, 2>(panel, pairs, ahead),
            4 if !L::SPLIT => self.quads_of_tile::<L, R, 2>(panel, pairs, ahead),
            _ => self.quads_of_tile::<L, R, 1>(panel, pairs, ahead),
        }
    }

    /// The same, `Q` quads at a time.
    #[inline(always)]
    #[expect(clippy::manual_memcpy, reason = "registers, not slices")]
    fn quads_of_tile<L: IntLayout, const R: usize, const Q: usize>(
        self,
        panel: &[Line],
        pairs: &[RowPair],
        ahead: &Ahead<'_>,
    ) -> [[float32x4_t; QUADS]; R] {
        let n_blocks = pairs.len() / R.div_ceil(2);
        let n_units = n_blocks.div_ceil(L::UNIT_BLOCKS);
        assert!(panel.len() >= n_units * L::UNIT_LINES, "{} lines for {n_blocks} blocks", panel.len());
        // SAFETY: NEON is proven; the constant is a register.
        let zero = unsafe { vdupq_n_f32(0.0) };
        // Of a pair of rows with `smmla`, registers 2p and 2p + 1 are the products with outputs 0, 1 and 2, 3.
        let mut sums = [[zero; R]; QUADS];
        let mut first = 0;
        while first < n_blocks {
            ahead.prefetch(self, first / CHUNK);
            let end = n_blocks.min(first + CHUNK);
            let mut quad = 0;
            while quad < QUADS {
                let mut acc = [[zero; R]; Q];
                for q in 0..Q {
                    acc[q] = sums[quad + q];
                }
                let mut block = first;
                while block < end {
                    let start = block / L::UNIT_BLOCKS * L::UNIT_LINES;
                    // SAFETY: the panel has the lines of all units, as checked above.
                    let unit = unsafe { panel.get_unchecked(start..start + L::UNIT_LINES) };
                    for b in 0..L::UNIT_BLOCKS.min(end - block) {
                        let mut rows = [&pairs[0]; 4];
                        for p in 0..R.div_ceil(2) {
                            // SAFETY: pair `p` has `n_blocks` blocks, and `block + b` is less.
                            rows[p] = unsafe { pairs.get_unchecked(p * n_blocks + block + b) };
                        }
                        self.block::<L, R, Q>(unit, b, quad, rows, &mut acc);
                    }
                    block += L::UNIT_BLOCKS;
                }
                for q in 0..Q {
                    sums[quad + q] = acc[q];
                }
                quad += Q;
            }
            first = end;
        }
        let mut out = [[zero; QUADS]; R];
        for quad in 0..QUADS {
            for r in 0..R {
                out[r][quad] = if LEVEL >= I8MM && R > 1 {
                    let [low, high] = [sums[quad][r & !1], sums[quad][r | 1]];
                    // SAFETY: NEON is proven.
                    unsafe { if r % 2 == 0 { vuzp1q_f32(low, high) } else { vuzp2q_f32(low, high) } }
                } else {
                    sums[quad][r]
                };
            }
        }
        out
    }

    /// Block `b` of the unit for quads `quad..quad + Q`.
    #[inline(always)]
    fn block<L: IntLayout, const R: usize, const Q: usize>(
        self,
        unit: &[Line],
        b: usize,
        quad: usize,
        rows: [&RowPair; 4],
        acc: &mut [[float32x4_t; R]; Q],
    ) {
        debug_assert!(unit.len() == L::UNIT_LINES && b < L::UNIT_BLOCKS && quad + Q <= QUADS);
        // SAFETY: a unit has the lines of its blocks, then its scales.
        let (codes, scales) = unsafe {
            (
                unit.get_unchecked(b * L::BLOCK_LINES..(b + 1) * L::BLOCK_LINES),
                unit.get_unchecked(L::UNIT_BLOCKS * L::BLOCK_LINES..L::UNIT_LINES),
            )
        };
        // SAFETY: NEON is proven.
        let mut dots = [[unsafe { vdupq_n_s32(0) }; R]; Q];
        if LEVEL >= I8MM && R > 1 {
            self.matrix_half::<L, R, Q, 0>(codes, scales, b, quad, rows, &mut dots, acc);
            self.matrix_half::<L, R, Q, 1>(codes, scales, b, quad, rows, &mut dots, acc);
        } else {
            self.lane_half::<L, R, Q, 0>(codes, scales, b, quad, rows, &mut dots, acc);
            self.lane_half::<L, R, Q, 1>(codes, scales, b, quad, rows, &mut dots, acc);
        }
    }

    /// Half a block with `sdot` by lane.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "one body for both halves")]
    fn lane_half<L: IntLayout, const R: usize, const Q: usize, const HALF: usize>(
        self,
        codes: &[Line],
        scale_lines: &[Line],
        b: usize,
        quad: usize,
        rows: [&RowPair; 4],
        dots: &mut [[int32x4_t; R]; Q],
        acc: &mut [[float32x4_t; R]; Q],
    ) {
        let (codes, rows) = if HALF == 1 && R >= 4 {
            self.reload::<L>(codes, rows, dots[Q - 1][R - 1])
        } else {
            (codes, rows)
        };
        if HALF == 0 || L::SPLIT {
            for r in 0..R {
                let start = self.lane_start::<L>(rows[r / 2], r % 2, HALF);
                for q in 0..Q {
                    dots[q][r] = start;
                }
            }
        }
        let mut a = [self.columns::<R>(rows[0], 0, HALF); R];
        for r in 1..R {
            a[r] = self.columns::<R>(rows[r / 2], r % 2, HALF);
        }
        self.lane_group::<L, R, Q, 0>(codes, quad, HALF, a, dots);
        self.lane_group::<L, R, Q, 1>(codes, quad, HALF, a, dots);
        self.lane_group::<L, R, Q, 2>(codes, quad, HALF, a, dots);
        self.lane_group::<L, R, Q, 3>(codes, quad, HALF, a, dots);
        if HALF == 0 && !L::SPLIT {
            return;
        }
        for q in 0..Q {
            let Scales { scale: of_outputs, min } = quad_scales::<L>(Quad(quad + q), scale_lines, b, HALF);
            for r in 0..R {
                let factors = rows[r / 2].factors();
                // SAFETY: NEON is proven; `factors` is a whole register.
                unsafe {
                    let [scale, sum] = if LEVEL >= I8MM {
                        [vld1q_f32(factors[0].as_ptr()), vld1q_f32(factors[1].as_ptr())]
                    } else {
                        [vld1q_f32(factors[0].as_ptr()); 2]
                    };
                    let scale = if r % 2 == 0 {
                        vmulq_laneq_f32::<0>(of_outputs, scale)
                    } else {
                        vmulq_laneq_f32::<1>(of_outputs, scale)
                    };
                    acc[q][r] = vfmaq_f32(acc[q][r], vcvtq_f32_s32(dots[q][r]), scale);
                    if L::MIN {
                        // Of columns 16 · `HALF`.. if the layout is split.
                        let (sum, lane) = match (LEVEL >= I8MM, L::SPLIT) {
                            (true, true) => (vld1q_f32(rows[r / 2].woven_half(HALF).as_ptr()), r % 2),
                            (true, false) => (sum, r % 2),
                            (false, true) => (vld1q_f32(factors[1].as_ptr()), 2 * (r % 2) + HALF),
                            (false, false) => (sum, 2 + r % 2),
                        };
                        acc[q][r] = match lane {
                            0 => vfmaq_laneq_f32::<0>(acc[q][r], min, sum),
                            1 => vfmaq_laneq_f32::<1>(acc[q][r], min, sum),
                            2 => vfmaq_laneq_f32::<2>(acc[q][r], min, sum),
                            _ => vfmaq_laneq_f32::<3>(acc[q][r], min, sum),
                        };
                    }
                }
            }
        }
    }

    /// The same references, in a way that the compiler neither keeps what was loaded through the given ones nor loads ahead of
    /// `last`, the newest sum: with eight rows there are no registers for it.
    #[inline(always)]
    #[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written")]
    fn reload<'a, L: IntLayout>(
        self,
        codes: &'a [Line],
        rows: [&'a RowPair; 4],
        last: int32x4_t,
    ) -> (&'a [Line], [&'a RowPair; 4]) {
        let mut codes_at = codes.as_ptr();
        let [mut a, mut b, mut c, mut d] = rows.map(std::ptr::from_ref);
        // SAFETY: no instruction; the pointers keep their values.
        unsafe {
            asm!(
                "// {codes} {a} {b} {c} {d} {last:v}",
                codes = inout(reg) codes_at,
                a = inout(reg) a,
                b = inout(reg) b,
                c = inout(reg) c,
                d = inout(reg) d,
                last = in(vreg) last,
                options(pure, nomem, nostack, preserves_flags)
            );
            (std::slice::from_raw_parts(codes_at, L::BLOCK_LINES), [&*a, &*b, &*c, &*d])
        }
    }

    /// Group `LANE` of the half block: four columns of all rows.
    #[inline(always)]
    fn lane_group<L: IntLayout, const R: usize, const Q: usize, const LANE: i32>(
        self,
        codes: &[Line],
        quad: usize,
        half: usize,
        a: [int8x16_t; R],
        dots: &mut [[int32x4_t; R]; Q],
    ) {
        for q in 0..Q {
            let mut w = quad_codes::<L>(codes, quad + q, 4 * half + LANE as usize);
            if L::WIDE {
                // SAFETY: NEON is proven.
                w = unsafe { veorq_u8(w, vdupq_n_u8(0x80)) };
            }
            for r in 0..R {
                dots[q][r] = self.dot_lane::<LANE>(dots[q][r], w, a[r]);
            }
        }
    }

    /// Columns 16 · `half`.. of row `r` of the pair, in order.
    #[inline(always)]
    fn columns<const R: usize>(self, pair: &RowPair, r: usize, half: usize) -> int8x16_t {
        // SAFETY: NEON is proven, and each part of a `RowPair` is a whole register.
        unsafe {
            if LEVEL < I8MM {
                return vreinterpretq_s8_s32(vld1q_s32(pair.codes()[2 * r + half].as_ptr()));
            }
            let [low, high] = [2 * half, 2 * half + 1]
                .map(|part| vreinterpretq_s64_s32(vld1q_s32(pair.codes()[part].as_ptr())));
            vreinterpretq_s8_s64(if r == 0 { vzip1q_s64(low, high) } else { vzip2q_s64(low, high) })
        }
    }

    /// The initial value of the dot product of row `r` with four outputs.
    #[inline(always)]
    fn lane_start<L: IntLayout>(self, pair: &RowPair, r: usize, half: usize) -> int32x4_t {
        // SAFETY: NEON is proven, and each part of a `RowPair` is a whole register.
        unsafe {
            if L::BIAS == 0 || L::WIDE {
                return vdupq_n_s32(0);
            }
            if LEVEL < I8MM {
                return start_of::<L>(pair.row_start(stored_bias::<L>(), r, half));
            }
            let starts = start_of::<L>(pair.woven_start(stored_bias::<L>(), half));
            if r == 0 { vdupq_laneq_s32::<0>(starts) } else { vdupq_laneq_s32::<1>(starts) }
        }
    }

    /// Half a block with `smmla`: 2 × 2 products of eight columns.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "one body for both halves")]
    fn matrix_half<L: IntLayout, const R: usize, const Q: usize, const HALF: usize>(
        self,
        codes: &[Line],
        scale_lines: &[Line],
        b: usize,
        quad: usize,
        rows: [&RowPair; 4],
        dots: &mut [[int32x4_t; R]; Q],
        acc: &mut [[float32x4_t; R]; Q],
    ) {
        // Layouts with a scale for each half have codes of several lines, and eight rows leave few registers for them.
        let reloads = L::SPLIT && R >= 8;
        let (mut codes, mut rows) = (codes, rows);
        if reloads && HALF == 1 {
            (codes, rows) = self.reload::<L>(codes, rows, dots[Q - 1][R - 1]);
        }
        if HALF == 0 || L::SPLIT {
            for p in 0..R / 2 {
                // SAFETY: NEON is proven, and each part of a `RowPair` is a whole register.
                let start = unsafe {
                    if L::BIAS == 0 {
                        vdupq_n_s32(0)
                    } else {
                        start_of::<L>(rows[p].woven_start(stored_bias::<L>(), HALF))
                    }
                };
                for q in 0..Q {
                    dots[q][2 * p] = start;
                    dots[q][2 * p + 1] = start;
                }
            }
        }
        for part in 2 * HALF..2 * HALF + 2 {
            if reloads && part % 2 == 1 {
                (codes, rows) = self.reload::<L>(codes, rows, dots[Q - 1][R - 1]);
            }
            for q in 0..Q {
                let [w01, w23] = woven_codes::<L>(codes, quad + q, part);
                for p in 0..R / 2 {
                    // SAFETY: NEON is proven, and each part of a `RowPair` is a whole register.
                    let a = unsafe { vreinterpretq_s8_s32(vld1q_s32(rows[p].codes()[part].as_ptr())) };
                    dots[q][2 * p] = self.dot_matrix_unsigned(dots[q][2 * p], w01, a);
                    dots[q][2 * p + 1] = self.dot_matrix_unsigned(dots[q][2 * p + 1], w23, a);
                }
            }
        }
        if HALF == 0 && !L::SPLIT {
            return;
        }
        for q in 0..Q {
            let Scales { scale: of_outputs, min } = quad_scales::<L>(Quad(quad + q), scale_lines, b, HALF);
            // SAFETY: NEON is proven, and each part of a `RowPair` is a whole register.
            unsafe {
                let of_outputs = [vzip1q_f32(of_outputs, of_outputs), vzip2q_f32(of_outputs, of_outputs)];
                let mins = [vzip1q_f32(min, min), vzip2q_f32(min, min)];
                for p in 0..R / 2 {
                    let [of_rows, sums] = *rows[p].factors();
                    let of_rows = vld1q_f32(of_rows.as_ptr());
                    for i in 0..2 {
                        let acc = &mut acc[q][2 * p + i];
                        let scale = vmulq_f32(of_outputs[i], of_rows);
                        *acc = vfmaq_f32(*acc, vcvtq_f32_s32(dots[q][2 * p + i]), scale);
                        if L::MIN {
                            let sums = if L::SPLIT { rows[p].woven_half(HALF) } else { &sums };
                            *acc = vfmaq_f32(*acc, mins[i], vld1q_f32(sums.as_ptr()));
                        }
                    }
                }
            }
        }
    }

    /// Per lane: acc + Σ₄ w · a of the four bytes in lane `LANE` of `a`. Codes are below 128 or signed.
    #[inline(always)]
    fn dot_lane<const LANE: i32>(self, mut acc: int32x4_t, w: uint8x16_t, a: int8x16_t) -> int32x4_t {
        // SAFETY: the level proves `sdot`, which reads and writes registers only. (Its intrinsic is not stable yet.)
        unsafe {
            asm!(
                "sdot {acc:v}.4s, {w:v}.16b, {a:v}.4b[{lane}]",
                acc = inout(vreg) acc,
                w = in(vreg) w,
                a = in(vreg) a,
                lane = const LANE,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        acc
    }

    /// acc[i][j] + Σ₈ w[i] · a[j], `w` unsigned and `a` signed, for two rows of eight bytes each; only with `I8MM`.
    #[inline(always)]
    fn dot_matrix_unsigned(self, mut acc: int32x4_t, w: uint8x16_t, a: int8x16_t) -> int32x4_t {
        assert!(LEVEL >= I8MM);
        // SAFETY: the level proves `usmmla`, which reads and writes registers only. (Its intrinsic is not stable yet.)
        unsafe {
            asm!(
                "usmmla {acc:v}.4s, {w:v}.16b, {a:v}.16b",
                acc = inout(vreg) acc,
                w = in(vreg) w,
                a = in(vreg) a,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        acc
    }
}

/// The codes of outputs 0, 1 and of outputs 2, 3 of the quad in groups 2 · `part` and 2 · `part` + 1: each output's eight
/// codes are contiguous.
#[inline(always)]
fn woven_codes<L: IntLayout>(codes: &[Line], quad: usize, part: usize) -> [uint8x16_t; 2] {
    let (g, h) = (2 * part, 2 * part + 1);
    if L::BITS == 4 && L::TABLE.is_none() {
        // Both halves of a byte are woven at once.
        let lines = woven(quad_line(&codes[g % 4], quad), quad_line(&codes[h % 4], quad));
        return [nibbles(lines[0], g), nibbles(lines[1], g)];
    }
    woven(quad_codes::<L>(codes, quad, g), quad_codes::<L>(codes, quad, h))
}

#[inline(always)]
fn woven(g: uint8x16_t, h: uint8x16_t) -> [uint8x16_t; 2] {
    // SAFETY: registers only.
    unsafe {
        let (g, h) = (vreinterpretq_u32_u8(g), vreinterpretq_u32_u8(h));
        [vreinterpretq_u8_u32(vzip1q_u32(g, h)), vreinterpretq_u8_u32(vzip2q_u32(g, h))]
    }
}

/// The low nibbles for groups 0..4, the high ones for 4..8.
#[inline(always)]
fn nibbles(line: uint8x16_t, group: usize) -> uint8x16_t {
    // SAFETY: registers only.
    unsafe { if group < 4 { vandq_u8(line, vdupq_n_u8(0xF)) } else { vshrq_n_u8::<4>(line) } }
}

/// The unsigned levels of four outputs in a group of four columns (see `layout.rs`).
#[inline(always)]
fn quad_codes<L: IntLayout>(block: &[Line], quad: usize, group: usize) -> uint8x16_t {
    let line = |i: usize| quad_line(&block[i], quad);
    let group_shift = group as i8;
    match L::BITS {
        8 => line(group),
        2 => two_bits(line(group / 4), group),
        3 => with_upper_bits(two_bits(line(group / 4), group), line(2), 2 - group_shift, 4),
        4 => {
            let nibbles = nibbles(line(group % 4), group);
            if L::TABLE.is_some() {
                // SAFETY: registers only; the table is a whole register.
                unsafe { vqtbl1q_u8(vld1q_u8(L::LEVELS.as_ptr()), nibbles) }
            } else {
                nibbles
            }
        }
        5 => with_upper_bits(nibbles(line(group % 4), group), line(4), 4 - group_shift, 0x10),
        _ => {
            let upper = line(4 + group / 4);
            with_upper_bits(nibbles(line(group % 4), group), upper, 4 - 2 * (group_shift % 4), 0x30)
        }
    }
}

/// The two bits of a group in the line of groups 0..4 or 4..8.
#[inline(always)]
fn two_bits(line: uint8x16_t, group: usize) -> uint8x16_t {
    // SAFETY: registers only.
    unsafe { vandq_u8(vshlq_u8(line, vdupq_n_s8(-2 * (group as i8 % 4))), vdupq_n_u8(3)) }
}

#[inline(always)]
fn quad_line(line: &Line, quad: usize) -> uint8x16_t {
    // SAFETY: a quarter is a whole register.
    unsafe { vld1q_u8(line.quarters()[quad].as_ptr()) }
}

/// `nibbles` with the bits in `mask` of `line`, shifted to the left (to the right by a negative `shift`).
#[inline(always)]
fn with_upper_bits(nibbles: uint8x16_t, line: uint8x16_t, shift: i8, mask: u8) -> uint8x16_t {
    // SAFETY: registers only.
    unsafe { vbslq_u8(vdupq_n_u8(mask), vshlq_u8(line, vdupq_n_s8(shift)), nibbles) }
}

/// The bias whose initial values a [`RowPair`] holds: those of smaller biases are an eighth.
const fn stored_bias<L: IntLayout>() -> i32 {
    if L::BIAS < 8 { 8 * L::BIAS } else { L::BIAS }
}

/// The initial values for the layout's bias, from those of [`stored_bias`].
#[inline(always)]
fn start_of<L: IntLayout>(stored: &[i32; 4]) -> int32x4_t {
    // SAFETY: four numbers are a whole register.
    let stored = unsafe { vld1q_s32(stored.as_ptr()) };
    // SAFETY: registers only.
    if L::BIAS < 8 { unsafe { vshrq_n_s32::<3>(stored) } } else { stored }
}

/// The scales of a quad for the columns of a half block.
#[inline(always)]
fn quad_scales<L: IntLayout>(quad: Quad, lines: &[Line], block: usize, half: usize) -> Scales<Quad> {
    L::scales(quad, lines, L::factors(quad, lines), block, if L::SPLIT { half } else { 0 })
}

/// The intrinsic on the register of a quad.
macro_rules! one {
    ($f:expr, $($a:expr),+) => {
        // SAFETY: registers only.
        unsafe { $f($($a),+) }
    };
}

/// Each method has the roundings of the same method of [`Neon`].
impl ScaleLanes for Quad {
    type F = float32x4_t;
    type I = int32x4_t;

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        one!(vdupq_n_f32, x)
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> float32x4_t {
        let quad = &x.as_chunks::<4>().0[self.0];
        // SAFETY: four numbers are a whole register.
        unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(quad.as_ptr()))) }
    }
    #[inline(always)]
    fn load_i8(self, x: &[u8; LANES]) -> float32x4_t {
        // SAFETY: registers only.
        self.to_f(unsafe { vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(self.bytes(x))))) })
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; LANES]) -> int32x4_t {
        // SAFETY: registers only.
        unsafe { vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(self.bytes(x))))) }
    }
    #[inline(always)]
    fn splat_i(self, x: i32) -> int32x4_t {
        one!(vdupq_n_s32, x)
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: int32x4_t) -> int32x4_t {
        one!(vshlq_s32, a, vdupq_n_s32(N as i32))
    }
    #[inline(always)]
    fn sar<const N: u32>(self, a: int32x4_t) -> int32x4_t {
        one!(vshlq_s32, a, vdupq_n_s32(-(N as i32)))
    }

    by_intrinsic! { one;
        neg(a: F) -> F = vnegq_f32;
        mul(a: F, b: F) -> F = vmulq_f32;
        add_i(a: I, b: I) -> I = vaddq_s32;
        sub_i(a: I, b: I) -> I = vsubq_s32;
        of_bits(a: I) -> F = vreinterpretq_f32_s32;
        to_f(a: I) -> F = vcvtq_f32_s32;
    }
}

impl Quad {
    /// The quad's four bytes in the low half.
    #[inline(always)]
    fn bytes(self, x: &[u8; LANES]) -> uint8x8_t {
        let quad = u32::from_le_bytes(x.as_chunks::<4>().0[self.0]);
        // SAFETY: registers only.
        unsafe { vreinterpret_u8_u32(vdup_n_u32(quad)) }
    }
}
