//! Blocks of MXFP4 whose exponents and codes are two tensors, as Hugging Face folders of gpt-oss store them.
//!
//! There, byte `j` of a block holds the codes of columns `2j` (low bits) and `2j + 1`. In a block of ggml, the exponent comes
//! first, and byte `j` holds the codes of columns `j` (low bits) and `j + 16`.

/// Bytes of a block with its exponent.
pub(super) const BLOCK_BYTES: usize = 17;
/// Bytes of the codes of a block.
pub(super) const CODE_BYTES: usize = 16;

/// Writes blocks of ggml.
///
/// - `codes`: `[n_blocks, 16]`; `exponents`: `[n_blocks]`; `out`: `[n_blocks, 17]`
pub(super) fn join(codes: &[u8], exponents: &[u8], out: &mut [u8]) {
    let blocks = codes.as_chunks::<CODE_BYTES>().0.iter().zip(exponents);
    for ((codes, &exponent), out) in blocks.zip(out.as_chunks_mut::<BLOCK_BYTES>().0) {
        let (first, joined) = out.split_at_mut(1);
        first[0] = exponent;
        for (pair, joined) in joined.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let (low, high) = (codes[pair], codes[pair + CODE_BYTES / 2]);
            *joined = [low & 0xF | high << 4, low >> 4 | high & 0xF0];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{BlockType, dequantize};

    /// The numbers of four bits, by code.
    const VALUES: [f32; 16] =
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

    #[test]
    fn joined_blocks_have_the_numbers_of_their_parts() {
        let codes: Vec<u8> = (0..48u32).map(|i| (i * 37 + i / 7) as u8).collect();
        let exponents = [127, 120, 130];
        let mut blocks = vec![0; 3 * BLOCK_BYTES];
        join(&codes, &exponents, &mut blocks);
        let mut values = vec![0.0; 96];
        dequantize(BlockType::Mxfp4, &blocks, &mut values);
        for (col, value) in values.into_iter().enumerate() {
            let byte = codes[col / 2];
            let code = if col % 2 == 0 { byte & 0xF } else { byte >> 4 };
            let scale = 2f32.powi(i32::from(exponents[col / 32]) - 127);
            assert_eq!(value, VALUES[usize::from(code)] * scale, "column {col}");
        }
    }
}
