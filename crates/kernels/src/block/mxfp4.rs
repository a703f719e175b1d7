//! MXFP4: an E8M0 scale (a byte, the exponent of a power of two), 32 codes of 4 bits: sign, two bits of exponent, one of
//! mantissa. Value: `scale / 2 · TABLE[code]`.

use super::super::aligned::Line;
use super::super::layout::{IntLayout, ScaleLanes, Scales};
use super::super::unpacked::Unpacked;
use super::{BlockFormat, Format};

/// Twice the numbers of four bits, which are then integers.
const TABLE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(in super::super) struct Mxfp4;

impl Format for Mxfp4 {
    const NAME: &'static str = "MXFP4";
    const GGML_ID: u32 = 39;
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 17;
}

impl BlockFormat for Mxfp4 {
    type Layout = Panels;

    fn read(block: &[u8], out: &mut Unpacked) {
        out.d = u16::from(block[0]);
        out.read_nibbles(&block[1..]);
    }
}

/// The exponent bytes of 4 blocks.
pub(in super::super) struct Panels;

impl IntLayout for Panels {
    const BITS: usize = 4;
    /// More than the table needs: activations have the initial value of the dot product for this bias.
    const BIAS: i32 = 16;
    const TABLE: Option<[i8; 16]> = Some(TABLE);
    const UNIT_BLOCKS: usize = 4;
    const SCALE_LINES: usize = 1;
    const HALF_LINES: usize = 0;

    #[inline(always)]
    fn scales<S: ScaleLanes>(
        s: S,
        lines: &[Line],
        _factors: [S::F; 2],
        block: usize,
        _half: usize,
    ) -> Scales<S> {
        // 2^(e − 128) is the product of two powers with half of the exponent each. Both are normal numbers, so the
        // product is exact for every byte, subnormal results included.
        let exponent = s.load_bytes(&lines[0].quarters()[block]);
        let low = s.sar::<1>(exponent);
        let high = s.sub_i(exponent, low);
        let scale = s.mul(power_of_two(s, low), power_of_two(s, high));
        Scales { scale, min: s.splat(0.0) }
    }

    fn scale_and_min(block: &Unpacked, _sixteenth: usize) -> (f32, f32) {
        // Subnormal numbers for the exponents 0 and 1.
        let bits = match u32::from(block.d) {
            exponent @ 0..2 => 0x0020_0000 << exponent,
            exponent => (exponent - 1) << 23,
        };
        (f32::from_bits(bits), 0.0)
    }

    fn pack_scales(block: &Unpacked, lines: &mut [Line], first: usize, lane: usize) {
        lines[0].0[first * 16 + lane] = block.d as u8;
    }

    fn unpack_scales(block: &mut Unpacked, lines: &[Line], first: usize, lane: usize) {
        block.d = u16::from(lines[0].0[first * 16 + lane]);
    }
}

/// 2^(x − 64), for x in 0..=128.
#[inline(always)]
fn power_of_two<S: ScaleLanes>(s: S, x: S::I) -> S::F {
    s.of_bits(s.shl::<23>(s.add_i(x, s.splat_i(127 - 64))))
}
