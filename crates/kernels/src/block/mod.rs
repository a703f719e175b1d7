//! The element types of matrices in model files: ggml's block formats and plain floats.
//!
//! A block format stores small integer *codes* per block, with factors that convert them to numbers:
//! `value = scale · level + min`, where the level of a code is `code − bias`, or the code's entry in a table.
//! `Unpacked` is one block in this form; dequantising and packing both start from it.
//!
//! Each block format is one file, which states its sizes, reads its blocks and names the layout of its panels. A new
//! format is a new file and its line in `formats!`.

mod floats;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod tq2_0;

use half::f16;

use super::layout::IntLayout;

/// What files and reports say of an element type.
pub(super) trait Format {
    const NAME: &'static str;
    /// The number of the type in GGUF files.
    const GGML_ID: u32;
    /// Elements in one block; 1 for plain floats.
    const BLOCK_LEN: usize;
    /// Bytes of one block in a file.
    const BLOCK_BYTES: usize;
}

/// A format of integer codes.
pub(super) trait BlockFormat: Format {
    /// The layout of its panels.
    type Layout: IntLayout;
    /// Separates the bit fields of a block of `BLOCK_BYTES` bytes.
    fn read(block: &[u8], out: &mut Unpacked);
}

/// `Format` at run time.
struct Info {
    name: &'static str,
    ggml_id: u32,
    block_len: usize,
    block_bytes: usize,
}

impl Info {
    const fn of<F: Format>() -> Self {
        Info { name: F::NAME, ggml_id: F::GGML_ID, block_len: F::BLOCK_LEN, block_bytes: F::BLOCK_BYTES }
    }
}

/// Defines `BlockType`, and `with_format!` to run code that is generic over the format.
macro_rules! formats {
    ($d:tt floats: $($float:ident),*; blocks: $($block:ident in $module:ident),*;) => {
        /// The element type of a matrix as a file stores it, row-major.
        ///
        /// The block formats are ggml's (`ggml-common.h`); those with blocks of 256 elements have 8 or 16 sub-blocks.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs)]
        pub enum BlockType {
            $($float,)*
            $($block,)*
        }

        impl BlockType {
            /// All types.
            pub const ALL: [BlockType; [$(stringify!($float),)* $(stringify!($block)),*].len()] =
                [$(BlockType::$float,)* $(BlockType::$block),*];

            fn info(self) -> Info {
                match self {
                    $(BlockType::$float => Info::of::<floats::$float>(),)*
                    $(BlockType::$block => Info::of::<$module::$block>(),)*
                }
            }
        }

        /// `with_format!(ty, F => a, _ => b)` is `a` with `F` as the block format of `ty`, or `b` if `ty` is a float.
        macro_rules! with_format {
            ($d ty:expr, $d F:ident => $d of_block:expr, _ => $d of_float:expr) => {
                match $d ty {
                    $($crate::BlockType::$block => {
                        type $d F = $crate::block::$block;
                        $d of_block
                    })*
                    $($crate::BlockType::$float)|* => $d of_float,
                }
            };
        }

        $(pub(super) use $module::$block;)*
        pub(super) use with_format;
    };
}

formats! { $
    floats: F32, F16, BF16;
    blocks:
        Q8_0 in q8_0,
        Q4_0 in q4_0,
        Q4_1 in q4_1,
        Q5_0 in q5_0,
        Q5_1 in q5_1,
        Q4K in q4_k,
        Q5K in q5_k,
        Q6K in q6_k,
        Q2K in q2_k,
        Q3K in q3_k,
        Iq4Nl in iq4_nl,
        Iq4Xs in iq4_xs,
        Mxfp4 in mxfp4,
        Tq2_0 in tq2_0;
}

impl BlockType {
    /// Elements in one block; 1 for plain floats.
    pub fn block_len(self) -> usize {
        self.info().block_len
    }

    /// Bytes of one block in a file.
    pub fn block_bytes(self) -> usize {
        self.info().block_bytes
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
        self.info().name
    }

    /// The number of the type in GGUF files.
    pub fn ggml_id(self) -> u32 {
        self.info().ggml_id
    }

    /// Whether the type is a plain float, one element per block.
    pub fn is_float(self) -> bool {
        self.block_len() == 1
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
    /// The block's scale: bits of an f16, or the exponent of an E8M0.
    pub(super) d: u16,
    /// The block's minimum, or the scale of its minima: bits of an f16.
    pub(super) m: u16,
    /// Scales of sub-blocks, signed ones as two's complement.
    pub(super) sub_scales: [u8; 16],
    /// Minima of sub-blocks.
    pub(super) sub_mins: [u8; 16],
}

impl Unpacked {
    pub(super) fn new(ty: BlockType) -> Self {
        assert!(!ty.is_float(), "{ty} has no codes");
        Unpacked { ty, codes: [0; 256], d: 0, m: 0, sub_scales: [0; 16], sub_mins: [0; 16] }
    }

    /// Reads one block of `ty.block_bytes()` bytes.
    pub(super) fn read(&mut self, block: &[u8]) {
        assert_eq!(block.len(), self.ty.block_bytes());
        with_format!(self.ty, F => F::read(block, self), _ => unreachable!("checked in `new`"));
    }

    /// The block's values, `block_len` of them, computed in f32 as ggml does.
    pub(super) fn dequantize(&self, out: &mut [f32]) {
        with_format!(
            self.ty,
            F => self.dequantize_as::<<F as BlockFormat>::Layout>(out),
            _ => unreachable!("checked in `new`")
        );
    }

    fn dequantize_as<L: IntLayout>(&self, out: &mut [f32]) {
        for (sixteenth, (out, codes)) in out.chunks_mut(16).zip(self.codes.chunks(16)).enumerate() {
            let (scale, min) = L::scale_and_min(self, sixteenth);
            for (value, &code) in out.iter_mut().zip(codes) {
                *value = scale * L::level(code) as f32;
                if L::MIN {
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

    /// 64 bytes: each run of 32 holds four runs of 32 columns, two bits each, the first in the low bits.
    fn read_two_bits(&mut self, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            for run in 0..4 {
                self.codes[i / 32 * 128 + run * 32 + i % 32] = byte >> (2 * run) & 3;
            }
        }
    }
}

/// The number of an f16's bits.
pub(super) fn f16_of(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

/// The little-endian 16-bit number at byte `at`.
fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
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
        assert_eq!(unpacked.sub_mins[..8], [63, 63, 63, 63, 50, 50, 50, 50]);
    }
}
