//! Random numbers keyed by (seed, position).
//!
//! With a counter, a token's randomness would depend on the number of earlier draws, and so on the shape of the
//! drafts. Here it depends only on the seed and on the token's position in the sequence.

/// The uniform number in `[0, 1)` for the token at `position` under `seed`.
///
/// Two rounds of the SplitMix64 finaliser (Steele, Lea and Flood 2014) over the seed and the position. The top 53
/// bits are the number.
pub fn uniform(seed: u64, position: u64) -> f64 {
    const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;
    let keyed = mix(seed.wrapping_add(GOLDEN_GAMMA)) ^ position.wrapping_mul(GOLDEN_GAMMA);
    (mix(keyed.wrapping_add(GOLDEN_GAMMA)) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::uniform;

    #[test]
    fn numbers_are_uniform_over_positions_and_seeds() {
        for along_seed in [false, true] {
            let n = 20_000u64;
            let mut buckets = [0u32; 16];
            for i in 0..n {
                let u = if along_seed { uniform(i, 7) } else { uniform(7, i) };
                assert!((0.0..1.0).contains(&u));
                buckets[(u * 16.0) as usize] += 1;
            }
            // χ² with 15 degrees of freedom: 37.7 is the 0.1 % point. The numbers are fixed, so the test is
            // deterministic.
            let expected = n as f64 / 16.0;
            let chi2: f64 = buckets.iter().map(|&b| (f64::from(b) - expected).powi(2) / expected).sum();
            assert!(chi2 < 37.7, "{chi2} {buckets:?}");
        }
    }

    #[test]
    fn neighbours_are_uncorrelated() {
        let pairs = (0..10_000u64).map(|i| (uniform(3, i) - 0.5, uniform(3, i + 1) - 0.5));
        let covariance: f64 = pairs.map(|(a, b)| a * b).sum::<f64>() / 10_000.0;
        assert!(covariance.abs() < 0.003, "{covariance}");
        assert_ne!(uniform(1, 2), uniform(2, 1));
    }
}
