//! Q4_1: f16 scale, f16 minimum, 32 codes of 4 bits. Value: `scale · code + min`.

use super::super::layout::ScaledMin;
use super::super::unpacked::{Unpacked, u16_at};
use super::{BlockFormat, Format};

pub(in super::super) struct Q4_1;

impl Format for Q4_1 {
    const NAME: &'static str = "Q4_1";
    const GGML_ID: u32 = 3;
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 20;
}

impl BlockFormat for Q4_1 {
    type Layout = ScaledMin<4>;

    fn read(block: &[u8], out: &mut Unpacked) {
        (out.d, out.m) = (u16_at(block, 0), u16_at(block, 2));
        out.read_nibbles(&block[4..]);
    }
}
