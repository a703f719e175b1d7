//! Converts between numbers and the element types of files, with the rounding of ggml's reference code.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::Kernels;
use super::block::BlockType;
use super::simd::{Simd, Work};
use super::unpacked::Unpacked;

/// Converts `src`, elements of type `ty`, to numbers. Exact: the result equals that of ggml's reference code.
///
/// # Panics
/// If `src` is not a whole number of blocks, or `out` does not have as many elements.
pub fn dequantize(ty: BlockType, src: &[u8], out: &mut [f32]) {
    dequantize_row(ty, src, out);
}

#[inline(always)]
fn dequantize_row(ty: BlockType, src: &[u8], out: &mut [f32]) {
    let bytes = ty.row_bytes(out.len() as u64).expect("out is a whole number of blocks");
    assert_eq!(src.len() as u64, bytes, "{} elements of {ty} are {bytes} bytes", out.len());
    match ty {
        BlockType::F32 => {
            for (value, bytes) in out.iter_mut().zip(src.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        BlockType::F16 => {
            // The crate looks for the CPU's instruction once per call.
            let mut halves = [f16::ZERO; 64];
            for (out, bytes) in out.chunks_mut(64).zip(src.chunks(128)) {
                for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks().0) {
                    *half = f16::from_le_bytes(*bytes);
                }
                halves[..out.len()].convert_to_f32_slice(out);
            }
        }
        BlockType::BF16 => {
            for (value, bytes) in out.iter_mut().zip(src.as_chunks().0) {
                *value = bf16::from_le_bytes(*bytes).to_f32();
            }
        }
        _ => {
            let mut unpacked = Unpacked::new();
            for (out, block) in out.chunks_mut(ty.block_len()).zip(src.chunks(ty.block_bytes())) {
                ty.read(block, &mut unpacked);
                ty.dequantize(&unpacked, out);
            }
        }
    }
}

/// Appends `src` as elements of type `ty` (Q8_0, Q4_0, F16, BF16 or F32), rounded as ggml's reference code does.
///
/// # Panics
/// If `src` is not a whole number of blocks, or Refrain only reads `ty`.
pub fn quantize(ty: BlockType, src: &[f32], out: &mut Vec<u8>) {
    quantize_row(ty, src, out);
}

#[inline(always)]
fn quantize_row(ty: BlockType, src: &[f32], out: &mut Vec<u8>) {
    assert!(src.len().is_multiple_of(ty.block_len()), "{} elements are not whole blocks of {ty}", src.len());
    match ty {
        BlockType::F32 => out.extend(src.iter().flat_map(|x| x.to_le_bytes())),
        BlockType::F16 => out.extend(src.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes())),
        BlockType::BF16 => out.extend(src.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes())),
        BlockType::Q8_0 => {
            for block in src.as_chunks().0 {
                quantize_q8_0(block, out);
            }
        }
        BlockType::Q4_0 => {
            for block in src.as_chunks().0 {
                quantize_q4_0(block, out);
            }
        }
        _ => panic!("{ty} is read, never written"),
    }
}

/// Converts the elements `src` of type `from` to type `to` and appends them to `out`, by way of numbers in `values`, which
/// has as many elements. The bits are those of [`dequantize`] and [`quantize`]; here the compiler uses the vectors of the
/// instruction set.
///
/// # Panics
/// As [`dequantize`] and [`quantize`].
pub fn convert(
    k: Kernels,
    from: BlockType,
    src: &[u8],
    values: &mut [f32],
    to: BlockType,
    out: &mut Vec<u8>,
) {
    k.run(Convert { from, src, values, to, out });
}

struct Convert<'a> {
    from: BlockType,
    src: &'a [u8],
    values: &'a mut [f32],
    to: BlockType,
    out: &'a mut Vec<u8>,
}

impl Work for Convert<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _s: S) {
        dequantize_row(self.from, self.src, self.values);
        quantize_row(self.to, self.values, self.out);
    }
}

/// `quantize_row_q8_0_ref`: the largest magnitude becomes 127; halves round away from zero.
#[inline(always)]
fn quantize_q8_0(block: &[f32; 32], out: &mut Vec<u8>) {
    let d = largest_magnitude(block) / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut bytes = [0; 34];
    let (scale, codes) = bytes.split_at_mut(2);
    scale.copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (code, &x) in codes.iter_mut().zip(block) {
        *code = round_to_i8(x * inverse) as u8;
    }
    out.extend_from_slice(&bytes);
}

/// `quantize_row_q4_0_ref`.
#[inline(always)]
fn quantize_q4_0(block: &[f32; 32], out: &mut Vec<u8>) {
    let (d, codes) = q4_0_codes(block);
    let mut bytes = [0; 18];
    let (scale, nibbles) = bytes.split_at_mut(2);
    scale.copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (i, byte) in nibbles.iter_mut().enumerate() {
        *byte = codes[i] | codes[i + 16] << 4;
    }
    out.extend_from_slice(&bytes);
}

/// Scale and codes as of `quantize_row_q4_0_ref`: the element of largest magnitude becomes −8, whatever its sign.
#[inline(always)]
pub(super) fn q4_0_codes(block: &[f32; 32]) -> (f32, [u8; 32]) {
    let amax = largest_magnitude(block);
    // The first of several. Zeros of either sign count as positive.
    let extreme = block.iter().find(|x| x.abs() == amax && amax > 0.0).copied().unwrap_or(0.0);
    let d = extreme / -8.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    (d, block.map(|x| ((x * inverse + 8.5) as i32).clamp(0, 15) as u8))
}

/// The largest magnitude that is a number; 0 if there is none. Eight lanes, so that the compiler uses vectors: the
/// maximum does not depend on the order. Magnitudes are compared by their bits, whose order is that of the numbers: the
/// compiler makes a comparison of floats an instruction that is NaN for signalling NaNs where the CPU has only that (NEON).
#[inline(always)]
fn largest_magnitude(block: &[f32; 32]) -> f32 {
    const INFINITY: i32 = f32::INFINITY.to_bits() as i32;
    let mut lanes = [0; 8];
    for chunk in block.as_chunks::<8>().0 {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            let magnitude = x.abs().to_bits() as i32;
            *lane = (if magnitude > INFINITY { 0 } else { magnitude }).max(*lane);
        }
    }
    f32::from_bits(lanes.into_iter().fold(0, i32::max) as u32)
}

/// As `x.round() as i8`: halves round away from zero, NaN becomes 0. `f32::round` is a call for each number where the
/// CPU's baseline has no instruction for it. The number below one half leaves numbers just below a half below it.
#[inline(always)]
fn round_to_i8(x: f32) -> i8 {
    const BELOW_HALF: f32 = 0.499_999_97;
    ((x + BELOW_HALF.copysign(x)) as i32).clamp(-128, 127) as i8
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
    fn codes_are_rounded_as_by_the_library() {
        let around =
            |x: f32| [x.next_down().next_down(), x.next_down(), x, x.next_up(), x.next_up().next_up()];
        let halves = (-260..=260).flat_map(|i| around(i as f32 / 2.0));
        // Bits in steps of a prime: every exponent, either sign, NaN and infinities.
        let spread = (0..=u32::MAX).step_by(65_521).map(f32::from_bits);
        for x in halves.chain(spread).chain([0.0, -0.0, f32::MIN_POSITIVE, f32::NAN, f32::INFINITY]) {
            assert_eq!(round_to_i8(x), x.round() as i8, "{x:?}");
        }
    }

    proptest::proptest! {
        /// The reference code, word by word: the first element of the largest magnitude decides.
        #[test]
        fn blocks_are_quantised_as_by_the_reference(
            bits in proptest::array::uniform32(0u32..=u32::MAX),
            special in proptest::array::uniform32(0usize..40),
            small: bool,
        ) {
            // NaN, quiet and signalling, and infinities; few values otherwise, so that magnitudes are equal.
            let specials = [0x7FC0_0000, 0xFF80_0001, 0x7F80_0001, 0x7FBF_FFFF, 0x7F80_0000, 0xFF80_0000].map(f32::from_bits);
            let block: [f32; 32] = std::array::from_fn(|i| match (specials.get(special[i]), small) {
                (Some(&x), _) => x,
                (None, true) => [-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 0.5][bits[i] as usize % if bits[i] % 3 == 0 { 7 } else { 4 }],
                (None, false) => f32::from_bits(bits[i]),
            });
            let mut extreme = 0.0f32;
            for &x in &block {
                if extreme.abs() < x.abs() {
                    extreme = x;
                }
            }
            let inverse = |d: f32| if d == 0.0 { 0.0 } else { 1.0 / d };
            let d = extreme / -8.0;
            let code = |x: f32| ((x * inverse(d) + 8.5) as i32).clamp(0, 15) as u8;
            let mut expected = f16::from_f32(d).to_le_bytes().to_vec();
            expected.extend((0..16).map(|i| code(block[i]) | code(block[i + 16]) << 4));
            let mut found = Vec::new();
            quantize(BlockType::Q4_0, &block, &mut found);
            proptest::prop_assert_eq!(&found, &expected);

            let d = extreme.abs() / 127.0;
            let mut expected = f16::from_f32(d).to_le_bytes().to_vec();
            expected.extend(block.iter().map(|&x| (x * inverse(d)).round() as i8 as u8));
            found.clear();
            quantize(BlockType::Q8_0, &block, &mut found);
            proptest::prop_assert_eq!(&found, &expected);

            for ty in [BlockType::Q8_0, BlockType::Q4_0] {
                for from in [BlockType::F32, BlockType::F16, BlockType::BF16] {
                    let mut src = Vec::new();
                    quantize(from, &block, &mut src);
                    let mut values = [0.0; 32];
                    dequantize(from, &src, &mut values);
                    let mut expected = Vec::new();
                    quantize(ty, &values, &mut expected);
                    for k in Kernels::available() {
                        let mut found = Vec::new();
                        convert(k, from, &src, &mut values, ty, &mut found);
                        proptest::prop_assert!(found == expected, "{from} to {ty} on {}", k.isa());
                    }
                }
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
