//! Element types of weight matrices as files store them: the ggml block formats and plain floats.

/// Element type of a matrix as stored in a file; rows are stored one after another.
///
/// A *block* is the smallest unit of storage: `block_len` elements of one row in `block_bytes` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(non_camel_case_types)]
#[non_exhaustive]
pub enum BlockType {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// bfloat16.
    BF16,
    /// 32 signed bytes and one f16 scale.
    Q8_0,
    /// 32 4-bit values and one f16 scale.
    Q4_0,
    /// 32 4-bit values, f16 scale and minimum.
    Q4_1,
    /// 32 5-bit values and one f16 scale.
    Q5_0,
    /// 32 5-bit values, f16 scale and minimum.
    Q5_1,
    /// 256 4-bit values in 8 sub-blocks with 6-bit scales and minima.
    Q4K,
    /// 256 5-bit values in 8 sub-blocks with 6-bit scales and minima.
    Q5K,
    /// 256 6-bit values in 16 sub-blocks with 8-bit scales.
    Q6K,
}

impl BlockType {
    /// Elements in one block.
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bytes of a row of `n_cols` elements; `None` where `n_cols` is not a multiple of the block or the size overflows.
    pub fn row_bytes(self, n_cols: u64) -> Option<u64> {
        let block_len = self.block_len() as u64;
        if !n_cols.is_multiple_of(block_len) {
            return None;
        }
        (n_cols / block_len).checked_mul(self.block_bytes() as u64)
    }

    /// The name that model files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }
}
