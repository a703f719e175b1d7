//! The layout of panels of 16 rows in memory, and the scales that each layout provides to the matmul kernel.
//!
//! A panel holds 16 rows of a matrix; lane `i` of every vector is row `i` of the panel. Along the columns, a
//! panel is a sequence of *units*. Each unit is a whole number of 64-byte lines, so the kernel reads one
//! sequential stream:
//!
//! ```text
//! unit  = code lines of its blocks (32 columns each), then its scale lines
//! group g (0..8) = columns 4g..4g+4 of the block: a line is 16 rows × 4 bytes, one for each column
//! codes, 8 bits: line g = group g
//! codes, 4 bits: line g (0..4) = group g in the low nibbles, group 4+g in the high ones
//! codes, 5 bits: the same, then a line whose bit g is the upper bit of group g
//! codes, 6 bits: the same as 4 bits, then a line for groups 0..4 and one for 4..8, the upper bits of one in bits 2(g%4)..
//! codes, 2 bits: a line for groups 0..4 and one for 4..8, one group in bits 2(g%4)..
//! codes, 3 bits: the same, then a line whose bit g is the upper bit of group g
//! ```
//!
//! Codes have exactly the bits of their format, so every byte sequence is a sequence of valid codes. A packed
//! matrix is as large as in its file, except that formats with one factor for 256 columns fill its line by half,
//! and 6-bit scales and minima are widened to 8 bits.
//!
//! | layout | source types | unit | scale lines | bits per weight |
//! | --- | --- | --- | --- | --- |
//! | `Scaled` | Q8_0, Q5_0, Q4_0 | 2 blocks | f16 scales of both blocks | 8.5, 5.5, 4.5 |
//! | `ScaledMin` | Q5_1, Q4_1 | 1 block | f16 scales, f16 minima | 6, 5 |
//! | `SuperMin` | Q5_K, Q4_K | 8 blocks | f16 `d`, f16 `dmin`; 8 × 8-bit scales; 8 × 8-bit minima | 5.6, 4.6 |
//! | `Super16` | Q6_K, Q3_K | 8 blocks | f16 `d`; 16 × 8-bit scales | 6.6, 3.6 |
//! | `block/q2_k.rs` | Q2_K | 8 blocks | f16 `d`, f16 `dmin`; 16 × 4-bit scales and minima | 2.6 |
//! | `block/iq4_nl.rs` | IQ4_NL | 2 blocks | as `Scaled` | 4.5 |
//! | `block/iq4_xs.rs` | IQ4_XS | 8 blocks | f16 `d`; 8 × 8-bit scales | 4.4 |
//! | `block/mxfp4.rs` | MXFP4 | 4 blocks | 8-bit exponents of all blocks | 4.25 |
//! | `block/tq2_0.rs` | TQ2_0 | 8 blocks | f16 scale | 2.1 |
//!
//! Floats have no units: line `c` (F32) or half a line (F16, BF16) is column `c` of the 16 rows.

use super::aligned::Line;
use super::unpacked::{Unpacked, f16_of};

/// The version of the panel layouts. Packed files with another version are refused, so every change to a
/// released layout must increase it. (A test detects changes.)
pub const PANEL_LAYOUT_VERSION: u32 = 1;

/// Rows of a panel: the lanes of a vector.
pub const PANEL_ROWS: usize = 16;

/// What the scales of a layout are computed with: the lanes of a vector ([`Simd`](super::simd::Simd)), or fewer of them.
pub(super) trait ScaleLanes: Copy {
    /// f32 by lane.
    type F: Copy;
    /// i32 by lane.
    type I: Copy;
    fn splat(self, x: f32) -> Self::F;
    /// f16 bits to f32, exactly; a signalling NaN becomes quiet.
    fn load_f16(self, x: &[u16; PANEL_ROWS]) -> Self::F;
    #[inline(always)]
    fn load_u8(self, x: &[u8; PANEL_ROWS]) -> Self::F {
        self.to_f(self.load_bytes(x))
    }
    /// Bytes as two's complement.
    fn load_i8(self, x: &[u8; PANEL_ROWS]) -> Self::F;
    /// Unsigned bytes as integers.
    fn load_bytes(self, x: &[u8; PANEL_ROWS]) -> Self::I;
    /// −a, exactly.
    fn neg(self, a: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn splat_i(self, x: i32) -> Self::I;
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn shl<const N: u32>(self, a: Self::I) -> Self::I;
    /// Arithmetic shift right.
    fn sar<const N: u32>(self, a: Self::I) -> Self::I;
    fn of_bits(self, a: Self::I) -> Self::F;
    /// To f32, to nearest.
    fn to_f(self, a: Self::I) -> Self::F;
}

/// Scale factors of a block or of its half, one lane per row.
pub(super) struct Scales<S: ScaleLanes> {
    pub(super) scale: S::F,
    /// Added to every weight, if the layout has minima.
    pub(super) min: S::F,
}

/// A panel layout of integer codes.
pub(super) trait IntLayout {
    /// Bits of a code: 2 to 6, or 8.
    const BITS: usize;
    /// Subtracted from codes, or from the entries of `LEVELS`.
    const BIAS: i32;
    /// The levels of codes of four bits, if they are not `code − BIAS`.
    const TABLE: Option<[i8; 16]> = None;
    /// Blocks of 32 columns per unit.
    const UNIT_BLOCKS: usize;
    /// Scale lines of 16-bit numbers, two halves of 16 rows.
    const HALF_LINES: usize = 1;
    /// Bytes of a row that are scales of sub-blocks, in lines of four quarters of 16 rows.
    const SUB_SCALES: usize = 0;
    /// Bytes of a row that are minima of sub-blocks, in the lines after them.
    const SUB_MINS: usize = 0;
    /// Lines after the codes of a unit: first those of 16-bit numbers, then those of bytes.
    const SCALE_LINES: usize = Self::HALF_LINES + (Self::SUB_SCALES + Self::SUB_MINS) / 4;
    /// Each 16 columns have their own scale, and minimum.
    const SPLIT: bool = false;
    /// Weights have a minimum.
    const MIN: bool = false;

    /// Code lines per block: 32 columns of 16 rows are 64 bytes for each bit.
    const BLOCK_LINES: usize = Self::BITS;
    /// Lines per unit.
    const UNIT_LINES: usize = Self::UNIT_BLOCKS * Self::BLOCK_LINES + Self::SCALE_LINES;
    /// The table, unsigned by the bias.
    const LEVELS: [u8; 16] = levels(Self::TABLE, Self::BIAS);
    /// The greatest unsigned level.
    const LEVEL_MAX: usize = level_max(Self::TABLE, Self::LEVELS, Self::BITS);
    /// Levels need all eight bits.
    const WIDE: bool = Self::LEVEL_MAX > 127;

    /// The factors of a unit, of its scales and of its minima, from its `SCALE_LINES` lines; zeros if each block has its own.
    #[inline(always)]
    fn factors<S: ScaleLanes>(s: S, lines: &[Line]) -> [S::F; 2] {
        let zero = s.splat(0.0);
        if Self::UNIT_BLOCKS < 8 {
            return [zero; 2];
        }
        let [d, m] = lines[0].halves();
        [s.load_f16(d), if Self::MIN { s.load_f16(m) } else { zero }]
    }

    /// The scales of the unit's `block`, from its `SCALE_LINES` lines and their [`factors`](Self::factors); of its `half` if
    /// `SPLIT`, otherwise `half` is 0.
    fn scales<S: ScaleLanes>(
        s: S,
        lines: &[Line],
        factors: [S::F; 2],
        block: usize,
        half: usize,
    ) -> Scales<S>;

    /// The scale and the minimum of columns `16 · sixteenth ..` of a block, computed in f32 as ggml does.
    fn scale_and_min(block: &Unpacked, sixteenth: usize) -> (f32, f32);

    /// Writes the scales of a block of the file; its first 32 columns are block `first` of the unit. As it stands here, for
    /// a unit that is one block of the file.
    fn pack_scales(block: &Unpacked, lines: &mut [Line], _first: usize, lane: usize) {
        lines[0].put_halves(lane, [block.d, block.m]);
        let (scales, mins) = lines[1..].split_at_mut(Self::SUB_SCALES / 4);
        Line::put_bytes(scales, lane, &block.sub_scales[..Self::SUB_SCALES]);
        Line::put_bytes(mins, lane, &block.sub_mins[..Self::SUB_MINS]);
    }

    /// The inverse of `pack_scales`.
    fn unpack_scales(block: &mut Unpacked, lines: &[Line], _first: usize, lane: usize) {
        [block.d, block.m] = lines[0].halves_of(lane);
        let (scales, mins) = lines[1..].split_at(Self::SUB_SCALES / 4);
        Line::bytes_of_lane(scales, lane, &mut block.sub_scales[..Self::SUB_SCALES]);
        Line::bytes_of_lane(mins, lane, &mut block.sub_mins[..Self::SUB_MINS]);
    }

    /// The level of a code.
    fn level(code: u8) -> i32 {
        match Self::TABLE {
            Some(table) => i32::from(table[usize::from(code & 0xF)]),
            None => i32::from(code) - Self::BIAS,
        }
    }
}

const fn levels(table: Option<[i8; 16]>, bias: i32) -> [u8; 16] {
    let mut levels = [0; 16];
    if let Some(table) = table {
        let mut i = 0;
        while i < 16 {
            let level = table[i] as i32 + bias;
            assert!(0 <= level && level <= 255, "the bias makes levels unsigned");
            levels[i] = level as u8;
            i += 1;
        }
    }
    levels
}

const fn level_max(table: Option<[i8; 16]>, levels: [u8; 16], bits: usize) -> usize {
    if table.is_none() {
        return (1 << bits) - 1;
    }
    let (mut max, mut i) = (0, 0);
    while i < 16 {
        if levels[i] as usize > max {
            max = levels[i] as usize;
        }
        i += 1;
    }
    max
}

/// One f16 scale per block.
pub(super) struct Scaled<const BITS: usize>;

impl<const BITS: usize> IntLayout for Scaled<BITS> {
    const BITS: usize = BITS;
    const BIAS: i32 = 1 << (BITS - 1);
    const UNIT_BLOCKS: usize = 2;

    #[inline(always)]
    fn scales<S: ScaleLanes>(
        s: S,
        lines: &[Line],
        _factors: [S::F; 2],
        block: usize,
        _half: usize,
    ) -> Scales<S> {
        Scales { scale: s.load_f16(&lines[0].halves()[block]), min: s.splat(0.0) }
    }

    fn scale_and_min(block: &Unpacked, _sixteenth: usize) -> (f32, f32) {
        (f16_of(block.d), 0.0)
    }

    fn pack_scales(block: &Unpacked, lines: &mut [Line], first: usize, lane: usize) {
        lines[0].halves_mut()[first][lane] = block.d;
    }

    fn unpack_scales(block: &mut Unpacked, lines: &[Line], first: usize, lane: usize) {
        block.d = lines[0].halves()[first][lane];
    }
}

/// One f16 scale and one f16 minimum per block.
pub(super) struct ScaledMin<const BITS: usize>;

impl<const BITS: usize> IntLayout for ScaledMin<BITS> {
    const BITS: usize = BITS;
    const BIAS: i32 = 0;
    const UNIT_BLOCKS: usize = 1;
    const MIN: bool = true;

    #[inline(always)]
    fn scales<S: ScaleLanes>(
        s: S,
        lines: &[Line],
        _factors: [S::F; 2],
        _block: usize,
        _half: usize,
    ) -> Scales<S> {
        let [d, m] = lines[0].halves();
        Scales { scale: s.load_f16(d), min: s.load_f16(m) }
    }

    fn scale_and_min(block: &Unpacked, _sixteenth: usize) -> (f32, f32) {
        (f16_of(block.d), f16_of(block.m))
    }
}

/// f16 factors of 8 blocks, and an integer scale and minimum for each block.
pub(super) struct SuperMin<const BITS: usize>;

impl<const BITS: usize> IntLayout for SuperMin<BITS> {
    const BITS: usize = BITS;
    const BIAS: i32 = 0;
    const UNIT_BLOCKS: usize = 8;
    const SUB_SCALES: usize = 8;
    const SUB_MINS: usize = 8;
    const MIN: bool = true;

    #[inline(always)]
    fn scales<S: ScaleLanes>(
        s: S,
        lines: &[Line],
        [d, dmin]: [S::F; 2],
        block: usize,
        _half: usize,
    ) -> Scales<S> {
        let scale = s.mul(d, s.load_u8(&lines[1 + block / 4].quarters()[block % 4]));
        let min = s.mul(dmin, s.load_u8(&lines[3 + block / 4].quarters()[block % 4]));
        // The file's minimum is subtracted; negation is exact.
        Scales { scale, min: s.neg(min) }
    }

    fn scale_and_min(block: &Unpacked, sixteenth: usize) -> (f32, f32) {
        let (scale, min) = (block.sub_scales[sixteenth / 2], block.sub_mins[sixteenth / 2]);
        (f16_of(block.d) * f32::from(scale), -(f16_of(block.m) * f32::from(min)))
    }
}

/// An f16 factor of 8 blocks, and a signed integer scale for each 16 columns.
pub(super) struct Super16<const BITS: usize>;

impl<const BITS: usize> IntLayout for Super16<BITS> {
    const BITS: usize = BITS;
    const BIAS: i32 = 1 << (BITS - 1);
    const UNIT_BLOCKS: usize = 8;
    const SUB_SCALES: usize = 16;
    const SPLIT: bool = true;

    #[inline(always)]
    fn scales<S: ScaleLanes>(
        s: S,
        lines: &[Line],
        [d, _]: [S::F; 2],
        block: usize,
        half: usize,
    ) -> Scales<S> {
        let scale = s.load_i8(&lines[1 + block / 2].quarters()[block % 2 * 2 + half]);
        Scales { scale: s.mul(d, scale), min: s.splat(0.0) }
    }

    fn scale_and_min(block: &Unpacked, sixteenth: usize) -> (f32, f32) {
        (f16_of(block.d) * f32::from(block.sub_scales[sixteenth] as i8), 0.0)
    }
}

impl Line {
    /// Writes a lane of both halves.
    pub(super) fn put_halves(&mut self, lane: usize, values: [u16; 2]) {
        for (half, value) in self.halves_mut().iter_mut().zip(values) {
            half[lane] = value;
        }
    }

    /// A lane of both halves.
    pub(super) fn halves_of(&self, lane: usize) -> [u16; 2] {
        self.halves().map(|half| half[lane])
    }

    /// Writes a lane of the quarters of `lines`, in order.
    pub(super) fn put_bytes(lines: &mut [Line], lane: usize, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            lines[i / 4].0[i % 4 * PANEL_ROWS + lane] = byte;
        }
    }

    /// A lane of the quarters of `lines`, in order.
    pub(super) fn bytes_of_lane(lines: &[Line], lane: usize, bytes: &mut [u8]) {
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = lines[i / 4].0[i % 4 * PANEL_ROWS + lane];
        }
    }
}

/// Some bits of a group's codes in a line of their block.
#[derive(Clone, Copy)]
struct Field {
    line: usize,
    shift: usize,
    bits: usize,
}

impl Field {
    /// The bits in each byte of a word.
    fn mask(self) -> u32 {
        0x0101_0101 * ((1 << self.bits) - 1)
    }
}

/// The layout constants of a source type at run time, for packing and unpacking.
#[derive(Clone, Copy)]
pub(super) struct LayoutInfo {
    /// Bits of a code.
    bits: usize,
    pub(super) unit_blocks: usize,
    pub(super) block_lines: usize,
    pub(super) unit_lines: usize,
    pub(super) half_lines: usize,
}

impl LayoutInfo {
    pub(super) const fn of<L: IntLayout>() -> Self {
        LayoutInfo {
            bits: L::BITS,
            unit_blocks: L::UNIT_BLOCKS,
            block_lines: L::BLOCK_LINES,
            unit_lines: L::UNIT_LINES,
            half_lines: L::HALF_LINES,
        }
    }

    /// The lower bits of a group's codes, and the bits above them.
    #[inline(always)]
    fn fields(self, group: usize) -> (Field, Option<Field>) {
        let bits = match self.bits {
            8 => 8,
            4.. => 4,
            _ => 2,
        };
        let lower = match bits {
            8 => Field { line: group, shift: 0, bits },
            4 => Field { line: group % 4, shift: group / 4 * 4, bits },
            _ => Field { line: group / 4, shift: group % 4 * 2, bits },
        };
        let upper = match self.bits - bits {
            0 => None,
            1 => Some(Field { line: bits, shift: group, bits: 1 }),
            _ => Some(Field { line: bits + group / 4, shift: group % 4 * 2, bits: 2 }),
        };
        (lower, upper)
    }

    /// Writes the four codes of a group, a byte each, into the lines of their block. The lane was zero.
    #[inline(always)]
    pub(super) fn put_codes(self, lines: &mut [Line], group: usize, lane: usize, codes: [u8; 4]) {
        let codes = u32::from_le_bytes(codes);
        let (lower, upper) = self.fields(group);
        let mut put = |field: Field, codes: u32| {
            let word = &mut lines[field.line].0.as_chunks_mut::<4>().0[lane];
            *word = (u32::from_le_bytes(*word) | (codes & field.mask()) << field.shift).to_le_bytes();
        };
        put(lower, codes);
        if let Some(upper) = upper {
            put(upper, codes >> lower.bits);
        }
    }

    /// The inverse of `put_codes`.
    pub(super) fn codes(self, lines: &[Line], group: usize, lane: usize) -> [u8; 4] {
        let (lower, upper) = self.fields(group);
        let get = |field: Field| {
            u32::from_le_bytes(lines[field.line].0.as_chunks::<4>().0[lane]) >> field.shift & field.mask()
        };
        (get(lower) | upper.map_or(0, |upper| get(upper) << lower.bits)).to_le_bytes()
    }
}
