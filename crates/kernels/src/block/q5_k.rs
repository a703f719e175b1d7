//! Q5_K: as Q4_K, with 256 upper bits between scales and codes.

use super::super::layout::SuperMin;
use super::super::unpacked::{Unpacked, u16_at};
use super::{BlockFormat, Format};

pub(in super::super) struct Q5K;

impl Format for Q5K {
    const NAME: &'static str = "Q5_K";
    const GGML_ID: u32 = 13;
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 176;
}

impl BlockFormat for Q5K {
    type Layout = SuperMin<5>;

    fn read(block: &[u8], out: &mut Unpacked) {
        (out.d, out.m) = (u16_at(block, 0), u16_at(block, 2));
        out.read_sub_scales(&block[4..16]);
        out.read_sub_nibbles(&block[48..]);
        for (col, code) in out.codes.iter_mut().enumerate() {
            *code |= (block[16 + col % 32] >> (col / 32) & 1) << 4;
        }
    }
}
