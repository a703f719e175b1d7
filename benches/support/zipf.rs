//! Tokens drawn by Zipf's law, as in texts.

use refrain::TokenId;

/// The same `n` tokens at every call.
pub(crate) fn tokens(n: usize, vocab_size: usize) -> Vec<TokenId> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..n).map(|_| TokenId((vocab_size as f64).powf(next()) as u32 - 1)).collect()
}
