//! One block of an integer format, between its bytes in a file and its codes in a panel.

use half::f16;

/// One block of an integer format, with its bit fields separated and otherwise unchanged.
pub(super) struct Unpacked {
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
    pub(super) fn new() -> Self {
        Unpacked { codes: [0; 256], d: 0, m: 0, sub_scales: [0; 16], sub_mins: [0; 16] }
    }

    /// 16 bytes: low nibbles are columns 0..16, high nibbles 16..32.
    pub(super) fn read_nibbles(&mut self, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            self.codes[i] = byte & 0xF;
            self.codes[16 + i] = byte >> 4;
        }
    }

    /// Bit `i` of a little-endian u32 is the fifth bit of column `i`.
    pub(super) fn add_fifth_bits(&mut self, bytes: &[u8]) {
        for i in 0..32 {
            self.codes[i] |= (bytes[i / 8] >> (i % 8) & 1) << 4;
        }
    }

    /// 128 bytes: each run of 32 holds one sub-block of 32 in its low nibbles and the next in its high ones.
    pub(super) fn read_sub_nibbles(&mut self, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            let col = i / 32 * 64 + i % 32;
            self.codes[col] = byte & 0xF;
            self.codes[col + 32] = byte >> 4;
        }
    }

    /// 8 scales and 8 minima of 6 bits in 12 bytes (`get_scale_min_k4` of ggml).
    pub(super) fn read_sub_scales(&mut self, s: &[u8]) {
        for i in 0..4 {
            self.sub_scales[i] = s[i] & 63;
            self.sub_mins[i] = s[i + 4] & 63;
            self.sub_scales[i + 4] = s[i + 8] & 0xF | (s[i] >> 6) << 4;
            self.sub_mins[i + 4] = s[i + 8] >> 4 | (s[i + 4] >> 6) << 4;
        }
    }

    /// 64 bytes: each run of 32 holds four runs of 32 columns, two bits each, the first in the low bits.
    pub(super) fn read_two_bits(&mut self, bytes: &[u8]) {
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
pub(super) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}
