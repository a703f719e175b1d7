//! The seeded prior of the reliability table, for sources that match text.

/// Buckets of match lengths.
pub(super) const MATCH_LENS: usize = 8;
/// Buckets of raw probabilities.
pub(super) const PROBABILITIES: usize = 10;

pub(super) fn match_len_bucket(match_len: u32) -> usize {
    match match_len {
        0..=4 => match_len.saturating_sub(1) as usize,
        5..=6 => 4,
        7..=9 => 5,
        10..=16 => 6,
        _ => 7,
    }
}

/// Upper bounds of the buckets of raw probabilities but the last.
const PROBABILITY_BOUNDS: [f32; PROBABILITIES - 1] = [0.01, 0.03, 0.06, 0.12, 0.2, 0.3, 0.45, 0.6, 0.8];

pub(super) fn probability_bucket(probability: f32) -> usize {
    PROBABILITY_BOUNDS.partition_point(|&bound| bound <= probability)
}

pub(super) fn fitted(match_len: u32, probability: f32, _count: u32) -> f32 {
    probability * (1.0 - 0.6f32.powi(match_len.min(30) as i32))
}
