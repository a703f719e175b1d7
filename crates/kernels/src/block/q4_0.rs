//! Q4_0: f16 scale, 32 codes of 4 bits. Value: `scale · (code − 8)`.

use super::super::layout::Scaled;
use super::super::unpacked::{Unpacked, u16_at};
use super::{BlockFormat, Format};

pub(in super::super) struct Q4_0;

impl Format for Q4_0 {
    const NAME: &'static str = "Q4_0";
    const GGML_ID: u32 = 2;
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 18;
}

impl BlockFormat for Q4_0 {
    type Layout = Scaled<4>;

    fn read(block: &[u8], out: &mut Unpacked) {
        out.d = u16_at(block, 0);
        out.read_nibbles(&block[2..]);
    }
}
