//! Converts between numbers and the element types of files, with the rounding of ggml's reference code.

use half::{bf16, f16};

use super::block::{BlockType, Unpacked};

/// Converts `src`, elements of type `ty`, to numbers. Exact: the result equals that of ggml's reference code.
///
/// # Panics
/// If `src` is not a whole number of blocks, or `out` does not have as many elements.
pub fn dequantize(ty: BlockType, src: &[u8], out: &mut [f32]) {
    let bytes = ty.row_bytes(out.len() as u64).expect("out is a whole number of blocks");
    assert_eq!(src.len() as u64, bytes, "{} elements of {ty} are {bytes} bytes", out.len());
    match ty {
        BlockType::F32 => {
            for (value, bytes) in out.iter_mut().zip(src.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        BlockType::F16 => {
            for (value, bytes) in out.iter_mut().zip(src.as_chunks().0) {
                *value = f16::from_le_bytes(*bytes).to_f32();
            }
        }
        BlockType::BF16 => {
            for (value, bytes) in out.iter_mut().zip(src.as_chunks().0) {
                *value = bf16::from_le_bytes(*bytes).to_f32();
            }
        }
        _ => {
            let mut unpacked = Unpacked::new(ty);
            for (out, block) in out.chunks_mut(ty.block_len()).zip(src.chunks(ty.block_bytes())) {
                unpacked.read(block);
                unpacked.dequantize(out);
            }
        }
    }
}

/// Appends `src` as elements of type `ty` (Q8_0, Q4_0, F16, BF16 or F32), rounded as ggml's reference code does.
///
/// # Panics
/// If `src` is not a whole number of blocks, or Refrain only reads `ty`.
pub fn quantize(ty: BlockType, src: &[f32], out: &mut Vec<u8>) {
    assert!(src.len().is_multiple_of(ty.block_len()), "{} elements are not whole blocks of {ty}", src.len());
    match ty {
        BlockType::F32 => out.extend(src.iter().flat_map(|x| x.to_le_bytes())),
        BlockType::F16 => out.extend(src.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes())),
        BlockType::BF16 => out.extend(src.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes())),
        BlockType::Q8_0 => src.as_chunks().0.iter().for_each(|block| quantize_q8_0(block, out)),
        BlockType::Q4_0 => src.as_chunks().0.iter().for_each(|block| quantize_q4_0(block, out)),
        _ => panic!("{ty} is read, never written"),
    }
}

/// `quantize_row_q8_0_ref`: the largest magnitude becomes 127; halves round away from zero.
fn quantize_q8_0(block: &[f32; 32], out: &mut Vec<u8>) {
    let amax = block.iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
    let d = amax / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    out.extend(f16::from_f32(d).to_le_bytes());
    out.extend(block.iter().map(|&x| (x * inverse).round() as i8 as u8));
}

fn quantize_q4_0(block: &[f32; 32], out: &mut Vec<u8>) {
    let (scale, codes) = q4_0_codes(block);
    out.extend(f16::from_f32(scale).to_le_bytes());
    out.extend((0..16).map(|i| codes[i] | codes[i + 16] << 4));
}

/// Scale and codes as of `quantize_row_q4_0_ref`: the element of largest magnitude becomes −8, whatever its sign.
pub(super) fn q4_0_codes(block: &[f32; 32]) -> (f32, [u8; 32]) {
    let mut extreme = 0.0f32;
    for &x in block {
        if extreme.abs() < x.abs() {
            extreme = x;
        }
    }
    let d = extreme / -8.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    (d, block.map(|x| ((x * inverse + 8.5) as i32).clamp(0, 15) as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q8_0_and_q4_0_keep_their_extremes() {
        let mut src = [0.0f32; 32];
        src[3] = -2.0;
        src[20] = 1.0;
        for (ty, tolerance) in [(BlockType::Q8_0, 2.0 / 127.0), (BlockType::Q4_0, 0.25)] {
            let mut bytes = Vec::new();
            quantize(ty, &src, &mut bytes);
            let mut back = [0.0f32; 32];
            dequantize(ty, &bytes, &mut back);
            for (x, y) in src.iter().zip(&back) {
                assert!((x - y).abs() <= tolerance, "{ty}: {x} came back as {y}");
            }
        }
    }

    #[test]
    fn zeros_and_non_finite_weights_do_not_panic() {
        for src in [[0.0f32; 32], [f32::NAN; 32], [f32::INFINITY; 32], [f32::MAX; 32], [1e-44; 32]] {
            for ty in [BlockType::Q8_0, BlockType::Q4_0, BlockType::F16, BlockType::BF16, BlockType::F32] {
                let mut bytes = Vec::new();
                quantize(ty, &src, &mut bytes);
                dequantize(ty, &bytes, &mut [0.0; 32]);
            }
        }
    }
}
