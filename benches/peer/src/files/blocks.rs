//! Random numbers in ggml's block formats, written directly. Codes are uniform, scales give the required standard
//! deviation, and the mean is zero (by scales of random sign, or by the block's minimum), so that activations stay
//! bounded.

use half::f16;
use refrain::internals::kernels::BlockType;

use crate::random::Random;

/// Appends `n_values` values with a standard deviation of about `std` as blocks of `ty`.
///
/// # Panics
/// If the values are not a whole number of blocks, or if the mixes do not use `ty`.
pub fn push_random(ty: BlockType, n_values: u64, std: f32, random: &mut Random, out: &mut Vec<u8>) {
    let n_blocks = n_values / ty.block_len() as u64;
    assert_eq!(n_blocks * ty.block_len() as u64, n_values, "whole blocks of {}", ty.name());
    let block_bytes = ty.block_bytes();
    let start = out.len();
    out.resize(start + n_blocks as usize * block_bytes, 0);
    for block in out[start..].chunks_exact_mut(block_bytes) {
        match ty {
            BlockType::Q8_0 => q8_0(block, std, random),
            BlockType::Q4_0 => q4_0(block, std, random),
            BlockType::Q5_0 => q5_0(block, std, random),
            BlockType::Q4K => q4_k(block, std, random),
            BlockType::Q6K => q6_k(block, std, random),
            other => panic!("no mix has matrices of {}", other.name()),
        }
    }
}

/// ± `magnitude`, within a factor of 0.75 to 1.25.
fn scale(random: &mut Random, magnitude: f32) -> f16 {
    let near = magnitude * (1.0 + random.next_f32() / 4.0);
    f16::from_f32(if random.next_u64() & 1 == 0 { near } else { -near })
}

/// Root mean square of uniform integers in `low..=high`.
fn rms(low: i32, high: i32) -> f32 {
    let sum: i32 = (low..=high).map(|code| code * code).sum();
    (sum as f32 / (high - low + 1) as f32).sqrt()
}

/// `d f16, codes i8 × 32`
fn q8_0(block: &mut [u8], std: f32, random: &mut Random) {
    random.fill(&mut block[2..]);
    // Quantisers write -127..=127.
    block[2..].iter_mut().filter(|code| **code == 0x80).for_each(|code| *code = 0x81);
    put(block, 0, scale(random, std / rms(-127, 127)));
}

/// `d f16, codes 4 bits × 32`, less 8
fn q4_0(block: &mut [u8], std: f32, random: &mut Random) {
    random.fill(&mut block[2..]);
    put(block, 0, scale(random, std / rms(-8, 7)));
}

/// `d f16, fifth bits, codes 4 bits × 32`, less 16
fn q5_0(block: &mut [u8], std: f32, random: &mut Random) {
    random.fill(&mut block[2..]);
    put(block, 0, scale(random, std / rms(-16, 15)));
}

/// `d f16, dmin f16, 8 × (scale, min) of 6 bits, codes 4 bits × 256`: a value is `d·scale·code - dmin·min`.
fn q4_k(block: &mut [u8], std: f32, random: &mut Random) {
    random.fill(&mut block[16..]);
    let draw = random.next_u64();
    let scales: [u8; 8] = std::array::from_fn(|j| 8 + ((draw >> (3 * j)) & 7) as u8);
    // With min = scale and dmin = 7.5 d the values are symmetric around 0. No code uses the fifth and sixth bit, so
    // the packing of the last four (their upper bits go to the first four bytes) leaves zeros there.
    let d = std / (rms(8, 15) * (rms(-8, 7).powi(2) - 0.25).sqrt());
    put(block, 0, f16::from_f32(d));
    put(block, 2, f16::from_f32(7.5 * d));
    for j in 0..4 {
        block[4 + j] = scales[j];
        block[8 + j] = scales[j];
        block[12 + j] = scales[4 + j] | scales[4 + j] << 4;
    }
}

/// `codes' lower 4 bits × 256, upper 2 bits × 256, scales i8 × 16, d f16`, codes less 32
fn q6_k(block: &mut [u8], std: f32, random: &mut Random) {
    let (codes, rest) = block.split_at_mut(192);
    random.fill(codes);
    let draw = random.next_u64();
    for (j, scale) in rest[..16].iter_mut().enumerate() {
        let bits = draw >> (3 * j);
        let magnitude = 4 + (bits & 3) as i8;
        *scale = if bits & 4 == 0 { magnitude } else { -magnitude } as u8;
    }
    put(block, 208, f16::from_f32(std / (rms(4, 7) * rms(-32, 31))));
}

fn put(block: &mut [u8], at: usize, value: f16) {
    block[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain::internals::kernels::dequantize;

    #[test]
    fn values_have_the_spread_asked_for_and_no_mean() {
        const N: usize = 256 * 4096;
        for ty in [BlockType::Q8_0, BlockType::Q4_0, BlockType::Q5_0, BlockType::Q4K, BlockType::Q6K] {
            for std in [0.01, 0.07] {
                let (mut bytes, mut values) = (Vec::new(), vec![0.0; N]);
                push_random(ty, N as u64, std, &mut Random::new(1), &mut bytes);
                dequantize(ty, &bytes, &mut values);
                let mean = values.iter().sum::<f32>() / N as f32;
                let spread = (values.iter().map(|v| v * v).sum::<f32>() / N as f32).sqrt();
                assert!(mean.abs() < 0.01 * std, "{}: mean {mean}", ty.name());
                assert!((spread / std - 1.0).abs() < 0.05, "{}: {spread} for {std}", ty.name());
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_bytes_again() {
        let bytes = |seed| {
            let mut out = Vec::new();
            push_random(BlockType::Q6K, 1024, 0.1, &mut Random::new(seed), &mut out);
            out
        };
        assert_eq!(bytes(7), bytes(7));
        assert_ne!(bytes(7), bytes(8));
    }
}
