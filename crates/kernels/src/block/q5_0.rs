//! Q5_0: f16 scale, 32 upper bits, 32 codes of 4 bits. Value: `scale · (code − 16)`.

use super::super::layout::Scaled;
use super::super::unpacked::{Unpacked, u16_at};
use super::{BlockFormat, Format};

pub(in super::super) struct Q5_0;

impl Format for Q5_0 {
    const NAME: &'static str = "Q5_0";
    const GGML_ID: u32 = 6;
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 22;
}

impl BlockFormat for Q5_0 {
    type Layout = Scaled<5>;

    fn read(block: &[u8], out: &mut Unpacked) {
        out.d = u16_at(block, 0);
        out.read_nibbles(&block[6..]);
        out.add_fifth_bits(&block[2..6]);
    }
}
