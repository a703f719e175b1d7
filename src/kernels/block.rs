//! The element types of matrices in model files: ggml's block formats and plain floats.
//!
//! A block format stores small integer *codes* per block, with factors that convert them to numbers:
//! `value = scale · (code − bias) + min`. `Unpacked` is one block in this form; dequantising and packing both
//! start from it.

use half::f16;

/// The element type of a matrix as a file stores it, row-major.
///
/// The block formats are ggml's (`ggml-common.h`); the K-formats have blocks of 256 elements with 8 or 16 sub-blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum BlockType {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4K,
    Q5K,
    Q6K,
}

impl BlockType {
    /// All types.
    pub const ALL: [BlockType; 11] = [
        BlockType::F32,
        BlockType::F16,
        BlockType::BF16,
        BlockType::Q8_0,
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q4K,
        BlockType::Q5K,
        BlockType::Q6K,
    ];

    /// Elements in one block; 1 for plain floats.
    pub fn block_len(self) -> usize {
        match self {
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => 1,
            BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q5_0 | BlockType::Q5_1 => 32,
            BlockType::Q4K | BlockType::Q5K | BlockType::Q6K => 256,
        }
    }

    /// Bytes of one block in a file.
    pub fn block_bytes(self) -> usize {
        match self {
            BlockType::F32 => 4,
            BlockType::F16 | BlockType::BF16 => 2,
            BlockType::Q8_0 => 34,
            BlockType::Q4_0 => 18,
            BlockType::Q4_1 => 20,
            BlockType::Q5_0 => 22,
            BlockType::Q5_1 => 24,
            BlockType::Q4K => 144,
            BlockType::Q5K => 176,
            BlockType::Q6K => 210,
        }
    }

    /// Bytes of a row of `n_cols` elements; `None` if that is not a whole number of blocks, or overflows.
    pub fn row_bytes(self, n_cols: u64) -> Option<u64> {
        let block_len = self.block_len() as u64;
        if !n_cols.is_multiple_of(block_len) {
            return None;
        }
        (n_cols / block_len).checked_mul(self.block_bytes() as u64)
    }

    /// The name that files and reports use.
    pub fn name(self) -> &'static str {
        match self {
            BlockType::F32 => "F32",
            BlockType::F16 => "F16",
            BlockType::BF16 => "BF16",
            BlockType::Q8_0 => "Q8_0",
            BlockType::Q4_0 => "Q4_0",
            BlockType::Q4_1 => "Q4_1",
            BlockType::Q5_0 => "Q5_0",
            BlockType::Q5_1 => "Q5_1",
            BlockType::Q4K => "Q4_K",
            BlockType::Q5K => "Q5_K",
            BlockType::Q6K => "Q6_K",
        }
    }

    /// Whether the type is a plain float, one element per block.
    pub fn is_float(self) -> bool {
        self.block_len() == 1
    }

    /// The number subtracted from a code. Codes are unsigned, whatever the file's convention.
    pub(super) fn bias(self) -> i32 {
        match self {
            BlockType::Q8_0 => 128,
            BlockType::Q6K => 32,
            BlockType::Q5_0 => 16,
            BlockType::Q4_0 => 8,
            _ => 0,
        }
    }
}

impl std::fmt::Display for BlockType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// One block of an integer format, with its bit fields separated and otherwise unchanged.
pub(super) struct Unpacked {
    pub(super) ty: BlockType,
    /// Unsigned codes in column order; the first `block_len` are used.
    pub(super) codes: [u8; 256],
    /// The block's scale, bits of an f16.
    pub(super) d: u16,
    /// The block's minimum (Q4_1, Q5_1) or the scale of the minima (Q4_K, Q5_K), bits of an f16.
    pub(super) m: u16,
    /// Sub-block scales: 8 unsigned (Q4_K, Q5_K), or 16 as two's complement (Q6_K).
    pub(super) sub_scales: [u8; 16],
    /// Sub-block minima (Q4_K, Q5_K).
    pub(super) sub_mins: [u8; 8],
}

impl Unpacked {
    pub(super) fn new(ty: BlockType) -> Self {
        assert!(!ty.is_float(), "{ty} has no codes");
        Unpacked { ty, codes: [0; 256], d: 0, m: 0, sub_scales: [0; 16], sub_mins: [0; 8] }
    }

    /// Reads one block of `ty.block_bytes()` bytes.
    pub(super) fn read(&mut self, block: &[u8]) {
        assert_eq!(block.len(), self.ty.block_bytes());
        let half = |i: usize| u16::from_le_bytes([block[i], block[i + 1]]);
        match self.ty {
            BlockType::Q8_0 => {
                self.d = half(0);
                for (code, &byte) in self.codes.iter_mut().zip(&block[2..]) {
                    *code = byte ^ 0x80;
                }
            }
            BlockType::Q4_0 => {
                self.d = half(0);
                self.read_nibbles(&block[2..]);
            }
            BlockType::Q4_1 => {
                (self.d, self.m) = (half(0), half(2));
                self.read_nibbles(&block[4..]);
            }
            BlockType::Q5_0 => {
                self.d = half(0);
                self.read_nibbles(&block[6..]);
                self.add_fifth_bits(&block[2..6]);
            }
            BlockType::Q5_1 => {
                (self.d, self.m) = (half(0), half(2));
                self.read_nibbles(&block[8..]);
                self.add_fifth_bits(&block[4..8]);
            }
            BlockType::Q4K => {
                (self.d, self.m) = (half(0), half(2));
                self.read_sub_scales(&block[4..16]);
                self.read_sub_nibbles(&block[16..]);
            }
            BlockType::Q5K => {
                (self.d, self.m) = (half(0), half(2));
                self.read_sub_scales(&block[4..16]);
                self.read_sub_nibbles(&block[48..]);
                for (col, code) in self.codes.iter_mut().enumerate() {
                    *code |= (block[16 + col % 32] >> (col / 32) & 1) << 4;
                }
            }
            BlockType::Q6K => {
                self.d = half(208);
                self.sub_scales.copy_from_slice(&block[192..208]);
                self.read_six_bits(&block[..128], &block[128..192]);
            }
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => unreachable!("checked in `new`"),
        }
    }

    /// The scale and the minimum of columns `16 · sixteenth ..` of the block, computed in f32 as ggml does.
    pub(super) fn scale_and_min(&self, sixteenth: usize) -> (f32, f32) {
        let d = f16::from_bits(self.d).to_f32();
        let m = f16::from_bits(self.m).to_f32();
        match self.ty {
            BlockType::Q4_1 | BlockType::Q5_1 => (d, m),
            BlockType::Q4K | BlockType::Q5K => {
                let sub = sixteenth / 2;
                (d * f32::from(self.sub_scales[sub]), -(m * f32::from(self.sub_mins[sub])))
            }
            BlockType::Q6K => (d * f32::from(self.sub_scales[sixteenth] as i8), 0.0),
            _ => (d, 0.0),
        }
    }

    /// Whether the format adds a minimum.
    pub(super) fn has_min(&self) -> bool {
        matches!(self.ty, BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K)
    }

    /// The block's values, `block_len` of them.
    pub(super) fn dequantize(&self, out: &mut [f32]) {
        let bias = self.ty.bias();
        for (sixteenth, (out, codes)) in out.chunks_mut(16).zip(self.codes.chunks(16)).enumerate() {
            let (scale, min) = self.scale_and_min(sixteenth);
            for (value, &code) in out.iter_mut().zip(codes) {
                *value = scale * (i32::from(code) - bias) as f32;
                if self.has_min() {
                    *value += min;
                }
            }
        }
    }

    /// 16 bytes: low nibbles are columns 0..16, high nibbles 16..32.
    fn read_nibbles(&mut self, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            self.codes[i] = byte & 0xF;
            self.codes[16 + i] = byte >> 4;
        }
    }

    /// Bit `i` of a little-endian u32 is the fifth bit of column `i`.
    fn add_fifth_bits(&mut self, bytes: &[u8]) {
        for i in 0..32 {
            self.codes[i] |= (bytes[i / 8] >> (i % 8) & 1) << 4;
        }
    }

    /// 128 bytes: each run of 32 holds one sub-block of 32 in its low nibbles and the next in its high ones.
    fn read_sub_nibbles(&mut self, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            let col = i / 32 * 64 + i % 32;
            self.codes[col] = byte & 0xF;
            self.codes[col + 32] = byte >> 4;
        }
    }

    /// 8 scales and 8 minima of 6 bits in 12 bytes (`get_scale_min_k4` of ggml).
    fn read_sub_scales(&mut self, s: &[u8]) {
        for i in 0..4 {
            self.sub_scales[i] = s[i] & 63;
            self.sub_mins[i] = s[i + 4] & 63;
            self.sub_scales[i + 4] = s[i + 8] & 0xF | (s[i] >> 6) << 4;
            self.sub_mins[i + 4] = s[i + 8] >> 4 | (s[i + 4] >> 6) << 4;
        }
    }

    /// Q6_K: four low bits in `low`, two high bits in `high`; each half block of 128 columns is four runs of 32.
    fn read_six_bits(&mut self, low: &[u8], high: &[u8]) {
        for (half, (low, high)) in low.chunks(64).zip(high.chunks(32)).enumerate() {
            let codes = &mut self.codes[128 * half..][..128];
            for i in 0..32 {
                codes[i] = low[i] & 0xF | (high[i] & 3) << 4;
                codes[i + 32] = low[i + 32] & 0xF | (high[i] >> 2 & 3) << 4;
                codes[i + 64] = low[i] >> 4 | (high[i] >> 4 & 3) << 4;
                codes[i + 96] = low[i + 32] >> 4 | (high[i] >> 6) << 4;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_bytes_refuses_partial_blocks_and_overflow() {
        assert_eq!(BlockType::Q8_0.row_bytes(64), Some(68));
        assert_eq!(BlockType::Q8_0.row_bytes(33), None);
        assert_eq!(BlockType::Q4K.row_bytes(512), Some(288));
        assert_eq!(BlockType::F32.row_bytes(u64::MAX), None);
        assert_eq!(BlockType::Q6K.row_bytes(0), Some(0));
    }

    #[test]
    fn six_bit_sub_scales() {
        // Eight bytes 0xFF set the first four values to 63 and the high bits of the last four to 48.
        let mut unpacked = Unpacked::new(BlockType::Q4K);
        let mut block = [0u8; 144];
        block[4..12].fill(0xFF);
        block[12..16].fill(0x21);
        unpacked.read(&block);
        assert_eq!(unpacked.sub_scales[..8], [63, 63, 63, 63, 49, 49, 49, 49]);
        assert_eq!(unpacked.sub_mins, [63, 63, 63, 63, 50, 50, 50, 50]);
    }
}
