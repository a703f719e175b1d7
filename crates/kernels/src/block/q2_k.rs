//! Q2_K: 16 scales and minima of 4 bits, 256 codes of 2 bits, f16 `d` and `dmin`. Value: `d · scale · code − dmin · min`.

use super::super::aligned::Line;
use super::super::layout::{IntLayout, ScaleLanes, Scales};
use super::super::unpacked::{Unpacked, f16_of, u16_at};
use super::{BlockFormat, Format};

pub(in super::super) struct Q2K;

impl Format for Q2K {
    const NAME: &'static str = "Q2_K";
    const GGML_ID: u32 = 10;
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 84;
}

impl BlockFormat for Q2K {
    type Layout = Panels;

    fn read(block: &[u8], out: &mut Unpacked) {
        (out.d, out.m) = (u16_at(block, 80), u16_at(block, 82));
        // A scale and its minimum stay in one byte.
        out.sub_scales.copy_from_slice(&block[..16]);
        out.read_two_bits(&block[16..80]);
    }
}

/// f16 `d` and `dmin` of 8 blocks, and for each 16 columns a byte: the scale in its low nibble, the minimum in the high
/// one.
pub(in super::super) struct Panels;

impl IntLayout for Panels {
    const BITS: usize = 2;
    const BIAS: i32 = 0;
    const UNIT_BLOCKS: usize = 8;
    const SUB_SCALES: usize = 16;
    const SPLIT: bool = true;
    const MIN: bool = true;

    #[inline(always)]
    fn scales<S: ScaleLanes>(
        s: S,
        lines: &[Line],
        [d, dmin]: [S::F; 2],
        block: usize,
        half: usize,
    ) -> Scales<S> {
        let both = s.load_bytes(&lines[1 + block / 2].quarters()[block % 2 * 2 + half]);
        let min = s.sar::<4>(both);
        let scale = s.sub_i(both, s.shl::<4>(min));
        let min = s.mul(dmin, s.to_f(min));
        // The file's minimum is subtracted; negation is exact.
        Scales { scale: s.mul(d, s.to_f(scale)), min: s.neg(min) }
    }

    fn scale_and_min(block: &Unpacked, sixteenth: usize) -> (f32, f32) {
        let both = block.sub_scales[sixteenth];
        (f16_of(block.d) * f32::from(both & 0xF), -(f16_of(block.m) * f32::from(both >> 4)))
    }
}
