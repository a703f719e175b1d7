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
//! ```
//!
//! Codes have exactly the bits of their format, so every byte sequence is a sequence of valid codes. A packed
//! matrix is as large as in its file; the K formats take 0.1 bits more per weight, because their scales and
//! minima are widened to 8 bits.
//!
//! | layout | source types | unit | scale lines | bits per weight |
//! | --- | --- | --- | --- | --- |
//! | `Scaled` | Q8_0, Q5_0, Q4_0 | 2 blocks | f16 scales of both blocks | 8.5, 5.5, 4.5 |
//! | `ScaledMin` | Q5_1, Q4_1 | 1 block | f16 scales, f16 minima | 6, 5 |
//! | `SuperMin` | Q5_K, Q4_K | 8 blocks | f16 `d`, f16 `dmin`; 8 × 8-bit scales; 8 × 8-bit minima | 5.6, 4.6 |
//! | `Super16` | Q6_K | 8 blocks | f16 `d`; 16 × 8-bit scales | 6.6 |
//!
//! Floats have no units: line `c` (F32) or half a line (F16, BF16) is column `c` of the 16 rows.

use super::aligned::Line;
use super::block::BlockType;
use super::simd::Simd;

/// The version of the panel layouts. Packed files with another version are refused, so every change to a
/// released layout must increase it. (A test detects changes.)
pub const PANEL_LAYOUT_VERSION: u32 = 1;

/// Rows of a panel: the lanes of a vector.
pub(crate) const PANEL_ROWS: usize = 16;

/// A block's scale factors, one lane per row.
pub(super) struct Scales<S: Simd> {
    /// Of columns 0..16; of all 32 unless the layout is `SPLIT`.
    pub(super) first: S::F,
    /// Of columns 16..32.
    pub(super) second: S::F,
    /// Added to every weight, if the layout has minima.
    pub(super) min: S::F,
}

/// A panel layout of integer codes.
pub(super) trait IntLayout {
    /// Bits of a code: 4, 5, 6 or 8.
    const BITS: usize;
    /// The bias that is subtracted from codes.
    const BIAS: i32;
    /// Blocks of 32 columns per unit.
    const UNIT_BLOCKS: usize;
    /// Lines after the codes of a unit.
    const SCALE_LINES: usize;
    /// Each 16 columns have their own scale.
    const SPLIT: bool = false;
    /// Weights have a minimum.
    const MIN: bool = false;

    /// Code lines per block: 32 columns of 16 rows are 64 bytes for each bit.
    const BLOCK_LINES: usize = Self::BITS;
    /// Lines per unit.
    const UNIT_LINES: usize = Self::UNIT_BLOCKS * Self::BLOCK_LINES + Self::SCALE_LINES;

    /// The scales of the unit's `block`, from its `SCALE_LINES` lines.
    fn scales<S: Simd>(s: S, lines: &[Line], block: usize) -> Scales<S>;
}

/// One f16 scale per block.
pub(super) struct Scaled<const BITS: usize>;

impl<const BITS: usize> IntLayout for Scaled<BITS> {
    const BITS: usize = BITS;
    const BIAS: i32 = 1 << (BITS - 1);
    const UNIT_BLOCKS: usize = 2;
    const SCALE_LINES: usize = 1;

    #[inline(always)]
    fn scales<S: Simd>(s: S, lines: &[Line], block: usize) -> Scales<S> {
        let scale = s.load_f16(&lines[0].halves()[block]);
        Scales { first: scale, second: scale, min: s.splat(0.0) }
    }
}

/// One f16 scale and one f16 minimum per block.
pub(super) struct ScaledMin<const BITS: usize>;

impl<const BITS: usize> IntLayout for ScaledMin<BITS> {
    const BITS: usize = BITS;
    const BIAS: i32 = 0;
    const UNIT_BLOCKS: usize = 1;
    const SCALE_LINES: usize = 1;
    const MIN: bool = true;

    #[inline(always)]
    fn scales<S: Simd>(s: S, lines: &[Line], _block: usize) -> Scales<S> {
        let scale = s.load_f16(&lines[0].halves()[0]);
        Scales { first: scale, second: scale, min: s.load_f16(&lines[0].halves()[1]) }
    }
}

/// f16 factors of 8 blocks, and an integer scale and minimum for each block.
pub(super) struct SuperMin<const BITS: usize>;

impl<const BITS: usize> IntLayout for SuperMin<BITS> {
    const BITS: usize = BITS;
    const BIAS: i32 = 0;
    const UNIT_BLOCKS: usize = 8;
    const SCALE_LINES: usize = 5;
    const MIN: bool = true;

    #[inline(always)]
    fn scales<S: Simd>(s: S, lines: &[Line], block: usize) -> Scales<S> {
        let [d, dmin] = lines[0].halves();
        let scale = s.mul(s.load_f16(d), s.load_u8(&lines[1 + block / 4].quarters()[block % 4]));
        let min = s.mul(s.load_f16(dmin), s.load_u8(&lines[3 + block / 4].quarters()[block % 4]));
        // The file's minimum is subtracted; negation is exact.
        Scales { first: scale, second: scale, min: s.sub(s.splat(-0.0), min) }
    }
}

/// An f16 factor of 8 blocks, and a signed integer scale for each 16 columns.
pub(super) struct Super16;

impl IntLayout for Super16 {
    const BITS: usize = 6;
    const BIAS: i32 = 32;
    const UNIT_BLOCKS: usize = 8;
    const SCALE_LINES: usize = 5;
    const SPLIT: bool = true;

    #[inline(always)]
    fn scales<S: Simd>(s: S, lines: &[Line], block: usize) -> Scales<S> {
        let d = s.load_f16(&lines[0].halves()[0]);
        let sub = &lines[1 + block / 2].quarters()[block % 2 * 2..][..2];
        Scales {
            first: s.mul(d, s.load_i8(&sub[0])),
            second: s.mul(d, s.load_i8(&sub[1])),
            min: s.splat(0.0),
        }
    }
}

/// The layout constants of a source type at run time, for packing and unpacking.
#[derive(Clone, Copy)]
pub(super) struct LayoutInfo {
    /// Bits of a code.
    pub(super) bits: usize,
    pub(super) unit_blocks: usize,
    pub(super) block_lines: usize,
    pub(super) unit_lines: usize,
}

impl LayoutInfo {
    /// `None` for floats.
    pub(super) fn of(ty: BlockType) -> Option<Self> {
        fn info<L: IntLayout>() -> Option<LayoutInfo> {
            Some(LayoutInfo {
                bits: L::BITS,
                unit_blocks: L::UNIT_BLOCKS,
                block_lines: L::BLOCK_LINES,
                unit_lines: L::UNIT_LINES,
            })
        }
        match ty {
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => None,
            BlockType::Q8_0 => info::<Scaled<8>>(),
            BlockType::Q5_0 => info::<Scaled<5>>(),
            BlockType::Q4_0 => info::<Scaled<4>>(),
            BlockType::Q4_1 => info::<ScaledMin<4>>(),
            BlockType::Q5_1 => info::<ScaledMin<5>>(),
            BlockType::Q4K => info::<SuperMin<4>>(),
            BlockType::Q5K => info::<SuperMin<5>>(),
            BlockType::Q6K => info::<Super16>(),
        }
    }
}

/// Lines of one panel of `n_cols` columns; `None` on overflow.
pub(super) fn panel_lines(ty: BlockType, n_cols: usize) -> Option<usize> {
    match LayoutInfo::of(ty) {
        Some(info) => (n_cols / 32).div_ceil(info.unit_blocks).checked_mul(info.unit_lines),
        None if ty == BlockType::F32 => Some(n_cols),
        None => Some(n_cols.div_ceil(2)),
    }
}
