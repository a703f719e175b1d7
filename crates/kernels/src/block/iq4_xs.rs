//! IQ4_XS: f16 `d`, 8 scales of 6 bits, 256 codes of 4 bits. Value: `d · (scale − 32) · TABLE[code]`, with the table of
//! IQ4_NL.

use super::super::aligned::Line;
use super::super::layout::{IntLayout, ScaleLanes, Scales};
use super::super::unpacked::{Unpacked, f16_of, u16_at};
use super::iq4_nl::TABLE;
use super::{BlockFormat, Format};

pub(in super::super) struct Iq4Xs;

impl Format for Iq4Xs {
    const NAME: &'static str = "IQ4_XS";
    const GGML_ID: u32 = 23;
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 136;
}

impl BlockFormat for Iq4Xs {
    type Layout = Panels;

    fn read(block: &[u8], out: &mut Unpacked) {
        out.d = u16_at(block, 0);
        let high = u16_at(block, 2);
        for (i, scale) in out.sub_scales[..8].iter_mut().enumerate() {
            let low = block[4 + i / 2] >> (i % 2 * 4) & 0xF;
            let six_bits = low | ((high >> (2 * i) & 3) as u8) << 4;
            *scale = six_bits.wrapping_sub(32);
        }
        for (codes, bytes) in out.codes.chunks_mut(32).zip(block[8..].chunks(16)) {
            for (i, &byte) in bytes.iter().enumerate() {
                (codes[i], codes[16 + i]) = (byte & 0xF, byte >> 4);
            }
        }
    }
}

/// An f16 factor of 8 blocks, and a signed integer scale for each block.
pub(in super::super) struct Panels;

impl IntLayout for Panels {
    const BITS: usize = 4;
    const BIAS: i32 = 128;
    const TABLE: Option<[i8; 16]> = Some(TABLE);
    const UNIT_BLOCKS: usize = 8;
    const SUB_SCALES: usize = 8;

    #[inline(always)]
    fn scales<S: ScaleLanes>(
        s: S,
        lines: &[Line],
        [d, _]: [S::F; 2],
        block: usize,
        _half: usize,
    ) -> Scales<S> {
        let scale = s.load_i8(&lines[1 + block / 4].quarters()[block % 4]);
        Scales { scale: s.mul(d, scale), min: s.splat(0.0) }
    }

    fn scale_and_min(block: &Unpacked, sixteenth: usize) -> (f32, f32) {
        (f16_of(block.d) * f32::from(block.sub_scales[sixteenth / 2] as i8), 0.0)
    }
}
