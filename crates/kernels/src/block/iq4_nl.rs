//! IQ4_NL: f16 scale, 32 codes of 4 bits. Value: `scale · TABLE[code]`.

use super::super::aligned::Line;
use super::super::layout::{IntLayout, ScaleLanes, Scaled, Scales};
use super::super::unpacked::{Unpacked, u16_at};
use super::{BlockFormat, Format};

/// The levels of the four-bit codes of IQ4_NL and IQ4_XS, denser around zero.
pub(super) const TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(in super::super) struct Iq4Nl;

impl Format for Iq4Nl {
    const NAME: &'static str = "IQ4_NL";
    const GGML_ID: u32 = 20;
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 18;
}

impl BlockFormat for Iq4Nl {
    type Layout = Panels;

    fn read(block: &[u8], out: &mut Unpacked) {
        out.d = u16_at(block, 0);
        out.read_nibbles(&block[2..]);
    }
}

/// The panels of Q4_0, with other levels.
pub(in super::super) struct Panels;

impl IntLayout for Panels {
    const BITS: usize = 4;
    const BIAS: i32 = 128;
    const TABLE: Option<[i8; 16]> = Some(TABLE);
    const UNIT_BLOCKS: usize = Scaled::<4>::UNIT_BLOCKS;

    #[inline(always)]
    fn scales<S: ScaleLanes>(
        s: S,
        lines: &[Line],
        factors: [S::F; 2],
        block: usize,
        half: usize,
    ) -> Scales<S> {
        Scaled::<4>::scales(s, lines, factors, block, half)
    }

    fn scale_and_min(block: &Unpacked, sixteenth: usize) -> (f32, f32) {
        Scaled::<4>::scale_and_min(block, sixteenth)
    }

    fn pack_scales(block: &Unpacked, lines: &mut [Line], first: usize, lane: usize) {
        Scaled::<4>::pack_scales(block, lines, first, lane);
    }

    fn unpack_scales(block: &mut Unpacked, lines: &[Line], first: usize, lane: usize) {
        Scaled::<4>::unpack_scales(block, lines, first, lane);
    }
}
