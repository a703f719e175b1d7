//! Q4_K: f16 `d` and `dmin`, 8 scales and minima of 6 bits, 256 codes of 4 bits. Value: `d · scale · code − dmin · min`.

use super::super::layout::SuperMin;
use super::super::unpacked::{Unpacked, u16_at};
use super::{BlockFormat, Format};

pub(in super::super) struct Q4K;

impl Format for Q4K {
    const NAME: &'static str = "Q4_K";
    const GGML_ID: u32 = 12;
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 144;
}

impl BlockFormat for Q4K {
    type Layout = SuperMin<4>;

    fn read(block: &[u8], out: &mut Unpacked) {
        (out.d, out.m) = (u16_at(block, 0), u16_at(block, 2));
        out.read_sub_scales(&block[4..16]);
        out.read_sub_nibbles(&block[16..]);
    }
}
