//! Plain floats, little-endian. Their panels hold the numbers as they are (`layout.rs`).

use super::Format;

pub(in super::super) struct F32;
pub(in super::super) struct F16;
pub(in super::super) struct BF16;

impl Format for F32 {
    const NAME: &'static str = "F32";
    const GGML_ID: u32 = 0;
    const BLOCK_LEN: usize = 1;
    const BLOCK_BYTES: usize = 4;
}

impl Format for F16 {
    const NAME: &'static str = "F16";
    const GGML_ID: u32 = 1;
    const BLOCK_LEN: usize = 1;
    const BLOCK_BYTES: usize = 2;
}

impl Format for BF16 {
    const NAME: &'static str = "BF16";
    const GGML_ID: u32 = 30;
    const BLOCK_LEN: usize = 1;
    const BLOCK_BYTES: usize = 2;
}
