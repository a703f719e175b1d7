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
            BlockType::Q2K => q2_k(block, std, random),
            BlockType::Q3K => q3_k(block, std, random),
            BlockType::Iq4Nl => iq4_nl(block, std, random),
            BlockType::Iq4Xs => iq4_xs(block, std, random),
            BlockType::Mxfp4 => mxfp4(block, std, random),
            BlockType::Tq2_0 => tq2_0(block, std, random),
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

/// `16 × (scale, min) of 4 bits, codes 2 bits × 256, d f16, dmin f16`: a value is `d·scale·code - dmin·min`.
fn q2_k(block: &mut [u8], std: f32, random: &mut Random) {
    random.fill(&mut block[16..80]);
    let draw = random.next_u64();
    for (j, both) in block[..16].iter_mut().enumerate() {
        *both = (8 + ((draw >> (3 * j)) & 7) as u8) * 0x11;
    }
    // With min = scale and dmin = 1.5 d the values are symmetric around 0.
    let d = std / (rms(8, 15) * 1.25f32.sqrt());
    put(block, 80, f16::from_f32(d));
    put(block, 82, f16::from_f32(1.5 * d));
}

/// `upper bits × 256, codes' lower 2 bits × 256, 16 scales of 6 bits less 32, d f16`, codes less 4
fn q3_k(block: &mut [u8], std: f32, random: &mut Random) {
    random.fill(&mut block[..96]);
    block[96..108].fill(0);
    for (j, scale) in signed_scales(random).into_iter().enumerate() {
        block[96 + j % 8] |= (scale & 0xF) << (j / 8 * 4);
        block[104 + j % 4] |= (scale >> 4) << (j / 4 * 2);
    }
    put(block, 108, f16::from_f32(std / (rms(4, 7) * rms(-4, 3))));
}

/// ± 4 to 7, plus 32.
fn signed_scales(random: &mut Random) -> [u8; 16] {
    let draw = random.next_u64();
    std::array::from_fn(|j| {
        let magnitude = 4 + ((draw >> (3 * j)) & 3) as u8;
        if draw >> (3 * j) & 4 == 0 { 32 + magnitude } else { 32 - magnitude }
    })
}

/// Root mean square of the table of IQ4_NL and IQ4_XS.
const IQ4_RMS: f32 = 67.44;

/// `d f16, codes 4 bits × 32` into a table
fn iq4_nl(block: &mut [u8], std: f32, random: &mut Random) {
    random.fill(&mut block[2..]);
    put(block, 0, scale(random, std / IQ4_RMS));
}

/// `d f16, upper 2 bits of 8 scales less 32, their lower 4 bits, codes 4 bits × 256` into the same table
fn iq4_xs(block: &mut [u8], std: f32, random: &mut Random) {
    random.fill(&mut block[8..]);
    block[2..8].fill(0);
    for (j, scale) in signed_scales(random)[..8].iter().enumerate() {
        block[4 + j / 2] |= (scale & 0xF) << (j % 2 * 4);
        block[2 + j / 4] |= (scale >> 4) << (j % 4 * 2);
    }
    put(block, 0, f16::from_f32(std / (rms(4, 7) * IQ4_RMS)));
}

/// `exponent of a power of two, codes 4 bits × 32` for 0, 1, 2, 3, 4, 6, 8, 12 and their negatives, times half the power
fn mxfp4(block: &mut [u8], std: f32, random: &mut Random) {
    random.fill(&mut block[1..]);
    // Two powers of two, mixed to the required variance.
    let power = std / 34.25f32.sqrt();
    let exponent = power.log2().floor();
    let above = (power / exponent.exp2()).powi(2);
    let is_greater = (random.next_f32() + 1.0) / 2.0 < (above - 1.0) / 3.0;
    block[0] = (exponent as i32 + 128) as u8 + u8::from(is_greater);
}

/// `codes 2 bits × 256, d f16`, codes 0 to 2 less 1
fn tq2_0(block: &mut [u8], std: f32, random: &mut Random) {
    for byte in &mut block[..64] {
        let draw = random.next_u64();
        *byte = (0..4).map(|i| ((draw >> (16 * i)) as u16 % 3) as u8 * (1 << (2 * i))).sum();
    }
    put(block, 64, scale(random, std / (2.0f32 / 3.0).sqrt()));
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
        use BlockType::*;
        for ty in [Q8_0, Q4_0, Q5_0, Q4K, Q6K, Q2K, Q3K, Iq4Nl, Iq4Xs, Mxfp4, Tq2_0] {
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
