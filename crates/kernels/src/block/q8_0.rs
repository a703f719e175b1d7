//! Q8_0: f16 scale, 32 signed bytes. Value: `scale · byte`.

use super::super::layout::Scaled;
use super::super::unpacked::{Unpacked, u16_at};
use super::{BlockFormat, Format};

pub(in super::super) struct Q8_0;

impl Format for Q8_0 {
    const NAME: &'static str = "Q8_0";
    const GGML_ID: u32 = 8;
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 34;
}

impl BlockFormat for Q8_0 {
    type Layout = Scaled<8>;

    fn read(block: &[u8], out: &mut Unpacked) {
        out.d = u16_at(block, 0);
        for (code, &byte) in out.codes.iter_mut().zip(&block[2..]) {
            *code = byte ^ 0x80;
        }
    }
}
