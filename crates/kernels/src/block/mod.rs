//! The element types of matrices in model files: ggml's block formats and plain floats.
//!
//! A block format stores small integer *codes* per block, with factors that convert them to numbers:
//! `value = scale · level + min`, where the level of a code is `code − bias`, or the code's entry in a table.
//! [`Unpacked`] is one block in this form; dequantising and packing both start from it.
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

use super::layout::{IntLayout, LayoutInfo};
use super::unpacked::Unpacked;

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

    /// The layout of its panels; `None` for floats.
    pub(super) fn layout(self) -> Option<LayoutInfo> {
        with_format!(self, F => Some(LayoutInfo::of::<<F as BlockFormat>::Layout>()), _ => None)
    }

    /// Lines of one panel of `n_cols` columns; `None` on overflow.
    pub(super) fn panel_lines(self, n_cols: usize) -> Option<usize> {
        match self.layout() {
            Some(layout) => (n_cols / 32).div_ceil(layout.unit_blocks).checked_mul(layout.unit_lines),
            None if self == BlockType::F32 => Some(n_cols),
            None => Some(n_cols.div_ceil(2)),
        }
    }

    /// Separates the bit fields of one block of `block_bytes()` bytes.
    pub(super) fn read(self, block: &[u8], out: &mut Unpacked) {
        assert_eq!(block.len(), self.block_bytes());
        with_format!(self, F => F::read(block, out), _ => panic!("{self} has no codes"));
    }

    /// The values of one block, `block_len()` of them, computed in f32 as ggml does.
    pub(super) fn dequantize(self, block: &Unpacked, out: &mut [f32]) {
        with_format!(
            self,
            F => dequantize_as::<<F as BlockFormat>::Layout>(block, out),
            _ => panic!("{self} has no codes")
        );
    }
}

fn dequantize_as<L: IntLayout>(block: &Unpacked, out: &mut [f32]) {
    for (sixteenth, (out, codes)) in out.chunks_mut(16).zip(block.codes.chunks(16)).enumerate() {
        let (scale, min) = L::scale_and_min(block, sixteenth);
        for (value, &code) in out.iter_mut().zip(codes) {
            *value = scale * L::level(code) as f32;
            if L::MIN {
                *value += min;
            }
        }
    }
}

impl std::fmt::Display for BlockType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
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
        let mut unpacked = Unpacked::new();
        let mut block = [0u8; 144];
        block[4..12].fill(0xFF);
        block[12..16].fill(0x21);
        BlockType::Q4K.read(&block, &mut unpacked);
        assert_eq!(unpacked.sub_scales[..8], [63, 63, 63, 63, 49, 49, 49, 49]);
        assert_eq!(unpacked.sub_mins[..8], [63, 63, 63, 63, 50, 50, 50, 50]);
    }
}
