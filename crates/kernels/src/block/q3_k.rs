//! Q3_K: 256 upper bits, 256 codes of 2 bits, 16 scales of 6 bits, f16 `d`. Value: `d · (scale − 32) · (code − 4)`.

use super::super::layout::Super16;
use super::super::unpacked::{Unpacked, u16_at};
use super::{BlockFormat, Format};

pub(in super::super) struct Q3K;

impl Format for Q3K {
    const NAME: &'static str = "Q3_K";
    const GGML_ID: u32 = 11;
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 110;
}

impl BlockFormat for Q3K {
    type Layout = Super16<3>;

    fn read(block: &[u8], out: &mut Unpacked) {
        out.d = u16_at(block, 108);
        out.read_two_bits(&block[32..96]);
        for (col, code) in out.codes.iter_mut().enumerate() {
            *code |= (block[col % 32] >> (col / 32) & 1) << 2;
        }
        // Eight bytes of low nibbles, the first eight scales' in the low halves, then four of upper bits.
        let (low, high) = block[96..108].split_at(8);
        for (i, scale) in out.sub_scales.iter_mut().enumerate() {
            let six_bits = low[i % 8] >> (i / 8 * 4) & 0xF | (high[i % 4] >> (i / 4 * 2) & 3) << 4;
            *scale = six_bits.wrapping_sub(32);
        }
    }
}
