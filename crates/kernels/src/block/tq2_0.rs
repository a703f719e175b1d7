//! TQ2_0: 256 codes of 2 bits, f16 scale. Value: `scale · (code − 1)`; ternary weights use the codes 0 to 2.

use super::super::aligned::Line;
use super::super::layout::{IntLayout, ScaleLanes, Scales};
use super::super::unpacked::{Unpacked, f16_of, u16_at};
use super::{BlockFormat, Format};

pub(in super::super) struct Tq2_0;

impl Format for Tq2_0 {
    const NAME: &'static str = "TQ2_0";
    const GGML_ID: u32 = 35;
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 66;
}

impl BlockFormat for Tq2_0 {
    type Layout = Panels;

    fn read(block: &[u8], out: &mut Unpacked) {
        out.d = u16_at(block, 64);
        out.read_two_bits(&block[..64]);
    }
}

/// An f16 scale of 8 blocks.
pub(in super::super) struct Panels;

impl IntLayout for Panels {
    const BITS: usize = 2;
    const BIAS: i32 = 1;
    const UNIT_BLOCKS: usize = 8;

    #[inline(always)]
    fn scales<S: ScaleLanes>(
        s: S,
        _lines: &[Line],
        [d, _]: [S::F; 2],
        _block: usize,
        _half: usize,
    ) -> Scales<S> {
        Scales { scale: d, min: s.splat(0.0) }
    }

    fn scale_and_min(block: &Unpacked, _sixteenth: usize) -> (f32, f32) {
        (f16_of(block.d), 0.0)
    }
}
