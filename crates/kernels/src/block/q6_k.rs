//! Q6_K: 256 codes of 4 and of 2 upper bits, 16 signed scales, f16 `d`. Value: `d · scale · (code − 32)`.

use super::super::layout::Super16;
use super::super::unpacked::{Unpacked, u16_at};
use super::{BlockFormat, Format};

pub(in super::super) struct Q6K;

impl Format for Q6K {
    const NAME: &'static str = "Q6_K";
    const GGML_ID: u32 = 14;
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 210;
}

impl BlockFormat for Q6K {
    type Layout = Super16<6>;

    fn read(block: &[u8], out: &mut Unpacked) {
        out.d = u16_at(block, 208);
        out.sub_scales.copy_from_slice(&block[192..208]);
        // Each half block of 128 columns is four runs of 32.
        for (half, (low, high)) in block[..128].chunks(64).zip(block[128..192].chunks(32)).enumerate() {
            let codes = &mut out.codes[128 * half..][..128];
            for i in 0..32 {
                codes[i] = low[i] & 0xF | (high[i] & 3) << 4;
                codes[i + 32] = low[i + 32] & 0xF | (high[i] >> 2 & 3) << 4;
                codes[i + 64] = low[i] >> 4 | (high[i] >> 4 & 3) << 4;
                codes[i + 96] = low[i + 32] >> 4 | (high[i] >> 6) << 4;
            }
        }
    }
}
